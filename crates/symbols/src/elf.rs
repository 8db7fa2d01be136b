//! The ELF container: headers, segments, sections, the dynamic table, the build id.
//!
//! Everything after this file asks for bytes by virtual address, as the loader would see them, and
//! gets them from the segments: section headers are only hints, which a file may lack or lie in.

use crate::bytes::{c_string, slice, u16_at, u32_at, u64_at};
use crate::{Section, Segment};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {path}: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error("{name} is not an ELF file")]
    NotElf { name: String },
    #[error("{name} is a 32-bit ELF file; only 64-bit x86-64 files are supported")]
    Not64Bit { name: String },
    #[error("{name} is built for {found}; only x86-64 is supported")]
    WrongArchitecture { name: String, found: String },
    #[error("{name} is {found}, not an executable or a shared library")]
    NotLoadable { name: String, found: String },
    #[error("{name} is truncated: {what} reaches beyond the end of the file")]
    Truncated { name: String, what: &'static str },
    #[error("{name} is damaged: {what}")]
    Malformed { name: String, what: &'static str },
}

pub(crate) const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_RELA: u32 = 4;
pub(crate) const SHT_NOTE: u32 = 7;
pub(crate) const SHT_NOBITS: u32 = 8;
pub(crate) const SHT_DYNSYM: u32 = 11;
pub(crate) const SHT_RELR: u32 = 19;
pub(crate) const SHT_GNU_VERSYM: u32 = 0x6fff_ffff;
pub(crate) const SHF_WRITE: u64 = 1;
pub(crate) const SHF_ALLOC: u64 = 2;
pub(crate) const SHF_EXECINSTR: u64 = 4;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_W: u32 = 2;

pub(crate) const DT_NEEDED: u64 = 1;
pub(crate) const DT_HASH: u64 = 4;
pub(crate) const DT_STRTAB: u64 = 5;
pub(crate) const DT_SYMTAB: u64 = 6;
pub(crate) const DT_RELA: u64 = 7;
pub(crate) const DT_RELASZ: u64 = 8;
pub(crate) const DT_STRSZ: u64 = 10;
pub(crate) const DT_INIT: u64 = 12;
pub(crate) const DT_FINI: u64 = 13;
pub(crate) const DT_SONAME: u64 = 14;
pub(crate) const DT_PLTRELSZ: u64 = 2;
pub(crate) const DT_JMPREL: u64 = 23;
pub(crate) const DT_RELRSZ: u64 = 35;
pub(crate) const DT_RELR: u64 = 36;
pub(crate) const DT_GNU_HASH: u64 = 0x6fff_fef5;
pub(crate) const DT_VERSYM: u64 = 0x6fff_fff0;
pub(crate) const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_PIE: u64 = 0x0800_0000;

const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

/// A section header, with its name resolved.
pub(crate) struct Header {
    pub name: String,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
}

/// A file of which only the headers, the notes and the name of a debug file were read, and the rest
/// is zero. `None` where that is not worth its while, or the headers make no sense.
pub(crate) fn read_headers(file: &File) -> Option<Vec<u8>> {
    /// Beyond it the zeros may be more than the address space has.
    const LONGEST: u64 = 4 << 30;
    /// Program headers, notes, names: none of them is longer.
    const LONGEST_PART: u64 = 16 << 20;
    /// What a section may have that is not loaded: the name of a debug file.
    const SMALL: u64 = 4096;
    let size = file.metadata().ok()?.len();
    if size > LONGEST {
        return None;
    }
    let mut data = vec![0; usize::try_from(size).ok()?];
    let fill = |data: &mut Vec<u8>, offset: u64, len: u64| {
        let end = offset.checked_add(len).filter(|&end| end <= size)?;
        let place = data.get_mut(offset as usize..end as usize)?;
        (len <= LONGEST_PART).then_some(())?;
        file.read_exact_at(place, offset).ok()
    };
    fill(&mut data, 0, 64)?;
    let offset = u64_at(&data, 32)?;
    let len = u64::from(u16_at(&data, 54)?) * u64::from(u16_at(&data, 56)?);
    fill(&mut data, offset, len)?;
    let mut notes = Elf::parse("", &data).ok()?.notes;
    let offset = u64_at(&data, 40)?;
    if offset != 0 {
        fill(&mut data, offset, 64)?;
        let count = match u16_at(&data, 60)? {
            0 => u64_at(&data, usize::try_from(offset.checked_add(32)?).ok()?)?,
            n => u64::from(n),
        };
        let len = u64::from(u16_at(&data, 58)?).checked_mul(count)?;
        fill(&mut data, offset, len)?;
        let headers = Elf::parse("", &data).ok()?.headers;
        let names = match u16_at(&data, 62)? {
            0xffff => return None,
            n => headers.get(usize::from(n)),
        };
        notes.extend(names.map(|names| (names.offset, names.size)));
        let unloaded = |h: &&Header| h.flags & SHF_ALLOC == 0 && h.kind != SHT_NOBITS;
        let small = headers.iter().filter(unloaded).filter(|h| h.size <= SMALL);
        notes.extend(small.map(|h| (h.offset, h.size)));
        let build_ids = headers.iter().filter(|h| h.kind == SHT_NOTE);
        notes.extend(build_ids.map(|h| (h.offset, h.size)));
    }
    for (offset, len) in notes {
        fill(&mut data, offset, len)?;
    }
    Some(data)
}

/// The headers of a file; says nothing yet about whether the contents are there. A separate debug
/// file gets no further.
pub(crate) struct Elf<'d> {
    pub data: &'d [u8],
    pub kind: u16,
    pub entry: u64,
    pub segments: Vec<Segment>,
    pub headers: Vec<Header>,
    pub interp: bool,
    pub eh_frame_hdr: Option<Range<u64>>,
    dynamic: Option<(u64, u64)>,
    notes: Vec<(u64, u64)>,
}

