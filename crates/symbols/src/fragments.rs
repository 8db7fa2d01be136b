//! Cold parts of functions in stripped files, where no name ends in `.cold`.
//!
//! GCC moves unlikely code into .text.unlikely, unaligned, with a frame description of its own.
//! Mostly its CFA gives it away; where the function had pushed nothing yet, it looks like a
//! function. But nobody calls it and nobody takes its address: jumps lead to it, all of them from
//! one function.
//!
//! That holds for a function that is only ever tail-called, too, and Clang and assembler
//! programmers make tail calls of conditional jumps as well. So there must be a proof: a jump back
//! into the middle of the one function, or a jump from there into the middle of the part. Without
//! one, only what stands among other cold parts and never returns (`call abort`) is one of them:
//! compilers do not tail-call what does not return. Whatever is left in doubt (the rare cold part
//! that ends in a `ret` of its own) stays a function: one too many shows in the profile, a missing
//! one does not.

use crate::bytes::u32_at;
use crate::{Function, FunctionKind, Section};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use std::collections::HashMap;

/// How code leads to an address.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) enum Reached {
    #[default]
    Never,
    /// By jumps only, which are at these addresses.
    ByJumps(Vec<u64>),
    /// Called, or its address is taken.
    Otherwise,
}

pub(crate) struct Sources<'a> {
    pub sections: &'a [Section],
    /// Addresses of code that data holds.
    pub pointers: &'a [u64],
    /// The code may hold such addresses as absolute immediates, too.
    pub fixed: bool,
}

/// Those of `candidates` (indices of functions, in order) that are parts of other functions.
pub(crate) fn find(functions: &[Function], candidates: &[usize], from: &Sources<'_>) -> Vec<usize> {
    let starts: Vec<u64> = candidates.iter().map(|&c| functions[c].start).collect();
    let reached = reached(&starts, from);
    let mut bodies = Bodies {
        functions,
        sections: from.sections,
        decoded: HashMap::new(),
    };
    let mut parts = Vec::new();
    let mut possible = Vec::new();
    for &candidate in candidates {
        match bodies.judge(candidate, &reached[&functions[candidate].start]) {
            Verdict::Part => parts.push(candidate),
            Verdict::Possible => possible.push(candidate),
            Verdict::Function => {}
        }
    }
    among_cold_parts(functions, parts, possible)
}

/// Adds to `parts` those of `possible` that stand beside a cold part, and those beside these.
fn among_cold_parts(
    functions: &[Function],
    mut parts: Vec<usize>,
    mut possible: Vec<usize>,
) -> Vec<usize> {
    loop {
        parts.sort_unstable();
        let is_part = |index: usize| {
            functions
                .get(index)
                .is_some_and(|f| f.kind == FunctionKind::Fragment)
                || parts.binary_search(&index).is_ok()
        };
        let (beside, rest): (Vec<_>, Vec<_>) = possible
            .into_iter()
            .partition(|&index| is_part(index.wrapping_sub(1)) || is_part(index + 1));
        if beside.is_empty() {
            return parts;
        }
        parts.extend(beside);
        possible = rest;
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Part,
    /// It is one if it stands among cold parts.
    Possible,
    Function,
}

/// What a function's instructions say, read from its start to its end.
#[derive(Default)]
struct Body {
    /// Place and target of each direct jump.
    jumps: Vec<(u64, u64)>,
    /// There is a `ret` or a computed jump in it, or what cannot be decoded.
    returns: bool,
}

struct Bodies<'a> {
    functions: &'a [Function],
    sections: &'a [Section],
    decoded: HashMap<usize, Body>,
}

