//! Restartable sequences: code that the kernel restarts when a thread is interrupted in it.
//!
//! ```text
//! struct rseq_cs { u32 version, flags; u64 start_ip, post_commit_offset, abort_ip; }
//!
//! start_ip ──> mov ...            the kernel compares the interrupted address with these two
//!              mov ..., (counter)
//!   + offset ─>ret
//!              .long SIGNATURE    must stand before the handler, or the kernel kills the program
//! abort_ip ──> jmp retry
//! ```
//!
//! An instruction of a sequence that runs elsewhere is not restarted, so nothing in one may be
//! moved. Descriptors are found in `__rseq_cs`, and wherever else three words of a file are one:
//! the signature before the handler makes that certain. A descriptor that the program makes while
//! it runs is in no file; its handler is, and leads back into the function.

use crate::Section;
use crate::bytes::{u32_at, u64_at};
use crate::pointers::{CodeRanges, Relocations};
use iced_x86::{Decoder, DecoderOptions, FlowControl, OpKind};

/// What the C library registers, and all who use its registration have to use.
pub const RSEQ_SIGNATURE: u32 = 0x5305_3053;
/// Sequences are a few dozen bytes long: a longer one is no descriptor.
const LONGEST_SEQUENCE: u64 = 1 << 16;
/// How far a handler is followed that no descriptor names.
const HANDLER_INSTRUCTIONS: usize = 16;

/// What of a module's code belongs to restartable sequences.
#[derive(Default)]
pub(crate) struct Sequences {
    /// Sorted by start; each reaches as far as the farthest before it.
    ranges: Vec<(u64, u64)>,
    /// Addresses at which free room ends: signatures, and the nop that may hide one.
    pub barriers: Vec<u64>,
}

impl Sequences {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether `[start, end)` holds a part of a sequence or of a handler.
    pub(crate) fn touch(&self, start: u64, end: u64) -> bool {
        let next = self.ranges.partition_point(|r| r.0 < end);
        self.ranges[..next].last().is_some_and(|r| r.1 > start)
    }
}

struct Finder<'a> {
    sections: &'a [Section],
    relocations: &'a Relocations,
    code: &'a CodeRanges,
    /// Addresses behind signatures, sorted.
    handlers: Vec<u64>,
    described: Vec<u64>,
    ranges: Vec<(u64, u64)>,
}

pub(crate) fn find(
    sections: &[Section],
    relocations: &Relocations,
    code: &CodeRanges,
) -> Sequences {
    let mut finder = Finder {
        sections,
        relocations,
        code,
        handlers: handlers(sections),
        described: Vec::new(),
        ranges: Vec::new(),
    };
    finder.read_named_section();
    finder.search_descriptors();
    finder.follow_handlers();
    let mut barriers = Vec::new();
    for &handler in &finder.handlers {
        // nopl SIGNATURE(%rip)
        barriers.extend([handler.saturating_sub(7), handler.saturating_sub(4)]);
    }
    let mut ranges = finder.ranges;
    ranges.sort_unstable();
    let mut reach = 0;
    for range in &mut ranges {
        reach = reach.max(range.1);
        range.1 = reach;
    }
    Sequences { ranges, barriers }
}

fn handlers(sections: &[Section]) -> Vec<u64> {
    let signature = RSEQ_SIGNATURE.to_le_bytes();
    let mut found = Vec::new();
    for section in sections.iter().filter(|s| s.executable) {
        let windows = section.bytes.windows(4).enumerate();
        let places = windows.filter(|(_, bytes)| *bytes == signature);
        found.extend(places.map(|(at, _)| section.vaddr + at as u64 + 4));
    }
    found.sort_unstable();
    found
}

