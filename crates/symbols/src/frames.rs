//! .eh_frame: where functions start and end, how their frames look, where their exception tables
//! are.
//!
//! Present in nearly every stripped file, since unwinding needs it at run time: here stripped code
//! gets its functions.

use crate::cfi::{CfiTable, FrameEntry};
use crate::elf::Elf;
use gimli::{
    BaseAddresses, CallFrameInstruction, CieOrFde, CommonInformationEntry, EhFrame, EhFrameHdr,
    EhFrameOffset, EndianSlice, FrameDescriptionEntry, LittleEndian, Pointer, Register,
    UnwindSection, X86_64,
};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

pub(crate) type Bytes<'d> = EndianSlice<'d, LittleEndian>;

/// One frame description: a contiguous piece of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fde {
    pub start: u64,
    pub end: u64,
    /// Signal frame (augmentation `S`): code that only the kernel's signal delivery leads to.
    pub signal: bool,
    /// The return address is undefined at the first instruction: an outermost frame.
    pub outermost: bool,
    pub lsda: Option<u64>,
    /// Where in .eh_frame it is.
    offset: usize,
}

#[derive(Default)]
pub(crate) struct Frames {
    /// Sorted by start; one per start address.
    pub fdes: Vec<Fde>,
    pub cfi: CfiTable,
    pub eh_frame: Option<Range<u64>>,
}

pub(crate) fn read(elf: &Elf<'_>) -> Frames {
    let hdr_range = elf.eh_frame_hdr.clone();
    let mut bases = BaseAddresses::default();
    if let Some(text) = elf.section_range(".text") {
        bases = bases.set_text(text.start);
    }
    if let Some(got) = elf.section_range(".got") {
        bases = bases.set_got(got.start);
    }
    let hdr_bytes = hdr_range
        .as_ref()
        .and_then(|r| elf.bytes(r.start, r.end - r.start));
    if let Some(range) = &hdr_range {
        bases = bases.set_eh_frame_hdr(range.start);
    }
    let hdr =
        hdr_bytes.and_then(|bytes| EhFrameHdr::new(bytes, LittleEndian).parse(&bases, 8).ok());
    let range = elf.section_range(".eh_frame").or_else(|| {
        // Without section headers the end is unknown; a zero length marks it.
        let start = match hdr.as_ref()?.eh_frame_ptr() {
            Pointer::Direct(start) => start,
            Pointer::Indirect(_) => return None,
        };
        Some(start..start + elf.bytes_from(start)?.len() as u64)
    });
    let Some(range) = range else {
        return Frames::default();
    };
    let Some(bytes) = elf.bytes(range.start, range.end - range.start) else {
        return Frames::default();
    };
    bases = bases.set_eh_frame(range.start);
    let section = EhFrame::new(bytes, LittleEndian);

    let mut reader = Reader {
        elf,
        section,
        bases: &bases,
        cies: HashMap::new(),
        seen: HashSet::new(),
        found: Vec::new(),
    };
    reader.walk();
    if let Some(table) = hdr.as_ref().and_then(|h| h.table()) {
        let mut entries = table.iter(&bases);
        while let Ok(Some((_, pointer))) = entries.next() {
            let Pointer::Direct(at) = pointer else { break };
            // The walk ends at a zero terminator or at damage; the index knows entries beyond it.
            if let Some(offset) = at
                .checked_sub(range.start)
                .and_then(|o| usize::try_from(o).ok())
            {
                reader.one(offset);
            }
        }
    }
    let mut frames = reader.finish();
    frames.cfi.eh_frame = Arc::from(bytes);
    frames.eh_frame = Some(range);
    frames
}

struct Reader<'e, 'd> {
    elf: &'e Elf<'d>,
    section: EhFrame<Bytes<'d>>,
    bases: &'e BaseAddresses,
    cies: HashMap<usize, (CommonInformationEntry<Bytes<'d>>, Row)>,
    seen: HashSet<usize>,
    found: Vec<(Fde, Vec<(u64, bool)>)>,
}

#[derive(Clone, Copy, Default)]
struct Row {
    /// Register and offset; `None` for an expression.
    cfa: Option<(Register, i64)>,
    return_address_undefined: bool,
}

impl Row {
    fn is_rsp_plus_8(&self) -> bool {
        self.cfa == Some((X86_64::RSP, 8))
    }
}

impl<'d> Reader<'_, 'd> {
    fn walk(&mut self) {
        let section = self.section;
        let mut entries = section.entries(self.bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry {
                self.seen.insert(partial.offset());
                let cies = &mut self.cies;
                let parsed = partial
                    .parse(|section, bases, offset| cached_cie(cies, section, bases, offset));
                if let Ok(fde) = parsed {
                    self.add(&fde);
                }
            }
        }
    }

    fn one(&mut self, offset: usize) {
        if !self.seen.insert(offset) {
            return;
        }
        let section = self.section;
        let cies = &mut self.cies;
        let parsed = section.fde_from_offset(
            self.bases,
            EhFrameOffset(offset),
            |section, bases, offset| cached_cie(cies, section, bases, offset),
        );
        if let Ok(fde) = parsed {
            self.add(&fde);
        }
    }