impl<'d> Elf<'d> {
    pub(crate) fn parse(name: &str, data: &'d [u8]) -> Result<Self, Error> {
        let own = || name.to_owned();
        let truncated = |what| Error::Truncated { name: own(), what };
        if data.get(..4) != Some(b"\x7fELF") {
            return Err(Error::NotElf { name: own() });
        }
        let machine = u16_at(data, 18).ok_or_else(|| truncated("the ELF header"))?;
        if data[4] == 1 {
            return Err(if machine == 3 || machine == 62 {
                Error::Not64Bit { name: own() }
            } else {
                Error::WrongArchitecture {
                    name: own(),
                    found: format!("32-bit {}", machine_name(machine)),
                }
            });
        }
        if data[4] != 2 {
            return Err(Error::Malformed {
                name: own(),
                what: "the ELF class is neither 32 nor 64 bits",
            });
        }
        if data[5] == 2 {
            let found = format!("big-endian {}", machine_name(machine.swap_bytes()));
            return Err(Error::WrongArchitecture { name: own(), found });
        }
        if machine != 62 {
            return Err(Error::WrongArchitecture {
                name: own(),
                found: machine_name(machine),
            });
        }
        if data.len() < 64 {
            return Err(truncated("the ELF header"));
        }
        let kind = u16_at(data, 16).unwrap_or(0);
        let mut elf = Elf {
            data,
            kind,
            entry: u64_at(data, 24).unwrap_or(0),
            segments: Vec::new(),
            headers: Vec::new(),
            interp: false,
            eh_frame_hdr: None,
            dynamic: None,
            notes: Vec::new(),
        };
        elf.read_program_headers()
            .ok_or_else(|| truncated("the program header table"))?;
        elf.headers = elf.read_section_headers().unwrap_or_default();
        Ok(elf)
    }

