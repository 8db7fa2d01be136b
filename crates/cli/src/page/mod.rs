//! What the page asks and what it is told: queries answered from a profile, in JSON.
//!
//! ```text
//! profile -> part (threads, root) -> response -> serve (a browser asks)
//!                                           -> html  (asked beforehand, all in one file)
//! ```
//!
//! Figures come from the analysis that the reports use; places of boxes and arcs from the layout that `graph` uses.
//! A query is a name and parameters, as in `river?cut=1.5&root=12`. Parameters with usual values are left out and the others
//! sorted by name, so that a query has one spelling.

mod assets;
mod calls;
mod compare;
mod functions;
mod html;
mod kept;
mod load;
mod part;
mod query;
mod river;
mod sites;
mod source;
mod timeline;
mod tree;

use std::sync::Arc;

use serde::Serialize;
use thalweg_analysis::{Diff, Lanes, Part, Patterns, RuntimeFrames, rolled_up};
use thalweg_model::{Metric, Profile};
use thalweg_views::overview::Overview;
use thalweg_views::summary::Head;
use thalweg_views::{Selection, SortKey, command_line, write_json};

pub use assets::{ICON, SCRIPT, STYLE, page};
pub use html::write as write_html;
pub use load::Load;
pub use query::{ApiError, ApiErrorKind, Query};

use part::{Cut, Lens, Parts, Seen};
use sites::CallSites;

/// So many rows has each table of the summary.
const SUMMARY_ROWS: usize = 12;

/// A profile that queries are asked about.
pub struct ProfileView {
    profile: Arc<Profile>,
    parts: Parts,
    sites: CallSites,
    calls: calls::Lists,
    seen: Seen,
    /// When threads ran, as it was recorded.
    lanes: Lanes,
    /// The profile that it is compared with, and what changed since.
    before: Option<(Profile, Diff)>,
    /// Where it came from, for the title.
    origin: String,
    /// Of a live process: number of the reading and what happened since the one before.
    live: Option<Reading>,
    /// Files that the profile names may be read and shown.
    may_read_sources: bool,
    /// What queries that say nothing of it show.
    runtime_frames: RuntimeFrames,
    kept: kept::Kept,
}

/// One reading of a live process.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub pid: u32,
    pub number: u64,
    /// Calls, self and total per second of each function since the reading before.
    pub rates: Vec<[f64; 3]>,
    /// What the process did lately, as a whole.
    pub load: Load,
    pub ended: bool,
}

impl ProfileView {
    pub fn new(profile: Profile, origin: String) -> ProfileView {
        let sites = CallSites::from_profile(&profile);
        let profile = Arc::new(rolled_up(profile));
        ProfileView {
            sites,
            calls: calls::Lists::default(),
            seen: Seen::default(),
            lanes: Lanes::default(),
            parts: Parts::from_profile(profile.clone()),
            profile,
            before: None,
            origin,
            live: None,
            may_read_sources: false,
            runtime_frames: RuntimeFrames::default(),
            kept: kept::Kept::default(),
        }
    }

    /// Whether frames of runtimes are folded, unless a query says otherwise.
    pub fn with_runtime_frames(mut self, runtime_frames: RuntimeFrames) -> ProfileView {
        self.runtime_frames = runtime_frames;
        self
    }

    /// When threads ran: of the same profile, as it was recorded.
    pub fn with_lanes(mut self, lanes: Lanes) -> ProfileView {
        self.lanes = lanes;
        self
    }

    fn through(&self, lens: &Lens, part: &Part) -> Result<Arc<Cut>, ApiError> {
        if lens.shows_all(&self.profile) {
            return Ok(self.parts.get(part));
        }
        let seen = self.seen.get(&self.profile, &self.lanes, lens);
        let seen = seen.map_err(|error| ApiError::bad_query(error.to_string()))?;
        Ok(seen.get(part))
    }

    /// What the questions about single functions are answered from.
    pub fn prepare_functions(&self) {
        let mut lens = Lens::default();
        lens.patterns.runtime_frames = self.runtime_frames;
        if let Ok(cut) = self.through(&lens, &Part::default()) {
            cut.stanzas();
        }
    }

