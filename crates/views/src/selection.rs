//! Which rows a report shows, and in which order.

use clap::ValueEnum;
use serde::Serialize;
use thalweg_analysis::PipelineError;
use thalweg_model::{FuncId, Metric, Profile};

/// By what the rows of a report are ordered.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    #[value(name = "self", alias = "base")]
    SelfTime,
    #[value(name = "total", alias = "cum")]
    Total,
    /// Wall time, waiting included
    #[value(name = "wall", alias = "elapsed")]
    Wall,
    /// Own time off the processor
    #[value(name = "waiting", alias = "waited")]
    Waiting,
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
    /// Most self time first, or most calls where nothing was timed.
    pub fn usual(profile: &Profile) -> SortKey {
        match profile.meta.timed {
            true => SortKey::SelfTime,
            false => SortKey::Calls,
        }
    }

    fn is_time(self) -> bool {
        use SortKey::*;
        matches!(self, SelfTime | Total | Wall | Waiting | Min | Max | Mean)
    }

    pub fn metric(self) -> Option<Metric> {
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
    /// The least share of the whole that a context must have, or of its function that an arc must
    /// have.
    pub min_percent: Option<f64>,
    /// Of each function whether it may be shown; `None`: nobody asked.
    pub functions: Option<Vec<bool>>,
    /// Of trees: how many levels, 1 for the roots only.
    pub depth: Option<u32>,
}

/// Why rows cannot be ordered so.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SelectionError {
    #[error(transparent)]
    Missing(#[from] PipelineError),
    /// Times cannot order what was not timed.
    #[error(
        "this profile was recorded with --no-clock and has no times: sort it by calls, threads, \
         contexts, recursion, module or name"
    )]
    NoTimes,
}

impl Selection {
    /// Without a wish the order is `default`, or by calls after `--no-clock`.
    pub fn new(
        profile: &Profile,
        sort: Option<SortKey>,
        default: SortKey,
    ) -> Result<Selection, SelectionError> {
        let timed = profile.meta.timed;
        let has = |metric| profile.meta.metrics.contains(&metric);
        let metric = sort.and_then(SortKey::metric);
        if let Some(metric) = metric.filter(|&metric| !has(metric)) {
            return Err(PipelineError::MissingMetric(metric).into());
        }
        let sort = match sort {
            None if timed => default,
            None => SortKey::Calls,
            Some(key) if timed || !key.is_time() => key,
            Some(_) => return Err(SelectionError::NoTimes),
        };
        Ok(Selection::by(sort))
    }

    pub fn by(sort: SortKey) -> Selection {
        Selection {
            sort,
            limit: None,
            min_percent: None,
            functions: None,
            depth: None,
        }
    }

    pub fn at_most(self, rows: usize) -> Selection {
        Selection {
            limit: Some(rows),
            ..self
        }
    }

    pub fn keeps(&self, function: FuncId) -> bool {
        let all = self.functions.as_ref();
        all.is_none_or(|keeps| keeps.get(function.index()).copied().unwrap_or(false))
    }
}

/// What a report does not show, so that no row is missing silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub rows: u64,
    pub calls: u64,
    pub self_ns: u64,
}

impl LeftOut {
    pub(crate) fn add(&mut self, calls: u64, self_ns: u64) {
        self.rows += 1;
        self.calls = self.calls.saturating_add(calls);
        self.self_ns = self.self_ns.saturating_add(self_ns);
    }
}
