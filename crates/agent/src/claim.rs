//! A thread's first event: it gets a slot of its own, and its GS base points there from then on.

use crate::memory::{
    Slot, atomic32, getpid, gettid, gs_base, header, region, set_gs_base, thread_pointer, ticks,
};
use crate::tree;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::compiler_fence;
use thalweg_shm as shm;

/// The slot of the running thread, claimed if need be; `None` when there are none left.
pub fn current(sp: u64) -> Option<Slot> {
    let inherited = Slot(gs_base());
    let owner = thread_pointer();
    // SAFETY: every thread's GS base points to a slot: the controller set those of the threads it saw, all others
    // have inherited theirs.
    unsafe {
        let recorded = (*inherited.private()).owner;
        if owner == 0 {
            // No thread pointer to tell threads apart by: such a thread goes uncounted.
            return None;
        }
        if recorded == owner {
            return Some(inherited);
        }
        let tid = gettid();
        if recorded != 0 && (*inherited.shared()).tid == tid {
            // The same thread with another thread pointer: a static program that has set up its own.
            (*inherited.private()).owner = owner;
            return Some(inherited);
        }
        let forked = recorded == 0;
        let next = atomic32(&raw mut (*header()).next_slot);
        if next.load(Relaxed) as u64 >= shm::SLOTS {
            atomic32(&raw mut (*header()).unslotted).fetch_add(1, Relaxed);
            return None;
        }
        let index = next.fetch_add(1, Relaxed);
        if index as u64 >= shm::SLOTS {
            return None;
        }
        let slot = Slot::number(index as u64);
        open(slot, inherited, owner, tid, forked, sp);
        Some(slot)
    }
}

/// # Safety
/// `slot` must be claimed by the running thread alone, `from` be the slot it inherited.
unsafe fn open(slot: Slot, from: Slot, owner: u64, tid: u32, forked: bool, sp: u64) {
    // SAFETY: all addresses are in the region, in pages of this slot alone.
    unsafe {
        let shared = slot.shared();
        (*shared).pid = getpid();
        (*shared).tid = tid;
        (*shared).start = ticks();
        (*shared).creator_slot = from.index() as u32 + 1;
        (*shared).creator_function = shm::NO_FUNCTION;
        (*shared).flags = if forked { shm::SLOT_FORKED } else { 0 };
        let root = tree::make_root(slot);
        let bottom = slot.sentinel();
        (*bottom).key = shm::frame_key((sp + shm::WINDOW / 2) & !7, shm::KEY_SENTINEL);
        (*bottom).node = root as u64;
        let private = slot.private();
        (*private).table = region() + shm::PRIVATE_SIZE + shm::TABLE_OFFSET;
        (*private).table_mask = (*header()).table_mask;
        (*private).nodes = tree::nodes_base();
        (*private).limit = bottom as u64 + shm::MAX_FRAMES * shm::FRAME_SIZE - slot.0;
        (*private).top = bottom as u64 - slot.0;
        (*shared).root = root as u64;
        // A handler that finds the owner in place believes the rest.
        compiler_fence(SeqCst);
        (&raw mut (*private).owner).write_volatile(owner);
        compiler_fence(SeqCst);
        set_gs_base(slot.0);
        if forked {
            inherit_stack(slot, from, sp);
        }
    }
}

/// A fork child returns into functions that its parent entered: they are its ancestors too, with no call counted.
///
/// # Safety
/// As for `open`.
unsafe fn inherit_stack(slot: Slot, from: Slot, sp: u64) {
    // SAFETY: the parent's frames are in shared memory. It may go on meanwhile and overwrite those that the child does
    // not need (below `sp`); each value is checked before it is used.
    unsafe {
        let nodes = tree::nodes_base();
        let end = nodes + (*header()).nodes_len;
        let mut above = from.sentinel();
        let mut top = slot.sentinel();
        let mut count = 0;
        loop {
            above = above.add(1);
            let key = (&raw const (*above).key).read_volatile();
            let node = (&raw const (*above).node).read_volatile();
            count += 1;
            if key == 0
                || shm::frame_sp(key) < sp
                || node < nodes
                || node >= end
                || count > shm::MAX_FRAMES
            {
                return;
            }
            let function = (*(node as *const shm::Node)).function;
            if function >= (*header()).functions {
                return;
            }
            let context = tree::child(
                slot,
                (*top).node as *mut shm::Node,
                function,
                shm::NODE_AT_ATTACH,
            );
            if context.is_null() {
                return;
            }
            top = top.add(1);
            (*top).key = key & !shm::KEY_FOLDED & !shm::KEY_PENDING;
            (*top).node = context as u64;
            (*top).start = ticks();
            (*top).child = 0;
            slot.set_top(top);
        }
    }
}
