//! Rules as the agent reads them: per function a list, behind a byte that the hot path looks at. See `thalweg_abi::rules`.
//!
//! Everything is checked and laid out here before the target is touched. What is written goes to fresh room first and is named then, so
//! that rules can be changed while threads read them.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;

use serde::{Deserialize, Serialize};
use thalweg_abi as shm;
use thalweg_abi::record as area;
use thalweg_abi::rules::{self, Entry};
use thalweg_bytecode::{self as bytecode, flags};
use thalweg_rules::{
    AskedAt, Description, Formula, FunctionInfo, Question, Rule, Save, compile, means,
    throwing_programs, thrown_descriptions,
};

use super::filters::Filters;
use super::{Recording, errno};
use crate::error::{Error, Result};
use crate::memory::{IntoBytes, Shared};
use crate::proc::Pid;
use crate::survey::{Survey, Surveyed};

/// The rules of one target, by function number.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    lists: BTreeMap<u32, Vec<Wanted>>,
    programs: Vec<Vec<u8>>,
    /// What comparisons alone tell of each of the rules' programs.
    quick: Vec<Formula>,
    sets: Vec<Vec<u32>>,
    about: About,
    area_words: u64,
    overwrite: bool,
    /// Where threads have their errno.
    errno: Option<i64>,
    /// Functions whose calls belong to goroutines: nothing is compared in the hot path for them, and nothing saved.
    go: BTreeSet<u32>,
}

/// What the rules are, for whoever reads the records; carried by the target.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct About {
    pub rules: Vec<RuleAbout>,
    pub roots: Vec<String>,
    pub descriptions: Vec<Description>,
    /// Of what is thrown.
    pub thrown: Vec<Description>,
    /// How functions are declared, by number.
    pub signatures: Vec<(u32, String)>,
    /// Functions that a rule means and cannot be used on.
    pub notes: Vec<String>,
    pub redact: Vec<String>,
    pub text_limit: usize,
    /// Go's functions: from which number to which.
    #[serde(default)]
    pub go: Vec<(u32, u32)>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RuleAbout {
    pub text: String,
    /// It is no longer in force, but what it has recorded is still there.
    pub removed: bool,
}

/// One rule of one function, with its time in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    rule: u32,
    flags: u32,
    least_ns: u64,
    program: Option<usize>,
    /// Where its program is asked late.
    save: Save,
}

/// The unwinder's ways of going on with what was thrown after a destructor has run.
const RETHROWING: [&str; 3] = [
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "__cxa_rethrow",
];

/// A function that the target's probes count.
#[derive(Clone, Debug)]
pub struct Counted {
    pub number: u32,
    pub name: String,
    pub linkage_name: Option<String>,
    pub module: std::path::PathBuf,
    pub address: u64,
    /// Go's compiler made it.
    pub go: bool,
    /// A runtime runs it.
    pub managed: bool,
}

impl Counted {
    pub(super) fn info(&self) -> FunctionInfo<'_> {
        FunctionInfo {
            number: self.number,
            name: &self.name,
            linkage_name: self.linkage_name.as_deref(),
            module: &self.module,
            address: self.address,
            go: self.go,
            managed: self.managed,
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.linkage_name.as_deref() == Some(name)
    }
}

/// All that a survey has planned.
pub fn counted(modules: &[Surveyed], numbers: &[Vec<u32>]) -> Vec<Counted> {
    let mut all = Vec::new();
    for (surveyed, numbers) in modules.iter().zip(numbers) {
        let go = surveyed.module.go.as_ref();
        for (function, &number) in surveyed.module.functions.iter().zip(numbers) {
            if number != u32::MAX {
                all.push(Counted {
                    number,
                    name: function.name.clone(),
                    linkage_name: function.linkage_name.clone(),
                    module: surveyed.path.clone(),
                    address: function.start,
                    go: go.is_some_and(|go| (go.start..go.end).contains(&function.start)),
                    managed: false,
                });
            }
        }
    }
    all
}

