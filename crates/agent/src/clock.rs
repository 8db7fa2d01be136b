//! The thread's own clock: the time-stamp counter, less the time it was off the processor and less what the slow path took.
//!
//! ```text
//!   counter   ----entry------------------------exit------->     two events far apart: was the thread off the processor?
//!   thread    ****......waits......************          *  ran
//!   its clock ----entry--exit---->                               `off` grows by the wait, the context is charged with it
//! ```
//!
//! Nothing tells a thread that it was switched out, but a switch takes time: where two events of a thread are close together
//! there was none. Only beyond `SharedSlot::gap` is the kernel asked for the thread's processor time (some 300 ns). The
//! gap adapts between two bounds: it is short for a thread that waits, long for one that computes.
//!
//! Everything that is measured with this clock is processor time: base, cum, min and max. Elapsed is that and the waits.

use crate::memory::{Slot, atomic32, atomic64, flags, header, region, syscall, ticks};
use crate::{limits, tree};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::{Frame, Node, calls};

/// Waits too short to be charged at once, and noise, add up to no more than this many of the longest gaps.
const UNCHARGED: i64 = 8;

/// The thread's clock at an event that the slow path handles and that began at the counter value `began`; 0 without a
/// clock. What the thread waited before it is charged to the context on top.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn event(slot: Slot, began: u64) -> u64 {
    if flags() & shm::HEADER_TIMED == 0 {
        return 0;
    }
    if limits::is_frozen() {
        // SAFETY: by the caller's promise.
        return unsafe { (*slot.shared()).last };
    }
    // SAFETY: by the caller's promise; there is at least the sentinel on the shadow stack.
    unsafe {
        let shared = slot.shared();
        let mut now = began.wrapping_sub((*shared).off);
        if (now.wrapping_sub((*shared).last) as i64) < 0 {
            // The thread has got its slot only since then.
            now = ticks().wrapping_sub((*shared).off);
        }
        let gap = now.wrapping_sub((*shared).last) as i64;
        settle(slot, now, gap, slot.top())
    }
}

/// The thread's clock where it begins something that has nothing to do with what it did before; 0 without a clock. What it
/// waited until now is nobody's.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn begin(slot: Slot) -> u64 {
    if flags() & shm::HEADER_TIMED == 0 {
        return 0;
    }
    // SAFETY: by the caller's promise.
    unsafe {
        let shared = slot.shared();
        if limits::is_frozen() {
            return (*shared).last;
        }
        let mut now = ticks().wrapping_sub((*shared).off);
        if now.wrapping_sub((*shared).last) as i64 > (*shared).gap {
            read(slot);
            now = ticks().wrapping_sub((*shared).off);
        }
        (&raw mut (*shared).last).write_volatile(now);
        now
    }
}

/// The slow path is done with the event that was at `now`: the clock goes on from there. The kernel likes to switch to
/// another thread when a system call returns: that wait is the top context's, but for what a thread waits at a gate.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn resume(slot: Slot, now: u64, gated: bool) {
    // SAFETY: by the caller's promise; there is at least the sentinel on the shadow stack.
    unsafe {
        let top = (*slot.top()).node as *mut Node;
        resume_in(slot, now, (!gated).then_some(top));
    }
}

/// The same where what is waited is another context's, or nobody's.
///
/// # Safety
/// `slot` must be the running thread's, `node` one of its tree.
unsafe fn resume_in(slot: Slot, now: u64, node: Option<*mut Node>) {
    if flags() & shm::HEADER_TIMED == 0 || limits::is_frozen() {
        return;
    }
    // SAFETY: by the caller's promise.
    unsafe {
        let shared = slot.shared();
        if (&raw const (*shared).last).read_volatile() != now {
            // A handler has had events meanwhile: setting the clock back would make its time count twice.
            return;
        }
        let since = || ticks().wrapping_sub((*shared).off).wrapping_sub(now);
        let mut took = since();
        let (mut waited, mut held) = (0, 0);
        if took as i64 > (*shared).gap.min((*header()).gap_least) {
            let began = now.wrapping_add((*shared).off);
            match node {
                Some(_) => waited = off_processor(slot, None, began),
                None => read(slot),
            }
            let asked = (&raw const (*shared).read_ticks).read_volatile();
            let until_asked = asked.wrapping_sub(began) as i64;
            took = since();
            // A switch since then is in the next reading: it is a wait of what goes on now, and is not taken out twice.
            if until_asked > 0 && took as i64 - until_asked > (*header()).gap_least {
                took = until_asked as u64;
            }
            if let Some(node) = node
                && waited > 0
            {
                held = take_held(slot, waited);
                charge(node, waited - held, false);
            }
        }
        let limit = (*header()).gap_most.saturating_mul(UNCHARGED);
        (*shared).uncharged = (*shared).uncharged.max(-limit).min(limit);
        atomic64(&raw mut (*shared).off).fetch_add(took, Relaxed);
        let slow = took.wrapping_sub(waited).wrapping_add(held);
        atomic64(&raw mut (*shared).slow_ticks).fetch_add(slow, Relaxed);
    }
}

