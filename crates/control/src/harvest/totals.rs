//! Sums over the trees, read while they grow: for status lines, and by function for the budget.

use std::collections::HashSet;

use thalweg_model as model;
use thalweg_shm as shm;

use super::clock::Clock;
use super::nodes::{Nodes, has_folded, pruned};
use crate::accounts;
use crate::clock::Moment;
use crate::error::Result;
use crate::memory::Shared;
use crate::proc::{self, Pid};
use crate::pruning;
use crate::waits::Waits;

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
        calls: header.folded_calls.saturating_add(header.prune.cut_calls),
        ..Totals::default()
    };
    let mut processes = HashSet::from([header.pid]);
    for account in accounts::all(shared)? {
        totals.threads = totals.threads.saturating_add(account.threads);
        if header.inner_pid == header.pid && shm::namespace(account.pid) == 0 {
            processes.insert(account.pid);
        }
        nodes.walk(account.root, |_, node, _| {
            totals.calls = totals.calls.saturating_add(node.calls);
            totals.contexts += 1;
        })?;
    }
    for slot in accounts::slots(shared, &header) {
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

/// What all contexts of one function have counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FunctionSum {
    pub calls: u64,
    pub untimed: u64,
    /// Of the calls that were timed.
    pub own_ns: f64,
    pub unwound: u64,
}

/// What was counted, and by whom.
pub(crate) struct Sums {
    /// By function number, of all threads.
    pub functions: Vec<FunctionSum>,
    /// Those that have a slot.
    pub threads: Vec<ThreadSum>,
}

/// Names a thread's account: address of its root, and when it began.
pub(crate) type Whose = (u64, u64);

/// What a thread has done so far.
pub(crate) struct ThreadSum {
    pub whose: Whose,
    /// Its own clock at its last timed event, and what it has spent in the slow path, which that clock leaves out; in nanoseconds.
    pub clock_ns: f64,
    pub slow_ns: f64,
    /// How often it was there.
    pub slow_events: u64,
    /// By function number; empty where nobody wanted to know.
    pub calls: Vec<u64>,
}

impl ThreadSum {
    /// Nanoseconds on a processor, as far as its events tell.
    pub(crate) fn used_since(&self, before: &ThreadSum) -> f64 {
        (self.clock_ns + self.slow_ns - before.clock_ns - before.slow_ns).max(0.0)
    }

    /// Nanoseconds in the slow path. A thread that is taken off its processor there measures that too, now and then: nothing that it does
    /// takes so long.
    pub(crate) fn slow_since(&self, before: Option<&ThreadSum>) -> f64 {
        const LONGEST_NS: f64 = 2_000.0;
        let (ns, events) = before.map_or((0.0, 0), |before| (before.slow_ns, before.slow_events));
        let most = self.slow_events.saturating_sub(events) as f64 * LONGEST_NS;
        (self.slow_ns - ns).clamp(0.0, most)
    }
}

/// Read while the trees grow. `wanted`: of which threads the calls are added up for themselves, too.
pub(crate) fn by_function(
    shared: &Shared,
    wanted: &dyn Fn(&[ThreadSum]) -> HashSet<Whose>,
) -> Result<Sums> {
    pruning::undisturbed(shared, || read_by_function(shared, wanted))
}

fn read_by_function(
    shared: &Shared,
    wanted: &dyn Fn(&[ThreadSum]) -> HashSet<Whose>,
) -> Result<Sums> {
    let header = shared.header()?;
    let clock = Clock::new(&header, Moment::now());
    let mut threads = Vec::new();
    for slot in accounts::slots(shared, &header) {
        let (_, slot) = slot?;
        if slot.root != 0 {
            threads.push(ThreadSum {
                whose: (slot.root, slot.start),
                clock_ns: clock.ns(slot.last) as f64,
                slow_ns: clock.ns(slot.slow_ticks) as f64,
                slow_events: slot.slow_entries.saturating_add(slot.slow_exits),
                calls: Vec::new(),
            });
        }
    }
    let nodes = Nodes::read(shared, &header)?;
    let waits = Waits::read(shared, &header)?;
    let count = header.functions as usize;
    let mut functions = vec![FunctionSum::default(); count];
    let mut add = |function: u32, node: &shm::Node, waits: shm::Waits| {
        if let Some(sum) = functions.get_mut(function as usize) {
            sum.calls = sum.calls.saturating_add(node.calls);
            sum.untimed = sum.untimed.saturating_add(waits.untimed);
            sum.own_ns += clock.signed_ns(node.base as i64) as f64;
            sum.unwound += u64::from(node.unwound);
        }
    };
    let wanted = wanted(&threads);
    for account in accounts::all(shared)? {
        let whose = (account.root, account.start);
        let mut calls = match wanted.contains(&whose) {
            true => vec![0u64; count],
            false => Vec::new(),
        };
        nodes.walk(account.root, |number, node, _| {
            add(node.function, node, waits.of(number));
            if let Some(calls) = calls.get_mut(node.function as usize) {
                *calls = calls.saturating_add(node.calls);
            }
        })?;
        if let Some(thread) = threads.iter_mut().find(|thread| thread.whose == whose) {
            thread.calls = calls;
        }
    }
    if has_folded(&header) {
        for function in 0..header.functions {
            add(function, &nodes.folded(function)?, waits.folded(function));
        }
    }
    Ok(Sums { functions, threads })
}
