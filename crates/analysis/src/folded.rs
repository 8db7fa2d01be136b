//! Calls whose contexts were cut or found no room: brought into the trees, so that every sum holds
//! for what is shown.
//!
//! While a program runs, such calls are counted in one node per function, whose callers are not
//! known. The total of callers still has their time, as it was measured, with all that probes cost
//! in it. So a file's trees do not add up:
//!
//! ```text
//! lost(c)    = total(c) - self(c) - sum of the callees' total
//! sum of lost over all contexts of a process = sum of self over its folded nodes
//! ```
//!
//! What is shown adds up:
//!
//! ```text
//! total(c)     = self(c) + sum of the callees' total          for every context
//! total(root)  = sum of self over all contexts below it and itself
//! ```
//!
//! A folded node has its own time as its total, and stands below the innermost context below which
//! all of them were made, under one context of a function called [`FOLDED`]. So the start of a
//! program has the whole of its time. Times tell which that is, and where calls were not timed the
//! contexts do, which know whether they have lost callees. Where several threads have lost some
//! there is no such context, and folded nodes stand under no parent.

use thalweg_model::{
    FuncId, Function, Module, Node, NodeFlags, NodeMetrics, Process, Profile, Thread,
};

/// Stands between folded calls and the context that they were made below.
pub const FOLDED: &str = "[folded]";

/// A context that has this part of what was lost, or of those who have lost, has all of it: the
/// rest is rounding, and what a program does when it ends.
const ALL_LOST_SHARE: f64 = 0.99;

/// Where the folded calls of one process were made: the functions from a root of one of its threads
/// on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldedPlace {
    process: usize,
    thread: usize,
    path: Vec<FuncId>,
}

/// To be asked of a profile as it was recorded: what is made of its times later loses what this is
/// known from.
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

/// Where the calls were timed that tells it: nobody else than the callers of folded calls has time
/// that is in none of its callees. Else it is told by how many contexts have lost callees, which
/// they know.
fn place(process_number: usize, process: &Process) -> Option<FoldedPlace> {
    place_by_time(process_number, process).or_else(|| place_by_contexts(process_number, process))
}

fn place_by_time(process_number: usize, process: &Process) -> Option<FoldedPlace> {
    let nodes = || process.threads.iter().flat_map(|thread| &thread.nodes);
    let folded: f64 = nodes()
        .filter(|node| is_folded_root(node))
        .map(|node| node.self_ns as f64)
        .sum();
    let of_roots = |(thread, lost): (&Thread, &Vec<f64>)| {
        let roots = thread.nodes.iter().zip(lost);
        let roots = roots.filter(|(node, _)| node.parent.is_none());
        roots.map(|(_, lost)| lost).sum::<f64>()
    };
    let tried = [false, true].map(|with_open| {
        let threads = process.threads.iter();
        let lost: Vec<Vec<f64>> = threads
            .map(|thread| lost_below(&thread.nodes, with_open))
            .collect();
        let whole: f64 = process.threads.iter().zip(&lost).map(of_roots).sum();
        (lost, whole)
    });
    // Of two sums the one that is nearer to what is to be found.
    let how_far = |whole: f64| (whole / folded).ln().abs();
    let [closed, all] = tried;
    let (lost, whole) = match how_far(closed.1) <= how_far(all.1) {
        true => closed,
        false => all,
    };
    // Of a tree that was read while it grew little is known.
    if folded == 0.0 || !(0.5..=2.0).contains(&(whole / folded)) {
        return None;
    }
    // Contexts that were running when they were read may have some more than what was lost.
    let all = ALL_LOST_SHARE * folded.min(whole);
    innermost(process_number, process, |thread, node| {
        lost[thread][node] >= all
    })
}

