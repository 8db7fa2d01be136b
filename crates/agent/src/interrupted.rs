//! Whether the running event is the only one of its thread: that no probe further up the stack waits, interrupted by a
//! signal, for this one's handler to return. Such a probe has addresses of nodes in its registers, so nothing may be taken
//! out of the tree behind its back.
//!
//! ```text
//!   outermost known activation  ----------------    the stack is searched from here
//!   caller                      K's context, on the shadow stack
//!   a probe, interrupted        has the address of one of K's children
//!   signal frame                saved rip in a stub or in the agent; cs and ss behind it     <- found by these
//!   handler and its callees
//!   this event                  ----------------    down to here; below is this probe's own
//! ```
//!
//! The kernel writes the segment registers into each signal frame, in one word that nothing else on a stack looks like: whoever
//! restores the frame, and by whatever handler, it is found by that. One whose saved rip is elsewhere interrupted no probe.
//! A frame that is stale may be taken for a live one: then the tree stays as it is for now.
//!
//! A probe that was interrupted when no activation was known holds a child of the root at most. Those are never cut.

use crate::memory::{Slot, getpid, gettid, header, is_readable};
use core::arch::asm;
use thalweg_abi as shm;
use thalweg_abi::{frame_sp, is_goroutine};

/// No stack is searched further.
const SEARCHED: u64 = 64 << 20;
/// What is searched beyond the outermost activation, where it can be read: a handler's own frames.
const BEYOND: u64 = 8 << 10;
/// From the word with the segment registers in a signal frame back to the saved rip.
const RIP_BEFORE_SEGMENTS: u64 = 16;

/// Whether no other probe of this thread is under way than that of the activation whose return address is at `sp`. `false` where
/// that cannot be known.
///
/// # Safety
/// `slot` must be the running thread's, and signals blocked.
pub unsafe fn is_only_event(slot: Slot, sp: u64) -> bool {
    // SAFETY: walks this thread's frames, down to the sentinel.
    unsafe {
        let shared = slot.shared();
        if (*shared).base != 0 || (*shared).switching != 0 {
            return false;
        }
        // A child that borrows its parent's memory has its slot, too.
        if shm::number((*shared).pid) != getpid() || (*shared).tid != gettid() {
            return false;
        }
        let go = (*slot.private()).goroutine != 0;
        let mut outermost = if go { 0 } else { sp };
        let mut frame = slot.top();
        while frame > slot.sentinel() {
            let key = (*frame).key;
            if key == 0 || is_goroutine(key) != go {
                return false;
            }
            let sp = frame_sp(key);
            if !go && sp < outermost {
                // On another stack.
                return false;
            }
            outermost = sp;
            frame = frame.sub(1);
        }
        // Go's handlers run nothing that is probed, and a goroutine in a stub is not taken off its thread.
        go || is_clean(sp, outermost)
    }
}

/// As a signal frame has them: cs, gs and fs (both 0), ss.
fn segments() -> u64 {
    let (cs, ss): (u64, u64);
    // SAFETY: has no effect.
    unsafe {
        asm!("mov {0:e}, cs", "mov {1:e}, ss", out(reg) cs, out(reg) ss,
             options(nostack, nomem, preserves_flags))
    };
    (ss & 0xffff) << 48 | cs & 0xffff
}

/// Whether there is no signal frame between `from` and `to` that interrupted code of ours.
fn is_clean(from: u64, to: u64) -> bool {
    let start = from & !7;
    if to < start || to - start > SEARCHED {
        return false;
    }
    let segments = segments();
    let end = (to & !7) + BEYOND;
    let mut at = start;
    while at < end {
        if !is_readable(at) {
            return at > to;
        }
        let page_end = (at | (shm::PAGE - 1)) + 1;
        while at < page_end.min(end) {
            // SAFETY: the kernel has just read there; this thread's own stack is not unmapped meanwhile.
            unsafe {
                if (at as *const u64).read_volatile() == segments
                    && at - start >= RIP_BEFORE_SEGMENTS
                    && is_ours(((at - RIP_BEFORE_SEGMENTS) as *const u64).read_volatile())
                {
                    return false;
                }
            }
            at += 8;
        }
    }
    true
}

/// Whether it is the address of a stub or of the agent.
fn is_ours(address: u64) -> bool {
    // SAFETY: the header is mapped. Regions are added while they are not in use yet.
    unsafe {
        let regions: *const shm::CodeRegion = (&raw const (*header()).code).cast();
        (0..shm::MAX_CODE_REGIONS).any(|index| {
            let region = regions.add(index).read_volatile();
            address.wrapping_sub(region.start) < region.len
        })
    }
}
