//! A slot for a newcomer: one whose thread has ended, or a fresh one.
//!
//! ```text
//!   taken by A ---- A has ended ----> changing ----> taken by B
//!                                       |
//!            A's open frames are closed into its tree, then its account
//!            - goes to the table of ended threads, and B begins a tree; or
//!            - where that is full or the arena half full: B goes on with A's tree, exactly, but together with A
//! ```
//!
//! That a thread has ended is asked of the kernel, by its number, and only when another one begins. The slot's state has a
//! generation, so that of several newcomers one gets it, and only if it has not changed hands since they asked.
//! A number that was given to a new thread meanwhile looks alive: that slot is left alone.

use crate::claim::Newcomer;
use crate::memory::{Slot, atomic32, atomic64, flags, has_ended, header, region, ticks};
use crate::{record, slow, stacks};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use thalweg_abi as shm;

/// At how many slots a newcomer looks before it takes a fresh one: new threads cost the same however many threads live.
const LOOKS: u32 = 8;
/// The same when memory is short: a fresh slot would mean a tree more.
const LOOKS_IF_CROWDED: u32 = 256;
/// How long a slot rests, in ticks (a millisecond or two): a thread that the dead one created may not have had its first
/// event yet, and knows its creator by this slot.
const REST: u64 = 1 << 22;
/// How long newcomers go without once all slots were found taken: a search asks the kernel about every one of them.
const FULL_FOR: u64 = 1 << 25;

/// # Safety
/// To be called by the newcomer itself, with signals blocked.
pub unsafe fn find(newcomer: &Newcomer) -> Option<Slot> {
    // SAFETY: the header is mapped; the slots below `next_slot` are in use or were.
    unsafe {
        let now = ticks();
        let used = atomic32(&raw mut (*header()).next_slot)
            .load(Relaxed)
            .min((*header()).blocks.threads() as u32);
        let (looks, terms) = match is_crowded() {
            true => (
                LOOKS_IF_CROWDED,
                Terms {
                    rest: 0,
                    same_creator: true,
                },
            ),
            false => (
                LOOKS,
                Terms {
                    rest: REST,
                    same_creator: true,
                },
            ),
        };
        let looks = looks.min(used);
        let hand = atomic32(&raw mut (*header()).hand);
        for _ in 0..looks {
            let index = hand.fetch_add(1, Relaxed) as u64 % used.max(1) as u64;
            if let Some(slot) = take_over(Slot::number(index), newcomer, now, &terms) {
                return Some(slot);
            }
        }
        if let Some(slot) = fresh() {
            return Some(slot);
        }
        let any = Terms {
            rest: 0,
            same_creator: false,
        };
        for index in 0..(*header()).blocks.threads() {
            if let Some(slot) = take_over(Slot::number(index), newcomer, now, &any) {
                return Some(slot);
            }
        }
        (*header()).full_until = ticks() + FULL_FOR;
        None
    }
}

/// A number below `limit` that nobody else has, from a counter that stays there.
///
/// # Safety
/// `counter` must be a word of the region's header.
unsafe fn draw(counter: *mut u32, limit: u64) -> Option<u64> {
    // SAFETY: `counter` is a word of the header.
    unsafe {
        let drawn = atomic32(counter)
            .fetch_update(Relaxed, Relaxed, |n| ((n as u64) < limit).then_some(n + 1));
        drawn.ok().map(u64::from)
    }
}

/// # Safety
/// The region must be mapped.
unsafe fn fresh() -> Option<Slot> {
    // SAFETY: the header is mapped.
    unsafe { draw(&raw mut (*header()).next_slot, (*header()).blocks.threads()).map(Slot::number) }
}

/// Which slots are good enough.
struct Terms {
    /// Their threads ended this long ago.
    rest: u64,
    /// Trees are handed on only between threads that the same functions made.
    same_creator: bool,
}

/// The slot, if its thread has ended and it is good enough, emptied for the newcomer.
///
/// # Safety
/// `slot` must be a slot.
unsafe fn take_over(slot: Slot, newcomer: &Newcomer, now: u64, terms: &Terms) -> Option<Slot> {
    // SAFETY: what is read before the exchange may change; it is believed only if the exchange succeeds.
    unsafe {
        let shared = slot.shared();
        let state = atomic64(&raw mut (*shared).state);
        let seen = state.load(Acquire);
        if seen & shm::SLOT_STATE != shm::SLOT_TAKEN
            || (*shared).namespace != newcomer.namespace
            || (newcomer.forked && slot == newcomer.inherited)
            || !has_ended(shm::number((*shared).pid), (*shared).tid)
        {
            return None;
        }
        if (*shared).dead_since == 0 {
            (*shared).dead_since = now;
        }
        let rested = now.saturating_sub((*shared).dead_since);
        let has_same_creator = (*shared).creators == newcomer.creator.functions;
        match heir(slot, newcomer) {
            _ if rested < terms.rest => return None,
            None => return None,
            Some(Heir::Newcomer) if terms.same_creator && !has_same_creator => return None,
            Some(_) => {}
        }
        let changing = seen & !shm::SLOT_STATE | shm::SLOT_CHANGING;
        state
            .compare_exchange(seen, changing, AcqRel, Relaxed)
            .ok()?;
        (*slot.private()).owner = 0;
        (*slot.private()).go_machine = 0;
        (*slot.private()).goroutine = 0;
        let end = close(slot);
        // Decided again: the table may have filled up. Then the slot goes back, with its account.
        let kept = match heir(slot, newcomer) {
            Some(Heir::Table) => archive(slot, end),
            Some(Heir::Newcomer) => {
                (*shared).flags = (*shared).flags & shm::SLOT_FORKED | shm::SLOT_RECYCLED;
                true
            }
            None => false,
        };
        if !kept {
            state.store(seen, Release);
            return None;
        }
        Some(slot)
    }
}