impl Tables {
    /// For a target that was surveyed. `lenient`: a rule that no function of this program answers to is no mistake.
    pub fn new(
        pid: Pid,
        recording: &Recording,
        survey: &Survey,
        numbers: &[Vec<u32>],
        lenient: bool,
    ) -> Result<Tables> {
        let functions = counted(&survey.modules, numbers);
        let mut recording = recording.clone();
        if lenient {
            let infos: Vec<FunctionInfo> = functions.iter().map(Counted::info).collect();
            let options = recording.options.clone();
            let is_usable =
                |rule: &Rule| compile(std::slice::from_ref(rule), &infos, &options).is_ok();
            recording.rules.retain(is_usable);
        }
        // Those of a runtime are known when they have been called.
        let waits = lenient || survey.has_runtime();
        let mut tables = Tables::compile(&recording, &functions, waits)
            .map_err(|error| with_reason(error, &recording, &functions, survey))?;
        tables.errno = errno::offset(pid, survey);
        Ok(tables)
    }

    /// For the functions that a target counts. `waits`: there may be a function later that a root means.
    pub fn compile(recording: &Recording, functions: &[Counted], waits: bool) -> Result<Tables> {
        let infos: Vec<FunctionInfo> = functions.iter().map(Counted::info).collect();
        let mut rules = recording.rules.clone();
        for &removed in &recording.removed {
            // It has its place and what it recorded, but needs no functions any more.
            rules[removed].condition = None;
        }
        let compiled = compile(&rules, &infos, &recording.options)
            .map_err(|error| Error::Rule(Box::new(error)))?;
        let words = (recording.memory / 8).next_power_of_two();
        let go = functions.iter().filter(|counted| counted.go);
        let go: BTreeSet<u32> = go.map(|counted| counted.number).collect();
        let mut tables = Tables {
            area_words: words.clamp(area::AREA_LEAST / 8, area::AREA_ROOM / 8),
            overwrite: recording.overwrite,
            programs: compiled.programs,
            quick: compiled.quick,
            sets: compiled.sets,
            about: About {
                rules: recording
                    .rules
                    .iter()
                    .enumerate()
                    .map(|(index, rule)| RuleAbout {
                        text: rule.text.to_string(),
                        removed: recording.removed.contains(&index),
                    })
                    .collect(),
                roots: recording.roots.iter().map(|r| r.to_string()).collect(),
                descriptions: compiled.descriptions,
                thrown: thrown_descriptions(),
                signatures: compiled.signatures,
                notes: compiled.notes,
                redact: recording.redact.clone(),
                text_limit: recording.options.text_limit,
                go: ranges(&go),
            },
            go,
            ..Tables::default()
        };
        for (function, program) in compiled.of_function {
            tables.add_rule(function, program as usize, &recording.removed)?;
        }
        for root in &recording.roots {
            let mut found = false;
            for function in functions {
                let linkage = function.linkage_name.as_deref();
                if root.is_match(&function.name) || linkage.is_some_and(|name| root.is_match(name))
                {
                    found = true;
                    tables.add(function.number, 0, rules::ENTRY_ROOT, None);
                }
            }
            if !found && !waits {
                return Err(Error::Refused(format!(
                    "--root '{root}': no function that is counted is called so; nothing was touched"
                )));
            }
        }
        tables.add_throwing(functions);
        Ok(tables)
    }

    fn add_rule(&mut self, function: u32, program: usize, removed: &BTreeSet<usize>) -> Result<()> {
        let head = self
            .programs
            .get(program)
            .map(|p| bytecode::Header::read(p));
        let Some(Ok(head)) = head else {
            return Err(Error::Refused("a rule has become no program".into()));
        };
        if removed.contains(&usize::from(head.rule)) {
            return Ok(());
        }
        let flags = match (head.has(flags::NEEDS_ENTRY), head.min_total_ns) {
            (true, _) if head.has(flags::CAN_WAIT) && !self.go.contains(&function) => {
                rules::ENTRY_DEFERRED
            }
            (true, _) => rules::ENTRY_AT_ENTRY,
            (false, 0) => rules::ENTRY_AT_EXIT,
            (false, _) => 0,
        };
        let wanted = Wanted {
            rule: u32::from(head.rule) + 1,
            flags,
            least_ns: head.min_total_ns,
            program: Some(program),
            save: match head.has(flags::NEEDS_FLOATS) {
                true => Save::All,
                false => Save::Integers,
            },
        };
        self.lists.entry(function).or_default().push(wanted);
        Ok(())
    }

