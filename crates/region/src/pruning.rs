//! Pruning as seen from outside: the limits that the target gets at attach, a time in which nothing is cut while the trees are
//! read, and what a thread that was killed in the middle of a cut has left. The agent's side is its prune.rs.

use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use thalweg_abi as shm;

use crate::clock;
use crate::error::Result;
use crate::memory::Shared;
use crate::proc::{self, Pid, Tid};
use crate::thread_table;

/// When contexts are cut out of trees that grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pruning {
    /// From how many bytes on; `None`: never. A pass takes 0.2 us a context, in which its thread does nothing else: who
    /// chooses the limit chooses how long.
    pub from: Option<u64>,
    /// What has a smaller share of its caller's time goes first.
    pub below: f64,
}

impl Default for Pruning {
    fn default() -> Pruning {
        Pruning {
            from: None,
            below: 0.001,
        }
    }
}

impl Pruning {
    /// What the header says of it in a target with `memory` bytes for trees.
    pub fn for_header(&self, memory: u64, header: &mut shm::Pruning) {
        header.limit = self.from.map_or(u64::MAX, |bytes| bytes.min(memory));
        header.below = (self.below.clamp(0.0, 1.0) * shm::WHOLE as f64) as u64;
    }
}

/// What the user should know of it.
pub fn notes(header: &shm::Header, ticks_per_ns: f64) -> Vec<String> {
    let prune = &header.prune;
    let mut notes = Vec::new();
    if prune.passes > 0 {
        notes.push(format!(
            "pruning: {} passes through the trees took {:.1} ms of the threads' time, which is in no figure",
            prune.passes,
            prune.ticks as f64 / ticks_per_ns / 1e6
        ));
    }
    let reasons = [
        (
            shm::PRUNING_CONFINED,
            "the target filters its system calls (seccomp)",
        ),
        (
            shm::PRUNING_STACKS,
            "the target's threads leave for other stacks (coroutines), where interrupted probes cannot be seen",
        ),
    ];
    if header.folded_calls > 0 {
        let named = reasons.iter().filter(|(bit, _)| prune.off & bit != 0);
        notes.extend(named.map(|(_, reason)| {
            format!(
                "contexts that found no room were folded, none was pruned to make some: {reason}"
            )
        }));
    }
    notes
}

/// How long a reader that was killed keeps threads from cutting.
const LEASE: Duration = Duration::from_secs(5);
/// How long a reader waits for a thread that goes on and cuts: passes over a million contexts take some tenths of a second.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_micros(500);

/// While it lives no context is cut: the trees can be read.
pub struct Reading<'a> {
    shared: &'a Shared,
    word: u64,
    until: u64,
}

impl<'a> Reading<'a> {
    pub fn begin(shared: &'a Shared) -> Result<Reading<'a>> {
        let header = shared.header()?;
        let hz = f64::from_bits(header.ticks_hz);
        let hz = if hz.is_finite() && hz > 1e6 { hz } else { 1e9 };
        let thread = nix::unistd::gettid().as_raw() as u64;
        let reading = Reading {
            shared,
            word: offset_of!(shm::Header, prune) as u64
                + offset_of!(shm::Pruning, readers) as u64
                + thread % shm::READERS as u64 * 8,
            until: clock::ticks() + (LEASE.as_secs_f64() * hz) as u64,
        };
        // Memory that cannot be written to any more has no threads that cut.
        if shared
            .write(reading.word, &reading.until.to_le_bytes())
            .is_ok()
        {
            fence(Ordering::SeqCst);
            wait_for_pruning(shared, &header)?;
        }
        Ok(reading)
    }

    /// Whether all that was read since `begin` was read undisturbed: no longer ago than the lease, and no other reader has ended it.
    pub fn is_undisturbed(&self) -> bool {
        let mut word = [0; 8];
        let is_own = self.shared.read_bytes(self.word, &mut word).is_ok()
            && u64::from_le_bytes(word) == self.until;
        is_own && clock::ticks() < self.until
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if self.is_undisturbed() {
            let _ = self.shared.write(self.word, &[0; 8]);
        }
    }
}

/// What `read` gives when nothing was cut meanwhile. Where that fails again and again, the last.
pub fn undisturbed<T>(shared: &Shared, read: impl Fn() -> Result<T>) -> Result<T> {
    const TRIES: u32 = 3;
    let mut result = None;
    for _ in 0..TRIES {
        let reading = Reading::begin(shared)?;
        let read = read();
        if reading.is_undisturbed() {
            return read;
        }
        result = Some(read);
    }
    result.expect("there is more than one try")
}

fn wait_for_pruning(shared: &Shared, header: &shm::Header) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for slot in thread_table::slots(shared, header) {
        let (index, mut slot) = slot?;
        while slot.prune.active != 0 && goes_on(header, &slot) && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
            slot = shared.read(shm::SLOTS_OFFSET + index * shm::PAGE)?;
        }
    }
    Ok(())
}

/// Neither ended nor stopped.
fn goes_on(header: &shm::Header, slot: &shm::SharedSlot) -> bool {
    // Numbers of another PID namespace say nothing here.
    header.inner_pid != header.pid
        || shm::namespace(slot.pid) != 0
        || proc::thread_stat(Pid(slot.pid as i32), Tid(slot.tid as i32))
            .is_ok_and(|stat| !stat.is_dead() && !matches!(stat.state, 'T' | 't'))
}

/// Numbers of the nodes that threads which were killed or stopped were just cutting: their figures are neither in a tree nor all
/// with their function's.
pub fn half_pruned(shared: &Shared, header: &shm::Header) -> Result<HashMap<u64, bool>> {
    let mut found = HashMap::new();
    for slot in thread_table::slots(shared, header) {
        let (_, slot) = slot?;
        if slot.prune.active != 0 && slot.prune.node != 0 {
            found.insert(u64::from(slot.prune.node) - 1, false);
        }
    }
    Ok(found)
}
