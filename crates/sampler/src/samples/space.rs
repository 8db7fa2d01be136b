//! The code that one process has mapped: how stacks are followed through it, and whose an address is.

use std::collections::HashMap;
use std::sync::Arc;

use thalweg_symbols::{DebugLookup, Frame, Function as Symbol, FunctionKind, Module, Unwinder};

use super::functions::{Function, FunctionId, Functions, ModuleName};
use super::generated::Generated;
use super::records::Look;
use super::stubs::{Place, Stubs};
use crate::error::Result;
use crate::filter::Filter;
use crate::memory::read_remote;
use crate::proc::{self, Mapping, Pid};
use crate::survey::{self, Surveyed};

/// No stack of which a few dozen kilobytes are known has more.
const MOST_FRAMES: usize = 8192;
/// Addresses that are remembered.
const MOST_RESOLVED: usize = 1 << 16;

const RSP: usize = 7;
pub(super) const RIP: usize = 16;

pub(super) struct Space {
    pid: Pid,
    unwinder: Unwinder,
    /// By address.
    modules: Vec<Placed>,
    resolved: HashMap<u64, Option<FunctionId>>,
    generated: Generated,
    /// It has mapped more since.
    pub(super) outdated: bool,
    frames: Vec<Frame>,
}

/// A module at its place.
struct Placed {
    low: u64,
    high: u64,
    bias: u64,
    module: Arc<Module>,
    name: Arc<ModuleName>,
    /// By index in the module: the number that its probes have.
    numbers: Vec<Option<u32>>,
    /// Parts that stand apart and whose names do not tell: the one function that goes on in each, if it is one.
    parts: HashMap<usize, Option<usize>>,
}

/// What a look at a stack says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The stack is known to its outermost frame.
    Whole,
    /// It is deeper than what was copied.
    Deeper,
    /// It cannot be followed.
    Lost,
    InProbe,
}

impl Space {
    pub(super) fn of(pid: Pid, filter: &Filter, stubs: &Stubs) -> Result<Space> {
        let maps = proc::maps(pid)?;
        let mut space = Space {
            pid,
            unwinder: Unwinder::new(),
            modules: Vec::new(),
            resolved: HashMap::new(),
            generated: Generated::default(),
            outdated: false,
            frames: Vec::new(),
        };
        for file in survey::group_by_file(&maps) {
            // Analysed before, as a rule; what cannot be is code that stacks are not followed through.
            if let Ok(surveyed) = survey::survey_file(pid, &file, filter) {
                space.add(Placed::of(&surveyed, stubs));
            }
        }
        if let Some(vdso) = vdso(pid, &maps) {
            space.add(vdso);
        }
        space.modules.sort_by_key(|placed| placed.low);
        Ok(space)
    }

    /// A process that has ended has nothing mapped, and what it had is still to be looked at.
    pub(super) fn has_code(&self) -> bool {
        !self.modules.is_empty()
    }

    fn add(&mut self, placed: Placed) {
        self.unwinder.add_module(&placed.module, placed.bias);
        self.modules.push(placed);
    }

    /// Follows the stack; `path` becomes the functions on it, outermost first, as far as it is known. `is_on`: whether a function
    /// is patched at the time.
    pub(super) fn follow(
        &mut self,
        look: &Look<'_>,
        stubs: &Stubs,
        is_on: &mut dyn FnMut(u32) -> bool,
        functions: &mut Functions,
        path: &mut Vec<FunctionId>,
    ) -> Outcome {
        path.clear();
        let Some(registers) = &look.registers else {
            return Outcome::Lost;
        };
        let modules = &self.modules;
        let mut home = |pc: u64| match stubs.place(pc, is_on) {
            Place::Outside => Some((described(modules, pc), 0)),
            Place::Displaced(home, raise) => Some((home, raise)),
            Place::Probe => None,
        };
        if home(registers[RIP]).is_none() {
            return Outcome::InProbe;
        }
        if module_at(&self.modules, registers[RIP]).is_none() {
            // Its compiler may just have told of it, which is what makes it code.
            self.generated.function_at(self.pid, registers[RIP]);
        }
        if let Some(ranges) = self.generated.fresh_ranges() {
            self.unwinder.set_generated(ranges);
        }
        let sp = registers[RSP];
        let end = sp.saturating_add(look.stack.len() as u64);
        let mut deeper = false;
        let mut read = |address: u64| {
            let word = look.word(sp, address);
            deeper |= word.is_none() && address.saturating_add(8) > end;
            word
        };
        let mut frames = std::mem::take(&mut self.frames);
        let unwinder = &mut self.unwinder;
        let whole = unwinder.walk(registers, MOST_FRAMES, &mut read, &mut home, &mut frames);
        let all = frames.iter().rev();
        path.extend(all.filter_map(|frame| self.function_at(frame.ip, functions)));
        self.frames = frames;
        match (whole, deeper) {
            (true, _) => Outcome::Whole,
            (false, true) => Outcome::Deeper,
            (false, false) => Outcome::Lost,
        }
    }

