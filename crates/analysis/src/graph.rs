//! One call graph of all threads and processes: functions, calls between them, and who made whose
//! thread.
//!
//! Laid together naively, threads give the graph cycles that the program did not have: `work` makes
//! a thread, that thread's `start` calls `work`, and so `work -> start -> work`. So the first
//! functions of threads are kept apart by the nesting level of their threads, and so is any other
//! function that would still close a ring through the making of a thread. What is left of cycles
//! consists of calls that were made.
//!
//! ```text
//! START -> main -> make -> start@1 -> work@1 -> start@2 -> work@2
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_model::{FuncId, NodeFlags, Profile};

use crate::components::components;
use crate::lineage::{Lineage, ThreadNumber};
use crate::{outermost_total, threads};

/// A function, or its part on one nesting level of threads. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphNode {
    /// Index into the profile's functions.
    pub function: FuncId,
    /// Where the function's invocations are kept apart by level: theirs.
    pub level: Option<u32>,
    pub calls: u64,
    pub self_ns: u64,
    pub total_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Where programs start, and threads whose maker is not known.
    Start,
    /// The caller was not kept: folded calls.
    Unknown,
    /// All callers whose own edges are below the thresholds, together.
    Others,
    /// Index into [`Graph::nodes`].
    Node(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    Call,
    /// The function made a thread or process, which began with the other.
    Made,
    /// Calls with functions in between that were pruned.
    Indirect,
    /// What is left of a function's calls when edges are pruned; always from [`Source::Others`].
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphEdge {
    pub from: Source,
    /// Index into [`Graph::nodes`].
    pub to: u32,
    pub link: Link,
    pub calls: u64,
    /// Cumulative; what recursion repeats is counted once, at the outermost call.
    pub total_ns: u64,
}

/// All of it, with the whole of which coverage is a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    pub nodes: Vec<GraphNode>,
    pub edges: Vec<GraphEdge>,
    /// Base time and calls of the profile.
    pub time: u64,
    pub calls: u64,
}

