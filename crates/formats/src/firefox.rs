//! The Firefox Profiler's "processed" JSON, which profiler.firefox.com opens from disk.
//!
//! Its call tree, flame graph and inverted tree hold what a thalweg profile holds: stacks with
//! weights. Its timeline wants a time for each sample, and a tree of sums has only one: the moment
//! up to which a thread was counted. All samples of a thread stand there, so the timeline shows
//! that moment and no invented course of events. A profile without even that (imported from a
//! format that keeps none) is refused.
//!
//! Written in version 48 of the format, which the site upgrades by itself.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};
use thalweg_model::{FuncId, Process, Profile, Thread};

use crate::each::Each;
use crate::stacks::{own_weight, thread_name, title};

const FORMAT_VERSION: u32 = 48;

/// The format's number for "a shared library" among the kinds of resources.
const LIBRARY: u32 = 1;

/// Nothing says when this profile was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the Firefox Profiler needs times, this profile has none (it was imported), and none are made up: \
     use speedscope or pprof"
)]
pub struct NoTimes;

pub fn check_times(profile: &Profile) -> Result<(), NoTimes> {
    match profile.meta.duration_ns {
        0 => Err(NoTimes),
        _ => Ok(()),
    }
}

pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Document<L, T> {
        meta: Value,
        libs: L,
        threads: T,
        counters: [(); 0],
        pages: [(); 0],
        #[serde(rename = "profilerOverhead")]
        overhead: [(); 0],
    }
    let threads = || {
        let processes = profile.processes.iter();
        processes.flat_map(|process| process.threads.iter().map(move |thread| (process, thread)))
    };
    let document = Document {
        meta: meta(profile),
        libs: Each(|| profile.modules.iter().map(library)),
        threads: Each(|| threads().map(|(process, thread)| tables(profile, process, thread))),
        counters: [],
        pages: [],
        overhead: [],
    };
    serde_json::to_writer(&mut out, &document)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn meta(profile: &Profile) -> Value {
    let meta = &profile.meta;
    json!({
        "version": 24,
        "preprocessedProfileVersion": FORMAT_VERSION,
        "product": meta.command.first().map_or("thalweg", String::as_str),
        "importedFrom": format!("thalweg {}", meta.version),
        "arguments": title(profile),
        "interval": 1,
        "startTime": milliseconds(meta.created_unix_ns),
        "processType": 0,
        "stackwalk": 0,
        "debug": false,
        "symbolicated": true,
        "platform": "Linux",
        "oscpu": "Linux x86_64",
        "abi": "x86_64-gcc3",
        "categories": [{"name": "Function", "color": "blue", "subcategories": ["Other"]}],
        "markerSchema": [],
        "usesOnlyOneStackType": true,
        "doesNotUseFrameImplementation": true,
        "sourceCodeIsNotOnSearchfox": true,
        "extensions": {"id": [], "name": [], "baseURL": [], "length": 0},
    })
}

fn library(module: &thalweg_model::Module) -> Value {
    json!({
        "name": module.name,
        "path": module.path,
        "debugName": module.name,
        "debugPath": module.path,
        // A breakpad id is a GUID and an age; it matters to symbol servers only, which are not
        // needed here.
        "breakpadId": "",
        "codeId": Some(&module.build_id).filter(|id| !id.is_empty()),
        "arch": "x86_64",
    })
}

/// Names of a thread, each once.
#[derive(Default)]
struct Strings {
    numbers: HashMap<String, u32>,
    all: Vec<String>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.all.len() as u32;
        self.numbers.insert(text.to_string(), number);
        self.all.push(text.to_string());
        number
    }
}