    fn read_program_headers(&mut self) -> Option<()> {
        let data = self.data;
        let offset = u64_at(data, 32)?;
        let entry_size = u64::from(u16_at(data, 54)?);
        let count = u64::from(u16_at(data, 56)?);
        if count == 0 {
            return Some(());
        }
        if entry_size < 56 {
            return None;
        }
        let table = slice(data, offset, entry_size.checked_mul(count)?)?;
        for entry in table.chunks_exact(entry_size as usize) {
            let kind = u32_at(entry, 0)?;
            let flags = u32_at(entry, 4)?;
            let file_offset = u64_at(entry, 8)?;
            let vaddr = u64_at(entry, 16)?;
            let file_size = u64_at(entry, 32)?;
            let mem_size = u64_at(entry, 40)?;
            match kind {
                PT_LOAD => self.segments.push(Segment {
                    vaddr,
                    mem_size,
                    file_offset,
                    file_size,
                    executable: flags & PF_X != 0,
                    writable: flags & PF_W != 0,
                }),
                PT_INTERP => self.interp = true,
                PT_DYNAMIC => self.dynamic = Some((file_offset, file_size)),
                PT_NOTE => self.notes.push((file_offset, file_size)),
                PT_GNU_EH_FRAME => {
                    self.eh_frame_hdr = vaddr.checked_add(mem_size).map(|end| vaddr..end)
                }
                _ => {}
            }
        }
        self.segments.sort_by_key(|s| s.vaddr);
        Some(())
    }

    /// `None` where the table is absent or unreadable: the program runs without it, so it is not an
    /// error.
    fn read_section_headers(&self) -> Option<Vec<Header>> {
        let data = self.data;
        let offset = u64_at(data, 40)?;
        if offset == 0 {
            return None;
        }
        let entry_size = u64::from(u16_at(data, 58)?);
        if entry_size < 64 {
            return None;
        }
        let first = slice(data, offset, 64)?;
        let count = match u16_at(data, 60)? {
            0 => u64_at(first, 32)?,
            n => u64::from(n),
        };
        let names_index = match u16_at(data, 62)? {
            0xffff => u64::from(u32_at(first, 40)?),
            n => u64::from(n),
        };
        let table = slice(data, offset, entry_size.checked_mul(count)?)?;
        let names_at = usize::try_from(names_index.checked_mul(entry_size)?).ok()?;
        let names = table
            .get(names_at..)
            .and_then(|entry| slice(data, u64_at(entry, 24)?, u64_at(entry, 32)?))
            .unwrap_or(&[]);
        let mut headers = Vec::with_capacity(count as usize);
        for entry in table.chunks_exact(entry_size as usize) {
            let name = c_string(names, u32_at(entry, 0)? as usize, 256).unwrap_or(b"");
            headers.push(Header {
                name: String::from_utf8_lossy(name).into_owned(),
                kind: u32_at(entry, 4)?,
                flags: u64_at(entry, 8)?,
                addr: u64_at(entry, 16)?,
                offset: u64_at(entry, 24)?,
                size: u64_at(entry, 32)?,
                link: u32_at(entry, 40)?,
            });
        }
        Some(headers)
    }

    /// Errors unless this is something that a process can have mapped, complete.
    pub(crate) fn check_loadable(&self, name: &str) -> Result<(), Error> {
        let name = || name.to_owned();
        if self.kind != ET_EXEC && self.kind != ET_DYN {
            let found = match self.kind {
                1 => "an object file (.o)".to_owned(),
                4 => "a core dump".to_owned(),
                other => format!("an ELF file of unknown type {other}"),
            };
            return Err(Error::NotLoadable {
                name: name(),
                found,
            });
        }
        if self.segments.is_empty() {
            return Err(Error::Malformed {
                name: name(),
                what: "it has no loadable segment",
            });
        }
        let mut total = 0u64;
        for segment in &self.segments {
            if slice(self.data, segment.file_offset, segment.file_size).is_none() {
                return Err(Error::Truncated {
                    name: name(),
                    what: "a loadable segment",
                });
            }
            total = total.saturating_add(segment.file_size);
            let size = segment.mem_size.max(segment.file_size);
            if segment.vaddr.checked_add(size).is_none() {
                return Err(Error::Malformed {
                    name: name(),
                    what: "a segment wraps around the address space",
                });
            }
        }
        // Segments share a page or two of the file with their neighbours; they never repeat it many
        // times over.
        if total > (self.data.len() as u64).saturating_mul(4) {
            return Err(Error::Malformed {
                name: name(),
                what: "its segments overlap in the file",
            });
        }
        Ok(())
    }

