//! How deep calls between Python functions may go on the thread's stack. By themselves they take none of it, so a program may recurse far
//! deeper than its stack has room for; and it must not end earlier because of us.
//!
//! ```text
//! base          the first evaluator that was seen
//! base - span   from here on calls stay inside of their evaluator again, uncounted, until the one that was here returns
//! base - 2 span the stack goes on at least so far
//! ```
//!
//! `span` begins with 64 KiB and doubles up to 1 MiB, as far as there is so much stack.

use crate::dynamic;
use crate::limits;
use crate::memory::{Slot, atomic32, atomic64, gs_base, is_readable, thread_pointer};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::dynamic::Python;

const LEAST_SPAN: u64 = 64 << 10;
const MOST_SPAN: u64 = 1 << 20;
/// Where nobody may ask how far the stack goes.
const BLIND_SPAN: u64 = 32 << 10;

/// The thread's own slot; none before its first event.
fn own() -> Option<Slot> {
    let slot = Slot(gs_base());
    let owner = thread_pointer();
    // SAFETY: every thread's GS base points to a slot.
    (owner != 0 && unsafe { (*slot.private()).owner } == owner).then_some(slot)
}

/// Whether the evaluator that begins now is beyond what may be used of the stack.
pub fn is_deep() -> bool {
    let Some(slot) = own() else {
        return false;
    };
    let here = 0u8;
    let sp = (&raw const here) as u64;
    // SAFETY: the slot is this thread's own.
    unsafe {
        let stack = &raw mut (*slot.private()).python;
        if (*stack).base == 0 {
            (*stack).base = sp;
            (*stack).span = 0;
        }
        let mut span = (*stack).span & !FINAL;
        let mut is_final = (*stack).span & FINAL;
        while is_final == 0 && (sp < (*stack).base.wrapping_sub(span) || span == 0) {
            let next = match span {
                0 if limits::is_silent() => BLIND_SPAN,
                0 => LEAST_SPAN,
                span => span * 2,
            };
            let is_allowed = next <= MOST_SPAN && !(limits::is_silent() && span != 0);
            match is_allowed && goes_on((*stack).base, span * 2, next * 2) {
                true => span = next,
                false => is_final = FINAL,
            }
        }
        (*stack).span = span | is_final;
        (*stack).floor = !((*stack).base.wrapping_sub(span));
        sp < (*stack).base.wrapping_sub(span) || span == 0
    }
}

/// In `PythonStack::span`: it does not grow any more.
const FINAL: u64 = 1;

/// Whether all pages between these two distances below `base` can be used.
fn goes_on(base: u64, from: u64, to: u64) -> bool {
    if limits::is_silent() {
        return true;
    }
    let mut distance = from;
    while distance < to {
        distance += shm::PAGE;
        match base.checked_sub(distance) {
            Some(address) if is_readable(address & !7) => {}
            _ => return false,
        }
    }
    true
}

/// Calls stay inside of their evaluators from now on. `true`: the entry that follows is the first that is too deep.
///
/// # Safety
/// `calls` must be the word of the running thread's interpreter, whose lock it holds.
pub unsafe fn leave_calls(python: &Python, calls: *mut u64) -> bool {
    let Some(slot) = own() else {
        return false;
    };
    // SAFETY: by the caller's promise; the slot is this thread's own.
    unsafe {
        let word = atomic64(calls);
        let was_ours = word
            .compare_exchange(python.evaluator, 0, Relaxed, Relaxed)
            .is_ok();
        let stack = &raw mut (*slot.private()).python;
        if !was_ours || (*stack).deep != 0 {
            return false;
        }
        atomic32(&raw mut (*dynamic::head()).python_deep).fetch_add(1, Relaxed);
        (*stack).word = calls as u64;
        (*stack).pending = 1;
        true
    }
}

/// The frame on top is that of a call at `sp` that has just been pushed: if it is the first that is too deep, it is not to leave unnoticed.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn entered(slot: Slot, sp: u64) {
    // SAFETY: by the caller's promise there is a frame on top.
    unsafe {
        let stack = &raw mut (*slot.private()).python;
        if (*stack).pending != 0 {
            (*stack).pending = 0;
            (*stack).deep = sp;
            (*slot.top()).key |= shm::KEY_CLOSER;
        }
    }
}

/// The activation at `sp` leaves: if it is the first that was too deep, calls are told apart again.
///
/// # Safety
/// `slot` must be the running thread's, or one whose thread has ended.
pub unsafe fn leaves(slot: Slot, sp: u64) {
    // SAFETY: by the caller's promise. The word is that of an interpreter which is there as long as its evaluator runs.
    unsafe {
        let stack = &raw mut (*slot.private()).python;
        if (*stack).deep == 0 || sp < (*stack).deep {
            return;
        }
        (*stack).deep = 0;
        let evaluator = (&raw const (*dynamic::head()).python.evaluator).read_volatile();
        if own() == Some(slot) && evaluator != 0 {
            super::claim_word(evaluator, (*stack).word as *mut u64);
        }
    }
}
