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
const MAX_CHAIN: u32 = 64;

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

/// A context with less than this part of all time and of all calls is not followed up to the start:
/// its function has it.
const WORTH_FOLLOWING: u64 = 1_000_000;

/// All functions with their self time, and below each who called it, and so on up to the start: a
/// tree turned upside down. A context's total is the self time of the function at the root of its
/// tree that came its way.
///
/// ```text
/// main 1 -> a 10 -> b 20      becomes      b 70 <- a 20 <- main 20      a 10 <- main 10      main 1
///        -> b 50                                <- main 50
/// ```
pub fn inverted(profile: &Profile) -> Thread {
    let all = || threads(profile).flat_map(|(_, thread)| &thread.nodes);
    let sum = |figure: fn(&Node) -> u64| all().fold(0u64, |sum, n| sum.saturating_add(figure(n)));
    let least_time = (sum(|node| node.self_ns) / WORTH_FOLLOWING).max(1);
    let least_calls = (sum(|node| node.calls) / WORTH_FOLLOWING).max(1);
    let mut turned = MergedContexts::empty();
    for (_, thread) in threads(profile) {
        for (index, node) in (0..).zip(&thread.nodes) {
            let figures = Node {
                total_ns: node.self_ns,
                wall_ns: node.self_ns,
                self_ns: 0,
                ..*node
            };
            let none = Metrics::default();
            let mut at = turned.place(NO_CALLER, node.function, None);
            turned.add(at, &figures, thread.metrics.at(index));
            let mut below = node;
            if node.self_ns >= least_time || node.calls >= least_calls {
                for _ in 0..MAX_CHAIN {
                    let Some(parent) = below.parent else { break };
                    below = &thread.nodes[parent as usize];
                    at = turned.place(at, below.function, None);
                    turned.add(at, &figures, &none);
                }
            }
            let end = &mut turned.nodes[at as usize];
            end.self_ns = end.self_ns.saturating_add(node.self_ns);
        }
    }
    turned.finish()
}

/// Above the roots of a tree that is turned.
const NO_CALLER: u32 = u32::MAX;

struct MergedContexts {
    nodes: Vec<Node>,
    metrics: NodeMetrics,
    extremes: Vec<Extremes>,
    table: PairTable,
    callees: Callees,
}

impl MergedContexts {
    fn empty() -> MergedContexts {
        MergedContexts {
            nodes: Vec::new(),
            metrics: NodeMetrics::default(),
            extremes: Vec::new(),
            table: PairTable::new(),
            callees: Callees::default(),
        }
    }

    fn new(function: FuncId) -> MergedContexts {
        MergedContexts {
            nodes: vec![Node {
                function,
                ..Node::default()
            }],
            extremes: vec![Extremes::default()],
            ..MergedContexts::empty()
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
            let parent = Some(above).filter(|&above| above != NO_CALLER);
            let chain = std::iter::successors(parent, |&at| nodes[at as usize].parent);
            let same = chain.filter(|&at| nodes[at as usize].function == function);
            let recursion = same.count() as u32;
            self.nodes.push(Node {
                parent,
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
        let sum = &mut self.nodes[place as usize];
        sum.calls = sum.calls.saturating_add(node.calls);
        sum.self_ns = sum.self_ns.saturating_add(node.self_ns);
        sum.total_ns = sum.total_ns.saturating_add(node.total_ns);
        sum.wall_ns = sum.wall_ns.saturating_add(node.wall_ns);
        sum.terminal = sum.terminal.saturating_add(node.terminal);
        sum.unwound = sum.unwound.saturating_add(node.unwound);
        self.metrics.add(place, metrics);
        sum.untimed = sum.untimed.saturating_add(node.untimed);
        if node.flags.contains(NodeFlags::OPEN) {
            sum.flags |= NodeFlags::OPEN;
        }
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
    fn a_tree_upside_down_begins_with_who_keeps_the_time() {
        let turned = inverted(&fixture::branching());
        let mut roots: Vec<_> = turned.nodes.iter().filter(|n| n.parent.is_none()).collect();
        roots.sort_by_key(|node| std::cmp::Reverse(node.total_ns));
        let figures: Vec<_> = roots.iter().map(|n| (n.function, n.total_ns)).collect();
        assert_eq!(figures, [(B, 70), (A, 10), (MAIN, 1)]);
        let of_b = turned
            .nodes
            .iter()
            .position(|n| n.parent.is_none() && n.function == B);
        let callers = turned
            .nodes
            .iter()
            .filter(|n| n.parent == of_b.map(|at| at as u32));
        let mut callers: Vec<_> = callers.map(|n| (n.function, n.calls, n.total_ns)).collect();
        callers.sort();
        assert_eq!(callers, [(MAIN, 1, 50), (A, 1, 20)]);
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
