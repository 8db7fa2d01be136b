//! pprof's `profile.proto`, already unzipped.

use std::collections::HashMap;

use thalweg_model::{FuncId, Profile};

use super::ImportError;
use super::trees::Trees;
use crate::pprof::field;
use crate::protobuf::{Fields, Malformed, Value};

/// A location may stand for many inlined functions, and a stack may name it many times: a small
/// file for a huge stack.
const MAX_LEVELS: usize = 1 << 20;

/// Whether the bytes could be a profile: every field is one that profiles have, and there is a
/// sample type.
pub fn looks_like_it(bytes: &[u8]) -> bool {
    let mut typed = false;
    for field in Fields(bytes).take(64) {
        match field {
            Ok((field::SAMPLE_TYPE, Value::Bytes(_))) => typed = true,
            Ok((1..=15, _)) => {}
            _ => return false,
        }
    }
    typed
}

#[derive(Default)]
struct Tables<'a> {
    strings: Vec<&'a [u8]>,
    sample_types: Vec<(u64, u64)>,
    samples: Vec<&'a [u8]>,
    mappings: HashMap<u64, (u64, u64)>,
    locations: HashMap<u64, Location>,
    functions: HashMap<u64, Function>,
    default_type: u64,
    time_ns: u64,
    duration_ns: u64,
}

#[derive(Default)]
struct Location {
    mapping: u64,
    address: u64,
    /// Function and line; the innermost of what was inlined first.
    lines: Vec<(u64, u64)>,
}

#[derive(Clone, Copy, Default)]
struct Function {
    name: u64,
    file: u64,
    line: u64,
}

pub fn read(bytes: &[u8]) -> Result<Profile, ImportError> {
    let tables = Tables::read(bytes)?;
    let mut trees = Trees::new("pprof");
    trees.meta.created_unix_ns = tables.time_ns;
    trees.meta.duration_ns = tables.duration_ns;
    let figures = Figures::from_tables(&tables)?;
    trees.notes.push(figures.note());

    // Numbers of ours for each location, made when a sample first needs it.
    let mut frames: HashMap<u64, Vec<FuncId>> = HashMap::new();
    for sample in &tables.samples {
        let sample = Sample::read(sample, &tables)?;
        let weight = |index: Option<usize>| -> u64 {
            let value = index.and_then(|index| sample.values.get(index));
            // Differences may be negative; a tree cannot be.
            value.map_or(0, |&value| (value as i64).max(0) as u64)
        };
        let thread = trees.thread(sample.pid, sample.tid, &sample.thread);
        let mut stack = Vec::new();
        for location in sample.locations.iter().rev() {
            let known = frames
                .entry(*location)
                .or_insert_with(|| tables.frames(*location, &mut trees));
            if stack.len() + known.len() > MAX_LEVELS {
                return Err(ImportError::TooLarge("a million frames in a stack"));
            }
            stack.extend_from_slice(known);
        }
        let self_ns = weight(Some(figures.weight)).saturating_mul(figures.factor);
        trees.add(thread, stack, weight(figures.calls), self_ns)?;
    }
    trees.finish()
}

