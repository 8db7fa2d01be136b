//! Leaving out what does not matter, so that what does can be seen, without losing a call or a nanosecond.
//!
//! A context that falls below a threshold goes. Contexts below it that stay are joined to their closest ancestor that
//! stays, and what went is kept there in one context of a function called [`PRUNED`]:
//!
//! ```text
//! main -> glue -> work        main -> work
//!              -> log     =>       -> [pruned]   calls and base of glue and log
//! ```

use thalweg_model::{Function, Module, Node, NodeFlags, NodeMetrics, Profile, Thread};

use crate::graph::{Graph, GraphEdge, Link, Source};
use crate::waiting::own_waits;
use crate::{Extremes, summary};

/// Stands for all that was pruned below its caller.
pub const PRUNED: &str = "[pruned]";

/// What a context, a function or a call must reach to stay: all that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Thresholds {
    /// Share of the base time of the whole, from 0 to 1: of its own time for functions and contexts, of its cumulative
    /// time for calls between functions.
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

/// Prunes the trees of all threads. Sums over everything, and each context's cum, stay what they are. Call sites are rolled
/// up: between a context and its closest caller that stays there is no single one.
pub fn prune(profile: Profile, thresholds: &Thresholds) -> Profile {
    if thresholds.is_nothing() {
        return profile;
    }
    let mut profile = crate::rolled_up(profile);
    let whole = summary(&profile).time;
    let pruned = profile.functions.len() as u32;
    let mut contexts = 0u64;
    let mut seen_above = vec![0u32; profile.functions.len() + 1];
    for process in &mut profile.processes {
        for thread in &mut process.threads {
            let before = thread.nodes.len();
            let keep: Vec<bool> = thread
                .nodes
                .iter()
                .map(|node| thresholds.pass(node.base, whole, node.cum, node.calls))
                .collect();
            let removed = keep.iter().filter(|&&keep| !keep).count();
            if removed == 0 {
                continue;
            }
            contexts += removed as u64;
            prune_thread(thread, &keep, pruned, &mut seen_above);
            // Nobody could tell any more which contexts they were of.
            thread.samples.clear();
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

fn prune_thread(thread: &mut Thread, keep: &[bool], pruned: u32, seen_above: &mut [u32]) {
    const NONE: u32 = u32::MAX;
    let old = std::mem::take(&mut thread.nodes);
    let had = std::mem::take(&mut thread.metrics);
    let mut metrics = NodeMetrics::default();
    let recursion = recursion_among_kept(&old, keep, seen_above);
    let own_waits = own_waits(&old);
    let mut nodes: Vec<Node> = Vec::new();
    // Of each old node: itself if it stays, else its closest ancestor that does, in the new numbering.
    let mut stands: Vec<u32> = Vec::with_capacity(old.len());
    let mut gone_below: Vec<(u32, u32)> = Vec::new();
    for (index, node) in old.iter().enumerate() {
        let above = node.parent.map_or(NONE, |parent| stands[parent as usize]);
        if keep[index] {
            stands.push(nodes.len() as u32);
            metrics.add(nodes.len() as u32, had.of(index as u32));
            nodes.push(Node {
                parent: (above != NONE).then_some(above),
                recursion: recursion[index],
                ..*node
            });
        } else {
            stands.push(above);
            gone_below.push((above, index as u32));
        }
    }

    gone_below.sort_unstable();
    for gone in gone_below.chunk_by(|a, b| a.0 == b.0) {
        let mut sum = Node {
            parent: (gone[0].0 != NONE).then_some(gone[0].0),
            function: pruned,
            ..Node::default()
        };
        let mut extremes = Extremes::default();
        let mut waited = 0u64;
        for &(_, index) in gone {
            let node = &old[index as usize];
            sum.calls = sum.calls.saturating_add(node.calls);
            sum.base = sum.base.saturating_add(node.base);
            sum.terminal = sum.terminal.saturating_add(node.terminal);
            sum.unwound = sum.unwound.saturating_add(node.unwound);
            metrics.add(nodes.len() as u32, had.of(index));
            sum.untimed = sum.untimed.saturating_add(node.untimed);
            waited = waited.saturating_add(own_waits[index as usize]);
            if node.flags.contains(NodeFlags::OPEN) {
                sum.flags |= NodeFlags::OPEN;
            }
            extremes.add(node);
        }
        (sum.cum, sum.elapsed) = (sum.base, sum.base.saturating_add(waited));
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
        let above = &mut seen_above[nodes[index].function as usize];
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
    /// Leaves out functions and calls below their thresholds. A function that stays but that START no longer leads to is
    /// joined to its closest ancestor that stays.
    pub fn prune(&self, functions: &Thresholds, calls: &Thresholds) -> Graph {
        let kept: Vec<bool> = self
            .nodes
            .iter()
            .map(|node| functions.pass(node.base, self.time, node.cum, node.calls))
            .collect();
        let mut number = vec![u32::MAX; kept.len()];
        let mut pruned = Graph {
            time: self.time,
            calls: self.calls,
            ..Graph::default()
        };
        for (index, node) in self
            .nodes
            .iter()
            .enumerate()
            .filter(|(index, _)| kept[*index])
        {
            number[index] = pruned.nodes.len() as u32;
            pruned.nodes.push(*node);
        }
        for edge in &self.edges {
            let passes = calls.pass(edge.cum, self.time, edge.cum, edge.calls);
            let from = match edge.from {
                Source::Node(from) if kept[from as usize] => Source::Node(number[from as usize]),
                Source::Node(_) => continue,
                outside => outside,
            };
            if passes && kept[edge.to as usize] {
                let to = number[edge.to as usize];
                pruned.edges.push(GraphEdge { from, to, ..*edge });
            }
        }
        self.join_orphans(&kept, &number, &mut pruned);
        pruned
    }

    fn join_orphans(&self, kept: &[bool], number: &[u32], pruned: &mut Graph) {
        let incoming = self.incoming();
        let mut reached = pruned.reached();
        // Those nearest to START first: what hangs on them is then reached as well.
        for node in self.by_distance() {
            let own = number[node as usize];
            if !kept[node as usize] || reached[own as usize] {
                continue;
            }
            let ancestor = self.closest(node, &incoming, |above| {
                kept[above as usize] && reached[number[above as usize] as usize]
            });
            let from = ancestor.map_or(Source::Start, |above| Source::Node(number[above as usize]));
            let into = pruned.edges.iter().filter(|edge| edge.to == own);
            let (calls, cum) = into.fold((0u64, 0u64), |(calls, cum), edge| {
                (
                    calls.saturating_add(edge.calls),
                    cum.saturating_add(edge.cum),
                )
            });
            let whole = pruned.nodes[own as usize];
            pruned.edges.push(GraphEdge {
                from,
                to: own,
                link: Link::Indirect,
                calls: whole.calls.saturating_sub(calls),
                cum: whole.cum.saturating_sub(cum),
            });
            reached = pruned.reached();
        }
    }

    /// What START, or calls from unknown callers, lead to.
    pub fn reached(&self) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        let mut callees = vec![Vec::new(); self.nodes.len()];
        let mut pending = Vec::new();
        for edge in &self.edges {
            match edge.from {
                Source::Node(from) => callees[from as usize].push(edge.to),
                _ => pending.push(edge.to),
            }
        }
        while let Some(node) = pending.pop() {
            if !std::mem::replace(&mut reached[node as usize], true) {
                pending.extend_from_slice(&callees[node as usize]);
            }
        }
        reached
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

    /// The nearest node above for which `wanted` holds; of several the one with most time.
    fn closest(
        &self,
        node: u32,
        incoming: &[Vec<u32>],
        wanted: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut seen = vec![false; self.nodes.len()];
        seen[node as usize] = true;
        let mut ring = vec![node];
        while !ring.is_empty() {
            let mut above: Vec<u32> = Vec::new();
            for &node in &ring {
                for &edge in &incoming[node as usize] {
                    if let Source::Node(from) = self.edges[edge as usize].from
                        && !std::mem::replace(&mut seen[from as usize], true)
                    {
                        above.push(from);
                    }
                }
            }
            let found = above.iter().copied().filter(|&node| wanted(node));
            let best = found.max_by_key(|&node| (self.nodes[node as usize].cum, node));
            if best.is_some() {
                return best;
            }
            ring = above;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{arbitrary, flat, threads};
    use proptest::prelude::*;

    fn base_of_at_least(share: f64) -> Thresholds {
        Thresholds {
            coverage: share,
            ..Thresholds::default()
        }
    }

    #[test]
    fn an_orphan_is_joined_to_its_closest_surviving_ancestor() {
        let profile = fixture::chain(&[(MAIN, 40), (A, 1), (A, 2), (B, 57)]);
        let pruned = prune(profile, &base_of_at_least(0.05));
        let nodes = &pruned.processes[0].threads[0].nodes;
        let found: Vec<(Option<u32>, u32, u64, u64, u64)> = nodes
            .iter()
            .map(|n| (n.parent, n.function, n.calls, n.base, n.cum))
            .collect();
        assert_eq!(
            found,
            [
                (None, MAIN, 1, 40, 100),
                (Some(0), B, 1, 57, 57),
                (Some(0), 4, 2, 3, 3)
            ]
        );
        assert_eq!(pruned.functions[4].name, PRUNED);
        assert_eq!(pruned.validate(), Ok(()));
    }

    #[test]
    fn recursion_counts_only_what_is_left() {
        // The outer a goes; the time of the inner one is then that of the outermost.
        let profile = fixture::chain(&[(MAIN, 40), (A, 1), (B, 20), (A, 39)]);
        let pruned = prune(profile, &base_of_at_least(0.05));
        let a = flat(&pruned)
            .into_iter()
            .find(|row| row.function == A)
            .unwrap();
        assert_eq!((a.calls, a.base, a.cum, a.recursion), (1, 39, 39, 0));
    }

    #[test]
    fn a_graph_stays_connected_when_the_function_between_goes() {
        let profile = fixture::chain(&[(MAIN, 40), (A, 1), (B, 59)]);
        let graph = Graph::of(&profile).prune(&base_of_at_least(0.05), &Thresholds::default());
        let functions: Vec<u32> = graph.nodes.iter().map(|n| n.function).collect();
        assert_eq!(functions, [MAIN, B]);
        let joined = graph
            .edges
            .iter()
            .find(|e| e.link == Link::Indirect)
            .unwrap();
        assert_eq!((joined.from, joined.to), (Source::Node(0), 1));
        assert_eq!((joined.calls, joined.cum), (1, 59));
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
        fn pruning_keeps_totals_and_every_cum_that_stays(profile in arbitrary::program(), at in thresholds()) {
            let pruned = prune(profile.clone(), &at);
            prop_assert_eq!(pruned.validate(), Ok(()));
            let (before, after) = (summary(&profile), summary(&pruned));
            prop_assert_eq!((before.calls, before.time), (after.calls, after.time));
            for (_, thread) in threads(&pruned) {
                let mut of_children = vec![0; thread.nodes.len()];
                for node in &thread.nodes {
                    if let Some(parent) = node.parent {
                        of_children[parent as usize] += node.cum;
                    }
                }
                for (node, of_children) in thread.nodes.iter().zip(of_children) {
                    prop_assert_eq!(node.cum, node.base + of_children);
                    if (node.function as usize) < profile.functions.len() {
                        prop_assert!(node.calls >= at.calls && node.cum >= at.time);
                    }
                }
            }
        }

        #[test]
        fn a_pruned_graph_reaches_all_that_stays(profile in arbitrary::program(), nodes in thresholds(), edges in thresholds()) {
            let whole = Graph::of(&profile);
            let pruned = whole.prune(&nodes, &edges);
            prop_assert!(pruned.reached().iter().all(|&reached| reached));
            let stay = whole.nodes.iter().filter(|node| nodes.pass(node.base, whole.time, node.cum, node.calls));
            prop_assert_eq!(stay.count(), pruned.nodes.len());
        }
    }
}