    fn add(&mut self, function: u32, rule: u32, flags: u32, program: Option<usize>) {
        let wanted = Wanted {
            rule,
            flags,
            least_ns: 0,
            program,
            save: Save::Nothing,
        };
        self.lists.entry(function).or_default().push(wanted);
    }

    /// What is thrown is read where it is thrown, for the calls that it leaves.
    fn add_throwing(&mut self, functions: &[Counted]) {
        for throwing in throwing_programs(u16::MAX) {
            let program = self.programs.len();
            let mut used = false;
            for function in functions {
                if throwing.matches(&function.name, function.linkage_name.as_deref()) {
                    self.add(function.number, 0, rules::ENTRY_THROWS, Some(program));
                    used = true;
                }
            }
            if used {
                self.programs.push(throwing.program);
            }
        }
        for function in functions {
            if RETHROWING.iter().any(|name| function.is_called(name)) {
                self.add(function.number, 0, rules::ENTRY_RETHROWS, None);
            }
        }
    }

    /// Into a target that has no rules yet, or instead of those that it has.
    pub fn write(&self, shared: &Shared, header: &shm::Header) -> Result<()> {
        let old: rules::Head = shared.read(header.rules_offset)?;
        let first = old.programs_used.max(8).next_multiple_of(8);
        let laid = self.lay_out(header, first)?;
        let start = header.rules_offset;
        let limit = header.functions_limit;
        shared.write(start + rules::programs_offset(limit) + first, &laid.bytes)?;
        let word =
            |field: usize, value: u64| shared.write(start + field as u64, &value.to_le_bytes());
        if old.programs_used == 0 {
            word(offset_of!(rules::Head, area_words), self.area_words)?;
            word(offset_of!(rules::Head, overwrite), self.overwrite.into())?;
            word(offset_of!(rules::Head, may_read), 1)?;
            let errno = self.errno.unwrap_or(0) as u64;
            word(offset_of!(rules::Head, errno_offset), errno)?;
            let rate = f64::from_bits(header.ticks_hz) as u64;
            word(offset_of!(rules::Head, ticks_per_second), rate)?;
        }
        word(offset_of!(rules::Head, sets_offset), laid.sets_offset)?;
        word(offset_of!(rules::Head, sets), self.sets.len() as u64)?;
        word(offset_of!(rules::Head, about_len), 0)?;
        word(offset_of!(rules::Head, about_offset), laid.about.0)?;
        word(offset_of!(rules::Head, about_len), laid.about.1)?;
        word(
            offset_of!(rules::Head, programs_used),
            first + laid.bytes.len() as u64,
        )?;
        let mut filters = Filters::read(shared, header)?;
        let mut least = laid.least;
        let named = named(shared, header)?;
        let functions: BTreeSet<u32> = named
            .into_iter()
            .chain(laid.lists.keys().copied())
            .collect();
        for function in functions {
            let list = laid.lists.get(&function).copied().unwrap_or(0);
            let at = start + rules::lists_offset(limit) + u64::from(function) * 4;
            let (asked, longer) = filters.bytes_for(&self.questions(function))?;
            let longer = longer.map(|ticks| ticks.saturating_sub(1));
            least = longer.map_or(least, |longer| least.min(longer));
            let table = start + rules::TABLE_OFFSET + u64::from(function) * rules::FUNCTION_BYTES;
            // A function that is looked up finds its list, old or new.
            if list != 0 {
                shared.write(at, &list.to_le_bytes())?;
                // What its end is asked by comes first: then no call is watched by nobody.
                shared.write(table + 1, &asked[1..])?;
                shared.write(table, &asked[..1])?;
            } else {
                shared.write(table, &[rules::GO_ON; rules::FUNCTION_BYTES as usize])?;
                shared.write(at, &0u32.to_le_bytes())?;
            }
        }
        word(offset_of!(rules::Head, least), least)?;
        for slot in 0..u64::from(shared.header()?.next_slot) {
            shared.write(threshold_offset(slot), &least.to_le_bytes())?;
        }
        Ok(())
    }

