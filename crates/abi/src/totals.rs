//! What a program is told of its own figures, when it asks: see `include/thalweg.h` and `crates/self`.

/// The answer. The program has set all of it to 0, and that is what stays where nobody counts.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// 1: somebody counts.
    pub attached: u64,
    pub calls: u64,
    /// On a processor, in counted functions.
    pub base_ns: u64,
    pub waited_ns: u64,
    pub alloc_calls: u64,
    pub alloc_bytes: u64,
    pub free_calls: u64,
    pub free_bytes: u64,
    pub live_bytes: u64,
    /// 1: some contexts were too deep to be added up.
    pub partial: u64,
}

/// Kinds of questions, numbered on from `alloc::kind`: of the asking thread, of all threads of its process.
pub const OF_THREAD: u32 = 32;
pub const OF_PROCESS: u32 = 33;
