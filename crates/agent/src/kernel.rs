//! System calls where they are made: not the plain case.
//!
//! ```text
//! text         jmp stub                      right before the `syscall` instruction
//! stub         displaced instructions; call tw_kernel; nop dword [rax+FUNCTION]; jmp to the instruction
//! ```
//!
//! The context that is on top gets a child for the number (`shm::kernel`), which is counted and never entered.

use crate::memory::{Slot, atomic64, header, region, ticks};
use crate::tree::{self, Callee, Room};
use crate::{claim, clock, prune, slow};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::Node;
use thalweg_abi::kernel::{CUT_PLACES, CUTS, Cut, cut_key, cut_place};

/// A system call of `function`, if that is known; something that were called here would have its return address at `sp`.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_kernel(call: u32, sp: u64, function: u32) {
    let began = ticks();
    let Some(slot) = claim::current(sp) else {
        return;
    };
    // SAFETY: `slot` is this thread's own, so its frames and nodes are.
    unsafe {
        (*slot.shared()).slow_entries += 1;
        let now = clock::event(slot, began);
        slow::leave_behind(slot, sp, now);
        let caller = slow::caller_at(slot, sp);
        let mut node = (*caller).node as *mut Node;
        let is_missing = caller == slot.sentinel() || slow::function_of(node) != function;
        if function != shm::NO_FUNCTION && is_missing {
            // A fork child whose parent has left the function meanwhile, or an activation that was not seen to begin.
            node = child(slot, node, function, shm::NODE_AT_ATTACH, (sp, now));
        }
        let caller = match function {
            shm::NO_FUNCTION if !node.is_null() => slow::function_of(node),
            known => known,
        };
        node = child(slot, node, call, 0, (sp, now));
        if !node.is_null() {
            atomic64(&raw mut (*node).calls).fetch_add(1, Relaxed);
        } else if let Some(number) = shm::kernel::number(call) {
            count_cut(caller, number, 1);
        }
        clock::resume(slot, now, false);
    }
}

/// Counts system calls of a context that was cut or found no room: by function and number, for the whole process.
pub fn count_cut(function: u32, number: u32, calls: u64) {
    let table = (region() + shm::PRIVATE_SIZE + shm::CUT_SYSTEM_CALLS_OFFSET) as *mut Cut;
    let key = cut_key(function, number);
    for step in 0..CUT_PLACES {
        let place = (cut_place(key) + step) % CUTS;
        // SAFETY: the table has so many places; it is mapped as long as a probe can run, and only touched atomically.
        unsafe {
            let cut = table.add(place as usize);
            let held = atomic64(&raw mut (*cut).key).compare_exchange(0, key, Relaxed, Relaxed);
            if held.is_ok() || held == Err(key) {
                atomic64(&raw mut (*cut).calls).fetch_add(calls, Relaxed);
                return;
            }
        }
    }
    // SAFETY: the header is mapped.
    unsafe { atomic64(&raw mut (*header()).lost_system_calls).fetch_add(calls, Relaxed) };
}

/// The child of `parent`, which may be null, or null where there is no room.
///
/// # Safety
/// `slot` must be the running thread's, `parent` null or a node of its tree.
unsafe fn child(
    slot: Slot,
    parent: *mut Node,
    function: u32,
    flags: u32,
    (sp, now): (u64, u64),
) -> *mut Node {
    let callee = Callee { function, site: 0 };
    // SAFETY: by the caller `parent` is a node of this thread's tree or a folded one.
    unsafe {
        if parent.is_null() || slow::in_folded(parent) {
            return core::ptr::null_mut();
        }
        let node = tree::child(slot, parent, callee, flags, Room::Limited);
        if !node.is_null() {
            return node;
        }
        prune::make_room(slot, sp, now);
        tree::child(slot, parent, callee, flags, Room::All)
    }
}
