//! Functions that are not patched but named by a pointer into the target: Python's code objects, Java's methods
//! (docs/design/managed.md). All of it lies at constant offsets from the region's start.
//!
//! ```text
//! DYNAMIC_OFFSET  head | sets of places | identities | records | text
//! ```

use crate::{Java, PAGE};

/// Numbers that dynamic functions can have; behind these one for all others of each kind.
pub const DYNAMIC_LIMIT: u64 = 65_536;
pub const DYNAMIC_RECORDS: u64 = DYNAMIC_LIMIT + KINDS;
/// Longest name and longest path that are kept, in bytes.
pub const DYNAMIC_TEXT_MOST: u64 = 512;

/// Offsets from the start of all this, and how much that is.
pub const DYNAMIC_PLACES: u64 = PAGE;
pub const DYNAMIC_IDENTITIES: u64 = DYNAMIC_PLACES + DYNAMIC_SETS * SET_SIZE;
pub const DYNAMIC_RECORDS_AT: u64 = DYNAMIC_IDENTITIES + DYNAMIC_IDENTITY_PLACES * 8;
pub const DYNAMIC_TEXT: u64 =
    DYNAMIC_RECORDS_AT + (DYNAMIC_RECORDS * DYNAMIC_RECORD_SIZE).next_multiple_of(PAGE);
pub const DYNAMIC_TEXT_LEN: u64 = 32 << 20;
pub const DYNAMIC_SIZE: u64 = DYNAMIC_TEXT + DYNAMIC_TEXT_LEN;

/// What a record is of; also its place among those that stand for all others.
pub const KIND_PYTHON: u16 = 0;
pub const KIND_JAVA: u16 = 1;
pub const KINDS: u64 = 2;

/// How much is used, and what the probes of each runtime must know.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DynamicHead {
    /// Written by the agent, atomically. May exceed `DYNAMIC_LIMIT`.
    pub records: u32,
    /// 1 + the number of the function that stands for all others of a kind; 0: none does yet.
    pub others: [u32; KINDS as usize],
    /// How often calls of Python functions were no longer told apart, because they went deep.
    pub python_deep: u32,
    /// 1 + the number of CPython's evaluator; 0: Python functions are not told apart.
    pub python_evaluator: u32,
    /// Not 0: the evaluator was switched off, so that its word stays 0 in every interpreter.
    pub python_off: u32,
    /// How often CPython itself has set that word to 0 amid functions that run: until the next call from C, calls between
    /// Python functions are inside of their callers.
    pub python_hidden: u32,
    pub unused: u32,
    /// Bytes of text; may exceed `DYNAMIC_TEXT_LEN`.
    pub text: u64,
    pub python: Python,
    pub java: Java,
}

/// What the evaluator's probe must know of CPython; written by the controller before any text is.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Python {
    /// `_PyEval_EvalFrameDefault`; 0: there is no Python, or it is left alone.
    pub evaluator: u64,
    /// The word that holds the first interpreter.
    pub head: u64,
    /// `PyCode_Type` and `PyUnicode_Type`: whatever is read as one of these is asked for its type first.
    pub code_type: u64,
    pub text_type: u64,
    /// Where a string's characters are if it is of ASCII alone, and if it is not.
    pub ascii: u64,
    pub wide: u64,
    /// Offsets: the interpreter of a thread state; the next interpreter and the evaluator of an interpreter; the code of a frame; of a code object.
    pub interpreter: u32,
    pub next: u32,
    pub eval: u32,
    pub frame_code: u32,
    pub name: u32,
    pub file: u32,
    pub line: u32,
    /// Hexadecimal: 0x030b02 for 3.11.2.
    pub release: u32,
}

/// A place of the hot table. The second word is written at once, and `check` depends on the pointer: of a place that two threads
/// have written half each neither thread's pointer is found.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DynamicPlace {
    /// 0: free.
    pub pointer: u64,
    pub check: u32,
    pub number: u32,
}

pub const DYNAMIC_PLACE_SIZE: u64 = 16;
pub const SET_PLACES: u64 = 4;
pub const SET_SIZE: u64 = SET_PLACES * DYNAMIC_PLACE_SIZE;
pub const SET_BITS: u32 = 15;
pub const DYNAMIC_SETS: u64 = 1 << SET_BITS;
/// How many sets are looked through, of which the probe knows the first.
pub const SETS_SEARCHED: u64 = 16;

/// The set that a pointer is looked for in. The probe's assembler does the same.
pub const fn dynamic_set(pointer: u64) -> u64 {
    pointer.wrapping_mul(DYNAMIC_FACTOR) >> (64 - SET_BITS)
}

pub const DYNAMIC_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Words of the table of identities: 1 + the number of a record in the low `IDENTITY_SHIFT` bits, the identity's other bits above.
pub const DYNAMIC_IDENTITY_PLACES: u64 = 1 << 17;
pub const IDENTITY_SHIFT: u32 = 20;
/// How many are looked at.
pub const IDENTITIES_SEARCHED: u64 = 64;

/// One dynamic function.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DynamicRecord {
    /// One of the `RECORD_` values; written last.
    pub state: u32,
    pub kind: u16,
    pub flags: u16,
    pub number: u32,
    pub line: u32,
    /// A hash of kind, name, file and line.
    pub identity: u64,
    /// As it was first seen.
    pub pointer: u64,
    /// Offsets in the text.
    pub name: u32,
    pub name_len: u32,
    pub file: u32,
    pub file_len: u32,
    pub reserved: [u64; 2],
}

pub const DYNAMIC_RECORD_SIZE: u64 = 64;

pub const RECORD_NONE: u32 = 0;
pub const RECORD_READY: u32 = 1;
/// Two threads have seen a function first at the same time: this one's number is not used.
pub const RECORD_ALIAS: u32 = 2;

/// `DynamicRecord::flags`: name or file were longer than what is kept of them.
pub const RECORD_CUT: u16 = 1;
/// It stands for all of its kind that found no room.
pub const RECORD_OTHERS: u16 = 2;
/// Java: a native method, a static one.
pub const RECORD_NATIVE: u16 = 4;
pub const RECORD_STATIC: u16 = 8;

const _: () = {
    use core::mem::size_of;
    assert!(size_of::<DynamicHead>() as u64 <= PAGE);
    assert!(size_of::<DynamicPlace>() as u64 == DYNAMIC_PLACE_SIZE);
    assert!(size_of::<DynamicRecord>() as u64 == DYNAMIC_RECORD_SIZE);
    assert!(DYNAMIC_RECORDS < 1 << IDENTITY_SHIFT);
    assert!(DYNAMIC_SIZE.is_multiple_of(PAGE));
    assert!(DYNAMIC_LIMIT * 2 <= DYNAMIC_SETS * SET_PLACES);
    assert!(DYNAMIC_LIMIT * 2 <= DYNAMIC_IDENTITY_PLACES);
};
