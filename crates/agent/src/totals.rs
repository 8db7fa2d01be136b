//! A program asks for its own figures: it calls a function that does nothing, at whose entry its thread comes here and fills in
//! what the function's argument points to. See `shm::totals`.
//!
//! All trees that are asked for are walked, on a stack that no C thread uses: that of the slow path of Go's probes.

use crate::memory::{Slot, flags, header, region};
use crate::tree;
use core::sync::atomic::Ordering::Acquire;
use thalweg_abi as shm;
use thalweg_abi::alloc::Allocated;
use thalweg_abi::totals::{self, Totals};
use thalweg_abi::{Frame, Node, Waits};

/// `now`: the thread's clock, 0 without one.
///
/// # Safety
/// `slot` must be the running thread's, and `into` where the program wants its answer.
pub unsafe fn answer(slot: Slot, kind: u32, into: *mut Totals, now: u64) {
    // SAFETY: by the caller's promise. A handler that asks meanwhile finds the walk's stack taken.
    unsafe {
        let busy = &raw mut (*slot.private()).go_busy;
        if into.is_null() || busy.read_volatile() != 0 {
            return;
        }
        busy.write_volatile(1);
        let mut walk = Walk {
            pending: (slot.agent_stack() - shm::AGENT_STACK) as *mut u32,
            count: 0,
            sums: Sums::default(),
            partial: false,
        };
        if kind == totals::OF_THREAD {
            walk.tree((*slot.shared()).root);
        } else {
            walk.process((*slot.shared()).pid);
            walk.sums.calls += (&raw const (*header()).folded_calls).read_volatile();
            walk.sums.calls += (&raw const (*header()).prune.pruned_calls).read_volatile();
        }
        // The time of contexts that were cut is with their functions, whichever thread's they were.
        walk.partial |= (&raw const (*header()).prune.pruned_contexts).read_volatile() != 0;
        walk.sums.base += open(slot, now);
        busy.write_volatile(0);
        let sums = &walk.sums;
        let hz = f64::from_bits((*header()).ticks_hz);
        let ns = |ticks: u64| (ticks as f64 * 1e9 / hz) as u64;
        into.write_unaligned(Totals {
            attached: 1,
            calls: sums.calls,
            base_ns: ns(sums.base),
            waited_ns: ns(sums.waited),
            alloc_calls: sums.alloc_calls,
            alloc_bytes: sums.alloc_bytes,
            free_calls: sums.free_calls,
            free_bytes: sums.free_bytes,
            live_bytes: sums.live_bytes,
            partial: walk.partial as u64,
        });
    }
}

#[derive(Default)]
struct Sums {
    calls: u64,
    base: u64,
    waited: u64,
    alloc_calls: u64,
    alloc_bytes: u64,
    free_calls: u64,
    free_bytes: u64,
    live_bytes: u64,
}

/// Own time so far of what the thread has not returned from: all of it since the outermost began, less what is in the tree.
unsafe fn open(slot: Slot, now: u64) -> u64 {
    // SAFETY: walks this thread's frames.
    unsafe {
        let first: *mut Frame = slot.sentinel().add(1);
        let top = slot.top();
        if flags() & shm::HEADER_TIMED == 0 || top < first || !slot.base().is_null() {
            return 0;
        }
        let mut own = now.wrapping_sub((*first).start);
        let mut frame = first;
        while frame <= top {
            own = own.wrapping_sub((*frame).child);
            frame = frame.add(1);
        }
        match (own as i64) < 0 {
            true => 0,
            false => own,
        }
    }
}

struct Walk {
    /// Links of siblings that are still to be seen.
    pending: *mut u32,
    count: u64,
    sums: Sums,
    partial: bool,
}

const MOST_PENDING: u64 = shm::AGENT_STACK / 4;

impl Walk {
    /// Threads that live and threads that have ended. What others do meanwhile may be in it or not.
    unsafe fn process(&mut self, pid: u32) {
        // SAFETY: slots below `next_slot` and entries below `ended` are in use or were.
        unsafe {
            let slots = (&raw const (*header()).next_slot).read_volatile();
            for index in 0..(slots as u64).min(shm::SLOTS) {
                let shared = Slot::number(index).shared();
                if (*shared).pid == pid {
                    self.tree((&raw const (*shared).root).read_volatile());
                }
            }
            let ended = (&raw const (*header()).ended).read_volatile();
            let first = (region() + shm::PRIVATE_SIZE + shm::ENDED_OFFSET) as *const shm::Ended;
            for index in 0..(ended as u64).min(shm::ENDED_LIMIT) {
                let account = first.add(index as usize);
                let root = crate::memory::atomic64(&raw const (*account).root as *mut u64);
                if (*account).pid == pid {
                    self.tree(root.load(Acquire));
                }
            }
        }
    }

    unsafe fn tree(&mut self, root: u64) {
        // SAFETY: only what lies in the arena is looked at, and no more nodes than it has.
        unsafe {
            let nodes = tree::nodes_base();
            // Also those that are made meanwhile: they stand before older ones.
            let limit = (*header()).nodes_len / shm::NODE_SIZE;
            if root.wrapping_sub(nodes) >= limit * shm::NODE_SIZE {
                return;
            }
            self.count = 0;
            self.push((*(root as *const Node)).first_child);
            let mut seen = 0;
            while self.count > 0 && seen < limit {
                self.count -= 1;
                let link = *self.pending.add(self.count as usize) as u64;
                if link == 0 || link > limit {
                    continue;
                }
                seen += 1;
                let node = (nodes + (link - 1) * shm::NODE_SIZE) as *const Node;
                self.push((&raw const (*node).sibling).read_volatile());
                self.add(node);
                self.push((&raw const (*node).first_child).read_volatile());
            }
        }
    }

    unsafe fn push(&mut self, link: u32) {
        if link == 0 {
            return;
        }
        if self.count == MOST_PENDING {
            self.partial = true;
            return;
        }
        // SAFETY: there is room.
        unsafe { *self.pending.add(self.count as usize) = link };
        self.count += 1;
    }

    unsafe fn add(&mut self, node: *const Node) {
        let place = (node as u64).wrapping_sub(tree::folded(0) as u64);
        let sums = &mut self.sums;
        // SAFETY: every node has its waits and, where allocation is counted, its figures.
        unsafe {
            if shm::kernel::number((*node).function).is_some() {
                return;
            }
            sums.calls += (*node).calls;
            sums.base += (*node).base;
            let header = header();
            let shared = region() + shm::PRIVATE_SIZE;
            if flags() & shm::HEADER_TIMED != 0 {
                let waits = shm::waits_offset((*header).nodes_offset, (*header).nodes_len);
                let waits = (shared + waits + shm::waits_place(place)) as *const Waits;
                sums.waited += (*waits).ticks;
            }
            if flags() & shm::HEADER_ALLOC != 0 {
                let figures = shm::alloc::allocated_offset((*header).alloc_offset) + place;
                let figures = (shared + figures) as *const Allocated;
                sums.alloc_calls += (*figures).calls;
                sums.alloc_bytes += (*figures).bytes;
                sums.free_calls += (*figures).frees;
                sums.free_bytes += (*figures).freed_bytes;
                sums.live_bytes = sums.live_bytes.wrapping_add((*figures).live_bytes);
            }
        }
    }
}
