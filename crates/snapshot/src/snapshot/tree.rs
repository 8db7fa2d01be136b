//! One thread's tree as contexts of a profile, and the contexts that were folded.

use std::collections::HashMap;

use thalweg_abi as shm;
use thalweg_model as model;
use thalweg_model::{FuncId, NodeFlags};

use super::Reader;
use super::clock::Clock;
use super::nodes::{Nodes, has_folded};
use crate::error::Result;
use crate::kernel;
use crate::states;
use crate::thread_table::ThreadEntry;

/// One in so many calls that were lost may have had no caller: what a process does when it ends.
const FEW: u64 = 100;

/// That a process has ended is noticed a little later, which is not to look like a wait.
const UNSEEN_END_NS: u64 = 200_000_000;

/// Figures of one context, in ticks.
#[derive(Clone, Copy, Default)]
struct Figures {
    calls: u64,
    cum: u64,
    base: u64,
    /// Off the processor, in itself.
    waited: u64,
    terminal: u64,
    min: i64,
    max: i64,
    unwound: u32,
    untimed: u64,
    flags: NodeFlags,
}

/// Where in its thread's list each node is. One for all threads, since a node is in one tree.
pub(super) struct Places {
    /// By number, of those that were copied; 0: not met.
    copied: Vec<u32>,
    /// Those that were made meanwhile.
    later: HashMap<u64, u32>,
}

impl Places {
    pub(super) fn of(nodes: &Nodes) -> Places {
        Places {
            copied: vec![0; nodes.copied()],
            later: HashMap::new(),
        }
    }

    /// None for a node that was not met, or stands for a system call.
    fn of_node(&self, number: u64) -> Option<u32> {
        match self.copied.get(number as usize) {
            Some(place) => place.checked_sub(1),
            None => self.later.get(&number).copied(),
        }
    }

    fn note(&mut self, number: u64, place: u32) {
        match self.copied.get_mut(number as usize) {
            Some(known) => *known = place + 1,
            None => drop(self.later.insert(number, place)),
        }
    }
}

/// How often each function stands on the way to the context that is visited, parents first and each with all below it.
pub(super) struct Above {
    /// By function; all 0 where nothing is visited, so that one table serves all threads.
    counts: Vec<u32>,
    /// Places and functions.
    path: Vec<(u32, u32)>,
}

impl Above {
    pub(super) fn of(functions: u32) -> Above {
        Above {
            counts: vec![0; functions as usize],
            path: Vec::new(),
        }
    }

    /// Leaves what is still entered of the tree before.
    fn begin(&mut self) {
        for (_, left) in self.path.drain(..) {
            self.counts[left as usize] -= 1;
        }
    }

    /// Goes on to the context at `place`; says how often its function stands above.
    fn enter(&mut self, parent: Option<u32>, place: u32, function: u32) -> u32 {
        let is_left = |(above, _): &mut (u32, u32)| Some(*above) != parent;
        while let Some((_, left)) = self.path.pop_if(is_left) {
            self.counts[left as usize] -= 1;
        }
        self.path.push((place, function));
        let count = &mut self.counts[function as usize];
        *count += 1;
        *count - 1
    }
}

/// How many of the calls were not timed, where so many were counted as that: in a leaf that is counted at its entry alone all of them.
fn untimed(states: &[shm::ProbeState], function: u32, calls: u64, counted: u64) -> u64 {
    match states.get(function as usize) {
        Some(state) if states::is_never_timed(state) => calls,
        _ => counted,
    }
}