    /// Of which calls of a function its rules want to hear.
    fn questions(&self, function: u32) -> Vec<Question> {
        let list = self.lists.get(&function).map_or(&[][..], |list| list);
        let question = |wanted: &Wanted| {
            let asked = match wanted.flags {
                rules::ENTRY_AT_ENTRY => AskedAt::Entry,
                rules::ENTRY_AT_EXIT => AskedAt::Exit,
                rules::ENTRY_DEFERRED if wanted.least_ns > 0 => AskedAt::SavedIfLong(wanted.save),
                rules::ENTRY_DEFERRED => AskedAt::Saved(wanted.save),
                flags if flags & (rules::ENTRY_ROOT | rules::ENTRY_THROWS) != 0 => {
                    return Some(Question {
                        condition: Formula::Always,
                        asked: AskedAt::Entry,
                    });
                }
                // The time that it took says whether it is looked at.
                _ => return None,
            };
            let condition = wanted.program.and_then(|program| self.quick.get(program));
            // The registers of Go's convention are compared by nobody but the slow path.
            let condition = condition.filter(|_| !self.go.contains(&function));
            Some(Question {
                condition: condition.cloned().unwrap_or(Formula::Always),
                asked,
            })
        };
        list.iter().filter_map(question).collect()
    }

    /// The bytes for the programs from `first` on.
    fn lay_out(&self, header: &shm::Header, first: u64) -> Result<LaidOut> {
        let rate = f64::from_bits(header.ticks_hz);
        let ticks = |ns: u64| (ns as f64 * rate / 1e9) as u64;
        let mut laid = LaidOut {
            bytes: Vec::new(),
            least: u64::MAX,
            lists: BTreeMap::new(),
            sets_offset: 0,
            about: (0, 0),
        };
        let places: Vec<u64> = self.programs.iter().map(|p| laid.put(first, p)).collect();
        let functions = self.sets.iter().flatten().max().map_or(0, |most| most + 1);
        let mut sets = Vec::new();
        for set in &self.sets {
            let mut bits = vec![0u8; functions.div_ceil(8) as usize];
            for &function in set {
                bits[function as usize / 8] |= 1 << (function % 8);
            }
            sets.push((laid.put(first, &bits), bits.len() as u64));
        }
        let sets: Vec<u8> = sets
            .iter()
            .flat_map(|(at, len)| [at.to_le_bytes(), len.to_le_bytes()].concat())
            .collect();
        laid.sets_offset = laid.put(first, &sets);
        for (&function, list) in &self.lists {
            let mut bytes = (list.len() as u64).to_le_bytes().to_vec();
            for wanted in list {
                let program = wanted
                    .program
                    .map(|index| (places[index], &self.programs[index]));
                let entry = Entry {
                    rule: wanted.rule,
                    flags: wanted.flags,
                    // Programs look closer; this is only never to be too much.
                    least: ticks(wanted.least_ns).saturating_sub(1),
                    program: program.map_or(0, |(at, _)| (at / 8) as u32),
                    program_len: program.map_or(0, |(_, bytes)| bytes.len() as u32),
                };
                let by_duration = match wanted.flags {
                    0 => wanted.rule != 0,
                    flags => flags == rules::ENTRY_DEFERRED && wanted.least_ns > 0,
                };
                if by_duration {
                    laid.least = laid.least.min(entry.least);
                }
                bytes.extend_from_slice(entry.as_bytes());
            }
            let at = laid.put(first, &bytes);
            laid.lists.insert(function, (at / 8) as u32);
        }
        let about = serde_json::to_vec(&self.about)
            .map_err(|error| Error::Damaged(format!("cannot describe the rules: {error}")))?;
        laid.about = (laid.put(first, &about), about.len() as u64);
        if first + laid.bytes.len() as u64 > rules::PROGRAMS_LEN {
            return Err(Error::NoRoom(
                "the rules need more room than there is: detach and attach again, or name fewer functions"
                    .into(),
            ));
        }
        Ok(laid)
    }
}

struct LaidOut {
    bytes: Vec<u8>,
    least: u64,
    /// By function, in units of 8 bytes.
    lists: BTreeMap<u32, u32>,
    sets_offset: u64,
    about: (u64, u64),
}

