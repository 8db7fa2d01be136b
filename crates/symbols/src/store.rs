//! An analysed module as bytes, so that the same file need not be analysed again, and the numbers and strings of which
//! such bytes consist.
//!
//! What a file's sections hold is not in them: it is read from the file, which has to be the very one that was analysed.
//! Reading is total: bytes that make no sense give `None`, and never more memory than they are worth.

use crate::cfi::{CfiTable, FrameEntry};
use crate::{FoundIn, Function, FunctionKind, LazySlot, Module, Section, Segment, gotable};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes in the making. Numbers take seven bits a byte, the low ones first.
#[derive(Default)]
pub struct Out(pub Vec<u8>);

impl Out {
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub fn size(&mut self, size: usize) {
        self.number(size as u64);
    }

    /// The way from `before`, which may lead backwards.
    pub fn step(&mut self, before: u64, number: u64) {
        let way = number.wrapping_sub(before) as i64;
        self.number(((way << 1) ^ (way >> 63)) as u64);
    }

    pub fn flag(&mut self, flag: bool) {
        self.0.push(u8::from(flag));
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.size(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub fn optional<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Out, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    pub fn list<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Out, &T)) {
        self.size(items.len());
        for item in items {
            put(self, item);
        }
    }
}

/// Bytes that are read.
pub struct In<'a>(pub &'a [u8]);

impl<'a> In<'a> {
    pub fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    pub fn step(&mut self, before: u64) -> Option<u64> {
        let way = self.number()?;
        Some(before.wrapping_add((way >> 1) ^ (way & 1).wrapping_neg()))
    }

    pub fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    pub fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.size()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    pub fn optional<T>(&mut self, get: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.flag()? {
            true => Some(Some(get(self)?)),
            false => Some(None),
        }
    }

    pub fn list<T>(&mut self, mut get: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.size()?;
        // Each takes a byte at least.
        if count > self.0.len() {
            return None;
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(get(self)?);
        }
        Some(items)
    }

    /// A text that lives for ever, as those do that the analysis gives: there are few of them.
    pub fn constant(&mut self) -> Option<&'static str> {
        const MOST: usize = 256;
        const LONGEST: usize = 512;
        static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let text = self.text()?;
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = known.get(text) {
            return Some(same);
        }
        if known.len() >= MOST || text.len() > LONGEST {
            return None;
        }
        let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
        known.insert(text);
        Some(text)
    }
}

impl Module {
    /// Everything but what its sections hold, and its Go functions, which are found again in those.
    pub fn store(&self, out: &mut Out) {
        // By name, so that nothing new is forgotten.
        let Module {
            name,
            build_id,
            position_independent,
            entry,
            segments,
            sections,
            functions,
            code_pointers,
            certain_code,
            pointed_to,
            gaps,
            padding,
            lazy_slots,
            cfi,
            eh_frame,
            eh_frame_hdr,
            is_loader,
            is_go,
            go,
            is_static,
            uses_rseq,
        } = self;
        out.text(name);
        out.optional(build_id.as_deref(), Out::bytes);
        for flag in [
            *position_independent,
            *is_loader,
            *is_go,
            go.is_some(),
            *is_static,
            *uses_rseq,
        ] {
            out.flag(flag);
        }
        out.number(*entry);
        out.list(segments, |out, s| {
            for number in [s.vaddr, s.mem_size, s.file_offset, s.file_size] {
                out.number(number);
            }
            out.flag(s.executable);
            out.flag(s.writable);
        });
        out.list(sections, |out, s| {
            out.text(&s.name);
            out.number(s.vaddr);
            out.number(s.size);
            out.flag(s.executable);
            out.flag(s.writable);
        });
        let mut last = 0;
        out.list(functions, |out, f| store_function(out, f, &mut last));
        for addresses in [code_pointers, certain_code, pointed_to] {
            store_addresses(out, addresses);
        }
        for ranges in [gaps, padding] {
            store_ranges(out, ranges);
        }
        let mut last = 0;
        out.list(lazy_slots, |out, slot| {
            out.step(last, slot.stub);
            out.text(&slot.symbol);
            last = slot.stub;
        });
        store_cfi(out, cfi);
        for range in [eh_frame, eh_frame_hdr] {
            out.optional(range.as_ref(), |out, range| {
                out.number(range.start);
                out.number(range.end);
            });
        }
    }