    pub(crate) fn position_independent(&self) -> bool {
        self.kind == ET_DYN
    }

    pub(crate) fn header(&self, name: &str) -> Option<&Header> {
        self.headers.iter().find(|h| h.name == name)
    }

    /// The contents of a section that occupies space in the file.
    pub(crate) fn contents(&self, header: &Header) -> Option<&'d [u8]> {
        if header.kind == SHT_NOBITS {
            return None;
        }
        slice(self.data, header.offset, header.size)
    }

    /// What the loader puts at `vaddr`, up to the end of the file-backed part of its segment.
    pub(crate) fn bytes_from(&self, vaddr: u64) -> Option<&'d [u8]> {
        let next = self.segments.partition_point(|s| s.vaddr <= vaddr);
        let segment = &self.segments[..next].last()?;
        let skip = vaddr - segment.vaddr;
        if skip >= segment.file_size {
            return None;
        }
        slice(
            self.data,
            segment.file_offset.checked_add(skip)?,
            segment.file_size - skip,
        )
    }

    pub(crate) fn bytes(&self, vaddr: u64, len: u64) -> Option<&'d [u8]> {
        slice(self.bytes_from(vaddr)?, 0, len)
    }

    /// Tags and values, in file order, up to DT_NULL.
    pub(crate) fn dynamic_entries(&self) -> Vec<(u64, u64)> {
        let Some(table) = self
            .dynamic
            .and_then(|(offset, size)| slice(self.data, offset, size))
        else {
            return Vec::new();
        };
        table
            .chunks_exact(16)
            .filter_map(|e| Some((u64_at(e, 0)?, u64_at(e, 8)?)))
            .take_while(|&(tag, _)| tag != 0)
            .collect()
    }

    /// Allocated sections with contents in address order; without usable section headers, the
    /// segments.
    pub(crate) fn load_sections(&self) -> Vec<Section> {
        let mut budget = (self.data.len() as u64).saturating_mul(2);
        let mut sections = Vec::new();
        for header in &self.headers {
            if header.flags & SHF_ALLOC == 0 || header.kind == SHT_NOBITS || header.size == 0 {
                continue;
            }
            let Some(bytes) = self.bytes(header.addr, header.size) else {
                continue;
            };
            let Some(left) = budget.checked_sub(header.size) else {
                // More section contents than file: the headers lie.
                sections.clear();
                break;
            };
            budget = left;
            sections.push(Section {
                name: header.name.clone(),
                vaddr: header.addr,
                size: header.size,
                bytes: bytes.to_vec(),
                executable: header.flags & SHF_EXECINSTR != 0 && self.is_executable(header.addr),
                writable: header.flags & SHF_WRITE != 0,
            });
        }
        sections.sort_by_key(|s| s.vaddr);
        let overlap = sections.windows(2).any(|w| w[0].end() > w[1].vaddr);
        let code_missing =
            self.segments.iter().any(|s| s.executable) && !sections.iter().any(|s| s.executable);
        if !overlap && !code_missing && !sections.is_empty() {
            return sections;
        }
        self.segments
            .iter()
            .enumerate()
            .filter_map(|(i, s)| {
                Some(Section {
                    name: format!("LOAD{i}"),
                    vaddr: s.vaddr,
                    size: s.file_size,
                    bytes: slice(self.data, s.file_offset, s.file_size)?.to_vec(),
                    executable: s.executable,
                    writable: s.writable,
                })
            })
            .filter(|s| !s.bytes.is_empty())
            .collect()
    }

    fn is_executable(&self, vaddr: u64) -> bool {
        let next = self.segments.partition_point(|s| s.vaddr <= vaddr);
        self.segments[..next]
            .last()
            .is_some_and(|s| s.executable && vaddr - s.vaddr < s.mem_size)
    }

    pub(crate) fn build_id(&self) -> Option<Vec<u8>> {
        let from_sections = self
            .headers
            .iter()
            .filter(|h| h.kind == SHT_NOTE)
            .map(|h| (h.offset, h.size));
        from_sections
            .chain(self.notes.iter().copied())
            .find_map(|(offset, size)| {
                let notes = slice(self.data, offset, size)?;
                find_build_id(notes)
            })
    }

    /// The part of the file-backed image that section `name` says it covers.
    pub(crate) fn section_range(&self, name: &str) -> Option<Range<u64>> {
        let header = self.header(name)?;
        if header.flags & SHF_ALLOC == 0 || header.kind == SHT_NOBITS {
            return None;
        }
        self.bytes(header.addr, header.size)?;
        Some(header.addr..header.addr.checked_add(header.size)?)
    }

    pub(crate) fn soname(&self, dynamic: &[(u64, u64)]) -> Option<String> {
        let offset = dynamic.iter().find(|d| d.0 == DT_SONAME)?.1;
        let strings = dynamic.iter().find(|d| d.0 == DT_STRTAB)?.1;
        let bytes = self.bytes_from(strings.checked_add(offset)?)?;
        Some(String::from_utf8_lossy(c_string(bytes, 0, 1024)?).into_owned())
    }

    pub(crate) fn is_static_executable(&self, dynamic: &[(u64, u64)]) -> bool {
        let needs = dynamic.iter().any(|d| d.0 == DT_NEEDED);
        let pie = dynamic
            .iter()
            .any(|d| d.0 == DT_FLAGS_1 && d.1 & DF_1_PIE != 0);
        !self.interp && !needs && (self.kind == ET_EXEC || pie)
    }
}

