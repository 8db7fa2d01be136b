//! Call counts as trees, and the comparison that names every difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write};

/// One node of a calling-context tree. `name` is empty for functions that are not the target's own.
#[derive(Clone, Debug)]
pub struct Context {
    pub parent: Option<usize>,
    pub name: Option<String>,
    pub calls: u64,
}

/// Trees of all threads, parents before children.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    pub nodes: Vec<Context>,
}

pub type Calls = BTreeMap<String, u64>;
pub type Pairs = BTreeMap<(String, String), u64>;
pub type Paths = BTreeMap<Vec<String>, u64>;

impl Forest {
    pub fn calls(&self, keep: &BTreeSet<String>) -> Calls {
        let mut calls = Calls::new();
        for node in &self.nodes {
            if let Some(name) = kept(node, keep) {
                *calls.entry(name.to_owned()).or_default() += node.calls;
            }
        }
        calls.retain(|_, count| *count > 0);
        calls
    }

    /// Pairs in which the one has really called the other: no function of another kind stands between them.
    pub fn direct_pairs(&self, keep: &BTreeSet<String>) -> Pairs {
        let mut pairs = Pairs::new();
        for node in &self.nodes {
            let caller = node.parent.map(|parent| &self.nodes[parent]);
            if let (Some(name), Some(caller)) =
                (kept(node, keep), caller.and_then(|c| kept(c, keep)))
            {
                *pairs
                    .entry((caller.to_owned(), name.to_owned()))
                    .or_default() += node.calls;
            }
        }
        pairs.retain(|_, count| *count > 0);
        pairs
    }

    /// Every context with functions outside of `keep` left out of the path. Only for trees of modest depth.
    pub fn paths(&self, keep: &BTreeSet<String>) -> Paths {
        let mut paths = Paths::new();
        for node in &self.nodes {
            if node.calls == 0 || kept(node, keep).is_none() {
                continue;
            }
            let mut path = Vec::new();
            let mut at = Some(node);
            while let Some(here) = at {
                path.extend(kept(here, keep).map(str::to_owned));
                at = here.parent.map(|parent| &self.nodes[parent]);
            }
            path.reverse();
            *paths.entry(path).or_default() += node.calls;
        }
        paths
    }
}

fn kept<'a>(node: &'a Context, keep: &BTreeSet<String>) -> Option<&'a str> {
    node.name.as_deref().filter(|name| keep.contains(*name))
}

/// Panics with a list of the differences, largest first.
#[track_caller]
pub fn assert_same<K: Ord + Debug>(
    what: &str,
    ours: (&str, &BTreeMap<K, u64>),
    theirs: (&str, &BTreeMap<K, u64>),
) {
    assert!(
        !theirs.1.is_empty(),
        "{what}: the reference {} is empty",
        theirs.0
    );
    let differences = differences(ours, theirs);
    assert!(differences.is_empty(), "{what}: {differences}");
}

pub fn differences<K: Ord + Debug>(
    ours: (&str, &BTreeMap<K, u64>),
    theirs: (&str, &BTreeMap<K, u64>),
) -> String {
    let keys: BTreeSet<&K> = ours.1.keys().chain(theirs.1.keys()).collect();
    let mut wrong: Vec<(u64, u64, &K)> = keys
        .into_iter()
        .map(|key| (count(ours.1, key), count(theirs.1, key), key))
        .filter(|(a, b, _)| a != b)
        .collect();
    wrong.sort_by_key(|(a, b, _)| std::cmp::Reverse(a.abs_diff(*b)));
    let mut text = String::new();
    if !wrong.is_empty() {
        let _ = writeln!(
            text,
            "{} of {} differ ({} / {}):",
            wrong.len(),
            theirs.1.len(),
            ours.0,
            theirs.0
        );
    }
    for (a, b, key) in wrong.iter().take(25) {
        let _ = writeln!(text, "  {a:>12} / {b:<12} {key:?}");
    }
    text
}

fn count<K: Ord>(map: &BTreeMap<K, u64>, key: &K) -> u64 {
    map.get(key).copied().unwrap_or(0)
}
