//! Which functions enter the kernel by themselves, and whether each of their calls does so equally often.
//!
//! A `syscall` instruction stays where it is: the kernel may restart it. But every call of its function is counted, so that where
//! all ways through the function pass the same system calls, their number is known from that, exactly:
//!
//! ```text
//!   read:   cmp byte [fs:24], 0      one thread?          every way: read, once
//!           jne 1f
//!           xor eax, eax; syscall; ...; ret
//!       1:  ...; xor eax, eax; syscall; ...; ret
//! ```
//!
//! A way on which the function refuses what it is asked for by itself (no system call, and the answer is -1) does not count.
//!
//! The walk keeps what was passed so far, per way: a loop with a system call in it never comes to an end of that, and is given up.

use crate::image::Image;
use crate::insn::{Flow, Insn, decode_one};
use crate::targets::{Targets, collect};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use thalweg_symbols::{FunctionKind, Module};

/// A function with system calls of its own, not of those that it calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntersKernel {
    /// Index in the module's functions; a fragment that no known function goes on in is one of its own.
    pub function: usize,
    pub made: Made,
    /// The addresses of its `syscall` instructions, if how often it makes which is to be seen there.
    pub sites: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// By every call: which, where that is a constant, and how often.
    Each(Vec<(Option<u32>, u32)>),
    /// It depends on the way that a call takes: least and most, `None` where there is no end.
    Between(u32, Option<u32>),
    /// Not all of its code could be followed.
    Unknown,
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const EXIT: u32 = 60;
const EXIT_GROUP: u32 = 231;
const RT_SIGRETURN: u32 = 15;
const MUNMAP: u32 = 11;
/// Among what was passed: a system call that nobody comes back from. The code behind it is looked at all the same.
const GONE: Option<u32> = Some(u32::MAX);
/// Steps after which a function is given up.
const LIMIT: usize = 50_000;
/// System calls on one way, beyond which it is taken for a loop.
const MOST_ON_A_WAY: u32 = 8;

/// All functions of a module that have system calls.
pub fn enters_kernel(module: &Module) -> Vec<EntersKernel> {
    let image = Image::new(module);
    let targets = OnceCell::new();
    let with_calls: BTreeSet<usize> = (0..module.functions.len())
        .filter(|&index| {
            let function = &module.functions[index];
            let bytes = image.code_range(function.start, function.end);
            let has_any = |bytes: &[u8]| bytes.windows(2).any(|pair| pair == SYSCALL);
            function.kind != FunctionKind::Plt && bytes.is_some_and(has_any)
        })
        .collect();
    if with_calls.is_empty() {
        return Vec::new();
    }
    let mut candidates = with_calls.clone();
    candidates.extend(going_on_in(&image, &with_calls));
    let mut passed = HashSet::new();
    let mut found = Vec::new();
    for &function in candidates.iter().filter(|f| !image.is_fragment(**f)) {
        let mut walk = Walk::new(&image, &targets, function);
        let made = walk.made();
        passed.extend(walk.passed.keys().copied());
        if made != Made::Each(Vec::new()) {
            let sites = walk.sites(&made);
            found.push(EntersKernel {
                function,
                made,
                sites,
            });
        }
    }
    let apart = with_calls.iter().filter(|f| image.is_fragment(**f));
    for &function in apart {
        if instructions(&image, function).any(|at| !passed.contains(&at)) {
            found.push(EntersKernel {
                function,
                made: Made::Unknown,
                sites: Vec::new(),
            });
        }
    }
    found.sort_by_key(|one| one.function);
    found
}

/// The system calls of a function, each with the numbers that it may have, `None` for one that is no constant. `None` where not all
/// ways could be followed.
pub(crate) fn numbers(
    image: &Image,
    targets: &OnceCell<Targets>,
    function: usize,
) -> Option<BTreeMap<u64, BTreeSet<Option<u32>>>> {
    let mut walk = Walk::new(image, targets, function);
    let made = walk.made();
    (made != Made::Unknown && !walk.given_up).then_some(walk.passed)
}