    fn function_at(&mut self, address: u64, functions: &mut Functions) -> Option<FunctionId> {
        if let Some(known) = self.resolved.get(&address) {
            return *known;
        }
        let Some(placed) = module_at(&self.modules, address) else {
            // Nothing of it is remembered here: what is at an address changes.
            let function = self.generated.function_at(self.pid, address);
            return function.map(|function| functions.id(function));
        };
        let function = placed.function_at(address);
        let id = function.map(|function| functions.id(function));
        if self.resolved.len() >= MOST_RESOLVED {
            self.resolved.clear();
        }
        self.resolved.insert(address, id);
        id
    }
}

fn module_at(modules: &[Placed], address: u64) -> Option<&Placed> {
    let next = modules.partition_point(|m| m.low <= address);
    modules[..next].last().filter(|m| address < m.high)
}

/// An address at which the stack is as it is at `pc`, with unwind information. C libraries end that of `clone` before the system
/// call, for the sake of the new thread; for the calling one everything is as at the entry.
fn described(modules: &[Placed], pc: u64) -> u64 {
    let entry = || {
        let placed = module_at(modules, pc)?;
        let (module, address) = (&placed.module, pc.wrapping_sub(placed.bias));
        if module.cfi.cfa_is_rsp_plus_8(address).is_some() {
            return None;
        }
        let function = &module.functions[module.function_at(address)?];
        let calls_the_kernel = module.bytes_at(address.checked_sub(2)?, 2)? == [0x0f, 0x05];
        let as_at_entry = module.cfi.cfa_is_rsp_plus_8(function.start) == Some(true);
        (calls_the_kernel && as_at_entry).then(|| function.start.wrapping_add(placed.bias))
    };
    entry().unwrap_or(pc)
}

impl Placed {
    fn of(surveyed: &Surveyed, stubs: &Stubs) -> Placed {
        let module = &surveyed.module;
        let build_id = module.build_id.as_deref();
        let mut numbers = vec![None; module.functions.len()];
        let first = stubs.first_function(surveyed.low, surveyed.bias, &surveyed.text);
        if let Some(first) = first {
            for (number, plan) in (first..).zip(&surveyed.plan.functions) {
                numbers[plan.function] = Some(number);
            }
        }
        let mut parts = HashMap::new();
        for plan in &surveyed.plan.functions {
            let is_part = |f: &&usize| module.functions[**f].kind == FunctionKind::Fragment;
            for part in plan.needs.iter().filter(is_part) {
                let known = parts.entry(*part).or_insert(Some(plan.function));
                *known = known.filter(|whole| *whole == plan.function);
            }
        }
        Placed {
            low: surveyed.low,
            high: surveyed.high,
            bias: surveyed.bias,
            module: module.clone(),
            name: Arc::new(ModuleName {
                name: module.name.clone(),
                path: surveyed.path.display().to_string(),
                build_id: build_id.map(survey::hex).unwrap_or_default(),
                functions: module.functions.len() as u32,
            }),
            numbers,
            parts,
        }
    }

    fn function_at(&self, address: u64) -> Option<Function> {
        let mut index = self.module.function_at(address.wrapping_sub(self.bias))?;
        let mut symbol = &self.module.functions[index];
        if symbol.kind == FunctionKind::Fragment
            && let Some(whole) = self.whole(index)
        {
            index = whole;
            symbol = &self.module.functions[index];
        }
        if let Some(number) = self.numbers[index] {
            return Some(Function::Probed(number));
        }
        // A linkage stub's time is its caller's, as it is in what probes count.
        (symbol.kind != FunctionKind::Plt).then(|| Function::Unprobed {
            module: self.name.clone(),
            address: symbol.start,
            name: symbol.name.clone(),
        })
    }

    /// The function of which this is a part.
    fn whole(&self, part: usize) -> Option<usize> {
        let name = self.module.functions[part].linkage_name.as_deref();
        let Some((name, _)) = name.and_then(|name| name.split_once(".cold")) else {
            return self.parts.get(&part).copied().flatten();
        };
        let is_whole = |f: &Symbol| {
            f.kind != FunctionKind::Fragment && f.linkage_name.as_deref() == Some(name)
        };
        self.module.functions.iter().position(is_whole)
    }
}

/// What the kernel gives to every process: a thread that reads the clock is there.
fn vdso(pid: Pid, maps: &[Mapping]) -> Option<Placed> {
    const NAME: &str = "[vdso]";
    let is_vdso = |m: &&Mapping| m.path.as_ref().is_some_and(|p| p.as_os_str() == NAME);
    let mapping = maps.iter().find(is_vdso)?;
    let mut image = vec![0; mapping.len().min(1 << 20) as usize];
    read_remote(pid, mapping.start, &mut image).ok()?;
    let module = Module::parse(NAME, &image, &DebugLookup::none()).ok()?;
    let functions = module.functions.len();
    Some(Placed {
        low: mapping.start.0,
        high: mapping.end.0,
        bias: mapping.start.0,
        name: Arc::new(ModuleName {
            name: NAME.into(),
            path: NAME.into(),
            functions: functions as u32,
            ..ModuleName::default()
        }),
        numbers: vec![None; functions],
        parts: HashMap::new(),
        module: Arc::new(module),
    })
}