impl Bodies<'_> {
    fn judge(&mut self, candidate: usize, reached: &Reached) -> Verdict {
        let Reached::ByJumps(places) = reached else {
            return Verdict::Function;
        };
        let Some(parent) = self.only_source(places) else {
            return Verdict::Function;
        };
        let inside = |index: usize, address: u64| {
            let function = &self.functions[index];
            function.start < address && address < function.end
        };
        let from_parent = &self.decoded[&parent].jumps;
        let jumps_inside = from_parent.iter().any(|&(_, to)| inside(candidate, to));
        let body = self
            .decoded
            .entry(candidate)
            .or_insert_with(|| decode(&self.functions[candidate], self.sections));
        if jumps_inside || body.jumps.iter().any(|&(_, to)| inside(parent, to)) {
            return Verdict::Part;
        }
        let own = &self.functions[candidate];
        let leaves = body
            .jumps
            .iter()
            .any(|&(_, to)| !(own.start..own.end).contains(&to));
        if body.returns || leaves {
            Verdict::Function
        } else {
            Verdict::Possible
        }
    }

    /// The one function that has instructions at `places`; places in the middle of an instruction
    /// do not count.
    fn only_source(&mut self, places: &[u64]) -> Option<usize> {
        let mut source = None;
        for &place in places {
            let next = self.functions.partition_point(|f| f.start <= place);
            let index = next.checked_sub(1)?;
            if place >= self.functions[index].end {
                return None;
            }
            let body = self
                .decoded
                .entry(index)
                .or_insert_with(|| decode(&self.functions[index], self.sections));
            let real = body.jumps.binary_search_by_key(&place, |j| j.0).is_ok();
            if real && source.replace(index).is_some_and(|other| other != index) {
                return None;
            }
        }
        source
    }
}

fn decode(function: &Function, sections: &[Section]) -> Body {
    let mut body = Body::default();
    let next = sections.partition_point(|s| s.vaddr <= function.start);
    let code = sections[..next].last().and_then(|section| {
        let begin = usize::try_from(function.start - section.vaddr).ok()?;
        let end = usize::try_from(function.end - section.vaddr).ok()?;
        section.bytes.get(begin..end)
    });
    let mut decoder = Decoder::with_ip(
        64,
        code.unwrap_or(&[]),
        function.start,
        DecoderOptions::NONE,
    );
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let code = instruction.code();
        if code.is_jcc_short_or_near() || code.is_jmp_short_or_near() {
            // A prefix (bnd, a branch hint) stands before the opcode that the search for jumps
            // finds.
            let length = if instruction.len() >= 5 {
                5 + u64::from(code.is_jcc_short_or_near())
            } else {
                2
            };
            let place = instruction.next_ip() - length;
            body.jumps.push((place, instruction.near_branch_target()));
        }
        body.returns |= matches!(instruction.mnemonic(), Mnemonic::Ret | Mnemonic::INVALID)
            || code.is_jmp_near_indirect();
    }
    body
}

/// Addresses that are none of a few, told apart at once: nearly all that is looked at.
struct Maybe(Vec<u64>);

impl Maybe {
    const BITS: u64 = 1 << 19;

    fn of(some: &[u64]) -> Maybe {
        let mut maybe = Maybe(vec![0; (Maybe::BITS / 64) as usize]);
        for address in some {
            let bit = address % Maybe::BITS;
            maybe.0[(bit / 64) as usize] |= 1 << (bit % 64);
        }
        maybe
    }

    fn has(&self, address: u64) -> bool {
        let bit = address % Maybe::BITS;
        self.0[(bit / 64) as usize] & 1 << (bit % 64) != 0
    }
}