    pub fn compared_with(mut self, before: Profile) -> ProfileView {
        // As the report of differences has them. Without patterns nothing can be wrong with them.
        let patterns = Patterns {
            runtime_frames: self.runtime_frames,
            ..Patterns::default()
        };
        let shown = |profile: &Profile| {
            let chosen = patterns.apply(profile.clone());
            chosen.unwrap_or_else(|_| profile.clone())
        };
        let diff = thalweg_analysis::diff(&[shown(&before)], &[shown(&self.profile)]);
        self.before = Some((before, diff));
        self
    }

    pub fn with_reading(mut self, reading: Reading) -> ProfileView {
        self.live = Some(reading);
        self
    }

    pub fn with_sources(mut self) -> ProfileView {
        self.may_read_sources = true;
        self
    }

    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub fn reading(&self) -> Option<&Reading> {
        self.live.as_ref()
    }

    /// The same, computed once for all who ask it. Sources are read anew: files change.
    pub fn kept_response(&self, query: &Query) -> kept::Response {
        let compute = || self.response(query).map(Into::into);
        match query.what.as_str() {
            "source" => compute(),
            _ => self.kept.get(query.spelling(), compute),
        }
    }

    /// The response as JSON.
    pub fn response(&self, query: &Query) -> Result<Vec<u8>, ApiError> {
        let cut = || -> Result<Arc<Cut>, ApiError> {
            let part = self.part(query)?;
            let lens = Lens {
                patterns: query.patterns(self.runtime_frames)?,
                metric: query.metric(&self.profile)?,
                span: query.span()?,
            };
            if lens.span.is_some() && (lens.metric.is_some() || self.lanes.is_empty()) {
                let reason = "of a part of the time there are samples only: choose time, of a recording with samples";
                return Err(ApiError::bad_query(reason));
            }
            self.through(&lens, &part)
        };
        match query.what.as_str() {
            "meta" => {
                let mut lens = Lens::default();
                lens.patterns.runtime_frames = self.runtime_frames;
                let all = self.through(&lens, &Part::default())?;
                json(&self.meta(&all))
            }
            "functions" => json(&functions::all(&*cut()?, self.live.as_ref())),
            "function" => {
                let cut = cut()?;
                let function = query.function(cut.profile(), "f")?;
                json(&functions::one(&cut, function)?)
            }
            "river" => json(&river::response(&*cut()?, query)?),
            "tree" => json(&tree::response(&*cut()?, query)?),
            "sites" => {
                let function = query.function(&self.profile, "f")?;
                json(&self.sites.at_function(function))
            }
            "calls" | "callline" | "callplace" | "calldurations" => {
                let part = self.part(query)?;
                let list = self.calls.get(&self.profile, &part, query)?;
                match query.what.as_str() {
                    "calls" => json(&calls::page(&self.profile, &list, query)?),
                    "calldurations" => json(&calls::durations(&self.profile, &list)),
                    "callplace" => json(&calls::place(&self.profile, &list, query)?),
                    _ => json(&calls::line(&self.profile, &list, query)?),
                }
            }
            "timeline" => {
                let part = self.part(query)?;
                json(&timeline::response(
                    &self.profile,
                    &self.lanes,
                    &part,
                    query,
                )?)
            }
            "load" => match &self.live {
                Some(reading) => json(&reading.load),
                None => Err(ApiError::missing("this is a file, not a process")),
            },
            "call" => json(&calls::tree(&self.profile, query)?),
            "switched" => json(&functions::switched(&self.profile)),
            "threads" => json(&functions::threads(&self.profile)),
            "summary" => self.summary(&*cut()?),
            "compare" => match &self.before {
                Some((before, diff)) => match query.metric(&self.profile)? {
                    None => json(&compare::response(&self.profile, diff)),
                    Some(metric) => json(&compare::response(
                        &self.profile,
                        &self.diff_by(before, metric)?,
                    )),
                },
                None => Err(ApiError::missing(
                    "no other profile was given: thalweg serve AFTER --before BEFORE",
                )),
            },
            "source" if self.may_read_sources => json(&source::response(
                &self.profile,
                query.function(&self.profile, "f")?,
            )),
            "source" => Err(ApiError::missing(
                "sources are read by 'thalweg serve' only",
            )),
            _ => Err(ApiError::missing("there is no such query")),
        }
    }