/// Takes the time since the counter value `began` out of the thread's clock, whatever it was spent on, and tells how long that was.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn skip(slot: Slot, began: u64) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe {
        let shared = slot.shared();
        let timed = flags() & shm::HEADER_TIMED != 0 && !limits::is_frozen();
        if timed {
            read(slot);
        }
        let took = ticks().wrapping_sub(began);
        if timed {
            atomic64(&raw mut (*shared).off).fetch_add(took, Relaxed);
            atomic64(&raw mut (*shared).slow_ticks).fetch_add(took, Relaxed);
        }
        took
    }
}

/// An entry so long after the last event that the caller may have waited; its frame is on top.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_gap_entry(now: u64, gap: i64) {
    let slot = Slot(crate::memory::gs_base());
    // SAFETY: the hot path has seen that the slot is this thread's and has pushed a frame.
    unsafe {
        let top: *mut Frame = slot.top();
        let caller = (*top.sub(1)).node as *mut Node;
        let now = settle(slot, now, gap, top.sub(1));
        (&raw mut (*top).start).write_volatile(now);
        // It was the caller that ran for long: whoever waited for the processor got it because of that.
        resume_in(slot, now, Some(caller));
    }
}

/// The same at an exit, whose frame is still on top. Gives the exit's time on the thread's clock.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_gap_exit(now: u64, gap: i64) -> u64 {
    let slot = Slot(crate::memory::gs_base());
    // SAFETY: the hot path has seen that the frame on top is the one that ends.
    unsafe {
        let now = settle(slot, now, gap, slot.top());
        resume(slot, now, false);
        now
    }
}

/// The event that seems to be at `now`, `gap` after the last one: takes out what was waited in between by the call that
/// `frame` is of.
///
/// # Safety
/// `slot` must be the running thread's, `frame` one of its shadow stack.
unsafe fn settle(slot: Slot, now: u64, gap: i64, frame: *const Frame) -> u64 {
    // SAFETY: as in event.
    unsafe {
        let shared = slot.shared();
        let node = (*frame).node as *mut Node;
        let mut at = now;
        if gap > (*shared).gap && !limits::is_frozen() {
            let began = now.wrapping_add((*shared).off);
            let mut ran = least_run(frame, now.wrapping_sub(gap as u64)).min(gap);
            if (*shared).uncharged > 2 * (*header()).gap_most {
                ran /= 2;
            }
            let waited = off_processor(slot, Some(gap - ran), began);
            if waited > 0 {
                let since = now.wrapping_sub(gap as u64);
                let terminal = (&raw const (*shared).terminal_wait).read_volatile() == since;
                atomic64(&raw mut (*shared).off).fetch_add(waited, Relaxed);
                let held = take_held(slot, waited);
                atomic64(&raw mut (*shared).slow_ticks).fetch_add(held, Relaxed);
                charge(node, waited - held, terminal);
                at = now.wrapping_sub(waited);
            }
        }
        (&raw mut (*shared).last).write_volatile(at);
        at
    }
}

/// What a call must have run since the event at `last` at the least: as much as is missing of its context's shortest call.
///
/// The kernel's account of a thread and the counter agree to a microsecond or two where the thread was switched, so that a
/// call of less than that would have no time left. What is not taken from it stays to be charged. No more than that is left:
/// of long calls the account is near enough.
///
/// A first call is the longest of many, and none that waits could be shorter than it. The errors of the account do not add up, so
/// that much which stays to be charged means just this: [`settle`] takes half of it then, until the shortest call is right.
///
/// # Safety
/// `frame` must be a frame of the running thread's shadow stack.
unsafe fn least_run(frame: *const Frame, last: u64) -> i64 {
    // SAFETY: as in event; a frame's node is in the arena or among the folded ones, which keep their least in another way.
    unsafe {
        let node = (*frame).node as *mut Node;
        let least = (*header()).gap_least;
        if (*frame).start == 0 || !tree::is_in_arena(node) {
            return 0;
        }
        let own = last.wrapping_sub((*frame).start.wrapping_add((*frame).child)) as i64;
        match (&raw const (*node).min).read_volatile() {
            // It is the first call.
            i64::MAX => least / 4,
            shortest => shortest.saturating_sub(own.max(0)).clamp(0, least * 2),
        }
    }
}