impl<'a> Tables<'a> {
    fn read(bytes: &'a [u8]) -> Result<Tables<'a>, Malformed> {
        let mut tables = Tables::default();
        for field in Fields(bytes) {
            let (number, value) = field?;
            match number {
                field::SAMPLE_TYPE => tables.sample_types.push(pair(value.bytes()?, 1, 2)?),
                field::SAMPLE => tables.samples.push(value.bytes()?),
                field::MAPPING => {
                    let mapping = value.bytes()?;
                    let (id, file) = pair(mapping, 1, 5)?;
                    let (_, build_id) = pair(mapping, 1, 6)?;
                    tables.mappings.insert(id, (file, build_id));
                }
                field::LOCATION => {
                    let (id, location) = Location::read(value.bytes()?)?;
                    tables.locations.insert(id, location);
                }
                field::FUNCTION => {
                    let function = value.bytes()?;
                    let (id, name) = pair(function, 1, 2)?;
                    let (file, line) = pair(function, 4, 5)?;
                    tables.functions.insert(id, Function { name, file, line });
                }
                field::STRING => tables.strings.push(value.bytes()?),
                field::TIME_NANOS => tables.time_ns = value.number()?,
                field::DURATION_NANOS => tables.duration_ns = value.number()?,
                field::DEFAULT_SAMPLE_TYPE => tables.default_type = value.number()?,
                _ => {}
            }
        }
        Ok(tables)
    }

    fn string(&self, number: u64) -> String {
        let index = usize::try_from(number).ok();
        let bytes = index.and_then(|index| self.strings.get(index));
        String::from_utf8_lossy(bytes.copied().unwrap_or_default()).into_owned()
    }

    /// The functions at a location, the outermost of what was inlined first.
    fn frames(&self, number: u64, trees: &mut Trees) -> Vec<FuncId> {
        let nothing = Location::default();
        let location = self.locations.get(&number).unwrap_or(&nothing);
        let (file, build_id) = self
            .mappings
            .get(&location.mapping)
            .copied()
            .unwrap_or_default();
        let module = trees.module(&self.string(file), &self.string(build_id));
        if location.lines.is_empty() {
            let name = format!("sub_{:x}", location.address);
            return vec![trees.function(module, &name, location.address, None, 0)];
        }
        let lines = location.lines.iter().rev();
        lines
            .map(|(function, _)| {
                let known = self.functions.get(function).copied().unwrap_or_default();
                let name = match self.string(known.name) {
                    name if name.is_empty() => format!("sub_{:x}", location.address),
                    name => name,
                };
                let line = u32::try_from(known.line).unwrap_or(0);
                trees.function(module, &name, 0, Some(&self.string(known.file)), line)
            })
            .collect()
    }
}

/// Two numbers of a message, 0 where they are missing.
fn pair(bytes: &[u8], first: u32, second: u32) -> Result<(u64, u64), Malformed> {
    let mut pair = (0, 0);
    for field in Fields(bytes) {
        match field? {
            (number, Value::Number(value)) if number == first => pair.0 = value,
            (number, Value::Number(value)) if number == second => pair.1 = value,
            _ => {}
        }
    }
    Ok(pair)
}

impl Location {
    fn read(bytes: &[u8]) -> Result<(u64, Location), Malformed> {
        let mut id = 0;
        let mut location = Location::default();
        for field in Fields(bytes) {
            match field? {
                (1, value) => id = value.number()?,
                (2, value) => location.mapping = value.number()?,
                (3, value) => location.address = value.number()?,
                (4, value) => location.lines.push(pair(value.bytes()?, 1, 2)?),
                _ => {}
            }
        }
        Ok((id, location))
    }
}

/// Which of a sample's values are calls and which is the weight.
struct Figures {
    calls: Option<usize>,
    weight: usize,
    /// Nanoseconds in one of the weight's units; 1 where it is no time.
    factor: u64,
    name: String,
    is_time: bool,
}

impl Figures {
    fn from_tables(tables: &Tables) -> Result<Figures, ImportError> {
        let types: Vec<(String, String)> = tables
            .sample_types
            .iter()
            .map(|&(kind, unit)| (tables.string(kind), tables.string(unit)))
            .collect();
        if types.is_empty() {
            return Err(ImportError::Malformed(
                "it does not say what its samples mean".into(),
            ));
        }
        let calls = types
            .iter()
            .position(|(kind, unit)| kind == "calls" && unit == "count");
        let time = types
            .iter()
            .position(|(_, unit)| nanoseconds_in(unit).is_some());
        let default = tables.string(tables.default_type);
        let preferred = types.iter().position(|(kind, _)| *kind == default);
        let weight = time.or(preferred).unwrap_or(types.len() - 1);
        let (kind, unit) = &types[weight];
        Ok(Figures {
            calls,
            weight,
            factor: nanoseconds_in(unit).unwrap_or(1),
            name: format!("{kind} ({unit})"),
            is_time: time.is_some(),
        })
    }

    fn note(&self) -> String {
        let times = match self.is_time {
            true => String::new(),
            false => format!(" times are {}, one shown as 1 ns;", self.name),
        };
        let calls = match self.calls {
            Some(_) => "calls are as counted there",
            None => "calls were not counted",
        };
        format!("imported from pprof:{times} {calls}")
    }
}

fn nanoseconds_in(unit: &str) -> Option<u64> {
    match unit {
        "nanoseconds" | "nanosecond" | "ns" => Some(1),
        "microseconds" | "microsecond" | "us" => Some(1_000),
        "milliseconds" | "millisecond" | "ms" => Some(1_000_000),
        "seconds" | "second" | "s" => Some(1_000_000_000),
        _ => None,
    }
}

#[derive(Default)]
struct Sample {
    locations: Vec<u64>,
    values: Vec<u64>,
    pid: u32,
    tid: u32,
    thread: String,
}

impl Sample {
    fn read(bytes: &[u8], tables: &Tables) -> Result<Sample, Malformed> {
        let mut sample = Sample::default();
        for field in Fields(bytes) {
            match field? {
                (1, value) => value.append_to(&mut sample.locations)?,
                (2, value) => value.append_to(&mut sample.values)?,
                (3, value) => {
                    let label = value.bytes()?;
                    let (key, text) = pair(label, 1, 2)?;
                    let (_, number) = pair(label, 1, 3)?;
                    match tables.string(key).as_str() {
                        "pid" => sample.pid = u32::try_from(number).unwrap_or(0),
                        "tid" | "thread_id" => sample.tid = u32::try_from(number).unwrap_or(0),
                        "thread" => sample.thread = tables.string(text),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        Ok(sample)
    }
}