/// The tables of one thread. Functions that it did not run are left out; a frame is a function, a
/// stack is a context.
fn tables(profile: &Profile, process: &Process, thread: &Thread) -> Value {
    let mut strings = Strings::default();
    let mut places: HashMap<FuncId, u32> = HashMap::new();
    let mut functions: Vec<FuncId> = Vec::new();
    let mut libraries: Vec<u32> = Vec::new();
    let mut resources: HashMap<u32, u32> = HashMap::new();
    for node in &thread.nodes {
        places.entry(node.function).or_insert_with(|| {
            functions.push(node.function);
            let module = profile.functions[node.function].module;
            resources.entry(module).or_insert_with(|| {
                libraries.push(module);
                libraries.len() as u32 - 1
            });
            functions.len() as u32 - 1
        });
    }
    let of = |function: &FuncId| &profile.functions[function.index()];
    let lines: Vec<Option<u32>> = functions
        .iter()
        .map(|f| Some(of(f).line).filter(|&line| line > 0))
        .collect();
    let files: Vec<Option<u32>> = functions
        .iter()
        .map(|f| of(f).file.as_deref().map(|file| strings.number(file)))
        .collect();
    let names: Vec<u32> = functions
        .iter()
        .map(|f| strings.number(&of(f).name))
        .collect();
    let library_names: Vec<u32> = libraries
        .iter()
        .map(|&library| strings.number(&profile.modules[library as usize].name))
        .collect();
    let weighty: Vec<usize> = (0..thread.nodes.len())
        .filter(|&index| own_weight(profile, &thread.nodes[index]) > 0)
        .collect();
    let weights: Vec<Value> = weighty
        .iter()
        .map(|&index| own_weight(profile, &thread.nodes[index]))
        .map(|weight| match profile.meta.timed {
            true => milliseconds(weight).into(),
            false => weight.into(),
        })
        .collect();
    let count = functions.len();
    let nothing = vec![Value::Null; count];
    let zeros = vec![0; count];
    let process_name = process.command.first().map_or("", String::as_str);
    let at = milliseconds(thread.end_ns);
    json!({
        "name": thread_name(thread),
        "isMainThread": thread.tid == process.pid,
        "processType": "default",
        "processName": process_name,
        "processStartupTime": 0,
        "processShutdownTime": null,
        "registerTime": milliseconds(thread.start_ns),
        "unregisterTime": null,
        "pausedRanges": [],
        "pid": process.pid.to_string(),
        "tid": thread.tid,
        "stringArray": strings.all,
        "funcTable": {
            "length": count, "name": names, "isJS": vec![false; count],
            "relevantForJS": vec![false; count],
            "resource": functions.iter().map(|f| resources[&of(f).module]).collect::<Vec<_>>(),
            "fileName": files, "lineNumber": lines, "columnNumber": nothing,
        },
        "frameTable": {
            "length": count, "func": (0..count).collect::<Vec<_>>(),
            "address": vec![-1; count], "inlineDepth": zeros, "category": zeros,
            "subcategory": zeros, "nativeSymbol": nothing, "innerWindowID": nothing,
            "implementation": nothing, "line": lines, "column": nothing,
        },
        "resourceTable": {
            "length": libraries.len(), "lib": libraries, "name": library_names,
            "host": vec![Value::Null; libraries.len()], "type": vec![LIBRARY; libraries.len()],
        },
        "stackTable": {
            "length": thread.nodes.len(),
            "frame": thread.nodes.iter().map(|n| places[&n.function]).collect::<Vec<_>>(),
            "prefix": thread.nodes.iter().map(|n| n.parent).collect::<Vec<_>>(),
            "category": vec![0; thread.nodes.len()],
            "subcategory": vec![0; thread.nodes.len()],
        },
        "samples": {
            "length": weighty.len(), "stack": weighty, "time": vec![at; weighty.len()],
            "weight": weights,
            "weightType": if profile.meta.timed { "tracing-ms" } else { "samples" },
        },
        "markers": {
            "length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [],
            "startTime": [],
        },
        "nativeSymbols": {
            "length": 0, "address": [], "functionSize": [], "libIndex": [], "name": [],
        },
    })
}
