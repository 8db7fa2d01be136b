//! One row per calling context, threads one after the other.
//!
//! Level is the depth in the tree, RL the recursion level: how often the same function stands
//! above.

use std::cmp::{Ordering, Reverse};
use std::rc::Rc;

use serde::{Serialize, Serializer};
use thalweg_analysis::{Bounds, Tree as Contexts, Weight, summary, threads};
use thalweg_formats::json::Named;
use thalweg_model::{FuncId, Node, NodeFlags, NodeMetrics, Process, Profile, Thread};

use crate::flat::mean;
use crate::sites::SiteOf;
use crate::{LeftOut, Selection, SortKey, is_false, is_zero, name};

/// The contexts to show and what else there is.
#[derive(Serialize)]
pub struct Tree<'a> {
    schema: &'static str,
    pub timed: bool,
    pub threads: Vec<ThreadRows<'a>>,
    pub not_shown: LeftOut,
    /// Shares are given of this.
    #[serde(skip)]
    pub whole: u64,
}

/// The contexts of a thread; each is made when it is its turn, since there may be many.
pub struct ThreadRows<'a> {
    pub process: &'a Process,
    pub thread: &'a Thread,
    profile: &'a Profile,
    bounds: Rc<Bounds>,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
struct Row {
    node: u32,
    level: u32,
    for_context: bool,
}

#[derive(Serialize)]
pub struct Context<'a> {
    pub id: u32,
    pub level: u32,
    pub recursion: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub unwound: u64,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
    pub total_ns: u64,
    pub wall_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub function: FuncId,
    pub name: &'a str,
    #[serde(flatten)]
    pub site: SiteOf<'a>,
    #[serde(skip_serializing_if = "is_false")]
    pub on_stack_at_attach: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub folded: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub open: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub sampled: bool,
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub metrics: Named,
    /// Shown only because something below it is.
    #[serde(skip)]
    pub for_context: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    No,
    ForContext,
    Chosen,
}

