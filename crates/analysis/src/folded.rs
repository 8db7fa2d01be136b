//! Calls whose contexts were cut or found no room: brought into the trees, so that every sum holds for what is shown.
//!
//! While a program runs, such calls are counted in one node per function, whose callers are not known. The cum of callers
//! still has their time, as it was measured, with all that probes cost in it. So a file's trees do not add up:
//!
//! ```text
//! lost(c)    = cum(c) - base(c) - sum of the callees' cum
//! sum of lost over all contexts of a process = sum of base over its folded nodes
//! ```
//!
//! What is shown adds up:
//!
//! ```text
//! cum(c)     = base(c) + sum of the callees' cum          for every context
//! cum(root)  = sum of base over all contexts below it and itself
//! ```
//!
//! A folded node has its own time as its cum, and stands below the innermost context that has all of what was lost below
//! it, under one context of a function called [`FOLDED`]. So the start of a program has the whole of its time. Where
//! several threads lost time there is no such context, and folded nodes stand under no parent.

use thalweg_model::{Function, Module, Node, NodeFlags, NodeMetrics, Process, Profile, Thread};

/// Stands between folded calls and the context that they were made below.
pub const FOLDED: &str = "[folded]";

/// A context that has this part of what was lost has all of it: the rest is rounding.
const ALL: f64 = 0.99;

/// Where the folded calls of one process were made: the functions from a root of one of its threads on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedPlace {
    process: usize,
    thread: usize,
    path: Vec<u32>,
}

/// To be asked of a profile as it was recorded: what is made of its times later loses what this is known from.
pub fn folded_places(profile: &Profile) -> Vec<FoldedPlace> {
    let processes = profile.processes.iter().enumerate();
    let places = processes.filter(|(_, process)| is_folded(process));
    places
        .filter_map(|(number, process)| place(number, process))
        .collect()
}

/// Imported profiles use the flag for other ends.
fn is_folded(process: &Process) -> bool {
    process.threads.iter().any(|thread| thread.folded_calls > 0)
}

fn is_folded_root(node: &Node) -> bool {
    node.parent.is_none() && node.flags.contains(NodeFlags::FOLDED)
}

fn place(process_number: usize, process: &Process) -> Option<FoldedPlace> {
    let nodes = || process.threads.iter().flat_map(|thread| &thread.nodes);
    let folded: f64 = nodes()
        .filter(|node| is_folded_root(node))
        .map(|node| node.base as f64)
        .sum();
    let lost: Vec<Vec<f64>> = process
        .threads
        .iter()
        .map(|thread| lost_below(&thread.nodes))
        .collect();
    let of_roots = |thread: usize| {
        let roots = process.threads[thread].nodes.iter().zip(&lost[thread]);
        let roots = roots.filter(|(node, _)| node.parent.is_none());
        roots.map(|(_, lost)| lost).sum::<f64>()
    };
    let whole: f64 = (0..process.threads.len()).map(of_roots).sum();
    // Of a tree that was read while it grew little is known.
    if folded == 0.0 || !(0.5..=2.0).contains(&(whole / folded)) {
        return None;
    }
    // Contexts that were running when they were read may have some more than what was lost.
    let all = ALL * folded.min(whole);
    let has_all = |thread: usize, node: u32| lost[thread][node as usize] >= all;
    let (thread, root) = (0..process.threads.len()).find_map(|thread| {
        let nodes = &process.threads[thread].nodes;
        let mut roots = (0..).zip(nodes).filter(|(_, node)| node.parent.is_none());
        let root = roots.find(|&(index, _)| has_all(thread, index))?.0;
        Some((thread, root))
    })?;
    // Nodes that have all of it stand in a row, each below the one before.
    let nodes = &process.threads[thread].nodes;
    let mut path = vec![nodes[root as usize].function];
    let mut innermost = root;
    for (index, node) in (0..).zip(nodes) {
        if node.parent == Some(innermost) && has_all(thread, index) {
            path.push(node.function);
            innermost = index;
        }
    }
    Some(FoldedPlace {
        process: process_number,
        thread,
        path,
    })
}