/// How each of `starts` is reached.
fn reached(starts: &[u64], from: &Sources<'_>) -> HashMap<u64, Reached> {
    let mut found: HashMap<u64, Reached> = starts.iter().map(|&s| (s, Reached::Never)).collect();
    let (Some(&low), Some(&high)) = (starts.iter().min(), starts.iter().max()) else {
        return found;
    };
    let maybe = Maybe::of(starts);
    let mut mark = |address: u64, jump: Option<u64>| {
        if (low..=high).contains(&address)
            && maybe.has(address)
            && let Some(known) = found.get_mut(&address)
        {
            match (jump, known) {
                (None, known) => *known = Reached::Otherwise,
                (Some(place), Reached::ByJumps(places)) => places.push(place),
                (Some(place), known @ Reached::Never) => *known = Reached::ByJumps(vec![place]),
                (Some(_), Reached::Otherwise) => {}
            }
        }
    };
    for &pointer in from.pointers {
        mark(pointer, None);
    }
    // Every byte is taken for the start of an instruction: what is found too much keeps a candidate
    // a function.
    for section in from.sections.iter().filter(|s| s.executable) {
        let bytes = &section.bytes;
        for (at, &byte) in bytes.iter().enumerate() {
            let next = bytes.get(at + 1).copied().unwrap_or(0);
            let place = section.vaddr + at as u64;
            let branch = match byte {
                0xe9 => Some((1, Some(place))),
                0x0f if next & 0xf0 == 0x80 => Some((2, Some(place))),
                0xe8 => Some((1, None)),
                // lea disp32(%rip),reg
                0x8d if next & 0xc7 == 0x05 => Some((2, None)),
                _ => None,
            };
            if let Some((skip, jump)) = branch
                && let Some(distance) = u32_at(bytes, at + skip)
            {
                let after = section.vaddr + (at + skip + 4) as u64;
                mark(after.wrapping_add_signed(i64::from(distance as i32)), jump);
            }
            if from.fixed
                && let Some(immediate) = u32_at(bytes, at)
            {
                mark(u64::from(immediate), None);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FoundIn;

    fn text(bytes: &[u8]) -> Vec<Section> {
        vec![Section {
            name: ".text".into(),
            vaddr: 0x1000,
            size: bytes.len() as u64,
            bytes: bytes.to_vec(),
            executable: true,
            writable: false,
        }]
    }

    fn how(bytes: &[u8], pointers: &[u64], fixed: bool) -> Reached {
        let from = Sources {
            sections: &text(bytes),
            pointers,
            fixed,
        };
        reached(&[0x1010], &from)[&0x1010].clone()
    }

    #[test]
    fn jumps_are_told_from_calls_and_from_addresses_taken() {
        let jcc = [0x0f, 0x84, 0x0a, 0, 0, 0];
        assert_eq!(how(&[0xc3], &[], false), Reached::Never);
        let jumped = Reached::ByJumps(vec![0x1000]);
        assert_eq!(how(&[0xe9, 0x0b, 0, 0, 0], &[], false), jumped);
        assert_eq!(how(&jcc, &[], false), jumped);
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
        assert_eq!(how(&immediate, &[], false), jumped);
    }

    /// Functions of 16 bytes each, one after the other, and which of the last ones is a part.
    fn parts(codes: &[&[u8]], candidates: &[usize]) -> Vec<usize> {
        let mut bytes = Vec::new();
        let mut functions = Vec::new();
        for code in codes {
            let start = 0x1000 + bytes.len() as u64;
            functions.push(Function {
                start,
                end: start + code.len() as u64,
                name: String::new(),
                linkage_name: None,
                kind: FunctionKind::Normal,
                found_in: FoundIn::EhFrame,
            });
            bytes.extend_from_slice(code);
            bytes.resize(functions.len() * 16, 0xcc);
        }
        let from = Sources {
            sections: &text(&bytes),
            pointers: &[],
            fixed: false,
        };
        find(&functions, candidates, &from)
    }

    #[test]
    fn a_part_goes_back_into_the_middle_or_stands_among_parts_and_never_returns() {
        // jne 0x1010; ret
        let parent = [0x0f, 0x85, 0x0a, 0, 0, 0, 0xc3];
        let back = [0xe9, 0xf1, 0xff, 0xff, 0xff];
        assert_eq!(parts(&[&parent, &back], &[1]), [1], "goes back");
        let to_start = [0xe9, 0xeb, 0xff, 0xff, 0xff];
        assert!(parts(&[&parent, &to_start], &[1]).is_empty(), "calls back");
        assert!(parts(&[&parent, &[0xc3]], &[1]).is_empty(), "tail-called");
        // ud2
        let ends = [0x0f, 0x0b];
        assert!(parts(&[&parent, &ends], &[1]).is_empty(), "alone");
        // jne 0x1010; jne 0x1020; ret
        let parent = [0x0f, 0x85, 0x0a, 0, 0, 0, 0x0f, 0x85, 0x14, 0, 0, 0, 0xc3];
        assert_eq!(parts(&[&parent, &back, &ends], &[1, 2]), [1, 2]);
        assert_eq!(parts(&[&parent, &back, &[0xc3]], &[1, 2]), [1]);
        // jne 0x1020; ret from the second function as well.
        let other = [0x0f, 0x85, 0x0a, 0, 0, 0, 0xc3];
        let back = [0xe9, 0xe2, 0xff, 0xff, 0xff];
        assert!(
            parts(&[&parent, &other, &back], &[2]).is_empty(),
            "two sources"
        );
    }
}
