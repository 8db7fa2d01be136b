//! What runs while the trees are read: the open frames of a shadow stack, counted up to now.

use std::collections::HashMap;

use thalweg_abi as shm;

use super::Reader;
use super::nodes::damaged;
use crate::error::Result;
use crate::memory::FromBytes;
use crate::proc::{self, Pid, Tid};
use crate::thread_table::ThreadClock;

#[derive(Clone, Copy, Default)]
pub(super) struct Running {
    pub took: u64,
    pub own: i64,
    pub timed: bool,
    pub waited: u64,
    pub terminal: u64,
}

impl Reader<'_> {
    /// Ticks that a thread has been off the processor since it last asked: it may be waiting now.
    pub(super) fn pending_wait(&self, clock: &ThreadClock, pid: u32, tid: u32, end: u64) -> u64 {
        if self.header.gap_least == shm::NO_GAP {
            return 0;
        }
        // Where nobody knows how long a thread that is gone ran after its last event, it did not.
        let cpu = match self.registry.end(pid) {
            None => proc::processor_time(Pid(pid as i32), Tid(tid as i32)),
            Some(_) => None,
        };
        let cpu = cpu
            .or_else(|| self.registry.processor_time(pid, tid, clock.read_ticks))
            .unwrap_or(clock.read_cpu);
        let ran = self.clock.ticks(cpu.saturating_sub(clock.read_cpu));
        let passed = end.saturating_sub(clock.read_ticks);
        let off = clock.uncharged.saturating_add_unsigned(passed);
        let off = off.saturating_sub_unsigned(ran);
        if off < self.header.gap_least {
            return 0;
        }
        let since_last = end.saturating_sub(clock.off.saturating_add(clock.last));
        (off as u64).min(since_last)
    }

    /// What runs right now, by node: time since entry, and the part of it that is the function's own. The innermost is
    /// charged with what the thread has waited since its last event.
    pub(super) fn open_frames(
        &self,
        index: u64,
        end: u64,
        clock: &ThreadClock,
        (pending, charged): (u64, u64),
    ) -> Result<HashMap<u64, Running>> {
        let end = end.saturating_sub(clock.off.saturating_add(pending));
        let bottom = self.header.frames_offset + index * shm::FRAMES_STRIDE + shm::FRAME_SIZE;
        let mut frames = Vec::new();
        let mut offset = bottom + shm::FRAME_SIZE;
        const BATCH: u64 = 64;
        let mut bytes = [0; (BATCH * shm::FRAME_SIZE) as usize];
        'all: while frames.len() as u64 + BATCH <= shm::MAX_FRAMES {
            self.shared.read_bytes(offset, &mut bytes)?;
            for frame in bytes.chunks_exact(shm::FRAME_SIZE as usize) {
                let frame = shm::Frame::read_from_bytes(frame).map_err(|_| damaged())?;
                if frame.key == 0 {
                    break 'all;
                }
                frames.push(frame);
            }
            offset += BATCH * shm::FRAME_SIZE;
        }
        let mut running: HashMap<u64, Running> = HashMap::new();
        let timed = self.header.flags & shm::HEADER_TIMED != 0;
        let mut above = 0u64;
        let mut waited = false;
        let mut returns_with = None;
        for frame in frames.iter().rev() {
            let inside = frame.child.wrapping_add(above);
            let number = self.nodes.number_of(frame.node);
            // One that has made a tail jump returns with whom it jumped to.
            let off_since = returns_with.or_else(|| {
                let since = self.off_since(number?)?.saturating_sub(clock.off);
                let lasts = shm::lasts(frame, since, self.header.ticks_per_ns);
                (!lasts).then_some(since)
            });
            returns_with = off_since.filter(|_| frame.key & shm::KEY_TAIL != 0);
            let took = match (frame.start, off_since) {
                // Not timed: its own time is its caller's.
                (0, _) if timed => inside,
                // Since it was switched off, too.
                (start, Some(since)) => inside.max(since.min(end).saturating_sub(start)),
                (start, None) => end.saturating_sub(start),
            };
            let own = took.wrapping_sub(inside) as i64;
            above = took;
            if let Some(number) = number {
                let entry = running.entry(number).or_default();
                entry.took = entry.took.wrapping_add(took);
                entry.own = entry.own.wrapping_add(own);
                entry.timed |= frame.start != 0;
                // Since one was switched off its waits are its callers'.
                if !waited && off_since.is_none() {
                    waited = true;
                    entry.waited = charged;
                    if clock.terminal_wait == clock.last {
                        entry.terminal = charged;
                    }
                }
            }
        }
        Ok(running)
    }

    /// When the function of a context was switched off, if it is.
    fn off_since(&self, number: u64) -> Option<u64> {
        let function = self.nodes.at(number).ok()?.function;
        let state = self.states.get(function as usize)?;
        (state.state == shm::PROBE_OFF).then_some(state.since)
    }
}
