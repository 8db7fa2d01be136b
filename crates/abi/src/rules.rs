//! Which calls are recorded: tables that the controller fills and changes while threads read them.
//!
//! ```text
//! rules | head, counters | filters | two bytes per function | list: a word per function | programs |
//! ```
//!
//! The hot path looks at the first byte of a function at its entry: 0 and nothing of it is wanted, `ASK` and the slow path is
//! asked, `WATCH` and its end is looked at, `SAVE` and its arguments are saved for then, anything else and a filter decides which of these it is. At an end that is looked at the second
//! byte says the same, unless the filter at the entry has named another. The slow path finds the rules of a
//! function through its list. Lists and programs are written to fresh room before anything names them and stay as they are
//! until the target is detached, so a change is a store of one word and then of two bytes, and a thread in
//! the middle of an old list goes on with it.

use crate::{PAGE, record};

/// First page.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Head {
    /// The least duration, in ticks, that any rule asks for: `u64::MAX` where none does.
    pub least: u64,
    /// The last request that was begun.
    pub requests: u64,
    /// Words of each thread's record area, a power of two.
    pub area_words: u64,
    /// 1: where a record area is full the oldest records go.
    pub overwrite: u64,
    /// Bytes of the programs in use.
    pub programs_used: u64,
    /// 1: the target may read its own memory by `process_vm_readv`.
    pub may_read: u64,
    /// Where the C library keeps `errno`, from the thread pointer on; 0: unknown.
    pub errno_offset: u64,
    pub ticks_per_second: u64,
    /// Sets of functions, a bit each: how many, and where among the programs their offsets and lengths are, in bytes.
    pub sets: u64,
    pub sets_offset: u64,
    /// Where among the programs it says what the rules are, for whoever reads the records.
    pub about_offset: u64,
    pub about_len: u64,
    /// Filters below it are in use or were, and stay as they are: those that a byte can name, and those that others go on to.
    pub filters_used: u64,
    pub steps_used: u64,
}

pub const MAX_RULES: u64 = 1024;

/// What all threads count of one rule.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Counter {
    /// Calls of its functions that its conditions were asked about.
    pub asked: u64,
    pub kept: u64,
    /// Where its rate is limited: the second that is counted, and how many were kept in it.
    pub second: u64,
    pub in_second: u64,
    /// Calls that were not asked about because what had been read of others filled its room.
    pub unread: u64,
    pub reserved: [u64; 3],
}

pub const COUNTER_SIZE: u64 = 64;

/// One rule of one function. A list is their number in a word, then they follow.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// From 1 on; 0 for what is no rule: the root of a request.
    pub rule: u32,
    /// `ENTRY_` bits.
    pub flags: u32,
    /// What the call has to take at least, in ticks, waits included.
    pub least: u64,
    /// Where its program is, in units of 8 bytes, and its length; 0: the duration decides alone.
    pub program: u32,
    pub program_len: u32,
}

pub const ENTRY_SIZE: u64 = 24;
/// The program is asked when the call begins, and again when it ends.
pub const ENTRY_AT_ENTRY: u32 = 1;
/// Every end of the call is looked at, however short it was, though nothing is asked when it begins.
pub const ENTRY_AT_EXIT: u32 = 2;
/// The call begins a request, unless the thread is at one.
pub const ENTRY_ROOT: u32 = 4;
/// The program reads what is being thrown.
pub const ENTRY_THROWS: u32 = 8;
/// The function goes on with what was thrown.
pub const ENTRY_RETHROWS: u32 = 16;
/// The program asks for arguments, but only for what registers hold, and nothing is decided before the end: where the hot path has saved them it is asked then.
pub const ENTRY_DEFERRED: u32 = 32;

/// One comparison of the hot path: `((word & mask) << cut) - low <= span`, without a sign and modulo 2^64, which is every comparison of
/// neighbouring bits of a word with a constant; floats are brought into the order of their bits first. With `FILTER_TWO` it is compared with
/// another word. Then it goes on to another, or it is decided. Filters only ever spare the slow path: whom they let through is asked.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub low: u64,
    pub span: u64,
    pub mask: u64,
    /// Where the probe has put the word, from its stack pointer on. What is above 0 is the caller's.
    pub place: i16,
    pub cut: u8,
    /// `FILTER_` bits.
    pub kind: u8,
    /// What comes next if it is so, and if it is not: `GO_ON`, `ASK`, `WATCH`, `SAVE`, both of these, `SAVE_ALL`, another filter, or from `NAMES_EXIT` on
    /// which byte decides at the end of this call, in place of its function's.
    pub met: u16,
    pub other: u16,
}

