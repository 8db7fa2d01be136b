//! Leaving out what does not matter, so that what does can be seen, without losing a call or a
//! nanosecond.
//!
//! A context that falls below a threshold goes. Contexts below it that stay are joined to their
//! closest ancestor that stays, and what went is kept there in one context of a function called
//! [`PRUNED`]:
//!
//! ```text
//! main -> glue -> work        main -> work
//!              -> log     =>       -> [pruned]   calls and self of glue and log
//! ```

use thalweg_model::{FuncId, Function, Module, Node, NodeFlags, NodeMetrics, Profile, Thread};

use crate::graph::{Graph, GraphEdge, Link, Source};
use crate::waiting::own_waits;
use crate::{Extremes, summary};

/// Stands for all that was pruned below its caller.
pub const PRUNED: &str = "[pruned]";

/// What a context, a function or a call must reach to stay: all that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// Share of the self time of the whole, from 0 to 1: of its own time for functions and
    /// contexts, of its total time for calls between functions.
    pub coverage: f64,
    /// Cumulative time in nanoseconds.
    pub time: u64,
    pub calls: u64,
}

impl Thresholds {
    pub fn is_nothing(&self) -> bool {
        *self == Thresholds::default()
    }

    /// `share_of` is what coverage is asked of, out of `whole`.
    pub fn pass(&self, share_of: u64, whole: u64, time: u64, calls: u64) -> bool {
        share_of as f64 >= self.coverage * whole as f64 && time >= self.time && calls >= self.calls
    }
}

/// Prunes the trees of all threads. Sums over everything, and each context's total, stay what they
/// are. Call sites are rolled up: between a context and its closest caller that stays there is no
/// single one.
pub fn prune(profile: Profile, thresholds: &Thresholds) -> Profile {
    if thresholds.is_nothing() {
        return profile;
    }
    let mut profile = crate::rolled_up(profile);
    let whole = summary(&profile).time;
    let pruned = FuncId::from_index(profile.functions.len());
    let mut contexts = 0u64;
    let mut seen_above = vec![0u32; profile.functions.len() + 1];
    for process in &mut profile.processes {
        for thread in &mut process.threads {
            let before = thread.nodes.len();
            let keep: Vec<bool> = thread
                .nodes
                .iter()
                .map(|node| thresholds.pass(node.self_ns, whole, node.total_ns, node.calls))
                .collect();
            let removed = keep.iter().filter(|&&keep| !keep).count();
            if removed == 0 {
                continue;
            }
            contexts += removed as u64;
            prune_thread(thread, &keep, pruned, &mut seen_above);
            // Nobody could tell any more which contexts they were of.
            thread.forget_samples();
            debug_assert!(thread.nodes.len() <= 2 * before + 1);
        }
    }
    if contexts > 0 {
        profile.functions.push(Function {
            name: PRUNED.to_string(),
            module: profile.modules.len() as u32,
            ..Function::default()
        });
        profile.modules.push(Module {
            name: PRUNED.to_string(),
            ..Module::default()
        });
        profile.notes.push(format!(
            "{contexts} contexts were pruned: their calls and their own time are shown as {PRUNED} below their closest \
             caller that was kept"
        ));
    }
    profile
}

