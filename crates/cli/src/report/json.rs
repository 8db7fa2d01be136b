//! The reports for scripts: the same rows as the text, every figure whole, times in nanoseconds.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::Value;
use thalweg_analysis::{Bounds, Caller, Edge, FunctionTotals, edges, hottest_path, summary};
use thalweg_formats::json::{Counting, Named, Sampling, Stopped};
use thalweg_model::{Metric, NodeFlags, Profile, SiteId, Target};

use super::summary::error_of_time;
use super::tree::{Row, ThreadRows};
use super::{LeftOut, Selection, flat, held, sites, state, tree};

pub fn print_summary_json(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        schema: &'static str,
        command: &'a [String],
        duration_ns: u64,
        timed: bool,
        attached: bool,
        processes: u64,
        threads: u64,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        time_ns: u64,
        #[serde(skip_serializing_if = "is_zero")]
        time_error_ns: u64,
        functions_seen: u64,
        functions_patched: u64,
        functions_total: u64,
        skipped: u64,
        contexts: u64,
        deepest: u64,
        folded_calls: u64,
        pruned_contexts: u64,
        pruned_calls: u64,
        memory_bytes: u64,
        memory_limit: u64,
        overhead_ns_per_call: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        sampling: Option<Sampling>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        counting: Vec<Counting>,
        #[serde(skip_serializing_if = "Option::is_none")]
        slowdown: Option<f64>,
        stopped_by_thalweg: Stopped,
        notes: &'a [String],
        #[serde(skip_serializing_if = "Named::is_empty")]
        metrics: Named,
        hottest: Vec<Function<'a>>,
        hottest_path: Option<Path<'a>>,
    }
    #[derive(Serialize)]
    struct Path<'a> {
        pid: u32,
        tid: u32,
        steps: Vec<Step<'a>>,
    }
    #[derive(Serialize)]
    struct Step<'a> {
        function: u32,
        name: &'a str,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        weight: u64,
    }

    let figures = summary(profile);
    let meta = &profile.meta;
    let callers = Callers::of(profile);
    let bounds = Bounds::of(profile);
    let rows = flat::rows(profile, selection).rows;
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.report.summary/1",
            command: &meta.command,
            duration_ns: meta.duration_ns,
            timed: meta.timed,
            attached: meta.attached,
            processes: figures.processes,
            threads: figures.threads,
            calls: figures.calls,
            calls_at_least: bounds.any(),
            time_ns: figures.time,
            time_error_ns: error_of_time(profile),
            functions_seen: figures.functions_seen,
            functions_patched: figures.functions_patched,
            functions_total: figures.functions_total,
            skipped: figures.skipped,
            contexts: figures.contexts,
            deepest: figures.deepest,
            folded_calls: figures.folded_calls,
            pruned_contexts: meta.pruned.contexts,
            pruned_calls: meta.pruned.calls,
            memory_bytes: meta.memory_bytes,
            memory_limit: meta.memory_limit,
            overhead_ns_per_call: meta.overhead_ns_per_call,
            sampling: Sampling::of(profile),
            counting: Counting::of(profile),
            slowdown: held::slowdown(profile, figures.time),
            stopped_by_thalweg: Stopped::of(profile),
            notes: &profile.notes,
            metrics: Named(profile.total_metrics()),
            hottest: rows
                .iter()
                .map(|row| Function::of(profile, &callers, row))
                .collect(),
            hottest_path: hottest_path(profile).map(|path| Path {
                pid: path.pid,
                tid: path.tid,
                steps: path
                    .steps
                    .iter()
                    .map(|step| Step {
                        function: step.function,
                        name: &profile.functions[step.function as usize].name,
                        calls: step.calls,
                        calls_at_least: bounds.function(step.function),
                        weight: step.weight,
                    })
                    .collect(),
            }),
        },
    )
}

pub fn print_flat_json(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        schema: &'static str,
        timed: bool,
        functions: Vec<Function<'a>>,
        not_shown: NotShown,
    }
    let rows = flat::rows(profile, selection);
    let callers = Callers::of(profile);
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.report.flat/1",
            timed: profile.meta.timed,
            functions: rows
                .rows
                .iter()
                .map(|row| Function::of(profile, &callers, row))
                .collect(),
            not_shown: NotShown::of(rows.left_out),
        },
    )
}

