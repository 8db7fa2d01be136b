//! What allocation leaves in the shared memory, with `HEADER_ALLOC`: figures beside every context, and who has which block.
//!
//! ```text
//! Header::alloc_offset
//! |-- head page --|-- `Allocated` of every context, as far from the first as its node is --|-- `Block` x BLOCKS --|
//! ```
//!
//! All of it is address space of which only touched pages exist. Blocks that lie close together in the target have their
//! entries close together, so that the table grows with the heap and not with the number of places where it is touched.

use crate::{Header, Layout, NODE_SIZE, PAGE};

/// First page of the area; written by the agent, atomically.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct AllocHead {
    /// Blocks that found no place in the table, or whose address was not seen: allocated, but not followed.
    pub untracked: u64,
    /// Frees of blocks that are not in the table: from before the attach, from before a fork, or untracked.
    pub unknown_frees: u64,
    /// Requests that were refused.
    pub failed: u64,
}

/// What one context has allocated and freed itself: the one that called the allocator.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    pub calls: u64,
    pub bytes: u64,
    pub frees: u64,
    pub freed_bytes: u64,
    /// Of what was allocated here, what nobody has freed. Changed by whoever frees.
    pub live_bytes: u64,
    pub live_objects: u64,
    /// Anonymous memory from the kernel.
    pub maps: u64,
    pub mapped_bytes: u64,
    pub unmaps: u64,
    pub unmapped_bytes: u64,
    pub reserved: [u64; 6],
}

/// As long as a node, so that the place of one tells the place of the other.
pub const ALLOCATED_SIZE: u64 = NODE_SIZE;

/// A block that somebody has.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Block {
    /// `block_key`; 0: free, `BLOCK_BUSY`: being written or taken.
    pub key: u64,
    pub bytes: u64,
    /// Of the context that allocated it: how far from the first folded node.
    pub node: u64,
}

pub const BLOCK_SIZE: u64 = 24;
pub const BLOCK_BUSY: u64 = 1;
/// Places for blocks: as many as a GiB has of the smallest.
pub const BLOCKS: u64 = 1 << 26;
/// A block is in one of so many places in a row.
pub const BLOCK_PLACES: u64 = 16;

/// Blocks are at least this far apart, as a rule.
const BLOCK_STEP: u32 = 4;
const ADDRESS_BITS: u32 = 44;
const PROCESS_BITS: u32 = 19;

/// Tells blocks of different processes apart, and blocks from mappings. Never 0 or `BLOCK_BUSY`.
pub const fn block_key(address: u64, pid: u32, mapping: bool) -> u64 {
    // Those of another PID namespace are spread among the others.
    let mixed = pid ^ crate::namespace(pid).wrapping_mul(0x9e37);
    let process = (mixed as u64) & ((1 << PROCESS_BITS) - 1);
    (address >> 3) & ((1 << ADDRESS_BITS) - 1)
        | process << ADDRESS_BITS
        | (mapping as u64) << (ADDRESS_BITS + PROCESS_BITS)
}

/// The first of the places of a block. Those of one GiB are in the order of their addresses, blocks at odd multiples of 8 (which
/// jemalloc and tcmalloc have for up to 8 bytes) by themselves in the other half of the table.
pub const fn block_place(key: u64) -> u64 {
    let step = key >> (BLOCK_STEP - 3);
    let half = (key & 1) * (BLOCKS / 2);
    let rest = key >> (30 - 3);
    let turn = rest.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 38;
    step.wrapping_add(half).wrapping_add(turn) % BLOCKS
}

/// How a function is told what to allocate or free, and how it answers. The number is in its stub.
pub mod kind {
    /// The size is the first argument, the answer is the block: `malloc`.
    pub const SIZE: u32 = 1;
    /// The product of the first two: `calloc`.
    pub const PRODUCT: u32 = 2;
    /// The second: `memalign`.
    pub const SECOND: u32 = 3;
    /// The third; the block goes where the first points: `posix_memalign`.
    pub const POSIX: u32 = 4;
    /// Block and size: `realloc`.
    pub const RESIZE: u32 = 5;
    /// Block and two factors: `reallocarray`.
    pub const RESIZE_PRODUCT: u32 = 6;
    /// Block, old size, alignment, size: Rust's.
    pub const RESIZE_FOURTH: u32 = 7;
    /// The block is the first argument.
    pub const FREE: u32 = 8;
    /// `mmap` and `munmap`.
    pub const MAP: u32 = 9;
    pub const UNMAP: u32 = 10;
    /// Address, old length, new length; the answer is the address: `mremap`.
    pub const REMAP: u32 = 11;
}

impl Layout {
    /// With room for what is allocated.
    pub fn with_alloc(mut self) -> Layout {
        self.alloc_offset = self.shared_size;
        let blocks = blocks_offset(
            self.alloc_offset,
            self.folded_offset,
            self.nodes_offset + self.nodes_len,
        );
        let all = (BLOCKS + BLOCK_PLACES) * BLOCK_SIZE;
        self.shared_size = blocks + all.next_multiple_of(PAGE);
        self
    }
}

/// Where the figures of the first folded node lie.
pub const fn allocated_offset(alloc_offset: u64) -> u64 {
    alloc_offset + PAGE
}

/// Where the blocks lie, given where nodes begin and end.
pub const fn blocks_offset(alloc_offset: u64, folded_offset: u64, nodes_end: u64) -> u64 {
    allocated_offset(alloc_offset) + (nodes_end - folded_offset)
}

impl Header {
    pub fn has_alloc(&self) -> bool {
        self.flags & crate::HEADER_ALLOC != 0 && self.alloc_offset != 0
    }
}

const _: () = {
    use core::mem::size_of;
    assert!(size_of::<Allocated>() as u64 == ALLOCATED_SIZE);
    assert!(size_of::<Block>() as u64 == BLOCK_SIZE);
    assert!(BLOCKS.is_power_of_two());
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;
    use std::vec::Vec;

    /// Of blocks `apart` bytes apart, those that find no place among others of theirs.
    fn homeless(apart: u64, blocks: u64) -> u64 {
        let mut taken = HashSet::new();
        let mut homeless = 0;
        for block in 0..blocks {
            let key = block_key(0x7f12_3456_0000 + block * apart, 4242, false);
            let first = block_place(key);
            let places: Vec<u64> = (first..first + BLOCK_PLACES).collect();
            match places.iter().find(|place| !taken.contains(*place)) {
                Some(place) => drop(taken.insert(*place)),
                None => homeless += 1,
            }
        }
        homeless
    }

    #[test]
    fn blocks_of_all_sizes_side_by_side_have_places() {
        for apart in [8, 16, 24, 32, 40, 48, 64, 80, 4096] {
            assert_eq!(homeless(apart, 200_000), 0, "{apart} bytes apart");
        }
    }
}
