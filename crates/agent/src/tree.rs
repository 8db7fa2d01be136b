//! The calling-context tree of one thread: finding and making nodes, and taking them out again. What is taken out, and why,
//! is prune.rs's choice.

use crate::free;
use crate::memory::{Slot, atomic32, atomic64, flags, header, region};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::Node;

pub fn nodes_base() -> u64 {
    // SAFETY: the header is mapped.
    region() + shm::PRIVATE_SIZE + unsafe { (*header()).nodes_offset }
}

pub fn from_link(link: u32) -> *mut Node {
    if link == 0 {
        core::ptr::null_mut()
    } else {
        (nodes_base() + (link as u64 - 1) * shm::NODE_SIZE) as *mut Node
    }
}

pub fn to_link(node: *mut Node) -> u32 {
    ((node as u64 - nodes_base()) / shm::NODE_SIZE + 1) as u32
}

/// As opposed to a folded node, and to a root that found no room.
pub fn is_in_arena(node: *const Node) -> bool {
    // SAFETY: the header is mapped.
    (node as u64).wrapping_sub(nodes_base()) < unsafe { (*header()).nodes_len }
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

/// How much of the arena may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// As much as there may be before contexts are cut.
    Limited,
    All,
}

impl Room {
    /// # Safety
    /// The room must be one that was taken for this thread.
    unsafe fn bytes(self) -> u64 {
        // SAFETY: the header is mapped.
        unsafe {
            let all = (*header()).nodes_len;
            match self {
                Room::Limited => all.min((*header()).prune.limit),
                Room::All => all,
            }
        }
    }
}

/// `count` nodes in a row, less than a run of them, from the thread's own run; null when that has not so many left. Bumps
/// before it hands out.
///
/// A handler may take nodes between any two instructions, so one word says it all: `chunk_next`, whose run ends at the
/// next multiple of its size; a multiple itself means that the run is used up.
fn from_run(slot: Slot, count: u64) -> *mut Node {
    let bytes = count * shm::NODE_SIZE;
    // SAFETY: the slot is this thread's own; its run of nodes lies in the arena.
    unsafe {
        let next = atomic64(&raw mut (*slot.shared()).chunk_next);
        loop {
            let at = next.load(Relaxed);
            if at.is_multiple_of(RUN) || at % RUN + bytes > RUN {
                return core::ptr::null_mut();
            }
            if next
                .compare_exchange(at, at + bytes, Relaxed, Relaxed)
                .is_ok()
            {
                return at as *mut Node;
            }
        }
    }
}

/// The first `count` nodes of a fresh run, or null when so much of the arena is used. The rest is the thread's run from then on.
fn from_arena(slot: Slot, count: u64, room: Room) -> *mut Node {
    // SAFETY: as in from_run.
    unsafe {
        let used = atomic64(&raw mut (*header()).nodes_used);
        let limit = room.bytes();
        loop {
            let start = used.load(Relaxed);
            if start + RUN > limit {
                return core::ptr::null_mut();
            }
            if used
                .compare_exchange(start, start + RUN, Relaxed, Relaxed)
                .is_ok()
            {
                let fresh = nodes_base() + start;
                let next = atomic64(&raw mut (*slot.shared()).chunk_next);
                next.store(fresh + count * shm::NODE_SIZE, Relaxed);
                return fresh as *mut Node;
            }
        }
    }
}

/// An empty table of children, or null.
fn make_table(slot: Slot, room: Room) -> *mut u64 {
    let mut table = free::take_table();
    if table.is_null() {
        table = from_run(slot, shm::EXTENSION_NODES).cast();
    }
    if table.is_null() {
        table = from_arena(slot, shm::EXTENSION_NODES, room).cast();
    }
    table
}

/// A new node that is nobody's child yet, or null.
fn make(slot: Slot, callee: Callee, flags: u32, room: Room) -> *mut Node {
    let mut node = from_run(slot, 1);
    if node.is_null() {
        node = free::take_node();
    }
    if node.is_null() {
        node = from_arena(slot, 1, room);
    }
    if !node.is_null() {
        // SAFETY: `node` is known to nobody else.
        unsafe { initialise(slot, node, callee, flags) };
    }
    node
}

/// A thread's root. Where the arena is full it is one that no node can be linked to: everything of the thread is folded.
pub fn make_root(slot: Slot) -> *mut Node {
    let node = make(slot, NOBODY, 0, Room::All);
    if !node.is_null() {
        return node;
    }
    let spare = spare_root(slot);
    // SAFETY: that part of the slot's page is used by nothing else.
    unsafe { initialise(slot, spare, NOBODY, 0) };
    spare
}

fn spare_root(slot: Slot) -> *mut Node {
    (slot.shared() as u64 + shm::SPARE_ROOT) as *mut Node
}

/// # Safety
/// `node` must be memory for a node that only the caller knows. It may have been another context once.
unsafe fn initialise(slot: Slot, node: *mut Node, callee: Callee, flags: u32) {
    // SAFETY: by the caller's promise.
    unsafe {
        // An empty child slot points to a node that no stub looks for.
        let root = match (*slot.shared()).root {
            0 => node as u64,
            root => root,
        };
        (*node).calls = 0;
        (*node).cum = 0;
        (*node).base = 0;
        (*node).min = i64::MAX;
        (*node).max = 0;
        (*node).flags = flags;
        (*node).unwound = 0;
        (*node).first_child = 0;
        (*node).sibling = 0;
        (*node).extension = 0;
        for child in &mut (*node).children {
            *child = root;
        }
        if with_sites() {
            (*node).children[shm::SITE_SLOT] = callee.site;
        }
        (&raw mut (*node).function).write_volatile(callee.function);
    }
}

