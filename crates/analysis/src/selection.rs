//! A part of a profile as a profile of its own, so that every question can be asked of it: some of
//! its threads, and of those what happened below one function.
//!
//! ```text
//! root f       main -> a -> f -> x -> f -> y      becomes      f -> x -> f -> y
//! ```
//!
//! Under a root, recursion is counted from there, and folded calls of other functions, which may
//! have happened anywhere, are left out.

use std::borrow::Cow;
use std::collections::HashSet;

use thalweg_model::{
    FuncId, Node, NodeMetrics, Process, Profile, SampledFunction, Thread, Timeline,
};

use crate::combine::Layers;
use crate::lineage::{Lineage, ThreadNumber};
use crate::threads;

/// What of a profile is selected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Sorted; empty for all.
    pub threads: Vec<u32>,
    /// Index into the profile's functions.
    pub root: Option<FuncId>,
}

impl Part {
    pub fn is_all(&self) -> bool {
        *self == Part::default()
    }
}

/// Functions keep their numbers; threads outside of the part stay, without contexts, so that theirs
/// are kept too.
pub fn select<'a>(profile: &'a Profile, part: &Part) -> Cow<'a, Profile> {
    if part.is_all() {
        return Cow::Borrowed(profile);
    }
    let wanted: HashSet<u32> = part.threads.iter().copied().collect();
    let mut number = 0;
    let mut narrowed = Profile {
        meta: profile.meta.clone(),
        modules: profile.modules.clone(),
        functions: profile.functions.clone(),
        switched: profile.switched.clone(),
        sampled: sampled_in_part(&profile.sampled),
        enters_kernel: profile.enters_kernel.clone(),
        // Those are of all threads together.
        blocks: Vec::new(),
        block_counters: Vec::new(),
        cycles_of: None,
        skipped: profile.skipped.clone(),
        recorded: Default::default(),
        sites: profile.sites.clone(),
        marks: Vec::new(),
        notes: profile.notes.clone(),
        processes: Vec::with_capacity(profile.processes.len()),
    };
    for process in &profile.processes {
        let mut own = Process {
            command: process.command.clone(),
            threads: Vec::with_capacity(process.threads.len()),
            ..*process
        };
        for thread in &process.threads {
            let chosen = wanted.is_empty() || wanted.contains(&number);
            number += 1;
            let (nodes, metrics) = match (chosen, part.root) {
                (false, _) => Default::default(),
                (true, None) => (thread.nodes.clone(), thread.metrics.clone()),
                (true, Some(root)) => below(thread, root, profile.functions.len()),
            };
            own.threads.push(Thread {
                nodes,
                metrics,
                samples: Vec::new(),
                timeline: Timeline::default(),
                name: thread.name.clone(),
                ..*thread
            });
        }
        narrowed.processes.push(own);
    }
    Cow::Owned(narrowed)
}

/// Nobody knows which part has what was called through a function that was off.
fn sampled_in_part(sampled: &[SampledFunction]) -> Vec<SampledFunction> {
    let without = |one: &SampledFunction| SampledFunction {
        through_ns: 0,
        ..*one
    };
    sampled.iter().map(without).collect()
}

fn below(thread: &Thread, root: FuncId, functions: usize) -> (Vec<Node>, NodeMetrics) {
    const OUTSIDE: u32 = u32::MAX;
    let mut places = Vec::with_capacity(thread.nodes.len());
    let mut kept: Vec<Node> = Vec::new();
    let mut metrics = NodeMetrics::default();
    for (index, node) in (0..).zip(&thread.nodes) {
        let parent = node.parent.map(|parent| places[parent as usize]);
        let parent = parent.filter(|&place| place != OUTSIDE);
        if parent.is_none() && node.function != root {
            places.push(OUTSIDE);
            continue;
        }
        places.push(kept.len() as u32);
        metrics.add(kept.len() as u32, thread.metrics.at(index));
        kept.push(Node { parent, ..*node });
    }
    count_recursion(&mut kept, functions);
    (kept, metrics)
}

/// Depth first, with the number of activations of each function on the way.
pub(crate) fn count_recursion(nodes: &mut [Node], functions: usize) {
    let thread = Thread {
        nodes: nodes.to_vec(),
        ..Thread::default()
    };
    let mut active = vec![0u32; functions];
    crate::tree::Tree::new(&thread, crate::tree::Weight::Calls).walk(|index, entering| {
        let node = &mut nodes[index as usize];
        let active = &mut active[node.function.index()];
        if entering {
            node.recursion = *active;
            *active += 1;
        } else {
            *active -= 1;
        }
    });
}

/// The trees of all threads laid over each other, path by path, into one.
pub fn together(profile: &Profile) -> Thread {
    let mut layers = Layers::default();
    for (_, thread) in threads(profile) {
        if !thread.nodes.is_empty() {
            layers.add(thread.clone());
        }
    }
    layers.finish()
}

/// The function that made each thread, where it is known.
pub fn makers(profile: &Profile) -> Vec<Option<FuncId>> {
    let lineage = Lineage::from_profile(profile);
    (0..threads(profile).count() as u32)
        .map(|number| lineage.origin(ThreadNumber(number))?.function)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{arbitrary, flat, summary};
    use proptest::prelude::*;

    #[test]
    fn below_a_function_its_outermost_calls_are_the_roots() {
        let profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 20), (A, 5), (B, 40)]);
        let part = Part {
            root: Some(B),
            ..Part::default()
        };
        let narrowed = select(&profile, &part);
        let nodes = &narrowed.processes[0].threads[0].nodes;
        let shape: Vec<_> = nodes
            .iter()
            .map(|n| (n.parent, n.function, n.recursion))
            .collect();
        assert_eq!(shape, [(None, B, 0), (Some(0), A, 0), (Some(1), B, 1)]);
        assert_eq!(narrowed.validate(), Ok(()));
    }

    #[test]
    fn threads_that_are_not_chosen_keep_their_number_and_lose_their_contexts() {
        let profile = fixture::pool(3);
        let part = Part {
            threads: vec![2],
            ..Part::default()
        };
        let narrowed = select(&profile, &part);
        let contexts: Vec<usize> = threads(&narrowed).map(|(_, t)| t.nodes.len()).collect();
        assert_eq!(contexts, [0, 0, 2, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn laid_together_nothing_is_lost(profile in arbitrary::program()) {
            let mut whole = profile.clone();
            let thread = together(&profile);
            whole.processes.truncate(1);
            whole.processes[0].threads = vec![thread];
            let (before, after) = (summary(&profile), summary(&whole));
            prop_assert_eq!((before.calls, before.time), (after.calls, after.time));
            let figures = |profile: &Profile| -> Vec<_> {
                flat(profile).into_iter().map(|row| (row.function, row.calls, row.self_ns, row.total_ns)).collect()
            };
            prop_assert_eq!(figures(&profile), figures(&whole));
        }

        #[test]
        fn a_root_has_what_its_function_has_of_the_whole(profile in arbitrary::program()) {
            for row in flat(&profile).into_iter().filter(|row| row.folded_calls == 0) {
                let part = Part { root: Some(row.function), ..Part::default() };
                let narrowed = select(&profile, &part);
                let own = flat(&narrowed).into_iter().find(|own| own.function == row.function).unwrap();
                prop_assert_eq!((own.calls, own.self_ns, own.total_ns, own.recursion), (row.calls, row.self_ns, row.total_ns, row.recursion));
            }
        }
    }
}
