//! What prune.rs has cut, until tree.rs needs it again: two lists of the whole process and its fork children, one of nodes
//! and one of tables of children. Lock-free, because any thread, and any handler, may be at them.
//!
//! A node is only ever used as a node again and a table as a table, so that whatever is read by way of an outdated link is
//! still the address of a node, of a table, or nothing.

use crate::memory::{atomic64, header};
use crate::tree::{from_link, to_link};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use thalweg_abi as shm;
use thalweg_abi::{Node, free_link, free_word};

/// A node that nobody knows, as it was left by `give_nodes`, or null.
pub fn take_node() -> *mut Node {
    // SAFETY: the list holds links of nodes of the arena, which stay mapped whoever takes them meanwhile.
    unsafe {
        let head = atomic64(&raw mut (*header()).prune.free_nodes);
        loop {
            let seen = head.load(Acquire);
            let node = from_link(free_link(seen));
            if node.is_null() {
                return node;
            }
            let rest = (&raw const (*node).sibling).read_volatile();
            if head
                .compare_exchange(seen, free_word(seen, rest), AcqRel, Relaxed)
                .is_ok()
            {
                return node;
            }
        }
    }
}

/// Gives nodes, chained by `sibling` from `first` to `last`.
///
/// # Safety
/// Nobody else may know them.
pub unsafe fn give_nodes(first: *mut Node, last: *mut Node) {
    // SAFETY: by the caller's promise.
    unsafe {
        let head = atomic64(&raw mut (*header()).prune.free_nodes);
        loop {
            let seen = head.load(Relaxed);
            (&raw mut (*last).sibling).write_volatile(free_link(seen));
            if head
                .compare_exchange(seen, free_word(seen, to_link(first)), AcqRel, Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }
}

/// An empty table of `shm::EXTENSION_SLOTS` words, or null. In the list the first word of a table leads to the next one, as a table's word
/// leads to a deeper table.
pub fn take_table() -> *mut u64 {
    // SAFETY: as in take_node.
    unsafe {
        let head = atomic64(&raw mut (*header()).prune.free_tables);
        loop {
            let seen = head.load(Acquire);
            let table = from_link(free_link(seen)) as *mut u64;
            if table.is_null() {
                return table;
            }
            let rest = match table.read_volatile() & !1 {
                0 => 0,
                next => to_link(next as *mut Node),
            };
            if head
                .compare_exchange(seen, free_word(seen, rest), AcqRel, Relaxed)
                .is_ok()
            {
                table.write_volatile(0);
                return table;
            }
        }
    }
}

/// Gives a table and those below it.
///
/// # Safety
/// Nobody else may know the table.
pub unsafe fn give_tables(table: *mut u64) {
    // SAFETY: by the caller's promise; tables are four deep at most.
    unsafe {
        for index in 0..shm::EXTENSION_SLOTS as usize {
            let word = table.add(index).read_volatile();
            table.add(index).write_volatile(0);
            if word & 1 != 0 {
                give_tables((word - 1) as *mut u64);
            }
        }
        let head = atomic64(&raw mut (*header()).prune.free_tables);
        loop {
            let seen = head.load(Relaxed);
            table.write_volatile(match from_link(free_link(seen)) as u64 {
                0 => 0,
                next => next | 1,
            });
            let changed = free_word(seen, to_link(table.cast()));
            if head
                .compare_exchange(seen, changed, AcqRel, Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }
}
