//! An executable or a shared library as a file that is changed: what it must be like, new segments at its end, a few words.
//!
//! The program headers move to a new segment, because there is no room where they are. That segment and the file are laid out so that
//! each of its bytes is as far from the file's start as its address is from the first segment's: older kernels tell the
//! program where its headers are by that sum.

use std::path::Path;

use crate::error::{Error, Result};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
const PF_X: u32 = 1;
const PF_R: u32 = 4;
const DT_NULL: u64 = 0;
const DT_INIT: u64 = 12;
const DT_SONAME: u64 = 14;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;
/// Says how many of the relocations are plain ones, which nobody needs to know.
const DT_RELACOUNT: u64 = 0x6fff_fff9;
const SHT_PROGBITS: u32 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;
const PHDR_SIZE: usize = 56;
const SHDR_SIZE: usize = 64;
const PAGE: u64 = thalweg_abi::PAGE;

/// What is at the end of a signed kernel module.
const SIGNED: &[u8] = b"~Module signature appended~\n";
const PACKED: &[u8] = b"UPX!";
const SIGNATURES: [&str; 4] = [".sig", ".signature", ".note.signature", ".elfsig"];

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    paddr: u64,
    file_size: u64,
    mem_size: u64,
    align: u64,
}

/// Of an executable: the entry. Of a library: the loader calls it first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Program,
    Library,
}

pub struct Elf {
    pub bytes: Vec<u8>,
    pub kind: Kind,
    segments: Vec<Segment>,
    /// From a place in the file to its address.
    distance: u64,
}

/// A part of the file's end that is mapped.
pub struct Part<'a> {
    pub name: &'a str,
    pub address: u64,
    pub bytes: &'a [u8],
    pub executable: bool,
}

impl Elf {
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<Elf> {
        let no = |why: &str| Error::Refused(format!("{}: {why}", path.display()));
        let cut = || no("the file is cut short");
        if bytes.get(..4) != Some(b"\x7fELF") {
            return Err(no("is no ELF file"));
        }
        if bytes.get(4) != Some(&2) {
            return Err(no(
                "is a 32-bit file; only 64-bit x86-64 files can be instrumented",
            ));
        }
        if bytes.get(5) != Some(&1) || u16_at(&bytes, 18) != Some(62) {
            return Err(no(
                "is not for x86-64, the only processor that thalweg knows",
            ));
        }
        const RELOCATABLE: u16 = 1;
        if u16_at(&bytes, 16) == Some(RELOCATABLE) {
            return Err(no(
                "is a relocatable file; link it first, and instrument the program",
            ));
        }
        let offset = u64_at(&bytes, 32).ok_or_else(cut)?;
        let (size, count) = (u16_at(&bytes, 54), u16_at(&bytes, 56));
        if size != Some(PHDR_SIZE as u16) {
            return Err(no("has program headers of an unknown size"));
        }
        let mut segments = Vec::new();
        for index in 0..u64::from(count.ok_or_else(cut)?) {
            let at = offset
                .checked_add(index * PHDR_SIZE as u64)
                .and_then(|at| usize::try_from(at).ok())
                .ok_or_else(cut)?;
            segments.push(Segment::read(&bytes, at).ok_or_else(cut)?);
        }
        let loads = segments.iter().filter(|s| s.kind == PT_LOAD);
        let len = bytes.len() as u64;
        let beyond = |s: &Segment| {
            s.offset
                .checked_add(s.file_size)
                .is_none_or(|end| end > len)
        };
        if loads.clone().any(beyond) {
            return Err(cut());
        }
        const USER_SPACE: u64 = 1 << 46;
        let first = loads.clone().min_by_key(|s| s.vaddr);
        let first = first.ok_or_else(|| no("has nothing to load: it is no program"))?;
        let too_high = |s: &Segment| {
            s.vaddr
                .checked_add(s.mem_size)
                .is_none_or(|end| end > USER_SPACE)
        };
        if loads.clone().any(too_high) {
            return Err(no("has addresses that no program has"));
        }
        let distance = first
            .vaddr
            .checked_sub(first.offset)
            .filter(|distance| distance.is_multiple_of(PAGE))
            .ok_or_else(|| no("begins with a segment that is not where its headers are"))?;
        let has = |tag| {
            let dynamic = segments.iter().find(|s| s.kind == PT_DYNAMIC);
            dynamic.and_then(|dynamic| value_of(&bytes, dynamic, tag))
        };
        // The loader's own libraries can be run as programs too, but seldom are.
        let is_named = has(DT_SONAME).is_some();
        let is_run = segments.iter().any(|s| s.kind == PT_INTERP)
            || has(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE != 0);
        let kind = match u16_at(&bytes, 16) {
            Some(2) => Kind::Program,
            Some(3) if is_run && !is_named => Kind::Program,
            Some(3) => Kind::Library,
            _ => return Err(no("is no executable and no shared library")),
        };
        let elf = Elf {
            bytes,
            kind,
            segments,
            distance,
        };
        elf.check(&no)?;
        Ok(elf)
    }