fn prune_thread(thread: &mut Thread, keep: &[bool], pruned: FuncId, seen_above: &mut [u32]) {
    const NONE: u32 = u32::MAX;
    let old = std::mem::take(&mut thread.nodes);
    let had = std::mem::take(&mut thread.metrics);
    let mut metrics = NodeMetrics::default();
    let recursion = recursion_among_kept(&old, keep, seen_above);
    let own_waits = own_waits(&old);
    let mut nodes: Vec<Node> = Vec::new();
    // Of each old node: itself if it stays, else its closest ancestor that does, in the new
    // numbering.
    let mut stands: Vec<u32> = Vec::with_capacity(old.len());
    // With where they were and whether their callers are unknown.
    let mut gone_below: Vec<((u32, bool), u32)> = Vec::new();
    for (index, node) in old.iter().enumerate() {
        let above = node.parent.map_or(NONE, |parent| stands[parent as usize]);
        if keep[index] {
            stands.push(nodes.len() as u32);
            metrics.add(nodes.len() as u32, had.at(index as u32));
            nodes.push(Node {
                parent: (above != NONE).then_some(above),
                recursion: recursion[index],
                ..*node
            });
        } else {
            stands.push(above);
            // Folded calls were made somewhere below the closest caller that stays, too.
            if above != NONE && node.flags.contains(NodeFlags::LOST_CALLEES) {
                nodes[above as usize].flags |= NodeFlags::LOST_CALLEES;
            }
            let is_folded = above == NONE && node.flags.contains(NodeFlags::FOLDED);
            gone_below.push(((above, is_folded), index as u32));
        }
    }

    gone_below.sort_unstable();
    for gone in gone_below.chunk_by(|a, b| a.0 == b.0) {
        let mut sum = Node {
            parent: (gone[0].0.0 != NONE).then_some(gone[0].0.0),
            function: pruned,
            flags: match gone[0].0.1 {
                true => NodeFlags::FOLDED,
                false => NodeFlags::empty(),
            },
            ..Node::default()
        };
        let mut extremes = Extremes::default();
        let mut waited = 0u64;
        for &(_, index) in gone {
            let node = &old[index as usize];
            sum.calls = sum.calls.saturating_add(node.calls);
            sum.self_ns = sum.self_ns.saturating_add(node.self_ns);
            sum.terminal = sum.terminal.saturating_add(node.terminal);
            sum.unwound = sum.unwound.saturating_add(node.unwound);
            metrics.add(nodes.len() as u32, had.at(index));
            sum.untimed = sum.untimed.saturating_add(node.untimed);
            waited = waited.saturating_add(own_waits[index as usize]);
            for kept in [NodeFlags::OPEN, NodeFlags::LOST_CALLEES] {
                if node.flags.contains(kept) && (kept == NodeFlags::OPEN || sum.parent.is_none()) {
                    sum.flags |= kept;
                }
            }
            extremes.add(node);
        }
        (sum.total_ns, sum.wall_ns) = (sum.self_ns, sum.self_ns.saturating_add(waited));
        (sum.min, sum.max) = (extremes.min.unwrap_or(0), extremes.max);
        nodes.push(sum);
    }
    thread.nodes = nodes;
    thread.metrics = metrics;
}

/// How often the same function stands above, counting only what stays.
fn recursion_among_kept(nodes: &[Node], keep: &[bool], seen_above: &mut [u32]) -> Vec<u32> {
    let any_lost = nodes
        .iter()
        .zip(keep)
        .any(|(node, &keep)| keep && node.recursion > 0);
    if !any_lost {
        return nodes.iter().map(|node| node.recursion).collect();
    }
    let thread = Thread {
        nodes: nodes.to_vec(),
        ..Thread::default()
    };
    let tree = crate::tree::Tree::new(&thread, crate::tree::Weight::Calls);
    let mut recursion = vec![0; nodes.len()];
    tree.walk(|node, entering| {
        let index = node as usize;
        if !keep[index] {
            return;
        }
        let above = &mut seen_above[nodes[index].function.index()];
        if entering {
            recursion[index] = *above;
            *above += 1;
        } else {
            *above -= 1;
        }
    });
    recursion
}

