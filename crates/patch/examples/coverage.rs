//! Plans, emits and checks the files named on the command line: a line for each, and why functions were left alone.
//!
//!     cargo run --release -p thalweg-patch --example coverage -- /usr/lib/x86_64-linux-gnu/libc.so.6

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use thalweg_patch::{Placement, Probe, ProbeEncoder, emit, plan, verify};
use thalweg_symbols::{FunctionKind, Module};

/// As long as the real probes: a call, and for entries a nop that holds the function's number.
struct Sample;

impl ProbeEncoder for Sample {
    fn encode(&self, probe: Probe, _keep_flags: bool, _at: u64, out: &mut Vec<u8>) {
        match probe {
            Probe::Entry { function, .. } | Probe::Leaf { function } => {
                out.extend([0xe8, 0, 0, 0, 0, 0x0f, 0x1f, 0x80]);
                out.extend((function as u32).to_le_bytes());
            }
            Probe::Return => out.extend([0xe9, 0, 0, 0, 0]),
            Probe::Exit => out.extend([0xe8, 1, 0, 0, 0]),
            Probe::TailMark => out.extend([0xe8, 2, 0, 0, 0]),
            Probe::TailUnknown => out.extend([0xe8, 3, 0, 0, 0]),
            Probe::Switch { .. } => out.extend([0xe8, 4, 0, 0, 0]),
            Probe::Kernel { .. } => out.extend([0xe8, 5, 0, 0, 0]),
            Probe::Watch => out.extend([0xe8, 6, 0, 0, 0]),
            Probe::GoEntry { .. } | Probe::GoReturn | Probe::GoLeave { .. } | Probe::GoArrive => {}
        }
    }
}

fn main() {
    let (list, files): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|a| a == "--list");
    for file in &files {
        one(file, !list.is_empty());
    }
}

fn one(file: &str, list: bool) {
    let module = match Module::load(Path::new(file)) {
        Ok(module) => module,
        Err(error) => return println!("{file}: {error}"),
    };
    let normal = module
        .functions
        .iter()
        .filter(|f| matches!(f.kind, FunctionKind::Normal | FunctionKind::IfuncResolver))
        .count();
    let before = Instant::now();
    let plan = plan(&module, &vec![true; module.functions.len()]);
    let planned = before.elapsed();
    let place = Placement {
        bias: 0x10_0000,
        stub_base: 0x4000_0000,
        encoder: &Sample,
    };
    let before = Instant::now();
    let emitted = match emit(&module, &plan, &place) {
        Ok(emitted) => emitted,
        Err(error) => return println!("{file}: {error}"),
    };
    let emitting = before.elapsed();
    let before = Instant::now();
    let problems = verify(&module, &plan, &emitted, &place);
    let verified = before.elapsed();
    println!(
        "{:7} of {normal:7} {:6.2} %  plan {:4} ms  emit {:4} ms  verify {:4} ms  stubs {:7}  problems {}  {file}",
        plan.functions.len(),
        plan.functions.len() as f64 * 100.0 / normal.max(1) as f64,
        planned.as_millis(),
        emitting.as_millis(),
        verified.as_millis(),
        emitted.stubs_end() - place.stub_base,
        problems.len(),
    );
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for skipped in &plan.skipped {
        *reasons.entry(skipped.reason.kind()).or_default() += 1;
    }
    let mut methods: BTreeMap<String, usize> = BTreeMap::new();
    for function in &plan.functions {
        *methods.entry(function.method.to_string()).or_default() += 1;
    }
    println!("        {methods:?} skipped {reasons:?}");
    for problem in problems.iter().take(10) {
        println!("        {problem}");
    }
    if list {
        for skipped in &plan.skipped {
            let f = &module.functions[skipped.function];
            println!(
                "        {:#x}-{:#x} {}: {}",
                f.start, f.end, f.name, skipped.reason
            );
        }
    }
}
