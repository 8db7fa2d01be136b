//! First pass over the whole text: every address that something outside of its own function's direct branches may jump to.
//!
//! Over-approximates. A false target costs a little coverage; a missed one would crash the program.

use crate::code_set::CodeSet;
use crate::helper_thread::HelperThread;
use crate::image::Image;
use crate::insn::{Flow, Insn, decoder};
use iced_x86::{Instruction, Mnemonic, OpKind, Register, RflagsBits};
use std::collections::HashSet;

/// The arithmetic flags, as iced's bits.
pub const ARITHMETIC: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;

#[derive(Default)]
pub struct Targets {
    /// Sorted, without duplicates. Everything but direct jumps within one function.
    pub hard: Vec<u64>,
    /// Those of `hard` that an instruction names as its target; the others come from data.
    pub named: CodeSet,
    /// Those that a direct jump or call out of a function leads to: code.
    pub jumped_to: CodeSet,
    /// Those that a table of jump targets holds.
    pub tabled: CodeSet,
    /// Those that an instruction reads or writes: data.
    pub read: CodeSet,
    /// Functions in whose own code a table of jump targets was found.
    pub with_tables: HashSet<usize>,
    /// What the offsets in those tables count from: their own start, or a place in the code.
    pub tables: HashSet<u64>,
    /// Starts of functions after whose call some caller reads a flag that the caller did not set.
    pub flags_read_after: HashSet<u64>,
    /// Ranges behind functions that nobody executes, reads or jumps to.
    pub padding: Vec<(u64, u64)>,
}

impl Targets {
    /// Is there a target in `[from, to)`?
    pub fn any_in(&self, from: u64, to: u64) -> bool {
        from < to
            && self
                .hard
                .get(self.hard.partition_point(|&t| t < from))
                .is_some_and(|&t| t < to)
    }

    pub fn in_range(&self, from: u64, to: u64) -> &[u64] {
        let first = self.hard.partition_point(|&t| t < from);
        let last = self.hard.partition_point(|&t| t < to);
        &self.hard[first..last.max(first)]
    }
}

struct Sweep<'i, 'm> {
    image: &'i Image<'m>,
    hard: Vec<u64>,
    named: CodeSet,
    jumped_to: CodeSet,
    read: CodeSet,
    /// Addresses of constants that code takes: maybe a jump table.
    tables: Vec<(u64, usize)>,
    /// Addresses inside a function that its own code takes: what a table's offsets may count from.
    labels: Vec<(usize, u64)>,
    flags_read_after: HashSet<u64>,
    /// Ends of functions that do not run on.
    closed_ends: Vec<u64>,
    absolute_operands: bool,
    code_span: (u64, u64),
}

const NO_FUNCTION: usize = usize::MAX;
/// Below this many ranges of code a second thread is not worth its start.
const WORTH_A_THREAD: usize = 256;

pub fn collect(image: &Image) -> Targets {
    let functions = &image.module.functions;
    let span = |f: fn(u64, u64) -> u64, empty: u64, end: bool| {
        image.code.iter().fold(empty, |acc, &i| {
            let s = &image.module.sections[i];
            f(acc, s.vaddr + if end { s.bytes.len() as u64 } else { 0 })
        })
    };
    let code_span = (span(u64::min, u64::MAX, false), span(u64::max, 0, true));
    let mut ranges: Vec<(usize, u64, u64)> = Vec::new();
    for &section in &image.code {
        let section = &image.module.sections[section];
        let end = section.vaddr + section.bytes.len() as u64;
        let mut at = section.vaddr;
        let first = functions.partition_point(|f| f.end <= at);
        for (function, f) in functions.iter().enumerate().skip(first) {
            if f.start >= end {
                break;
            }
            let (start, stop) = (f.start.max(at), f.end.min(end));
            ranges.extend([(NO_FUNCTION, at, start), (function, start, stop)]);
            at = at.max(stop);
        }
        ranges.push((NO_FUNCTION, at, end));
    }
    let sweep_all = |ranges: &[(usize, u64, u64)]| {
        let mut sweep = Sweep::new(image, code_span);
        for &(function, start, stop) in ranges {
            if sweep.range(function, start, stop) && function != NO_FUNCTION {
                sweep.closed_ends.push(stop);
            }
        }
        sweep
    };
    let mut sweep = if ranges.len() < WORTH_A_THREAD {
        sweep_all(&ranges)
    } else {
        let (here, there) = ranges.split_at(ranges.len() / 2);
        std::thread::scope(|scope| {
            let there_swept = HelperThread::spawn(scope, || sweep_all(there));
            let mut sweep = sweep_all(here);
            // A thread that could not do its part leaves it to this one.
            sweep.append(there_swept.join().unwrap_or_else(|_| sweep_all(there)));
            sweep
        })
    };
    sweep.hard.extend(&image.module.code_pointers);
    let closed_ends = std::mem::take(&mut sweep.closed_ends);
    let mut targets = sweep.resolve_tables();
    for end in closed_ends {
        let known = &image.module.padding;
        let found = known.binary_search_by_key(&end, |range| range.0);
        if let Ok(found) = found
            && !targets.any_in(end, known[found].1)
        {
            targets.padding.push(known[found]);
        }
    }
    targets
}

