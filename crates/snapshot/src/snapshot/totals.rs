//! Sums over the trees, read while they grow, for status lines.

use std::collections::HashSet;

use thalweg_abi as shm;
use thalweg_model as model;

use super::nodes::{Nodes, pruned};
use crate::error::Result;
use crate::memory::Shared;
use crate::proc::{self, Pid};
use crate::pruning;
use crate::thread_table;

/// What a status line shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// All that were seen, and how many of them have ended.
    pub threads: u64,
    pub ended: u64,
    pub calls: u64,
    pub contexts: u64,
    pub memory: u64,
    pub folded: u64,
    /// Contexts that were cut when memory got short, and their calls.
    pub pruned: model::Pruned,
    /// Events that the hot path handed to the slow path, and frames that were found left behind: how healthy the probes are.
    pub slow_events: u64,
    pub resyncs: u64,
}

impl Totals {
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            threads: self.threads.saturating_add(other.threads),
            calls: self.calls.saturating_add(other.calls),
            contexts: self.contexts + other.contexts,
            memory: self.memory + other.memory,
            folded: self.folded.saturating_add(other.folded),
            pruned: self.pruned.plus(other.pruned),
            slow_events: self.slow_events.saturating_add(other.slow_events),
            resyncs: self.resyncs.saturating_add(other.resyncs),
            ended: self.ended.saturating_add(other.ended),
        }
    }
}

/// Sums over all trees, read while they grow.
pub fn totals(shared: &Shared) -> Result<Totals> {
    pruning::undisturbed(shared, || read_totals(shared))
}

fn read_totals(shared: &Shared) -> Result<Totals> {
    let header = shared.header()?;
    let nodes = Nodes::read(shared, &header)?;
    let mut totals = Totals {
        folded: header.folded_calls,
        pruned: pruned(&header),
        calls: header
            .folded_calls
            .saturating_add(header.prune.pruned_calls),
        ..Totals::default()
    };
    let mut processes = HashSet::from([header.pid]);
    for entry in thread_table::read(shared)? {
        totals.threads = totals.threads.saturating_add(entry.threads);
        if header.inner_pid == header.pid && shm::namespace(entry.pid) == 0 {
            processes.insert(entry.pid);
        }
        nodes.walk(entry.root, |_, node, _| {
            totals.calls = totals.calls.saturating_add(node.calls);
            totals.contexts += 1;
        })?;
    }
    for slot in thread_table::slots(shared, &header) {
        let (_, slot) = slot?;
        let slow = slot.slow_entries.saturating_add(slot.slow_exits);
        totals.slow_events = totals.slow_events.saturating_add(slow);
        totals.resyncs = totals.resyncs.saturating_add(slot.resyncs);
    }
    let living = |pid: &u32| proc::tasks(Pid(*pid as i32)).map_or(0, |tasks| tasks.len() as u64);
    totals.ended = totals
        .threads
        .saturating_sub(processes.iter().map(living).sum());
    totals.memory = header.nodes_used;
    Ok(totals)
}
