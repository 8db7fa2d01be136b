//! Cold parts of functions in stripped files, where no name ends in `.cold`.
//!
//! GCC moves unlikely code into .text.unlikely, unaligned, with a frame description of its own. Mostly its CFA gives it
//! away; where the function had pushed nothing yet, it looks like a function. But nobody calls it and nobody takes its
//! address: only jumps lead to it, mostly conditional ones, which GCC does not use for tail calls.

use crate::Section;
use crate::bytes::u32_at;
use std::collections::HashMap;

/// How code leads to an address; the last one found that says most.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Reached {
    #[default]
    Never,
    ByJump,
    ByConditionalJump,
    /// Called, or its address is taken.
    Otherwise,
}

/// How each of `candidates` is reached. `pointers` are the addresses that data holds; `fixed` says that the code may hold
/// them as absolute immediates, too.
pub(crate) fn reached(
    candidates: &[u64],
    sections: &[Section],
    pointers: &[u64],
    fixed: bool,
) -> HashMap<u64, Reached> {
    let mut found: HashMap<u64, Reached> =
        candidates.iter().map(|&c| (c, Reached::Never)).collect();
    let (Some(&low), Some(&high)) = (candidates.iter().min(), candidates.iter().max()) else {
        return found;
    };
    let mut mark = |address: u64, how: Reached| {
        if (low..=high).contains(&address)
            && let Some(known) = found.get_mut(&address)
        {
            *known = how.max(*known);
        }
    };
    for &pointer in pointers {
        mark(pointer, Reached::Otherwise);
    }
    // Every byte is taken for the start of an instruction: what is found too much keeps a candidate a function.
    for section in sections.iter().filter(|s| s.executable) {
        let bytes = &section.bytes;
        for (at, &byte) in bytes.iter().enumerate() {
            let next = bytes.get(at + 1).copied().unwrap_or(0);
            let branch = match byte {
                0xe9 => Some((1, Reached::ByJump)),
                0x0f if next & 0xf0 == 0x80 => Some((2, Reached::ByConditionalJump)),
                0xe8 => Some((1, Reached::Otherwise)),
                // lea disp32(%rip),reg
                0x8d if next & 0xc7 == 0x05 => Some((2, Reached::Otherwise)),
                _ => None,
            };
            if let Some((skip, how)) = branch
                && let Some(distance) = u32_at(bytes, at + skip)
            {
                let after = section.vaddr + (at + skip + 4) as u64;
                mark(after.wrapping_add_signed(i64::from(distance as i32)), how);
            }
            if fixed && let Some(immediate) = u32_at(bytes, at) {
                mark(u64::from(immediate), Reached::Otherwise);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Vec<Section> {
        vec![Section {
            name: ".text".into(),
            vaddr: 0x1000,
            bytes: bytes.to_vec(),
            executable: true,
            writable: false,
        }]
    }

    fn how(bytes: &[u8], pointers: &[u64], fixed: bool) -> Reached {
        reached(&[0x1010], &text(bytes), pointers, fixed)[&0x1010]
    }

    #[test]
    fn jumps_are_told_from_calls_and_from_addresses_taken() {
        let jcc = [0x0f, 0x84, 0x0a, 0, 0, 0];
        assert_eq!(how(&[0xc3], &[], false), Reached::Never);
        assert_eq!(how(&[0xe9, 0x0b, 0, 0, 0], &[], false), Reached::ByJump);
        assert_eq!(how(&jcc, &[], false), Reached::ByConditionalJump);
        assert_eq!(
            how(&jcc, &[0x1010], false),
            Reached::Otherwise,
            "a pointer to it"
        );
        let called = [&jcc[..], &[0xe8, 0x05, 0, 0, 0]].concat();
        assert_eq!(how(&called, &[], false), Reached::Otherwise);
        let taken = [&jcc[..], &[0x48, 0x8d, 0x3d, 0x03, 0, 0, 0]].concat();
        assert_eq!(how(&taken, &[], false), Reached::Otherwise);
        let immediate = [&jcc[..], &[0xbf, 0x10, 0x10, 0, 0]].concat();
        assert_eq!(how(&immediate, &[], true), Reached::Otherwise);
        assert_eq!(how(&immediate, &[], false), Reached::ByConditionalJump);
    }
}