/// What was lost in each context and in those below it.
fn lost_below(nodes: &[Node]) -> Vec<f64> {
    let mut of_callees = vec![0.0; nodes.len()];
    let mut lost = vec![0.0; nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev() {
        if !is_folded_root(node) {
            let own = node.cum as f64 - node.base as f64 - of_callees[index];
            lost[index] += own.max(0.0);
        }
        if let Some(parent) = node.parent {
            of_callees[parent as usize] += node.cum as f64;
            lost[parent as usize] += lost[index];
        }
    }
    lost
}

/// Makes the trees of processes with folded calls add up.
pub fn gather_folded(profile: &mut Profile, places: &[FoldedPlace]) {
    let folded = profile.functions.len() as u32;
    let functions = profile.functions.len() + 1;
    let mut is_used = false;
    for (number, process) in profile.processes.iter_mut().enumerate() {
        if !is_folded(process) {
            continue;
        }
        for thread in &mut process.threads {
            add_up(&mut thread.nodes);
        }
        let place = places.iter().find(|place| place.process == number);
        if let Some(place) = place {
            is_used |= hang(process, place, folded, functions);
        }
    }
    if is_used {
        profile.functions.push(Function {
            name: FOLDED.to_string(),
            module: profile.modules.len() as u32,
            ..Function::default()
        });
        profile.modules.push(Module {
            name: FOLDED.to_string(),
            ..Module::default()
        });
    }
}

/// Makes every cum the base and the callees' cum: where calls were counted without a clock or times come from samples, what was
/// measured at both ends of a call differs from that by some nanoseconds.
pub fn add_up_all(profile: &mut Profile) {
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        add_up(&mut thread.nodes);
    }
}

/// Elapsed is what was worked and what was waited, here and in all callees.
fn add_up(nodes: &mut [Node]) {
    let waited_below = |node: &Node| node.elapsed.saturating_sub(node.cum);
    let mut waited: Vec<u64> = nodes.iter().map(waited_below).collect();
    for node in nodes.iter() {
        if let Some(parent) = node.parent {
            let of_parent = &mut waited[parent as usize];
            *of_parent = of_parent.saturating_sub(waited_below(node));
        }
    }
    for node in nodes.iter_mut() {
        node.cum = node.base;
    }
    for index in (0..nodes.len()).rev() {
        let cum = nodes[index].cum;
        nodes[index].elapsed = cum.saturating_add(waited[index]);
        if let Some(parent) = nodes[index].parent.map(|parent| parent as usize) {
            nodes[parent].cum = nodes[parent].cum.saturating_add(cum);
            waited[parent] = waited[parent].saturating_add(waited[index]);
        }
    }
}

/// Puts the folded nodes of a process below the place. `false` where it is not there any more.
fn hang(process: &mut Process, place: &FoldedPlace, folded: u32, functions: usize) -> bool {
    let is_there = |thread: &Thread| find(&thread.nodes, &place.path).is_some();
    if !process.threads.get(place.thread).is_some_and(is_there) {
        return false;
    }
    let mut moved = Moved::default();
    let mut folded_calls = 0u64;
    for thread in &mut process.threads {
        moved.take(thread);
        folded_calls = folded_calls.saturating_add(std::mem::take(&mut thread.folded_calls));
    }
    let thread = &mut process.threads[place.thread];
    thread.folded_calls = folded_calls;
    let below = find(&thread.nodes, &place.path);
    let own = thread.nodes.len() as u32;
    let mut added = Node {
        parent: below,
        function: folded,
        flags: NodeFlags::FOLDED,
        ..Node::default()
    };
    for node in moved.nodes.iter().filter(|node| node.parent.is_none()) {
        added.cum = added.cum.saturating_add(node.cum);
        added.elapsed = added.elapsed.saturating_add(node.elapsed);
    }
    let mut above = below;
    while let Some(index) = above {
        let node = &mut thread.nodes[index as usize];
        node.cum = node.cum.saturating_add(added.cum);
        node.elapsed = node.elapsed.saturating_add(added.elapsed);
        above = node.parent;
    }
    thread.nodes.push(added);
    for (index, mut node) in (0..).zip(moved.nodes) {
        node.parent = Some(node.parent.map_or(own, |parent| own + 1 + parent));
        thread.metrics.add(own + 1 + index, moved.metrics.of(index));
        thread.nodes.push(node);
    }
    crate::narrow::count_recursion(&mut thread.nodes, functions);
    true
}

/// The first context with this path of functions.
fn find(nodes: &[Node], path: &[u32]) -> Option<u32> {
    let mut at: Option<u32> = None;
    for &function in path {
        let is_next = |(_, node): &(u32, &Node)| {
            node.parent == at && node.function == function && !is_folded_root(node)
        };
        at = Some((0..).zip(nodes).find(is_next)?.0);
    }
    at
}

