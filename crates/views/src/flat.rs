//! One row per function.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::Serialize;
use thalweg_analysis::{Bounds, Caller, Edge, FunctionTotals, edges, flat};
use thalweg_formats::json::Named;
use thalweg_model::{FuncId, Profile};

use crate::{LeftOut, Selection, SortKey, is_false, is_zero, module, name, state};

#[derive(Serialize)]
pub struct Flat<'a> {
    schema: &'static str,
    pub timed: bool,
    pub functions: Vec<Function<'a>>,
    pub not_shown: LeftOut,
}

#[derive(Serialize)]
pub struct Function<'a> {
    pub function: FuncId,
    pub name: &'a str,
    pub module: &'a str,
    pub calls: u64,
    /// It was off for a while: there may have been more calls.
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub self_error_ns: u64,
    pub total_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub total_error_ns: u64,
    pub wall_ns: u64,
    pub waiting_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub recursion: u32,
    pub unwound: u64,
    pub threads: u32,
    pub contexts: u64,
    pub folded_calls: u64,
    pub on_stack_at_attach: bool,
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub metrics: Named,
    /// With what its callees did.
    #[serde(skip_serializing_if = "Named::is_empty")]
    pub total_metrics: Named,
    /// What its probes did at the end, for how much of the recording nothing is known of it, and
    /// how many of its calls were not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    #[serde(skip_serializing_if = "is_zero")]
    pub off_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub untimed: u64,
    /// Samples that found it on the stack while its calls were not counted.
    #[serde(skip_serializing_if = "is_zero")]
    pub samples: u64,
    pub callers: Vec<CallerOf<'a>>,
    /// Its state in a few words, see [`state::text`].
    #[serde(skip)]
    pub state_text: String,
    #[serde(skip)]
    pub file: Option<&'a str>,
    #[serde(skip)]
    pub line: u32,
}

#[derive(Serialize)]
pub struct CallerOf<'a> {
    /// `null` for the start of a thread or unpatched code; see `unknown`.
    pub function: Option<FuncId>,
    pub name: Option<&'a str>,
    #[serde(skip_serializing_if = "is_false")]
    pub unknown: bool,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub total_ns: u64,
}

/// Whether rows list who calls them, which takes a look at every context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    Listed,
    LeftOut,
}