pub fn print_tree_json(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<T> {
        schema: &'static str,
        timed: bool,
        threads: Vec<T>,
        not_shown: NotShown,
    }
    let rows = tree::rows(profile, selection);
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.report.tree/1",
            timed: profile.meta.timed,
            threads: rows
                .threads
                .iter()
                .map(|rows| ThreadReport { profile, rows })
                .collect(),
            not_shown: NotShown::of(rows.left_out),
        },
    )
}

/// Writes the report. Of a profile that is weighed by a metric, figures lose the unit in their
/// names, and those that are times only are left out.
pub fn finish(
    weighed_by: Option<Metric>,
    out: &mut impl Write,
    report: &impl Serialize,
) -> io::Result<()> {
    match weighed_by {
        None => serde_json::to_writer(&mut *out, report)?,
        Some(_) => {
            let mut report = serde_json::to_value(report)?;
            for (name, without) in [("time_ns", "whole"), ("time_error_ns", "whole_error")] {
                if let Some(figure) = report.as_object_mut().and_then(|all| all.remove(name)) {
                    report[without] = figure;
                }
            }
            name_without_unit(&mut report);
            serde_json::to_writer(&mut *out, &report)?;
        }
    }
    writeln!(out)
}

/// What a metric takes the place of, and its name then; empty where it has none.
const WEIGHED: [(&str, &str); 8] = [
    ("self_ns", "self"),
    ("self_error_ns", "self_error"),
    ("total_ns", "total"),
    ("total_error_ns", "total_error"),
    ("wall_ns", ""),
    ("waiting_ns", ""),
    ("min_ns", ""),
    ("max_ns", ""),
];

fn name_without_unit(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(name_without_unit),
        Value::Object(fields) => {
            for (name, without) in WEIGHED {
                if let Some(figure) = fields.remove(name)
                    && !without.is_empty()
                {
                    fields.insert(without.into(), figure);
                }
            }
            fields.values_mut().for_each(name_without_unit);
        }
        _ => {}
    }
}

#[derive(Serialize)]
pub struct NotShown {
    rows: u64,
    calls: u64,
    self_ns: u64,
}

impl NotShown {
    pub fn of(left_out: LeftOut) -> NotShown {
        NotShown {
            rows: left_out.rows,
            calls: left_out.calls,
            self_ns: left_out.base,
        }
    }
}

/// The edges of the whole profile by callee.
/// Edges by their callee, and which counts are lower bounds.
struct Callers(HashMap<u32, Vec<Edge>>, Bounds);

impl Callers {
    fn of(profile: &Profile) -> Callers {
        let mut by_callee: HashMap<u32, Vec<Edge>> = HashMap::new();
        for edge in edges(profile) {
            by_callee.entry(edge.callee).or_default().push(edge);
        }
        Callers(by_callee, Bounds::of(profile))
    }
}

#[derive(Serialize)]
struct Function<'a> {
    function: u32,
    name: &'a str,
    module: &'a str,
    calls: u64,
    /// It was off for a while: there may have been more calls.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    calls_at_least: bool,
    self_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    self_error_ns: u64,
    total_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    total_error_ns: u64,
    wall_ns: u64,
    waiting_ns: u64,
    min_ns: u64,
    max_ns: u64,
    recursion: u32,
    unwound: u64,
    threads: u32,
    contexts: u64,
    folded_calls: u64,
    on_stack_at_attach: bool,
    #[serde(skip_serializing_if = "Named::is_empty")]
    metrics: Named,
    /// With what its callees did.
    #[serde(skip_serializing_if = "Named::is_empty")]
    total_metrics: Named,
    /// What its probes did at the end, for how much of the recording nothing is known of it, and how many of its calls
    /// were not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    off_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    untimed: u64,
    /// Samples that found it on the stack while its calls were not counted.
    #[serde(skip_serializing_if = "is_zero")]
    samples: u64,
    callers: Vec<CallerOf<'a>>,
}

#[derive(Serialize)]
struct CallerOf<'a> {
    /// `null` for the start of a thread or unpatched code; see `unknown`.
    function: Option<u32>,
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unknown: bool,
    calls: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    calls_at_least: bool,
    total_ns: u64,
}

