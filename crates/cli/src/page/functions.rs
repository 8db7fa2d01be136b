//! Tables of functions, of one function's surroundings, and of threads.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use thalweg_analysis::{
    Arc, Bounds, Caller, Lineage, ThreadNumber, function_by_thread, waited_by_context,
};
use thalweg_model::{FuncId, Language, Profile};
use thalweg_views::state;

use super::part::Cut;
use super::{ApiError, Reading};

/// All functions that were seen, column by column.
#[derive(Serialize, Default)]
pub struct Functions<'a> {
    modules: Vec<&'a str>,
    /// Waiting was measured, and is no part of self and total.
    waits_measured: bool,
    time: u64,
    calls_in_all: u64,
    function: Vec<FuncId>,
    name: Vec<&'a str>,
    module: Vec<u32>,
    /// Source files, and of each function the place of its own there; -1 where it is not known.
    files: Vec<&'a str>,
    file: Vec<i64>,
    calls: Vec<u64>,
    /// 1 where there may have been more calls; where any is so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    at_least: Vec<u8>,
    /// Where not all are native.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    language: Vec<&'static str>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    total: Vec<u64>,
    /// How far off self and total may be, where any is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    self_error: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    total_error: Vec<u64>,
    min: Vec<u64>,
    max: Vec<u64>,
    waiting: Vec<u64>,
    threads: Vec<u32>,
    contexts: Vec<u64>,
    recursion: Vec<u32>,
    unwound: Vec<u64>,
    /// What each did itself, by the names of the metrics.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metrics: BTreeMap<&'static str, Vec<u64>>,
    /// What the probes did, where they were or can be switched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    state: Vec<String>,
    /// Samples that found each while its calls were not counted, where there were any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    samples: Vec<u64>,
    /// Per second, of a live process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rate_calls: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rate_self: Vec<f64>,
}

pub fn all<'a>(cut: &'a Cut, live: Option<&Reading>) -> Functions<'a> {
    let profile = cut.profile();
    let (waits, waits_measured) = cut.waits();
    let mut table = Functions {
        modules: profile.modules.iter().map(|m| m.name.as_str()).collect(),
        waits_measured: *waits_measured,
        ..Functions::default()
    };
    let bounds = Bounds::from_profile(profile);
    let mut places: HashMap<&str, i64> = HashMap::new();
    let has_errors = cut
        .flat()
        .iter()
        .any(|row| row.error > 0 || row.total_error > 0);
    let is_mixed = profile
        .functions
        .iter()
        .any(|function| function.language != Language::Native);
    for row in cut.flat() {
        let function = &profile.functions[row.function];
        if is_mixed {
            table.language.push(function.language.name());
        }
        table.time = table.time.saturating_add(row.self_ns);
        table.calls_in_all = table.calls_in_all.saturating_add(row.calls);
        table.function.push(row.function);
        table.name.push(&function.name);
        table.module.push(function.module);
        table.file.push(match &function.file {
            None => -1,
            Some(file) => *places.entry(file.as_str()).or_insert_with(|| {
                table.files.push(file);
                table.files.len() as i64 - 1
            }),
        });
        table.calls.push(row.calls);
        table.own.push(row.self_ns);
        table.total.push(row.total_ns);
        if bounds.any() {
            table.at_least.push(bounds.function(row.function).into());
        }
        if has_errors {
            table.self_error.push(row.error);
            table.total_error.push(row.total_error);
        }
        table.min.push(row.min);
        table.max.push(row.max);
        table.waiting.push(waits[row.function.index()]);
        table.threads.push(row.threads);
        table.contexts.push(row.contexts);
        table.recursion.push(row.recursion);
        table.unwound.push(row.unwound);
        for metric in &profile.meta.metrics {
            let column = table.metrics.entry(metric.name()).or_default();
            column.push(row.metrics.get(*metric));
        }
        if live.is_some() || !profile.switched.is_empty() || !profile.sampled.is_empty() {
            table.state.push(state::text(profile, row));
        }
        if !profile.sampled.is_empty() {
            table.samples.push(row.samples);
        }
        if let Some(reading) = live {
            let rates = reading.rates.get(row.function.index()).copied();
            let [calls, own, _] = rates.unwrap_or_default();
            table.rate_calls.push(calls);
            table.rate_self.push(own);
        }
    }
    table
}

