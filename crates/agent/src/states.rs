//! Calls that are counted and not timed, and functions that were switched off: what the slow path has to know of both.
//!
//! A frame whose `start` is 0 is that of an untimed call: what its callees took is handed on to the frame below when it ends,
//! what it took itself is part of its caller's own time. Reports put that right where some calls were timed.

use crate::clock;
use crate::memory::{Slot, atomic64, flags, header, region};
use crate::slow::{function_of, in_folded};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::{Frame, Node, ProbeState, SuspendedFrame};

/// The call that was just pushed is not timed.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn make_untimed(slot: Slot) {
    // SAFETY: by the caller's promise; every node has its waits, and folded ones are everybody's.
    unsafe {
        let top = slot.top();
        (&raw mut (*top).start).write_volatile(0);
        if let Some(waits) = clock::waits_of((*top).node as *mut Node) {
            atomic64(&raw mut (*waits).untimed).fetch_add(1, Relaxed);
        }
    }
}

/// The untimed call at `top` ends.
///
/// # Safety
/// `top` must be a frame above the sentinel of a thread that is the running one, or has ended.
pub unsafe fn settle(top: *mut Frame) {
    // SAFETY: by the caller's promise.
    unsafe {
        let took = (*top).child;
        let below = top.sub(1);
        (*below).child = (*below).child.wrapping_add(took);
        let node = (*top).node as *mut Node;
        if !in_folded(node) {
            (*node).cum = (*node).cum.wrapping_add(took);
        }
    }
}

/// Whether the activation, which is found left behind, may have returned while its function was switched off.
///
/// # Safety
/// `frame` must be one of a thread's, in use.
pub unsafe fn left_unseen(frame: *const Frame) -> bool {
    // SAFETY: by the caller's promise; every function has a state.
    unsafe {
        let state = state_of(function_of((*frame).node as *const Node));
        state.is_some_and(|state| (&raw const (*state).offs).read_volatile() != 0)
    }
}

/// Whether its function is switched off, so that it has returned since, or is about to.
///
/// # Safety
/// `frame` must be one of the running thread's.
pub unsafe fn ends_unseen(slot: Slot, frame: *const Frame) -> bool {
    // SAFETY: as the caller's; what is not in use has no key.
    unsafe {
        let per_ns = (*header()).ticks_per_ns;
        let since = off_since(slot, frame).filter(|_| (*frame).key != 0);
        since.is_some_and(|since| !shm::lasts(&*frame, since, per_ns))
    }
}

/// Whether the goroutine's activation is not taken along where the goroutine leaves its thread, because its function is switched off: goroutines come and go
/// often, and carry nothing that nobody will see the end of. Where single calls are recorded they do, because the end of each is told.
///
/// # Safety
/// As for `ends_unseen`.
pub unsafe fn is_not_suspended(slot: Slot, frame: *const Frame) -> bool {
    // SAFETY: by the caller's promise.
    unsafe {
        shm::is_goroutine((*frame).key)
            && flags() & shm::HEADER_RECORDS == 0
            && ends_unseen(slot, frame)
    }
}

/// The same for one that was suspended when it had taken `took`, where it would come back.
pub fn is_not_restored(suspended: &SuspendedFrame, took: u64) -> bool {
    // SAFETY: the header is mapped; every function has a state.
    unsafe {
        let is_off = |state: *const ProbeState| {
            (&raw const (*state).state).read_volatile() == shm::PROBE_OFF
        };
        shm::is_goroutine(suspended.key)
            && flags() & shm::HEADER_RECORDS == 0
            && state_of(suspended.function).is_some_and(is_off)
            && !shm::is_lasting(took, (*header()).ticks_per_ns)
    }
}

/// On the thread's clock.
///
/// # Safety
/// `slot` must be the running thread's, `frame` one of its shadow stack.
unsafe fn off_since(slot: Slot, frame: *const Frame) -> Option<u64> {
    // SAFETY: by the caller's promise; every function has a state.
    unsafe {
        let state = state_of(function_of((*frame).node as *const Node))?;
        if (&raw const (*state).state).read_volatile() != shm::PROBE_OFF {
            return None;
        }
        let since = (&raw const (*state).since).read_volatile();
        Some(since.saturating_sub((*slot.shared()).off))
    }
}

/// The activation's function has been switched off: it, and those that it was reached from by tail jumps, have had their own time up to
/// then, the rest is their caller's.
///
/// # Safety
/// `last` must be the running thread's top one, above the sentinel, with its function switched off; `now` is on the thread's clock.
pub unsafe fn end_unseen(slot: Slot, last: *mut Frame, now: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        let since = off_since(slot, last).unwrap_or(now);
        let mut until = since.min(now);
        let mut frame = last;
        while flags() & shm::HEADER_TIMED != 0 && frame > slot.bottom() {
            let start = (*frame).start;
            if start != 0 {
                stop_clock(frame, until);
                until = until.min(start);
            }
            if (*frame).key & shm::KEY_TAIL == 0 {
                return;
            }
            frame = frame.sub(1);
        }
    }
}

/// From now on it is an untimed one.
///
/// # Safety
/// `frame` must be a frame of this thread's shadow stack.
unsafe fn stop_clock(frame: *mut Frame, until: u64) {
    // SAFETY: as the caller's.
    unsafe {
        let took = until.wrapping_sub((*frame).start);
        let own = (took.wrapping_sub((*frame).child) as i64).max(0) as u64;
        let below = frame.sub(1);
        (*below).child = (*below).child.wrapping_add(own);
        let node = (*frame).node as *mut Node;
        if in_folded(node) {
            atomic64(&raw mut (*node).base).fetch_add(own, Relaxed);
        } else {
            (*node).base = (*node).base.wrapping_add(own);
            (*node).cum = (*node).cum.wrapping_add(own);
        }
        (&raw mut (*frame).start).write_volatile(0);
    }
}

/// Whether some calls of `function` may not have been timed.
pub fn was_switched(function: u32) -> bool {
    // SAFETY: every function has a state.
    unsafe {
        let state = state_of(function);
        state.is_some_and(|state| (&raw const (*state).changes).read_volatile() != 0)
    }
}

/// What the probes of `function` do, one of the `PROBE_` values.
pub fn mode(function: u32) -> u32 {
    // SAFETY: every function has a state.
    unsafe {
        let state = state_of(function);
        state.map_or(shm::PROBE_TIMED, |state| {
            (&raw const (*state).state).read_volatile()
        })
    }
}

fn state_of(function: u32) -> Option<*const ProbeState> {
    // SAFETY: the header is mapped.
    let (limit, offset) = unsafe { ((*header()).functions_limit, (*header()).states_offset) };
    let states = region() + shm::PRIVATE_SIZE + offset;
    let place = states + function as u64 * shm::PROBE_STATE_SIZE;
    ((function as u64) < limit).then_some(place as *const ProbeState)
}
