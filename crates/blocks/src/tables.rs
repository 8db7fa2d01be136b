//! Where computed jumps go: the tables that compilers make for `switch` and for labels whose address is taken.
//!
//! Tables are read, never written. What is resolved are three forms:
//!
//! ```text
//! lea  base, [rip+table]                 mov  reg, [table + index*8]        jmp [table + index*8]
//! movsxd reg, dword [base + index*4]     jmp  reg
//! add  reg, base
//! jmp  reg
//! ```
//!
//! The definitions of a register are looked for backwards over all ways that are known to lead to the jump. How many
//! entries a table has is told by the compare before it; without one it ends where its entries stop being code of the group.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use iced_x86::{
    ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};
use thalweg_patch::code::Image;
use thalweg_symbols::Module;

use crate::group::Group;
use crate::walk::Code;

/// A table that a jump reads.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub targets: Vec<u64>,
    /// Its length is what a compare before the jump says.
    pub proven: bool,
}

/// Why a computed jump has no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// It jumps through a pointer or an argument, as a tail call does.
    Pointer,
    Other,
}

/// What the module says about data that pointers are in.
pub(crate) struct Constants {
    /// What the loader writes, by address.
    relocated: HashMap<u64, u64>,
    /// Addresses that instructions take: a table ends where something else begins.
    taken: BTreeSet<u64>,
}

const RELATIVE: u64 = 8;
const RELA_SIZE: usize = 24;
/// The longest table that is believed without a compare.
const MOST_ENTRIES: u64 = 4096;
/// How many instructions are looked at for one register.
const MOST_STEPS: usize = 4000;
/// The same for all registers of a group.
const MOST_STEPS_OF_A_GROUP: usize = 10_000_000;
/// How many registers and stack slots a value may have gone through.
const MOST_MOVES: u32 = 4;
/// Beyond it a compare is about something else.
const MOST_CASES: u64 = 100_000;

impl Constants {
    pub fn of(image: &Image) -> Constants {
        let module = image.module;
        let mut relocated = HashMap::new();
        for section in module.sections.iter().filter(|s| s.name == ".rela.dyn") {
            for entry in section.bytes.chunks_exact(RELA_SIZE) {
                let word = |at: usize| {
                    entry[at..at + 8]
                        .iter()
                        .rev()
                        .fold(0, |all, &b| all << 8 | u64::from(b))
                };
                if word(8) & u64::from(u32::MAX) == RELATIVE {
                    relocated.insert(word(0), word(16));
                }
            }
        }
        let mut taken = BTreeSet::new();
        for function in &module.functions {
            let Some(bytes) = image.code_range(function.start, function.end) else {
                continue;
            };
            let mut decoder = thalweg_patch::code::decoder(bytes, function.start);
            let mut instruction = Instruction::default();
            while decoder.can_decode() {
                decoder.decode_out(&mut instruction);
                if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand()
                {
                    taken.insert(instruction.ip_rel_memory_address());
                }
            }
        }
        Constants { relocated, taken }
    }
}

pub(crate) struct Resolver<'a> {
    pub module: &'a Module,
    pub constants: &'a Constants,
    pub group: &'a Group,
    pub code: &'a Code,
    /// Places that are entered from elsewhere: nothing is known of registers there.
    pub outside: &'a HashSet<u64>,
    pub info: &'a mut InstructionInfoFactory,
    pub known: &'a mut Known,
}

/// What was found out already of the registers of a group: the same is asked for each of many jumps.
pub(crate) struct Known {
    constants: HashMap<(u64, Register, u32), Option<BTreeSet<u64>>>,
    /// How many instructions may still be looked at.
    steps: usize,
}

impl Known {
    pub fn new() -> Known {
        Known {
            constants: HashMap::new(),
            steps: MOST_STEPS_OF_A_GROUP,
        }
    }
}

/// Registers that a call leaves as they were.
const KEPT: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// How many entries, and whether a compare says so.
type Bound = Option<(u64, bool)>;

