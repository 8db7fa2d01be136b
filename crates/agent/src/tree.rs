//! The calling-context tree of one thread: finding and making nodes.

use crate::memory::{Slot, atomic64, header, region};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_shm as shm;
use thalweg_shm::Node;

pub fn nodes_base() -> u64 {
    // SAFETY: the header is mapped.
    region() + shm::PRIVATE_SIZE + unsafe { (*header()).nodes_offset }
}

fn from_link(link: u32) -> *mut Node {
    if link == 0 { core::ptr::null_mut() } else { (nodes_base() + (link as u64 - 1) * shm::NODE_SIZE) as *mut Node }
}

fn to_link(node: *mut Node) -> u32 {
    ((node as u64 - nodes_base()) / shm::NODE_SIZE + 1) as u32
}

/// Nodes are taken from the arena in runs of this many bytes, each aligned to its size.
const RUN: u64 = shm::CHUNK_NODES * shm::NODE_SIZE;
const _: () = assert!(RUN == shm::PAGE && shm::EXTENSION_NODES < shm::CHUNK_NODES);

/// `count` fresh nodes in a row, less than a run of them, or null when the arena is full. Bumps before it hands out.
///
/// A handler may take nodes between any two instructions, so one word says it all: `chunk_next`, whose run ends at the
/// next multiple of its size; a multiple itself means that the run is used up.
fn allocate(slot: Slot, count: u64) -> *mut Node {
    let bytes = count * shm::NODE_SIZE;
    // SAFETY: the slot is this thread's own; its run of nodes lies in the arena.
    unsafe {
        let next = atomic64(&raw mut (*slot.shared()).chunk_next);
        loop {
            let at = next.load(Relaxed);
            if at % RUN != 0 && at % RUN + bytes <= RUN {
                if next.compare_exchange(at, at + bytes, Relaxed, Relaxed).is_ok() {
                    return at as *mut Node;
                }
                continue;
            }
            let used = atomic64(&raw mut (*header()).nodes_used);
            let limit = (*header()).nodes_len;
            let start = used.load(Relaxed);
            if start + RUN > limit {
                return core::ptr::null_mut();
            }
            if used.compare_exchange(start, start + RUN, Relaxed, Relaxed).is_ok() {
                let fresh = nodes_base() + start;
                next.store(fresh + bytes, Relaxed);
                return fresh as *mut Node;
            }
        }
    }
}

/// A new node that is nobody's child yet.
fn make(slot: Slot, function: u32, flags: u32) -> *mut Node {
    let node = allocate(slot, 1);
    if !node.is_null() {
        // SAFETY: `node` is fresh memory of the arena, zeroed by the kernel, and known to nobody else.
        unsafe { initialise(slot, node, function, flags) };
    }
    node
}

/// A thread's root. Where the arena is full it is one that no node can be linked to: everything of the thread is folded.
pub fn make_root(slot: Slot) -> *mut Node {
    let node = make(slot, shm::NO_FUNCTION, 0);
    if !node.is_null() {
        return node;
    }
    let spare = (slot.shared() as u64 + shm::SPARE_ROOT) as *mut Node;
    // SAFETY: that part of the slot's page is used by nothing else.
    unsafe { initialise(slot, spare, shm::NO_FUNCTION, 0) };
    spare
}

/// # Safety
/// `node` must be zeroed memory for a node that only the caller knows.
unsafe fn initialise(slot: Slot, node: *mut Node, function: u32, flags: u32) {
    // SAFETY: by the caller's promise.
    unsafe {
        // An empty child slot points to a node that no stub looks for.
        let root = match (*slot.shared()).root {
            0 => node as u64,
            root => root,
        };
        (*node).function = function;
        (*node).flags = flags;
        (*node).min = i64::MAX;
        for child in &mut (*node).children {
            *child = root;
        }
    }
}

/// The child of `parent` for `function`, made if there is none; null when the arena is full.
///
/// # Safety
/// `parent` must be a node of this thread's tree.
pub unsafe fn child(slot: Slot, parent: *mut Node, function: u32, flags: u32) -> *mut Node {
    // SAFETY: by the caller's promise all links lead to nodes of this thread's tree.
    unsafe {
        let extension = from_link((*parent).extension) as *mut u64;
        let wide = (function as u64 % shm::EXTENSION_SLOTS) as usize;
        let mut known = core::ptr::null_mut();
        if !extension.is_null() {
            let node = *extension.add(wide) as *mut Node;
            if !node.is_null() && (*node).function == function {
                known = node;
            }
        }
        let mut count = 0u32;
        if known.is_null() {
            let mut node = from_link((*parent).first_child);
            while !node.is_null() {
                if (*node).function == function {
                    known = node;
                    break;
                }
                count += 1;
                node = from_link((*node).sibling);
            }
        }
        if known.is_null() {
            known = make(slot, function, flags);
            if known.is_null() {
                return known;
            }
            (*known).parent = to_link(parent);
            // A handler may link another child in between; the loop takes it along.
            let head = crate::memory::atomic32(&raw mut (*parent).first_child);
            loop {
                let first = head.load(Relaxed);
                (*known).sibling = first;
                if head.compare_exchange(first, to_link(known), Relaxed, Relaxed).is_ok() {
                    break;
                }
            }
        }
        if !extension.is_null() {
            *extension.add(wide) = known as u64;
        } else if count >= shm::CHILD_SLOTS as u32 {
            let table = allocate(slot, shm::EXTENSION_NODES);
            if !table.is_null() {
                *(table as *mut u64).add(wide) = known as u64;
                (*parent).extension = to_link(table);
            }
        }
        (*parent).children[(function as u64 % shm::CHILD_SLOTS) as usize] = known as u64;
        known
    }
}

/// The process-wide node that stands for all contexts of `function` that found no room.
pub fn folded(function: u32) -> *mut Node {
    // SAFETY: the header is mapped; the table has a node for each function.
    let offset = unsafe { (*header()).folded_offset };
    (region() + shm::PRIVATE_SIZE + offset + function as u64 * shm::NODE_SIZE) as *mut Node
}