impl Graph {
    /// Without functions and edges below their thresholds. The edges into each function have all of
    /// its calls and all of its time, as they arrived:
    ///
    /// | edge | what it has |
    /// |---|---|
    /// | `Call`, `Made` | calls right from the caller |
    /// | `Indirect` | calls that came from the caller through functions that were left out |
    /// | `Rest` | all calls along edges below their threshold, from [`Source::Others`] |
    ///
    /// Where nothing leads to a function any more, the heaviest of the edges that would is kept all
    /// the same.
    pub fn pruned(profile: &Profile, functions: &Thresholds, calls: &Thresholds) -> Graph {
        let graph = Graph::of_kept(profile, |whole, node| {
            functions.pass(node.self_ns, whole.time, node.total_ns, node.calls)
        });
        let passes =
            |edge: &GraphEdge| calls.pass(edge.total_ns, graph.time, edge.total_ns, edge.calls);
        let stays: Vec<bool> = graph.edges.iter().map(passes).collect();
        let stays = graph.connected(stays);
        let mut pruned = Graph {
            edges: Vec::new(),
            ..graph
        };
        let mut rest = vec![(0u64, 0u64, false); pruned.nodes.len()];
        for (edge, stays) in graph.edges.into_iter().zip(stays) {
            if stays {
                pruned.edges.push(edge);
                continue;
            }
            let (calls, total_ns, any) = &mut rest[edge.to as usize];
            *calls = calls.saturating_add(edge.calls);
            *total_ns = total_ns.saturating_add(edge.total_ns);
            *any = true;
        }
        for (to, (calls, total_ns, any)) in (0..).zip(rest) {
            if any {
                pruned.edges.push(GraphEdge {
                    from: Source::Others,
                    to,
                    link: Link::Rest,
                    calls,
                    total_ns,
                });
            }
        }
        pruned
    }

    /// Of edges that stay: more, until what START led to by all edges it leads to by these.
    fn connected(&self, mut stays: Vec<bool>) -> Vec<bool> {
        let incoming = self.incoming();
        let outgoing = self.outgoing();
        let mut reached = vec![false; self.nodes.len()];
        for (edge, _) in self.edges.iter().zip(&stays).filter(|(_, stays)| **stays) {
            if is_beginning(edge.from) {
                self.reach(edge.to, &outgoing, &stays, &mut reached);
            }
        }
        // Those nearest to START first: what leads to them is reached by then.
        for node in self.by_distance() {
            if reached[node as usize] {
                continue;
            }
            let leads_here = |edge: &u32| match self.edges[*edge as usize].from {
                Source::Node(from) => reached[from as usize],
                _ => true,
            };
            let candidates = incoming[node as usize].iter().copied().filter(leads_here);
            let heaviest = candidates.max_by_key(|&edge| {
                let edge = self.edges[edge as usize];
                (edge.total_ns, edge.calls)
            });
            if let Some(edge) = heaviest {
                stays[edge as usize] = true;
                self.reach(node, &outgoing, &stays, &mut reached);
            }
        }
        stays
    }

    /// What START, or calls from unknown callers, lead to.
    pub fn reached(&self) -> Vec<bool> {
        let outgoing = self.outgoing();
        let stays = vec![true; self.edges.len()];
        let mut reached = vec![false; self.nodes.len()];
        for edge in self.edges.iter().filter(|edge| is_beginning(edge.from)) {
            self.reach(edge.to, &outgoing, &stays, &mut reached);
        }
        reached
    }

    fn reach(&self, node: u32, outgoing: &[Vec<u32>], stays: &[bool], reached: &mut [bool]) {
        let mut pending = vec![node];
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut reached[node as usize], true) {
                let edges = outgoing[node as usize].iter();
                let edges = edges.filter(|&&edge| stays[edge as usize]);
                pending.extend(edges.map(|&edge| self.edges[edge as usize].to));
            }
        }
    }

    /// Indices of the edges out of each node.
    fn outgoing(&self) -> Vec<Vec<u32>> {
        let mut outgoing = vec![Vec::new(); self.nodes.len()];
        for (index, edge) in (0..).zip(&self.edges) {
            if let Source::Node(from) = edge.from {
                outgoing[from as usize].push(index);
            }
        }
        outgoing
    }

    /// All nodes, nearest to START first; those it does not lead to last.
    fn by_distance(&self) -> Vec<u32> {
        let mut callees = vec![Vec::new(); self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut seen = vec![false; self.nodes.len()];
        for edge in &self.edges {
            match edge.from {
                Source::Node(from) => callees[from as usize].push(edge.to),
                _ if !std::mem::replace(&mut seen[edge.to as usize], true) => order.push(edge.to),
                _ => {}
            }
        }
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for &callee in &callees[node as usize] {
                if !std::mem::replace(&mut seen[callee as usize], true) {
                    order.push(callee);
                }
            }
        }
        order.extend((0..self.nodes.len() as u32).filter(|&node| !seen[node as usize]));
        order
    }
}

