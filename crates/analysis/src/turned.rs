//! The tree of all contexts upside down: who keeps the time, and below each who called it, up to
//! the start.
//!
//! ```text
//! main 1 -> a 10 -> b 20      becomes      b 70 <- a 20 <- main 20      a 10 <- main 10      main 1
//!        -> b 50                                <- main 50
//! ```
//!
//! Contexts are divided by who called them, level by level, so that nothing that weighs nothing is
//! gone into: with each of 450,000 followed up to the start it took ten times as long.

use thalweg_model::{FuncId, Node, NodeMetrics, Profile, Thread};

use crate::callers_callees::{MAX_CHAIN, merge_figures};
use crate::{Extremes, threads};

/// Who called what has less than this part of all time and of all calls is not told: nobody would
/// see it.
const WORTH_FOLLOWING: u64 = 100_000;
/// No place yet.
const NOWHERE: u32 = u32::MAX;

/// A context's total is the self time of the function at the root of its tree that came its way; its
/// own time is what came no further.
pub fn inverted(profile: &Profile) -> Thread {
    let all: Vec<&Thread> = threads(profile).map(|(_, thread)| thread).collect();
    let sum = |figure: fn(&Node) -> u64| {
        let figures = all
            .iter()
            .flat_map(|thread| thread.nodes.iter().map(figure));
        figures.fold(0, u64::saturating_add)
    };
    let mut turning = Turning {
        least_time: (sum(|node| node.self_ns) / WORTH_FOLLOWING).max(1),
        least_calls: (sum(|node| node.calls) / WORTH_FOLLOWING).max(1),
        nodes: Vec::new(),
        extremes: Vec::new(),
        places: vec![NOWHERE; profile.functions.len()],
        on_path: vec![0; profile.functions.len()],
        pending: Vec::new(),
        threads: all,
    };
    let ways = (0..).zip(&turning.threads).flat_map(|(thread, of)| {
        let contexts = 0..of.nodes.len() as u32;
        contexts.map(move |origin| Way {
            thread,
            origin,
            at: origin,
        })
    });
    let ways: Vec<Way> = ways.collect();
    let metrics = turning.divide(None, 0, ways);
    turning.run();
    turning.finish(metrics)
}

/// How the self time of one context came to a place: through those that called it up to here.
#[derive(Clone, Copy)]
struct Way {
    thread: u32,
    /// Whose time it is.
    origin: u32,
    at: u32,
}

enum Step {
    /// Divide by callers what came to the place, so many calls below the root.
    Enter(u32, u32, Vec<Way>),
    Leave(FuncId),
}

struct Turning<'a> {
    threads: Vec<&'a Thread>,
    least_time: u64,
    least_calls: u64,
    nodes: Vec<Node>,
    extremes: Vec<Extremes>,
    /// By function: its place below the one that is divided.
    places: Vec<u32>,
    /// By function: how often it stands between the root and the place that is divided.
    on_path: Vec<u32>,
    pending: Vec<Step>,
}