    fn check(&self, no: &dyn Fn(&str) -> Error) -> Result<()> {
        let loads = || self.segments.iter().filter(|s| s.kind == PT_LOAD);
        let begins_with = |s: &Segment, magic: u64| {
            let at = usize::try_from(s.offset).ok();
            at.and_then(|at| u64_at(&self.bytes, at)) == Some(magic)
        };
        if loads().any(|s| begins_with(s, thalweg_abi::AHEAD_MAGIC)) {
            return Err(no("is instrumented already"));
        }
        let sections = self.sections();
        if sections.is_empty() {
            let head = &self.bytes[..self.bytes.len().min(4096)];
            if head.windows(PACKED.len()).any(|bytes| bytes == PACKED) {
                return Err(no(
                    "is packed by UPX: unpack it first (upx -d), its code is not in the file",
                ));
            }
        }
        let is_signed = sections
            .iter()
            .any(|section| SIGNATURES.contains(&section.name.as_str()));
        if self.bytes.ends_with(SIGNED) || is_signed {
            return Err(no("is signed: a changed copy would not be accepted"));
        }
        let section_table = u64_at(&self.bytes, 40).unwrap_or(0);
        let ends = sections
            .iter()
            .map(|section| section.end)
            .chain(
                self.segments
                    .iter()
                    .map(|s| s.offset.saturating_add(s.file_size)),
            )
            .chain([section_table.saturating_add((sections.len() * SHDR_SIZE) as u64)]);
        let end = ends.max().unwrap_or(0);
        let behind = (self.bytes.len() as u64).saturating_sub(end);
        let rest = self.bytes.get(end as usize..).unwrap_or_default();
        if behind > PAGE || rest.iter().any(|byte| *byte != 0) {
            return Err(no(
                "has data behind its last section, as self-extracting programs do, which find it by the file's end",
            ));
        }
        Ok(())
    }

    /// The first address behind everything, whose place in the file is behind everything too.
    pub fn free(&self) -> u64 {
        let loads = self.segments.iter().filter(|s| s.kind == PT_LOAD);
        let end = loads.map(|s| s.vaddr + s.mem_size).max().unwrap_or(0);
        let end = end.max(self.distance + self.bytes.len() as u64);
        (end + PAGE).next_multiple_of(PAGE)
    }

    pub fn entry(&self) -> u64 {
        u64_at(&self.bytes, 24).unwrap_or(0)
    }

    pub fn set_entry(&mut self, entry: u64) {
        put(&mut self.bytes, 24, &entry.to_le_bytes());
    }

    /// The library's initialiser, 0 if it has none, and `new` in its place. `None`: there is no room to name it.
    pub fn replace_init(&mut self, new: u64) -> Option<u64> {
        let dynamic = *self.segments.iter().find(|s| s.kind == PT_DYNAMIC)?;
        let start = usize::try_from(dynamic.offset).ok()?;
        let places: Vec<(usize, u64)> = (0..dynamic.file_size / 16)
            .map(|index| start + index as usize * 16)
            .map_while(|at| Some((at, u64_at(&self.bytes, at)?)))
            .collect();
        let end = places.iter().position(|(_, tag)| *tag == DT_NULL)?;
        let own = places[..end].iter().find(|(_, tag)| *tag == DT_INIT);
        if let Some((at, _)) = own {
            let old = u64_at(&self.bytes, at + 8)?;
            put(&mut self.bytes, at + 8, &new.to_le_bytes());
            return Some(old);
        }
        let is_spare = places.get(end + 1).is_some_and(|(_, tag)| *tag == DT_NULL);
        let needless = places[..end].iter().find(|(_, tag)| *tag == DT_RELACOUNT);
        let at = match is_spare {
            true => places[end].0,
            false => needless?.0,
        };
        put(&mut self.bytes, at, &DT_INIT.to_le_bytes());
        put(&mut self.bytes, at + 8, &new.to_le_bytes());
        Some(0)
    }

