//! A profile as text for people, or as a small JSON object for scripts.
//!
//! End of the way of the data: profile -> analysis -> here. Each report first chooses its rows, then prints them; the
//! choice (`Rows`) is the same for text and JSON.

mod arcs;
mod around;
mod calls;
mod context;
mod counting;
mod diff;
mod flat;
mod graph;
mod held;
mod json;
mod kernel;
mod output;
mod overview;
mod processes;
mod sites;
mod state;
mod style;
mod summary;
mod table;
mod text;
mod threads;
mod tree;

use anyhow::bail;
use clap::ValueEnum;
use thalweg_instrument::filter::{BadPattern, Filter};
use thalweg_model::{Metric, Profile};

pub use arcs::{LEAST_ARC_PERCENT, print_arcs, print_arcs_json};
pub use around::{Direction, print_around, print_around_json};
pub use calls::{List, print_call, print_call_tree};
pub use context::{Wanted, print_context, print_context_json};
pub use diff::{Sides, print_diff, print_diff_json};
pub use flat::{Field, print_flat};
pub use graph::{print_graph, print_graph_json};
pub use json::{print_flat_json, print_summary_json, print_tree_json};
pub use output::OutputArgs;
pub use overview::{print_overview, print_overview_json};
pub use state::of_row as state_of_row;
pub use style::Style;
pub use summary::{HOTTEST_FUNCTIONS, error_of_time, hottest, print_end, print_summary_of};

/// How many times slower the probes made the program, where that is known.
pub fn slowdown(profile: &thalweg_model::Profile) -> Option<f64> {
    held::slowdown(profile, thalweg_analysis::summary(profile).time)
}
pub use text::{
    at_least, bytes, command_line, count, counted, cut, printable, share, show_in, time, time_if,
};
pub use threads::{ThreadOrder, print_threads, print_threads_json};
pub use tree::print_tree;

/// By what the rows of a report are ordered.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    #[value(name = "self", alias = "base")]
    Base,
    #[value(name = "total", alias = "cum")]
    Cum,
    /// Wall time, waiting included
    #[value(name = "wall", alias = "elapsed")]
    Elapsed,
    /// Own time off the processor
    #[value(name = "waiting", alias = "waited")]
    Waited,
    Calls,
    Min,
    Max,
    /// Self of the average call
    Mean,
    Threads,
    Contexts,
    Recursion,
    /// Blocks allocated, in profiles recorded with --metric alloc
    Allocs,
    /// Bytes allocated
    #[value(alias = "alloc")]
    Allocated,
    /// Bytes freed
    Freed,
    /// Bytes allocated and not freed
    Live,
    /// System calls, the callees' included, in profiles recorded with --metric syscalls
    #[value(alias = "syscall.calls")]
    Syscalls,
    /// Time in the functions that make them
    #[value(alias = "syscall.time")]
    SyscallTime,
    /// Page faults, in profiles recorded with --metric faults; the same for the following
    Faults,
    Switches,
    Instructions,
    Cycles,
    CacheMisses,
    Module,
    Name,
}

impl SortKey {
    fn is_time(self) -> bool {
        use SortKey::*;
        matches!(self, Base | Cum | Elapsed | Waited | Min | Max | Mean)
    }

    fn metric(self) -> Option<Metric> {
        match self {
            SortKey::Allocs => Some(Metric::AllocCalls),
            SortKey::Allocated => Some(Metric::AllocBytes),
            SortKey::Freed => Some(Metric::FreeBytes),
            SortKey::Live => Some(Metric::LiveBytes),
            SortKey::Syscalls => Some(Metric::SyscallCalls),
            SortKey::SyscallTime => Some(Metric::SyscallTime),
            SortKey::Faults => Some(Metric::Faults),
            SortKey::Switches => Some(Metric::Switches),
            SortKey::Instructions => Some(Metric::Instructions),
            SortKey::Cycles => Some(Metric::Cycles),
            SortKey::CacheMisses => Some(Metric::CacheMisses),
            _ => None,
        }
    }
}

