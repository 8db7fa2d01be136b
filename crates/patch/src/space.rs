//! Which bytes of the text are whose: padding that is free, bytes that patches changed, bytes that died in windows.

use crate::image::Image;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Byte {
    /// Code or data: not ours.
    Used,
    /// Padding that nobody executes, reads or jumps to.
    Free,
    /// Displaced by a window, and no part of its patch: never executed while the window's patch stands.
    Dead,
    /// Changed by a patch.
    Taken,
}

pub(crate) struct Space {
    sections: Vec<(u64, Vec<Byte>)>,
}

/// A jump with a 32-bit displacement.
pub(crate) const JUMP: u64 = 5;
/// A jump with an 8-bit displacement.
pub(crate) const SHORT_JUMP: u64 = 2;

/// `[start, start + len)` lies in one page, so that one write changes all of it or nothing.
pub fn in_one_page(start: u64, len: u64) -> bool {
    start >> 12 == (start + len - 1) >> 12
}

impl Space {
    pub fn new(image: &Image) -> Self {
        let sections = image
            .code
            .iter()
            .map(|&i| &image.module.sections[i])
            .map(|s| (s.vaddr, vec![Byte::Used; s.bytes.len()]))
            .collect();
        Space { sections }
    }

    fn slot(&self, addr: u64) -> Option<(usize, usize)> {
        let section = self
            .sections
            .partition_point(|(start, _)| *start <= addr)
            .checked_sub(1)?;
        let offset = usize::try_from(addr - self.sections[section].0).ok()?;
        (offset < self.sections[section].1.len()).then_some((section, offset))
    }

    pub fn get(&self, addr: u64) -> Byte {
        self.slot(addr).map_or(Byte::Used, |(section, offset)| {
            self.sections[section].1[offset]
        })
    }

    pub fn set(&mut self, start: u64, end: u64, byte: Byte) {
        for addr in start..end {
            if let Some((section, offset)) = self.slot(addr) {
                self.sections[section].1[offset] = byte;
            }
        }
    }

    /// Marks padding as free, unless somebody has it already.
    pub fn free(&mut self, start: u64, end: u64) {
        for addr in start..end {
            if let Some((section, offset)) = self.slot(addr) {
                let byte = &mut self.sections[section].1[offset];
                if *byte == Byte::Used {
                    *byte = Byte::Free;
                }
            }
        }
    }
}