impl Reader<'_> {
    pub(super) fn thread(
        &mut self,
        profile: &mut model::Profile,
        entry: &ThreadEntry,
    ) -> Result<model::Thread> {
        let timed = self.header.flags & shm::HEADER_TIMED != 0;
        let (pid, tid) = (
            self.registry.process(entry.pid),
            self.registry.thread(entry.pid, entry.tid),
        );
        let end = self.end_of(entry, pid, tid);
        let open = match (entry.slot, &entry.clock) {
            (Some(index), Some(clock)) => {
                let frozen = entry.flags & shm::SLOT_FROZEN != 0;
                let (until, pending) = match frozen {
                    true => (end.min(clock.off.saturating_add(clock.last)), 0),
                    false => (end, self.pending_wait(clock, pid, tid, end)),
                };
                let charged = match self.registry.end(pid) {
                    // When exactly it ended nobody saw.
                    Some(_) if self.clock.ns(pending) < UNSEEN_END_NS => 0,
                    _ => pending.saturating_sub(clock.held),
                };
                self.open_frames(index, until, clock, (pending, charged))?
            }
            _ => HashMap::new(),
        };
        let since_attach = |ticks: u64| {
            self.clock
                .ns(ticks.saturating_sub(self.header.attach_ticks))
        };
        let mut thread = model::Thread {
            tid,
            name: self.name(entry, pid, tid),
            created_by: self.creator(profile, entry),
            start_ns: since_attach(entry.start),
            end_ns: since_attach(end),
            nodes: Vec::new(),
            metrics: model::NodeMetrics::default(),
            samples: Vec::new(),
            timeline: model::Timeline::default(),
            folded_calls: 0,
            others: entry.threads - 1,
            kernel: self.kernel_counts(entry, pid, tid),
        };
        let clock = self.clock;
        let mut sites = Vec::new();
        let mut waits: Vec<u64> = Vec::new();
        let states = self.states;
        let half_pruned = &mut self.half_pruned;
        let mut counted = kernel::Counted::default();
        let above = &mut self.above;
        above.begin();
        let places = &mut self.places;
        self.nodes.walk_all(entry.root, |number, node, parent| {
            if let Some(call) = shm::kernel::number(node.function) {
                let caller = parent.and_then(|parent| places.of_node(parent));
                return counted.add(caller, call, node.calls);
            }
            let waited = self.waits.of(number);
            let mut figures = Figures {
                calls: node.calls,
                cum: node.cum,
                base: node.base,
                waited: waited.ticks,
                terminal: waited.terminal,
                min: node.min,
                max: node.max,
                unwound: node.unwound,
                untimed: untimed(states, node.function, node.calls, waited.untimed),
                flags: NodeFlags::empty(),
            };
            if let Some(met) = half_pruned.get_mut(&number) {
                *met = true;
            }
            sites.push(node.children[shm::SITE_SLOT]);
            if node.flags & shm::NODE_AT_ATTACH != 0 {
                figures.flags |= NodeFlags::ON_STACK_AT_ATTACH;
            }
            if node.flags & shm::NODE_OPEN_AT_END != 0 {
                figures.flags |= NodeFlags::OPEN;
            }
            if node.flags & shm::NODE_LOST_CALLEES != 0 {
                figures.flags |= NodeFlags::LOST_CALLEES;
            }
            if let Some(running) = open.get(&number) {
                figures.flags |= NodeFlags::OPEN;
                figures.cum = figures.cum.wrapping_add(running.took);
                figures.base = figures.base.wrapping_add(running.own as u64);
                if running.timed {
                    figures.min = figures.min.min(running.own);
                    figures.max = figures.max.max(running.own);
                }
                figures.waited = figures.waited.wrapping_add(running.waited);
                figures.terminal = figures.terminal.wrapping_add(running.terminal);
            }
            waits.push(clock.ns(figures.waited));
            let parent = parent.and_then(|parent| places.of_node(parent));
            let place = thread.nodes.len() as u32;
            places.note(number, place);
            thread.metrics.add(place, &self.allocations.of(number));
            thread.nodes.push(model::Node {
                parent,
                recursion: above.enter(parent, place, node.function),
                ..convert(&figures, node.function, clock, timed)
            });
        })?;
        if let Some(resolver) = &mut self.sites {
            for (index, address) in sites.into_iter().enumerate() {
                let caller = thread.nodes[index].parent;
                let caller = caller.map(|parent| thread.nodes[parent as usize].function);
                thread.nodes[index].site = resolver.site(profile, address, caller);
            }
        }
        if !has_folded(self.header) {
            add_up(&mut thread.nodes);
        }
        add_waits(&mut thread.nodes, waits);
        let stray = counted.charge(&mut thread, &mut profile.enters_kernel);
        self.stray_system_calls = self.stray_system_calls.saturating_add(stray);
        Ok(thread)
    }

    /// Contexts that found no room or were cut: one node per function, kept with the process's first thread.
    pub(super) fn add_folded(&self, profile: &mut model::Profile) -> Result<()> {
        if !has_folded(self.header) {
            return Ok(());
        }
        let header = self.header;
        let Some((first, others)) = profile.processes.split_first_mut() else {
            return Ok(());
        };
        let Some(thread) = first.threads.first_mut() else {
            return Ok(());
        };
        let has_lost = |node: &model::Node| node.flags.contains(NodeFlags::LOST_CALLEES);
        let of_others = others.iter().flat_map(|process| &process.threads);
        let by_others = of_others.flat_map(|thread| &thread.nodes).any(has_lost);
        let lost = header
            .folded_calls
            .saturating_add(header.prune.pruned_calls);
        let outermost = header.folded_outermost > lost / FEW;
        let flags = match outermost || by_others {
            true => NodeFlags::FOLDED | NodeFlags::LOST_CALLEES,
            false => NodeFlags::FOLDED,
        };
        let timed = self.header.flags & shm::HEADER_TIMED != 0;
        for function in 0..self.header.functions {
            let mut node = self.nodes.folded(function)?;
            self.add_half_cut(function, &mut node)?;
            if node.calls == 0 && node.base == 0 && node.cum == 0 {
                continue;
            }
            let figures = Figures {
                calls: node.calls,
                cum: node.cum,
                base: node.base,
                waited: self.waits.folded(function).ticks,
                terminal: self.waits.folded(function).terminal,
                // Kept inverted, so that the zeros it starts with mean "none yet".
                min: i64::MAX.saturating_sub(node.min),
                max: node.max,
                unwound: node.unwound,
                untimed: untimed(
                    self.states,
                    function,
                    node.calls,
                    self.waits.folded(function).untimed,
                ),
                flags,
            };
            thread.folded_calls = thread.folded_calls.saturating_add(node.calls);
            let mut node = convert(&figures, function, self.clock, timed);
            node.wall_ns = node.total_ns.saturating_add(self.clock.ns(figures.waited));
            let place = thread.nodes.len() as u32;
            thread
                .metrics
                .add(place, &self.allocations.folded(function));
            thread.nodes.push(node);
        }
        Ok(())
    }

    /// What a thread that was killed while it cut a context of `function` had not yet moved to `folded`.
    fn add_half_cut(&self, function: u32, folded: &mut shm::Node) -> Result<()> {
        for number in self.half_pruned.iter().filter(|(_, met)| !**met) {
            let node = self.nodes.at(*number.0)?;
            if node.function == function {
                folded.calls = folded.calls.wrapping_add(node.calls);
                folded.cum = folded.cum.wrapping_add(node.cum);
                folded.base = folded.base.wrapping_add(node.base);
            }
        }
        Ok(())
    }
}