impl Resolver<'_> {
    /// The tables of the computed jump at `jump`.
    pub fn resolve(&mut self, jump: u64) -> Result<Vec<Table>, Unknown> {
        let instruction = self.at(jump);
        if instruction.op0_kind() == OpKind::Memory {
            return self.of_pointers(jump, &instruction);
        }
        let definitions = self.definitions(jump, instruction.op0_register());
        let definitions = definitions.ok_or(Unknown::Pointer)?;
        let mut tables = Vec::new();
        for at in definitions {
            let definition = self.at(at);
            match definition.mnemonic() {
                Mnemonic::Add | Mnemonic::Lea => tables.extend(self.of_offsets(at, &definition)?),
                Mnemonic::Mov if definition.op1_kind() == OpKind::Memory => {
                    tables.extend(self.of_pointers(at, &definition)?);
                }
                _ => return Err(self.computed(at, MOST_MOVES)),
            }
        }
        match tables.is_empty() {
            true => Err(Unknown::Pointer),
            false => Ok(tables),
        }
    }

    /// Is what the instruction at `at` makes an address that was somewhere, or one that is computed from another? The second kind
    /// leads into the middle of code: `lea rdx, [rdx+rdi*4]; jmp rdx` enters an unrolled loop at any of its instructions.
    fn computed(&mut self, at: u64, moves: u32) -> Unknown {
        let Some(moves) = moves.checked_sub(1) else {
            return Unknown::Other;
        };
        let definition = self.at(at);
        let is_call = matches!(
            definition.flow_control(),
            FlowControl::Call | FlowControl::IndirectCall
        );
        let mut from = Vec::new();
        match definition.mnemonic() {
            _ if is_call => {}
            Mnemonic::Pop => {}
            Mnemonic::Lea if definition.is_ip_rel_memory_operand() => {}
            Mnemonic::Mov if is_immediate(definition.op1_kind()) => {}
            Mnemonic::Mov => from.push(definition.op1_register()),
            // Pointers that the C library keeps are mangled by these two.
            Mnemonic::Xor | Mnemonic::Ror => from.push(definition.op0_register()),
            _ if definition.condition_code() != ConditionCode::None
                && definition.op_count() == 2 =>
            {
                from.extend([definition.op0_register(), definition.op1_register()]);
            }
            _ => return Unknown::Other,
        }
        for register in from.into_iter().filter(|&from| from != Register::None) {
            let before = self.definitions(at, register).unwrap_or_default();
            for at in before {
                if self.computed(at, moves) == Unknown::Other {
                    return Unknown::Other;
                }
            }
        }
        Unknown::Pointer
    }

    fn at(&self, address: u64) -> Instruction {
        self.code
            .insns
            .get(&address)
            .map(|(_, i)| *i)
            .unwrap_or_default()
    }

    /// A jump or load by `[table + index*8]`.
    fn of_pointers(&mut self, at: u64, load: &Instruction) -> Result<Vec<Table>, Unknown> {
        if load.memory_index() == Register::None || load.memory_index_scale() != 8 {
            return Err(Unknown::Pointer);
        }
        let starts = self.starts(at, load)?;
        let bound = self.bound(at, load.memory_index());
        let read = |start| self.read(start, 8, 0, bound).ok_or(Unknown::Other);
        starts.into_iter().map(read).collect()
    }

    /// The sum of an offset from a table and of what it counts from.
    fn of_offsets(&mut self, at: u64, sum: &Instruction) -> Result<Vec<Table>, Unknown> {
        let is_register = sum.mnemonic() == Mnemonic::Add && sum.op1_kind() == OpKind::Register;
        let is_address = sum.mnemonic() == Mnemonic::Lea
            && sum.memory_index() != Register::None
            && sum.memory_index_scale() == 1;
        let (one, two) = match (is_register, is_address) {
            (true, _) => (sum.op0_register(), sum.op1_register()),
            (_, true) => (sum.memory_base(), sum.memory_index()),
            _ => return Err(self.computed(at, MOST_MOVES)),
        };
        for (offset, base) in [(one, two), (two, one)] {
            let Some(loads) = self.definitions(at, offset) else {
                continue;
            };
            let is_load = |&load: &u64| {
                let load = self.at(load);
                load.mnemonic() == Mnemonic::Movsxd && load.op1_kind() == OpKind::Memory
            };
            if loads.is_empty() || !loads.iter().all(is_load) {
                continue;
            }
            let bases = self.constants_in(at, base, MOST_MOVES);
            let mut tables = Vec::new();
            for at in loads {
                tables.extend(self.of_offset_load(at, bases.as_ref())?);
            }
            return Ok(tables);
        }
        Err(Unknown::Other)
    }

    fn of_offset_load(
        &mut self,
        at: u64,
        bases: Option<&BTreeSet<u64>>,
    ) -> Result<Vec<Table>, Unknown> {
        let load = self.at(at);
        let only = bases
            .filter(|bases| bases.len() == 1)
            .and_then(|bases| bases.first());
        if load.is_ip_rel_memory_operand() {
            // One entry, whose index the compiler knew.
            let &base = only.ok_or(Unknown::Other)?;
            let table = self.read(load.ip_rel_memory_address(), 4, base, Some((1, true)));
            return Ok(vec![table.ok_or(Unknown::Other)?]);
        }
        let starts = self.starts(at, &load)?;
        let bound = self.bound(at, load.memory_index());
        let mut tables = Vec::new();
        for start in starts {
            let base = match bases {
                Some(bases) if bases.contains(&start) => start,
                _ => *only.ok_or(Unknown::Other)?,
            };
            tables.push(self.read(start, 4, base, bound).ok_or(Unknown::Other)?);
        }
        Ok(tables)
    }

    /// Where the tables may begin that a load by base and index reads.
    fn starts(&mut self, at: u64, load: &Instruction) -> Result<Vec<u64>, Unknown> {
        let displacement = load.memory_displacement64();
        if load.memory_base() == Register::None {
            return Ok(vec![displacement]);
        }
        if load.memory_index() == Register::None {
            return Err(Unknown::Pointer);
        }
        let bases = self.constants_in(at, load.memory_base(), MOST_MOVES);
        let bases = bases.ok_or(Unknown::Other)?;
        Ok(bases
            .iter()
            .map(|base| base.wrapping_add(displacement))
            .collect())
    }

    /// Reads entries up to the bound, or up to the first that is none. With a compare every entry must be one.
    fn read(&self, start: u64, size: u64, base: u64, bound: Bound) -> Option<Table> {
        let proven = bound.is_some_and(|(_, proven)| proven);
        let most = bound.map_or(MOST_ENTRIES, |(entries, _)| entries);
        let next = self.constants.taken.range(start + 1..).next();
        let next = next.copied().unwrap_or(u64::MAX);
        let mut targets = Vec::new();
        for index in 0..most {
            let at = start.checked_add(index * size)?;
            if !proven && index > 0 && at >= next {
                break;
            }
            match self.entry(at, size, base) {
                Some(target) => targets.push(target),
                None if proven || index == 0 => return None,
                None => break,
            }
        }
        (!targets.is_empty()).then_some(Table { targets, proven })
    }

    fn entry(&self, at: u64, size: u64, base: u64) -> Option<u64> {
        let bytes = self.module.bytes_at(at, size)?;
        let raw = bytes
            .iter()
            .rev()
            .fold(0, |all, &b| all << 8 | u64::from(b));
        let target = match size {
            4 => base.wrapping_add(i64::from(raw as u32 as i32) as u64),
            _ => self.constants.relocated.get(&at).copied().unwrap_or(raw),
        };
        self.group.holds(target).then_some(target)
    }

    fn writes(&mut self, instruction: &Instruction, register: Register) -> bool {
        let flow = instruction.flow_control();
        if matches!(flow, FlowControl::Call | FlowControl::IndirectCall) {
            return !KEPT.contains(&register) && register != Register::RSP;
        }
        let used = self.info.info(instruction).used_registers();
        used.iter().any(|used| {
            used.register().full_register() == register
                && matches!(
                    used.access(),
                    OpAccess::Write
                        | OpAccess::ReadWrite
                        | OpAccess::CondWrite
                        | OpAccess::ReadCondWrite
                )
        })
    }

    /// Who wrote `register` last before `at`. `None`: perhaps somebody outside.
    fn definitions(&mut self, at: u64, register: Register) -> Option<Vec<u64>> {
        let register = register.full_register();
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut work = vec![at];
        while let Some(at) = work.pop() {
            self.known.steps = self.known.steps.checked_sub(1)?;
            if seen.len() > MOST_STEPS || self.group.entries.contains(&at) {
                return None;
            }
            let Some(before) = self.code.before.get(&at) else {
                if self.outside.contains(&at) {
                    continue;
                }
                return None;
            };
            for &before in before {
                if !seen.insert(before) {
                    continue;
                }
                if self.writes(&self.at(before), register) {
                    found.push(before);
                } else {
                    work.push(before);
                }
            }
        }
        Some(found)
    }

    /// The constants that `register` may be at `at`.
    fn constants_in(&mut self, at: u64, register: Register, moves: u32) -> Option<BTreeSet<u64>> {
        let key = (at, register.full_register(), moves);
        if let Some(known) = self.known.constants.get(&key) {
            return known.clone();
        }
        let found = self.find_constants(at, register, moves);
        self.known.constants.insert(key, found.clone());
        found
    }

    fn find_constants(&mut self, at: u64, register: Register, moves: u32) -> Option<BTreeSet<u64>> {
        let moves = moves.checked_sub(1)?;
        let mut found = BTreeSet::new();
        for at in self.definitions(at, register)? {
            let definition = self.at(at);
            let kind = definition.op1_kind();
            match definition.mnemonic() {
                Mnemonic::Lea if definition.is_ip_rel_memory_operand() => {
                    found.insert(definition.ip_rel_memory_address());
                }
                Mnemonic::Mov if kind == OpKind::Register => {
                    found.extend(self.constants_in(at, definition.op1_register(), moves)?);
                }
                Mnemonic::Mov if is_immediate(kind) => {
                    found.insert(definition.immediate(1));
                }
                Mnemonic::Mov if kind == OpKind::Memory => {
                    found.extend(self.constants_kept(&definition, moves)?);
                }
                _ => return None,
            }
        }
        (!found.is_empty()).then_some(found)
    }

    /// The same for what a load takes from the function's own stack frame.
    fn constants_kept(&mut self, load: &Instruction, moves: u32) -> Option<BTreeSet<u64>> {
        let place = |i: &Instruction| (i.memory_base(), i.memory_displacement64());
        if !matches!(load.memory_base(), Register::RSP | Register::RBP)
            || load.memory_index() != Register::None
        {
            return None;
        }
        let code = self.code;
        let stores = code.insns.values().map(|(_, i)| i).filter(|i| {
            i.mnemonic() == Mnemonic::Mov
                && i.op0_kind() == OpKind::Memory
                && i.memory_index() == Register::None
                && place(i) == place(load)
                && i.op1_kind() == OpKind::Register
                && i.op1_register().size() == 8
        });
        let mut found = BTreeSet::new();
        for store in stores {
            if let Some(values) = self.constants_in(store.ip(), store.op1_register(), moves) {
                found.extend(values);
            }
        }
        (!found.is_empty()).then_some(found)
    }

    /// How many values `index` can have at `at`, by the compares on the way there.
    fn bound(&mut self, at: u64, index: Register) -> Bound {
        const MOST_BEFORE: u32 = 40;
        const MOST_SEEN: usize = 400;
        let mut best = None;
        let mut seen = HashSet::new();
        let mut work = VecDeque::from([(at, vec![index.full_register()], 0)]);
        while let Some((at, same, steps)) = work.pop_front() {
            if steps > MOST_BEFORE || seen.len() > MOST_SEEN {
                continue;
            }
            for before in self.code.before.get(&at).cloned().unwrap_or_default() {
                if !seen.insert(before) {
                    continue;
                }
                let instruction = self.at(before);
                if let Some(bound) = self.compared(before, at, &instruction, &same) {
                    return Some(bound);
                }
                match self.same_before(&instruction, same.clone()) {
                    Before::Masked(entries) => return Some((entries, false)),
                    Before::Same(same, is_byte) => {
                        if is_byte {
                            best = best.or(Some((256, false)));
                        }
                        work.push_back((before, same, steps + 1));
                    }
                }
            }
        }
        best
    }

    /// What a conditional jump at `before`, on its way to `at`, says about one of `same`.
    fn compared(
        &self,
        before: u64,
        at: u64,
        branch: &Instruction,
        same: &[Register],
    ) -> Option<(u64, bool)> {
        if branch.flow_control() != FlowControl::ConditionalBranch {
            return None;
        }
        let taken = branch.near_branch_target() == at && branch.next_ip() != at;
        let further = match (branch.condition_code(), taken) {
            (ConditionCode::a, false) | (ConditionCode::be, true) => 1,
            (ConditionCode::ae, false) | (ConditionCode::b, true) => 0,
            _ => return None,
        };
        let mut at = before;
        for _ in 0..4 {
            let &[only] = self.code.before.get(&at)?.as_slice() else {
                return None;
            };
            at = only;
            let compare = self.at(at);
            if compare.mnemonic() == Mnemonic::Cmp {
                if !is_immediate(compare.op1_kind()) || compare.immediate(1) >= MOST_CASES {
                    return None;
                }
                let is_register = compare.op0_kind() == OpKind::Register
                    && same.contains(&compare.op0_register().full_register());
                let is_memory = compare.op0_kind() == OpKind::Memory;
                let entries = compare.immediate(1) + further;
                return (is_register || is_memory).then_some((entries, is_register));
            }
            if compare.rflags_modified() != 0 {
                return None;
            }
        }
        None
    }

    /// Which registers held before `instruction` what those in `same` hold behind it.
    fn same_before(&mut self, instruction: &Instruction, mut same: Vec<Register>) -> Before {
        let written: Vec<Register> = same
            .iter()
            .copied()
            .filter(|&register| self.writes(instruction, register))
            .collect();
        if written.is_empty() {
            return Before::Same(same, false);
        }
        let kind = instruction.op1_kind();
        let mut is_byte = false;
        same.retain(|register| !written.contains(register));
        match instruction.mnemonic() {
            Mnemonic::And if is_immediate(kind) && instruction.immediate(1) < MOST_CASES => {
                return Before::Masked(instruction.immediate(1) + 1);
            }
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsxd | Mnemonic::Movsx
                if kind == OpKind::Register =>
            {
                let from = instruction.op1_register();
                is_byte = instruction.mnemonic() == Mnemonic::Movzx && from.size() == 1;
                same.push(from.full_register());
            }
            Mnemonic::Movzx => is_byte = instruction.memory_size().size() == 1,
            _ => {}
        }
        Before::Same(same, is_byte)
    }
}

enum Before {
    /// An `and` leaves so many values.
    Masked(u64),
    /// `true`: it is a byte.
    Same(Vec<Register>, bool),
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate32to64
            | OpKind::Immediate64
    )
}
