//! A profile as one table, a row per context: what CSV and Parquet both write.
//!
//! | column | |
//! |---|---|
//! | `pid`, `tid`, `thread` | process, thread, its name |
//! | `node`, `parent` | number of the context in its thread; that of its caller, empty for a root |
//! | `level`, `recursion` | depth in the tree, from 0; how often the same function stands above |
//! | `function`, `module`, `address`, `file`, `line` | what was called |
//! | `calls`, `self_ns`, `total_ns`, `wall_ns`, `min_ns`, `max_ns` | figures |
//! | `alloc_calls`, ..., `syscall_time` | the context's own, where the profile has the metric |
//! | `open`, `folded`, `on_stack_at_attach` | what is special about it |

use thalweg_analysis::Bounds;
use thalweg_model::{Metric, Metrics, Node, NodeFlags, Profile};

/// A cell, borrowed from the profile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cell<'a> {
    Number(Option<u64>),
    Text(Option<&'a str>),
    Truth(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that may be missing.
    Number,
    /// Text that may be missing.
    Text,
    Truth,
}

pub struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub cell: for<'a> fn(&Row<'a>) -> Cell<'a>,
    /// Only where this was measured.
    metric: Option<Metric>,
}

/// One context with all that its columns come from.
pub struct Row<'a> {
    profile: &'a Profile,
    pid: u32,
    tid: u32,
    thread: &'a str,
    number: u32,
    level: u32,
    node: &'a Node,
    metrics: &'a Metrics,
    at_least: bool,
}

impl<'a> Row<'a> {
    fn function(&self) -> &'a thalweg_model::Function {
        &self.profile.functions[self.node.function]
    }

    fn time(&self, ns: u64) -> Cell<'static> {
        Cell::Number(Some(ns).filter(|_| self.profile.meta.timed))
    }

    fn flag(&self, flag: NodeFlags) -> Cell<'static> {
        Cell::Truth(self.node.flags.contains(flag))
    }
}

macro_rules! columns {
    ($($name:literal $kind:ident |$row:ident| $cell:expr;)*) => {
        const COLUMNS: &[Column] = &[
            $(Column { name: $name, kind: Kind::$kind, cell: |$row| $cell, metric: None }),*
        ];
    };
}

columns! {
    "pid" Number |row| Cell::Number(Some(row.pid.into()));
    "tid" Number |row| Cell::Number(Some(row.tid.into()));
    "thread" Text |row| Cell::Text(Some(row.thread));
    "node" Number |row| Cell::Number(Some(row.number.into()));
    "parent" Number |row| Cell::Number(row.node.parent.map(u64::from));
    "level" Number |row| Cell::Number(Some(row.level.into()));
    "recursion" Number |row| Cell::Number(Some(row.node.recursion.into()));
    "function" Text |row| Cell::Text(Some(&row.function().name));
    "module" Text |row| Cell::Text(Some(&row.profile.modules[row.function().module as usize].name));
    "address" Number |row| Cell::Number(Some(row.function().address));
    "file" Text |row| Cell::Text(row.function().file.as_deref());
    "line" Number |row| Cell::Number(Some(row.function().line.into()).filter(|&line| line > 0));
    "calls" Number |row| Cell::Number(Some(row.node.calls));
    "self_ns" Number |row| row.time(row.node.self_ns);
    "total_ns" Number |row| row.time(row.node.total_ns);
    "wall_ns" Number |row| row.time(row.node.wall_ns);
    "min_ns" Number |row| row.time(row.node.min);
    "max_ns" Number |row| row.time(row.node.max);
    "open" Truth |row| row.flag(NodeFlags::OPEN);
    "folded" Truth |row| row.flag(NodeFlags::FOLDED);
    "on_stack_at_attach" Truth |row| row.flag(NodeFlags::ON_STACK_AT_ATTACH);
}

/// Only where samples had a part in the figures.
const SAMPLED: &[Column] = &[Column {
    name: "sampled",
    kind: Kind::Truth,
    cell: |row| row.flag(NodeFlags::SAMPLED),
    metric: None,
}];

/// Only where functions were off for a while: the calls are a lower bound.
const BOUNDS: &[Column] = &[Column {
    name: "calls_at_least",
    kind: Kind::Truth,
    cell: |row| Cell::Truth(row.at_least),
    metric: None,
}];

macro_rules! metrics {
    ($($name:literal $metric:ident;)*) => {
        const METRICS: &[Column] = &[$(Column {
            name: $name,
            kind: Kind::Number,
            cell: |row| Cell::Number(Some(row.metrics.get(Metric::$metric))),
            metric: Some(Metric::$metric),
        }),*];
    };
}

metrics! {
    "alloc_calls" AllocCalls;
    "alloc_bytes" AllocBytes;
    "free_calls" FreeCalls;
    "free_bytes" FreeBytes;
    "live_bytes" LiveBytes;
    "live_objects" LiveObjects;
    "map_calls" MapCalls;
    "map_bytes" MapBytes;
    "unmap_calls" UnmapCalls;
    "unmap_bytes" UnmapBytes;
    "syscall_calls" SyscallCalls;
    "syscall_time" SyscallTime;
    "faults" Faults;
    "switches" Switches;
    "instructions" Instructions;
    "cycles" Cycles;
    "cache_misses" CacheMisses;
}

/// Those of this profile.
pub fn columns(profile: &Profile) -> Vec<&'static Column> {
    let measured = &profile.meta.metrics;
    let has = |column: &&Column| {
        column
            .metric
            .is_some_and(|metric| measured.contains(&metric))
    };
    let sampled = SAMPLED.iter().filter(|_| !profile.sampled.is_empty());
    let is_bounded = Bounds::from_profile(profile).any();
    let bounds = BOUNDS.iter().filter(|_| is_bounded);
    let metrics = METRICS.iter().filter(has);
    let further = sampled.chain(bounds).chain(metrics);
    COLUMNS.iter().chain(further).collect()
}

/// The rows of each thread, thread after thread.
pub fn threads(profile: &Profile) -> impl Iterator<Item = Vec<Row<'_>>> {
    let bounds = std::rc::Rc::new(Bounds::from_profile(profile));
    profile.processes.iter().flat_map(move |process| {
        let bounds = bounds.clone();
        process.threads.iter().map(move |thread| {
            let at_least = bounds.contexts(&thread.nodes);
            let mut rows: Vec<Row> = Vec::with_capacity(thread.nodes.len());
            for (number, node) in (0..).zip(&thread.nodes) {
                let level = node
                    .parent
                    .map_or(0, |parent| rows[parent as usize].level + 1);
                rows.push(Row {
                    profile,
                    pid: process.pid,
                    tid: thread.tid,
                    thread: &thread.name,
                    number,
                    level,
                    node,
                    metrics: thread.metrics.at(number),
                    at_least: at_least[number as usize],
                });
            }
            rows
        })
    })
}