impl Finder<'_> {
    fn section(&self, address: u64) -> Option<&Section> {
        let next = self.sections.partition_point(|s| s.vaddr <= address);
        self.sections[..next].last().filter(|s| address < s.end())
    }

    /// The word at `place` once the program is loaded.
    fn word(&self, place: u64) -> Option<u64> {
        let relocated = self.relocations.words.get(&place).copied();
        relocated.or_else(|| {
            let section = self.section(place)?;
            u64_at(&section.bytes, (place - section.vaddr) as usize)
        })
    }

    /// Its entries are descriptors, whatever signature the program has chosen.
    fn read_named_section(&mut self) {
        for section in self.sections.iter().filter(|s| s.name == "__rseq_cs") {
            for index in 0..section.bytes.len() as u64 / 32 {
                self.add(section.vaddr + index * 32);
            }
        }
    }

    fn search_descriptors(&mut self) {
        if self.handlers.is_empty() {
            return;
        }
        let is_handler = |value: u64| self.handlers.binary_search(&value).is_ok();
        let relocated = self.relocations.words.iter();
        let mut places: Vec<u64> = relocated
            .filter(|(_, value)| is_handler(**value))
            .map(|(place, _)| *place)
            .collect();
        for section in self.sections {
            let skip = (section.vaddr.wrapping_neg() & 7) as usize;
            let words = section.bytes.get(skip..).unwrap_or_default();
            for (index, word) in words.chunks_exact(8).enumerate() {
                if u64_at(word, 0).is_some_and(is_handler) {
                    places.push(section.vaddr + (skip + index * 8) as u64);
                }
            }
        }
        for place in places {
            if let Some(descriptor) = place.checked_sub(24) {
                self.add(descriptor);
            }
        }
    }

    /// Takes what is at `descriptor` for one, if it can be.
    fn add(&mut self, descriptor: u64) {
        let at = |offset: u64| self.word(descriptor.checked_add(offset)?);
        let (Some(start), Some(length), Some(abort)) = (at(8), at(16), at(24)) else {
            return;
        };
        let plausible = (1..=LONGEST_SEQUENCE).contains(&length)
            && self.code.contains(start)
            && self.code.contains(abort);
        if plausible {
            self.ranges.push((start, start.saturating_add(length)));
            self.ranges.push((abort.saturating_sub(4), abort + 1));
            self.described.push(abort);
        }
    }

    /// Handlers without a descriptor: those functions are left alone that they stand in and that
    /// they go back to.
    fn follow_handlers(&mut self) {
        self.described.sort_unstable();
        for index in 0..self.handlers.len() {
            let handler = self.handlers[index];
            if self.described.binary_search(&handler).is_ok() || self.is_operand(handler - 4) {
                continue;
            }
            self.ranges.push((handler - 4, handler + 1));
            let Some(section) = self.section(handler) else {
                continue;
            };
            let bytes = &section.bytes[(handler - section.vaddr) as usize..];
            let mut targets = Vec::new();
            let mut decoder = Decoder::with_ip(64, bytes, handler, DecoderOptions::NONE);
            for instruction in decoder.iter().take(HANDLER_INSTRUCTIONS) {
                if instruction.op0_kind() == OpKind::NearBranch64 {
                    targets.push(instruction.near_branch_target());
                }
                let goes_on = matches!(
                    instruction.flow_control(),
                    FlowControl::Next | FlowControl::ConditionalBranch
                );
                if !goes_on {
                    break;
                }
            }
            self.ranges
                .extend(targets.iter().map(|&t| (t, t.saturating_add(1))));
        }
    }

    /// `mov $SIGNATURE,%reg`: code that registers, as the C library has it.
    fn is_operand(&self, signature: u64) -> bool {
        let Some(section) = self.section(signature) else {
            return false;
        };
        let at = (signature - section.vaddr) as usize;
        at.checked_sub(1)
            .is_some_and(|at| matches!(section.bytes[at], 0xb8..=0xbf))
    }
}

/// Whether `descriptor`, as a thread has it in use, is one; its sequence and its handler.
pub fn rseq_descriptor(descriptor: &[u8; 32]) -> Option<((u64, u64), u64)> {
    let version = u32_at(descriptor, 0)?;
    let (start, length) = (u64_at(descriptor, 8)?, u64_at(descriptor, 16)?);
    let end = start.checked_add(length)?;
    (version == 0).then_some(((start, end), u64_at(descriptor, 24)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const TEXT: u64 = 0x1000;
    const DATA: u64 = 0x4000;

    fn section(name: &str, vaddr: u64, bytes: Vec<u8>) -> Section {
        Section {
            name: name.into(),
            vaddr,
            size: bytes.len() as u64,
            bytes,
            executable: vaddr == TEXT,
            writable: false,
        }
    }

    /// 16 bytes of function, padding, the signature at 0x1020, `jmp 0x1000` at 0x1024.
    fn text() -> Section {
        let mut bytes = vec![0x90; 0x20];
        bytes.extend(RSEQ_SIGNATURE.to_le_bytes());
        bytes.extend([0xeb, 0xda]);
        section(".text", TEXT, bytes)
    }

    fn descriptor(words: [u64; 4]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    fn found(sections: &[Section], words: &[(u64, u64)]) -> Sequences {
        let relocations = Relocations {
            words: HashMap::from_iter(words.iter().copied()),
            resolvers: Vec::new(),
        };
        find(sections, &relocations, &CodeRanges::new(sections))
    }

    #[test]
    fn a_descriptor_is_found_in_any_section_by_the_signature_before_its_handler() {
        let plain = descriptor([0, 0x1004, 8, 0x1024]);
        let found_plain = found(&[text(), section(".data", DATA, plain)], &[]);
        let relocated = descriptor([0, 0, 8, 0]);
        let words = [(DATA + 8, 0x1004), (DATA + 24, 0x1024)];
        let found_relocated = found(&[text(), section(".rodata", DATA, relocated)], &words);
        for found in [found_plain, found_relocated] {
            assert!(found.touch(0x1000, 0x1005), "its beginning");
            assert!(found.touch(0x100b, 0x1010), "its last byte");
            assert!(!found.touch(0x1000, 0x1004), "before it");
            assert!(!found.touch(0x100c, 0x1020), "between it and the signature");
            assert!(found.touch(0x1020, 0x1021), "the signature");
        }
    }

    #[test]
    fn a_handler_without_a_descriptor_leads_to_its_function() {
        let found = found(&[text()], &[]);
        assert!(found.touch(0x1000, 0x1001));
        assert!(!found.touch(0x1001, 0x1020));
        assert_eq!(found.barriers, [0x101d, 0x1020]);
    }

    #[test]
    fn registering_is_no_sequence() {
        let mut bytes = vec![0x41, 0xba];
        bytes.extend(RSEQ_SIGNATURE.to_le_bytes());
        bytes.push(0xc3);
        assert!(found(&[section(".text", TEXT, bytes)], &[]).is_empty());
    }

    #[test]
    fn a_section_of_descriptors_is_read_whatever_the_signature() {
        let code = section(".text", TEXT, vec![0x90; 0x40]);
        let table = descriptor([0, 0x1004, 8, 0x1024]);
        let found = found(&[code, section("__rseq_cs", DATA, table)], &[]);
        assert!(found.touch(0x1004, 0x1005) && found.touch(0x1024, 0x1025));
    }
}
