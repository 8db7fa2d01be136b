//! The calling-context tree of one thread: finding and making nodes.

use crate::memory::{Slot, atomic32, atomic64, flags, header, region};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_shm as shm;
use thalweg_shm::Node;

pub fn nodes_base() -> u64 {
    // SAFETY: the header is mapped.
    region() + shm::PRIVATE_SIZE + unsafe { (*header()).nodes_offset }
}

fn from_link(link: u32) -> *mut Node {
    if link == 0 {
        core::ptr::null_mut()
    } else {
        (nodes_base() + (link as u64 - 1) * shm::NODE_SIZE) as *mut Node
    }
}

fn to_link(node: *mut Node) -> u32 {
    ((node as u64 - nodes_base()) / shm::NODE_SIZE + 1) as u32
}

/// What tells the callees of one context apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Callee {
    pub function: u32,
    /// 0 where it is unknown, and where sites are not told apart.
    pub site: u64,
}

pub fn with_sites() -> bool {
    flags() & shm::HEADER_SITES != 0
}

impl Callee {
    /// # Safety
    /// `node` must be a node of a tree.
    pub unsafe fn of(node: *const Node) -> Callee {
        // SAFETY: by the caller's promise.
        unsafe {
            Callee {
                function: (*node).function,
                site: match with_sites() {
                    true => (*node).children[shm::SITE_SLOT],
                    false => 0,
                },
            }
        }
    }

    /// What it is filed under in tables. Different callees may have the same, if rarely.
    fn bits(self) -> u32 {
        match with_sites() {
            true => shm::site_hash(self.function, self.site),
            false => self.function,
        }
    }

    fn places(self) -> [usize; 2] {
        match with_sites() {
            true => shm::site_places(self.bits()),
            false => shm::child_places(self.function),
        }
    }
}

const NOBODY: Callee = Callee {
    function: shm::NO_FUNCTION,
    site: 0,
};

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
                if next
                    .compare_exchange(at, at + bytes, Relaxed, Relaxed)
                    .is_ok()
                {
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
            if used
                .compare_exchange(start, start + RUN, Relaxed, Relaxed)
                .is_ok()
            {
                let fresh = nodes_base() + start;
                next.store(fresh + bytes, Relaxed);
                return fresh as *mut Node;
            }
        }
    }
}

/// A new node that is nobody's child yet.
fn make(slot: Slot, callee: Callee, flags: u32) -> *mut Node {
    let node = allocate(slot, 1);
    if !node.is_null() {
        // SAFETY: `node` is fresh memory of the arena, zeroed by the kernel, and known to nobody else.
        unsafe { initialise(slot, node, callee, flags) };
    }
    node
}

/// A thread's root. Where the arena is full it is one that no node can be linked to: everything of the thread is folded.
pub fn make_root(slot: Slot) -> *mut Node {
    let node = make(slot, NOBODY, 0);
    if !node.is_null() {
        return node;
    }
    let spare = (slot.shared() as u64 + shm::SPARE_ROOT) as *mut Node;
    // SAFETY: that part of the slot's page is used by nothing else.
    unsafe { initialise(slot, spare, NOBODY, 0) };
    spare
}

/// # Safety
/// `node` must be zeroed memory for a node that only the caller knows.
unsafe fn initialise(slot: Slot, node: *mut Node, callee: Callee, flags: u32) {
    // SAFETY: by the caller's promise.
    unsafe {
        // An empty child slot points to a node that no stub looks for.
        let root = match (*slot.shared()).root {
            0 => node as u64,
            root => root,
        };
        (*node).function = callee.function;
        (*node).flags = flags;
        (*node).min = i64::MAX;
        for child in &mut (*node).children {
            *child = root;
        }
        if with_sites() {
            (*node).children[shm::SITE_SLOT] = callee.site;
        }
    }
}

/// The child of `parent` for `callee`, made if there is none; null when the arena is full.
///
/// # Safety
/// `parent` must be a node of this thread's tree.
pub unsafe fn child(slot: Slot, parent: *mut Node, callee: Callee, flags: u32) -> *mut Node {
    // SAFETY: by the caller's promise all links lead to nodes of this thread's tree.
    unsafe {
        let table = from_link((*parent).extension) as *mut u64;
        let mut walked = 0;
        let mut known = core::ptr::null_mut();
        if !table.is_null() {
            known = find_in(table, callee);
        }
        if known.is_null() && (table.is_null() || (*parent).flags & shm::NODE_PARTLY_EXTENDED != 0)
        {
            (known, walked) = among_siblings(parent, callee);
        }
        if known.is_null() {
            known = make(slot, callee, flags);
            if known.is_null() {
                return known;
            }
            link(parent, known);
            if !table.is_null() && !enter_in(slot, table, known) {
                (*parent).flags |= shm::NODE_PARTLY_EXTENDED;
            }
        } else {
            (*parent).flags = (*parent).flags.wrapping_add(1 << shm::NODE_MISSES_SHIFT);
        }
        let misses = (*parent).flags >> shm::NODE_MISSES_SHIFT;
        if table.is_null()
            && (misses > shm::MISSES_FOR_EXTENSION || walked > shm::MISSES_FOR_EXTENSION)
        {
            extend(slot, parent);
        }
        remember(slot, parent, known, misses);
        known
    }
}

