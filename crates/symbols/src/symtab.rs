//! Symbol tables: .symtab and .dynsym, by section headers or, without them, by the dynamic table.

use crate::FoundIn;
use crate::bytes::{c_string, slice, u16_at, u32_at, u64_at};
use crate::elf::{
    DT_GNU_HASH, DT_HASH, DT_STRSZ, DT_STRTAB, DT_SYMTAB, DT_VERSYM, Elf, SHT_DYNSYM,
    SHT_GNU_VERSYM, SHT_SYMTAB,
};

/// Longer names are cut off by nobody: such a symbol is treated as nameless.
pub(crate) const NAME_LIMIT: usize = 32 * 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SymbolKind {
    Function,
    Ifunc,
    Object,
    Untyped,
    Other,
}

/// A defined symbol with an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'d> {
    pub address: u64,
    pub size: u64,
    pub kind: SymbolKind,
    pub local: bool,
    pub weak: bool,
    /// A version that new links do not get (`memcpy@GLIBC_2.2.5`).
    pub old_version: bool,
    pub name: &'d [u8],
    pub found_in: FoundIn,
}

/// Every defined symbol of the file's own tables. `symtab_as` tells whose .symtab this is.
pub(crate) fn read<'d>(
    elf: &Elf<'d>,
    dynamic: &[(u64, u64)],
    symtab_as: FoundIn,
) -> Vec<Symbol<'d>> {
    let mut symbols = Vec::new();
    let mut have_dynsym = false;
    for header in &elf.headers {
        let found_in = match header.kind {
            SHT_SYMTAB => symtab_as,
            SHT_DYNSYM if symtab_as == FoundIn::Symtab => FoundIn::Dynsym,
            _ => continue,
        };
        let strings = elf
            .headers
            .get(header.link as usize)
            .and_then(|h| elf.contents(h));
        let (Some(table), Some(strings)) = (elf.contents(header), strings) else {
            continue;
        };
        let versions = if header.kind == SHT_DYNSYM {
            have_dynsym = true;
            elf.headers
                .iter()
                .find(|h| h.kind == SHT_GNU_VERSYM)
                .and_then(|h| elf.contents(h))
        } else {
            None
        };
        read_table(table, strings, versions, found_in, &mut symbols);
    }
    if !have_dynsym && symtab_as == FoundIn::Symtab {
        read_dynamic(elf, dynamic, &mut symbols);
    }
    symbols
}

fn read_table<'d>(
    table: &'d [u8],
    strings: &'d [u8],
    versions: Option<&'d [u8]>,
    found_in: FoundIn,
    out: &mut Vec<Symbol<'d>>,
) {
    const SHN_UNDEF: u16 = 0;
    const SHN_ABS: u16 = 0xfff1;
    const SHN_COMMON: u16 = 0xfff2;
    for (index, entry) in table.chunks_exact(24).enumerate() {
        let info = entry[4];
        let section = u16_at(entry, 6).unwrap_or(SHN_UNDEF);
        if matches!(section, SHN_UNDEF | SHN_ABS | SHN_COMMON) {
            continue;
        }
        let (Some(name_at), Some(address), Some(size)) =
            (u32_at(entry, 0), u64_at(entry, 8), u64_at(entry, 16))
        else {
            continue;
        };
        let kind = match info & 15 {
            0 => SymbolKind::Untyped,
            1 => SymbolKind::Object,
            2 => SymbolKind::Function,
            10 => SymbolKind::Ifunc,
            _ => SymbolKind::Other,
        };
        let name = c_string(strings, name_at as usize, NAME_LIMIT).unwrap_or(b"");
        let (name, default_version) = split_version(name);
        let hidden = versions
            .and_then(|v| u16_at(v, index * 2))
            .is_some_and(|v| v & 0x8000 != 0);
        out.push(Symbol {
            address,
            size,
            kind,
            local: info >> 4 == 0,
            weak: info >> 4 == 2,
            old_version: hidden || !default_version,
            name,
            found_in,
        });
    }
}

/// `name@@V` is the default version and `name@V` an old one; .symtab spells them out.
fn split_version(name: &[u8]) -> (&[u8], bool) {
    match name.iter().position(|&b| b == b'@') {
        Some(at) if at > 0 => (&name[..at], name.get(at + 1) == Some(&b'@')),
        _ => (name, true),
    }
}

/// .dynsym of a file whose section headers are gone; the number of symbols has to come from the
/// hash table.
fn read_dynamic<'d>(
    elf: &Elf<'d>,
    dynamic: &[(u64, u64)],
    out: &mut Vec<Symbol<'d>>,
) -> Option<()> {
    let tag = |wanted| dynamic.iter().find(|d| d.0 == wanted).map(|d| d.1);
    let table = elf.bytes_from(tag(DT_SYMTAB)?)?;
    let strings = elf.bytes(tag(DT_STRTAB)?, tag(DT_STRSZ)?)?;
    let count = match tag(DT_HASH).and_then(|at| u32_at(elf.bytes_from(at)?, 4)) {
        Some(count) => u64::from(count),
        None => gnu_hash_symbols(elf.bytes_from(tag(DT_GNU_HASH)?)?)?,
    };
    let size = count.checked_mul(24)?.min(table.len() as u64);
    let versions = tag(DT_VERSYM).and_then(|at| elf.bytes_from(at));
    read_table(
        slice(table, 0, size)?,
        strings,
        versions,
        FoundIn::Dynsym,
        out,
    );
    Some(())
}

/// The number of symbols is one more than the index that ends the chain of the highest bucket.
fn gnu_hash_symbols(table: &[u8]) -> Option<u64> {
    let buckets = u32_at(table, 0)? as usize;
    let first = u32_at(table, 4)?;
    let bloom = u32_at(table, 8)? as usize;
    let buckets_at = bloom.checked_mul(8)?.checked_add(16)?;
    let chains_at = buckets.checked_mul(4)?.checked_add(buckets_at)?;
    let highest = table
        .get(buckets_at..chains_at)?
        .chunks_exact(4)
        .filter_map(|b| u32_at(b, 0))
        .max()?;
    if highest < first {
        return Some(u64::from(first));
    }
    let mut index = highest;
    loop {
        let at = usize::try_from(index - first)
            .ok()?
            .checked_mul(4)?
            .checked_add(chains_at)?;
        if u32_at(table, at)? & 1 == 1 {
            return Some(u64::from(index) + 1);
        }
        index = index.checked_add(1)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_not_part_of_the_name() {
        assert_eq!(split_version(b"memcpy@@GLIBC_2.14"), (&b"memcpy"[..], true));
        assert_eq!(
            split_version(b"memcpy@GLIBC_2.2.5"),
            (&b"memcpy"[..], false)
        );
        assert_eq!(split_version(b"memcpy"), (&b"memcpy"[..], true));
    }

    #[test]
    fn without_section_headers_the_dynamic_symbols_are_the_same() {
        let path = crate::module::tests::library("libc.so.6");
        let mut data = std::fs::read(path).unwrap();
        let names = |data: &[u8]| {
            let elf = Elf::parse("libc", data).unwrap();
            let symbols = read(&elf, &elf.dynamic_entries(), FoundIn::Symtab);
            let dynamic = symbols.iter().filter(|s| s.found_in == FoundIn::Dynsym);
            dynamic
                .map(|s| (s.address, s.name.to_vec(), s.old_version))
                .collect::<Vec<_>>()
        };
        let with_headers = names(&data);
        data[40..48].fill(0);
        assert!(with_headers.len() > 2000);
        assert_eq!(with_headers, names(&data));
    }
}
