//! What a program is like in figures, its hottest functions, and its hottest path.

use serde::Serialize;
use thalweg_analysis::{Bounds, Summary as Figures, hottest_path, summary, total_cost};
use thalweg_formats::json::{Counting, Named, Sampling, Stopped};
use thalweg_model::{FuncId, Profile};

use crate::flat::{Callers, Flat, Function};
use crate::{Selection, is_false, is_zero, name};

/// What both summaries begin with.
#[derive(Serialize)]
pub struct Head<'a> {
    pub command: &'a [String],
    pub duration_ns: u64,
    pub timed: bool,
    pub processes: u64,
    pub threads: u64,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub time_ns: u64,
    pub functions_seen: u64,
    pub functions_patched: u64,
    pub functions_total: u64,
    pub skipped: u64,
    pub contexts: u64,
    pub deepest: u64,
    pub folded_calls: u64,
    pub pruned_contexts: u64,
    pub pruned_calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<f64>,
    stopped_by_thalweg: Stopped,
    pub notes: &'a [String],
    /// How far off the whole time may be because the probes' cost was taken out; 0 where it was
    /// not.
    #[serde(skip)]
    pub time_error_ns: u64,
    /// What was taken out for the probes, and how far off the rest may be.
    #[serde(skip)]
    pub probes: Option<(f64, f64)>,
}

impl<'a> Head<'a> {
    pub fn new(profile: &'a Profile) -> Head<'a> {
        Head::of_figures(profile, &summary(profile))
    }

    fn of_figures(profile: &'a Profile, figures: &Figures) -> Head<'a> {
        let meta = &profile.meta;
        // Every context is looked at for that, so once.
        let taken_out = meta.costs.is_some_and(|costs| costs.taken_out);
        let cost = taken_out.then(|| total_cost(profile)).flatten();
        Head {
            command: &meta.command,
            duration_ns: meta.duration_ns,
            timed: meta.timed,
            processes: figures.processes,
            threads: figures.threads,
            calls: figures.calls,
            calls_at_least: Bounds::from_profile(profile).any(),
            time_ns: figures.time,
            functions_seen: figures.functions_seen,
            functions_patched: figures.functions_patched,
            functions_total: figures.functions_total,
            skipped: figures.skipped,
            contexts: figures.contexts,
            deepest: figures.deepest,
            folded_calls: figures.folded_calls,
            pruned_contexts: meta.pruned.contexts,
            pruned_calls: meta.pruned.calls,
            slowdown: cost.and_then(|(cost, _)| slowdown(cost, figures.time)),
            stopped_by_thalweg: Stopped::from_profile(profile),
            notes: &profile.notes,
            time_error_ns: cost.map_or(0, |(_, error)| error as u64),
            probes: cost,
        }
    }

    /// Shares are given of this.
    pub fn whole(&self) -> u64 {
        match self.timed {
            true => self.time_ns,
            false => self.calls,
        }
    }
}

/// Processor time of the program with its probes, over that without.
fn slowdown(cost: f64, time: u64) -> Option<f64> {
    (time > 0).then(|| (time as f64 + cost.max(0.0)) / time as f64)
}

/// `report` without a view.
#[derive(Serialize)]
pub struct Summary<'a> {
    schema: &'static str,
    #[serde(flatten)]
    pub head: Head<'a>,
    pub attached: bool,
    #[serde(skip_serializing_if = "is_zero")]
    time_error_ns: u64,
    pub memory_bytes: u64,
    pub memory_limit: u64,
    pub overhead_ns_per_call: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling: Option<Sampling>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    counting: Vec<Counting>,
    #[serde(skip_serializing_if = "Named::is_empty")]
    metrics: Named,
    pub hottest: Vec<Function<'a>>,
    pub hottest_path: Option<Path<'a>>,
}

#[derive(Serialize)]
pub struct Path<'a> {
    pub pid: u32,
    pub tid: u32,
    pub steps: Vec<Step<'a>>,
    #[serde(skip)]
    pub thread_name: String,
    /// Callees of the last step, where none of them stands out.
    #[serde(skip)]
    pub spreads_over: usize,
}

#[derive(Clone, Copy, Serialize)]
pub struct Step<'a> {
    pub function: FuncId,
    pub name: &'a str,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub weight: u64,
}

impl<'a> Summary<'a> {
    pub fn new(profile: &'a Profile, selection: &Selection, callers: Callers) -> Summary<'a> {
        let meta = &profile.meta;
        let head = Head::new(profile);
        Summary {
            schema: "thalweg.report.summary/1",
            attached: meta.attached,
            time_error_ns: head.time_error_ns,
            head,
            memory_bytes: meta.memory_bytes,
            memory_limit: meta.memory_limit,
            overhead_ns_per_call: meta.overhead_ns_per_call,
            sampling: Sampling::from_profile(profile),
            counting: Counting::from_profile(profile),
            metrics: Named(profile.total_metrics()),
            hottest: Flat::new(profile, selection, callers).functions,
            hottest_path: Path::hottest(profile),
        }
    }
}

impl<'a> Path<'a> {
    pub fn hottest(profile: &'a Profile) -> Option<Path<'a>> {
        let bounds = Bounds::from_profile(profile);
        let path = hottest_path(profile)?;
        let steps = path.steps.iter().map(|step| Step {
            function: step.function,
            name: name(profile, step.function),
            calls: step.calls,
            calls_at_least: bounds.function(step.function),
            weight: step.weight,
        });
        Some(Path {
            pid: path.pid,
            tid: path.tid,
            steps: steps.collect(),
            thread_name: path.thread_name.clone(),
            spreads_over: path.spreads_over,
        })
    }
}