    /// Changes bytes of what is mapped at `address`, which must be `old`.
    pub fn patch(&mut self, address: u64, old: &[u8], new: &[u8]) -> Option<()> {
        let loads = self.segments.iter().filter(|s| s.kind == PT_LOAD);
        let holds = |s: &&Segment| {
            let last = address.checked_add(old.len() as u64);
            s.vaddr <= address && last.is_some_and(|last| last <= s.vaddr + s.file_size)
        };
        let segment = loads.clone().find(holds)?;
        let at = usize::try_from(segment.offset + (address - segment.vaddr)).ok()?;
        let place = self.bytes.get_mut(at..at + old.len())?;
        if place != old {
            return None;
        }
        place.copy_from_slice(new);
        Some(())
    }

    /// Room that the program headers take.
    pub fn headers_len(&self, more: usize) -> usize {
        (self.segments.len() + more) * PHDR_SIZE
    }

    /// Adds what is to be mapped, in the order of addresses. The program headers go to `headers`, an address in one of the parts.
    pub fn finish(mut self, parts: &[Part], headers: u64) -> Option<Vec<u8>> {
        for part in parts {
            let offset = part.address.checked_sub(self.distance)?;
            let at = usize::try_from(offset).ok()?;
            if at < self.bytes.len() {
                return None;
            }
            self.bytes.resize(at, 0);
            self.bytes.extend_from_slice(part.bytes);
            let flags = if part.executable { PF_R | PF_X } else { PF_R };
            let len = part.bytes.len() as u64;
            self.segments.push(Segment {
                kind: PT_LOAD,
                flags,
                offset,
                vaddr: part.address,
                paddr: part.address,
                file_size: len,
                mem_size: len,
                align: PAGE,
            });
        }
        let count = self.segments.len();
        let place = headers - self.distance;
        // In the order of their addresses, in the places that segments to load have; the new ones follow the last of them.
        let mut loads: Vec<Segment> = Vec::new();
        self.segments.retain(|s| {
            let is_load = s.kind == PT_LOAD;
            loads.extend(is_load.then_some(*s));
            !is_load
        });
        loads.sort_by_key(|s| s.vaddr);
        // PT_PHDR and PT_INTERP precede them.
        let ahead = self
            .segments
            .iter()
            .filter(|s| matches!(s.kind, PT_INTERP | PT_PHDR));
        let others = self
            .segments
            .iter()
            .filter(|s| !matches!(s.kind, PT_INTERP | PT_PHDR));
        let mut all: Vec<Segment> = ahead.chain(&loads).chain(others).copied().collect();
        for segment in &mut all {
            if segment.kind == PT_PHDR {
                (segment.offset, segment.vaddr, segment.paddr) = (place, headers, headers);
                segment.file_size = (count * PHDR_SIZE) as u64;
                segment.mem_size = segment.file_size;
            }
        }
        let table: Vec<u8> = all.iter().flat_map(Segment::bytes).collect();
        put(&mut self.bytes, usize::try_from(place).ok()?, &table);
        put(&mut self.bytes, 32, &place.to_le_bytes());
        put(
            &mut self.bytes,
            56,
            &u16::try_from(count).ok()?.to_le_bytes(),
        );
        self.name_parts(parts);
        Some(self.bytes)
    }

