//! The stack of a stopped thread, or a copy of one: which functions are active, and where each
//! one's return address is.
//!
//! The controller turns what is found here into the ancestors of everything the thread will call.
//! It needs the slot of every return address exactly, so this follows the unwind information to the
//! letter, expressions and signal frames included, and stops where there is none rather than guess.

use crate::Module;
use crate::cfi::FrameEntry;
use crate::frames::Bytes;
use crate::gotable::GoFrame;
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, Encoding, EvaluationResult, Expression,
    LittleEndian, Location, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Value,
    X86_64,
};
use std::collections::HashMap;
use std::sync::Arc;

/// An active function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// An address inside the active instruction: the pc of the innermost frame and of one that a
    /// signal interrupted, else the return address less one, so that a call at the very end of a
    /// function is still looked up in it.
    pub ip: u64,
    /// The value of rsp in the caller right after the return: the return address is in the eight
    /// bytes below. `None` where it is unknown, or where nothing is returned to (outermost frame,
    /// signal restorer).
    pub cfa: Option<u64>,
}

/// Reads eight bytes of the stopped thread's memory.
pub type ReadWord<'a> = dyn FnMut(u64) -> Option<u64> + 'a;

/// Where code that was moved elsewhere comes from: the address that stands for a program counter,
/// and by how much the stack pointer has to be raised to be what it would be there. `None` where
/// there is no such address.
pub type HomeOf<'a> = dyn FnMut(u64) -> Option<(u64, u64)> + 'a;

/// All registers of a thread, by their numbers in unwind information; the last one is the program
/// counter.
pub type AllRegisters = [u64; REGISTERS];

const RSP: usize = X86_64::RSP.0 as usize;
const RBP: usize = X86_64::RBP.0 as usize;
const RA: usize = X86_64::RA.0 as usize;
const REGISTERS: usize = 17;

/// All modules of one process.
#[derive(Default)]
pub struct Unwinder {
    /// By start of the address range they occupy.
    modules: Vec<Loaded>,
    /// What to do at an address, once worked out: deep recursion has few distinct return addresses.
    rules: HashMap<u64, Option<Rule>>,
    /// Code of the process's own making.
    generated: Vec<(u64, u64)>,
}

/// Rules that are kept; a program that is looked at for hours is met at ever new addresses.
const MOST_RULES: usize = 1 << 16;

type GoFrames = Arc<Vec<(u64, GoFrame)>>;

struct Loaded {
    start: u64,
    end: u64,
    bias: u64,
    bases: BaseAddresses,
    eh_frame: Arc<[u8]>,
    entries: Arc<Vec<FrameEntry>>,
    /// Executable sections, absolute.
    code: Vec<(u64, u64)>,
    is_loader: bool,
    /// Go code has tables of its own: from where to where, and the tables.
    go: Option<(u64, u64, GoFrames)>,
}

/// How to get from one frame to its caller's.
#[derive(Clone)]
struct Rule {
    cfa: Cfa,
    saved: Vec<(usize, Saved)>,
    signal: bool,
    outermost: bool,
}

#[derive(Clone, Copy)]
enum Cfa {
    /// cfa = register + offset
    Register(usize, i64),
    Expression(UnwindExpression<usize>, Encoding),
}

#[derive(Clone, Copy)]
enum Saved {
    /// register = [cfa + offset]
    At(i64),
    /// register = cfa + offset
    IsCfa(i64),
    /// register = the callee's other register
    Register(usize),
    Undefined,
    /// register = [expression(cfa)]
    AtExpression(UnwindExpression<usize>, Encoding),
    /// register = expression(cfa)
    IsExpression(UnwindExpression<usize>, Encoding),
}

/// A register's value, read from memory only when somebody needs it.
#[derive(Clone, Copy)]
enum Register {
    Unknown,
    Value(u64),
    InMemory(u64),
}

type Registers = [Register; REGISTERS];

/// From one frame to its caller's.
struct Step {
    cfa: u64,
    caller: Registers,
    signal: bool,
    outermost: bool,
}

/// Nothing was moved.
fn stays(address: u64) -> Option<(u64, u64)> {
    Some((address, 0))
}

fn value(registers: &Registers, number: usize, read: &mut ReadWord<'_>) -> Option<u64> {
    match *registers.get(number)? {
        Register::Unknown => None,
        Register::Value(value) => Some(value),
        Register::InMemory(at) => read(at),
    }
}

