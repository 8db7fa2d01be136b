//! The uncompressed body: one section per part of a profile, each with a tag and a length.
//!
//! A reader passes over tags it does not know, so that parts can be added without a new format
//! version.

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::ids::FuncId;
use crate::kernel::{EntersKernel, Made};
use crate::language::Language;
use crate::metrics::{Metric, NodeMetrics};
use crate::profile::{
    Creator, End, Function, Held, KernelCounts, Meta, Module, Node, ProbeCosts, Process, Profile,
    Pruned, Skipped, Thread,
};
use crate::{blocks, calls, counting, kernel, language, nodes, samples, sites, switched, timeline};

pub(crate) mod tag {
    pub const META: u64 = 1;
    pub const MODULES: u64 = 2;
    pub const FUNCTIONS: u64 = 3;
    pub const PROCESSES: u64 = 4;
    pub const SKIPPED: u64 = 5;
    pub const NOTES: u64 = 6;
    pub const UNWOUND: u64 = 7;
    pub const LIVES: u64 = 8;
    pub const OTHER_THREADS: u64 = 10;
    pub const SITES: u64 = 20;
    pub const TERMINAL: u64 = 15;
    pub const COSTS: u64 = 16;
    pub const CALLS: u64 = 30;
    pub const SIGNATURES: u64 = 32;
    pub const METRICS: u64 = 40;
    pub const FURTHER_COSTS: u64 = 31;
    pub const KERNEL: u64 = 41;
    pub const UNTIMED: u64 = 50;
    pub const SWITCHED: u64 = 51;
    pub const SAMPLES: u64 = 52;
    pub const SAMPLED: u64 = 53;
    pub const SAMPLE_COST: u64 = 54;
    pub const COUNTED_COST: u64 = 55;
    pub const THROUGH: u64 = 56;
    pub const FUNCTIONS_THAT_WAIT: u64 = 57;
    pub const FUNCTIONS_AT_LEAST: u64 = 58;
    pub const PRUNED: u64 = 24;
    pub const HELD: u64 = 60;
    pub const LANGUAGES: u64 = 61;
    pub const ENTERS_KERNEL: u64 = 42;
    pub const COUNTED_KERNEL: u64 = 43;
    pub const COUNTING: u64 = 44;
    pub const BLOCKS: u64 = 70;
    pub const BLOCK_COUNTERS: u64 = 71;
    pub const COSTS_OF_BLOCKS: u64 = 72;
    pub const TIMELINE: u64 = 80;
    pub const MARKS: u64 = 81;
}