/// Functions that jump to somewhere inside of one of `with_calls` that is not its start.
fn going_on_in(image: &Image, with_calls: &BTreeSet<usize>) -> BTreeSet<usize> {
    let functions = &image.module.functions;
    let mut found = BTreeSet::new();
    for (index, function) in functions.iter().enumerate() {
        let Some(bytes) = image.code_range(function.start, function.end) else {
            continue;
        };
        for (offset, six) in bytes.windows(5).enumerate() {
            let length = match six {
                [0xe9, ..] => 1,
                [0x0f, 0x80..=0x8f, ..] => 2,
                _ => continue,
            };
            let Some(distance) = bytes.get(offset + length..offset + length + 4) else {
                continue;
            };
            let distance = i32::from_le_bytes(distance.try_into().expect("four bytes"));
            let from = function.start + (offset + length + 4) as u64;
            let target = from.wrapping_add_signed(distance.into());
            let into = image.function_at(target).filter(|into| {
                let is_start = functions[*into].start == target && !image.is_fragment(*into);
                *into != index && !is_start && with_calls.contains(into)
            });
            if into.is_some() {
                found.insert(index);
            }
        }
    }
    found
}

/// Addresses of what decodes as `syscall`, from the start of the function on.
fn instructions<'a>(image: &'a Image, function: usize) -> impl Iterator<Item = u64> + 'a {
    let f = &image.module.functions[function];
    let (mut at, end) = (f.start, f.end);
    std::iter::from_fn(move || {
        while at < end {
            let here = at;
            let decoded = image.code_at(at).and_then(|bytes| decode_one(bytes, at));
            at += decoded.map_or(1, |i| i.len() as u64);
            if decoded.is_some_and(|i| i.mnemonic() == Mnemonic::Syscall) {
                return Some(here);
            }
        }
        None
    })
}

/// System calls passed so far, by number.
type Passed = BTreeMap<Option<u32>, u32>;

/// Which of the [`Ways`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Way(u32);

/// All that was passed on some way. Only a system call leads from one to another, and every instruction asks for its own.
struct Ways {
    all: Vec<Passed>,
    numbers: HashMap<Passed, Way>,
}

impl Ways {
    const NOTHING: Way = Way(0);

    fn new() -> Ways {
        Ways {
            all: vec![Passed::new()],
            numbers: HashMap::from([(Passed::new(), Ways::NOTHING)]),
        }
    }

    fn passed(&self, way: Way) -> &Passed {
        &self.all[way.0 as usize]
    }

    fn number(&mut self, passed: Passed) -> Way {
        let next = Way(self.all.len() as u32);
        let way = *self.numbers.entry(passed.clone()).or_insert(next);
        if way == next {
            self.all.push(passed);
        }
        way
    }
}

struct Walk<'a, 'm> {
    image: &'a Image<'m>,
    targets: &'a OnceCell<Targets>,
    function: usize,
    /// What registers are known to hold, by place and what was passed before.
    seen: HashMap<(u64, Way), Known>,
    ways: Ways,
    /// Addresses of the system calls that were met, and their numbers where those are constants.
    passed: BTreeMap<u64, BTreeSet<Option<u32>>>,
    /// What was passed on the ways out.
    ends: BTreeSet<Passed>,
    /// There are ways with more system calls than one looks at.
    endless: bool,
    /// It is too long.
    given_up: bool,
    /// It calls others; there are ways that end in the kernel.
    calls: bool,
    gone: bool,
    /// There are ways on which it refuses.
    refuses: bool,
    info: InstructionInfoFactory,
}

/// Where an instruction leads.
enum To {
    Inside(u64),
    Out,
}

impl<'a, 'm> Walk<'a, 'm> {
    fn new(image: &'a Image<'m>, targets: &'a OnceCell<Targets>, function: usize) -> Walk<'a, 'm> {
        Walk {
            image,
            targets,
            function,
            seen: HashMap::new(),
            ways: Ways::new(),
            passed: BTreeMap::new(),
            ends: BTreeSet::new(),
            endless: false,
            given_up: false,
            calls: false,
            gone: false,
            refuses: false,
            info: InstructionInfoFactory::new(),
        }
    }
}