fn place_by_contexts(process_number: usize, process: &Process) -> Option<FoldedPlace> {
    let nodes = process.threads.iter().flat_map(|thread| &thread.nodes);
    let mut folded = nodes.filter(|node| is_folded_root(node));
    if folded.any(|node| node.flags.contains(NodeFlags::LOST_CALLEES)) {
        return None;
    }
    let losing: Vec<Vec<u32>> = process.threads.iter().map(losing_below).collect();
    let roots = process
        .threads
        .iter()
        .zip(&losing)
        .flat_map(|(thread, losing)| {
            let roots = thread.nodes.iter().zip(losing);
            roots.filter(|(node, _)| node.parent.is_none())
        });
    let all: u64 = roots.map(|(_, &losing)| u64::from(losing)).sum();
    innermost(process_number, process, |thread, node| {
        all > 0 && f64::from(losing[thread][node]) >= ALL_LOST_SHARE * all as f64
    })
}

/// The innermost of the contexts that have all: those stand in a row, each below the one before.
fn innermost(
    process_number: usize,
    process: &Process,
    has_all: impl Fn(usize, usize) -> bool,
) -> Option<FoldedPlace> {
    (0..process.threads.len()).find_map(|thread| {
        let nodes = process.threads[thread].nodes.iter().enumerate();
        let has_all = nodes.filter(|&(index, _)| has_all(thread, index));
        let path: Vec<FuncId> = has_all.map(|(_, node)| node.function).collect();
        (!path.is_empty()).then_some(FoldedPlace {
            process: process_number,
            thread,
            path,
        })
    })
}

/// Of each context how many that have lost callees are at it or below it.
fn losing_below(thread: &Thread) -> Vec<u32> {
    let has_lost = |node: &Node| node.flags.contains(NodeFlags::LOST_CALLEES);
    let mut losing: Vec<u32> = thread
        .nodes
        .iter()
        .map(|node| has_lost(node).into())
        .collect();
    for (index, node) in thread.nodes.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            losing[parent as usize] += losing[index];
        }
    }
    losing
}

/// What was lost in each context and in those below it.
///
/// What the callees of an untimed call took is in the total of the next timed call above, and in no total in between. A
/// context that was running when it was read has in its total what it did since its last callee, and not in its self: a
/// process may take longer to end than it has run. `with_open`: that is taken for lost.
fn lost_below(nodes: &[Node], with_open: bool) -> Vec<f64> {
    let mut of_callees = vec![0.0; nodes.len()];
    let mut lost = vec![0.0; nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev() {
        let mut handed_on = 0.0;
        if !is_folded_root(node) {
            let own = node.total_ns as f64 - node.self_ns as f64 - of_callees[index];
            if with_open || !node.flags.contains(NodeFlags::OPEN) {
                lost[index] += own.max(0.0);
            }
            if node.untimed > 0 {
                handed_on = (-own).max(0.0);
            }
        }
        if let Some(parent) = node.parent {
            of_callees[parent as usize] += node.total_ns as f64 + handed_on;
            lost[parent as usize] += lost[index];
        }
    }
    lost
}

/// Makes the trees of processes with folded calls add up.
pub fn gather_folded(profile: &mut Profile, places: &[FoldedPlace]) {
    let folded = FuncId::from_index(profile.functions.len());
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

/// Makes every total the self and the callees' total: where calls were counted without a clock or
/// times come from samples, what was measured at both ends of a call differs from that by some
/// nanoseconds.
pub fn add_up_all(profile: &mut Profile) {
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        add_up(&mut thread.nodes);
    }
}

/// Elapsed is what was worked and what was waited, here and in all callees.
fn add_up(nodes: &mut [Node]) {
    let waited_below = |node: &Node| node.wall_ns.saturating_sub(node.total_ns);
    let mut waited: Vec<u64> = nodes.iter().map(waited_below).collect();
    for node in nodes.iter() {
        if let Some(parent) = node.parent {
            let of_parent = &mut waited[parent as usize];
            *of_parent = of_parent.saturating_sub(waited_below(node));
        }
    }
    for node in nodes.iter_mut() {
        node.total_ns = node.self_ns;
    }
    for index in (0..nodes.len()).rev() {
        let total_ns = nodes[index].total_ns;
        nodes[index].wall_ns = total_ns.saturating_add(waited[index]);
        if let Some(parent) = nodes[index].parent.map(|parent| parent as usize) {
            nodes[parent].total_ns = nodes[parent].total_ns.saturating_add(total_ns);
            waited[parent] = waited[parent].saturating_add(waited[index]);
        }
    }
}

/// Puts the folded nodes of a process below the place. `false` where it is not there any more.
fn hang(process: &mut Process, place: &FoldedPlace, folded: FuncId, functions: usize) -> bool {
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
        added.total_ns = added.total_ns.saturating_add(node.total_ns);
        added.wall_ns = added.wall_ns.saturating_add(node.wall_ns);
    }
    let mut above = below;
    while let Some(index) = above {
        let node = &mut thread.nodes[index as usize];
        node.total_ns = node.total_ns.saturating_add(added.total_ns);
        node.wall_ns = node.wall_ns.saturating_add(added.wall_ns);
        above = node.parent;
    }
    thread.nodes.push(added);
    for (index, mut node) in (0..).zip(moved.nodes) {
        node.parent = Some(node.parent.map_or(own, |parent| own + 1 + parent));
        thread.metrics.add(own + 1 + index, moved.metrics.at(index));
        thread.nodes.push(node);
    }
    crate::selection::count_recursion(&mut thread.nodes, functions);
    true
}