/// In pieces, which follow each other.
pub fn encode(profile: &Profile) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    section(&mut out, tag::META, |out| encode_meta(&profile.meta, out));
    section(&mut out, tag::MODULES, |out| {
        list(out, &profile.modules, encode_module)
    });
    section(&mut out, tag::FUNCTIONS, |out| {
        encode_functions(&profile.functions, out)
    });
    section(&mut out, tag::PROCESSES, |out| {
        list(out, &profile.processes, encode_process)
    });
    section(&mut out, tag::SKIPPED, |out| {
        list(out, &profile.skipped, encode_skipped)
    });
    section(&mut out, tag::NOTES, |out| out.texts(&profile.notes));
    if nodes_of(profile).any(|node| node.unwound > 0) {
        section(&mut out, tag::UNWOUND, |out| encode_unwound(profile, out));
    }
    section(&mut out, tag::LIVES, |out| {
        list(out, &profile.processes, encode_life)
    });
    if threads_of(profile).any(|thread| thread.others > 0) {
        section(&mut out, tag::OTHER_THREADS, |out| {
            encode_others(profile, out)
        });
    }
    if !profile.sites.is_empty() {
        section(&mut out, tag::SITES, |out| sites::encode(profile, out));
    }
    if nodes_of(profile).any(|node| node.terminal > 0) {
        section(&mut out, tag::TERMINAL, |out| encode_terminal(profile, out));
    }
    if let Some(costs) = &profile.meta.costs {
        section(&mut out, tag::COSTS, |out| encode_costs(costs, out));
        section(&mut out, tag::FURTHER_COSTS, |out| {
            encode_further_costs(costs, out)
        });
        section(&mut out, tag::SAMPLE_COST, |out| out.float(costs.sample_ns));
        section(&mut out, tag::COUNTED_COST, |out| {
            out.float(costs.counted_ns);
            out.float(costs.leaf_ns);
            out.float(costs.counted_error);
            for (seen, more) in costs.hidden.into_iter().flatten() {
                out.float(seen);
                out.float(more);
            }
        });
    }
    if !profile.recorded.is_empty() {
        section(&mut out, tag::CALLS, |out| {
            calls::encode(&profile.recorded, out)
        });
    }
    if !profile.recorded.signatures.is_empty() {
        section(&mut out, tag::SIGNATURES, |out| {
            calls::encode_signatures(&profile.recorded, out)
        });
    }
    if threads_of(profile).any(|thread| thread.kernel.is_some()) {
        section(&mut out, tag::KERNEL, |out| encode_kernel(profile, out));
    }
    if !profile.meta.metrics.is_empty() {
        section(&mut out, tag::METRICS, |out| encode_metrics(profile, out));
    }
    if !profile.meta.counting.is_empty() {
        section(&mut out, tag::COUNTING, |out| {
            list(out, &profile.meta.counting, counting::encode)
        });
    }
    if nodes_of(profile).any(|node| node.untimed > 0) {
        section(&mut out, tag::UNTIMED, |out| {
            encode_few(profile, |node| node.untimed, out)
        });
    }
    if !profile.switched.is_empty() || profile.meta.estimated {
        section(&mut out, tag::SWITCHED, |out| {
            switched::encode(&profile.switched, profile.meta.estimated, out)
        });
    }
    if let Some(sampling) = &profile.meta.sampling {
        section(&mut out, tag::SAMPLES, |out| {
            samples::encode(sampling, profile, out)
        });
    }
    if threads_of(profile).any(|thread| !thread.timeline.is_empty()) {
        section(&mut out, tag::TIMELINE, |out| {
            timeline::encode(profile, out)
        });
    }
    if !profile.marks.is_empty() {
        section(&mut out, tag::MARKS, |out| {
            timeline::encode_marks(&profile.marks, out)
        });
    }
    if !profile.sampled.is_empty() {
        section(&mut out, tag::SAMPLED, |out| {
            samples::encode_sampled(&profile.sampled, out)
        });
    }
    if profile.sampled.iter().any(|one| one.through_ns > 0) {
        section(&mut out, tag::THROUGH, |out| {
            samples::encode_through(&profile.sampled, out)
        });
    }
    if profile.functions.iter().any(|function| function.waits) {
        section(&mut out, tag::FUNCTIONS_THAT_WAIT, |out| {
            encode_marked(&profile.functions, |function| function.waits, out)
        });
    }
    if profile.functions.iter().any(|function| function.at_least) {
        section(&mut out, tag::FUNCTIONS_AT_LEAST, |out| {
            encode_marked(&profile.functions, |function| function.at_least, out)
        });
    }
    if !profile.enters_kernel.is_empty() {
        section(&mut out, tag::ENTERS_KERNEL, |out| {
            kernel::encode(&profile.enters_kernel, out)
        });
    }
    let is_counted = |one: &EntersKernel| matches!(one.made, Made::Counted(_));
    if profile.enters_kernel.iter().any(is_counted) {
        section(&mut out, tag::COUNTED_KERNEL, |out| {
            kernel::encode_counted(&profile.enters_kernel, out)
        });
    }
    if profile.meta.pruned != Pruned::default() {
        section(&mut out, tag::PRUNED, |out| {
            out.number(profile.meta.pruned.contexts);
            out.number(profile.meta.pruned.calls);
        });
    }
    if profile.meta.held != Held::default() {
        section(&mut out, tag::HELD, |out| {
            encode_held(&profile.meta.held, out)
        });
    }
    if !profile.blocks.is_empty() {
        section(&mut out, tag::BLOCKS, |out| {
            list(out, &profile.blocks, blocks::encode)
        });
    }
    if let Some(name) = &profile.cycles_of {
        section(&mut out, tag::COSTS_OF_BLOCKS, |out| {
            blocks::encode_costs(name, &profile.blocks, out)
        });
    }
    if !profile.block_counters.is_empty() {
        section(&mut out, tag::BLOCK_COUNTERS, |out| {
            list(out, &profile.block_counters, blocks::encode_counters)
        });
    }
    let is_native = |function: &Function| function.language == Language::Native;
    if !profile.functions.iter().all(is_native) {
        section(&mut out, tag::LANGUAGES, |out| {
            language::encode(&profile.functions, out)
        });
    }
    out
}