pub const FILTER_SIZE: u64 = 32;
/// Those that a function's byte can name come first.
pub const FILTERS: u64 = 4096;
pub const FIRST_STEP: u16 = 256;
/// Nobody wants to hear of it.
pub const GO_ON: u8 = 0;
/// The slow path is asked.
pub const ASK: u8 = 1;
/// The end of the call is looked at.
pub const WATCH: u8 = 2;
/// The arguments are saved, of which those in vector registers take longer: see `record::Saved`.
pub const SAVE: u8 = 3;
pub const SAVE_AND_WATCH: u8 = 4;
pub const SAVE_ALL: u8 = 7;
pub const SAVE_ALL_AND_WATCH: u8 = 8;
pub const FIRST_FILTER: u8 = 9;
/// The end of the call is looked at with the filter whose number is in the low byte; the next has `record::ARGUMENTS_SAVED` and `FLOATS_SAVED`.
pub const NAMES_EXIT: u16 = FILTERS as u16;

/// The word is a float.
pub const FILTER_FLOAT: u8 = 1;
/// Set where a function's byte leads: one of its comparisons needs vector registers, or errno.
pub const FILTER_NEEDS_FLOATS: u8 = 2;
pub const FILTER_NEEDS_ERRNO: u8 = 4;
/// The same for what the call took.
pub const FILTER_NEEDS_TIME: u8 = 8;
/// The word is at most the one whose place the low bits of `low` are: without a sign, with one, or it is the same; `FILTER_NARROW` tells
/// that the other, too, is shifted up by 32 first.
pub const FILTER_TWO: u8 = 16;
pub const FILTER_NARROW: u8 = 32;
pub const FILTER_SIGNED: u8 = 64;
pub const FILTER_EQUAL: u8 = 128;

/// Where the entry probe has put the integer arguments, rdi to r9, and the low halves of the vector registers, from which on they lie downwards.
pub const FILTER_REGISTERS: [i16; 6] = [-48, -32, -16, -24, -56, -64];
pub const FILTER_VECTORS: i16 = -72;
/// Where its return address is.
pub const FILTER_STACK: i16 = 8;
/// Where the exit probe has put rax and rdx, errno, and what the call took in ticks; vectors as above.
pub const FILTER_RESULTS: [i16; 2] = [-8, -16];
pub const FILTER_ERRNO: i16 = -88;
pub const FILTER_TIME: i16 = -96;

pub const COUNTERS_OFFSET: u64 = PAGE;
/// Directly before the bytes, so that the hot path finds both by one address.
pub const FILTERS_OFFSET: u64 = COUNTERS_OFFSET + MAX_RULES * COUNTER_SIZE;
pub const TABLE_OFFSET: u64 = FILTERS_OFFSET + FILTERS * FILTER_SIZE;
/// For its entry and for its exit.
pub const FUNCTION_BYTES: u64 = 2;
pub const PROGRAMS_LEN: u64 = 64 << 20;

const fn page_up(n: u64) -> u64 {
    n.next_multiple_of(PAGE)
}

/// Where the lists of functions lie behind the start of the rules: a word of 4 bytes each, the offset of the list among the
/// programs in units of 8 bytes; 0: none.
pub const fn lists_offset(functions_limit: u64) -> u64 {
    TABLE_OFFSET + page_up(functions_limit * FUNCTION_BYTES)
}

pub const fn programs_offset(functions_limit: u64) -> u64 {
    lists_offset(functions_limit) + page_up(functions_limit * 4)
}

pub const fn len(functions_limit: u64) -> u64 {
    programs_offset(functions_limit) + PROGRAMS_LEN
}

const _: () = {
    use core::mem::size_of;
    assert!(size_of::<Head>() as u64 <= PAGE);
    assert!(size_of::<Counter>() as u64 == COUNTER_SIZE);
    assert!(size_of::<Entry>() as u64 == ENTRY_SIZE);
    // From what is said here to what is noted beside the frame is one step.
    const SAVED: u64 = record::ARGUMENTS_SAVED;
    const ALL: u64 = SAVED | record::FLOATS_SAVED;
    assert!(SAVE as u64 - 1 == SAVED && SAVE_AND_WATCH as u64 - 1 == SAVED | record::WATCHED);
    assert!(SAVE_ALL as u64 - 1 == ALL && SAVE_ALL_AND_WATCH as u64 - 1 == ALL | record::WATCHED);
    assert!(size_of::<Filter>() as u64 == FILTER_SIZE && FIRST_STEP == 1 << u8::BITS);
    assert!(TABLE_OFFSET.is_multiple_of(PAGE));
};