    /// What [`Module::store`] was given, if `file` is the file that it was made of.
    pub fn restore(stored: &mut In<'_>, file: &File) -> Option<Module> {
        let size = file.metadata().ok()?.len();
        let name = stored.text()?.to_owned();
        let build_id = stored.optional(|i| i.bytes().map(<[u8]>::to_vec))?;
        let [
            position_independent,
            is_loader,
            is_go,
            has_go_table,
            is_static,
            uses_rseq,
        ] = [(); 6].map(|()| stored.flag());
        let entry = stored.number()?;
        let segments = stored.list(|i| {
            Some(Segment {
                vaddr: i.number()?,
                mem_size: i.number()?,
                file_offset: i.number()?,
                file_size: i.number()?,
                executable: i.flag()?,
                writable: i.flag()?,
            })
        })?;
        let mut budget = size.saturating_mul(2);
        let is_go_file = has_go_table?;
        let sections =
            stored.list(|i| restore_section(i, &segments, file, is_go_file, &mut budget))?;
        let mut last = 0;
        let functions = stored.list(|i| restore_function(i, &mut last))?;
        let code_pointers = restore_addresses(stored)?;
        let certain_code = restore_addresses(stored)?;
        let pointed_to = restore_addresses(stored)?;
        let gaps = restore_ranges(stored)?;
        let padding = restore_ranges(stored)?;
        let mut last = 0;
        let lazy_slots = stored.list(|i| {
            last = i.step(last)?;
            let symbol = i.text()?.to_owned();
            Some(LazySlot { stub: last, symbol })
        })?;
        let mut cfi = restore_cfi(stored)?;
        let mut range = || stored.optional(|i| Some(i.number()?..i.number()?));
        let (eh_frame, eh_frame_hdr) = (range()?, range()?);
        let go = match is_go_file {
            true => Some(gotable::read(&sections, gotable::name_budget(size))?),
            false => None,
        };
        let mut module = Module {
            name,
            build_id,
            position_independent: position_independent?,
            entry,
            segments,
            sections,
            functions,
            code_pointers,
            certain_code,
            pointed_to,
            gaps,
            padding,
            lazy_slots,
            cfi: CfiTable::default(),
            eh_frame,
            eh_frame_hdr,
            is_loader: is_loader?,
            is_go: is_go?,
            go,
            is_static: is_static?,
            uses_rseq: uses_rseq?,
        };
        if let Some(range) = &module.eh_frame {
            let len = range.end.checked_sub(range.start)?;
            budget.checked_sub(len)?;
            let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, usize::try_from(len).ok()?).collect();
            let place = file_offset(&module.segments, range.start)?;
            file.read_exact_at(Arc::get_mut(&mut bytes)?, place).ok()?;
            cfi.eh_frame = bytes;
        }
        module.cfi = cfi;
        Some(module)
    }
}

/// The place in the file of what lies at `address`.
fn file_offset(segments: &[Segment], address: u64) -> Option<u64> {
    let next = segments.partition_point(|s| s.vaddr <= address);
    let segment = segments[..next].last()?;
    segment.file_offset.checked_add(address - segment.vaddr)
}

fn restore_section(
    stored: &mut In<'_>,
    segments: &[Segment],
    file: &File,
    is_go_file: bool,
    budget: &mut u64,
) -> Option<Section> {
    let name = stored.text()?.to_owned();
    let vaddr = stored.number()?;
    let len = stored.number()?;
    let (executable, writable) = (stored.flag()?, stored.flag()?);
    *budget = budget.checked_sub(len)?;
    vaddr.checked_add(len)?;
    let mut bytes = Vec::new();
    // The rest was there for the analysis: half of a large library, which would be copied for nothing.
    if executable || is_go_file || name == ".dynamic" {
        bytes.resize(usize::try_from(len).ok()?, 0);
        file.read_exact_at(&mut bytes, file_offset(segments, vaddr)?)
            .ok()?;
    }
    Some(Section {
        name,
        vaddr,
        size: len,
        bytes,
        executable,
        writable,
    })
}