impl Walk<'_, '_> {
    fn made(&mut self) -> Made {
        let start = self.image.module.functions[self.function].start;
        let mut work = vec![(start, Ways::NOTHING, Known::default())];
        let mut steps = 0;
        while let Some((at, way, known)) = work.pop() {
            steps += 1;
            if steps > LIMIT {
                self.given_up = true;
                return Made::Between(0, None);
            }
            if self.ways.passed(way).values().sum::<u32>() > MOST_ON_A_WAY {
                self.endless = true;
                continue;
            }
            let key = (at, way);
            let known = match self.seen.get(&key) {
                Some(before) if before.or(known) == *before => continue,
                Some(before) => before.or(known),
                None => known,
            };
            self.seen.insert(key, known);
            if self.step(at, way, known, &mut work).is_none() {
                return Made::Unknown;
            }
        }
        if instructions(self.image, self.function).any(|at| !self.passed.contains_key(&at)) {
            return Made::Unknown;
        }
        let totals: BTreeSet<u32> = self.ends.iter().map(|end| end.values().sum()).collect();
        let mut ends = self.ends.iter();
        match (ends.next(), ends.next()) {
            _ if self.endless => Made::Between(totals.first().copied().unwrap_or(0), None),
            // One of the others may be what does not come back, and the rest of the code for something else.
            _ if self.gone && self.calls => Made::Between(0, totals.last().copied()),
            (None, _) if self.refuses => Made::Each(Vec::new()),
            (None, _) => Made::Unknown,
            (Some(only), None) => Made::Each(only.iter().map(|(n, times)| (*n, *times)).collect()),
            _ if totals.len() == 1 => {
                let times = totals.first().copied().unwrap_or(0);
                Made::Each(vec![(None, times)])
            }
            _ => {
                let least = totals.first().copied().unwrap_or(0);
                Made::Between(least, totals.last().copied())
            }
        }
    }

    /// Where a probe is to count. A number that is no constant is left alone: the library's functions that can be cancelled at their
    /// system call know by the program counter whether they were, and get the number as an argument. Only `syscall`
    /// itself is none of these.
    fn sites(&self, made: &Made) -> Vec<u64> {
        let function = &self.image.module.functions[self.function];
        let numbers = || self.passed.values().flatten();
        let is_syscall = function.name == "syscall" && *made == Made::Each(vec![(None, 1)]);
        let constant = numbers().all(|number| number.is_some());
        let has = |wanted: u32| numbers().any(|number| *number == Some(wanted));
        // A thread that takes its own stack away.
        let leaps = has(MUNMAP) && has(EXIT);
        match made {
            Made::Between(..) if constant && !leaps => self.passed.keys().copied().collect(),
            _ if is_syscall => self.passed.keys().copied().collect(),
            _ => Vec::new(),
        }
    }

    /// A way out, with what is answered there.
    fn end(&mut self, way: Way, answer: Option<u32>) {
        let passed = self.ways.passed(way);
        let refused = passed.is_empty() && answer == Some(u32::MAX);
        match refused || passed.contains_key(&GONE) {
            true => self.refuses |= refused,
            false => {
                self.ends.insert(passed.clone());
            }
        }
    }

    /// One instruction; `None` where it cannot be followed.
    fn step(
        &mut self,
        at: u64,
        mut way: Way,
        mut known: Known,
        work: &mut Vec<(u64, Way, Known)>,
    ) -> Option<()> {
        let instruction = decode_one(self.image.code_at(at)?, at)?;
        let insn = Insn::from_iced(&instruction)?;
        let number = known.0[RAX];
        self.after(&instruction, &mut known);
        let mut go = |walk: &mut Self, target: u64, way: Way| match walk.to(target) {
            To::Inside(target) => work.push((target, way, known)),
            To::Out => walk.end(way, None),
        };
        if instruction.mnemonic() == Mnemonic::Syscall {
            let mut passed = self.ways.passed(way).clone();
            if !passed.contains_key(&GONE) {
                *passed.entry(number).or_default() += 1;
            }
            self.passed.entry(at).or_default().insert(number);
            // Nobody comes back from these.
            if matches!(number, Some(EXIT | EXIT_GROUP | RT_SIGRETURN)) {
                let until_here = self.ways.number(passed.clone());
                self.end(until_here, None);
                self.gone = true;
                passed.insert(GONE, 0);
            }
            way = self.ways.number(passed);
        }
        match insn.flow {
            Flow::Jump(target) => go(self, target, way),
            Flow::Branch(target) | Flow::CountBranch(target) | Flow::Transaction(target) => {
                go(self, target, way);
                go(self, insn.end(), way);
            }
            Flow::JumpIndirect => {
                let function = &self.image.module.functions[self.function];
                let targets = self.targets.get_or_init(|| collect(self.image));
                let inside = targets.in_range(function.start + 1, function.end).to_vec();
                for target in inside {
                    go(self, target, way);
                }
                self.end(way, None);
            }
            Flow::Call(_) | Flow::CallIndirect => {
                self.calls = true;
                // What does not decode behind a call is not come back to.
                let behind = insn.end();
                let decodes = self
                    .image
                    .code_at(behind)
                    .and_then(|b| decode_one(b, behind));
                if decodes.is_some() && self.is_own(behind) {
                    go(self, behind, way);
                }
            }
            Flow::Return | Flow::ReturnPop => self.end(way, known.0[RAX]),
            Flow::Stop => {}
            Flow::Next => go(self, insn.end(), way),
            Flow::Kernel => {
                let other = matches!(instruction.mnemonic(), Mnemonic::Int | Mnemonic::Sysenter);
                if other {
                    return None;
                }
                go(self, insn.end(), way);
            }
            Flow::Unmovable => return None,
        }
        Some(())
    }