    fn add(&mut self, fde: &FrameDescriptionEntry<Bytes<'d>>) {
        let (start, end) = (fde.initial_address(), fde.end_address());
        // Linkers leave entries of discarded sections behind with a start of zero.
        if start == 0 || end <= start {
            return;
        }
        let first = match self.cies.get(&fde.cie().offset()) {
            Some((_, row)) => *row,
            None => Row::default(),
        };
        let mut rows = Vec::new();
        let mut row = first;
        let mut at = start;
        let mut saved = Vec::new();
        let mut outermost = None;
        let section = self.section;
        let mut instructions = fde.instructions(&section, self.bases);
        while let Ok(Some(instruction)) = instructions.next() {
            let next = match instruction {
                CallFrameInstruction::AdvanceLoc { delta } => at.saturating_add(
                    u64::from(delta).saturating_mul(fde.cie().code_alignment_factor()),
                ),
                CallFrameInstruction::SetLoc { address } => address,
                other => {
                    step(&mut row, &first, &mut saved, fde.cie(), other);
                    continue;
                }
            };
            if next < at || next >= end {
                break;
            }
            if next > at {
                rows.push((at, row.is_rsp_plus_8()));
                outermost.get_or_insert(row.return_address_undefined);
                at = next;
            }
        }
        rows.push((at, row.is_rsp_plus_8()));
        rows.dedup_by_key(|row| row.1);
        let lsda = match fde.lsda() {
            Some(Pointer::Direct(at)) if at != 0 => Some(at),
            Some(Pointer::Indirect(at)) => self
                .elf
                .bytes(at, 8)
                .and_then(|b| crate::bytes::u64_at(b, 0)),
            _ => None,
        };
        let described = Fde {
            start,
            end,
            signal: fde.is_signal_trampoline(),
            outermost: outermost.unwrap_or(row.return_address_undefined),
            lsda,
            offset: fde.offset(),
        };
        self.found.push((described, rows));
    }

    fn finish(mut self) -> Frames {
        self.found
            .sort_by_key(|(fde, _)| (fde.start, std::cmp::Reverse(fde.end)));
        self.found.dedup_by_key(|(fde, _)| fde.start);
        let mut frames = Frames::default();
        let mut entries = Vec::with_capacity(self.found.len());
        for (fde, rows) in &self.found {
            for &(at, plus_8) in rows {
                frames.cfi.open(at, plus_8);
            }
            frames.cfi.close(fde.end);
            let (start, end, offset) = (fde.start, fde.end, fde.offset);
            entries.push(FrameEntry { start, end, offset });
            frames.fdes.push(*fde);
        }
        frames.cfi.entries = Arc::new(entries);
        frames
    }
}

fn cached_cie<'d>(
    cies: &mut HashMap<usize, (CommonInformationEntry<Bytes<'d>>, Row)>,
    section: &EhFrame<Bytes<'d>>,
    bases: &BaseAddresses,
    offset: EhFrameOffset<usize>,
) -> gimli::Result<CommonInformationEntry<Bytes<'d>>> {
    if let Some((cie, _)) = cies.get(&offset.0) {
        return Ok(cie.clone());
    }
    let cie = section.cie_from_offset(bases, offset)?;
    let mut row = Row::default();
    let mut instructions = cie.instructions(section, bases);
    while let Ok(Some(instruction)) = instructions.next() {
        step(
            &mut row,
            &Row::default(),
            &mut Vec::new(),
            &cie,
            instruction,
        );
    }
    cies.insert(offset.0, (cie.clone(), row));
    Ok(cie)
}

/// Only what decides the CFA and whether the frame is outermost; the other registers do not matter
/// here, and leaving them out makes this several times as fast as full unwind rows.
fn step(
    row: &mut Row,
    first: &Row,
    saved: &mut Vec<Row>,
    cie: &CommonInformationEntry<Bytes<'_>>,
    instruction: CallFrameInstruction<usize>,
) {
    let factored = |offset: i64| offset.wrapping_mul(cie.data_alignment_factor());
    match instruction {
        CallFrameInstruction::DefCfa { register, offset } => {
            row.cfa = Some((register, offset as i64))
        }
        CallFrameInstruction::DefCfaSf {
            register,
            factored_offset,
        } => {
            row.cfa = Some((register, factored(factored_offset)));
        }
        CallFrameInstruction::DefCfaRegister { register } => {
            row.cfa = row.cfa.map(|(_, offset)| (register, offset));
        }
        CallFrameInstruction::DefCfaOffset { offset } => {
            row.cfa = row.cfa.map(|(register, _)| (register, offset as i64));
        }
        CallFrameInstruction::DefCfaOffsetSf { factored_offset } => {
            row.cfa = row
                .cfa
                .map(|(register, _)| (register, factored(factored_offset)));
        }
        CallFrameInstruction::DefCfaExpression { .. } => row.cfa = None,
        CallFrameInstruction::Undefined { register } if register == X86_64::RA => {
            row.return_address_undefined = true
        }
        CallFrameInstruction::Offset { register, .. } if register == X86_64::RA => {
            row.return_address_undefined = false
        }
        CallFrameInstruction::Restore { register } if register == X86_64::RA => {
            row.return_address_undefined = first.return_address_undefined;
        }
        CallFrameInstruction::RememberState => saved.push(*row),
        CallFrameInstruction::RestoreState => {
            if let Some(state) = saved.pop() {
                *row = state;
            }
        }
        _ => {}
    }
}