fn encode_held(held: &Held, out: &mut Encoder) {
    out.number(held.stops);
    out.number(held.stopped_ns);
    out.number(held.longest_stop_ns);
    out.number(held.gates);
    out.number(held.gated_ns);
    out.number(held.longest_gate_ns);
    out.number(held.waited_for_ns);
}

fn decode_held(input: &mut Decoder) -> Result<Held, ReadError> {
    Ok(Held {
        stops: input.number()?,
        stopped_ns: input.number()?,
        longest_stop_ns: input.number()?,
        gates: input.number()?,
        gated_ns: input.number()?,
        longest_gate_ns: input.number()?,
        waited_for_ns: input.number()?,
    })
}

pub fn decode(body: &[u8]) -> Result<Profile, ReadError> {
    let mut profile = Profile::default();
    let mut has_meta = false;
    let mut input = Decoder::new(body);
    while !input.is_at_end() {
        let tag = input.number()?;
        let length = input.count(1)?;
        let mut section = Decoder::new(input.raw(length)?);
        let section = &mut section;
        match tag {
            tag::META => {
                profile.meta = decode_meta(section)?;
                has_meta = true;
            }
            tag::MODULES => profile.modules = section.list(5, decode_module)?,
            tag::FUNCTIONS => profile.functions = decode_functions(section)?,
            tag::PROCESSES => profile.processes = section.list(4, decode_process)?,
            tag::SKIPPED => profile.skipped = section.list(4, decode_skipped)?,
            tag::NOTES => profile.notes = section.texts()?,
            tag::UNWOUND => decode_unwound(&mut profile, section)?,
            tag::LIVES => decode_lives(&mut profile.processes, section)?,
            tag::OTHER_THREADS => decode_of_threads(
                &mut profile,
                "a thread that does not exist stands for others",
                section,
                decode_others,
            )?,
            tag::SITES => sites::decode(&mut profile, section)?,
            tag::TERMINAL => decode_terminal(&mut profile, section)?,
            tag::COSTS => profile.meta.costs = Some(decode_costs(section)?),
            tag::CALLS => profile.recorded = calls::decode(section)?,
            tag::SIGNATURES => profile.recorded.signatures = calls::decode_signatures(section)?,
            tag::KERNEL => decode_of_threads(
                &mut profile,
                "the kernel counted for a thread that does not exist",
                section,
                decode_kernel,
            )?,
            tag::ENTERS_KERNEL => profile.enters_kernel = kernel::decode(section)?,
            tag::COUNTED_KERNEL => kernel::decode_counted(&mut profile.enters_kernel, section)?,
            tag::METRICS => decode_metrics(&mut profile, section)?,
            tag::COUNTING => profile.meta.counting = counting::decode(section)?,
            tag::FURTHER_COSTS => decode_further_costs(&mut profile.meta, section)?,
            tag::SAMPLE_COST => costs(&mut profile.meta)?.sample_ns = section.float()?,
            tag::COUNTED_COST => {
                let costs = costs(&mut profile.meta)?;
                costs.counted_ns = section.float()?;
                costs.leaf_ns = section.float()?;
                costs.counted_error = section.float()?;
                for (seen, more) in costs.hidden.iter_mut().flatten() {
                    (*seen, *more) = (section.float()?, section.float()?);
                }
            }
            tag::UNTIMED => decode_few(
                &mut profile,
                "a context that does not exist has calls that were not timed",
                |node| &mut node.untimed,
                section,
            )?,
            tag::SWITCHED => {
                (profile.switched, profile.meta.estimated) = switched::decode(section)?;
            }
            tag::SAMPLES => samples::decode(&mut profile, section)?,
            tag::TIMELINE => timeline::decode(&mut profile, section)?,
            tag::MARKS => profile.marks = timeline::decode_marks(section)?,
            tag::SAMPLED => profile.sampled = samples::decode_sampled(section)?,
            tag::THROUGH => samples::decode_through(&mut profile.sampled, section)?,
            tag::FUNCTIONS_THAT_WAIT => decode_marked(
                &mut profile.functions,
                "a function that does not exist waits",
                |function| &mut function.waits,
                section,
            )?,
            tag::FUNCTIONS_AT_LEAST => decode_marked(
                &mut profile.functions,
                "a function that does not exist has a lower bound of calls",
                |function| &mut function.at_least,
                section,
            )?,
            tag::PRUNED => {
                profile.meta.pruned = Pruned {
                    contexts: section.number()?,
                    calls: section.number()?,
                }
            }
            tag::HELD => profile.meta.held = decode_held(section)?,
            tag::BLOCKS => profile.blocks = section.list(2, blocks::decode)?,
            tag::COSTS_OF_BLOCKS => {
                let name = blocks::decode_costs(section, &mut profile.blocks)?;
                profile.cycles_of = Some(name);
            }
            tag::BLOCK_COUNTERS => {
                profile.block_counters = section.list(2, blocks::decode_counters)?;
            }
            tag::LANGUAGES => language::decode(&mut profile.functions, section)?,
            _ => continue,
        }
        if !section.is_at_end() {
            return Err(ReadError::Corrupt("a section is longer than its content"));
        }
    }
    if !has_meta {
        return Err(ReadError::Corrupt("it does not say how it was recorded"));
    }
    Ok(profile)
}

