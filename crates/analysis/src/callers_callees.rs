//! What stands above one function and what stands below it, over all threads and contexts: who
//! called it, along which chains, and what it called.
//!
//! Both answers are trees with the function as their root, in the form of a thread's tree, so that
//! whatever shows one shows them:
//!
//! ```text
//! threads       main -> a -> f -> x      callers of f   f <- a <- main      callees of f   f -> x
//!               main -> b -> f -> y                       <- b <- main                       -> y
//! ```
//!
//! In the callers' tree each context carries the figures of the *function's* calls that came that
//! way, and where sites are told apart, the place from which it called the one before it in the
//! chain.

use thalweg_model::{FuncId, Metrics, Node, NodeFlags, NodeMetrics, Profile, SiteId, Thread};

use crate::pairs::PairTable;
use crate::sites::Callees;
use crate::tree::{Tree, Weight};
use crate::{Extremes, outermost_total, threads};

/// Chains of recursion can be a million calls long; nobody reads that far.
pub(crate) const MAX_CHAIN: u32 = 64;

/// Chains of at most `depth` callers, the nearest first; `None`: as long as they are useful.
pub fn callers(profile: &Profile, function: FuncId, depth: Option<u32>) -> Thread {
    let depth = depth.unwrap_or(MAX_CHAIN).min(MAX_CHAIN);
    let mut callers_callees = MergedContexts::new(function);
    for (_, thread) in threads(profile) {
        let nodes = (0..).zip(&thread.nodes);
        for (index, node) in nodes.filter(|(_, n)| n.function == function) {
            let metrics = thread.metrics.at(index);
            let figures = Node {
                total_ns: outermost_total(node),
                ..*node
            };
            callers_callees.add(0, &figures, metrics);
            let mut at = 0;
            let mut below = node;
            for _ in 0..depth {
                let Some(parent) = below.parent else { break };
                let caller = &thread.nodes[parent as usize];
                at = callers_callees.place(at, caller.function, below.site);
                callers_callees.add(at, &figures, metrics);
                below = caller;
            }
        }
    }
    callers_callees.finish()
}

/// Everything below the outermost calls of the function, at most `depth` levels.
pub fn callees(profile: &Profile, function: FuncId, depth: Option<u32>) -> Thread {
    let depth = depth.unwrap_or(MAX_CHAIN).min(MAX_CHAIN) as usize;
    let mut callers_callees = MergedContexts::new(function);
    for (_, thread) in threads(profile) {
        if !thread.nodes.iter().any(|node| node.function == function) {
            continue;
        }
        let tree = Tree::new(thread, Weight::Calls);
        // Places of the contexts from the outermost call of the function down to where the walk is;
        // `None` below `depth`.
        let mut path: Vec<Option<u32>> = Vec::new();
        tree.walk(|index, entering| {
            let node = &tree.nodes[index as usize];
            if path.is_empty() && node.function != function {
                return;
            }
            if !entering {
                path.pop();
                return;
            }
            let place = match path.last() {
                None => Some(0),
                Some(&above) => above
                    .filter(|_| path.len() <= depth)
                    .map(|above| callers_callees.place(above, node.function, node.site)),
            };
            if let Some(place) = place {
                callers_callees.add(place, node, thread.metrics.at(index));
            }
            path.push(place);
        });
    }
    callers_callees.finish()
}

struct MergedContexts {
    nodes: Vec<Node>,
    metrics: NodeMetrics,
    extremes: Vec<Extremes>,
    table: PairTable,
    callees: Callees,
}

impl MergedContexts {
    fn new(function: FuncId) -> MergedContexts {
        MergedContexts {
            nodes: vec![Node {
                function,
                ..Node::default()
            }],
            metrics: NodeMetrics::default(),
            extremes: vec![Extremes::default()],
            table: PairTable::new(),
            callees: Callees::default(),
        }
    }

    /// `site` is that of the call between the context and the one above it, whichever of them made
    /// it.
    fn place(&mut self, above: u32, function: FuncId, site: Option<SiteId>) -> u32 {
        let next = self.nodes.len() as u32;
        let number = self.callees.number(function, site);
        let place = self.table.get_or_insert(above, number, next);
        if place == next {
            let nodes = &self.nodes;
            let chain = std::iter::successors(Some(above), |&at| nodes[at as usize].parent);
            let same = chain.filter(|&at| nodes[at as usize].function == function);
            let recursion = same.count() as u32;
            self.nodes.push(Node {
                parent: Some(above),
                function,
                recursion,
                site,
                ..Node::default()
            });
            self.extremes.push(Extremes::default());
        }
        place
    }

    fn add(&mut self, place: u32, node: &Node, metrics: &Metrics) {
        merge_figures(&mut self.nodes[place as usize], node);
        self.metrics.add(place, metrics);
        self.extremes[place as usize].add(node);
    }

    fn finish(mut self) -> Thread {
        for (node, extremes) in self.nodes.iter_mut().zip(&self.extremes) {
            (node.min, node.max) = (extremes.min.unwrap_or(0), extremes.max);
        }
        Thread {
            nodes: self.nodes,
            metrics: self.metrics,
            ..Thread::default()
        }
    }
}

/// Adds the figures of one context to those of another, but for the extremes.
pub(crate) fn merge_figures(sum: &mut Node, node: &Node) {
    sum.calls = sum.calls.saturating_add(node.calls);
    sum.self_ns = sum.self_ns.saturating_add(node.self_ns);
    sum.total_ns = sum.total_ns.saturating_add(node.total_ns);
    sum.wall_ns = sum.wall_ns.saturating_add(node.wall_ns);
    sum.terminal = sum.terminal.saturating_add(node.terminal);
    sum.unwound = sum.unwound.saturating_add(node.unwound);
    sum.untimed = sum.untimed.saturating_add(node.untimed);
    if node.flags.contains(NodeFlags::OPEN) {
        sum.flags |= NodeFlags::OPEN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{arbitrary, flat};
    use proptest::prelude::*;

    fn rows(thread: &Thread) -> Vec<(Option<u32>, FuncId, u64, u64)> {
        let nodes = thread.nodes.iter();
        nodes
            .map(|n| (n.parent, n.function, n.calls, n.total_ns))
            .collect()
    }

    #[test]
    fn callers_carry_the_calls_and_the_time_that_came_their_way() {
        let profile = fixture::branching();
        assert_eq!(
            rows(&callers(&profile, B, None)),
            [
                (None, B, 2, 70),
                (Some(0), A, 1, 20),
                (Some(1), MAIN, 1, 20),
                (Some(0), MAIN, 1, 50)
            ]
        );
        assert_eq!(rows(&callers(&profile, B, Some(1))).len(), 3);
    }

    #[test]
    fn callees_are_those_of_all_contexts_together() {
        let profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        let below = callees(&profile, A, None);
        assert_eq!(
            rows(&below),
            [
                (None, A, 1, 75),
                (Some(0), A, 1, 65),
                (Some(1), B, 1, 45),
                (Some(2), A, 1, 40)
            ]
        );
        assert_eq!(below.nodes[3].recursion, 2);
        assert_eq!(rows(&callees(&profile, A, Some(1))).len(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_root_of_the_callers_is_the_function_itself(profile in arbitrary::program()) {
            for row in flat(&profile) {
                let above = callers(&profile, row.function, None);
                let root = above.nodes[0];
                prop_assert_eq!((root.calls, root.self_ns, root.total_ns), (row.calls, row.self_ns, row.total_ns));
                let below = callees(&profile, row.function, None);
                prop_assert_eq!(below.nodes[0].total_ns, row.total_ns);
            }
        }
    }
}