/// Which rows a report shows, and in which order.
#[derive(Clone, Debug)]
pub struct Selection {
    pub sort: SortKey,
    pub limit: Option<usize>,
    /// The least share of the whole that a context must have, or of its function that an arc must have.
    pub min_percent: Option<f64>,
    pub filter: Filter,
    /// Of trees: how many levels, 1 for the roots only.
    pub depth: Option<u32>,
    /// Of the flat table: its columns, or none for the usual ones.
    pub fields: Vec<Field>,
    /// All of the usual columns, whether they fit on the terminal or not.
    pub wide: bool,
}

impl Selection {
    /// Times cannot order what was not timed: without a wish it is `default`, or calls after `--no-clock`.
    pub fn new(
        profile: &Profile,
        sort: Option<SortKey>,
        default: SortKey,
    ) -> anyhow::Result<Selection> {
        let timed = profile.meta.timed;
        let has = |metric| profile.meta.metrics.contains(&metric);
        let metric = sort.and_then(SortKey::metric);
        if let Some(metric) = metric.filter(|&metric| !has(metric)) {
            return Err(crate::metric::missing(metric));
        }
        let sort = match sort {
            None if timed => default,
            None => SortKey::Calls,
            Some(key) if timed || !key.is_time() => key,
            Some(_) => {
                bail!(
                    "this profile was recorded with --no-clock and has no times: sort it by calls, threads, contexts, recursion, module or name"
                )
            }
        };
        Ok(Selection::by(sort))
    }

    pub fn by(sort: SortKey) -> Selection {
        Selection {
            sort,
            limit: None,
            min_percent: None,
            filter: Filter::default(),
            depth: None,
            fields: Vec::new(),
            wide: false,
        }
    }

    pub fn keeps(&self, profile: &Profile, function: u32) -> bool {
        let function = &profile.functions[function as usize];
        let module = &profile.modules[function.module as usize];
        self.filter.keeps_function(&function.name, None) && self.filter.keeps_module(&module.name)
    }

    /// A tree of a real program has more contexts than anyone reads; leaves out the light ones unless told otherwise.
    pub fn prune_for_reading(&mut self) {
        if self.limit.is_none() {
            self.min_percent.get_or_insert(tree::DEFAULT_MIN_PERCENT);
        }
    }
}

/// What a report does not show, so that no row is missing silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    pub rows: u64,
    pub calls: u64,
    pub base: u64,
}

impl LeftOut {
    fn add(&mut self, calls: u64, base: u64) {
        self.rows += 1;
        self.calls = self.calls.saturating_add(calls);
        self.base = self.base.saturating_add(base);
    }
}

/// The functions that were seen and that someone means by `pattern`: those of exactly this name, else those whose name
/// matches it as a regular expression, most base time first. `option`: where the pattern was given.
pub fn meant(profile: &Profile, option: &'static str, pattern: &str) -> anyhow::Result<Vec<u32>> {
    let mut seen = thalweg_analysis::flat(profile);
    seen.sort_by_key(|row| std::cmp::Reverse((row.base, row.calls)));
    let name = |function: u32| profile.functions[function as usize].name.as_str();
    let named = |test: &dyn Fn(&str) -> bool| -> Vec<u32> {
        let functions = seen.iter().map(|row| row.function);
        functions.filter(|&function| test(name(function))).collect()
    };
    let mut found = named(&|name| name == pattern);
    if found.is_empty() {
        let filter = Filter::new(&[pattern.to_string()], &[], &[], &[])
            .map_err(|error| BadPattern { option, ..error })?;
        found = named(&|name| filter.keeps_function(name, None));
    }
    if found.is_empty() {
        bail!(
            "no function that was seen is called '{}' or matches it: 'thalweg report --flat' lists them",
            text::printable(pattern)
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