/// Folded nodes that were taken out of threads, with what stands below them.
#[derive(Default)]
struct Moved {
    nodes: Vec<Node>,
    metrics: NodeMetrics,
}

impl Moved {
    fn take(&mut self, thread: &mut Thread) {
        if !thread.nodes.iter().any(is_folded_root) {
            return;
        }
        let nodes = std::mem::take(&mut thread.nodes);
        let metrics = std::mem::take(&mut thread.metrics);
        // Of each node: whether it was taken, and its new place.
        let mut places: Vec<(bool, u32)> = Vec::with_capacity(nodes.len());
        for (index, node) in (0..).zip(nodes) {
            let above = node.parent.map(|parent| places[parent as usize]);
            let is_taken = above.map_or(is_folded_root(&node), |(is_taken, _)| is_taken);
            let (kept, kept_metrics) = match is_taken {
                true => (&mut self.nodes, &mut self.metrics),
                false => (&mut thread.nodes, &mut thread.metrics),
            };
            places.push((is_taken, kept.len() as u32));
            kept_metrics.add(kept.len() as u32, metrics.of(index));
            kept.push(Node {
                parent: above.map(|(_, place)| place),
                ..node
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{Caller, arbitrary, combine, flat, prune, stanzas, summary, threads};
    use proptest::prelude::*;

    fn gathered(mut profile: Profile) -> Profile {
        let places = folded_places(&profile);
        gather_folded(&mut profile, &places);
        assert_eq!(profile.validate(), Ok(()));
        profile
    }

    /// What the agent does with the contexts that `cut` has: their figures go to the node of their function, and their
    /// time stays in the cum of their callers.
    fn cut(mut profile: Profile, cut: impl Fn(usize) -> bool) -> Profile {
        for process in &mut profile.processes {
            let mut folded: std::collections::BTreeMap<u32, (u64, u64, u64)> = Default::default();
            for thread in &mut process.threads {
                let nodes = std::mem::take(&mut thread.nodes);
                thread.metrics = NodeMetrics::default();
                let mut places: Vec<Option<u32>> = Vec::new();
                for (index, node) in nodes.iter().enumerate() {
                    let above = node.parent.map(|parent| places[parent as usize]);
                    let is_gone = above == Some(None)
                        || node.flags.contains(NodeFlags::FOLDED)
                        || node.parent.is_some() && cut(index);
                    if is_gone {
                        places.push(None);
                        let sums = folded.entry(node.function).or_default();
                        let cum = if node.recursion > 0 { 0 } else { node.cum };
                        *sums = (sums.0 + node.calls, sums.1 + node.base, sums.2 + cum);
                    } else {
                        places.push(Some(thread.nodes.len() as u32));
                        thread.nodes.push(Node {
                            parent: above.flatten(),
                            ..*node
                        });
                    }
                }
            }
            let first = &mut process.threads[0];
            first.folded_calls = 0;
            for (function, (calls, base, cum)) in folded {
                first.folded_calls += calls;
                first.nodes.push(Node {
                    function,
                    calls,
                    base,
                    cum,
                    elapsed: cum,
                    flags: NodeFlags::FOLDED,
                    ..Node::default()
                });
            }
        }
        profile
    }

    fn assert_adds_up(profile: &Profile) -> Result<(), TestCaseError> {
        for (_, thread) in threads(profile) {
            let mut of_callees = vec![0; thread.nodes.len()];
            for node in &thread.nodes {
                if let Some(parent) = node.parent {
                    of_callees[parent as usize] += node.cum;
                }
            }
            for (node, of_callees) in thread.nodes.iter().zip(of_callees) {
                prop_assert_eq!(node.cum, node.base + of_callees);
            }
        }
        let roots = threads(profile).flat_map(|(_, thread)| &thread.nodes);
        let roots = roots.filter(|node| node.parent.is_none());
        let of_roots: u64 = roots.map(|node| node.cum).sum();
        prop_assert_eq!(of_roots, summary(profile).time);
        for stanza in stanzas(profile) {
            let own = stanza.own;
            let calls: u64 = stanza.parents.iter().map(|arc| arc.calls).sum();
            let base: u64 = stanza.parents.iter().map(|arc| arc.base).sum();
            let cum: u64 = stanza.parents.iter().map(|arc| arc.cum).sum();
            prop_assert_eq!((calls, base, cum), (own.calls, own.base, own.cum));
            let below: u64 = stanza.children.iter().map(|arc| arc.cum).sum();
            prop_assert_eq!(below, own.cum - own.base);
            prop_assert_eq!(stanza.not_in_callees, 0);
        }
        Ok(())
    }

    #[test]
    fn folded_calls_stand_below_the_context_that_lost_their_time() {
        // main 1 -> a 10 -> a 20 -> b 30, of which all below the outer a are cut.
        let whole = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 30)]);
        let profile = gathered(cut(whole, |index| index >= 2));
        let nodes = &profile.processes[0].threads[0].nodes;
        let folded = profile.functions.len() as u32 - 1;
        let found: Vec<(Option<u32>, u32, u64, u64, u64, u32)> = nodes
            .iter()
            .map(|n| (n.parent, n.function, n.calls, n.base, n.cum, n.recursion))
            .collect();
        assert_eq!(
            found,
            [
                (None, MAIN, 1, 1, 61, 0),
                (Some(0), A, 1, 10, 60, 0),
                (Some(1), folded, 0, 0, 50, 0),
                (Some(2), A, 1, 20, 20, 1),
                (Some(2), B, 1, 30, 30, 0),
            ]
        );
        let a = flat(&profile).into_iter().find(|row| row.function == A);
        let a = a.unwrap();
        assert_eq!((a.calls, a.base, a.cum, a.folded_calls), (2, 30, 60, 1));
    }

    #[test]
    fn calls_that_several_threads_lost_have_no_known_caller() {
        let whole = fixture::pool(2);
        let profile = gathered(cut(whole, |index| index > 0));
        let b = stanzas(&profile).into_iter().find(|s| s.own.function == B);
        let callers: Vec<Caller> = b.unwrap().parents.iter().map(|arc| arc.other).collect();
        assert_eq!(callers, [Caller::Unknown]);
        assert_adds_up(&profile).unwrap();
    }

    #[test]
    fn what_was_waited_in_folded_calls_is_with_them() {
        let mut profile = cut(fixture::chain(&[(MAIN, 1), (A, 10), (B, 30)]), |i| i == 2);
        let nodes = &mut profile.processes[0].threads[0].nodes;
        for node in nodes.iter_mut() {
            node.elapsed = node.cum;
        }
        nodes[2].elapsed += 500;
        let profile = gathered(profile);
        let nodes = &profile.processes[0].threads[0].nodes;
        let elapsed: Vec<u64> = nodes.iter().map(|node| node.elapsed).collect();
        assert_eq!(elapsed, [541, 540, 530, 530]);
        assert_eq!(crate::own_waits(nodes), [0, 0, 0, 500]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_sum_holds_whatever_was_cut(profile in arbitrary::program(), seed in any::<u64>(), one_in in 1..5u64,
                                            coverage in 0.0..0.2f64, taken in 0..30u64) {
            let mut profile = cut(profile, |index| (seed.rotate_left(index as u32 * 7) % one_in) == 0);
            let before = flat(&profile);
            let places = folded_places(&profile);
            // As a compensation does it: cum keeps what probes took of the time that was lost.
            for process in &mut profile.processes {
                let has_lost = is_folded(process);
                for thread in &mut process.threads {
                    thread.nodes.iter_mut().for_each(|node| node.base -= taken.min(node.base));
                    if !has_lost {
                        add_up(&mut thread.nodes);
                    }
                }
            }
            let taken_out = profile.clone();
            gather_folded(&mut profile, &places);
            prop_assert_eq!(profile.validate(), Ok(()));
            assert_adds_up(&profile)?;
            // Calls and own times of functions are what they were.
            let own = flat(&taken_out);
            let rows = flat(&profile);
            let rows: Vec<_> = rows.iter().filter(|row| (row.function as usize) < taken_out.functions.len()).collect();
            prop_assert_eq!(rows.len(), before.len());
            for (row, own) in rows.iter().zip(&own) {
                prop_assert_eq!((row.calls, row.base, row.folded_calls), (own.calls, own.base, own.folded_calls));
            }
            assert_adds_up(&combine(profile.clone()))?;
            let at = crate::Thresholds { coverage, ..Default::default() };
            assert_adds_up(&prune(profile, &at))?;
        }

        #[test]
        fn combining_and_pruning_before_they_are_gathered_is_no_different(profile in arbitrary::program(), seed in any::<u64>(), coverage in 0.0..0.2f64) {
            let profile = cut(profile, |index| (seed.rotate_left(index as u32 * 7) % 3) == 0);
            assert_adds_up(&gathered(combine(profile.clone())))?;
            let at = crate::Thresholds { coverage, ..Default::default() };
            assert_adds_up(&gathered(prune(profile, &at)))?;
        }
    }
}