fn is_beginning(source: Source) -> bool {
    matches!(source, Source::Start | Source::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{arbitrary, flat, threads};
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn self_of_at_least(share: f64) -> Thresholds {
        Thresholds {
            coverage: share,
            ..Thresholds::default()
        }
    }

    #[test]
    fn an_orphan_is_joined_to_its_closest_surviving_ancestor() {
        let profile = fixture::chain(&[(MAIN, 40), (A, 1), (A, 2), (B, 57)]);
        let pruned = prune(profile, &self_of_at_least(0.05));
        let nodes = &pruned.processes[0].threads[0].nodes;
        let found: Vec<(Option<u32>, FuncId, u64, u64, u64)> = nodes
            .iter()
            .map(|n| (n.parent, n.function, n.calls, n.self_ns, n.total_ns))
            .collect();
        assert_eq!(
            found,
            [
                (None, MAIN, 1, 40, 100),
                (Some(0), B, 1, 57, 57),
                (Some(0), FuncId(4), 2, 3, 3)
            ]
        );
        assert_eq!(pruned.functions[4].name, PRUNED);
        assert_eq!(pruned.validate(), Ok(()));
    }

    #[test]
    fn recursion_counts_only_what_is_left() {
        // The outer a goes; the time of the inner one is then that of the outermost.
        let profile = fixture::chain(&[(MAIN, 40), (A, 1), (B, 20), (A, 39)]);
        let pruned = prune(profile, &self_of_at_least(0.05));
        let a = flat(&pruned)
            .into_iter()
            .find(|row| row.function == A)
            .unwrap();
        assert_eq!(
            (a.calls, a.self_ns, a.total_ns, a.recursion),
            (1, 39, 39, 0)
        );
    }

    #[test]
    fn a_graph_stays_connected_when_the_function_between_goes() {
        let profile = fixture::chain(&[(MAIN, 40), (A, 1), (B, 59)]);
        let graph = Graph::pruned(&profile, &self_of_at_least(0.05), &Thresholds::default());
        let functions: Vec<FuncId> = graph.nodes.iter().map(|n| n.function).collect();
        assert_eq!(functions, [MAIN, B]);
        let joined = graph
            .edges
            .iter()
            .find(|e| e.link == Link::Indirect)
            .unwrap();
        assert_eq!((joined.from, joined.to), (Source::Node(0), 1));
        assert_eq!((joined.calls, joined.total_ns), (1, 59));
    }

    fn thresholds() -> impl Strategy<Value = Thresholds> {
        (0.0..0.3f64, 0..200u64, 0..4u64).prop_map(|(coverage, time, calls)| Thresholds {
            coverage,
            time,
            calls,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pruning_keeps_every_total_that_stays(profile in arbitrary::program(), at in thresholds()) {
            let pruned = prune(profile.clone(), &at);
            prop_assert_eq!(pruned.validate(), Ok(()));
            let (before, after) = (summary(&profile), summary(&pruned));
            prop_assert_eq!((before.calls, before.time), (after.calls, after.time));
            for (_, thread) in threads(&pruned) {
                let mut of_children = vec![0; thread.nodes.len()];
                for node in &thread.nodes {
                    if let Some(parent) = node.parent {
                        of_children[parent as usize] += node.total_ns;
                    }
                }
                for (node, of_children) in thread.nodes.iter().zip(of_children) {
                    prop_assert_eq!(node.total_ns, node.self_ns + of_children);
                    if node.function.index() < profile.functions.len() {
                        prop_assert!(node.calls >= at.calls && node.total_ns >= at.time);
                    }
                }
            }
        }

        #[test]
        fn a_pruned_graph_reaches_all_that_stays(profile in arbitrary::program(), nodes in thresholds(), edges in thresholds()) {
            let whole = Graph::from_profile(&profile);
            let pruned = Graph::pruned(&profile, &nodes, &edges);
            prop_assert!(pruned.reached().iter().all(|&reached| reached));
            let stay = whole.nodes.iter().filter(|node| nodes.pass(node.self_ns, whole.time, node.total_ns, node.calls));
            prop_assert_eq!(stay.count(), pruned.nodes.len());
        }

        #[test]
        fn the_edges_into_a_function_have_all_of_its_calls_and_time(profile in arbitrary::program(), nodes in thresholds(), edges in thresholds()) {
            let whole = Graph::from_profile(&profile);
            let pruned = Graph::pruned(&profile, &nodes, &edges);
            for (index, node) in (0..).zip(&pruned.nodes) {
                prop_assert!(whole.nodes.contains(node));
                let into = || pruned.edges.iter().filter(|edge| edge.to == index);
                prop_assert_eq!(into().map(|e| e.calls).sum::<u64>(), node.calls);
                prop_assert_eq!(into().map(|e| e.total_ns).sum::<u64>(), node.total_ns);
                prop_assert!(into().filter(|e| e.link == Link::Rest).count() <= 1);
            }
        }

        #[test]
        fn an_edge_that_stays_has_the_calls_that_were_made_along_it(profile in arbitrary::program(), nodes in thresholds(), edges in thresholds()) {
            let whole = Graph::from_profile(&profile);
            let pruned = Graph::pruned(&profile, &nodes, &edges);
            let place = |graph: &Graph, index: u32| {
                let node = graph.nodes[index as usize];
                (node.function, node.level)
            };
            let source = |graph: &Graph, from: Source| match from {
                Source::Node(node) => Some(place(graph, node)),
                _ => None,
            };
            for edge in pruned.edges.iter().filter(|edge| matches!(edge.link, Link::Call | Link::Made)) {
                let same = whole.edges.iter().find(|other| {
                    let ends = (place(&whole, other.to), source(&whole, other.from), other.link);
                    ends == (place(&pruned, edge.to), source(&pruned, edge.from), edge.link)
                        && std::mem::discriminant(&other.from) == std::mem::discriminant(&edge.from)
                });
                let found = same.map(|other| (other.calls, other.total_ns));
                prop_assert_eq!(found, Some((edge.calls, edge.total_ns)));
            }
        }

        #[test]
        fn a_call_is_indirect_where_its_caller_was_left_out(profile in arbitrary::program(), nodes in thresholds()) {
            let mut profile = profile;
            for thread in profile.processes.iter_mut().flat_map(|process| &mut process.threads) {
                thread.created_by = None;
            }
            let graph = Graph::pruned(&profile, &nodes, &Thresholds::default());
            let kept: HashSet<(FuncId, Option<u32>)> = graph.nodes.iter().map(|n| (n.function, n.level)).collect();
            let lineage = crate::Lineage::from_profile(&profile);
            let mut indirect = 0;
            for (number, (_, thread)) in (0..).zip(threads(&profile)) {
                let level = lineage.level(crate::ThreadNumber(number));
                let is_kept = |function| kept.contains(&(function, None)) || kept.contains(&(function, Some(level)));
                for node in thread.nodes.iter().filter(|node| is_kept(node.function)) {
                    if node.parent.is_some_and(|parent| !is_kept(thread.nodes[parent as usize].function)) {
                        indirect += node.calls;
                    }
                }
            }
            let labelled = graph.edges.iter().filter(|edge| edge.link == Link::Indirect);
            prop_assert_eq!(labelled.map(|edge| edge.calls).sum::<u64>(), indirect);
        }
    }
}