    /// Behind a last call that does not return another function may begin.
    fn is_own(&self, at: u64) -> bool {
        matches!(self.to(at), To::Inside(_))
    }

    fn to(&self, target: u64) -> To {
        let functions = &self.image.module.functions;
        let starts_another = self.image.function_at(target).is_some_and(|index| {
            let is_start = functions[index].start == target;
            index != self.function && is_start && functions[index].kind != FunctionKind::Fragment
        });
        match starts_another || !self.image.is_code(target) {
            true => To::Out,
            false => To::Inside(target),
        }
    }

    /// What registers hold behind the instruction, where that is a constant.
    fn after(&mut self, instruction: &Instruction, known: &mut Known) {
        let register = |op: u32| {
            let register = instruction.op_register(op);
            (instruction.op_kind(op) == OpKind::Register && register.is_gpr()).then_some(register)
        };
        let to = (instruction.op_count() > 0).then(|| register(0)).flatten();
        let wide = to.filter(|to| to.size() >= 4).map(Known::place);
        let from = (instruction.op_count() > 1).then(|| instruction.op_kind(1));
        let number = from.filter(|kind| is_immediate(*kind));
        let number = number.map(|_| instruction.immediate(1) as u32);
        match (instruction.mnemonic(), wide) {
            (Mnemonic::Syscall, _) => {
                for clobbered in [Register::RAX, Register::RCX, Register::R11] {
                    known.0[Known::place(clobbered)] = None;
                }
            }
            (Mnemonic::Call, _) => known.forget_scratch(),
            (Mnemonic::Xor | Mnemonic::Sub, Some(place)) if register(1) == to => {
                known.0[place] = Some(0);
            }
            (Mnemonic::Mov, Some(place)) if number.is_some() => known.0[place] = number,
            (Mnemonic::Mov, Some(place)) if register(1).is_some() => {
                known.0[place] = register(1).and_then(|from| known.0[Known::place(from)]);
            }
            (Mnemonic::Or, Some(place)) if number == Some(u32::MAX) => known.0[place] = number,
            // musl: xor eax, eax; mov al, 56
            (Mnemonic::Mov, None) if to == Some(Register::AL) && number.is_some() => {
                let low = number.unwrap_or(0) & 0xff;
                known.0[RAX] = known.0[RAX].map(|value| value & !0xff | low);
            }
            _ => {
                let used = self.info.info(instruction).used_registers();
                let written = used.iter().filter(|used| {
                    let access = used.access();
                    !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead)
                });
                for register in written.map(|used| used.register()) {
                    if register.is_gpr() {
                        known.0[Known::place(register)] = None;
                    }
                }
            }
        }
    }
}

const RAX: usize = 0;

/// What the general registers hold: the lower half, where it is a constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Known([Option<u32>; 16]);

impl Known {
    fn place(register: Register) -> usize {
        register.full_register().number() % 16
    }

    /// What is certain if either may be so.
    fn or(self, other: Known) -> Known {
        let mut both = self;
        for (mine, other) in both.0.iter_mut().zip(other.0) {
            *mine = mine.filter(|_| *mine == other);
        }
        both
    }

    /// What a function that is called may change.
    fn forget_scratch(&mut self) {
        use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
        let kept = [RBX, RBP, RSP, R12, R13, R14, R15].map(Known::place);
        for (place, value) in self.0.iter_mut().enumerate() {
            *value = value.filter(|_| kept.contains(&place));
        }
    }
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32
            | OpKind::Immediate32to64
            | OpKind::Immediate64
    )
}