/// A function that was switched. Of those without a call the other tables know nothing.
#[derive(Serialize)]
pub struct SwitchedFunction<'a> {
    function: FuncId,
    name: &'a str,
    module: &'a str,
    state: &'static str,
}

pub fn switched(profile: &Profile) -> Vec<SwitchedFunction<'_>> {
    let all = profile.switched.iter();
    all.filter_map(|one| {
        let function = profile.functions.get(one.function.index())?;
        Some(SwitchedFunction {
            function: one.function,
            name: &function.name,
            module: &profile.modules.get(function.module as usize)?.name,
            state: one.state.name(),
        })
    })
    .collect()
}

#[derive(Serialize)]
pub struct OneFunction<'a> {
    function: FuncId,
    name: &'a str,
    module: &'a str,
    path: &'a str,
    address: u64,
    file: Option<&'a str>,
    line: u32,
    calls: u64,
    at_least: bool,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    self_error: u64,
    total_error: u64,
    min: u64,
    max: u64,
    waiting: u64,
    recursion: u32,
    unwound: u64,
    contexts: u64,
    folded_calls: u64,
    samples: u64,
    on_stack_at_attach: bool,
    parents: Vec<ArcOf>,
    children: Vec<ArcOf>,
    not_in_callees: i64,
    /// What it did itself, where it is not 0.
    metrics: BTreeMap<&'static str, u64>,
    threads: Vec<ShareOf<'a>>,
}

#[derive(Serialize)]
struct ArcOf {
    /// `null` for the start of a thread or unpatched code, and for folded calls: `unknown`.
    function: Option<FuncId>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unknown: bool,
    calls: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_least: bool,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
}

impl ArcOf {
    fn from_arc(arc: &Arc, at_least: bool) -> ArcOf {
        ArcOf {
            function: match arc.other {
                Caller::Function(function) => Some(function),
                Caller::Outside | Caller::Unknown => None,
            },
            unknown: arc.other == Caller::Unknown,
            calls: arc.calls,
            at_least,
            own: arc.self_ns,
            total: arc.total_ns,
        }
    }
}

#[derive(Serialize)]
struct ShareOf<'a> {
    thread: u32,
    made_by: Option<u32>,
    pid: u32,
    tid: u32,
    name: &'a str,
    calls: u64,
    #[serde(rename = "self")]
    own: u64,
    total: u64,
    contexts: u64,
}