/// A function on a level: the finest grain.
type Part = (FuncId, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum From {
    Start,
    Unknown,
    Part(Part),
}

#[derive(Clone, Copy, Default)]
struct Sums {
    calls: u64,
    self_ns: u64,
    total_ns: u64,
}

impl Sums {
    fn add(&mut self, calls: u64, self_ns: u64, total_ns: u64) {
        self.calls = self.calls.saturating_add(calls);
        self.self_ns = self.self_ns.saturating_add(self_ns);
        self.total_ns = self.total_ns.saturating_add(total_ns);
    }
}

/// Everything on its level: cannot have a ring through the making of a thread, which always leads
/// one level down.
#[derive(Default)]
struct Fine {
    parts: BTreeMap<Part, Sums>,
    edges: BTreeMap<(From, Part, Link), Sums>,
    /// Functions that threads began with.
    first: HashSet<FuncId>,
}

impl Graph {
    pub fn from_profile(profile: &Profile) -> Graph {
        Fine::from_profile(profile, &|_| true).untangled().0
    }

    /// Only the functions that `keep` has, with the calls between them as they were made: a call
    /// that comes from a kept function through others is an edge of its own, and each call of a
    /// kept function is in exactly one edge.
    pub(crate) fn of_kept(profile: &Profile, keep: impl Fn(&Graph, &GraphNode) -> bool) -> Graph {
        let (whole, apart) = Fine::from_profile(profile, &|_| true).untangled();
        let kept: HashSet<(FuncId, Option<u32>)> = whole
            .nodes
            .iter()
            .filter(|node| keep(&whole, node))
            .map(|node| (node.function, node.level))
            .collect();
        if kept.len() == whole.nodes.len() {
            return whole;
        }
        let fine = Fine::from_profile(profile, &|part| kept.contains(&key(part, &apart)));
        Graph {
            time: whole.time,
            calls: whole.calls,
            ..fine.contract(&apart)
        }
    }

    /// Indices of the edges into each node.
    pub fn incoming(&self) -> Vec<Vec<u32>> {
        let mut incoming = vec![Vec::new(); self.nodes.len()];
        for (index, edge) in (0..).zip(&self.edges) {
            incoming[edge.to as usize].push(index);
        }
        incoming
    }

    /// Groups of functions that call each other in a ring, the largest first; a function that only
    /// calls itself is one of its own.
    pub fn cycles(&self) -> Vec<Vec<u32>> {
        let mut calls_itself = vec![false; self.nodes.len()];
        for edge in &self.edges {
            if edge.from == Source::Node(edge.to) {
                calls_itself[edge.to as usize] = true;
            }
        }
        let mut cycles: Vec<Vec<u32>> = self
            .components()
            .into_iter()
            .filter(|group| group.len() > 1 || calls_itself[group[0] as usize])
            .collect();
        cycles.sort_by_key(|group| (std::cmp::Reverse(group.len()), group[0]));
        cycles
    }

    fn components(&self) -> Vec<Vec<u32>> {
        let mut callees = vec![Vec::new(); self.nodes.len()];
        for edge in &self.edges {
            if let Source::Node(from) = edge.from {
                callees[from as usize].push(edge.to);
            }
        }
        components(&callees)
    }

    fn functions_ringed_by_makers(&self) -> Vec<FuncId> {
        let groups = self.components();
        let mut group_of = vec![0; self.nodes.len()];
        for (number, group) in groups.iter().enumerate() {
            group
                .iter()
                .for_each(|&node| group_of[node as usize] = number);
        }
        let ringed: HashSet<usize> = self
            .edges
            .iter()
            .filter(|edge| edge.link == Link::Made)
            .filter_map(|edge| match edge.from {
                Source::Node(from) => Some((group_of[from as usize], group_of[edge.to as usize])),
                _ => None,
            })
            .filter(|(from, to)| from == to)
            .map(|(group, _)| group)
            .collect();
        let members = ringed.into_iter().flat_map(|group| &groups[group]);
        members
            .map(|&node| self.nodes[node as usize].function)
            .collect()
    }
}

/// How a part stands in the graph: whole, or by level where it is one of `apart`.
fn key((function, level): Part, apart: &HashSet<FuncId>) -> (FuncId, Option<u32>) {
    (function, apart.contains(&function).then_some(level))
}

/// The closest kept function above a place in a tree, and whether others that are not kept stand in
/// between.
#[derive(Clone, Copy)]
struct Above {
    from: From,
    link: Link,
}

/// Which kept functions the makers of threads were called by, where the makers themselves are not
/// kept.
#[derive(Default)]
struct Makers {
    /// By thread and function. `None`: by several, and it is not known by which when they made the
    /// thread.
    called_by: HashMap<(ThreadNumber, FuncId), Option<From>>,
    wanted: HashSet<(ThreadNumber, FuncId)>,
}

impl Makers {
    fn new(profile: &Profile, lineage: &Lineage) -> Makers {
        let threads = (0..threads(profile).count() as u32).map(ThreadNumber);
        let origins = threads.filter_map(|thread| lineage.origin(thread));
        Makers {
            wanted: origins
                .filter_map(|origin| Some((origin.maker, origin.function?)))
                .collect(),
            ..Makers::default()
        }
    }

    fn see(&mut self, thread: ThreadNumber, function: FuncId, above: From) {
        if self.wanted.contains(&(thread, function)) {
            let known = self.called_by.entry((thread, function));
            known
                .and_modify(|from| *from = from.filter(|from| *from == above))
                .or_insert(Some(above));
        }
    }

    fn from(&self, thread: ThreadNumber, function: FuncId) -> From {
        let known = self.called_by.get(&(thread, function));
        known.copied().flatten().unwrap_or(From::Start)
    }
}

impl Fine {
    /// Of the parts that `keep` has. Every call of one of them is in one edge, from the closest
    /// part above it that is kept.
    fn from_profile(profile: &Profile, keep: &dyn Fn(Part) -> bool) -> Fine {
        let lineage = Lineage::from_profile(profile);
        let mut fine = Fine::default();
        let mut makers = Makers::new(profile, &lineage);
        let all: Vec<_> = threads(profile).map(|(_, thread)| thread).collect();
        // Makers before those that they made.
        let mut by_level: Vec<ThreadNumber> = (0..all.len() as u32).map(ThreadNumber).collect();
        by_level.sort_by_key(|&number| lineage.level(number));
        for number in by_level {
            let thread = all[number.0 as usize];
            let level = lineage.level(number);
            let start = fine.start(&lineage, number, &makers, keep);
            let mut is_kept: HashMap<FuncId, bool> = HashMap::new();
            // Sums of one thread first: a function's place in the maps is looked up once per
            // thread, not per context.
            let mut of_thread: HashMap<(FuncId, FuncId, Link), Sums> = HashMap::new();
            let mut stands: Vec<Above> = Vec::with_capacity(thread.nodes.len());
            for node in &thread.nodes {
                let part = (node.function, level);
                let above = match node.parent {
                    Some(parent) => stands[parent as usize],
                    None if node.flags.contains(NodeFlags::FOLDED) => Above {
                        from: From::Unknown,
                        link: Link::Call,
                    },
                    None => {
                        fine.first.insert(node.function);
                        start
                    }
                };
                if !*is_kept.entry(node.function).or_insert_with(|| keep(part)) {
                    makers.see(number, node.function, above.from);
                    stands.push(Above {
                        link: Link::Indirect,
                        ..above
                    });
                    continue;
                }
                stands.push(Above {
                    from: From::Part(part),
                    link: Link::Call,
                });
                let figures = (node.calls, node.self_ns, outermost_total(node));
                match (above.from, node.parent) {
                    (From::Part((caller, at)), Some(_)) if at == level => {
                        let sums = of_thread
                            .entry((caller, node.function, above.link))
                            .or_default();
                        sums.add(figures.0, figures.1, figures.2);
                    }
                    (from, _) => fine.add(from, part, above.link, figures),
                }
            }
            for ((caller, callee, link), sums) in of_thread {
                let from = From::Part((caller, level));
                let figures = (sums.calls, sums.self_ns, sums.total_ns);
                fine.add(from, (callee, level), link, figures);
            }
        }
        fine
    }

    /// What stands above the roots of a thread.
    fn start(
        &mut self,
        lineage: &Lineage,
        thread: ThreadNumber,
        makers: &Makers,
        keep: &dyn Fn(Part) -> bool,
    ) -> Above {
        let origin = lineage.origin(thread);
        let Some((maker, function)) =
            origin.and_then(|origin| Some((origin.maker, origin.function?)))
        else {
            return Above {
                from: From::Start,
                link: Link::Call,
            };
        };
        let part = (function, lineage.level(maker));
        if keep(part) {
            // Its node may have been folded away; the edge needs one all the same.
            self.parts.entry(part).or_default();
            return Above {
                from: From::Part(part),
                link: Link::Made,
            };
        }
        Above {
            from: makers.from(maker, function),
            link: Link::Indirect,
        }
    }

    /// The levels laid together but for functions that must be apart, and which these are.
    fn untangled(&self) -> (Graph, HashSet<FuncId>) {
        let mut apart = self.first.clone();
        loop {
            let graph = self.contract(&apart);
            let ringed = graph.functions_ringed_by_makers();
            let before = apart.len();
            apart.extend(ringed);
            if apart.len() == before {
                return (graph, apart);
            }
        }
    }

    fn add(&mut self, from: From, to: Part, link: Link, figures: (u64, u64, u64)) {
        let (calls, self_ns, total_ns) = figures;
        self.parts
            .entry(to)
            .or_default()
            .add(calls, self_ns, total_ns);
        let edge = self.edges.entry((from, to, link)).or_default();
        edge.add(calls, self_ns, total_ns);
    }

    /// The levels of all functions but those of `apart` laid together.
    fn contract(&self, apart: &HashSet<FuncId>) -> Graph {
        let key = |part| key(part, apart);
        let mut graph = Graph::default();
        let mut numbers = HashMap::new();
        for (&part, sums) in &self.parts {
            let (function, level) = key(part);
            let number = *numbers.entry((function, level)).or_insert_with(|| {
                graph.nodes.push(GraphNode {
                    function,
                    level,
                    calls: 0,
                    self_ns: 0,
                    total_ns: 0,
                });
                graph.nodes.len() as u32 - 1
            });
            let node = &mut graph.nodes[number as usize];
            node.calls = node.calls.saturating_add(sums.calls);
            node.self_ns = node.self_ns.saturating_add(sums.self_ns);
            node.total_ns = node.total_ns.saturating_add(sums.total_ns);
            graph.time = graph.time.saturating_add(sums.self_ns);
            graph.calls = graph.calls.saturating_add(sums.calls);
        }
        let mut edges: BTreeMap<(Source, u32, Link), Sums> = BTreeMap::new();
        for (&(from, to, link), sums) in &self.edges {
            let from = match from {
                From::Start => Source::Start,
                From::Unknown => Source::Unknown,
                From::Part(part) => Source::Node(numbers[&key(part)]),
            };
            let edge = edges.entry((from, numbers[&key(to)], link)).or_default();
            edge.add(sums.calls, sums.self_ns, sums.total_ns);
        }
        graph.edges = edges
            .into_iter()
            .map(|((from, to, link), sums)| GraphEdge {
                from,
                to,
                link,
                calls: sums.calls,
                total_ns: sums.total_ns,
            })
            .collect();
        graph
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{arbitrary, flat};
    use proptest::prelude::*;
    use thalweg_model::Creator;

    #[test]
    fn a_function_that_makes_threads_which_call_it_is_in_no_cycle() {
        // main makes a thread that runs a -> b, whose b makes another that does the same.
        let mut profile = fixture::pool(2);
        let second = &mut profile.processes[0].threads[2];
        second.created_by = Some(Creator {
            pid: 100,
            tid: 101,
            function: Some(B),
        });
        let graph = Graph::from_profile(&profile);
        let names: Vec<(FuncId, Option<u32>)> =
            graph.nodes.iter().map(|n| (n.function, n.level)).collect();
        assert_eq!(
            names,
            [
                (MAIN, Some(0)),
                (A, Some(1)),
                (A, Some(2)),
                (B, Some(1)),
                (B, Some(2))
            ]
        );
        assert_eq!(graph.cycles(), Vec::<Vec<u32>>::new());
        let made = graph.edges.iter().filter(|edge| edge.link == Link::Made);
        assert_eq!(made.count(), 2);
    }

    #[test]
    fn functions_that_close_no_such_ring_are_laid_together() {
        let mut profile = fixture::pool(2);
        let main = &mut profile.processes[0].threads[0];
        main.nodes = fixture::chain(&[(MAIN, 1), (B, 7)]).processes[0].threads[0]
            .nodes
            .clone();
        let graph = Graph::from_profile(&profile);
        let b: Vec<&GraphNode> = graph.nodes.iter().filter(|n| n.function == B).collect();
        assert_eq!(b.len(), 1);
        assert_eq!((b[0].level, b[0].calls, b[0].self_ns), (None, 3, 17));
    }

    #[test]
    fn recursion_is_a_cycle_and_is_named() {
        let profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        let graph = Graph::from_profile(&profile);
        let cycles = graph.cycles();
        let functions: Vec<FuncId> = cycles[0]
            .iter()
            .map(|&node| graph.nodes[node as usize].function)
            .collect();
        assert_eq!((cycles.len(), functions), (1, vec![A, B]));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_cycle_goes_through_the_making_of_a_thread(profile in arbitrary::program()) {
            let graph = Graph::from_profile(&profile);
            for cycle in graph.cycles() {
                let inside: HashSet<u32> = cycle.iter().copied().collect();
                for edge in &graph.edges {
                    if let Source::Node(from) = edge.from
                        && inside.contains(&from)
                        && inside.contains(&edge.to)
                    {
                        prop_assert_eq!(edge.link, Link::Call);
                    }
                }
            }
        }

        #[test]
        fn the_graph_has_every_call_and_every_nanosecond_once(profile in arbitrary::program()) {
            let graph = Graph::from_profile(&profile);
            for row in flat(&profile) {
                let own = || graph.nodes.iter().filter(|node| node.function == row.function);
                prop_assert_eq!(own().map(|n| n.calls).sum::<u64>(), row.calls);
                prop_assert_eq!(own().map(|n| n.self_ns).sum::<u64>(), row.self_ns);
                prop_assert_eq!(own().map(|n| n.total_ns).sum::<u64>(), row.total_ns);
            }
            for (index, node) in (0..).zip(&graph.nodes) {
                let into = || graph.edges.iter().filter(|edge| edge.to == index);
                prop_assert_eq!(into().map(|e| e.calls).sum::<u64>(), node.calls);
                prop_assert_eq!(into().map(|e| e.total_ns).sum::<u64>(), node.total_ns);
            }
        }
    }
}