impl Unwinder {
    pub fn new() -> Self {
        Self::default()
    }

    /// `bias`: what the loader added to the module's own addresses.
    pub fn add_module(&mut self, module: &Module, bias: u64) {
        let segments = &module.segments;
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else {
            return;
        };
        let mut bases = BaseAddresses::default();
        if let Some(range) = &module.eh_frame {
            bases = bases.set_eh_frame(range.start);
        }
        for section in &module.sections {
            match section.name.as_str() {
                ".text" => bases = bases.set_text(section.vaddr),
                ".got" => bases = bases.set_got(section.vaddr),
                _ => {}
            }
        }
        let code = module.sections.iter().filter(|s| s.executable);
        self.modules.push(Loaded {
            start: first.vaddr.wrapping_add(bias),
            end: last.vaddr.wrapping_add(last.mem_size).wrapping_add(bias),
            bias,
            bases,
            eh_frame: module.cfi.eh_frame.clone(),
            entries: module.cfi.entries.clone(),
            code: code
                .map(|s| (s.vaddr.wrapping_add(bias), s.end().wrapping_add(bias)))
                .collect(),
            is_loader: module.is_loader,
            go: module
                .go
                .as_ref()
                .map(|table| (table.start, table.end, table.frames.clone())),
        });
        self.modules.sort_by_key(|m| m.start);
        self.rules.clear();
    }

    /// Where the process has code of its own making: from and to, in their order, apart from each
    /// other.
    pub fn set_generated(&mut self, ranges: Vec<(u64, u64)>) {
        self.generated = ranges;
    }

    /// The active functions, innermost first. Always at least the one at `rip`.
    pub fn unwind(
        &mut self,
        rip: u64,
        rsp: u64,
        rbp: u64,
        max_frames: usize,
        read: &mut ReadWord<'_>,
    ) -> Vec<Frame> {
        let mut registers = [Register::Unknown; REGISTERS];
        registers[RSP] = Register::Value(rsp);
        registers[RBP] = Register::Value(rbp);
        registers[RA] = Register::Value(rip);
        let mut frames = Vec::new();
        self.follow(registers, rip, max_frames, read, &mut stays, &mut frames);
        frames
    }

    /// The same with all registers known, into `frames`; says whether it came to the outermost
    /// frame. Nothing is added to `frames` where the program counter is that of moved code without
    /// a home.
    pub fn walk(
        &mut self,
        registers: &AllRegisters,
        max_frames: usize,
        read: &mut ReadWord<'_>,
        home: &mut HomeOf<'_>,
        frames: &mut Vec<Frame>,
    ) -> bool {
        frames.clear();
        let mut known = registers.map(Register::Value);
        let Some((ip, raise)) = home(registers[RA]) else {
            return false;
        };
        known[RSP] = Register::Value(registers[RSP].wrapping_add(raise));
        self.follow(known, ip, max_frames, read, home, frames)
    }

    fn follow(
        &mut self,
        mut registers: Registers,
        mut ip: u64,
        max_frames: usize,
        read: &mut ReadWord<'_>,
        home: &mut HomeOf<'_>,
        frames: &mut Vec<Frame>,
    ) -> bool {
        while frames.len() < max_frames {
            let Some(step) = self.step(ip, &registers, read) else {
                let by_frame_pointer = self.step_by_frame_pointer(ip, &registers, read);
                let Some((cfa, caller, return_address)) = by_frame_pointer else {
                    frames.push(Frame { ip, cfa: None });
                    return self.is_outermost_by_convention(ip, &registers, read);
                };
                // The innermost function may not have set up its own frame yet, so that the slot
                // found through rbp is its caller's: it is not claimed.
                let known = !frames.is_empty();
                frames.push(Frame {
                    ip,
                    cfa: known.then_some(cfa),
                });
                registers = caller;
                ip = return_address - 1;
                continue;
            };
            // The stack only grows shorter, unless a signal led from one stack to another.
            let Step {
                cfa,
                mut caller,
                signal,
                outermost,
            } = step;
            let plausible = signal || value(&registers, RSP, read).is_some_and(|sp| cfa > sp);
            let returns = matches!(caller[RA], Register::InMemory(at) if at == cfa.wrapping_sub(8));
            let known = plausible && returns && !outermost;
            frames.push(Frame {
                ip,
                cfa: known.then_some(cfa),
            });
            if outermost || !plausible {
                return outermost;
            }
            let return_address = match value(&caller, RA, read) {
                Some(address) if address > 1 => address,
                // Nothing was put there that could be returned to.
                Some(_) => return true,
                None => return false,
            };
            ip = return_address - 1;
            if signal {
                let Some((moved_from, raise)) = home(return_address) else {
                    return false;
                };
                ip = moved_from;
                if raise > 0 {
                    let sp = value(&caller, RSP, read).map(|sp| sp.wrapping_add(raise));
                    caller[RSP] = sp.map_or(Register::Unknown, Register::Value);
                }
            }
            caller[RA] = Register::Value(return_address);
            registers = caller;
        }
        false
    }

