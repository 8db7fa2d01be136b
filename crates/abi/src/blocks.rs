//! Counters of basic blocks. Code counts by `inc qword ptr gs:[n]`, where `n` is the same for all threads, so the counters of the
//! threads lie interleaved, a page of each at a time, as their private pages do:
//!
//! ```text
//! | page 0 of thread 0, of thread 1, ... | a page between | page 1 of thread 0, of thread 1, ... |
//! ```
//!
//! The page between keeps the pages of one thread from falling on the same places of the processor's tables.
//!
//! All of it is within 2 GiB of the GS bases. The more counters, the fewer threads.

use crate::{PAGE, PRIVATE_SIZE, SLOTS};

/// In one page of a thread.
pub const COUNTERS_A_PAGE: u64 = PAGE / 8;
/// What an instruction with a displacement reaches, less what is kept free.
const REACH: u64 = (2 << 30) - (1 << 20);
/// Programs with many blocks do not have many threads.
const MOST_SLOTS: u64 = 1024;
const LEAST_SLOTS: u64 = 16;
/// For code that is loaded later.
const GROWTH_COUNTERS: u64 = 64 << 10;

/// Where they are. All 0: blocks are not counted.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// In the shared memory.
    pub offset: u64,
    /// How many counters there may be, and how many are given out.
    pub limit: u32,
    pub used: u32,
    /// How many threads have counters. One of them is nobody's: threads beyond that many count there, for nobody.
    pub slots: u32,
    pub reserved: u32,
}

impl Blocks {
    /// Room for so many counters at `offset`, and for what is loaded later; `None`: there are too many.
    pub fn new(offset: u64, counters: u64) -> Option<Blocks> {
        let reach = REACH.checked_sub(PRIVATE_SIZE + offset)?;
        let limit = counters.checked_add(GROWTH_COUNTERS.max(counters / 4))?;
        let limit = limit.next_multiple_of(COUNTERS_A_PAGE);
        let mut slots = MOST_SLOTS;
        loop {
            let blocks = Blocks {
                offset,
                limit: u32::try_from(limit).ok()?,
                used: u32::try_from(counters).ok()?,
                slots: slots as u32,
                reserved: 0,
            };
            if blocks.len() <= reach {
                return Some(blocks);
            }
            slots /= 2;
            if slots < LEAST_SLOTS {
                return None;
            }
        }
    }

    /// Bytes that all of it takes.
    pub fn len(&self) -> u64 {
        u64::from(self.limit).div_ceil(COUNTERS_A_PAGE) * self.stride()
    }

    pub fn is_empty(&self) -> bool {
        self.slots == 0
    }

    /// From a page of counters to the next one of the same thread.
    fn stride(&self) -> u64 {
        (u64::from(self.slots) + 1) * PAGE
    }

    /// What a thread's GS base is added to for this counter.
    pub fn displacement(&self, counter: u32) -> u64 {
        PRIVATE_SIZE
            + self.place(0, u64::from(counter) / COUNTERS_A_PAGE)
            + u64::from(counter) % COUNTERS_A_PAGE * 8
    }

    /// Where a page of a thread's counters is in the shared memory.
    pub fn place(&self, slot: u64, page: u64) -> u64 {
        self.offset + page * self.stride() + slot * PAGE
    }

    /// The slot of those who have none.
    pub fn nobodys(&self) -> Option<u64> {
        u64::from(self.slots).checked_sub(1)
    }

    /// How many threads may have slots at a time.
    pub fn threads(&self) -> u64 {
        self.nobodys().unwrap_or(SLOTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_threads_share_a_counter_and_all_are_in_reach() {
        for counters in [1, 512, 300_000, 2_000_000] {
            let offset = 40 << 20;
            let blocks = Blocks::new(offset, counters).unwrap();
            let last = blocks.limit - 1;
            let end = blocks.displacement(last) + 8 + (u64::from(blocks.slots) - 1) * PAGE;
            assert!(end < 1 << 31, "{counters}");
            assert!(end <= PRIVATE_SIZE + offset + blocks.len());
            // The last thread's first page lies before the first thread's second one.
            let threads = u64::from(blocks.slots);
            assert!(blocks.place(threads - 1, 0) + PAGE <= blocks.place(0, 1));
            assert_eq!(
                blocks.displacement(513),
                PRIVATE_SIZE + blocks.place(0, 1) + 8
            );
        }
        assert_eq!(Blocks::new(40 << 20, 1000).unwrap().slots, 1024);
        assert_eq!(Blocks::new(40 << 20, 1 << 26), None);
        assert_eq!(Blocks::default().threads(), SLOTS);
    }
}
