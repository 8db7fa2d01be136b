//! Coroutines: what the probe of a switch is told, and the store of the activations that nobody runs, which lies behind the nodes.

use crate::PAGE;

/// In the word behind the call of a switch probe: the function's number, and what kind of exit it is.
pub const SWITCH_FUNCTION: u32 = (1 << 28) - 1;
/// It leaves by a jump, the return address already popped.
pub const SWITCH_JUMPS: u32 = 1 << 31;
/// It goes on further up the same stack.
pub const SWITCH_UNWINDS: u32 = 1 << 30;

/// One activation of a coroutine that nobody runs.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SuspendedFrame {
    pub key: u64,
    /// Time spent in itself so far.
    pub own: u64,
    /// The call site, where sites are told apart.
    pub site: u64,
    pub function: u32,
    /// `SUSPENDED_` bits.
    pub flags: u32,
}

/// The call is not timed.
pub const SUSPENDED_UNTIMED: u32 = 1;
/// A `SuspendedCall` is in the place before it.
pub const SUSPENDED_CALL: u32 = 2;
/// The call has its entry mark, see `record::MARKED_ELSEWHERE`.
pub const SUSPENDED_MARKED: u32 = 4;

/// What recording knows of a goroutine's activation. It takes the place of one among the frames.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SuspendedCall {
    /// That of the frame.
    pub key: u64,
    /// Counter value at its entry.
    pub entry: u64,
    /// Ticks in the slow path and on a processor so far.
    pub slow: u64,
    pub processor: u64,
}

/// How many activations a block holds.
pub const SUSPENDED_FRAMES: u64 = 30;

/// Part of a suspended stack: the outermost activations are in its first block. All but `next`, `count` and `frames` is of
/// the first block only.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct SuspendedBlock {
    /// Where the stack was left, in which process and when.
    pub sp: u64,
    pub suspended_at: u64,
    /// Sum of `own`.
    pub total: u64,
    pub pid: u32,
    /// Number of the next block plus one, in a stack or among the free ones.
    pub next: u32,
    pub count: u32,
    /// Number of the first block, plus one, of what rules have read of its calls; 0: nothing.
    pub values: u32,
    /// Innermost first.
    pub frames: [SuspendedFrame; SUSPENDED_FRAMES as usize],
    /// The request that the goroutine is at, and how deep in it that began; 0: none.
    pub request: u32,
    pub request_depth: u32,
}

/// How many bytes a block holds instead of frames.
pub const SUSPENDED_BYTES: u64 = SUSPENDED_FRAMES * 32;

pub const SUSPENDED_BLOCK_SIZE: u64 = 1024;
pub const SUSPENDED_BLOCKS: u64 = 1 << 16;
/// A word of the index is `(sp >> 3) << SUSPENDED_NUMBER_BITS`, and the number of the first block plus one.
pub const SUSPENDED_NUMBER_BITS: u32 = 20;
/// Words of the index.
pub const SUSPENDED_INDEX: u64 = 1 << 17;
/// Offsets in the store, which starts with the list of free blocks and how many were ever used.
pub const SUSPENDED_INDEX_OFFSET: u64 = PAGE;
pub const SUSPENDED_BLOCKS_OFFSET: u64 = SUSPENDED_INDEX_OFFSET + SUSPENDED_INDEX * 8;
/// The store lies behind the nodes. Only what was used of it exists.
pub const SUSPENDED_SIZE: u64 = SUSPENDED_BLOCKS_OFFSET + SUSPENDED_BLOCKS * SUSPENDED_BLOCK_SIZE;