    /// Code without unwind information whose frame pointer is zero, as the outermost frame's has to
    /// be; and the loader's own entry, which calls the constructors.
    fn is_outermost_by_convention(
        &self,
        ip: u64,
        registers: &Registers,
        read: &mut ReadWord<'_>,
    ) -> bool {
        let Some(module) = self.module_of(ip) else {
            return false;
        };
        let described = self.rules.get(&ip).is_some_and(Option::is_some);
        !described
            && module.go_frame(ip).is_none()
            && (module.is_loader || value(registers, RBP, read) == Some(0))
    }

    fn module_of(&self, address: u64) -> Option<&Loaded> {
        let next = self.modules.partition_point(|m| m.start <= address);
        self.modules[..next].last().filter(|m| address < m.end)
    }

    fn step(&mut self, ip: u64, registers: &Registers, read: &mut ReadWord<'_>) -> Option<Step> {
        if !self.rules.contains_key(&ip) {
            let rule = self.module_of(ip).and_then(|module| module.rule(ip));
            if self.rules.len() >= MOST_RULES {
                self.rules.clear();
            }
            self.rules.insert(ip, rule);
        }
        let rule = self.rules.get(&ip)?.as_ref()?;
        let section = || self.module_of(ip).map(Loaded::section);
        let cfa = match rule.cfa {
            Cfa::Register(register, offset) => {
                value(registers, register, read)?.wrapping_add_signed(offset)
            }
            Cfa::Expression(expression, encoding) => evaluate(
                expression.get(&section()?).ok()?,
                encoding,
                registers,
                None,
                read,
            )?,
        };
        let mut caller = *registers;
        caller[RSP] = Register::Value(cfa);
        for &(number, saved) in &rule.saved {
            caller[number] = match saved {
                Saved::At(offset) => Register::InMemory(cfa.wrapping_add_signed(offset)),
                Saved::IsCfa(offset) => Register::Value(cfa.wrapping_add_signed(offset)),
                Saved::Register(other) => registers[other],
                Saved::Undefined => Register::Unknown,
                Saved::AtExpression(expression, encoding) => {
                    let expression = expression.get(&section()?).ok()?;
                    Register::InMemory(evaluate(expression, encoding, registers, Some(cfa), read)?)
                }
                Saved::IsExpression(expression, encoding) => {
                    let expression = expression.get(&section()?).ok()?;
                    Register::Value(evaluate(expression, encoding, registers, Some(cfa), read)?)
                }
            };
        }
        Some(Step {
            cfa,
            caller,
            signal: rule.signal,
            outermost: rule.outermost,
        })
    }

    fn is_generated(&self, address: u64) -> bool {
        let next = self.generated.partition_point(|range| range.0 <= address);
        let last = self.generated[..next].last();
        last.is_some_and(|range| address < range.1)
    }

    /// Code of a known module that has no unwind information (Go, hand-written assembler), and code
    /// that the process has made itself, usually keeps rbp; what it points to is believed only if a
    /// return address after a call lies there.
    fn step_by_frame_pointer(
        &self,
        ip: u64,
        registers: &Registers,
        read: &mut ReadWord<'_>,
    ) -> Option<(u64, Registers, u64)> {
        let is_code = |address| {
            let is_files = self.module_of(address).is_some_and(|module| {
                let mut code = module.code.iter();
                code.any(|c| (c.0..c.1).contains(&address))
            });
            (is_files || self.is_generated(address)).then_some(())
        };
        is_code(ip)?;
        let module = self.module_of(ip);
        if module.is_some_and(|module| module.go_frame(ip).is_some()) {
            return None;
        }
        let bp = value(registers, RBP, read)?;
        let sp = value(registers, RSP, read)?;
        if bp < sp || bp % 8 != 0 {
            return None;
        }
        let return_address = read(bp.checked_add(8)?)?;
        is_code(return_address.checked_sub(1)?)?;
        let mut caller = [Register::Unknown; REGISTERS];
        caller[RBP] = Register::Value(read(bp)?);
        let cfa = bp.checked_add(16)?;
        caller[RSP] = Register::Value(cfa);
        caller[RA] = Register::Value(return_address);
        Some((cfa, caller, return_address))
    }
}

