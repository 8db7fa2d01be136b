//! Go's own table of functions (`.gopclntab`), which is in every Go program, stripped or not: names, extents, and at which
//! instructions the scheduler may take a goroutine off its thread.
//!
//! ```text
//! header | names | compilation units | files | pctab: runs of (value, pc) | ftab: (entry, offset of its description) ... descriptions
//! ```
//!
//! Entries are relative to where Go's code begins. The header says where that is only in some versions and only where
//! nothing is relocated, so it is looked for: one function of the runtime is known by its bytes and by what it jumps to.

use crate::bytes::{c_string, slice, u32_at, u64_at};
use crate::{FoundIn, Function, FunctionKind, Section};
use std::collections::HashMap;
use std::sync::Arc;

/// The part of a module that the Go compiler made.
#[derive(Clone, Debug, Default)]
pub struct GoTable {
    /// From the first function's start to the last one's end.
    pub start: u64,
    pub end: u64,
    /// Sorted by start.
    pub functions: Vec<GoFunction>,
    /// How stacks are followed, each from its address on to the next one's; address order.
    pub frames: Arc<Vec<(u64, GoFrame)>>,
}

/// How a stack goes on at an address of Go code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoFrame {
    /// The return address is so many bytes above the stack pointer.
    Depth(u32),
    /// Nobody called it.
    Outermost,
    /// It goes from one stack to another.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoFunction {
    pub start: u64,
    /// As the runtime knows it: without type arguments.
    pub name: String,
    /// Written in assembler.
    pub assembly: bool,
    /// Ranges of addresses at which no goroutine is ever preempted, relative to `start`, in order.
    pub unpreemptible: Vec<(u32, u32)>,
}

impl GoFunction {
    /// Whether a goroutine can be waiting to go on at `address`, other than after a call.
    pub fn may_be_preempted_at(&self, address: u64) -> bool {
        let at = address.wrapping_sub(self.start);
        let is_within = |&(from, to): &(u32, u32)| at >= u64::from(from) && at < u64::from(to);
        !self.unpreemptible.iter().any(is_within)
    }
}

impl GoTable {
    pub fn at(&self, start: u64) -> Option<&GoFunction> {
        let index = self.functions.binary_search_by_key(&start, |f| f.start);
        index.ok().map(|index| &self.functions[index])
    }

    pub fn named(&self, name: &str) -> Option<&GoFunction> {
        self.functions.iter().find(|f| f.name == name)
    }

    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

const MAGIC_1_18: u32 = 0xffff_fff0;
const MAGIC_1_20: u32 = 0xffff_fff1;
/// The value by which the first of a function's tables tells that goroutines are not preempted there.
const IS_UNSAFE: i64 = -2;
const FLAG_TOP_FRAME: u8 = 1;
const FLAG_WRITES_SP: u8 = 1 << 1;
const FLAG_ASSEMBLY: u8 = 1 << 2;
/// No frame is larger.
const MOST_DEPTH: i64 = 1 << 30;
const LONGEST_NAME: usize = 4096;
const FTAB_ENTRY: usize = 8;
/// Places that are looked at more closely in search of one function.
const MOST_CANDIDATES: usize = 64;

/// Whether a module has anything of Go in it.
pub(crate) fn is_go(sections: &[Section]) -> bool {
    sections
        .iter()
        .any(|s| s.name.ends_with(".gopclntab") || s.name == ".go.buildinfo")
}

/// How many bytes all names of a file of this size together may take: those of a hostile one may share one long string.
pub(crate) fn name_budget(file_size: u64) -> usize {
    let budget = file_size.saturating_mul(8).saturating_add(1 << 20);
    usize::try_from(budget).unwrap_or(usize::MAX)
}

/// The table, if there is one of a version that is known, and it describes code that is there.
pub(crate) fn read(sections: &[Section], name_budget: usize) -> Option<GoTable> {
    let named = sections.iter().filter(|s| s.name.ends_with(".gopclntab"));
    let by_name = named.filter_map(|s| Raw::parse(&s.bytes)).next();
    let raw = by_name.or_else(|| sections.iter().find_map(find_raw))?;
    let code: Vec<&Section> = sections.iter().filter(|s| s.executable).collect();
    let text = raw.text_start(&code)?;
    raw.functions(text, &code, name_budget)
}

/// The table somewhere in a section that has no name of its own for it.
fn find_raw(section: &Section) -> Option<Raw<'_>> {
    if section.executable {
        return None;
    }
    let starts = section.bytes.chunks_exact(8).enumerate();
    starts
        .filter(|(_, word)| matches!(word[..4], [0xf0 | 0xf1, 0xff, 0xff, 0xff]))
        .find_map(|(index, _)| Raw::parse(&section.bytes[index * 8..]))
}