/// The first context with this path of functions.
fn find(nodes: &[Node], path: &[FuncId]) -> Option<u32> {
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
            kept_metrics.add(kept.len() as u32, metrics.at(index));
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

    /// What the agent does with the contexts that `cut` has: their figures go to the node of their
    /// function, and their time stays in the total of their callers.
    fn cut(mut profile: Profile, cut: impl Fn(usize) -> bool) -> Profile {
        for process in &mut profile.processes {
            let mut folded: std::collections::BTreeMap<FuncId, (u64, u64, u64)> =
                Default::default();
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
                        if let Some(Some(above)) = above {
                            let above: u32 = above;
                            thread.nodes[above as usize].flags |= NodeFlags::LOST_CALLEES;
                        }
                        places.push(None);
                        let sums = folded.entry(node.function).or_default();
                        let total_ns = if node.recursion > 0 { 0 } else { node.total_ns };
                        *sums = (
                            sums.0 + node.calls,
                            sums.1 + node.self_ns,
                            sums.2 + total_ns,
                        );
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
            for (function, (calls, self_ns, total_ns)) in folded {
                first.folded_calls += calls;
                first.nodes.push(Node {
                    function,
                    calls,
                    self_ns,
                    total_ns,
                    wall_ns: total_ns,
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
                    of_callees[parent as usize] += node.total_ns;
                }
            }
            for (node, of_callees) in thread.nodes.iter().zip(of_callees) {
                prop_assert_eq!(node.total_ns, node.self_ns + of_callees);
            }
        }
        let roots = threads(profile).flat_map(|(_, thread)| &thread.nodes);
        let roots = roots.filter(|node| node.parent.is_none());
        let of_roots: u64 = roots.map(|node| node.total_ns).sum();
        prop_assert_eq!(of_roots, summary(profile).time);
        for stanza in stanzas(profile) {
            let own = stanza.own;
            let calls: u64 = stanza.parents.iter().map(|arc| arc.calls).sum();
            let self_ns: u64 = stanza.parents.iter().map(|arc| arc.self_ns).sum();
            let total_ns: u64 = stanza.parents.iter().map(|arc| arc.total_ns).sum();
            prop_assert_eq!(
                (calls, self_ns, total_ns),
                (own.calls, own.self_ns, own.total_ns)
            );
            let below: u64 = stanza.children.iter().map(|arc| arc.total_ns).sum();
            prop_assert_eq!(below, own.total_ns - own.self_ns);
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
        let folded = FuncId::from_index(profile.functions.len() - 1);
        let found: Vec<(Option<u32>, FuncId, u64, u64, u64, u32)> = nodes
            .iter()
            .map(|n| {
                (
                    n.parent,
                    n.function,
                    n.calls,
                    n.self_ns,
                    n.total_ns,
                    n.recursion,
                )
            })
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
        assert_eq!(
            (a.calls, a.self_ns, a.total_ns, a.folded_calls),
            (2, 30, 60, 1)
        );
    }

    #[test]
    fn what_untimed_calls_hand_on_was_not_lost() {
        // main 11 -> a, not timed -> a 20 -> b 30, which is cut.
        let whole = fixture::chain(&[(MAIN, 11), (A, 0), (A, 20), (B, 30)]);
        let mut profile = cut(whole, |index| index == 3);
        let untimed = &mut profile.processes[0].threads[0].nodes[1];
        (untimed.total_ns, untimed.untimed) = (0, untimed.calls);
        let profile = gathered(profile);
        let nodes = &profile.processes[0].threads[0].nodes;
        let totals: Vec<u64> = nodes.iter().map(|node| node.total_ns).collect();
        assert_eq!(totals, [61, 50, 50, 30, 30]);
        assert_eq!(nodes[3].parent, Some(2), "b was called by the inner a");
    }

    #[test]
    fn what_a_process_did_after_its_last_call_was_not_lost() {
        // main 1 -> a 10 -> a 20 -> b 30, of which all below the outer a are cut; main was running when it was read.
        let whole = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 30)]);
        let mut profile = cut(whole, |index| index >= 2);
        let open = &mut profile.processes[0].threads[0].nodes[0];
        open.flags = NodeFlags::OPEN;
        open.total_ns += 1000;
        let profile = gathered(profile);
        let nodes = &profile.processes[0].threads[0].nodes;
        let totals: Vec<u64> = nodes.iter().map(|node| node.total_ns).collect();
        assert_eq!(totals, [61, 60, 50, 20, 30]);
        assert_eq!(nodes[2].parent, Some(1));
    }

    #[test]
    fn where_calls_were_lost_is_known_though_none_of_them_was_timed() {
        // main 11 -> a -> a 20 -> b 30, which is cut; neither a nor b was timed. main was running
        // when it was read.
        let whole = fixture::chain(&[(MAIN, 11), (A, 0), (A, 20), (B, 30)]);
        let mut profile = cut(whole, |index| index == 3);
        let nodes = &mut profile.processes[0].threads[0].nodes;
        for untimed in &mut nodes[1..] {
            (untimed.total_ns, untimed.self_ns, untimed.untimed) = (0, 0, untimed.calls);
        }
        nodes[0].flags |= NodeFlags::OPEN;
        nodes[0].total_ns += 1000;
        let profile = gathered(profile);
        let nodes = &profile.processes[0].threads[0].nodes;
        assert_eq!(nodes[3].parent, Some(2), "b was called by the inner a");
        assert_eq!(nodes[4].parent, Some(3));
        assert_adds_up(&profile).unwrap();
    }

    #[test]
    fn calls_that_had_no_caller_have_none() {
        let whole = fixture::chain(&[(MAIN, 1), (A, 10), (B, 30)]);
        let mut profile = cut(whole, |index| index == 2);
        let folded = &mut profile.processes[0].threads[0].nodes[2];
        folded.flags |= NodeFlags::LOST_CALLEES;
        let place = place_by_contexts(0, &profile.processes[0]);
        assert_eq!(place, None);
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
            node.wall_ns = node.total_ns;
        }
        nodes[2].wall_ns += 500;
        let profile = gathered(profile);
        let nodes = &profile.processes[0].threads[0].nodes;
        let wall_ns: Vec<u64> = nodes.iter().map(|node| node.wall_ns).collect();
        assert_eq!(wall_ns, [541, 540, 530, 530]);
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
            // As a compensation does it: total keeps what probes took of the time that was lost.
            for process in &mut profile.processes {
                let has_lost = is_folded(process);
                for thread in &mut process.threads {
                    thread.nodes.iter_mut().for_each(|node| node.self_ns -= taken.min(node.self_ns));
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
            let rows: Vec<_> = rows.iter().filter(|row| row.function.index() < taken_out.functions.len()).collect();
            prop_assert_eq!(rows.len(), before.len());
            for (row, own) in rows.iter().zip(&own) {
                prop_assert_eq!((row.calls, row.self_ns, row.folded_calls), (own.calls, own.self_ns, own.folded_calls));
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