impl LaidOut {
    /// Where among the programs it is.
    fn put(&mut self, first: u64, bytes: &[u8]) -> u64 {
        let at = first + self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        at
    }
}

/// Numbers that follow each other, from the first to behind the last.
fn ranges(numbers: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match all.last_mut() {
            Some(last) if last.1 == number => last.1 += 1,
            _ => all.push((number, number + 1)),
        }
    }
    all
}

/// Functions that have rules now.
pub(super) fn named(shared: &Shared, header: &shm::Header) -> Result<Vec<u32>> {
    let functions = u64::from(shared.header()?.functions).min(header.functions_limit);
    let lists = header.rules_offset + rules::lists_offset(header.functions_limit);
    let mut bytes = vec![0; (functions * 4) as usize];
    shared.read_bytes(lists, &mut bytes)?;
    let words = bytes.chunks_exact(4).zip(0..);
    let named = words.filter(|(word, _)| word.iter().any(|byte| *byte != 0));
    Ok(named.map(|(_, function)| function).collect())
}

/// What a user should know of the target's rules: functions that they cannot be used on, and modules that they wait for.
pub fn notes(shared: &Shared, header: &shm::Header) -> Result<Vec<String>> {
    if header.flags & shm::HEADER_RECORDS == 0 {
        return Ok(Vec::new());
    }
    let notes = about(shared, header)?.notes.into_iter();
    Ok(notes.map(|note| format!("rule: {note}")).collect())
}

/// What the rules of a target are. Somebody may be changing them: then a moment later.
pub fn about(shared: &Shared, header: &shm::Header) -> Result<About> {
    const TRIES: u32 = 20;
    for _ in 1..TRIES {
        if let Ok(about) = read_about(shared, header) {
            return Ok(about);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    read_about(shared, header)
}

fn read_about(shared: &Shared, header: &shm::Header) -> Result<About> {
    let head: rules::Head = shared.read(header.rules_offset)?;
    let about = header
        .rules_offset
        .saturating_add(rules::programs_offset(header.functions_limit))
        .saturating_add(head.about_offset);
    let bytes = shared.read_vec(about, head.about_len)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::Damaged(format!("the target's rules are damaged: {error}")))
}

/// A function that no rule can be used on because it is not counted: why that is.
fn with_reason(
    error: Error,
    recording: &Recording,
    functions: &[Counted],
    survey: &Survey,
) -> Error {
    let Error::Rule(rule_error) = &error else {
        return error;
    };
    let Some(rule_error) = rule_error.downcast_ref::<thalweg_rules::RuleError>() else {
        return error;
    };
    let Some(rule) = recording.rules.iter().find(|r| *r.text == *rule_error.text) else {
        return error;
    };
    if functions
        .iter()
        .any(|counted| means(&rule.pattern, &counted.info()))
    {
        return error;
    }
    for surveyed in &survey.modules {
        for (index, function) in surveyed.module.functions.iter().enumerate() {
            let info = FunctionInfo {
                number: u32::MAX,
                name: &function.name,
                linkage_name: function.linkage_name.as_deref(),
                module: &surveyed.path,
                address: function.start,
                go: false,
                managed: false,
            };
            if !means(&rule.pattern, &info) {
                continue;
            }
            let mut skipped = surveyed.plan.skipped.iter();
            let why = match skipped.find(|skipped| skipped.function == index) {
                Some(skipped) => format!("cannot be counted: {}", skipped.reason),
                None => "is not counted: -F, -N, --lib or --no-lib leave it out".into(),
            };
            return Error::Refused(format!(
                "{rule_error}\n  {} is there but {why}",
                function.name
            ));
        }
    }
    error
}

/// What a new thread's slot begins with.
pub fn threshold(shared: &Shared, header: &shm::Header) -> Result<u64> {
    let head: rules::Head = shared.read(header.rules_offset)?;
    Ok(head.least)
}

/// Where the threshold of a slot is.
pub fn threshold_offset(slot: u64) -> u64 {
    shm::SLOTS_OFFSET
        + slot * shm::PAGE
        + area::STATE_OFFSET
        + offset_of!(area::State, threshold) as u64
}