/// How many ticks the thread was off the processor: of the `gap` before the counter value `began`, or, without one, of those since.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn off_processor(slot: Slot, gap: Option<i64>, began: u64) -> u64 {
    // SAFETY: as in event.
    unsafe {
        let shared = slot.shared();
        let (least, most) = ((*header()).gap_least, (*header()).gap_most);
        let since = (*shared).read_ticks;
        let since_cpu = (*shared).read_cpu;
        let Some((at, cpu)) = processor_time() else {
            (*shared).gap = shm::NO_GAP;
            return 0;
        };
        // A handler that has asked meanwhile has charged what there was.
        let turn = atomic64(&raw mut (*shared).read_ticks);
        if turn.compare_exchange(since, at, Relaxed, Relaxed).is_err() {
            return 0;
        }
        (&raw mut (*shared).read_cpu).write_volatile(cpu);
        let passed = at.wrapping_sub(since) as i64;
        let ran = cpu.wrapping_sub(since_cpu) as i64;
        let ran = match ran {
            // Another task's time: that of a child which borrows the memory, or of the parent again after it.
            ..0 => return forget(slot),
            _ => to_ticks(ran as u64) as i64,
        };
        if passed < 0 || ran > passed + least {
            return forget(slot);
        }
        let off = (*shared).uncharged + passed - ran;
        if off < least / 4 {
            (*shared).uncharged = off;
            (*shared).gap = most.min((*shared).gap + (*shared).gap / 8);
            return 0;
        }
        // The kernel likes to switch threads when it is asked something. That is no part of the gap: it is left for the end of
        // the slow path, which takes itself out as a whole.
        let since = at.wrapping_sub(began) as i64;
        let charged = match gap {
            Some(gap) if since > least => (off - since).max(0).min(gap),
            Some(gap) => off.min(gap),
            None => off.min(since.max(0)),
        };
        (*shared).uncharged = off - charged;
        (*shared).gap = least;
        charged as u64
    }
}

/// Of `waited` ticks: those for which a controller kept the thread from running. They are nobody's.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn take_held(slot: Slot, waited: u64) -> u64 {
    // SAFETY: as in event. Controllers write `held` while the thread does not run.
    unsafe {
        let shared = slot.shared();
        let known = (&raw const (*shared).held).read_volatile();
        let held = known.wrapping_sub((*shared).held_out).min(waited);
        (&raw mut (*shared).held_out).write_volatile(known);
        held
    }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn forget(slot: Slot) -> u64 {
    // SAFETY: as in event.
    unsafe { (*slot.shared()).uncharged = 0 };
    0
}

/// From here on waits are told from work. Where the kernel may not be asked they are not.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn open(slot: Slot) {
    // SAFETY: by the caller's promise.
    unsafe {
        let shared = slot.shared();
        (*shared).off = 0;
        (*shared).slow_ticks = 0;
        (*shared).terminal_wait = 0;
        (*shared).gap = (*header()).gap_least;
        read(slot);
        (*shared).last = ticks();
    }
}

/// Whether the call that `word` in its stub tells of is counted without its time.
pub fn is_untimed(word: u32) -> bool {
    let stopped = || flags() & shm::HEADER_TIMED != 0 && limits::is_frozen();
    word & shm::MODE_UNTIMED != 0 || stopped()
}

/// Whether this call of a function that is timed now and then is one of those; the hot path draws in the same way.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn is_turn(slot: Slot) -> bool {
    // SAFETY: by the caller's promise.
    unsafe {
        let private = slot.private();
        let left = (*private).countdown.wrapping_sub(1);
        (*private).countdown = left;
        if left as i64 >= 0 {
            return false;
        }
        let seed = (*private)
            .seed
            .wrapping_mul(shm::SEED_FACTOR)
            .wrapping_add(1);
        (*private).seed = seed;
        (*private).countdown = seed >> (64 - shm::SAMPLED_BITS);
        true
    }
}