impl<'a> Flat<'a> {
    pub fn new(profile: &'a Profile, selection: &Selection, callers: Callers) -> Flat<'a> {
        let (rows, not_shown) = choose(profile, selection);
        let bounds = Bounds::from_profile(profile);
        let edges = match callers {
            Callers::Listed => edges_by_callee(profile),
            Callers::LeftOut => HashMap::new(),
        };
        let functions = rows.iter().map(|row| {
            let edges = edges.get(&row.function).map_or(&[][..], Vec::as_slice);
            Function::new(profile, &bounds, edges, row)
        });
        Flat {
            schema: "thalweg.report.flat/1",
            timed: profile.meta.timed,
            functions: functions.collect(),
            not_shown,
        }
    }
}

/// The function with most self time, or with most calls where nothing was timed.
pub fn hottest(profile: &Profile) -> Option<&str> {
    let selection = Selection::by(SortKey::usual(profile)).at_most(1);
    let (rows, _) = choose(profile, &selection);
    Some(name(profile, rows.first()?.function))
}

/// The functions to show, in order, and what else there is.
fn choose(profile: &Profile, selection: &Selection) -> (Vec<FunctionTotals>, LeftOut) {
    let of_row = |row: &FunctionTotals| name(profile, row.function);
    let (mut rows, mut rest): (Vec<_>, Vec<_>) = flat(profile)
        .into_iter()
        .partition(|row| selection.keeps(row.function));
    rows.sort_by(|a, b| {
        order(profile, selection.sort, a, b)
            .then_with(|| of_row(a).cmp(of_row(b)))
            .then(a.function.cmp(&b.function))
    });
    if let Some(limit) = selection.limit {
        rest.extend(rows.drain(limit.min(rows.len())..));
    }
    let mut left_out = LeftOut::default();
    rest.iter()
        .for_each(|row| left_out.add(row.calls, row.self_ns));
    (rows, left_out)
}

/// Largest first; names, which are compared last in any case, from a to z.
pub(crate) fn order(
    profile: &Profile,
    key: SortKey,
    a: &FunctionTotals,
    b: &FunctionTotals,
) -> Ordering {
    let module = |row: &FunctionTotals| module(profile, row.function);
    match key {
        SortKey::SelfTime => b.self_ns.cmp(&a.self_ns),
        SortKey::Total => b.total_ns.cmp(&a.total_ns),
        SortKey::Wall => b.wall_ns.cmp(&a.wall_ns),
        SortKey::Waiting => b.waited.cmp(&a.waited),
        SortKey::Calls => b.calls.cmp(&a.calls),
        SortKey::Min => b.min.cmp(&a.min),
        SortKey::Max => b.max.cmp(&a.max),
        SortKey::Mean => mean(b.self_ns, b.calls).cmp(&mean(a.self_ns, a.calls)),
        SortKey::Threads => b.threads.cmp(&a.threads),
        SortKey::Contexts => b.contexts.cmp(&a.contexts),
        SortKey::Recursion => b.recursion.cmp(&a.recursion),
        SortKey::Allocs
        | SortKey::Allocated
        | SortKey::Freed
        | SortKey::Live
        | SortKey::Faults
        | SortKey::Switches
        | SortKey::Instructions
        | SortKey::Cycles
        | SortKey::CacheMisses => {
            let metric = key.metric();
            let figure = |row: &FunctionTotals| metric.map_or(0, |metric| row.metrics.get(metric));
            figure(b).cmp(&figure(a))
        }
        SortKey::Syscalls | SortKey::SyscallTime => {
            let metric = key.metric();
            let figure =
                |row: &FunctionTotals| metric.map_or(0, |metric| row.total_metrics.get(metric));
            figure(b).cmp(&figure(a))
        }
        SortKey::Module => module(a).cmp(module(b)).then(b.self_ns.cmp(&a.self_ns)),
        SortKey::Name => Ordering::Equal,
    }
}

/// Self of the average call.
pub(crate) fn mean(self_ns: u64, calls: u64) -> u64 {
    self_ns.checked_div(calls).unwrap_or(0)
}

fn edges_by_callee(profile: &Profile) -> HashMap<FuncId, Vec<Edge>> {
    let mut by_callee: HashMap<FuncId, Vec<Edge>> = HashMap::new();
    for edge in edges(profile) {
        by_callee.entry(edge.callee).or_default().push(edge);
    }
    by_callee
}

impl<'a> Function<'a> {
    fn new(
        profile: &'a Profile,
        bounds: &Bounds,
        edges: &[Edge],
        row: &FunctionTotals,
    ) -> Function<'a> {
        let function = &profile.functions[row.function];
        let switched = state::of_function(profile, row.function);
        let callers = edges.iter().map(|edge| {
            let caller = match edge.caller {
                Caller::Function(caller) => Some(caller),
                Caller::Outside | Caller::Unknown => None,
            };
            CallerOf {
                function: caller,
                name: caller.map(|caller| name(profile, caller)),
                unknown: edge.caller == Caller::Unknown,
                calls: edge.calls,
                calls_at_least: bounds.call(edge.caller, edge.callee),
                total_ns: edge.total_ns,
            }
        });
        Function {
            function: row.function,
            name: &function.name,
            module: module(profile, row.function),
            calls: row.calls,
            calls_at_least: bounds.function(row.function),
            self_ns: row.self_ns,
            self_error_ns: row.error,
            total_ns: row.total_ns,
            total_error_ns: row.total_error,
            wall_ns: row.wall_ns,
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
            total_metrics: Named(row.total_metrics),
            state: switched.map(|one| one.state.name()),
            off_ns: switched.map_or(0, |one| one.off_ns),
            untimed: row.untimed,
            samples: row.samples,
            callers: callers.collect(),
            state_text: state::text(profile, row),
            file: function.file.as_deref(),
            line: function.line,
        }
    }

    /// Self of the average call.
    pub fn mean_ns(&self) -> u64 {
        mean(self.self_ns, self.calls)
    }
}
