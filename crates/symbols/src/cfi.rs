//! The answer to one question about every code address: is the frame the one that `call` made?
//!
//! `CFA == rsp + 8` means that nothing has been pushed since the call: a jump out from there is a
//! tail call, a `ret` there returns to the caller. `frames` fills the table; the patch planner asks
//! it.

use std::sync::Arc;

/// For every code address covered by .eh_frame: is the canonical frame address `rsp + 8` there?
#[derive(Default)]
pub struct CfiTable {
    /// Each entry holds from its address to that of the next one; address order.
    pub(crate) rows: Vec<(u64, Option<bool>)>,
    /// Start, end and place in .eh_frame of each frame description, address order: `unwind` finds
    /// them by this.
    pub(crate) entries: Arc<Vec<FrameEntry>>,
    /// .eh_frame itself.
    pub(crate) eh_frame: Arc<[u8]>,
}

#[derive(Clone, Copy)]
pub(crate) struct FrameEntry {
    pub start: u64,
    pub end: u64,
    pub offset: usize,
}

impl CfiTable {
    /// `None`: no unwind information covers the address.
    pub fn cfa_is_rsp_plus_8(&self, addr: u64) -> Option<bool> {
        let next = self.rows.partition_point(|row| row.0 <= addr);
        self.rows[..next].last()?.1
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A table from `(start, end, cfa_is_rsp_plus_8)` ranges in address order, not overlapping.
    pub fn from_ranges(ranges: &[(u64, u64, bool)]) -> Self {
        let mut table = CfiTable::default();
        for &(start, end, plus_8) in ranges {
            table.open(start, plus_8);
            table.close(end);
        }
        table
    }

    /// From `addr` on the answer is `plus_8`. Addresses that go backwards (overlapping FDEs) are
    /// ignored.
    pub(crate) fn open(&mut self, addr: u64, plus_8: bool) {
        self.set(addr, Some(plus_8));
    }

    /// From `addr` on nothing is known.
    pub(crate) fn close(&mut self, addr: u64) {
        self.set(addr, None);
    }

    fn set(&mut self, addr: u64, value: Option<bool>) {
        match self.rows.last() {
            Some(&(last, _)) if last > addr => return,
            Some(&(last, _)) if last == addr => {
                self.rows.pop();
            }
            _ => {}
        }
        if self.rows.last().and_then(|row| row.1) != value || self.rows.is_empty() {
            self.rows.push((addr, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_hold_up_to_the_next_row_and_end_with_the_range() {
        let table = CfiTable::from_ranges(&[
            (10, 12, true),
            (12, 20, false),
            (20, 30, true),
            (40, 50, true),
        ]);
        let answers =
            [9, 10, 11, 12, 19, 20, 29, 30, 39, 40, 50].map(|a| table.cfa_is_rsp_plus_8(a));
        let (yes, no, unknown) = (Some(true), Some(false), None);
        assert_eq!(
            answers,
            [
                unknown, yes, yes, no, no, yes, yes, unknown, unknown, yes, unknown
            ]
        );
    }
}