/// What was off the processor until now is nobody's.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn read(slot: Slot) {
    // SAFETY: as in event.
    unsafe {
        let shared = slot.shared();
        (*shared).uncharged = 0;
        (*shared).held_out = (&raw const (*shared).held).read_volatile();
        if (*shared).gap == shm::NO_GAP {
            return;
        }
        match processor_time() {
            Some((at, cpu)) => {
                (&raw mut (*shared).read_cpu).write_volatile(cpu);
                (&raw mut (*shared).read_ticks).write_volatile(at);
            }
            None => (*shared).gap = shm::NO_GAP,
        }
    }
}

/// What is kept beside `node`; none for a root that found no room in the arena.
pub fn waits_of(node: *mut Node) -> Option<*mut shm::Waits> {
    let first = tree::folded(0) as u64;
    // SAFETY: the header is mapped.
    let (start, end) = unsafe {
        let waits = shm::waits_offset((*header()).nodes_offset, (*header()).nodes_len);
        let nodes = (*header()).nodes_offset + (*header()).nodes_len - (*header()).folded_offset;
        (region() + shm::PRIVATE_SIZE + waits, nodes)
    };
    let place = (node as u64).wrapping_sub(first);
    (place < end).then(|| (start + shm::waits_place(place)) as *mut shm::Waits)
}

/// # Safety
/// `node` must be a node of this thread's tree, or a folded one.
unsafe fn charge(node: *mut Node, waited: u64, terminal: bool) {
    if waited == 0 {
        return;
    }
    let Some(waits) = waits_of(node) else {
        return;
    };
    // SAFETY: every node has its waits. Folded ones are everybody's.
    unsafe {
        atomic32(&raw mut (*node).flags).fetch_or(shm::NODE_WAITED, Relaxed);
        atomic64(&raw mut (*waits).ticks).fetch_add(waited, Relaxed);
        atomic64(&raw mut (*waits).times).fetch_add(1, Relaxed);
        if terminal {
            atomic64(&raw mut (*waits).terminal).fetch_add(waited, Relaxed);
        }
    }
}

/// Moves what is kept beside `node` to a folded node.
///
/// # Safety
/// Both must be nodes, the first of this thread's tree.
pub unsafe fn move_waits(node: *mut Node, into: *mut Node) {
    let (Some(from), Some(to)) = (waits_of(node), waits_of(into)) else {
        return;
    };
    // SAFETY: every node has its waits. Folded ones are everybody's.
    unsafe {
        atomic64(&raw mut (*to).ticks).fetch_add((*from).ticks, Relaxed);
        atomic64(&raw mut (*to).times).fetch_add((*from).times, Relaxed);
        atomic64(&raw mut (*to).terminal).fetch_add((*from).terminal, Relaxed);
        atomic64(&raw mut (*to).untimed).fetch_add((*from).untimed, Relaxed);
        from.write_volatile(shm::Waits::default());
    }
}

fn to_ticks(ns: u64) -> u64 {
    // SAFETY: the header is mapped.
    let rate = unsafe { (*header()).ticks_per_ns };
    ((ns as u128 * rate as u128) >> 32) as u64
}

/// The running thread's processor time in nanoseconds, and the counter value that goes with it. Read again where the
/// thread was switched out meanwhile: nobody knows on which side of the reading.
fn processor_time() -> Option<(u64, u64)> {
    const TRIES: u32 = 3;
    let mut read = None;
    for _ in 0..TRIES {
        // SAFETY: the header is mapped.
        let least = unsafe { (&raw const (*header()).gap_least).read_volatile() };
        if least == shm::NO_GAP {
            return None;
        }
        let before = ticks();
        let ns = thread_time()?;
        let took = ticks().wrapping_sub(before);
        read = Some((before.wrapping_add(took / 2), ns));
        if (took as i64) < least {
            break;
        }
    }
    read
}

fn thread_time() -> Option<u64> {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let result = unsafe {
        let into = &raw mut time as u64;
        syscall(
            calls::CLOCK_GETTIME,
            calls::CLOCK_THREAD_CPUTIME_ID,
            into,
            0,
            0,
        )
    };
    // SAFETY: `time` is a local that the kernel has written to.
    let [seconds, nanoseconds] = unsafe { (&raw const time).read_volatile() };
    (result == 0).then_some(
        seconds
            .wrapping_mul(1_000_000_000)
            .wrapping_add(nanoseconds),
    )
}