fn store_function(out: &mut Out, function: &Function, last: &mut u64) {
    let Function {
        start,
        end,
        name,
        linkage_name,
        kind,
        found_in,
    } = function;
    out.step(*last, *start);
    out.step(*start, *end);
    *last = *end;
    let same = linkage_name.as_deref() == Some(name);
    out.0
        .push(u8::from(linkage_name.is_some()) | u8::from(same) << 1);
    out.text(name);
    if let Some(linkage_name) = linkage_name.as_deref().filter(|_| !same) {
        out.text(linkage_name);
    }
    match kind {
        FunctionKind::Normal => out.0.push(0),
        FunctionKind::Fragment => out.0.push(1),
        FunctionKind::Plt => out.0.push(2),
        FunctionKind::IfuncResolver => out.0.push(3),
        FunctionKind::EntryCode => out.0.push(4),
        FunctionKind::Untouchable(reason) => {
            out.0.push(5);
            out.text(reason);
        }
    }
    out.0.push(match found_in {
        FoundIn::Symtab => 0,
        FoundIn::Dynsym => 1,
        FoundIn::DebugData => 2,
        FoundIn::DebugLink => 3,
        FoundIn::EhFrame => 4,
        FoundIn::GoTable => 5,
    });
}

fn restore_function(stored: &mut In<'_>, last: &mut u64) -> Option<Function> {
    let start = stored.step(*last)?;
    let end = stored.step(start)?;
    if start < *last || end < start {
        return None;
    }
    *last = end;
    let names = stored.byte()?;
    let name = stored.text()?.to_owned();
    let linkage_name = match names {
        0 => None,
        1 => Some(stored.text()?.to_owned()),
        3 => Some(name.clone()),
        _ => return None,
    };
    let kind = match stored.byte()? {
        0 => FunctionKind::Normal,
        1 => FunctionKind::Fragment,
        2 => FunctionKind::Plt,
        3 => FunctionKind::IfuncResolver,
        4 => FunctionKind::EntryCode,
        5 => FunctionKind::Untouchable(stored.constant()?),
        _ => return None,
    };
    let found_in = match stored.byte()? {
        0 => FoundIn::Symtab,
        1 => FoundIn::Dynsym,
        2 => FoundIn::DebugData,
        3 => FoundIn::DebugLink,
        4 => FoundIn::EhFrame,
        5 => FoundIn::GoTable,
        _ => return None,
    };
    Some(Function {
        start,
        end,
        name,
        linkage_name,
        kind,
        found_in,
    })
}

fn store_addresses(out: &mut Out, addresses: &[u64]) {
    let mut last = 0;
    out.list(addresses, |out, &address| {
        out.step(last, address);
        last = address;
    });
}

fn restore_addresses(stored: &mut In<'_>) -> Option<Vec<u64>> {
    let mut last = 0;
    stored.list(|i| {
        last = i.step(last)?;
        Some(last)
    })
}

fn store_ranges(out: &mut Out, ranges: &[(u64, u64)]) {
    let mut last = 0;
    out.list(ranges, |out, range| {
        out.step(last, range.0);
        out.step(range.0, range.1);
        last = range.1;
    });
}

fn restore_ranges(stored: &mut In<'_>) -> Option<Vec<(u64, u64)>> {
    let mut last = 0;
    stored.list(|i| {
        let start = i.step(last)?;
        last = i.step(start)?;
        Some((start, last))
    })
}

fn store_cfi(out: &mut Out, cfi: &CfiTable) {
    let mut last = 0;
    out.list(&cfi.rows, |out, &(address, answer)| {
        let answer = match answer {
            None => 0,
            Some(false) => 1,
            Some(true) => 2,
        };
        out.number(address.wrapping_sub(last) << 2 | answer);
        last = address;
    });
    let (mut last, mut place) = (0, 0);
    out.list(&cfi.entries, |out, entry| {
        out.step(last, entry.start);
        out.step(entry.start, entry.end);
        out.step(place, entry.offset as u64);
        (last, place) = (entry.end, entry.offset as u64);
    });
}

/// But for the bytes of .eh_frame itself.
fn restore_cfi(stored: &mut In<'_>) -> Option<CfiTable> {
    let mut last = 0u64;
    let rows = stored.list(|i| {
        let number = i.number()?;
        last = last.checked_add(number >> 2)?;
        let answer = match number & 3 {
            0 => None,
            1 => Some(false),
            2 => Some(true),
            _ => return None,
        };
        Some((last, answer))
    })?;
    let (mut last, mut place) = (0, 0);
    let entries = stored.list(|i| {
        let start = i.step(last)?;
        let end = i.step(start)?;
        place = i.step(place)?;
        last = end;
        let offset = usize::try_from(place).ok()?;
        Some(FrameEntry { start, end, offset })
    })?;
    Some(CfiTable {
        rows,
        entries: Arc::new(entries),
        eh_frame: Arc::from([]),
    })
}