struct Raw<'d> {
    names: &'d [u8],
    pctab: &'d [u8],
    /// ftab and the descriptions behind it.
    pcln: &'d [u8],
    count: usize,
    /// Size of a description without what it has a varying number of.
    fixed_size: usize,
}

impl<'d> Raw<'d> {
    fn parse(data: &'d [u8]) -> Option<Raw<'d>> {
        let fixed_size = match u32_at(data, 0)? {
            MAGIC_1_18 => 40,
            MAGIC_1_20 => 44,
            _ => return None,
        };
        // Two zeros, the unit of pc, the size of a pointer.
        if data.get(4..8)? != [0, 0, 1, 8] {
            return None;
        }
        let part = |field: usize| {
            let offset = u64_at(data, 32 + field * 8)?;
            data.get(usize::try_from(offset).ok()?..)
        };
        let raw = Raw {
            names: part(0)?,
            pctab: part(3)?,
            pcln: part(4)?,
            count: usize::try_from(u64_at(data, 8)?).ok()?,
            fixed_size,
        };
        let whole = raw.count.checked_add(1)?.checked_mul(FTAB_ENTRY)?;
        (raw.count > 0 && whole <= raw.pcln.len()).then_some(raw)
    }

    fn entry(&self, index: usize) -> Option<u32> {
        u32_at(self.pcln, index * FTAB_ENTRY)
    }

    fn description(&self, index: usize) -> Option<&'d [u8]> {
        let offset = u32_at(self.pcln, index * FTAB_ENTRY + 4)?;
        self.pcln.get(offset as usize..)
    }

    fn name(&self, index: usize) -> Option<&'d [u8]> {
        let offset = u32_at(self.description(index)?, 4)?;
        c_string(self.names, offset as usize, LONGEST_NAME)
    }

    /// `runtime.morestack_noctxt` is `mov edx, 0; jmp runtime.morestack`: where these bytes stand so that the jump is right,
    /// there it is.
    fn text_start(&self, code: &[&Section]) -> Option<u64> {
        let mut known = [None; 2];
        let wanted: [&[u8]; 2] = [b"runtime.morestack_noctxt", b"runtime.morestack"];
        for index in 0..self.count {
            if let Some(place) = wanted.iter().position(|w| self.name(index) == Some(w)) {
                known[place] = self.entry(index);
            }
        }
        let (from, to) = (i64::from(known[0]?), i64::from(known[1]?));
        let mut found = None;
        let mut candidates = 0;
        for section in code {
            for (at, window) in section.bytes.windows(10).enumerate() {
                let jump = match window {
                    [0xba, 0, 0, 0, 0, 0xe9, ..] => 5,
                    [0x31, 0xd2, 0xe9, ..] => 2,
                    _ => continue,
                };
                let displacement = u32_at(window, jump + 1)? as i32;
                if jump as i64 + 5 + i64::from(displacement) != to - from {
                    continue;
                }
                let here = section.vaddr.checked_add(at as u64)?;
                let Some(start) = here.checked_sub(from as u64) else {
                    continue;
                };
                candidates += 1;
                if candidates > MOST_CANDIDATES {
                    return None;
                }
                if self.is_text(start, section) && found.replace(start).is_some() {
                    return None;
                }
            }
        }
        found
    }

    /// Whether many of the functions begin as Go's do, with the check of the stack, if the first one is at `text`.
    fn is_text(&self, text: u64, section: &Section) -> bool {
        let checks = |index: &usize| {
            let entry = self.entry(*index).map_or(u64::MAX, u64::from);
            let at = text.saturating_add(entry).wrapping_sub(section.vaddr);
            let code = slice(&section.bytes, at, 14);
            let is_check = |w: &[u8]| matches!(w, [0x49 | 0x4d, 0x3b, 0x66, 0x10]);
            code.is_some_and(|code| code.windows(4).any(is_check))
        };
        (0..self.count).filter(checks).count() > self.count / 4
    }

    fn functions(&self, text: u64, code: &[&Section], mut budget: usize) -> Option<GoTable> {
        let mut functions = Vec::with_capacity(self.count.min(1 << 20));
        let end_of_all = text.checked_add(u64::from(self.entry(self.count)?))?;
        let mut previous = None;
        let mut frames = Vec::new();
        for index in 0..self.count {
            let entry = self.entry(index)?;
            let next = self.entry(index + 1)?;
            let start = text.checked_add(u64::from(entry))?;
            if previous.is_some_and(|p| p >= start) || next <= entry {
                return None;
            }
            previous = Some(start);
            holder(code, start)?;
            let description = self.description(index)?;
            let name = self.name(index)?;
            budget = budget.checked_sub(name.len())?;
            let flag = *description.get(self.fixed_size - 3)?;
            let unpreemptible = self
                .unpreemptible(description, next - entry)
                .unwrap_or_default();
            match flag {
                flag if flag & FLAG_TOP_FRAME != 0 => frames.push((start, GoFrame::Outermost)),
                flag if flag & FLAG_WRITES_SP != 0 => frames.push((start, GoFrame::Unknown)),
                _ => self.add_frames(start, description, next - entry, &mut frames),
            }
            functions.push(GoFunction {
                start,
                name: String::from_utf8_lossy(name).into_owned(),
                assembly: flag & FLAG_ASSEMBLY != 0,
                unpreemptible,
            });
        }
        Some(GoTable {
            start: functions.first()?.start,
            end: end_of_all,
            functions,
            frames: Arc::new(frames),
        })
    }

    /// Where the table is not what it should be, nothing is known of the function's stack.
    fn add_frames(
        &self,
        start: u64,
        description: &[u8],
        size: u32,
        frames: &mut Vec<(u64, GoFrame)>,
    ) {
        let before = frames.len();
        let table = u32_at(description, 16);
        let done = table.filter(|offset| *offset != 0).and_then(|offset| {
            self.runs(offset, size, |from, _, depth| {
                let known = (0..MOST_DEPTH).contains(&depth);
                let frame = match known {
                    true => GoFrame::Depth(depth as u32),
                    false => GoFrame::Unknown,
                };
                frames.push((start + u64::from(from), frame));
            })
        });
        if done.is_none() {
            frames.truncate(before);
            frames.push((start, GoFrame::Unknown));
        }
    }

    /// `None` where the table is not what it should be: then goroutines may be preempted anywhere.
    fn unpreemptible(&self, description: &[u8], size: u32) -> Option<Vec<(u32, u32)>> {
        let tables = u32_at(description, 28)?;
        if tables == 0 {
            return None;
        }
        let offset = u32_at(description, self.fixed_size)?;
        if offset == 0 {
            return None;
        }
        let mut ranges = Vec::new();
        self.runs(offset, size, |from, to, value| {
            if value == IS_UNSAFE {
                ranges.push((from, to));
            }
        })?;
        Some(ranges)
    }

    /// Visits the runs of one of a function's tables: from, to, relative to its start, and the value there. `None` where the table
    /// is not what it should be.
    fn runs(&self, offset: u32, size: u32, mut visit: impl FnMut(u32, u32, i64)) -> Option<()> {
        let mut rest = self.pctab.get(offset as usize..)?;
        let (mut value, mut pc) = (-1i64, 0u32);
        let mut first = true;
        while pc < size {
            let step = varint(&mut rest)?;
            if step == 0 && !first {
                break;
            }
            first = false;
            value += i64::from((step >> 1) as i32 ^ -((step & 1) as i32));
            let next = pc.checked_add(varint(&mut rest)?)?.min(size);
            if next <= pc {
                return None;
            }
            visit(pc, next, value);
            pc = next;
        }
        Some(())
    }
}