impl Turning<'_> {
    fn run(&mut self) {
        while let Some(step) = self.pending.pop() {
            match step {
                Step::Leave(function) => self.on_path[function.index()] -= 1,
                Step::Enter(place, depth, mut ways) => {
                    let function = self.nodes[place as usize].function;
                    self.on_path[function.index()] += 1;
                    self.pending.push(Step::Leave(function));
                    ways.retain_mut(|way| match self.node(way.thread, way.at).parent {
                        Some(parent) => {
                            way.at = parent;
                            true
                        }
                        None => {
                            self.end_at(place, way);
                            false
                        }
                    });
                    self.divide(Some(place), depth + 1, ways);
                }
            }
        }
    }

    fn node(&self, thread: u32, index: u32) -> &Node {
        &self.threads[thread as usize].nodes[index as usize]
    }

    /// The way is not followed beyond the place.
    fn end_at(&mut self, place: u32, way: &Way) {
        let time = self.node(way.thread, way.origin).self_ns;
        let end = &mut self.nodes[place as usize];
        end.self_ns = end.self_ns.saturating_add(time);
    }

    /// A place for each function that the ways are at, below `above`; those that weigh something
    /// are entered later. Returns what else was measured, of the roots.
    fn divide(&mut self, above: Option<u32>, depth: u32, ways: Vec<Way>) -> NodeMetrics {
        let first = self.nodes.len() as u32;
        let mut metrics = NodeMetrics::default();
        let mut counts: Vec<usize> = Vec::new();
        for way in &ways {
            let function = self.node(way.thread, way.at).function;
            let mut place = self.places[function.index()];
            if place == NOWHERE {
                place = self.nodes.len() as u32;
                self.places[function.index()] = place;
                self.nodes.push(Node {
                    parent: above,
                    function,
                    recursion: self.on_path[function.index()],
                    ..Node::default()
                });
                self.extremes.push(Extremes::default());
                counts.push(0);
            }
            let thread = self.threads[way.thread as usize];
            let origin = &thread.nodes[way.origin as usize];
            let figures = Node {
                total_ns: origin.self_ns,
                wall_ns: origin.self_ns,
                self_ns: 0,
                ..*origin
            };
            merge_figures(&mut self.nodes[place as usize], &figures);
            self.extremes[place as usize].add(&figures);
            counts[(place - first) as usize] += 1;
            if above.is_none() {
                metrics.add(place, thread.metrics.at(way.origin));
            }
        }
        let mut entered: Vec<Option<Vec<Way>>> = (first..)
            .zip(&counts)
            .map(|(place, &count)| {
                let node = &self.nodes[place as usize];
                let weighs = node.total_ns >= self.least_time || node.calls >= self.least_calls;
                (weighs && depth < MAX_CHAIN).then(|| Vec::with_capacity(count))
            })
            .collect();
        for way in ways {
            let place = self.places[self.node(way.thread, way.at).function.index()];
            match &mut entered[(place - first) as usize] {
                Some(entered) => entered.push(way),
                None => self.end_at(place, &way),
            }
        }
        for (place, entered) in (first..).zip(entered) {
            self.places[self.nodes[place as usize].function.index()] = NOWHERE;
            if let Some(ways) = entered {
                self.pending.push(Step::Enter(place, depth, ways));
            }
        }
        metrics
    }

    fn finish(mut self, metrics: NodeMetrics) -> Thread {
        for (node, extremes) in self.nodes.iter_mut().zip(&self.extremes) {
            (node.min, node.max) = (extremes.min.unwrap_or(0), extremes.max);
        }
        Thread {
            nodes: self.nodes,
            metrics,
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
    fn recursion_is_told_and_what_was_measured_beside_stays_at_the_roots() {
        let profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        let turned = inverted(&profile);
        let root = turned
            .nodes
            .iter()
            .position(|n| n.parent.is_none() && n.function == A);
        let root = root.unwrap() as u32;
        assert_eq!(turned.nodes[root as usize].total_ns, 70);
        let below = |place: u32, function: FuncId| {
            let mut numbered = (0..).zip(&turned.nodes);
            let found = numbered.find(|(_, n)| n.parent == Some(place) && n.function == function);
            found.unwrap()
        };
        let (again, by_itself) = below(root, A);
        assert_eq!((by_itself.recursion, by_itself.total_ns), (1, 20));
        assert_eq!(below(again, MAIN).1.self_ns, 20, "it came no further");
        let (b, _) = below(root, B);
        let (first, of_first) = below(b, A);
        assert_eq!(of_first.recursion, 1);
        assert_eq!(below(first, A).1.recursion, 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_root_is_its_function_and_no_time_is_lost(profile in arbitrary::program()) {
            let turned = inverted(&profile);
            let mut below = vec![0u64; turned.nodes.len()];
            for node in &turned.nodes {
                if let Some(parent) = node.parent {
                    below[parent as usize] += node.total_ns;
                }
            }
            for (node, below) in turned.nodes.iter().zip(below) {
                prop_assert_eq!(node.total_ns, node.self_ns + below);
            }
            let roots = turned.nodes.iter().filter(|node| node.parent.is_none());
            let mut roots: Vec<_> = roots.map(|n| (n.function, n.calls, n.total_ns)).collect();
            roots.sort();
            let rows = flat(&profile);
            let all: Vec<_> = rows.iter().map(|r| (r.function, r.calls, r.self_ns)).collect();
            prop_assert_eq!(roots, all);
        }
    }
}
