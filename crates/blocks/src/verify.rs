//! A second look at a finished plan, from the bytes alone: what runs in the cave is what ran at home.
//!
//! Both are followed side by side, from every place at home that jumps to the cave: instruction by instruction they must do
//! the same, at a branch on both ways, and calls must be made with the return addresses of home, from where the way leads
//! back to the cave. In between stand counters: of each block that is entered its own, once, before it is left, where nobody
//! reads the flags or where they are kept. Where a thread goes on at home, it must meet neither bytes that a patch has
//! replaced nor a block that wants to be counted.

mod reads;

use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{ConditionCode, FlowControl, Instruction, Mnemonic, Register};
use thalweg_patch::Emitted;
use thalweg_patch::code::{ARITHMETIC, Flow, Image, Insn, decode_one, in_one_page};
use thalweg_symbols::Module;

use crate::cave::{COUNT_BYTES, GIVE_FLAGS, KEEP_FLAGS, Placement, WHOSE};
use crate::flags::COUNTED;
use crate::plan::{Block, BlockPlan, NotTaken};
use reads::reads_flags;

/// No message lists more.
const MOST_PROBLEMS: usize = 20;
/// Of what a call from the cave pushes.
const PUSHED: usize = 20;
/// `endbr64` stays where it is, and the jump to the cave stands behind it.
const ENDBR: u64 = 4;
/// Of a direct call.
const DISPLACEMENT: usize = 4;

/// What the checker found.
#[derive(Debug, Default)]
pub struct Verdict {
    /// What is wrong; nothing, if all is well.
    pub problems: Vec<String>,
    /// Starts of blocks to which no way that it knows leads.
    pub unseen: Vec<u64>,
}

/// Looks at what was emitted for `plan` at `place`.
pub fn verify(module: &Module, plan: &BlockPlan, emitted: &Emitted, place: &Placement) -> Verdict {
    let image = Image::new(module);
    let mut edges = HashMap::new();
    for block in &plan.blocks {
        if let NotTaken::Counter(counter) = block.not_taken {
            edges.insert(block.end, counter);
        }
    }
    let mut checker = Checker {
        image: &image,
        emitted,
        blocks: &plan.blocks,
        bias: place.bias,
        claim: place.encoder.claim(),
        patched: BTreeMap::new(),
        jumps: HashSet::new(),
        counters: (0..plan.counters)
            .map(|n| (place.encoder.count(n), n))
            .collect(),
        starts: (0..)
            .zip(&plan.blocks)
            .map(|(n, block)| (block.start, n))
            .collect(),
        edges,
        seen: HashSet::new(),
        work: Vec::new(),
        problems: Vec::new(),
    };
    checker.patches();
    for &function in &plan.functions {
        checker.go_home(module.functions[function].start, 0);
    }
    checker.follow();
    let seen = checker.seen.iter().filter_map(|at| match at {
        At::Cave(pair) => pair.block,
        At::Home { .. } => None,
    });
    let seen: HashSet<u32> = seen.collect();
    let unseen = (0..)
        .zip(&plan.blocks)
        .filter(|(number, _)| !seen.contains(number));
    Verdict {
        unseen: unseen.map(|(_, block)| block.start).collect(),
        problems: checker.problems,
    }
}

/// Where a thread is, and what is known of its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    /// At home; up to `until` it is counted already.
    Home {
        at: u64,
        until: u64,
    },
    Cave(Pair),
}

/// A place at home, and its partner in the cave.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Pair {
    home: u64,
    cave: u64,
    /// None: behind a group's end, where nothing but a jump home may stand.
    block: Option<u32>,
    /// The block's counter is still to come.
    owes: bool,
    /// So is the counter of the branch before it.
    edge: Option<u32>,
}

impl Pair {
    fn owes(&self) -> bool {
        self.owes || self.edge.is_some()
    }
}

struct Checker<'a, 'm> {
    image: &'a Image<'m>,
    emitted: &'a Emitted,
    blocks: &'a [Block],
    bias: u64,
    claim: u64,
    /// Bytes of the text that changed, by address of the module.
    patched: BTreeMap<u64, u8>,
    /// Where patches are jumps; the others are displacements of calls.
    jumps: HashSet<u64>,
    counters: HashMap<[u8; COUNT_BYTES], u32>,
    /// Blocks by their first address.
    starts: HashMap<u64, u32>,
    /// Counters of branches that are not taken, by their ends.
    edges: HashMap<u64, u32>,
    seen: HashSet<At>,
    work: Vec<At>,
    problems: Vec<String>,
}