/// What becomes of an ended thread's tree.
enum Heir {
    Table,
    Newcomer,
}

/// Whether half the room for trees is used: from then on ended threads share theirs.
///
/// # Safety
/// The region must be mapped.
unsafe fn is_crowded() -> bool {
    // SAFETY: the header is mapped.
    unsafe { (*header()).nodes_used >= (*header()).nodes_len / 2 }
}

/// `None`: the account can neither be moved nor be carried on, so the slot stays what it is.
///
/// # Safety
/// `slot` must be one that this thread has taken over.
unsafe fn heir(slot: Slot, newcomer: &Newcomer) -> Option<Heir> {
    // SAFETY: the header is mapped.
    unsafe {
        let shared = slot.shared();
        let same_process = (*shared).pid == newcomer.pid && !newcomer.forked;
        if same_process && (*shared).flags & shm::SLOT_RECYCLED != 0 && is_crowded() {
            return Some(Heir::Newcomer);
        }
        if ((*header()).ended as u64) < shm::ENDED_LIMIT {
            return Some(Heir::Table);
        }
        // Chosen threads are reported, new ones are not.
        let chosen =
            flags() & shm::HEADER_CHOSEN != 0 && (*shared).flags & shm::SLOT_AT_ATTACH != 0;
        (same_process && !chosen).then_some(Heir::Newcomer)
    }
}

/// Ends what the thread was still in when it ended, which as far as is known was at its last event. Gives that moment.
///
/// # Safety
/// `slot` must be one that this thread has taken over.
unsafe fn close(slot: Slot) -> u64 {
    // SAFETY: the slot is nobody else's, and the private page that goes with it in this process was the dead thread's or
    // nobody's. Frames in use follow each other from the sentinel on.
    unsafe {
        let shared = slot.shared();
        let timed = flags() & shm::HEADER_TIMED != 0;
        let mut end = match timed {
            true => (*shared).last,
            // One who asked after the slot's former owner may have written it late.
            false => (*shared).dead_since.max((*shared).start),
        };
        let bottom = slot.sentinel();
        let mut top = bottom;
        let limit = bottom.add(shm::MAX_FRAMES as usize);
        while top < limit && (*top.add(1)).key != 0 {
            top = top.add(1);
            if timed {
                end = end.max((*top).start);
            }
            let node = (*top).node as *mut shm::Node;
            if !slow::in_folded(node) {
                (*node).flags |= shm::NODE_OPEN_AT_END;
            }
        }
        slot.set_top(top);
        while slot.top() > bottom {
            if slot.top() == slot.base() {
                stacks::drop_base(slot, end);
                continue;
            }
            record::ends(slot, end, shm::record::HOW_ENDED, None);
            slow::pop(slot, end);
        }
        (*shared).last = end;
        end.wrapping_add((*shared).off)
    }
}

/// Moves the account to the table of ended threads and leaves the slot without one. `false`: the table is full.
///
/// A reader looks at the slots first and at the table then, and knows an account that it meets twice by its root.
///
/// # Safety
/// `slot` must be one that this thread has taken over.
unsafe fn archive(slot: Slot, end: u64) -> bool {
    // SAFETY: the entry is this thread's alone until its root is there.
    unsafe {
        let Some(index) = draw(&raw mut (*header()).ended, shm::ENDED_LIMIT) else {
            return false;
        };
        let at = region() + shm::PRIVATE_SIZE + shm::ENDED_OFFSET + index * shm::ENDED_SIZE;
        let entry = at as *mut shm::Ended;
        let shared = slot.shared();
        (*entry).start = (*shared).first_start;
        (*entry).end = end;
        (*entry).pid = (*shared).pid;
        (*entry).tid = (*shared).tid;
        (*entry).creator_pid = (*shared).creator_pid;
        (*entry).creator_tid = (*shared).creator_tid;
        (*entry).creators = (*shared).creators;
        (*entry).flags = (*shared).flags;
        (*entry).threads = (*shared).threads;
        (*entry).name = (*shared).name;
        atomic64(&raw mut (*entry).root).store((*shared).root, Release);
        (*shared).flags = match is_crowded() {
            true => shm::SLOT_RECYCLED,
            false => 0,
        };
        atomic64(&raw mut (*shared).root).store(0, Release);
        true
    }
}