    /// What a metric was then, and is now.
    fn diff_by(&self, before: &Profile, metric: Metric) -> Result<Diff, ApiError> {
        if !before.meta.metrics.contains(&metric) {
            let name = metric.name();
            let reason = format!("the other profile does not have {name}: nothing to compare");
            return Err(ApiError::missing(reason));
        }
        let [before, after] =
            [before, &*self.profile].map(|side| thalweg_analysis::by_metric(side.clone(), metric));
        Ok(thalweg_analysis::diff(&[before], &[after]))
    }

    fn part(&self, query: &Query) -> Result<Part, ApiError> {
        let threads = thalweg_analysis::threads(&self.profile).count() as u32;
        let mut part = Part {
            threads: query.numbers("threads", threads)?,
            root: query.function_if_any(&self.profile, "root")?,
        };
        part.threads.sort_unstable();
        part.threads.dedup();
        if part.threads.len() as u32 == threads {
            part.threads.clear();
        }
        Ok(part)
    }

    fn summary(&self, cut: &Cut) -> Result<Vec<u8>, ApiError> {
        let profile = cut.profile();
        let selection = Selection::by(SortKey::usual(profile)).at_most(SUMMARY_ROWS);
        let overview = Overview::new(profile, None, &selection);
        let mut out = Vec::new();
        write_json(profile.meta.weighed_by, &overview, &mut out)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        Ok(out)
    }

    fn meta(&self, all: &Cut) -> impl Serialize {
        #[derive(Serialize)]
        struct Meta<'a> {
            version: &'a str,
            origin: &'a str,
            command: String,
            timed: bool,
            wall: bool,
            attached: bool,
            duration: u64,
            calls: u64,
            /// There may have been more.
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            at_least: bool,
            time: u64,
            /// How far off it may be; 0 where that is not known.
            error: u64,
            threads: u64,
            processes: u64,
            functions: usize,
            contexts: u64,
            notes: &'a [String],
            before: Option<String>,
            live: Option<LiveMeta>,
            sources: bool,
            /// When threads ran is known.
            timeline: bool,
            recorded: Option<calls::Recorded<'a>>,
            metrics: Vec<MetricMeta>,
        }
        #[derive(Serialize)]
        struct MetricMeta {
            name: &'static str,
            unit: &'static str,
        }
        #[derive(Serialize)]
        struct LiveMeta {
            pid: u32,
            reading: u64,
            ended: bool,
        }
        let profile = &self.profile;
        let head = Head::new(all.profile());
        let metrics = profile.meta.metrics.iter();
        Meta {
            version: env!("CARGO_PKG_VERSION"),
            origin: &self.origin,
            command: command_line(&profile.meta.command),
            timed: profile.meta.timed,
            wall: all.waits().1,
            attached: profile.meta.attached,
            duration: profile.meta.duration_ns,
            calls: head.calls,
            at_least: head.calls_at_least,
            time: head.time_ns,
            error: head.time_error_ns,
            threads: head.threads,
            processes: head.processes,
            functions: profile.functions.len(),
            contexts: head.contexts,
            notes: &profile.notes,
            before: self
                .before
                .as_ref()
                .map(|(before, _)| command_line(&before.meta.command)),
            live: self.live.as_ref().map(|reading| LiveMeta {
                pid: reading.pid,
                reading: reading.number,
                ended: reading.ended,
            }),
            sources: self.may_read_sources,
            timeline: !self.lanes.is_empty(),
            recorded: calls::recorded(profile),
            metrics: metrics
                .map(|metric| MetricMeta {
                    name: metric.name(),
                    unit: metric.unit().name(),
                })
                .collect(),
        }
    }
}

fn json(response: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(response).map_err(|error| ApiError::internal(error.to_string()))
}

#[cfg(test)]
mod tests;