impl Loaded {
    fn section(&self) -> EhFrame<Bytes<'_>> {
        EhFrame::new(&self.eh_frame, LittleEndian)
    }

    fn go_frame(&self, ip: u64) -> Option<GoFrame> {
        let (start, end, frames) = self.go.as_ref()?;
        let address = ip.wrapping_sub(self.bias);
        if !(*start..*end).contains(&address) {
            return None;
        }
        let next = frames.partition_point(|frame| frame.0 <= address);
        Some(frames[..next].last().map_or(GoFrame::Unknown, |f| f.1))
    }

    fn rule(&self, ip: u64) -> Option<Rule> {
        if let Some(frame) = self.go_frame(ip) {
            return go_rule(frame);
        }
        let address = ip.wrapping_sub(self.bias);
        let next = self.entries.partition_point(|e| e.start <= address);
        let entry = self.entries[..next].last().filter(|e| address < e.end)?;
        let section = self.section();
        let cie = |section: &EhFrame<_>, bases: &_, offset| section.cie_from_offset(bases, offset);
        let fde = section
            .fde_from_offset(&self.bases, EhFrameOffset(entry.offset), cie)
            .ok()?;
        let mut context = UnwindContext::new();
        let row = fde
            .unwind_info_for_address(&section, &self.bases, &mut context, address)
            .ok()?;
        let encoding = fde.cie().encoding();
        let cfa = match *row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Cfa::Register(usize::from(register.0), offset)
            }
            CfaRule::Expression(expression) => Cfa::Expression(expression, encoding),
        };
        let mut saved = Vec::new();
        let mut outermost = row.register(X86_64::RA).is_none();
        for (register, rule) in row.registers() {
            let number = usize::from(register.0);
            if number >= REGISTERS {
                continue;
            }
            let rule = match rule.clone() {
                RegisterRule::Offset(offset) => Saved::At(offset),
                RegisterRule::ValOffset(offset) => Saved::IsCfa(offset),
                RegisterRule::Register(other) if usize::from(other.0) < REGISTERS => {
                    Saved::Register(usize::from(other.0))
                }
                RegisterRule::Expression(expression) => Saved::AtExpression(expression, encoding),
                RegisterRule::ValExpression(expression) => {
                    Saved::IsExpression(expression, encoding)
                }
                RegisterRule::SameValue => continue,
                _ => Saved::Undefined,
            };
            if number == RA && matches!(rule, Saved::Undefined) {
                outermost = true;
            }
            saved.push((number, rule));
        }
        Some(Rule {
            cfa,
            saved,
            signal: fde.is_signal_trampoline(),
            outermost,
        })
    }
}

/// A frame pointer is saved below the return address, by functions with a frame.
fn go_rule(frame: GoFrame) -> Option<Rule> {
    let (depth, outermost) = match frame {
        GoFrame::Depth(depth) => (i64::from(depth), false),
        GoFrame::Outermost => (0, true),
        GoFrame::Unknown => return None,
    };
    let mut saved = vec![(RA, Saved::At(-8))];
    if depth >= 8 {
        saved.push((RBP, Saved::At(-16)));
    }
    Some(Rule {
        cfa: Cfa::Register(RSP, depth + 8),
        saved,
        signal: false,
        outermost,
    })
}

fn evaluate(
    expression: Expression<Bytes<'_>>,
    encoding: Encoding,
    registers: &Registers,
    initial: Option<u64>,
    read: &mut ReadWord<'_>,
) -> Option<u64> {
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(1000);
    if let Some(initial) = initial {
        evaluation.set_initial_value(initial);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = value(registers, usize::from(register.0), read)?;
                evaluation
                    .resume_with_register(Value::Generic(value))
                    .ok()?
            }
            EvaluationResult::RequiresMemory {
                address, size: 8, ..
            } => evaluation
                .resume_with_memory(Value::Generic(read(address)?))
                .ok()?,
            _ => return None,
        };
    }
    match evaluation.as_result().last()?.location {
        Location::Address { address } => Some(address),
        _ => None,
    }
}