/// Of sections in address order, the one that holds `address`.
fn holder<'s>(sections: &[&'s Section], address: u64) -> Option<&'s Section> {
    let next = sections.partition_point(|s| s.vaddr <= address);
    let section = sections[..next].last()?;
    (address < section.end()).then_some(section)
}

fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..32).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Makes the functions of Go's code in `functions` those of `table`; names come from symbols where there are any, because
/// those have the type arguments.
pub(crate) fn replace(functions: &mut Vec<Function>, table: &GoTable, sections: &[Section]) {
    let mut named = HashMap::new();
    functions.retain_mut(|f| {
        let is_go = table.contains(f.start);
        if is_go && f.found_in != FoundIn::EhFrame {
            named.insert(f.start, std::mem::take(&mut f.name));
        }
        !is_go
    });
    let code: Vec<&Section> = sections.iter().filter(|s| s.executable).collect();
    let starts = table.functions.iter().map(|f| f.start);
    let ends = starts.clone().skip(1).chain([table.end]);
    for ((known, start), end) in table.functions.iter().zip(starts).zip(ends) {
        let code = holder(&code, start).and_then(|s| {
            let end = end.min(s.end());
            s.bytes
                .get((start - s.vaddr) as usize..(end - s.vaddr) as usize)
        });
        let padding = code.map_or(0, |c| c.iter().rev().take_while(|&&b| b == 0xcc).count());
        let length = code.map_or(0, |c| c.len() - padding);
        if length == 0 {
            continue;
        }
        let symbol = named.remove(&start);
        let symbol = symbol.map(|s| s.strip_suffix(".abi0").unwrap_or(&s).to_owned());
        functions.push(Function {
            start,
            end: start + length as u64,
            name: symbol.unwrap_or_else(|| known.name.clone()),
            linkage_name: None,
            kind: FunctionKind::Normal,
            found_in: FoundIn::GoTable,
        });
    }
    functions.sort_by_key(|f| f.start);
}
