//! CPython in a target: where it keeps what the probe of its evaluator must know, and the one word in each of its interpreters by which
//! every Python call becomes a call of that evaluator (docs/design/managed.md).
//!
//! ```text
//! find      symbols of the file    offsets from the code of its own accessors: no table of builds
//! begin     all threads stand      each interpreter whose word is 0 gets the evaluator's address
//! end       all threads stand      each interpreter with that address gets 0 again
//! ```
//!
//! An interpreter that is made later is told by the agent, when its evaluator first runs. All addresses that are followed are the
//! target's, and only the target's own memory is read and written by them.

use std::collections::HashSet;
use std::ops::Range;

use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use thalweg_abi::dynamic::Python;
use thalweg_patch::{ModulePlan, Probe};
use thalweg_symbols::Module;

use crate::dynamic;
use crate::error::Result;
use crate::ledger::Data;
use crate::memory::Shared;
use crate::proc::RemoteAddr;
use crate::survey::Surveyed;
use crate::tracee::Stopped;

/// The first release of which it is known that it asks for an evaluator before a specialised `x[i]`.
const CALLS_GETITEM: u32 = 0x030b07;

/// Releases that ask nobody before a specialised call of a class runs its `__init__` inside of its caller.
const INLINES_INIT: Range<u32> = 0x030d00..0x030e00;

/// The methods that a release runs inside of their caller, without asking for an evaluator.
fn inlined_by(release: u32) -> Option<&'static str> {
    match release {
        ..CALLS_GETITEM => Some("__getitem__"),
        _ if INLINES_INIT.contains(&release) => Some("__init__"),
        _ => None,
    }
}

/// Whether calls of such a Python function may be part of their caller's, unseen.
pub(crate) fn is_inlined(python: &Python, name: &str) -> bool {
    let method = name.rsplit('.').next();
    python.evaluator != 0 && method == inlined_by(python.release)
}

/// What runs Python functions.
pub const EVALUATOR: &str = "_PyEval_EvalFrameDefault";

/// Refuses to begin where an interpreter's word is not 0, so that `-X perf` would end a program that has ours (3.13).
pub(crate) const ASKS_WHO_EVALUATES: &str = "_PyPerfTrampoline_Init";

/// The evaluator of a module that is a CPython.
#[derive(Clone, Copy, Debug)]
pub struct Evaluator {
    /// Its index among the module's functions.
    pub function: usize,
    /// Addresses are the module's own.
    pub python: Python,
}

/// What a module has of CPython.
#[derive(Clone, Debug, Default)]
pub enum Found {
    #[default]
    Nothing,
    Usable(Evaluator),
    /// It is one, and is left alone for this reason.
    LeftAlone(String),
}

/// Symbols that are needed, in the order of [`Symbols`].
const NAMES: [&str; 9] = [
    EVALUATOR,
    "_PyRuntime",
    "PyCode_Type",
    "PyUnicode_Type",
    "Py_Version",
    "PyInterpreterState_Head",
    "PyInterpreterState_Next",
    "PyThreadState_GetInterpreter",
    "_PyInterpreterState_GetEvalFrameFunc",
];
/// Only builds without a global lock have it.
const FREE_THREADED: &str = "_Py_DecRefShared";

/// Whether a module may be one, at a glance.
pub(crate) fn is_candidate(module: &Module) -> bool {
    evaluator_of(module).is_some()
}

fn evaluator_of(module: &Module) -> Option<usize> {
    let named = |f: &thalweg_symbols::Function| {
        f.linkage_name.as_deref() == Some(EVALUATOR) || f.name == EVALUATOR
    };
    module.functions.iter().position(named)
}