impl<'a> Checker<'a, '_> {
    fn problem(&mut self, home: u64, what: &str) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(format!("{home:#x}: {what}"));
        }
    }

    /// They lie apart, in one page each, and replace what the file has.
    fn patches(&mut self) {
        let emitted = self.emitted;
        for patch in &emitted.patches {
            let at = patch.address.wrapping_sub(self.bias);
            let len = patch.original.len() as u64;
            if !in_one_page(at, len) {
                self.problem(at, "a patch crosses a page");
            }
            if self.image.code_range(at, at + len) != Some(&*patch.original) {
                self.problem(at, "a patch replaces what is not there");
            }
            for (address, &byte) in (at..).zip(&*patch.replacement) {
                if self.patched.insert(address, byte).is_some() {
                    self.problem(address, "two patches overlap");
                }
            }
        }
        let jumps = emitted.patches.iter();
        let jumps = jumps.filter(|patch| patch.replacement.len() != DISPLACEMENT);
        let jumps: Vec<u64> = jumps
            .map(|patch| patch.address.wrapping_sub(self.bias))
            .collect();
        self.jumps = jumps.iter().copied().collect();
        let bias = self.bias;
        let board = |address: u64| {
            let address = address.wrapping_add(bias);
            let index = emitted.back.partition_point(|pair| pair.0 < address);
            emitted
                .back
                .get(index)
                .is_some_and(|pair| pair.0 == address)
        };
        for at in jumps {
            match self.jump_to_cave(at) {
                Some(_) if board(at) => {}
                Some(cave) => self.enter_from_home(at, cave),
                None => self.problem(at, "a patch that does not lead to the cave"),
            }
        }
    }

    /// A byte of the text as it is with the patches.
    fn text(&self, at: u64) -> Option<u8> {
        match self.patched.get(&at) {
            Some(&byte) => Some(byte),
            None => self.image.code_range(at, at + 1).map(|bytes| bytes[0]),
        }
    }

    /// Where the jump at this place of the text leads to in the cave, by way of another one perhaps.
    fn jump_to_cave(&self, at: u64) -> Option<u64> {
        if !self.jumps.contains(&at) {
            return None;
        }
        match self.text(at)? {
            0xeb => {
                let way = self.text(at + 1)? as i8;
                let to = (at + 2).wrapping_add_signed(way.into());
                (self.text(to)? == 0xe9)
                    .then(|| self.jump_to_cave(to))
                    .flatten()
            }
            0xe9 => {
                let mut way = [0; 4];
                for (byte, from) in way.iter_mut().zip(at + 1..) {
                    *byte = self.text(from)?;
                }
                let from = at.wrapping_add(self.bias) + 5;
                let to = from.wrapping_add_signed(i32::from_le_bytes(way).into());
                self.cave(to).map(|_| to)
            }
            _ => None,
        }
    }

    /// The bytes of the cave from an address on.
    fn cave(&self, at: u64) -> Option<&'a [u8]> {
        let bytes = self.emitted.stubs_at(at)?;
        (!bytes.is_empty()).then_some(bytes)
    }

    /// The start of the block whose jump to the cave stands here.
    fn start_of(&self, at: u64) -> u64 {
        match at.checked_sub(ENDBR) {
            Some(before) if self.starts.contains_key(&before) && self.is_endbr(before) => before,
            _ => at,
        }
    }

    fn is_endbr(&self, at: u64) -> bool {
        let one = self.image.code_at(at).and_then(|code| decode_one(code, at));
        one.is_some_and(|one| one.mnemonic() == Mnemonic::Endbr64)
    }

    fn enter_from_home(&mut self, at: u64, cave: u64) {
        self.enter(self.start_of(at), cave);
    }

    /// A thread comes to the cave from elsewhere.
    fn enter(&mut self, home: u64, cave: u64) {
        match self.starts.get(&home).copied() {
            Some(block) => self.work.push(At::Cave(Pair {
                home,
                cave,
                block: Some(block),
                owes: true,
                edge: None,
            })),
            None => self.problem(home, "the cave is entered where no block begins"),
        }
    }

    fn go_home(&mut self, at: u64, until: u64) {
        self.work.push(At::Home { at, until });
    }

    fn follow(&mut self) {
        while let Some(at) = self.work.pop() {
            if self.problems.len() >= MOST_PROBLEMS || !self.seen.insert(at) {
                continue;
            }
            match at {
                At::Home { at, until } => {
                    if let Err(what) = self.step_home(at, until) {
                        self.problem(at, &what);
                    }
                }
                At::Cave(pair) => {
                    if let Err(what) = self.step(pair) {
                        self.problem(pair.home, &format!("{what} (at {:#x})", pair.cave));
                    }
                }
            }
        }
    }

    /// One instruction of a thread that runs the text as it is now.
    fn step_home(&mut self, at: u64, until: u64) -> Result<(), String> {
        if let Some(cave) = self.jump_to_cave(at) {
            self.enter_from_home(at, cave);
            return Ok(());
        }
        let code = self.image.code_at(at);
        let Some(one) = code.and_then(|code| decode_one(code, at)) else {
            return Ok(());
        };
        let Some(insn) = Insn::from_iced(&one) else {
            return Ok(());
        };
        // Its jump stands behind it.
        let is_endbr = one.mnemonic() == Mnemonic::Endbr64;
        let is_start = |at| self.starts.contains_key(&at);
        if at >= until && !is_endbr && is_start(self.start_of(at)) {
            return Err("a block runs at home, uncounted".into());
        }
        self.unpatched(&insn)?;
        match insn.flow {
            Flow::Call(_) | Flow::CallIndirect | Flow::Kernel => self.behind_call(&insn, until),
            _ => {
                if let Some(target) = insn.jump_target() {
                    self.go_home(target, until);
                }
                if !insn.closed() {
                    self.go_home(insn.end(), until);
                }
            }
        }
        Ok(())
    }

    /// An instruction that runs at home still stands there, but for where a call leads.
    fn unpatched(&mut self, insn: &Insn) -> Result<(), String> {
        let Flow::Call(target) = insn.flow else {
            return match (insn.addr..insn.end()).any(|at| self.patched.contains_key(&at)) {
                true => Err("an instruction that runs at home was patched over".into()),
                false => Ok(()),
            };
        };
        let way_at = insn.end() - 4;
        if (insn.addr..way_at).any(|at| self.patched.contains_key(&at)) {
            return Err("a call was patched over".into());
        }
        let mut way = [0; 4];
        for (byte, at) in way.iter_mut().zip(way_at..) {
            *byte = self.text(at).ok_or("half a call")?;
        }
        let from = insn.end().wrapping_add(self.bias);
        let to = from.wrapping_add_signed(i32::from_le_bytes(way).into());
        self.goes(target, to)
    }

    /// Where a call returns to, if it does: to a block of its own, or to one that is counted already. Another function behind
    /// it means that it does not.
    fn behind_call(&mut self, insn: &Insn, until: u64) {
        let back = insn.end();
        let function = |at| self.image.function_at(at);
        if self.jumps.contains(&back)
            || back < until
            || self.starts.contains_key(&back) && function(back) == function(insn.addr)
        {
            self.go_home(back, until);
        }
    }

    fn step(&mut self, pair: Pair) -> Result<(), String> {
        let Pair { home, cave, .. } = pair;
        let bytes = self.cave(cave).ok_or("leads out of the cave")?;
        let code = self.image.code_at(home).ok_or("leads out of the code")?;
        let one = decode_one(code, home).ok_or("does not decode at home")?;
        let insn = Insn::from_iced(&one).ok_or("does not decode at home")?;
        if let Some(ours) = self.ours(&pair, bytes)? {
            self.work.push(At::Cave(ours));
            return Ok(());
        }
        let two = decode_one(bytes, cave);
        let is_jump = |two: &Instruction| {
            two.flow_control() == FlowControl::UnconditionalBranch && two.near_branch_target() != 0
        };
        let jump = two.filter(is_jump).map(|two| two.near_branch_target());
        let at_home = home.wrapping_add(self.bias);
        let (mut is_call, mut until) = (false, 0);
        if let Flow::Call(_) | Flow::CallIndirect | Flow::Kernel = insn.flow {
            is_call = true;
        }
        if let (Some(to), false) = (jump, pair.owes())
            && to == at_home
        {
            // The thread goes on at home, in a call at the block's end or behind the group's end.
            if let Some(block) = pair.block {
                if !is_call {
                    return Err("the cave is left in a block's middle".into());
                }
                until = self.blocks[block as usize].end;
            }
            self.go_home(home, until);
            return Ok(());
        }
        if is_nothing(&one) {
            return self.on(&pair, &insn, cave);
        }
        let two = two.ok_or("does not decode in the cave")?;
        // A jump that home has not: the counter of what it has stands before it.
        if let Some(to) = jump
            && (pair.owes() || pair.block.is_none() || !matches!(insn.flow, Flow::Jump(_)))
            && !is_call
        {
            self.cave(to).ok_or("the cave jumps elsewhere")?;
            self.work.push(At::Cave(Pair { cave: to, ..pair }));
            return Ok(());
        }
        if pair.block.is_none() {
            return Err("the cave goes on where no block is".into());
        }
        let ends = is_call || insn.closed() || insn.jump_target().is_some();
        if ends && pair.owes() {
            return Err("a block is left uncounted".into());
        }
        if is_call {
            self.call_from_cave(&insn, &one, &two, bytes)?;
            self.behind_call(&insn, 0);
            return Ok(());
        }
        match insn.flow {
            Flow::Jump(target) => self.goes(target, jump.ok_or("the jump is missing")?),
            Flow::Branch(target) => {
                if one.condition_code() != two.condition_code() || !two.is_jcc_short_or_near() {
                    return Err("another condition".into());
                }
                self.on(&pair, &insn, two.next_ip())?;
                self.goes(target, two.near_branch_target())
            }
            Flow::CountBranch(target) => {
                // op +2; jmp +5; jmp target
                let right = bytes.get(2..5) == Some(&[0xeb, 5, 0xe9]);
                let taken = decode_one(&bytes[4..], cave + 4).ok_or("half a branch")?;
                let way = two.near_branch_target();
                if one.mnemonic() != two.mnemonic() || way != cave + 4 || !right {
                    return Err("another branch".into());
                }
                self.on(&pair, &insn, cave + 9)?;
                self.goes(target, taken.near_branch_target())
            }
            _ => {
                self.same(&one, &two)?;
                match insn.closed() {
                    true => Ok(()),
                    false => self.on(&pair, &insn, two.next_ip()),
                }
            }
        }
    }

    /// Straight on, behind an instruction.
    fn on(&mut self, pair: &Pair, insn: &Insn, cave: u64) -> Result<(), String> {
        let home = insn.end();
        let mut next = Pair {
            home,
            cave,
            ..*pair
        };
        let edge = insn.jump_target().and_then(|_| self.edges.get(&home));
        next.edge = edge.copied().or(pair.edge);
        let start = self.starts.get(&home).copied();
        let block = pair.block.map(|number| &self.blocks[number as usize]);
        if start.is_some() || block.is_some_and(|block| home >= block.end) {
            if pair.owes() {
                return Err("a block is left uncounted".into());
            }
            next.block = start;
            next.owes = start.is_some();
        }
        self.work.push(At::Cave(next));
        Ok(())
    }

    /// What follows, if what stands here is no copy but ours: a counter, or the question whose thread it is.
    fn ours(&self, pair: &Pair, bytes: &[u8]) -> Result<Option<Pair>, String> {
        if bytes.starts_with(WHOSE) {
            let len = self.asks(pair.cave, bytes)?;
            return match reads_flags(self.image, pair.home, ARITHMETIC) {
                true => Err("a check changes flags that are read".into()),
                false => Ok(Some(Pair {
                    cave: pair.cave + len,
                    ..*pair
                })),
            };
        }
        let count = |at: usize| {
            let code: Option<[u8; COUNT_BYTES]> = bytes
                .get(at..at + COUNT_BYTES)
                .and_then(|code| code.try_into().ok());
            code.and_then(|code| self.counters.get(&code).copied())
        };
        if let Some(counter) = count(0) {
            let Some(next) = self.counted(pair, counter)? else {
                return Ok(None);
            };
            return match reads_flags(self.image, pair.home, COUNTED) {
                true => Err("a counter changes flags that are read".into()),
                false => Ok(Some(Pair {
                    cave: pair.cave + COUNT_BYTES as u64,
                    ..next
                })),
            };
        }
        if !bytes.starts_with(KEEP_FLAGS) {
            return Ok(None);
        }
        let mut at = KEEP_FLAGS.len();
        let mut next = *pair;
        if let Some(counter) = count(at) {
            let Some(counted) = self.counted(pair, counter)? else {
                return Ok(None);
            };
            next = counted;
            at += COUNT_BYTES;
        } else if bytes[at..].starts_with(WHOSE) {
            at += self.asks(pair.cave + at as u64, &bytes[at..])? as usize;
        }
        if !bytes[at..].starts_with(GIVE_FLAGS) {
            return Err("flags are kept and not given back".into());
        }
        next.cave += (at + GIVE_FLAGS.len()) as u64;
        Ok(Some(next))
    }

    /// What is owed after this counter. None: it belongs to what follows the `nop`s at home.
    fn counted(&self, pair: &Pair, counter: u32) -> Result<Option<Pair>, String> {
        let mut next = *pair;
        if pair.edge == Some(counter) {
            next.edge = None;
        } else if pair.owes && pair.edge.is_none() && pair.block == Some(counter) {
            next.owes = false;
        } else {
            let code = self.image.code_at(pair.home);
            let one = code.and_then(|code| decode_one(code, pair.home));
            return match one.is_some_and(|one| is_nothing(&one)) && !pair.owes() {
                true => Ok(None),
                false => Err("a counter that is not the block's".into()),
            };
        }
        Ok(Some(next))
    }

    /// The length of the question whose thread it is: another one makes a detour, and comes back behind it.
    fn asks(&self, cave: u64, bytes: &[u8]) -> Result<u64, String> {
        let at = cave + WHOSE.len() as u64;
        let branch = decode_one(&bytes[WHOSE.len()..], at).ok_or("half a check")?;
        let detour = branch.near_branch_target();
        let code = self.cave(detour).ok_or("a check leads elsewhere")?;
        let call = decode_one(code, detour).ok_or("half a detour")?;
        let back = decode_one(&code[call.len()..], call.next_ip()).ok_or("half a detour")?;
        let right = branch.is_jcc_short_or_near()
            && branch.condition_code() == ConditionCode::ne
            && call.flow_control() == FlowControl::Call
            && call.near_branch_target() == self.claim
            && back.flow_control() == FlowControl::UnconditionalBranch
            && back.near_branch_target() == branch.next_ip();
        match right {
            true => Ok((WHOSE.len() + branch.len()) as u64),
            false => Err("a check that is none".into()),
        }
    }

    /// A call that is made from the cave, with the return address of home.
    fn call_from_cave(
        &mut self,
        insn: &Insn,
        one: &Instruction,
        two: &Instruction,
        bytes: &[u8],
    ) -> Result<(), String> {
        let back = insn.end().wrapping_add(self.bias).to_le_bytes();
        let mut push = [
            0xe8, 0, 0, 0, 0, 0xc7, 0x04, 0x24, 0, 0, 0, 0, 0xc7, 0x44, 0x24, 4, 0, 0, 0, 0,
        ];
        push[8..12].copy_from_slice(&back[..4]);
        push[16..].copy_from_slice(&back[4..]);
        if !bytes.starts_with(&push) {
            return Err("a call is missing".into());
        }
        let jump = decode_one(&bytes[PUSHED..], two.ip() + PUSHED as u64).ok_or("half a call")?;
        if let Flow::Call(target) = insn.flow {
            if jump.flow_control() != FlowControl::UnconditionalBranch {
                return Err("a call is missing".into());
            }
            return self.goes(target, jump.near_branch_target());
        }
        let operand = |i: &Instruction, bias: u64| {
            let place = match i.is_ip_rel_memory_operand() {
                true => i.ip_rel_memory_address().wrapping_add(bias),
                false => i.memory_displacement64(),
            };
            let memory = (i.memory_base(), i.memory_index(), i.memory_index_scale());
            let kind = (i.op0_kind(), i.op0_register(), i.segment_prefix());
            (kind, memory, place)
        };
        // What is pushed moves the stack pointer.
        let uses_stack = [one.op0_register(), one.memory_base()].contains(&Register::RSP);
        let right = jump.flow_control() == FlowControl::IndirectBranch
            && operand(one, self.bias) == operand(&jump, 0);
        match right && !uses_stack {
            true => Ok(()),
            false => Err("a call leads elsewhere".into()),
        }
    }

    /// An address is a place of the module's, or its partner in the cave: which is checked as such.
    fn goes(&mut self, home: u64, to: u64) -> Result<(), String> {
        if self.cave(to).is_some() {
            self.enter(home, to);
        } else if to == home.wrapping_add(self.bias) {
            self.go_home(home, 0);
        } else {
            return Err("a jump or call leads elsewhere".into());
        }
        Ok(())
    }

    fn same(&self, one: &Instruction, two: &Instruction) -> Result<(), String> {
        let mut expected = *one;
        if one.is_ip_rel_memory_operand() {
            let place = one.ip_rel_memory_address().wrapping_add(self.bias);
            expected.set_memory_displacement64(place);
        }
        match expected == *two && one.len() == two.len() {
            true => Ok(()),
            false => Err("another instruction".into()),
        }
    }
}

/// The cave has none of these.
fn is_nothing(one: &Instruction) -> bool {
    matches!(one.mnemonic(), Mnemonic::Nop | Mnemonic::Endbr64)
}