fn section(out: &mut Vec<Vec<u8>>, tag: u64, content: impl FnOnce(&mut Encoder)) {
    let mut inner = Encoder::default();
    content(&mut inner);
    let inner = inner.into_bytes();
    let mut head = Encoder::default();
    head.number(tag);
    head.number(inner.len() as u64);
    out.extend([head.into_bytes(), inner]);
}

fn list<T>(out: &mut Encoder, elements: &[T], encode: impl Fn(&T, &mut Encoder)) {
    out.number(elements.len() as u64);
    elements.iter().for_each(|element| encode(element, out));
}

fn encode_meta(meta: &Meta, out: &mut Encoder) {
    out.text(&meta.version);
    out.number(meta.created_unix_ns);
    out.number(meta.duration_ns);
    out.byte(meta.timed.into());
    out.byte(meta.attached.into());
    out.texts(&meta.command);
    out.float(meta.clock_hz);
    out.float(meta.overhead_ns_per_call);
    out.number(meta.memory_bytes);
    out.number(meta.memory_limit);
}

fn decode_meta(input: &mut Decoder) -> Result<Meta, ReadError> {
    Ok(Meta {
        version: input.text()?,
        created_unix_ns: input.number()?,
        duration_ns: input.number()?,
        timed: input.boolean()?,
        attached: input.boolean()?,
        command: input.texts()?,
        clock_hz: input.float()?,
        overhead_ns_per_call: input.float()?,
        memory_bytes: input.number()?,
        memory_limit: input.number()?,
        pruned: Pruned::default(),
        held: Held::default(),
        costs: None,
        metrics: Vec::new(),
        weighed_by: None,
        estimated: false,
        sampling: None,
        counting: Vec::new(),
    })
}

fn encode_costs(costs: &ProbeCosts, out: &mut Encoder) {
    out.float(costs.inner_ns);
    out.float(costs.outer_ns);
    out.float(costs.joint_ns);
    out.float(costs.error);
    out.byte(costs.taken_out.into());
}

fn decode_costs(input: &mut Decoder) -> Result<ProbeCosts, ReadError> {
    Ok(ProbeCosts {
        inner_ns: input.float()?,
        outer_ns: input.float()?,
        joint_ns: input.float()?,
        error: input.float()?,
        taken_out: input.boolean()?,
        ..ProbeCosts::default()
    })
}

fn encode_further_costs(costs: &ProbeCosts, out: &mut Encoder) {
    out.float(costs.spread);
    out.float(costs.first_ns);
    for (contexts, ns) in costs.far {
        out.float(contexts);
        out.float(ns);
    }
}

/// What is added to them follows the costs that it belongs to.
fn costs(meta: &mut Meta) -> Result<&mut ProbeCosts, ReadError> {
    let costs = meta.costs.as_mut();
    costs.ok_or(ReadError::Corrupt(
        "costs of probes come before they should",
    ))
}

