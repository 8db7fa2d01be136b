//! The calling-context trees: nodes, where their callees are found, and the waits beside them.

use crate::{CHILD_SLOTS, NODE_SIZE};

/// One context: a function reached by one path of calls. Two cache lines: figures, then where its callees are.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Node {
    pub calls: u64,
    pub cum: u64,
    pub base: u64,
    /// Signed: a signal in the middle of a probe can make one activation's self time come out a little below zero.
    pub min: i64,
    pub max: i64,
    pub function: u32,
    pub flags: u32,
    /// How often it was left without a return: by an exception, longjmp or cancellation. Stays at its maximum.
    pub unwound: u32,
    /// Links are numbers of nodes in the arena, plus one; 0: none.
    pub first_child: u32,
    pub sibling: u32,
    /// Table of all children, `EXTENSION_SLOTS` words, for nodes with many.
    pub extension: u32,
    /// Addresses, in one of two places by function number; what was pushed out is in the extension and the sibling list.
    /// Where call sites are told apart, the last is no place but the node's own site: the return address of its
    /// calls, or for tail jumps the place in the stub that they are made from; 0: unknown.
    pub children: [u64; CHILD_SLOTS as usize],
}

pub const NODE_CALLS: usize = 0;
pub const NODE_CUM: usize = 8;
pub const NODE_BASE: usize = 16;
pub const NODE_MIN: usize = 24;
pub const NODE_MAX: usize = 32;
pub const NODE_FUNCTION: usize = 40;
pub const NODE_EXTENSION: usize = 60;
pub const NODE_CHILDREN: usize = 64;
pub const NODE_SITE: usize = NODE_CHILDREN + SITE_SLOT * 8;
pub const SITE_SLOT: usize = CHILD_SLOTS as usize - 1;

/// `Node::flags`: on the stack when thalweg attached.
pub const NODE_AT_ATTACH: u32 = 1;
/// `Node::flags`: memory ran out while children were entered in the extension; the sibling list has them all.
pub const NODE_PARTLY_EXTENDED: u32 = 2;
/// `Node::flags`: was running when its thread ended.
pub const NODE_OPEN_AT_END: u32 = 4;
/// `Node::flags`: some of its time was waited: only then are there waits beside it.
pub const NODE_WAITED: u32 = 8;
/// `Node::flags`: while its thread cuts contexts: it is active.
pub const NODE_HELD: u32 = 16;
/// `Node::flags`: it has allocated or freed: only then are there figures of that.
pub const NODE_ALLOCATED: u32 = 32;
/// `Node::flags`: some of its callees found no room or were cut. Their figures are in the nodes of
/// their functions that stand for all such contexts.
pub const NODE_LOST_CALLEES: u32 = 64;
/// `Node::flags`: from this bit on, how often a child was there but in none of its places.
pub const NODE_MISSES_SHIFT: u32 = 8;
/// That often, or that many children, and the node gets its extension.
pub const MISSES_FOR_EXTENSION: u32 = 16;

/// The two places of a child among its parent's `children`, by function number.
pub const fn child_places(function: u32) -> [usize; 2] {
    [
        (function as u64 % CHILD_SLOTS) as usize,
        ((function >> 3) as u64 % CHILD_SLOTS) as usize,
    ]
}

pub const SITE_FACTOR: u32 = 0x9e37_79b1;
pub const SITE_TURN: u32 = 20;

/// With `HEADER_SITES`: what a child is filed under. The probe's assembler does the same.
pub const fn site_hash(function: u32, site: u64) -> u32 {
    function
        .rotate_left(SITE_TURN)
        .wrapping_add(site as u32)
        .wrapping_mul(SITE_FACTOR)
}

/// With `HEADER_SITES`: the two places of a child, by its hash.
pub const fn site_places(hash: u32) -> [usize; 2] {
    [
        ((hash as u64 * SITE_SLOT as u64) >> 32) as usize,
        ((hash.rotate_left(16) as u64 * SITE_SLOT as u64) >> 32) as usize,
    ]
}

/// What a context has waited, beside its node: only pages of contexts that did wait exist. Ticks off the processor.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub ticks: u64,
    /// Part of `ticks`: for a terminal's input.
    pub terminal: u64,
    pub times: u64,
    /// Of the context's calls, those that were counted without a clock.
    pub untimed: u64,
}

pub const WAITS_SIZE: u64 = 32;

/// Where the waits of the node at `node` lie behind the start of the waits; both count from the first folded node on.
pub const fn waits_place(node: u64) -> u64 {
    node / NODE_SIZE * WAITS_SIZE
}
