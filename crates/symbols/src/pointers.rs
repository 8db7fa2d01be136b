//! Everything in a file that points into code without being an instruction.
//!
//! The patch planner must not move an instruction that somebody reaches through such a pointer, so
//! a missed one is a crash and a false one only costs a little coverage.

use crate::bytes::{slice, u32_at, u64_at};
use crate::elf::{
    DT_FINI, DT_INIT, DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_RELR, DT_RELRSZ, DT_SYMTAB,
    Elf, SHF_ALLOC, SHT_RELA, SHT_RELR,
};
use crate::frames::Fde;
use crate::symtab::{Symbol, SymbolKind};
use crate::{Section, lsda};
use std::collections::HashMap;

const R_X86_64_64: u32 = 1;
const R_X86_64_GLOB_DAT: u32 = 6;
pub(crate) const R_X86_64_JUMP_SLOT: u32 = 7;
const R_X86_64_RELATIVE: u32 = 8;
const R_X86_64_IRELATIVE: u32 = 37;
const R_X86_64_RELATIVE64: u32 = 38;

/// The executable sections, to ask whether an address is code.
pub(crate) struct CodeRanges {
    ranges: Vec<(u64, u64)>,
    low: u64,
    high: u64,
}

impl CodeRanges {
    pub(crate) fn new(sections: &[Section]) -> Self {
        let ranges: Vec<_> = sections
            .iter()
            .filter(|s| s.executable)
            .map(|s| (s.vaddr, s.end()))
            .collect();
        let low = ranges.first().map_or(0, |r| r.0);
        let high = ranges.last().map_or(0, |r| r.1);
        CodeRanges { ranges, low, high }
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        if address < self.low || address >= self.high {
            return false;
        }
        let next = self.ranges.partition_point(|r| r.0 <= address);
        self.ranges[..next].last().is_some_and(|r| address < r.1)
    }
}

/// What the loader writes, as far as it leads into code.
#[derive(Default)]
pub(crate) struct Relocations {
    /// Place and value.
    pub words: HashMap<u64, u64>,
    pub resolvers: Vec<u64>,
}

pub(crate) fn relocations(elf: &Elf<'_>, dynamic: &[(u64, u64)], code: &CodeRanges) -> Relocations {
    let tag = |wanted| dynamic.iter().find(|d| d.0 == wanted).map(|d| d.1);
    let by_tags = |at, size| elf.bytes(tag(at)?, tag(size)?);
    let mut out = Relocations::default();
    let symbols = tag(DT_SYMTAB)
        .and_then(|at| elf.bytes_from(at))
        .unwrap_or(&[]);

    let mut add_all = |table: &[u8]| {
        for entry in table.chunks_exact(24) {
            add_relocation(elf, entry, symbols, code, &mut out);
        }
    };
    let rela = by_tags(DT_RELA, DT_RELASZ);
    let plt = by_tags(DT_JMPREL, DT_PLTRELSZ);
    for table in [rela, plt].into_iter().flatten() {
        add_all(table);
    }
    // Static executables apply their few relocations themselves and have no dynamic table.
    if rela.is_none() || plt.is_none() {
        for header in elf
            .headers
            .iter()
            .filter(|h| h.kind == SHT_RELA && h.flags & SHF_ALLOC != 0)
        {
            add_all(elf.contents(header).unwrap_or(&[]));
        }
    }
    let relr_header = elf
        .headers
        .iter()
        .find(|h| h.kind == SHT_RELR && h.flags & SHF_ALLOC != 0);
    if let Some(table) = by_tags(DT_RELR, DT_RELRSZ).or_else(|| elf.contents(relr_header?)) {
        packed(table, |place| {
            let value = elf.bytes(place, 8).and_then(|b| u64_at(b, 0));
            if let Some(value) = value.filter(|&v| code.contains(v)) {
                out.words.insert(place, value);
            }
        });
    }
    out.resolvers.sort_unstable();
    out.resolvers.dedup();
    out
}

fn add_relocation(
    elf: &Elf<'_>,
    entry: &[u8],
    symbols: &[u8],
    code: &CodeRanges,
    out: &mut Relocations,
) -> Option<()> {
    let place = u64_at(entry, 0)?;
    let info = u64_at(entry, 8)?;
    let addend = u64_at(entry, 16)?;
    let symbol = || {
        let at = (info >> 32).checked_mul(24)?;
        let symbol = slice(symbols, at, 24)?;
        u64_at(symbol, 8).filter(|&value| value != 0)
    };
    let value = match info as u32 {
        R_X86_64_RELATIVE | R_X86_64_RELATIVE64 => addend,
        R_X86_64_IRELATIVE => {
            if code.contains(addend) {
                out.resolvers.push(addend);
            }
            addend
        }
        R_X86_64_64 => symbol()?.wrapping_add(addend),
        R_X86_64_GLOB_DAT | R_X86_64_JUMP_SLOT => {
            // Until it is bound, the slot holds the way back into the PLT.
            let unbound = elf.bytes(place, 8).and_then(|b| u64_at(b, 0));
            symbol().or(unbound)?
        }
        _ => return None,
    };
    if code.contains(value) {
        out.words.insert(place, value);
    }
    Some(())
}