impl<'a> Function<'a> {
    fn of(profile: &'a Profile, callers: &Callers, row: &FunctionTotals) -> Function<'a> {
        let function = &profile.functions[row.function as usize];
        let edges = callers.0.get(&row.function).map_or(&[][..], Vec::as_slice);
        let switched = state::of_function(profile, row.function);
        Function {
            function: row.function,
            name: &function.name,
            module: &profile.modules[function.module as usize].name,
            calls: row.calls,
            calls_at_least: callers.1.function(row.function),
            self_ns: row.base,
            self_error_ns: row.error,
            total_ns: row.cum,
            total_error_ns: row.cum_error,
            wall_ns: row.elapsed,
            waiting_ns: row.waited,
            min_ns: row.min,
            max_ns: row.max,
            recursion: row.recursion,
            unwound: row.unwound,
            threads: row.threads,
            contexts: row.contexts,
            folded_calls: row.folded_calls,
            on_stack_at_attach: row.on_stack_at_attach,
            metrics: Named(row.metrics),
            total_metrics: Named(row.cum_metrics),
            state: switched.map(|one| one.state.name()),
            off_ns: switched.map_or(0, |one| one.off_ns),
            untimed: row.untimed,
            samples: row.looks,
            callers: edges
                .iter()
                .map(|edge| {
                    let caller = match edge.caller {
                        Caller::Function(caller) => Some(caller),
                        Caller::Outside | Caller::Unknown => None,
                    };
                    CallerOf {
                        function: caller,
                        name: caller.map(|caller| profile.functions[caller as usize].name.as_str()),
                        unknown: edge.caller == Caller::Unknown,
                        calls: edge.calls,
                        calls_at_least: callers.1.call(edge.caller, edge.callee),
                        total_ns: edge.cum,
                    }
                })
                .collect(),
        }
    }
}

/// Where a call is made from, each where it is known.
#[derive(Default, Serialize)]
pub struct SiteOf<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site_file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site_line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indirect: Option<bool>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tail: bool,
}

impl<'a> SiteOf<'a> {
    pub fn of(profile: &'a Profile, site: Option<SiteId>) -> SiteOf<'a> {
        let Some(site) = sites::find(profile, site) else {
            return SiteOf::default();
        };
        SiteOf {
            site: Some(&site.name),
            site_file: site.file.as_deref(),
            site_line: Some(site.line).filter(|&line| line > 0),
            indirect: match site.target {
                Target::Unknown => None,
                target => Some(target == Target::Indirect),
            },
            tail: site.jump,
        }
    }
}

pub struct ThreadReport<'a> {
    pub profile: &'a Profile,
    pub rows: &'a ThreadRows<'a>,
}

impl Serialize for ThreadReport<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire<'a> {
            pid: u32,
            tid: u32,
            name: &'a str,
            rows: RowsReport<'a>,
        }
        Wire {
            pid: self.rows.process.pid,
            tid: self.rows.thread.tid,
            name: &self.rows.thread.name,
            rows: RowsReport(self),
        }
        .serialize(serializer)
    }
}

struct RowsReport<'a>(&'a ThreadReport<'a>);

impl Serialize for RowsReport<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire<'a> {
            id: u32,
            level: u32,
            recursion: u32,
            #[serde(skip_serializing_if = "is_zero")]
            unwound: u64,
            calls: u64,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            calls_at_least: bool,
            self_ns: u64,
            total_ns: u64,
            wall_ns: u64,
            min_ns: u64,
            max_ns: u64,
            function: u32,
            name: &'a str,
            #[serde(flatten)]
            site: SiteOf<'a>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            on_stack_at_attach: bool,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            folded: bool,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            open: bool,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            sampled: bool,
            #[serde(skip_serializing_if = "Named::is_empty")]
            metrics: Named,
        }
        let ThreadReport { profile, rows } = self.0;
        let bounds = Bounds::of(profile);
        serializer.collect_seq(rows.rows.iter().map(|row: &Row| {
            let node = &rows.thread.nodes[row.node as usize];
            Wire {
                id: row.node,
                level: row.level,
                recursion: node.recursion,
                unwound: node.unwound,
                calls: node.calls,
                calls_at_least: bounds.context(&rows.thread.nodes, row.node),
                self_ns: node.base,
                total_ns: node.cum,
                wall_ns: node.elapsed,
                min_ns: node.min,
                max_ns: node.max,
                function: node.function,
                name: &profile.functions[node.function as usize].name,
                site: SiteOf::of(profile, node.site),
                on_stack_at_attach: node.flags.contains(NodeFlags::ON_STACK_AT_ATTACH),
                folded: node.flags.contains(NodeFlags::FOLDED),
                open: node.flags.contains(NodeFlags::OPEN),
                sampled: node.flags.contains(NodeFlags::LOOKED),
                metrics: Named(*rows.thread.metrics.of(row.node)),
            }
        }))
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}