/// `data`: the module's file.
pub(crate) fn find(module: &Module, data: &[u8]) -> Found {
    let Some(function) = evaluator_of(module) else {
        return Found::Nothing;
    };
    let left_alone = |why: &str| Found::LeftAlone(format!("{}: {why}", module.name));
    let Ok(file) = ElfFile64::<Endianness>::parse(data) else {
        return left_alone("its symbols cannot be read");
    };
    let mut found = [0; NAMES.len()];
    for symbol in file.symbols().chain(file.dynamic_symbols()) {
        let Ok(name) = symbol.name() else { continue };
        if !symbol.is_definition() {
            continue;
        }
        if name == FREE_THREADED {
            return left_alone("this CPython is a free-threaded build, which is not supported");
        }
        if let Some(index) = NAMES.iter().position(|wanted| *wanted == name) {
            found[index] = symbol.address();
        }
    }
    let [_, runtime, code_type, text_type, version_at, rest @ ..] = found;
    let Some(version) = data_word(&file, version_at) else {
        return left_alone(
            "this CPython is older than 3.11, or its symbols are stripped: Python functions are not told apart",
        );
    };
    let release = (version >> 8) as u32;
    let version = release >> 8;
    if version == 0x030c {
        return left_alone(
            "CPython 3.12 allows 800 calls of C within each other, and each Python function would be one: Python functions are not told apart",
        );
    }
    let Some(known) = layout(version) else {
        return left_alone(&format!(
            "CPython {}.{} is not known: Python functions are not told apart",
            version >> 8,
            version & 0xff
        ));
    };
    let [head, next, interpreter, eval] = rest.map(|at| accessor(module, at));
    let (Some(head), Some(next), Some(interpreter), Some(eval)) = (head, next, interpreter, eval)
    else {
        return left_alone("the code of its accessors is of no known form");
    };
    let head = match head {
        Place::Global(at) => at,
        Place::ThroughSlot(offset) => runtime.wrapping_add(offset.into()),
        Place::Field(_) => 0,
    };
    let (Place::Field(next), Place::Field(interpreter), Place::Field(eval)) =
        (next, interpreter, eval)
    else {
        return left_alone("the code of its accessors is of no known form");
    };
    if [head, runtime, code_type, text_type].contains(&0) || head.wrapping_sub(runtime) > 1 << 20 {
        return left_alone("its symbols are stripped: Python functions are not told apart");
    }
    Found::Usable(Evaluator {
        function,
        python: Python {
            evaluator: module.functions[function].start,
            head,
            code_type,
            text_type,
            interpreter,
            next,
            eval,
            release,
            ..known
        },
    })
}

/// Where frames, code objects and strings have what is read. The agent asks each object for its type before it believes any of this.
fn layout(version: u32) -> Option<Python> {
    let v3_13 = Python {
        frame_code: 0,
        file: 112,
        name: 128,
        line: 68,
        ascii: 40,
        wide: 56,
        ..Python::default()
    };
    match version {
        0x030b => Some(Python {
            frame_code: 32,
            line: 72,
            ascii: 48,
            wide: 72,
            ..v3_13
        }),
        0x030d => Some(v3_13),
        _ => None,
    }
}

/// Of the file: a module that was kept from an earlier analysis has its code alone.
fn data_word(file: &ElfFile64, address: u64) -> Option<u64> {
    if address == 0 {
        return None;
    }
    file.sections().find_map(|section| {
        let bytes = section.data_range(address, 8).ok()??;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    })
}

/// What an accessor returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// `[argument + offset]`
    Field(u32),
    /// The word at an address of the module.
    Global(u64),
    /// `[[slot] + offset]`: what the slot holds is for the loader to say.
    ThroughSlot(u32),
}

/// Reads the first loads of a function that returns one word.
fn accessor(module: &Module, address: u64) -> Option<Place> {
    const LONGEST: u64 = 40;
    let longest = (1..=LONGEST).rev();
    let bytes = longest.filter_map(|len| module.bytes_at(address, len));
    loads(bytes.max_by_key(|bytes| bytes.len())?, address)
}

fn loads(mut code: &[u8], mut address: u64) -> Option<Place> {
    let mut place = None;
    loop {
        let (len, load) = one_load(code, address)?;
        place = match (place, load) {
            // endbr64, push rbp, mov rbp, rsp
            (None, None) => None,
            (None, Some(load)) => Some(load),
            // mov rax, [rax + offset] behind a load of the module's own.
            (Some(Place::Global(_)), Some(Place::ThroughSlot(offset))) => {
                return Some(Place::ThroughSlot(offset));
            }
            (Some(known), _) => return Some(known),
        };
        code = code.get(len..)?;
        address += len as u64;
        if let Some(known) = place
            && one_load(code, address).is_none()
        {
            return Some(known);
        }
    }
}