/// The child among all, and how many were looked at.
unsafe fn among_siblings(parent: *mut Node, callee: Callee) -> (*mut Node, u32) {
    // SAFETY: as in child.
    unsafe {
        let mut node = from_link((*parent).first_child);
        let mut walked = 0;
        while !node.is_null() && Callee::of(node) != callee {
            walked += 1;
            node = from_link((*node).sibling);
        }
        (node, walked)
    }
}

/// Makes `node` the first child. A handler may link another one in between; the loop takes it along.
unsafe fn link(parent: *mut Node, node: *mut Node) {
    // SAFETY: as in child.
    unsafe {
        let head = atomic32(&raw mut (*parent).first_child);
        loop {
            let first = head.load(Relaxed);
            (*node).sibling = first;
            if head
                .compare_exchange(first, to_link(node), Relaxed, Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }
}

/// Puts `node` where the hot path looks first: into one of its two places, a free one if there is one.
unsafe fn remember(slot: Slot, parent: *mut Node, node: *mut Node, turn: u32) {
    // SAFETY: as in child; both places are below CHILD_SLOTS.
    unsafe {
        let places: *mut u64 = (&raw mut (*parent).children).cast();
        let free = (*slot.shared()).root;
        let [first, second] = Callee::of(node).places();
        let place = if *places.add(first) == free {
            first
        } else if *places.add(second) == free || turn % 2 == 0 {
            second
        } else {
            first
        };
        places.add(place).write_volatile(node as u64);
    }
}

// Children of wide nodes: tables of 256 words, indexed by the bytes of what a callee is filed under, from the lowest on. A word is a node,
// or another table with its lowest bit set, or 0. Every change is one compare-exchange: handlers may be doing the same.

const LAST_SHIFT: u32 = 24;

unsafe fn find_in(mut table: *mut u64, callee: Callee) -> *mut Node {
    // SAFETY: as in child; a table has 256 words.
    unsafe {
        let mut rest = callee.bits();
        loop {
            let word = table.add((rest & 255) as usize).read_volatile();
            if word & 1 == 0 {
                let node = word as *mut Node;
                return if !node.is_null() && Callee::of(node) == callee {
                    node
                } else {
                    core::ptr::null_mut()
                };
            }
            table = (word - 1) as *mut u64;
            rest >>= 8;
        }
    }
}

/// `false` when there was no memory for another table, or another callee is filed under the same bits.
unsafe fn enter_in(slot: Slot, mut table: *mut u64, node: *mut Node) -> bool {
    // SAFETY: as in child; bits that differ do so in one of their four bytes, so no table is deeper than that.
    unsafe {
        let callee = Callee::of(node);
        let bits = callee.bits();
        let mut shift = 0;
        loop {
            let place = atomic64(table.add(((bits >> shift) & 255) as usize));
            let word = place.load(Relaxed);
            if word == 0 {
                if place
                    .compare_exchange(0, node as u64, Relaxed, Relaxed)
                    .is_ok()
                {
                    return true;
                }
            } else if word & 1 != 0 {
                table = (word - 1) as *mut u64;
                shift += 8;
            } else {
                let other = Callee::of(word as *const Node);
                if other == callee {
                    return true;
                }
                if shift == LAST_SHIFT {
                    return false;
                }
                let deeper = allocate(slot, shm::EXTENSION_NODES) as *mut u64;
                if deeper.is_null() {
                    return false;
                }
                *deeper.add(((other.bits() >> (shift + 8)) & 255) as usize) = word;
                // If a handler was faster, the table is lost and the loop goes on with the handler's.
                let _ = place.compare_exchange(word, deeper as u64 | 1, Relaxed, Relaxed);
            }
        }
    }
}

/// Gives `parent` its table, with all its children in it.
unsafe fn extend(slot: Slot, parent: *mut Node) {
    // SAFETY: as in child; the table is fresh, zeroed memory.
    unsafe {
        let table = allocate(slot, shm::EXTENSION_NODES) as *mut u64;
        if table.is_null() {
            return;
        }
        let mut complete = true;
        let mut seen = 0;
        // Twice: a handler may have linked a child before the table was there to be entered in.
        for _ in 0..2 {
            let head = (&raw const (*parent).first_child).read_volatile();
            let mut link = head;
            while link != 0 && link != seen {
                let node = from_link(link);
                complete &= enter_in(slot, table, node);
                link = (*node).sibling;
            }
            seen = head;
            (&raw mut (*parent).extension).write_volatile(to_link(table.cast()));
        }
        if !complete {
            (*parent).flags |= shm::NODE_PARTLY_EXTENDED;
        }
    }
}

/// The process-wide node that stands for all contexts of `function` that found no room.
pub fn folded(function: u32) -> *mut Node {
    // SAFETY: the header is mapped; the table has a node for each function.
    let offset = unsafe { (*header()).folded_offset };
    (region() + shm::PRIVATE_SIZE + offset + function as u64 * shm::NODE_SIZE) as *mut Node
}