fn find_build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    loop {
        let name_size = u32_at(notes, 0)? as usize;
        let value_size = u32_at(notes, 4)? as usize;
        let kind = u32_at(notes, 8)?;
        let name_end = 12usize.checked_add(name_size)?;
        let value_at = name_end.checked_next_multiple_of(4)?;
        let value_end = value_at.checked_add(value_size)?;
        let value = notes.get(value_at..value_end)?;
        if kind == NT_GNU_BUILD_ID
            && notes.get(12..name_end) == Some(b"GNU\0")
            && (2..=64).contains(&value.len())
        {
            return Some(value.to_vec());
        }
        notes = notes.get(value_end.checked_next_multiple_of(4)?..)?;
    }
}

fn machine_name(machine: u16) -> String {
    let known = match machine {
        2 => "SPARC",
        3 => "i386",
        8 => "MIPS",
        20 => "PowerPC",
        21 => "PowerPC64",
        22 => "S/390",
        40 => "ARM",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        258 => "LoongArch",
        other => return format!("machine {other}"),
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(class: u8, endian: u8, machine: u16, kind: u16) -> Vec<u8> {
        let mut data = vec![0u8; 64];
        data[..4].copy_from_slice(b"\x7fELF");
        data[4] = class;
        data[5] = endian;
        data[16..18].copy_from_slice(&kind.to_le_bytes());
        data[18..20].copy_from_slice(&machine.to_le_bytes());
        data
    }

    fn message(data: &[u8]) -> String {
        match Elf::parse("x", data).and_then(|elf| elf.check_loadable("x")) {
            Ok(()) => panic!("accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_file_that_cannot_be_profiled_is_refused_by_what_it_is() {
        assert_eq!(message(b"#!/bin/sh\n"), "x is not an ELF file");
        assert_eq!(
            message(&header(1, 1, 3, 2)),
            "x is a 32-bit ELF file; only 64-bit x86-64 files are supported"
        );
        assert_eq!(
            message(&header(2, 1, 183, 2)),
            "x is built for AArch64; only x86-64 is supported"
        );
        assert_eq!(
            message(&header(1, 1, 40, 2)),
            "x is built for 32-bit ARM; only x86-64 is supported"
        );
        assert_eq!(
            message(&header(2, 2, 22u16.swap_bytes(), 2)),
            "x is built for big-endian S/390; only x86-64 is supported"
        );
        assert_eq!(
            message(&header(2, 1, 62, 1)),
            "x is an object file (.o), not an executable or a shared library"
        );
        assert_eq!(
            message(&header(2, 1, 62, 4)),
            "x is a core dump, not an executable or a shared library"
        );
        assert_eq!(
            message(&header(2, 1, 62, 3)[..40]),
            "x is truncated: the ELF header reaches beyond the end of the file"
        );
    }
}
