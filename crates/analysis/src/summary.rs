//! The few figures and the one path that a reader wants to see first.

use std::collections::HashSet;

use thalweg_model::{FuncId, NodeFlags, Profile};

use crate::threads;
use crate::tree::{Tree, Weight};

/// A whole profile in a few numbers. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub processes: u64,
    pub threads: u64,
    pub calls: u64,
    /// Sum of self over everything: the time of all threads together, the whole of which shares are
    /// given.
    pub time: u64,
    /// Functions that were called or on a stack.
    pub functions_seen: u64,
    pub functions_patched: u64,
    pub functions_total: u64,
    pub skipped: u64,
    pub contexts: u64,
    pub folded_calls: u64,
    /// Levels of the deepest context.
    pub deepest: u64,
}

pub fn summary(profile: &Profile) -> Summary {
    let mut summary = Summary {
        processes: profile.processes.len() as u64,
        skipped: profile.skipped.len() as u64,
        ..Summary::default()
    };
    for module in &profile.modules {
        summary.functions_patched += u64::from(module.functions_patched);
        summary.functions_total += u64::from(module.functions_total);
    }
    let mut seen = vec![false; profile.functions.len()];
    for (_, thread) in threads(profile) {
        summary.threads = summary
            .threads
            .saturating_add(thread.others)
            .saturating_add(1);
        summary.contexts += thread.nodes.len() as u64;
        summary.folded_calls = summary.folded_calls.saturating_add(thread.folded_calls);
        let mut levels = vec![0u64; thread.nodes.len()];
        for (index, node) in thread.nodes.iter().enumerate() {
            summary.calls = summary.calls.saturating_add(node.calls);
            summary.time = summary.time.saturating_add(node.self_ns);
            seen[node.function.index()] = true;
            levels[index] = 1 + node.parent.map_or(0, |parent| levels[parent as usize]);
            summary.deepest = summary.deepest.max(levels[index]);
        }
    }
    summary.functions_seen = seen.iter().filter(|&&seen| seen).count() as u64;
    summary
}

/// The chain of calls that most of the weight of one thread went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPath {
    pub pid: u32,
    pub tid: u32,
    pub thread_name: String,
    pub steps: Vec<HotStep>,
    /// How many callees the last step spreads its weight over; 0 when it keeps most for itself or
    /// has none.
    pub spreads_over: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotStep {
    pub function: FuncId,
    pub calls: u64,
    pub weight: u64,
}

/// From the heaviest root down into the heaviest callee, until the caller itself weighs more than
/// that, or no callee has a fifth of its caller's weight and a twentieth of the root's. `None` when
/// no thread has any context.
pub fn hottest_path(profile: &Profile) -> Option<HotPath> {
    let weight = if profile.meta.timed {
        Weight::Time
    } else {
        Weight::Calls
    };
    let (_, pid, thread, tree, root) = threads(profile)
        .filter(|(_, thread)| !thread.nodes.is_empty())
        .filter_map(|(process, thread)| {
            let tree = Tree::new(thread, weight);
            let whole = |&&root: &&u32| {
                let flags = thread.nodes[root as usize].flags;
                !flags.contains(NodeFlags::FOLDED)
            };
            let root = *tree
                .roots()
                .iter()
                .filter(whole)
                .max_by_key(|&&root| tree.weight(root))?;
            Some((tree.weight(root), process.pid, thread, tree, root))
        })
        .max_by_key(|(weight, ..)| *weight)?;

    let mut steps = Vec::new();
    let mut at = root;
    let spreads_over = loop {
        let node = &tree.nodes[at as usize];
        steps.push(HotStep {
            function: node.function,
            calls: node.calls,
            weight: tree.weight(at),
        });
        // Of folded calls it is not known what led to them.
        let is_known = |child: &u32| {
            let flags = tree.nodes[*child as usize].flags;
            !flags.contains(NodeFlags::FOLDED)
        };
        let callees: Vec<u32> = tree.children(at).iter().copied().filter(is_known).collect();
        let Some(&heaviest) = callees.iter().max_by_key(|&&child| tree.weight(child)) else {
            break 0;
        };
        let own = match weight {
            Weight::Time | Weight::Wall => node.self_ns,
            Weight::Calls => node.calls,
        };
        if own > tree.weight(heaviest) {
            break 0;
        }
        if tree.weight(heaviest) < (tree.weight(at) / 5).max(tree.weight(root) / 20) {
            let functions: HashSet<FuncId> = callees
                .iter()
                .map(|&child| tree.nodes[child as usize].function)
                .collect();
            break functions.len();
        }
        at = heaviest;
    };
    Some(HotPath {
        pid,
        tid: thread.tid,
        thread_name: thread.name.clone(),
        steps,
        spreads_over,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    #[test]
    fn the_summary_counts_everything_once() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        fixture::fold(&mut profile, A, 7, 30);
        let summary = summary(&profile);
        assert_eq!((summary.calls, summary.time), (12, 106));
        assert_eq!((summary.functions_seen, summary.contexts), (3, 6));
        assert_eq!((summary.folded_calls, summary.deepest), (7, 5));
    }

    #[test]
    fn the_hottest_path_follows_the_time_and_ends_where_it_is_spent() {
        let profile = fixture::branching();
        let path = hottest_path(&profile).unwrap();
        let functions: Vec<FuncId> = path.steps.iter().map(|step| step.function).collect();
        assert_eq!(functions, [MAIN, B]);
        assert_eq!(path.steps[1].weight, 50);
    }

    #[test]
    fn the_hottest_path_follows_the_calls_when_nothing_was_timed() {
        let mut profile = fixture::branching();
        profile.meta.timed = false;
        let functions: Vec<FuncId> = hottest_path(&profile)
            .unwrap()
            .steps
            .iter()
            .map(|s| s.function)
            .collect();
        assert_eq!(functions, [MAIN, A, B]);
    }

    #[test]
    fn the_hottest_path_ends_where_recursion_has_worn_the_time_down() {
        // Each level keeps half of its caller's time: no step is steep, and still the last ones say
        // nothing.
        let calls: Vec<(FuncId, u64)> = (0..12).map(|level| (A, 1 << (12 - level))).collect();
        let path = hottest_path(&fixture::chain(&calls)).unwrap();
        assert_eq!(path.steps.len(), 1, "{:?}", path.steps);

        let mut spread = fixture::chain(&calls);
        for node in &mut spread.processes[0].threads[0].nodes {
            node.self_ns = 0;
        }
        let path = hottest_path(&spread).unwrap();
        assert_eq!(path.steps.len(), 5, "{:?}", path.steps);
        assert_eq!(path.spreads_over, 1);
    }

    #[test]
    fn an_empty_profile_has_no_path() {
        assert_eq!(hottest_path(&Profile::default()), None);
        assert_eq!(summary(&Profile::default()), Summary::default());
    }

    #[test]
    fn folded_calls_do_not_begin_a_path() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10)]);
        fixture::fold(&mut profile, B, 7, 3000);
        assert_eq!(hottest_path(&profile).unwrap().steps[0].function, MAIN);
    }
}
