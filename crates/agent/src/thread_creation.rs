//! Who made a thread: noted by the creator right before it does, found by the child at its first event.
//!
//! Between the two the creator goes on, may make other threads and may end. What connects a note and its child is the thread
//! pointer: the creator gives it to the kernel, the child has it.

use crate::claim::{self, Creator};
use crate::memory::{Slot, atomic64, header, region, ticks};
use crate::{limits, slow};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use thalweg_abi as shm;

/// A thread is about to be made; `args` are those of `clone` or `clone3`, whose return address is at `sp`.
///
/// # Safety
/// `args` must be what a function of that kind was just called with.
pub unsafe fn note(kind: u32, args: &[u64; 6], sp: u64) {
    // SAFETY: by the caller's promise clone3's arguments are where its caller put them for the kernel to read.
    unsafe {
        let (flags, child) = if kind == shm::GATE_KIND_CLONE3 {
            const FLAGS: usize = 0;
            const TLS: usize = 7;
            let fields = args[0] as *const u64;
            if fields.is_null() || args[1] < (TLS as u64 + 1) * 8 {
                return;
            }
            (*fields.add(FLAGS), *fields.add(TLS))
        } else {
            (args[2], args[5])
        };
        if flags & limits::CLONE_SETTLS == 0 {
            return;
        }
        limits::before_thread(child);
        if child <= shm::THREAD_CREATION_BUSY {
            return;
        }
        let Some(slot) = claim::current(sp) else {
            return;
        };
        let Some(creation) = place_for(child) else {
            return;
        };
        (*creation).ticks = ticks();
        (*creation).pid = (*slot.shared()).pid;
        (*creation).tid = (*slot.shared()).tid;
        (*creation).functions = functions(slot, sp);
        atomic64(&raw mut (*creation).owner).store(child, Release);
    }
}

/// What the creator of the thread with this thread pointer has noted, and when it did.
pub fn take(owner: u64) -> Option<(Creator, u64)> {
    // SAFETY: the notes are mapped; one that is marked as busy is this thread's alone.
    unsafe {
        for creation in places(owner) {
            let key = atomic64(&raw mut (*creation).owner);
            if key
                .compare_exchange(owner, shm::THREAD_CREATION_BUSY, AcqRel, Relaxed)
                .is_ok()
            {
                let creator = Creator {
                    pid: (*creation).pid,
                    tid: (*creation).tid,
                    functions: (*creation).functions,
                };
                let when = (*creation).ticks;
                key.store(0, Release);
                return Some((creator, when));
            }
        }
        None
    }
}

fn places(owner: u64) -> impl Iterator<Item = *mut shm::ThreadCreation> {
    let first = region() + shm::PRIVATE_SIZE + shm::THREAD_CREATIONS_OFFSET;
    let place = shm::thread_creation_place(owner);
    (0..shm::THREAD_CREATION_PLACES).map(move |step| {
        (first + (place + step) % shm::THREAD_CREATIONS * shm::THREAD_CREATION_SIZE)
            as *mut shm::ThreadCreation
    })
}

/// A note to write, marked as busy: one for the same child (that was never made), a free one, or the oldest.
///
/// # Safety
/// The region must be mapped.
unsafe fn place_for(child: u64) -> Option<*mut shm::ThreadCreation> {
    // SAFETY: the notes are mapped.
    unsafe {
        let mut best = core::ptr::null_mut();
        let mut best_age = u64::MAX;
        for creation in places(child) {
            let age = match atomic64(&raw mut (*creation).owner).load(Acquire) {
                shm::THREAD_CREATION_BUSY => continue,
                known if known == child => 0,
                0 => 1,
                _ => (*creation).ticks.max(2),
            };
            if age < best_age {
                (best, best_age) = (creation, age);
            }
        }
        if best.is_null() {
            return None;
        }
        let key = atomic64(&raw mut (*best).owner);
        let before = key.load(Acquire);
        (before != shm::THREAD_CREATION_BUSY
            && key
                .compare_exchange(before, shm::THREAD_CREATION_BUSY, AcqRel, Relaxed)
                .is_ok())
        .then_some(best)
    }
}

/// The functions that the thread is in, innermost first. Frames below `sp` were left without an exit.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn functions(slot: Slot, sp: u64) -> [u32; shm::CREATORS] {
    let mut functions = [shm::NO_FUNCTION; shm::CREATORS];
    // SAFETY: walks this thread's frames, down to the sentinel; their nodes are in the arena or among the folded ones.
    unsafe {
        let mut frame = slot.top();
        let mut known = functions.iter_mut();
        while frame > slot.sentinel() {
            let at = shm::frame_sp((*frame).key);
            let left = at < sp && sp - at < shm::WINDOW;
            if (*frame).key != 0 && frame != slot.base() && !left {
                let Some(place) = known.next() else {
                    break;
                };
                *place = slow::function_of((*frame).node as *const shm::Node);
                if *place >= (*header()).functions {
                    *place = shm::NO_FUNCTION;
                    break;
                }
            }
            frame = frame.sub(1);
        }
    }
    functions
}