/// The length of an instruction, and the place that it loads from if it does.
fn one_load(code: &[u8], address: u64) -> Option<(usize, Option<Place>)> {
    let half = |at: usize| {
        let bytes = code.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let offset = |offset: u32| (offset < 1 << 20).then_some(offset);
    Some(match code {
        [0xf3, 0x0f, 0x1e, 0xfa, ..] => (4, None),
        [0x55, ..] => (1, None),
        [0x48, 0x89, 0xe5, ..] => (3, None),
        [0x48, 0x8b, 0x07, ..] => (3, Some(Place::Field(0))),
        [0x48, 0x8b, 0x47, byte @ 0..0x80, ..] => (4, Some(Place::Field((*byte).into()))),
        [0x48, 0x8b, 0x87, ..] => (7, Some(Place::Field(offset(half(3)?)?))),
        [0x48, 0x8b, 0x05, ..] => {
            let from = address.wrapping_add(7);
            let at = from.wrapping_add_signed(i64::from(half(3)? as i32));
            (7, Some(Place::Global(at)))
        }
        [0x48, 0x8b, 0x00, ..] => (3, Some(Place::ThroughSlot(0))),
        [0x48, 0x8b, 0x40, byte @ 0..0x80, ..] => (4, Some(Place::ThroughSlot((*byte).into()))),
        [0x48, 0x8b, 0x80, ..] => (7, Some(Place::ThroughSlot(offset(half(3)?)?))),
        _ => return None,
    })
}

/// The same for a module as it was planned: an evaluator that is not to be counted, or whose probe may run in its midst, tells
/// nothing. A note says so where Python functions were asked for.
pub(crate) fn as_planned(
    found: Found,
    module: &Module,
    plan: &ModulePlan,
    is_asked: bool,
) -> Found {
    let Found::Usable(evaluator) = &found else {
        return found;
    };
    let mut events = plan
        .functions
        .iter()
        .filter(|planned| planned.function == evaluator.function)
        .flat_map(|planned| &planned.windows)
        .flat_map(|window| &window.events);
    let is_plain = |probe: Probe| matches!(probe, Probe::Entry { loops: false, .. });
    match events.any(|event| is_plain(event.probe)) {
        true => found,
        false if !is_asked => Found::Nothing,
        false => Found::LeftAlone(format!(
            "{}: {EVALUATOR} is not counted, so that Python functions are not told apart",
            module.name
        )),
    }
}

impl Found {
    /// The index of the evaluator, if it is one by which Python functions are told apart.
    pub(crate) fn function(&self) -> Option<usize> {
        match self {
            Found::Usable(evaluator) => Some(evaluator.function),
            _ => None,
        }
    }

    pub(crate) fn note(&self) -> Option<String> {
        match self {
            Found::LeftAlone(why) => Some(why.clone()),
            Found::Usable(evaluator) => {
                let release = evaluator.python.release;
                let method = inlined_by(release)?;
                Some(format!(
                    "CPython 3.{}.{} runs `{method}` of a class that is written in Python inside of its caller, if that calls it often: calls of such functions are lower bounds",
                    release >> 8 & 0xff,
                    release & 0xff
                ))
            }
            Found::Nothing => None,
        }
    }
}

impl Evaluator {
    /// As loaded.
    pub(crate) fn at(&self, bias: u64) -> Python {
        let own = &self.python;
        let place = |address: u64| address.wrapping_add(bias);
        Python {
            evaluator: place(own.evaluator),
            head: place(own.head),
            code_type: place(own.code_type),
            text_type: place(own.text_type),
            ..*own
        }
    }
}

/// A process has more interpreters only if it is out to keep us busy.
const MOST_INTERPRETERS: usize = 10_000;

/// Each interpreter's word, and what it holds. `head`: where the first interpreter is; `next` and `eval`: offsets in each.
fn words(stopped: &Stopped, head: u64, next: u32, eval: u32) -> Vec<(RemoteAddr, u64)> {
    let (to_next, to_word) = (u64::from(next), u64::from(eval));
    let word = |at: u64| {
        let mut bytes = [0; 8];
        let read = stopped.read(RemoteAddr(at), &mut bytes);
        read.ok().map(|()| u64::from_le_bytes(bytes))
    };
    let mut words = Vec::new();
    let mut next = word(head).unwrap_or(0);
    while next != 0 && words.len() < MOST_INTERPRETERS {
        let at = next.wrapping_add(to_word);
        let Some(value) = word(at) else { break };
        words.push((RemoteAddr(at), value));
        let then = word(next.wrapping_add(to_next)).unwrap_or(0);
        if then == next {
            break;
        }
        next = then;
    }
    words
}

/// From here on each Python call is one of the evaluator's, unless that is switched off.
pub(crate) fn begin(shared: &Shared, stopped: &mut Stopped) -> Result<()> {
    let head = dynamic::head(shared)?;
    let python = head.python;
    if python.evaluator == 0 || head.python_off != 0 {
        return Ok(());
    }
    for (at, value) in words(stopped, python.head, python.next, python.eval) {
        if value == 0 {
            stopped.write(at, &python.evaluator.to_le_bytes())?;
        }
    }
    Ok(())
}

/// What the ledger says of a module, so that any detach finds the words.
pub(crate) fn data(surveyed: &Surveyed) -> Option<Data> {
    let Found::Usable(evaluator) = &surveyed.python else {
        return None;
    };
    let python = evaluator.at(surveyed.bias);
    Some(Data::Words {
        head: python.head,
        next: python.next,
        word: python.eval,
        value: python.evaluator,
    })
}

/// As it was. Whoever else has set a word keeps it.
pub(crate) fn end(stopped: &mut Stopped, data: &Data) -> Result<()> {
    let Data::Words {
        head,
        next,
        word,
        value: ours,
    } = *data
    else {
        return Ok(());
    };
    for (at, value) in words(stopped, head, next, word) {
        if value == ours && ours != 0 {
            stopped.write(at, &0u64.to_le_bytes())?;
        }
    }
    Ok(())
}

/// The evaluator's probes go, or come back: without them a call that leaves it would tell nothing.
/// The agent sets no word where it reads that they are gone.
pub(crate) fn switch(
    shared: &Shared,
    stopped: &mut Stopped,
    off: &HashSet<u32>,
    on: &HashSet<u32>,
) -> Result<()> {
    let head = dynamic::head(shared)?;
    let Some(evaluator) = head.python_evaluator.checked_sub(1) else {
        return Ok(());
    };
    if off.contains(&evaluator) {
        dynamic::note_python_off(shared, true)?;
        let python = head.python;
        let data = Data::Words {
            head: python.head,
            next: python.next,
            word: python.eval,
            value: python.evaluator,
        };
        end(stopped, &data)
    } else if on.contains(&evaluator) {
        dynamic::note_python_off(shared, false)?;
        begin(shared, stopped)
    } else {
        Ok(())
    }
}

/// Tells the probe of the evaluator what it must know. `numbers`: of the module's functions.
pub(crate) fn tell(shared: &Shared, surveyed: &Surveyed, numbers: &[u32]) -> Result<()> {
    match &surveyed.python {
        Found::Usable(evaluator) => {
            let number = numbers.get(evaluator.function).copied();
            dynamic::tell_python(shared, &evaluator.at(surveyed.bias), number)
        }
        _ => Ok(()),
    }
}

/// Of several in one process the first is told apart, the others stay functions of C: what the probes know is of one.
pub(crate) fn keep_first(modules: &mut [Surveyed]) {
    let mut has_one = false;
    for surveyed in modules {
        if let Found::Usable(_) = surveyed.python {
            if has_one {
                surveyed.python = second(&surveyed.module);
            }
            has_one = true;
        }
    }
}

/// The same for a module that is loaded later.
pub(crate) fn keep_known(shared: &Shared, surveyed: &mut Surveyed) -> Result<()> {
    if let Found::Usable(evaluator) = &surveyed.python {
        let known = dynamic::head(shared)?.python;
        if known.evaluator != 0 && known != evaluator.at(surveyed.bias) {
            surveyed.python = second(&surveyed.module);
        }
    }
    Ok(())
}

fn second(module: &Module) -> Found {
    Found::LeftAlone(format!(
        "{}: a second CPython in one process, whose functions are not told apart",
        module.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_accessor_returns_is_read_from_its_code() {
        // mov rax, [rdi + 0x590]; test rax, rax: Debian's 3.11
        let eval = [0x48, 0x8b, 0x87, 0x90, 0x05, 0, 0, 0x48, 0x85, 0xc0];
        assert_eq!(loads(&eval, 0x1000), Some(Place::Field(0x590)));
        // mov rax, [rdi]; ret
        let next = [0x48, 0x8b, 0x07, 0xc3];
        assert_eq!(loads(&next, 0x1000), Some(Place::Field(0)));
        // endbr64; push rbp; mov rbp, rsp; mov rax, [rdi + 0x10]; pop rbp
        let framed = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x47, 0x10, 0x5d,
        ];
        assert_eq!(loads(&framed, 0x1000), Some(Place::Field(0x10)));
        // mov rax, [rip + 0x100]; ret
        let global = [0x48, 0x8b, 0x05, 0, 1, 0, 0, 0xc3];
        assert_eq!(loads(&global, 0x1000), Some(Place::Global(0x1107)));
        // mov rax, [rip + 0x100]; mov rax, [rax + 0x278]; ret: 3.13
        let slot = [
            0x48, 0x8b, 0x05, 0, 1, 0, 0, 0x48, 0x8b, 0x80, 0x78, 2, 0, 0, 0xc3,
        ];
        assert_eq!(loads(&slot, 0x1000), Some(Place::ThroughSlot(0x278)));
        for strange in [&[0xc3][..], &[0x48, 0x8b, 0x87, 0, 0, 0, 0xff], &[]] {
            assert_eq!(loads(strange, 0x1000), None);
        }
    }
}
