//! One row per thread: who made it, from when to when it lived, and what it did.

use std::cmp::Reverse;

use clap::ValueEnum;
use serde::Serialize;
use thalweg_analysis::{Bounds, Lineage, ThreadNumber, threads};
use thalweg_model::{FuncId, KernelCounts, Node, Profile};

use crate::is_false;
use crate::processes::ProcessOf;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadOrder {
    /// As they were recorded: makers usually before those they made
    Number,
    Calls,
    #[value(name = "self", alias = "base")]
    SelfTime,
    /// When they began
    Start,
    Contexts,
}

#[derive(Serialize)]
pub struct Threads<'a> {
    schema: &'static str,
    pub timed: bool,
    pub processes: Vec<ProcessOf<'a>>,
    pub threads: Vec<ThreadOf<'a>>,
    pub not_shown: usize,
}

#[derive(Serialize)]
pub struct ThreadOf<'a> {
    pub thread: u32,
    pub made_by: Option<u32>,
    pub made_in: Option<FuncId>,
    pub level: u32,
    pub pid: u32,
    pub tid: u32,
    pub name: &'a str,
    pub start_ns: u64,
    pub end_ns: u64,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
    pub contexts: usize,
    /// The function with most self time.
    pub busiest: Option<FuncId>,
    pub folded_calls: u64,
    /// Threads that it stands for, too.
    pub others: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
}

#[derive(Clone, Copy, Serialize)]
pub struct Kernel {
    pub minor_faults: u64,
    pub major_faults: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

impl From<KernelCounts> for Kernel {
    fn from(counts: KernelCounts) -> Kernel {
        Kernel {
            minor_faults: counts.minor_faults,
            major_faults: counts.major_faults,
            voluntary_switches: counts.voluntary_switches,
            involuntary_switches: counts.involuntary_switches,
        }
    }
}

impl<'a> Threads<'a> {
    pub fn new(profile: &'a Profile, order: ThreadOrder, limit: Option<usize>) -> Threads<'a> {
        let mut rows = rows(profile);
        match order {
            ThreadOrder::Number => {}
            ThreadOrder::Calls => rows.sort_by_key(|row| Reverse(row.calls)),
            ThreadOrder::SelfTime => rows.sort_by_key(|row| Reverse(row.self_ns)),
            ThreadOrder::Start => rows.sort_by_key(|row| row.start_ns),
            ThreadOrder::Contexts => rows.sort_by_key(|row| Reverse(row.contexts)),
        }
        let all = rows.len();
        rows.truncate(limit.unwrap_or(all));
        Threads {
            schema: "thalweg.report.threads/1",
            timed: profile.meta.timed,
            processes: ProcessOf::all(profile),
            not_shown: all - rows.len(),
            threads: rows,
        }
    }
}

fn rows(profile: &Profile) -> Vec<ThreadOf<'_>> {
    let lineage = Lineage::from_profile(profile);
    let is_bound = Bounds::from_profile(profile).any();
    let mut own = vec![0u64; profile.functions.len()];
    let figure = |node: &Node| match profile.meta.timed {
        true => node.self_ns,
        false => node.calls,
    };
    let rows = (0..).map(ThreadNumber).zip(threads(profile));
    rows.map(|(number, (process, thread))| {
        let sum = |figure: &dyn Fn(&Node) -> u64| {
            let nodes = thread.nodes.iter();
            nodes.fold(0u64, |sum, node| sum.saturating_add(figure(node)))
        };
        for node in &thread.nodes {
            let own = &mut own[node.function.index()];
            *own = own.saturating_add(figure(node));
        }
        let functions = thread.nodes.iter().map(|node| node.function);
        let busiest = functions.max_by_key(|&f| (own[f.index()], Reverse(f)));
        for node in &thread.nodes {
            own[node.function.index()] = 0;
        }
        let origin = lineage.origin(number);
        ThreadOf {
            thread: number.0,
            made_by: origin.map(|origin| origin.maker.0),
            made_in: origin.and_then(|origin| origin.function),
            level: lineage.level(number),
            pid: process.pid,
            tid: thread.tid,
            name: &thread.name,
            start_ns: thread.start_ns,
            end_ns: thread.end_ns,
            calls: sum(&|node| node.calls),
            calls_at_least: is_bound,
            self_ns: sum(&|node| node.self_ns),
            contexts: thread.nodes.len(),
            busiest,
            folded_calls: thread.folded_calls,
            others: thread.others,
            kernel: thread.kernel.map(Kernel::from),
        }
    })
    .collect()
}