    /// Section headers for the parts, where the file has any: a new table and new names behind everything.
    fn name_parts(&mut self, parts: &[Part]) -> Option<()> {
        let table = usize::try_from(u64_at(&self.bytes, 40)?).ok()?;
        let count = usize::from(u16_at(&self.bytes, 60)?);
        let names_index = usize::from(u16_at(&self.bytes, 62)?);
        let whole = count * SHDR_SIZE;
        if count == 0 || names_index == 0 || names_index >= count {
            return None;
        }
        let mut headers = self.bytes.get(table..table + whole)?.to_vec();
        let of_names = names_index * SHDR_SIZE;
        let offset = usize::try_from(u64_at(&headers, of_names + 24)?).ok()?;
        let len = usize::try_from(u64_at(&headers, of_names + 32)?).ok()?;
        let mut names = self.bytes.get(offset..offset.checked_add(len)?)?.to_vec();
        for part in parts {
            let mut header = [0; SHDR_SIZE];
            let flags = SHF_ALLOC | if part.executable { SHF_EXECINSTR } else { 0 };
            let words = [
                (8, flags),
                (16, part.address),
                (24, part.address - self.distance),
                (32, part.bytes.len() as u64),
                (48, PAGE),
            ];
            header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[4..8].copy_from_slice(&SHT_PROGBITS.to_le_bytes());
            for (at, word) in words {
                header[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            headers.extend_from_slice(&header);
            names.extend_from_slice(part.name.as_bytes());
            names.push(0);
        }
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&names);
        put(&mut headers, of_names + 24, &at.to_le_bytes());
        put(
            &mut headers,
            of_names + 32,
            &(names.len() as u64).to_le_bytes(),
        );
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&headers);
        put(&mut self.bytes, 40, &at.to_le_bytes());
        let count = u16::try_from(count + parts.len()).ok()?;
        put(&mut self.bytes, 60, &count.to_le_bytes());
        Some(())
    }

    fn sections(&self) -> Vec<Section> {
        let header = |at: usize| {
            Some(Section {
                name: String::new(),
                named_at: u32_at(&self.bytes, at)?,
                offset: u64_at(&self.bytes, at + 24)?,
                end: match u32_at(&self.bytes, at + 4)? {
                    // Without room in the file.
                    8 => 0,
                    _ => {
                        u64_at(&self.bytes, at + 24)?.checked_add(u64_at(&self.bytes, at + 32)?)?
                    }
                },
            })
        };
        let table = u64_at(&self.bytes, 40).and_then(|at| usize::try_from(at).ok());
        let count = u16_at(&self.bytes, 60).unwrap_or(0);
        let Some(table) = table.filter(|at| *at != 0 && *at < self.bytes.len()) else {
            return Vec::new();
        };
        let mut all: Vec<Section> = (0..usize::from(count))
            .map_while(|index| header(table + index * SHDR_SIZE))
            .collect();
        let names = usize::from(u16_at(&self.bytes, 62).unwrap_or(0));
        let Some(names) = all.get(names).map(|names| names.offset) else {
            return all;
        };
        for section in &mut all {
            let at = names.saturating_add(section.named_at.into());
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let rest = self.bytes.get(at..).unwrap_or_default();
            let name = rest.split(|byte| *byte == 0).next().unwrap_or_default();
            section.name = String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned();
        }
        all
    }
}

struct Section {
    name: String,
    named_at: u32,
    offset: u64,
    end: u64,
}

impl Segment {
    fn read(bytes: &[u8], at: usize) -> Option<Segment> {
        let word = |index: usize| u64_at(bytes, at + index);
        Some(Segment {
            kind: u32_at(bytes, at)?,
            flags: u32_at(bytes, at + 4)?,
            offset: word(8)?,
            vaddr: word(16)?,
            paddr: word(24)?,
            file_size: word(32)?,
            mem_size: word(40)?,
            align: word(48)?,
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PHDR_SIZE);
        out.extend(self.kind.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        for word in [
            self.offset,
            self.vaddr,
            self.paddr,
            self.file_size,
            self.mem_size,
            self.align,
        ] {
            out.extend(word.to_le_bytes());
        }
        out
    }
}

/// The value of an entry of the dynamic table, if it has that.
fn value_of(bytes: &[u8], dynamic: &Segment, tag: u64) -> Option<u64> {
    let start = usize::try_from(dynamic.offset).ok()?;
    let end = usize::try_from(dynamic.offset.checked_add(dynamic.file_size)?).ok()?;
    let entries = bytes.get(start..end)?.chunks_exact(16);
    let mut entries = entries.map_while(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)));
    entries
        .find(|(known, _)| *known == tag)
        .map(|(_, value)| value)
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + new.len()) {
        place.copy_from_slice(new);
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}