/// Makes cum the sum of a context's own time and its children's to the nanosecond: ticks were rounded one by one, and
/// a tree that is read while it grows is not of one moment. (Not where contexts were folded: their time is in the
/// cum of their callers only.)
fn add_up(nodes: &mut [model::Node]) {
    for node in nodes.iter_mut() {
        node.total_ns = node.self_ns;
    }
    for index in (0..nodes.len()).rev() {
        let cum = nodes[index].total_ns;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].total_ns = nodes[parent as usize].total_ns.saturating_add(cum);
        }
    }
}

/// Elapsed is what was worked and what was waited, here and in all callees.
fn add_waits(nodes: &mut [model::Node], mut waits: Vec<u64>) {
    for index in (0..nodes.len()).rev() {
        let node = &mut nodes[index];
        node.wall_ns = node.total_ns.saturating_add(waits[index]);
        if let Some(parent) = node.parent {
            waits[parent as usize] = waits[parent as usize].saturating_add(waits[index]);
        }
    }
}

/// A context by itself, without its callers.
fn convert(figures: &Figures, function: u32, clock: &Clock, timed: bool) -> model::Node {
    let never_left = figures.min == i64::MAX;
    let ns = |ticks: u64| if timed { clock.ns(ticks) } else { 0 };
    let signed = |ticks: i64| {
        if timed && !never_left {
            clock.signed_ns(ticks)
        } else {
            0
        }
    };
    model::Node {
        function: FuncId(function),
        calls: figures.calls,
        self_ns: if timed {
            clock.signed_ns(figures.base as i64)
        } else {
            0
        },
        total_ns: ns(figures.cum),
        wall_ns: ns(figures.cum),
        terminal: ns(figures.terminal),
        min: signed(figures.min),
        max: signed(figures.max),
        unwound: figures.unwound.into(),
        // Counted right after the call is, so that a reader may meet one more.
        untimed: figures.untimed.min(figures.calls),
        flags: figures.flags,
        ..model::Node::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_their_places_whether_they_were_copied_or_came_later() {
        let mut places = Places {
            copied: vec![0; 2],
            later: HashMap::new(),
        };
        places.note(1, 0);
        places.note(u64::MAX, 7);
        let found = [0, 1, 2, u64::MAX].map(|number| places.of_node(number));
        assert_eq!(found, [None, Some(0), None, Some(7)]);
    }

    #[test]
    fn recursion_is_counted_along_the_way_to_each_context() {
        // a(0) -> b(1) -> a(2) -> a(3); a(0) -> a(4); b(5) -> a(6)
        let nodes = [
            (None, 7),
            (Some(0), 8),
            (Some(1), 7),
            (Some(2), 7),
            (Some(0), 7),
            (None, 8),
            (Some(5), 7),
        ];
        let mut above = Above::of(9);
        let found: Vec<u32> = (0..)
            .zip(nodes)
            .map(|(place, (parent, function))| above.enter(parent, place, function))
            .collect();
        assert_eq!(found, [0, 0, 1, 2, 1, 0, 0]);
        above.begin();
        assert_eq!(above.enter(None, 0, 7), 0, "another thread's tree");
    }
}
