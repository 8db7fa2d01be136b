//! System calls where they are made: not the plain case.
//!
//! ```text
//! text         jmp stub                      right before the `syscall` instruction
//! stub         displaced instructions; call tw_kernel; nop dword [rax+FUNCTION]; jmp to the instruction
//! ```
//!
//! The context that is on top gets a child for the number (`shm::kernel`), which is counted and never entered.

use crate::memory::{Slot, atomic64, header, ticks};
use crate::tree::{self, Callee, Room};
use crate::{claim, clock, slow, sweep};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_shm as shm;
use thalweg_shm::Node;

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
        node = child(slot, node, call, 0, (sp, now));
        let count = match node.is_null() {
            true => &raw mut (*header()).lost_system_calls,
            false => &raw mut (*node).calls,
        };
        atomic64(count).fetch_add(1, Relaxed);
        clock::resume(slot, now, false);
    }
}

/// The child of `parent`, which may be null, or null where there is no room.
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
        sweep::make_room(slot, sp, now);
        tree::child(slot, parent, callee, flags, Room::All)
    }
}
