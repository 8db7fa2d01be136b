//! Slots of the procedure linkage table that the loader binds at the first call.
//!
//! Until then such a slot holds an address inside the PLT, so that whoever asks a tail jump where
//! it goes gets the PLT's way to the loader for an answer, and not the function that the loader
//! will jump to in the end.

use crate::LazySlot;
use crate::bytes::{c_string, slice, u32_at, u64_at};
use crate::elf::{DT_JMPREL, DT_PLTRELSZ, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Elf};
use crate::pointers::{CodeRanges, R_X86_64_JUMP_SLOT};
use crate::symtab::NAME_LIMIT;

/// In order of `stub`. All names together take no more than `name_budget` bytes: a hostile file may
/// repeat a long one.
pub(crate) fn slots(
    elf: &Elf<'_>,
    dynamic: &[(u64, u64)],
    code: &CodeRanges,
    name_budget: usize,
) -> Vec<LazySlot> {
    let tag = |wanted| dynamic.iter().find(|d| d.0 == wanted).map(|d| d.1);
    let table = |at, size| elf.bytes(tag(at)?, tag(size)?);
    let symbols = tag(DT_SYMTAB).and_then(|at| elf.bytes_from(at));
    let (Some(relocations), Some(symbols), Some(strings)) = (
        table(DT_JMPREL, DT_PLTRELSZ),
        symbols,
        table(DT_STRTAB, DT_STRSZ),
    ) else {
        return Vec::new();
    };
    let mut budget = name_budget;
    let mut slots: Vec<LazySlot> = relocations
        .chunks_exact(24)
        .filter_map(|relocation| {
            let info = u64_at(relocation, 8)?;
            if info as u32 != R_X86_64_JUMP_SLOT {
                return None;
            }
            let stub = u64_at(elf.bytes(u64_at(relocation, 0)?, 8)?, 0)?;
            if !code.contains(stub) {
                return None;
            }
            let symbol = slice(symbols, (info >> 32).checked_mul(24)?, 24)?;
            let name = c_string(strings, u32_at(symbol, 0)? as usize, NAME_LIMIT)?;
            if name.is_empty() {
                return None;
            }
            budget = budget.checked_sub(name.len())?;
            Some(LazySlot {
                stub,
                symbol: String::from_utf8_lossy(name).into_owned(),
            })
        })
        .collect();
    slots.sort_by_key(|slot| slot.stub);
    slots
}