impl<'i, 'm> Sweep<'i, 'm> {
    fn new(image: &'i Image<'m>, code_span: (u64, u64)) -> Self {
        Sweep {
            image,
            hard: Vec::new(),
            named: CodeSet::of(image),
            jumped_to: CodeSet::of(image),
            read: CodeSet::of(image),
            tables: Vec::new(),
            labels: Vec::new(),
            flags_read_after: HashSet::new(),
            closed_ends: Vec::new(),
            absolute_operands: !image.module.position_independent,
            code_span,
        }
    }

    fn append(&mut self, mut other: Self) {
        self.hard.append(&mut other.hard);
        self.named.extend(&other.named);
        self.jumped_to.extend(&other.jumped_to);
        self.read.extend(&other.read);
        self.tables.append(&mut other.tables);
        self.labels.append(&mut other.labels);
        self.flags_read_after.extend(other.flags_read_after);
        self.closed_ends.append(&mut other.closed_ends);
    }

    /// Decodes `[start, end)` from its first byte on. True when its last instruction lets nothing fall through.
    fn range(&mut self, function: usize, start: u64, end: u64) -> bool {
        if start >= end {
            return false;
        }
        let Some(bytes) = self.image.code_range(start, end) else {
            return false;
        };
        let mut decoder = decoder(bytes, start);
        let mut instruction = Instruction::default();
        let mut after_call: Option<(u64, u32)> = None;
        let mut closed = false;
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let Some(insn) = Insn::from_iced(&instruction) else {
                closed = false;
                after_call = None;
                continue;
            };
            closed = insn.closed() && insn.end() == end;
            self.note_targets(function, start, end, &insn, &instruction);
            if let Some((callee, unset)) = &mut after_call {
                if insn.flow != Flow::Kernel && instruction.rflags_read() & *unset != 0 {
                    self.flags_read_after.insert(*callee);
                    after_call = None;
                } else {
                    *unset &= !instruction.rflags_modified();
                    if *unset == 0 || insn.flow != Flow::Next {
                        after_call = None;
                    }
                }
            }
            if let Flow::Call(callee) = insn.flow {
                after_call = Some((callee, ARITHMETIC));
            }
        }
        closed
    }

    fn note_targets(
        &mut self,
        function: usize,
        start: u64,
        end: u64,
        insn: &Insn,
        instruction: &Instruction,
    ) {
        match insn.flow {
            Flow::Jump(t) | Flow::Branch(t) | Flow::CountBranch(t) => {
                if function == NO_FUNCTION || !(start..end).contains(&t) {
                    self.code_target(t);
                    self.jump_target(function, t);
                }
                return;
            }
            Flow::Call(t) | Flow::Transaction(t) => {
                self.jump_target(function, t);
                return self.code_target(t);
            }
            Flow::Unmovable => self.code_target(instruction.near_branch_target()),
            _ => {}
        }
        if instruction.is_ip_rel_memory_operand() {
            let address = instruction.ip_rel_memory_address();
            if self.in_span(address) && self.image.is_code(address) {
                self.code_target(address);
                if function != NO_FUNCTION && instruction.mnemonic() != Mnemonic::Lea {
                    self.read.insert(address);
                }
                if (start..end).contains(&address) {
                    self.labels.push((function, address));
                }
                self.maybe_table(address, function);
            } else if instruction.op0_kind() == OpKind::Register
                && instruction.op1_kind() == OpKind::Memory
            {
                self.maybe_table(address, function);
            }
        }
        if self.absolute_operands {
            for op in 0..instruction.op_count() {
                match instruction.op_kind(op) {
                    OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => {
                        let value = instruction.immediate(op);
                        if self.in_span(value) {
                            self.hard.push(value);
                        }
                        self.maybe_table(value, function);
                    }
                    OpKind::Memory if instruction.memory_base() != Register::RIP => {
                        self.maybe_table(instruction.memory_displacement64(), function);
                    }
                    _ => {}
                }
            }
        }
    }

    fn in_span(&self, address: u64) -> bool {
        (self.code_span.0..self.code_span.1).contains(&address)
    }

    /// What stands outside of all functions may be data, and proves nothing.
    fn jump_target(&mut self, function: usize, address: u64) {
        if function != NO_FUNCTION && self.in_span(address) {
            self.jumped_to.insert(address);
        }
    }

    fn code_target(&mut self, address: u64) {
        // Most of what is called is called from many places.
        if self.in_span(address) && self.named.insert(address) != Some(false) {
            self.hard.push(address);
        }
    }

    fn maybe_table(&mut self, address: u64, function: usize) {
        if address.is_multiple_of(4) && self.image.table_at(address).is_some() {
            self.tables.push((address, function));
        }
    }

    /// Reads every constant that may be a table of 32-bit offsets from its own start.
    fn resolve_tables(mut self) -> Targets {
        self.tables.sort_unstable();
        self.tables.dedup();
        let functions = &self.image.module.functions;
        let mut with_tables = HashSet::new();
        let mut resolved = HashSet::new();
        let mut tabled = CodeSet::of(self.image);
        // What code takes the address of begins something new: it ends whatever was before it.
        self.labels.sort_unstable();
        self.labels.dedup();
        let mut starts: Vec<u64> = self
            .tables
            .iter()
            .filter(|t| t.1 != NO_FUNCTION)
            .map(|t| t.0)
            .collect();
        starts.dedup();
        for &(base, function) in &self.tables {
            let Some(bytes) = self.image.table_at(base) else {
                continue;
            };
            let own = functions.get(function);
            let limit = starts
                .get(starts.partition_point(|&s| s <= base))
                .copied()
                .unwrap_or(u64::MAX);
            let length = usize::try_from(limit - base)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            let offsets = bytes[..length]
                .chunks_exact(4)
                .map(|e| i64::from(i32::from_le_bytes([e[0], e[1], e[2], e[3]])));
            for offset in offsets.clone() {
                let target = base.wrapping_add_signed(offset);
                if !self.in_span(target) || !self.image.is_code(target) {
                    break;
                }
                self.hard.push(target);
                tabled.insert(target);
                if own.is_some_and(|f| (f.start..f.end).contains(&target)) {
                    with_tables.insert(function);
                    resolved.insert(base);
                }
            }
            let Some(own) = own else { continue };
            let first = self.labels.partition_point(|l| l.0 < function);
            for &(_, label) in self.labels[first..].iter().take_while(|l| l.0 == function) {
                let targets = offsets
                    .clone()
                    .map(|offset| label.wrapping_add_signed(offset));
                let before = self.hard.len();
                self.hard
                    .extend(targets.take_while(|t| (own.start..own.end).contains(t)));
                // One offset that fits may be chance.
                if self.hard.len() > before + 1 {
                    for &target in &self.hard[before..] {
                        tabled.insert(target);
                    }
                    with_tables.insert(function);
                    resolved.insert(label);
                }
            }
        }
        self.hard.sort_unstable();
        self.hard.dedup();
        Targets {
            hard: self.hard,
            named: self.named,
            jumped_to: self.jumped_to,
            tabled,
            read: self.read,
            with_tables,
            tables: resolved,
            flags_read_after: self.flags_read_after,
            padding: Vec::new(),
        }
    }
}