fn decode_further_costs(meta: &mut Meta, input: &mut Decoder) -> Result<(), ReadError> {
    let costs = costs(meta)?;
    costs.spread = input.float()?;
    costs.first_ns = input.float()?;
    for (contexts, ns) in &mut costs.far {
        *contexts = input.float()?;
        *ns = input.float()?;
    }
    Ok(())
}

fn encode_module(module: &Module, out: &mut Encoder) {
    out.text(&module.name);
    out.text(&module.path);
    out.text(&module.build_id);
    out.number(module.functions_total.into());
    out.number(module.functions_patched.into());
}

fn decode_module(input: &mut Decoder) -> Result<Module, ReadError> {
    Ok(Module {
        name: input.text()?,
        path: input.text()?,
        build_id: input.text()?,
        functions_total: input.number32()?,
        functions_patched: input.number32()?,
    })
}

/// Functions of a module usually come in the order of their addresses, so the address is a
/// difference.
fn encode_functions(functions: &[Function], out: &mut Encoder) {
    out.number(functions.len() as u64);
    let mut previous = 0;
    for function in functions {
        out.text(&function.name);
        out.number(function.module.into());
        out.difference(function.address, previous);
        previous = function.address;
        match &function.file {
            None => out.byte(0),
            Some(file) => {
                out.byte(1);
                out.text(file);
            }
        }
        out.number(function.line.into());
    }
}

fn decode_functions(input: &mut Decoder) -> Result<Vec<Function>, ReadError> {
    let mut previous = 0;
    input.list(5, |input| {
        let name = input.text()?;
        let module = input.number32()?;
        let address = input.difference(previous)?;
        previous = address;
        let file = if input.boolean()? {
            Some(input.text()?)
        } else {
            None
        };
        let line = input.number32()?;
        Ok(Function {
            name,
            module,
            address,
            file,
            line,
            language: Language::Native,
            waits: false,
            at_least: false,
        })
    })
}

/// Of each function with that mark: how many were passed over.
fn encode_marked(functions: &[Function], is_marked: impl Fn(&Function) -> bool, out: &mut Encoder) {
    let mut passed = 0;
    for function in functions {
        match is_marked(function) {
            true => out.number(std::mem::take(&mut passed)),
            false => passed += 1,
        }
    }
}

fn decode_marked(
    functions: &mut [Function],
    unknown: &'static str,
    mark: impl Fn(&mut Function) -> &mut bool,
    input: &mut Decoder,
) -> Result<(), ReadError> {
    let mut functions = functions.iter_mut();
    while !input.is_at_end() {
        let passed = usize::try_from(input.number()?).ok();
        let function = passed.and_then(|passed| functions.nth(passed));
        *mark(function.ok_or(ReadError::Corrupt(unknown))?) = true;
    }
    Ok(())
}

fn encode_process(process: &Process, out: &mut Encoder) {
    out.number(process.pid.into());
    out.optional(process.parent);
    out.texts(&process.command);
    list(out, &process.threads, encode_thread);
}

fn decode_process(input: &mut Decoder) -> Result<Process, ReadError> {
    Ok(Process {
        pid: input.number32()?,
        parent: input.optional()?,
        command: input.texts()?,
        threads: input.list(8, decode_thread)?,
        ..Process::default()
    })
}

fn encode_life(process: &Process, out: &mut Encoder) {
    out.number(process.start_ns);
    out.number(process.end_ns);
    let (how, detail) = match process.end {
        End::Unknown => (0, 0),
        End::Running => (1, 0),
        End::Exited(code) => (2, code),
        End::Killed(signal) => (3, signal),
        End::Replaced => (4, 0),
    };
    out.byte(how);
    out.byte(detail);
}

