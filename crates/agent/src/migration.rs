//! Recording, where goroutines go from thread to thread: what is known of their open calls goes with them, so that a call has its own
//! entry and all of its time wherever it ends. stacks.rs comes here when it suspends a goroutine's activations and when it brings them back.
//!
//! ```text
//! suspended frames   | call, frame | call, frame | ...      innermost first: entry, time so far, whether the call has its mark
//! first block     request that the goroutine is at -> blocks of bytes: its part of the value stack
//! ```
//!
//! Nothing is written to a ring for it. A call that had its mark on another thread says so when it ends (`record::MARKED_ELSEWHERE`), and marks that
//! are written again name the same call: the reader knows calls of goroutines by function and entry.

use crate::memory::{Slot, atomic64, flags};
use crate::record::{depth_of, has_rules, side, state};
use crate::slow::function_of;
use crate::suspended_stacks::{Chain, StackWriter};
use crate::values::{HEAD, Kept, STACK_ROOM, Values, counter};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::record;
use thalweg_abi::{Frame, Node, SuspendedCall, SuspendedFrame, is_goroutine};

/// The most that is carried along of what rules have read.
const MOST_BYTES: u64 = 64 << 10;

/// Whether the activations on top are a goroutine's and single calls are recorded.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn is_asked(slot: Slot) -> bool {
    // SAFETY: by the caller's promise.
    unsafe {
        flags() & shm::HEADER_RECORDS != 0
            && slot.top() > slot.sentinel()
            && is_goroutine((*slot.top()).key)
    }
}

/// What the goroutine whose activations lie above `base` is at, for `after_suspend` to put into the store.
pub struct Carried {
    request: (u32, u32),
    /// Where its part of the value stack is, and its length.
    bytes: (u64, u64),
    /// Of `base`.
    depth: u64,
}

/// Before its activations are suspended.
///
/// # Safety
/// `slot` must be the running thread's, `base` on its shadow stack.
pub unsafe fn before_suspend(slot: Slot, base: *mut Frame) -> Carried {
    // SAFETY: by the caller's promise; entries of the value stack were written by this thread.
    unsafe {
        let depth = depth_of(slot, base);
        let state = state(slot);
        let values = Values::of(slot, state);
        let used = values.used();
        let mut from = used;
        while let Some((at, kept)) = values.last_below(from)
            && (*kept).depth > depth
        {
            from = at;
        }
        let mut request = (0, 0);
        let begun = state.request_depth.load(Relaxed);
        if begun > depth {
            request = (
                state.request.load(Relaxed) as u32,
                begun.wrapping_sub(depth) as u32,
            );
        }
        Carried {
            request,
            bytes: (values.start + from, used - from),
            depth,
        }
    }
}

/// What is known of the activation on top, which is about to be suspended, and its flags.
///
/// # Safety
/// As for `before_suspend`.
pub unsafe fn call_of(slot: Slot, now: u64) -> (SuspendedCall, u32) {
    // SAFETY: by the caller's promise; every frame has its side.
    unsafe {
        let top = slot.top();
        let side = side(top);
        let is_marked = depth_of(slot, top) <= state(slot).marked.load(Relaxed);
        let is_marked_elsewhere = is_marked || (*side).watch & record::MARKED_ELSEWHERE != 0;
        let call = SuspendedCall {
            key: (*top).key,
            entry: (*side).entry,
            slow: (*slot.shared()).slow_ticks.wrapping_sub((*side).slow),
            processor: now.wrapping_sub((*top).start).wrapping_add((*side).before),
        };
        forget(top);
        let marked = if is_marked_elsewhere {
            shm::SUSPENDED_MARKED
        } else {
            0
        };
        (call, marked | shm::SUSPENDED_CALL)
    }
}

/// After they are suspended.
///
/// # Safety
/// As for `before_suspend`.
pub unsafe fn after_suspend(
    slot: Slot,
    base: *mut Frame,
    carried: &Carried,
    writer: &mut StackWriter,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let state = state(slot);
        let values = Values::of(slot, state);
        let (at, len) = carried.bytes;
        if len > 0 {
            let from = at - values.start;
            if len > MOST_BYTES || !writer.put_bytes(&[carried.depth, from, len], at, len) {
                count_unread(&values, from);
            }
            state.values.store(from, Relaxed);
        }
        writer.put_request(carried.request);
        crate::record::forget_above(slot, base);
    }
}