pub fn one(cut: &Cut, function: FuncId) -> Result<OneFunction<'_>, ApiError> {
    let profile = cut.profile();
    let stanza = cut
        .stanzas()
        .binary_search_by_key(&function, |stanza| stanza.own.function)
        .map(|place| &cut.stanzas()[place])
        .map_err(|_| ApiError::missing("this function was not seen in what is looked at"))?;
    let own = &stanza.own;
    let data = &profile.functions[function];
    let module = &profile.modules[data.module as usize];
    let names: Vec<&str> = thalweg_analysis::threads(profile)
        .map(|(_, thread)| thread.name.as_str())
        .collect();
    let bounds = Bounds::from_profile(profile);
    let is_bound_child = |arc: &Arc| match arc.other {
        Caller::Function(callee) => bounds.call(Caller::Function(function), callee),
        Caller::Outside | Caller::Unknown => bounds.function(function),
    };
    Ok(OneFunction {
        function,
        name: &data.name,
        module: &module.name,
        path: &module.path,
        address: data.address,
        file: data.file.as_deref(),
        line: data.line,
        calls: own.calls,
        at_least: bounds.function(function),
        own: own.self_ns,
        total: own.total_ns,
        self_error: own.error,
        total_error: own.total_error,
        min: own.min,
        max: own.max,
        waiting: cut.waits().0[function.index()],
        recursion: own.recursion,
        unwound: own.unwound,
        contexts: own.contexts,
        folded_calls: own.folded_calls,
        samples: own.samples,
        on_stack_at_attach: own.on_stack_at_attach,
        parents: stanza
            .parents
            .iter()
            .map(|arc| ArcOf::from_arc(arc, bounds.call(arc.other, function)))
            .collect(),
        children: stanza
            .children
            .iter()
            .map(|arc| ArcOf::from_arc(arc, is_bound_child(arc)))
            .collect(),
        not_in_callees: i64::try_from(stanza.not_in_callees).unwrap_or(i64::MAX),
        metrics: own
            .metrics
            .iter()
            .map(|(metric, value)| (metric.name(), value))
            .collect(),
        threads: function_by_thread(profile, function)
            .into_iter()
            .map(|share| ShareOf {
                thread: share.thread.0,
                made_by: share.origin.map(|origin| origin.maker.0),
                pid: share.pid,
                tid: share.tid,
                name: names[share.thread.0 as usize],
                calls: share.calls,
                own: share.self_ns,
                total: share.total_ns,
                contexts: share.contexts,
            })
            .collect(),
    })
}

#[derive(Serialize)]
pub struct Threads<'a> {
    duration: u64,
    /// There may have been more calls.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_least: bool,
    waits_measured: bool,
    threads: Vec<ThreadOf<'a>>,
}

#[derive(Serialize)]
struct ThreadOf<'a> {
    thread: u32,
    made_by: Option<u32>,
    made_in: Option<FuncId>,
    level: u32,
    pid: u32,
    tid: u32,
    name: &'a str,
    program: &'a str,
    start: u64,
    end: u64,
    calls: u64,
    #[serde(rename = "self")]
    own: u64,
    waiting: u64,
    contexts: usize,
    others: u64,
    /// What its functions did, by the names of the metrics.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metrics: BTreeMap<&'static str, u64>,
}

pub fn threads(profile: &Profile) -> Threads<'_> {
    let lineage = Lineage::from_profile(profile);
    let (waited, waits_measured) = waited_by_context(profile);
    let sum = |figures: &mut dyn Iterator<Item = u64>| figures.fold(0, u64::saturating_add);
    let rows = (0..)
        .zip(thalweg_analysis::threads(profile))
        .map(|(number, (process, thread))| {
            let origin = lineage.origin(ThreadNumber(number));
            let total = thread.metrics.total();
            let metrics = profile.meta.metrics.iter();
            ThreadOf {
                thread: number,
                made_by: origin.map(|origin| origin.maker.0),
                made_in: origin.and_then(|origin| origin.function),
                level: lineage.level(ThreadNumber(number)),
                pid: process.pid,
                tid: thread.tid,
                name: &thread.name,
                program: process.command.first().map_or("", String::as_str),
                start: thread.start_ns,
                end: thread.end_ns,
                calls: sum(&mut thread.nodes.iter().map(|node| node.calls)),
                own: sum(&mut thread.nodes.iter().map(|node| node.self_ns)),
                waiting: sum(&mut waited[number as usize].iter().copied()),
                contexts: thread.nodes.len(),
                others: thread.others,
                metrics: metrics
                    .map(|metric| (metric.name(), total.get(*metric)))
                    .collect(),
            }
        });
    let threads: Vec<ThreadOf> = rows.collect();
    let latest = threads.iter().map(|thread| thread.end).max().unwrap_or(0);
    Threads {
        duration: profile.meta.duration_ns.max(latest),
        at_least: Bounds::from_profile(profile).any(),
        waits_measured,
        threads,
    }
}