/// One for each process, in the same order; their section comes before it.
fn decode_lives(processes: &mut [Process], input: &mut Decoder) -> Result<(), ReadError> {
    let lives = input.list(4, |input| {
        let (start_ns, end_ns) = (input.number()?, input.number()?);
        let end = match (input.byte()?, input.byte()?) {
            (0, 0) => End::Unknown,
            (1, 0) => End::Running,
            (2, code) => End::Exited(code),
            (3, signal) => End::Killed(signal),
            (4, 0) => End::Replaced,
            _ => return Err(ReadError::Corrupt("a process ended in an unknown way")),
        };
        Ok((start_ns, end_ns, end))
    })?;
    if lives.len() != processes.len() {
        return Err(ReadError::Corrupt("not every process has an end"));
    }
    for (process, (start_ns, end_ns, end)) in processes.iter_mut().zip(lives) {
        (process.start_ns, process.end_ns, process.end) = (start_ns, end_ns, end);
    }
    Ok(())
}

fn encode_thread(thread: &Thread, out: &mut Encoder) {
    out.number(thread.tid.into());
    out.text(&thread.name);
    match thread.created_by {
        None => out.byte(0),
        Some(creator) => {
            out.byte(1);
            out.number(creator.pid.into());
            out.number(creator.tid.into());
            out.optional(creator.function.map(|function| function.0));
        }
    }
    out.number(thread.start_ns);
    out.number(thread.end_ns);
    out.number(thread.folded_calls);
    nodes::encode(&thread.nodes, out);
}

fn decode_thread(input: &mut Decoder) -> Result<Thread, ReadError> {
    let tid = input.number32()?;
    let name = input.text()?;
    let created_by = if input.boolean()? {
        Some(Creator {
            pid: input.number32()?,
            tid: input.number32()?,
            function: input.optional()?.map(FuncId),
        })
    } else {
        None
    };
    Ok(Thread {
        tid,
        name,
        created_by,
        start_ns: input.number()?,
        end_ns: input.number()?,
        folded_calls: input.number()?,
        nodes: nodes::decode(input)?,
        metrics: NodeMetrics::default(),
        samples: Vec::new(),
        timeline: timeline::Timeline::default(),
        others: 0,
        kernel: None,
    })
}

fn nodes_of(profile: &Profile) -> impl Iterator<Item = &Node> {
    threads_of(profile).flat_map(|thread| &thread.nodes)
}

/// Most contexts were never left by an exception.
fn encode_unwound(profile: &Profile, out: &mut Encoder) {
    encode_few(profile, |node| node.unwound, out);
}

/// Few contexts wait for a person.
fn encode_terminal(profile: &Profile, out: &mut Encoder) {
    encode_few(profile, |node| node.terminal, out);
}

/// A column for each, under its name: of most metrics few contexts have anything.
fn encode_metrics(profile: &Profile, out: &mut Encoder) {
    for &metric in &profile.meta.metrics {
        let mut column = Encoder::default();
        let threads = threads_of(profile);
        let nodes =
            threads.flat_map(|thread| (0..thread.nodes.len() as u32).map(move |n| (thread, n)));
        encode_values(
            nodes.map(|(thread, node)| thread.metrics.at(node).get(metric)),
            &mut column,
        );
        let column = column.into_bytes();
        out.text(metric.name());
        out.number(column.len() as u64);
        out.raw(&column);
    }
}

/// Passes over metrics that this version does not know.
fn decode_metrics(profile: &mut Profile, input: &mut Decoder) -> Result<(), ReadError> {
    let missing = "a context that does not exist has a metric";
    while !input.is_at_end() {
        let name = input.text()?;
        let length = input.count(1)?;
        let mut column = Decoder::new(input.raw(length)?);
        let Some(metric) = Metric::named(&name) else {
            continue;
        };
        let metrics = &mut profile.meta.metrics;
        if metrics.contains(&metric) {
            return Err(ReadError::Corrupt("a metric is there twice"));
        }
        metrics.push(metric);
        let mut threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
        let mut thread = threads.next();
        let mut node = 0u64;
        while !column.is_at_end() {
            let passed = column.number()?;
            node = node.saturating_add(passed);
            let own = loop {
                let Some(own) = thread.as_deref_mut() else {
                    return Err(ReadError::Corrupt(missing));
                };
                match node.checked_sub(own.nodes.len() as u64) {
                    None => break own,
                    Some(beyond) => (node, thread) = (beyond, threads.next()),
                }
            };
            own.metrics.set(node as u32, metric, column.number()?);
            node += 1;
        }
    }
    Ok(())
}