/// DT_RELR: an even word is a place, an odd one a bitmap of the 63 words after the last place.
fn packed(table: &[u8], mut place: impl FnMut(u64)) {
    let mut next = 0u64;
    for word in table.chunks_exact(8).filter_map(|b| u64_at(b, 0)) {
        if word & 1 == 0 {
            place(word);
            next = word.wrapping_add(8);
            continue;
        }
        for bit in 1..64 {
            if word >> bit & 1 == 1 {
                place(next.wrapping_add((bit - 1) * 8));
            }
        }
        next = next.wrapping_add(63 * 8);
    }
}

pub(crate) struct Sources<'a, 'd> {
    pub elf: &'a Elf<'d>,
    pub dynamic: &'a [(u64, u64)],
    pub symbols: &'a [Symbol<'d>],
    pub fdes: &'a [Fde],
    pub code: &'a CodeRanges,
    /// More places at which something begins.
    pub barriers: &'a [u64],
}

/// Addresses of code that the program's data holds once it is loaded; in no order.
pub(crate) fn in_data(
    elf: &Elf<'_>,
    sections: &[Section],
    relocations: &Relocations,
    code: &CodeRanges,
) -> Vec<u64> {
    let mut out: Vec<u64> = relocations.words.values().copied().collect();
    out.extend(&relocations.resolvers);
    if !elf.position_independent() {
        for section in sections
            .iter()
            .filter(|s| !s.executable && may_hold_pointers(&s.name))
        {
            words(section, code, &mut out);
        }
    }
    out
}

/// See the fields of the same names of `Module`.
pub(crate) struct Pointers {
    pub code_pointers: Vec<u64>,
    pub certain_code: Vec<u64>,
    pub pointed_to: Vec<u64>,
}

pub(crate) fn collect(in_data: Vec<u64>, from: &Sources<'_, '_>) -> Pointers {
    let is_function = |s: &&Symbol| matches!(s.kind, SymbolKind::Function | SymbolKind::Ifunc);
    let functions = from.symbols.iter().filter(is_function);
    let mut out: Vec<u64> = functions.map(|s| s.address).collect();
    out.extend(
        from.dynamic
            .iter()
            .filter(|d| d.0 == DT_INIT || d.0 == DT_FINI)
            .map(|d| d.1),
    );
    out.push(from.elf.entry);
    for fde in from.fdes {
        out.push(fde.start);
        if let Some(at) = fde.lsda {
            lsda::landing_pads(from.elf, at, fde.start, &mut out);
        }
    }
    let sorted = |mut addresses: Vec<u64>| {
        addresses.retain(|&address| from.code.contains(address));
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    };
    let certain_code = sorted(out);
    let pointed_to = sorted(in_data);
    let mut all: Vec<u64> = from.symbols.iter().map(|s| s.address).collect();
    all.extend(from.barriers);
    all.extend(&certain_code);
    all.extend(&pointed_to);
    Pointers {
        code_pointers: sorted(all),
        certain_code,
        pointed_to,
    }
}

/// Tables of the linker's, which hold no pointer that the program follows by itself.
fn may_hold_pointers(section: &str) -> bool {
    const TABLES: [&str; 11] = [
        ".dynsym",
        ".dynstr",
        ".hash",
        ".gnu.hash",
        ".gnu.version",
        ".gnu.version_r",
        ".gnu.version_d",
        ".eh_frame",
        ".eh_frame_hdr",
        ".gcc_except_table",
        ".gopclntab",
    ];
    !TABLES.contains(&section) && !section.starts_with(".rela") && !section.starts_with(".note")
}

/// In a file that is always loaded at its own address, every word may be a pointer, and tables of
/// 4-byte ones exist.
fn words(section: &Section, code: &CodeRanges, out: &mut Vec<u64>) {
    let skip = (section.vaddr.wrapping_neg() & 3) as usize;
    let mut at = skip;
    while let Some(low) = u32_at(&section.bytes, at) {
        if code.contains(u64::from(low)) {
            out.push(u64::from(low));
        }
        if (section.vaddr + at as u64).is_multiple_of(8)
            && let Some(word) = u64_at(&section.bytes, at)
            && code.contains(word)
        {
            out.push(word);
        }
        at += 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_relocations_unfold_as_the_standard_says() {
        let words: [u64; 4] = [0x1000, 0b1011, 0b11, 0x2000];
        let table: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut places = Vec::new();
        packed(&table, |p| places.push(p));
        assert_eq!(places, [0x1000, 0x1008, 0x1018, 0x1008 + 63 * 8, 0x2000]);
    }

    #[test]
    fn fixed_address_data_gives_eight_and_four_byte_pointers() {
        let code = CodeRanges {
            ranges: vec![(0x40_0000, 0x40_1000)],
            low: 0x40_0000,
            high: 0x40_1000,
        };
        let mut bytes = Vec::new();
        bytes.extend(0x40_0010u64.to_le_bytes());
        bytes.extend(7u32.to_le_bytes());
        bytes.extend(0x40_0020u32.to_le_bytes());
        bytes.extend(0x40_1000u64.to_le_bytes());
        let section = Section {
            name: ".rodata".into(),
            vaddr: 0x50_0000,
            size: bytes.len() as u64,
            bytes,
            executable: false,
            writable: false,
        };
        let mut out = Vec::new();
        words(&section, &code, &mut out);
        out.dedup();
        assert_eq!(out, [0x40_0010, 0x40_0020]);
    }
}
