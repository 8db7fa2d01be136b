//! Looks at the threads' stacks, which somebody outside of the target takes: who that is, and what was seen, for those who read the target.
//!
//! The target itself never touches any of it. What was seen is written down in two places by turns, so that a reader has the one of the last
//! turn to itself until the turn after the next.

/// Part of the header; one process writes it, and all but `asked` is written by whoever looks.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// The process that looks, or answers in its place; 0: nobody does.
    pub looker: u32,
    /// How often it was asked to write down what it has seen by then, and the last asking that it has answered.
    pub asked: u32,
    pub answered: u32,
    /// How often it has written it down, last in the place of this number's low bit; 0: never.
    pub turn: u32,
    /// Of a thread's processor time, between two looks; 0: stacks are not looked at.
    pub period_ns: u64,
    /// The first place; the second is `LOOKS_ROOM` behind it.
    pub offset: u64,
    pub len: [u64; 2],
}

/// As much as can be written down. All of it is address space that is filled only when it is needed.
pub const LOOKS_ROOM: u64 = 64 << 20;