/// The child of `parent` for `callee`, made if there is none; null when there is no room.
///
/// # Safety
/// `parent` must be a node of this thread's tree.
pub unsafe fn child(
    slot: Slot,
    parent: *mut Node,
    callee: Callee,
    flags: u32,
    room: Room,
) -> *mut Node {
    // SAFETY: by the caller's promise all links lead to nodes of this thread's tree.
    unsafe {
        if parent == spare_root(slot) {
            return core::ptr::null_mut();
        }
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
            known = make(slot, callee, flags, room);
            if known.is_null() {
                return known;
            }
            link(parent, known);
            if !table.is_null() && !enter_in(slot, table, known) {
                atomic32(&raw mut (*parent).flags).fetch_or(shm::NODE_PARTLY_EXTENDED, Relaxed);
            }
        } else {
            atomic32(&raw mut (*parent).flags).fetch_add(1 << shm::NODE_MISSES_SHIFT, Relaxed);
        }
        let misses = (*parent).flags >> shm::NODE_MISSES_SHIFT;
        if table.is_null()
            && (misses > shm::MISSES_FOR_EXTENSION || walked > shm::MISSES_FOR_EXTENSION)
        {
            // A table is as large as sixteen contexts: where memory is short only those get one that need it most.
            let room = match misses > shm::MISSES_FOR_EXTENSION * 64 {
                true => Room::All,
                false => Room::Limited,
            };
            extend(slot, parent, room);
        }
        remember(slot, parent, known, misses);
        known
    }
}

/// The child of `parent` for `callee`, if it is where the hot path looks; else null.
///
/// # Safety
/// `parent` must be a node of this thread's tree, or a process-wide one.
pub unsafe fn known(parent: *mut Node, callee: Callee) -> *mut Node {
    // SAFETY: an empty place leads to the root; by the caller's promise all others lead to nodes of this tree.
    unsafe {
        let places: *mut u64 = (&raw mut (*parent).children).cast();
        for place in callee.places() {
            let node = places.add(place).read_volatile() as *mut Node;
            if Callee::of(node) == callee {
                return node;
            }
        }
        let table = from_link((*parent).extension) as *mut u64;
        match table.is_null() {
            true => core::ptr::null_mut(),
            false => find_in(table, callee),
        }
    }
}

/// The child among all, and how many were looked at.
///
/// # Safety
/// `parent` must be a node of this thread's tree.
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
///
/// # Safety
/// `parent` and `node` must be nodes of this thread's tree.
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
///
/// # Safety
/// `slot` must be the running thread's, `parent` and `node` nodes of its tree.
unsafe fn remember(slot: Slot, parent: *mut Node, node: *mut Node, turn: u32) {
    // SAFETY: as in child; both places are below CHILD_SLOTS.
    unsafe {
        let places: *mut u64 = (&raw mut (*parent).children).cast();
        let free = (*slot.shared()).root;
        let [first, second] = Callee::of(node).places();
        let place = if *places.add(first) == free {
            first
        } else if *places.add(second) == free || turn.is_multiple_of(2) {
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

/// # Safety
/// `table` must be a table of a node of this thread's tree.
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
///
/// # Safety
/// `slot` must be the running thread's, `table` and `node` of its tree.
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
                let deeper = make_table(slot, Room::All);
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
///
/// # Safety
/// `slot` must be the running thread's, `parent` a node of its tree.
unsafe fn extend(slot: Slot, parent: *mut Node, room: Room) {
    // SAFETY: as in child; the table is empty.
    unsafe {
        let table = make_table(slot, room);
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
            atomic32(&raw mut (*parent).flags).fetch_or(shm::NODE_PARTLY_EXTENDED, Relaxed);
        }
    }
}

/// Takes `node`, which has no children, out of its parent: `previous` is the sibling before it, or null. Nothing leads there afterwards.
///
/// # Safety
/// Both must be nodes of this thread's tree, and signals blocked; `node` must be on no shadow stack.
pub unsafe fn unlink(slot: Slot, parent: *mut Node, previous: *mut Node, node: *mut Node) {
    // SAFETY: by the caller's promise nobody else is at these nodes.
    unsafe {
        let rest = (*node).sibling;
        if previous.is_null() {
            (*parent).first_child = rest;
        } else {
            (*previous).sibling = rest;
        }
        let places = match with_sites() {
            true => shm::SITE_SLOT,
            false => shm::CHILD_SLOTS as usize,
        };
        for child in (*parent).children.iter_mut().take(places) {
            if *child == node as u64 {
                *child = (*slot.shared()).root;
            }
        }
        let mut table = from_link((*parent).extension) as *mut u64;
        let mut rest = Callee::of(node).bits();
        while !table.is_null() {
            let place = table.add((rest & 255) as usize);
            let word = place.read_volatile();
            if word == node as u64 {
                place.write_volatile(0);
            }
            if word & 1 == 0 {
                break;
            }
            table = (word - 1) as *mut u64;
            rest >>= 8;
        }
    }
}

/// Gives back what a node that is nobody's child any more has besides itself.
///
/// # Safety
/// As for `unlink`, which must have been done.
pub unsafe fn strip(node: *mut Node) {
    // SAFETY: by the caller's promise.
    unsafe {
        (*node).function = shm::NO_FUNCTION;
        let table = from_link((*node).extension) as *mut u64;
        (*node).extension = 0;
        if !table.is_null() {
            free::give_tables(table);
        }
    }
}

/// The process-wide node that stands for all contexts of `function` that found no room or were cut.
pub fn folded(function: u32) -> *mut Node {
    // SAFETY: the header is mapped; the table has a node for each function.
    let offset = unsafe { (*header()).folded_offset };
    (region() + shm::PRIVATE_SIZE + offset + function as u64 * shm::NODE_SIZE) as *mut Node
}
