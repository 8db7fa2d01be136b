//! Threads that came about in the same way into one, context by context: a run of a thousand
//! threads becomes a tree or two.
//!
//! ```text
//! class(t) = (class(maker of t), function that made t, level of t, program of t's process)
//! ```
//!
//! The threads of one class are of one nesting level, and their trees are laid over each other path
//! by path, so no context gets an ancestor that it did not have.

use std::collections::{HashMap, HashSet};

use thalweg_model::{Creator, FuncId, Node, NodeFlags, Process, Profile, Thread};

use crate::Extremes;
use crate::lineage::{Lineage, ThreadNumber};
use crate::pairs::PairTable;
use crate::sites::Callees;
use crate::threads;

/// Stand for the parents of nodes that have none.
const ROOT: u32 = u32::MAX;
const FOLDED_ROOT: u32 = u32::MAX - 1;

/// One process per program and one thread per class; the figures of equal contexts are added up.
pub fn combine(mut profile: Profile) -> Profile {
    let lineage = Lineage::from_profile(&profile);
    let (class_of, classes) = classify(&profile, &lineage);
    let threads_before = class_of.len();

    let mut layers: Vec<Layers> = classes.iter().map(|_| Layers::default()).collect();
    let mut class_of = class_of.into_iter();
    let mut programs: Vec<(String, Process)> = Vec::new();
    for mut process in std::mem::take(&mut profile.processes) {
        for (thread, class) in process.threads.drain(..).zip(&mut class_of) {
            layers[class].add(thread);
        }
        let name = program(&process).to_string();
        match programs.iter_mut().find(|(known, _)| *known == name) {
            None => programs.push((name, process)),
            Some((_, first)) if first.command != process.command => {
                first.command.truncate(1);
            }
            Some(_) => {}
        }
    }

    profile.processes = assemble(programs, &classes, layers);
    let left = threads(&profile).count();
    if left < threads_before {
        profile.notes.push(format!(
            "the accounts of {threads_before} threads were combined into {left}, by the function and the thread that made them"
        ));
    }
    profile
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Class {
    maker: Option<usize>,
    function: Option<FuncId>,
    level: u32,
    program: String,
}

fn program(process: &Process) -> &str {
    process.command.first().map_or("", String::as_str)
}

/// The class of each thread, and all classes. Makers have their class before those they made,
/// whatever their order.
fn classify(profile: &Profile, lineage: &Lineage) -> (Vec<usize>, Vec<Class>) {
    let all: Vec<&Process> = threads(profile).map(|(process, _)| process).collect();
    let mut by_level: Vec<u32> = (0..all.len() as u32).collect();
    by_level.sort_by_key(|&number| lineage.level(ThreadNumber(number)));

    let mut numbers: HashMap<Class, usize> = HashMap::new();
    let mut classes = Vec::new();
    let mut class_of = vec![0; all.len()];
    for number in by_level {
        let origin = lineage.origin(ThreadNumber(number));
        let class = Class {
            maker: origin.map(|origin| class_of[origin.maker.0 as usize]),
            function: origin.and_then(|origin| origin.function),
            level: lineage.level(ThreadNumber(number)),
            program: program(all[number as usize]).to_string(),
        };
        class_of[number as usize] = *numbers.entry(class.clone()).or_insert_with(|| {
            classes.push(class);
            classes.len() - 1
        });
    }
    (class_of, classes)
}

fn assemble(
    programs: Vec<(String, Process)>,
    classes: &[Class],
    layers: Vec<Layers>,
) -> Vec<Process> {
    let pid_of: HashMap<String, u32> = programs
        .iter()
        .map(|(name, process)| (name.clone(), process.pid))
        .collect();
    let mut processes: Vec<Process> = programs.into_iter().map(|(_, process)| process).collect();
    let place: HashMap<u32, usize> = (0..).zip(&processes).map(|(i, p)| (p.pid, i)).collect();

    let mut taken: HashSet<(u32, u32)> = HashSet::new();
    let mut places: Vec<(u32, u32)> = Vec::new();
    for (class, layers) in classes.iter().zip(layers) {
        let pid = pid_of[&class.program];
        let mut thread = layers.finish();
        while !taken.insert((pid, thread.tid)) {
            thread.tid = thread.tid.wrapping_add(1);
        }
        places.push((pid, thread.tid));
        thread.created_by = class.maker.map(|maker| Creator {
            pid: places[maker].0,
            tid: places[maker].1,
            function: class.function,
        });
        processes[place[&pid]].threads.push(thread);
    }
    processes
}

/// The trees of one class, laid over each other.
#[derive(Default)]
pub struct Layers {
    thread: Option<Thread>,
    extremes: Vec<Extremes>,
    table: Option<PairTable>,
    callees: Callees,
}

impl Layers {
    pub fn add(&mut self, thread: Thread) {
        let Some(whole) = &mut self.thread else {
            self.thread = Some(thread);
            return;
        };
        whole.others = whole.others.saturating_add(thread.others).saturating_add(1);
        whole.start_ns = whole.start_ns.min(thread.start_ns);
        whole.end_ns = whole.end_ns.max(thread.end_ns);
        whole.folded_calls = whole.folded_calls.saturating_add(thread.folded_calls);
        whole.add_samples(&thread.samples);
        // Threads of several times and programs have no time in common.
        whole.timeline = Default::default();
        let callees = &mut self.callees;
        // The table is made for the second thread: most classes have one.
        let table = self.table.get_or_insert_with(|| {
            let first = take_tree(whole);
            let mut table = PairTable::new();
            lay(whole, &mut self.extremes, &mut table, callees, &first);
            table
        });
        lay(whole, &mut self.extremes, table, callees, &thread);
    }

    /// An empty thread when none was added.
    pub fn finish(self) -> Thread {
        let mut thread = self.thread.unwrap_or_default();
        for (node, extremes) in thread.nodes.iter_mut().zip(&self.extremes) {
            (node.min, node.max) = (extremes.min.unwrap_or(0), extremes.max);
        }
        thread
    }
}

/// The contexts of a thread, which then has none.
pub(crate) fn take_tree(thread: &mut Thread) -> Thread {
    Thread {
        nodes: std::mem::take(&mut thread.nodes),
        metrics: std::mem::take(&mut thread.metrics),
        ..Thread::default()
    }
}

/// Adds a tree to one that `table` knows the places of.
pub(crate) fn lay(
    whole: &mut Thread,
    extremes: &mut Vec<Extremes>,
    table: &mut PairTable,
    callees: &mut Callees,
    tree: &Thread,
) {
    let mut place = Vec::with_capacity(tree.nodes.len());
    for (index, node) in (0..).zip(&tree.nodes) {
        let parent = node.parent.map(|parent| place[parent as usize]);
        let above = match parent {
            Some(parent) => parent,
            None if node.flags.contains(NodeFlags::FOLDED) => FOLDED_ROOT,
            None => ROOT,
        };
        let next = whole.nodes.len() as u32;
        let at = table.get_or_insert(above, callees.number(node.function, node.site), next);
        place.push(at);
        whole.metrics.add(at, tree.metrics.at(index));
        if at == next {
            whole.nodes.push(Node { parent, ..*node });
            extremes.push(Extremes::default());
        } else {
            let sum = &mut whole.nodes[at as usize];
            sum.calls = sum.calls.saturating_add(node.calls);
            sum.self_ns = sum.self_ns.saturating_add(node.self_ns);
            sum.total_ns = sum.total_ns.saturating_add(node.total_ns);
            sum.wall_ns = sum.wall_ns.saturating_add(node.wall_ns);
            sum.terminal = sum.terminal.saturating_add(node.terminal);
            sum.unwound = sum.unwound.saturating_add(node.unwound);
            sum.untimed = sum.untimed.saturating_add(node.untimed);
            sum.flags |= node.flags;
        }
        extremes[at as usize].add(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B};
    use crate::{arbitrary, flat, summary};
    use proptest::prelude::*;

    #[test]
    fn threads_made_by_one_function_become_one_and_their_contexts_add_up() {
        let profile = fixture::pool(3);
        let combined = combine(profile);
        let threads: Vec<&Thread> = threads(&combined).map(|(_, thread)| thread).collect();
        assert_eq!(threads.len(), 2);
        assert_eq!((threads[1].name.as_str(), threads[1].others), ("worker", 2));
        assert_eq!(threads[1].created_by.unwrap().tid, threads[0].tid);
        let calls: Vec<(FuncId, u64, u64)> = threads[1]
            .nodes
            .iter()
            .map(|node| (node.function, node.calls, node.self_ns))
            .collect();
        assert_eq!(calls, [(A, 3, 30), (B, 3, 15)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn combining_loses_and_invents_nothing(profile in arbitrary::program()) {
            let combined = combine(profile.clone());
            prop_assert_eq!(combined.validate(), Ok(()));
            let (before, after) = (summary(&profile), summary(&combined));
            prop_assert_eq!(
                (before.calls, before.time, before.folded_calls, before.deepest),
                (after.calls, after.time, after.folded_calls, after.deepest)
            );
            let figures = |profile: &Profile| -> Vec<_> {
                let rows = flat(profile).into_iter();
                rows.map(|row| (row.function, row.calls, row.self_ns, row.total_ns, row.min, row.max, row.recursion)).collect()
            };
            prop_assert_eq!(figures(&profile), figures(&combined));
            prop_assert_eq!(Lineage::from_profile(&profile).depth(), Lineage::from_profile(&combined).depth());
        }

        #[test]
        fn every_path_of_the_whole_is_a_path_of_some_thread(profile in arbitrary::program()) {
            let paths = |profile: &Profile| -> HashSet<Vec<FuncId>> {
                threads(profile).flat_map(|(_, thread)| arbitrary::paths(thread)).collect()
            };
            prop_assert_eq!(paths(&combine(profile.clone())), paths(&profile));
        }
    }
}
