//! Coroutines: what the probe of a switch is told, and the store of the activations that nobody runs, which lies behind the nodes.

use crate::PAGE;

/// In the word behind the call of a switch probe: the function's number, and what kind of exit it is.
pub const SWITCH_FUNCTION: u32 = (1 << 28) - 1;
/// It leaves by a jump, the return address already popped.
pub const SWITCH_JUMPS: u32 = 1 << 31;
/// It goes on further up the same stack.
pub const SWITCH_UNWINDS: u32 = 1 << 30;

/// One activation of a coroutine that nobody runs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ParkedFrame {
    pub key: u64,
    /// Time spent in itself so far.
    pub own: u64,
    /// The call site, where sites are told apart.
    pub site: u64,
    pub function: u32,
    /// `PARKED_` bits.
    pub flags: u32,
}

/// The call is not timed.
pub const PARKED_UNTIMED: u32 = 1;
/// A `ParkedCall` is in the place before it.
pub const PARKED_CALL: u32 = 2;
/// The call has its entry mark, see `record::TOLD`.
pub const PARKED_TOLD: u32 = 4;

/// What recording knows of a goroutine's activation. It takes the place of one among the frames.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ParkedCall {
    /// That of the frame.
    pub key: u64,
    /// Counter value at its entry.
    pub entry: u64,
    /// Ticks in the slow path and on a processor so far.
    pub slow: u64,
    pub processor: u64,
}

/// How many activations a block holds.
pub const PARKED_FRAMES: u64 = 30;

/// Part of a parked stack: the outermost activations are in its first block. All but `next`, `count` and `frames` is of
/// the first block only.
#[repr(C)]
pub struct ParkedBlock {
    /// Where the stack was left, in which process and when.
    pub sp: u64,
    pub parked_at: u64,
    /// Sum of `own`.
    pub total: u64,
    pub pid: u32,
    /// Number of the next block plus one, in a stack or among the free ones.
    pub next: u32,
    pub count: u32,
    /// Number of the first block, plus one, of what rules have read of its calls; 0: nothing.
    pub values: u32,
    /// Innermost first.
    pub frames: [ParkedFrame; PARKED_FRAMES as usize],
    /// The request that the goroutine is at, and how deep in it that began; 0: none.
    pub request: u32,
    pub request_depth: u32,
}

/// How many bytes a block holds instead of frames.
pub const PARKED_BYTES: u64 = PARKED_FRAMES * 32;

pub const PARKED_BLOCK_SIZE: u64 = 1024;
pub const PARKED_BLOCKS: u64 = 1 << 16;
/// A word of the index is `(sp >> 3) << PARKED_NUMBER_BITS`, and the number of the first block plus one.
pub const PARKED_NUMBER_BITS: u32 = 20;
/// Words of the index.
pub const PARKED_INDEX: u64 = 1 << 17;
/// Offsets in the store, which starts with the list of free blocks and how many were ever used.
pub const PARKED_INDEX_OFFSET: u64 = PAGE;
pub const PARKED_BLOCKS_OFFSET: u64 = PARKED_INDEX_OFFSET + PARKED_INDEX * 8;
/// The store lies behind the nodes. Only what was used of it exists.
pub const PARKED_SIZE: u64 = PARKED_BLOCKS_OFFSET + PARKED_BLOCKS * PARKED_BLOCK_SIZE;