/// Only the nodes that have the figure are named, by how many were passed over.
fn encode_few(profile: &Profile, figure: impl Fn(&Node) -> u64, out: &mut Encoder) {
    encode_values(nodes_of(profile).map(figure), out);
}

fn encode_values(values: impl Iterator<Item = u64>, out: &mut Encoder) {
    let mut passed = 0;
    for value in values {
        if value == 0 {
            passed += 1;
            continue;
        }
        out.number(passed);
        out.number(value);
        passed = 0;
    }
}

fn decode_unwound(profile: &mut Profile, input: &mut Decoder) -> Result<(), ReadError> {
    let missing = "a context that does not exist was left by exceptions";
    decode_few(profile, missing, |node| &mut node.unwound, input)
}

fn decode_terminal(profile: &mut Profile, input: &mut Decoder) -> Result<(), ReadError> {
    let missing = "a context that does not exist waited for a terminal";
    decode_few(profile, missing, |node| &mut node.terminal, input)
}

/// Refers to the nodes of the processes, whose section comes before it.
fn decode_few(
    profile: &mut Profile,
    missing: &'static str,
    figure: impl Fn(&mut Node) -> &mut u64,
    input: &mut Decoder,
) -> Result<(), ReadError> {
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    let mut nodes = threads.flat_map(|thread| &mut thread.nodes);
    while !input.is_at_end() {
        let node = usize::try_from(input.number()?)
            .ok()
            .and_then(|passed| nodes.nth(passed))
            .ok_or(ReadError::Corrupt(missing))?;
        *figure(node) = input.number()?;
    }
    Ok(())
}

fn threads_of(profile: &Profile) -> impl Iterator<Item = &Thread> {
    profile.processes.iter().flat_map(|p| &p.threads)
}

/// Nearly all accounts are one thread's: the others are named by how many threads were passed over.
fn encode_others(profile: &Profile, out: &mut Encoder) {
    let mut passed = 0;
    for thread in threads_of(profile) {
        if thread.others == 0 {
            passed += 1;
            continue;
        }
        out.number(passed);
        out.number(thread.others);
        passed = 0;
    }
}

/// Refers to the threads of the processes, whose section comes before it.
fn decode_others(thread: &mut Thread, input: &mut Decoder) -> Result<(), ReadError> {
    thread.others = input.number()?;
    Ok(())
}

/// Decodes something of some threads, each behind the number of threads that are passed over.
fn decode_of_threads(
    profile: &mut Profile,
    missing: &'static str,
    input: &mut Decoder,
    one: impl Fn(&mut Thread, &mut Decoder) -> Result<(), ReadError>,
) -> Result<(), ReadError> {
    let mut threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    while !input.is_at_end() {
        let passed = usize::try_from(input.number()?).ok();
        let thread = passed.and_then(|passed| threads.nth(passed));
        one(thread.ok_or(ReadError::Corrupt(missing))?, input)?;
    }
    Ok(())
}

/// Threads of which nothing is known are passed over.
fn encode_kernel(profile: &Profile, out: &mut Encoder) {
    let mut passed = 0;
    for thread in threads_of(profile) {
        let Some(counts) = &thread.kernel else {
            passed += 1;
            continue;
        };
        out.number(passed);
        out.number(counts.minor_faults);
        out.number(counts.major_faults);
        out.number(counts.voluntary_switches);
        out.number(counts.involuntary_switches);
        passed = 0;
    }
}

/// Refers to the threads of the processes, whose section comes before it.
fn decode_kernel(thread: &mut Thread, input: &mut Decoder) -> Result<(), ReadError> {
    thread.kernel = Some(KernelCounts {
        minor_faults: input.number()?,
        major_faults: input.number()?,
        voluntary_switches: input.number()?,
        involuntary_switches: input.number()?,
    });
    Ok(())
}

fn encode_skipped(skipped: &Skipped, out: &mut Encoder) {
    out.text(&skipped.name);
    out.text(&skipped.module);
    out.number(skipped.address);
    out.text(&skipped.reason);
}

fn decode_skipped(input: &mut Decoder) -> Result<Skipped, ReadError> {
    Ok(Skipped {
        name: input.text()?,
        module: input.text()?,
        address: input.number()?,
        reason: input.text()?,
    })
}