impl<'a> Tree<'a> {
    /// Contexts that pass the filter and weigh enough, of these the heaviest `limit`, and all that
    /// stand above them.
    pub fn new(profile: &'a Profile, selection: &Selection) -> Tree<'a> {
        let figures = summary(profile);
        let whole = match profile.meta.timed {
            true => figures.time,
            false => figures.calls,
        };
        Tree::of_whole(profile, selection, whole)
    }

    pub(crate) fn of_whole(profile: &'a Profile, selection: &Selection, whole: u64) -> Tree<'a> {
        let weight = match profile.meta.timed {
            true => Weight::Time,
            false => Weight::Calls,
        };
        let all: Vec<(&Process, &Thread)> = threads(profile).collect();
        let trees: Vec<Contexts> = all
            .iter()
            .map(|(_, thread)| Contexts::new(thread, weight))
            .collect();
        let shown = choose(profile, selection, &trees, whole);
        let bounds = Rc::new(Bounds::from_profile(profile));

        let mut not_shown = LeftOut::default();
        let mut by_thread = Vec::new();
        for (((process, thread), tree), shown) in all.into_iter().zip(&trees).zip(&shown) {
            let nodes = thread.nodes.iter().zip(shown);
            let hidden = nodes.filter(|(_, shown)| **shown == Shown::No);
            hidden.for_each(|(node, _)| not_shown.add(node.calls, node.self_ns));
            let order = tree
                .depth_first(|&a, &b| order(profile, selection.sort, tree, &thread.metrics, a, b));
            let rows = order
                .into_iter()
                .filter(|&node| shown[node as usize] != Shown::No)
                .map(|node| Row {
                    node,
                    level: tree.level(node),
                    for_context: shown[node as usize] == Shown::ForContext,
                });
            by_thread.push(ThreadRows {
                process,
                thread,
                profile,
                bounds: bounds.clone(),
                rows: rows.collect(),
            });
        }
        Tree {
            schema: "thalweg.report.tree/1",
            timed: profile.meta.timed,
            threads: by_thread,
            not_shown,
            whole,
        }
    }
}

fn choose(
    profile: &Profile,
    selection: &Selection,
    trees: &[Contexts],
    whole: u64,
) -> Vec<Vec<Shown>> {
    let least = selection
        .min_percent
        .map_or(0.0, |percent| whole as f64 * percent / 100.0);
    let passes: Vec<bool> = (0..profile.functions.len())
        .map(|function| selection.keeps(FuncId::from_index(function)))
        .collect();

    let mut candidates: Vec<(Reverse<u64>, usize, u32)> = Vec::new();
    for (number, tree) in trees.iter().enumerate() {
        for (index, node) in (0..).zip(tree.nodes) {
            let deep = selection
                .depth
                .is_some_and(|depth| tree.level(index) >= depth);
            if passes[node.function.index()] && tree.weight(index) as f64 >= least && !deep {
                candidates.push((Reverse(tree.weight(index)), number, index));
            }
        }
    }
    if let Some(limit) = selection.limit.filter(|&limit| limit < candidates.len()) {
        if limit > 0 {
            candidates.select_nth_unstable(limit - 1);
        }
        candidates.truncate(limit);
    }

    let mut shown: Vec<Vec<Shown>> = trees
        .iter()
        .map(|tree| vec![Shown::No; tree.nodes.len()])
        .collect();
    for (_, number, index) in candidates {
        let shown = &mut shown[number];
        shown[index as usize] = Shown::Chosen;
        let mut above = trees[number].nodes[index as usize].parent;
        while let Some(parent) = above.filter(|&parent| shown[parent as usize] == Shown::No) {
            shown[parent as usize] = Shown::ForContext;
            above = trees[number].nodes[parent as usize].parent;
        }
    }
    shown
}

fn order(
    profile: &Profile,
    key: SortKey,
    tree: &Contexts,
    metrics: &NodeMetrics,
    a: u32,
    b: u32,
) -> Ordering {
    let (left, right) = (&tree.nodes[a as usize], &tree.nodes[b as usize]);
    let of_node = |node: &Node| name(profile, node.function);
    let mean = |node: &Node| mean(node.self_ns, node.calls);
    match key {
        SortKey::SelfTime => right.self_ns.cmp(&left.self_ns),
        SortKey::Total => right.total_ns.cmp(&left.total_ns),
        SortKey::Wall => right.wall_ns.cmp(&left.wall_ns),
        SortKey::Calls => right.calls.cmp(&left.calls),
        SortKey::Min => right.min.cmp(&left.min),
        SortKey::Max => right.max.cmp(&left.max),
        SortKey::Mean => mean(right).cmp(&mean(left)),
        SortKey::Recursion => right.recursion.cmp(&left.recursion),
        SortKey::Allocs
        | SortKey::Allocated
        | SortKey::Freed
        | SortKey::Live
        | SortKey::Syscalls
        | SortKey::SyscallTime
        | SortKey::Faults
        | SortKey::Switches
        | SortKey::Instructions
        | SortKey::Cycles
        | SortKey::CacheMisses => {
            let metric = key.metric();
            let figure = |node| metric.map_or(0, |metric| metrics.at(node).get(metric));
            figure(b).cmp(&figure(a))
        }
        // What only whole functions have.
        SortKey::Waiting
        | SortKey::Threads
        | SortKey::Contexts
        | SortKey::Module
        | SortKey::Name => Ordering::Equal,
    }
    .then_with(|| of_node(left).cmp(of_node(right)))
    .then(a.cmp(&b))
}

impl<'a> ThreadRows<'a> {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn contexts(&self) -> impl Iterator<Item = Context<'a>> {
        self.rows.iter().map(|row| self.context(row))
    }

    fn context(&self, row: &Row) -> Context<'a> {
        let (profile, thread) = (self.profile, self.thread);
        let node = &thread.nodes[row.node as usize];
        Context {
            id: row.node,
            level: row.level,
            recursion: node.recursion,
            unwound: node.unwound,
            calls: node.calls,
            calls_at_least: self.bounds.context(&thread.nodes, row.node),
            self_ns: node.self_ns,
            total_ns: node.total_ns,
            wall_ns: node.wall_ns,
            min_ns: node.min,
            max_ns: node.max,
            function: node.function,
            name: name(profile, node.function),
            site: SiteOf::new(profile, node.site),
            on_stack_at_attach: node.flags.contains(NodeFlags::ON_STACK_AT_ATTACH),
            folded: node.flags.contains(NodeFlags::FOLDED),
            open: node.flags.contains(NodeFlags::OPEN),
            sampled: node.flags.contains(NodeFlags::SAMPLED),
            metrics: Named(*thread.metrics.at(row.node)),
            for_context: row.for_context,
        }
    }
}

impl Serialize for ThreadRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire<'a> {
            pid: u32,
            tid: u32,
            name: &'a str,
            rows: Each<'a>,
        }
        struct Each<'a>(&'a ThreadRows<'a>);
        impl Serialize for Each<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.contexts())
            }
        }
        Wire {
            pid: self.process.pid,
            tid: self.thread.tid,
            name: &self.thread.name,
            rows: Each(self),
        }
        .serialize(serializer)
    }
}
