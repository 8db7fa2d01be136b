//! Pruning: what the agent, which cuts contexts out of trees that grow past their limit, and the controller, which sets the
//! limit and reads the trees, agree on. Parts of the header and of a thread's slot.
//!
//! ```text
//! a thread that needs a node and finds none:             a reader of the trees:
//!   active = 1                                           its word of `readers` = until when
//!   no reader's word lies in the future, else it folds     waits while a living thread has active = 1
//!   cuts, gives what it cut to the free lists              reads, looks whether its word is still its own, empties it
//!   active = 0
//! ```

/// Part of the header.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pruning {
    /// Bytes of the node arena from which on contexts are cut before more is handed out; beyond the arena's end: never.
    pub limit: u64,
    /// A context goes if its cum is less than this part of its caller's, in units of 2^-32.
    pub below: u64,
    /// Free nodes and free tables of children, see `free_word`.
    pub free_nodes: u64,
    pub free_tables: u64,
    /// What was cut so far: contexts, their calls; and in how many passes that took how many ticks.
    pub pruned_contexts: u64,
    pub pruned_calls: u64,
    pub passes: u64,
    pub ticks: u64,
    /// Until these counter values nobody cuts: somebody reads. Each reader uses the word that its thread's number gives.
    pub readers: [u64; READERS],
    /// `PRUNING_` bits: why nobody cuts any more. 0: nothing is in the way.
    pub off: u32,
    pub reserved: u32,
}

pub const READERS: usize = 8;

/// `Pruning::off`: a filter for system calls is about to be set, or was there at attach and forbids what a pruning pass asks.
pub const PRUNING_CONFINED: u32 = 1;
/// `Pruning::off`: threads leave for other stacks. A signal that interrupts a probe and goes elsewhere would not be seen.
pub const PRUNING_STACKS: u32 = 2;

/// Part of a thread's slot.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SlotPruning {
    /// So many contexts go without before the thread tries to cut some again.
    pub patience: u64,
    /// How often, one time after the other, something was in the way.
    pub hindered: u64,
    /// 1 while the thread cuts.
    pub active: u32,
    /// Link of the node that is being cut: no child any more, its figures not yet all where they go. Who is killed then
    /// leaves it so.
    pub node: u32,
}

/// Head of a free list: the link of its first element, and how often the list has changed, so that no stale head is believed.
pub const fn free_word(before: u64, link: u32) -> u64 {
    ((before >> 32).wrapping_add(1)) << 32 | link as u64
}

pub const fn free_link(word: u64) -> u32 {
    word as u32
}

/// `below` for a share of 1.
pub const WHOLE: u64 = 1 << 32;