/// Before the activations of `chain` are put on top again: what was read of them, and their request.
///
/// # Safety
/// As for `before_suspend`.
pub unsafe fn before_restore(slot: Slot, chain: Chain) {
    if flags() & shm::HEADER_RECORDS == 0 {
        return;
    }
    // SAFETY: by the caller's promise; what is written lies within this thread's room.
    unsafe {
        let state = state(slot);
        let depth = depth_of(slot, slot.top());
        let (request, begun) = chain.request();
        if request != 0 && state.request.load(Relaxed) == 0 {
            state.request.store(request.into(), Relaxed);
            state
                .request_depth
                .store(depth.wrapping_add(begun.into()), Relaxed);
        }
        let values = Values::of(slot, state);
        let at = values.used();
        let room = STACK_ROOM - at;
        if let Some([old_depth, from, len]) = chain.take_bytes(values.start + at, room) {
            let deeper = depth.wrapping_sub(old_depth);
            let is_whole = relocate(&values, (at, at + len), at.wrapping_sub(from), deeper);
            if is_whole {
                state.values.store(at + len, Relaxed);
            }
        }
    }
}

/// Makes entries that were copied say where they begin now, `by` bytes further on, and how deep their calls are.
///
/// # Safety
/// The entries from `at` to `end` must be whole ones of this thread's stack of values.
unsafe fn relocate(values: &Values, (at, end): (u64, u64), by: u64, deeper: u64) -> bool {
    let mut end = end;
    while end > at {
        // SAFETY: what lies between the two are entries, which end with where they began; anything else ends the walk.
        unsafe {
            let word = (values.start + end - 8) as *mut u64;
            let start = (*word).wrapping_add(by);
            if end < at + 8 || start < at || start.saturating_add(HEAD + 8) > end {
                return false;
            }
            *word = start;
            let kept = (values.start + start) as *mut Kept;
            (*kept).depth = (*kept).depth.wrapping_add(deeper);
            end = start;
        }
    }
    true
}

/// The activation at `frame` is one that was suspended, `rest` ticks of whose time it knows of itself. Its end comes by the slow path.
///
/// # Safety
/// As for `before_suspend`; `frame` must be on top.
pub unsafe fn restore_call(
    slot: Slot,
    frame: *mut Frame,
    suspended: &SuspendedFrame,
    call: &SuspendedCall,
    rest: u64,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let side = side(frame);
        (&raw mut (*side).entry).write_volatile(call.entry);
        let slow = (*slot.shared()).slow_ticks.wrapping_sub(call.slow);
        (&raw mut (*side).slow).write_volatile(slow);
        (&raw mut (*side).before).write_volatile(call.processor.wrapping_sub(rest));
        let marked = match suspended.flags & shm::SUSPENDED_MARKED {
            0 => 0,
            _ => record::MARKED_ELSEWHERE,
        };
        (&raw mut (*side).watch).write_volatile(marked);
        if marked != 0
            || call.processor != rest
            || has_rules(function_of((*frame).node as *const Node))
        {
            let key = &raw mut (*frame).key;
            key.write_volatile(key.read_volatile() | shm::KEY_CLOSER);
        }
    }
}

/// The next call at the place of this frame has nothing of it.
///
/// # Safety
/// `frame` must be on the shadow stack of the running thread.
pub unsafe fn forget(frame: *mut Frame) {
    // SAFETY: by the caller's promise.
    unsafe {
        let side = side(frame);
        (&raw mut (*side).watch).write_volatile(0);
        (&raw mut (*side).before).write_volatile(0);
    }
}

/// What was read from `from` on is given up.
///
/// # Safety
/// `from` must be where an entry of this thread's stack of values begins.
unsafe fn count_unread(values: &Values, from: u64) {
    // SAFETY: as in Values::last.
    unsafe {
        let mut end = values.used();
        while end > from
            && let Some((at, kept)) = values.last_below(end)
        {
            atomic64(&raw mut (*counter((*kept).rule)).unread).fetch_add(1, Relaxed);
            end = at;
        }
    }
}
