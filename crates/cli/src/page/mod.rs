//! What the page asks and what it is told: questions answered from a profile, in JSON.
//!
//! ```text
//! profile -> part (threads, root) -> answer -> serve (a browser asks)
//!                                           -> html  (asked beforehand, all in one file)
//! ```
//!
//! Figures come from the analysis that the reports use; places of boxes and arcs from the layout that `graph` uses.
//! A question is a name and parameters, as in `river?cut=1.5&root=12`. Parameters with usual values are left out and the others
//! sorted by name, so that a question has one spelling.

mod assets;
mod calls;
mod compare;
mod functions;
mod html;
mod part;
mod question;
mod river;
mod sites;
mod source;
mod tree;

use std::sync::Arc;

use serde::Serialize;
use thalweg_analysis::{Bounds, Diff, Part, rolled_up, summary};
use thalweg_model::{Metric, Profile};

pub use assets::{ICON, SCRIPT, STYLE, page};
pub use html::write as write_html;
pub use question::{Question, Refusal, RefusalKind};

use crate::report::{self, Selection, SortKey};
use part::{Cut, Lens, Parts, Seen};
use sites::CallSites;

/// So many rows has each table of the summary.
const SUMMARY_ROWS: usize = 12;

/// A profile that questions are asked about.
pub struct Subject {
    profile: Arc<Profile>,
    parts: Parts,
    sites: CallSites,
    calls: calls::Lists,
    seen: Seen,
    /// The profile that it is compared with, and what changed since.
    before: Option<(Profile, Diff)>,
    /// Where it came from, for the title.
    origin: String,
    /// Of a live process: number of the reading and what happened since the one before.
    live: Option<Reading>,
    /// Files that the profile names may be read and shown.
    may_read_sources: bool,
}

/// One look at a live process.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    pub pid: u32,
    pub number: u64,
    /// Calls, self and total per second of each function since the reading before.
    pub rates: Vec<[f64; 3]>,
    pub ended: bool,
}

impl Subject {
    pub fn new(profile: Profile, origin: String) -> Subject {
        let sites = CallSites::of(&profile);
        let profile = Arc::new(rolled_up(profile));
        Subject {
            sites,
            calls: calls::Lists::default(),
            seen: Seen::default(),
            parts: Parts::of(profile.clone()),
            profile,
            before: None,
            origin,
            live: None,
            may_read_sources: false,
        }
    }

    pub fn compared_with(mut self, before: Profile) -> Subject {
        let diff = thalweg_analysis::diff(
            std::slice::from_ref(&before),
            std::slice::from_ref(&self.profile),
        );
        self.before = Some((before, diff));
        self
    }

    pub fn with_reading(mut self, reading: Reading) -> Subject {
        self.live = Some(reading);
        self
    }

    pub fn with_sources(mut self) -> Subject {
        self.may_read_sources = true;
        self
    }

    pub fn profile(&self) -> &Arc<Profile> {
        &self.profile
    }

    pub fn reading(&self) -> Option<&Reading> {
        self.live.as_ref()
    }

    /// The answer as JSON.
    pub fn answer(&self, question: &Question) -> Result<Vec<u8>, Refusal> {
        let cut = || -> Result<Arc<Cut>, Refusal> {
            let part = self.part(question)?;
            let lens = Lens {
                refine: question.refine()?,
                metric: question.metric(&self.profile)?,
            };
            if lens == Lens::default() {
                return Ok(self.parts.get(&part));
            }
            let seen = self.seen.get(&self.profile, &lens);
            let seen = seen.map_err(|error| Refusal::question(error.to_string()))?;
            Ok(seen.get(&part))
        };
        match question.what.as_str() {
            "meta" => json(&self.meta()),
            "functions" => json(&functions::all(&*cut()?, self.live.as_ref())),
            "function" => {
                let cut = cut()?;
                let function = question.function(cut.profile(), "f")?;
                json(&functions::one(&cut, function)?)
            }
            "river" => json(&river::answer(&*cut()?, question)?),
            "tree" => json(&tree::answer(&*cut()?, question)?),
            "sites" => {
                let function = question.function(&self.profile, "f")?;
                json(&self.sites.around(function))
            }
            "calls" | "callline" | "callplace" => {
                let part = self.part(question)?;
                let list = self.calls.get(&self.profile, &part, question)?;
                match question.what.as_str() {
                    "calls" => json(&calls::page(&self.profile, &list, question)?),
                    "callplace" => json(&calls::place(&self.profile, &list, question)?),
                    _ => json(&calls::line(&self.profile, &list, question)?),
                }
            }
            "call" => json(&calls::tree(&self.profile, question)?),
            "switched" => json(&functions::switched(&self.profile)),
            "threads" => json(&functions::threads(&self.profile)),
            "summary" => self.summary(&*cut()?),
            "compare" => match &self.before {
                Some((before, diff)) => match question.metric(&self.profile)? {
                    None => json(&compare::answer(&self.profile, diff)),
                    Some(metric) => json(&compare::answer(
                        &self.profile,
                        &self.diff_by(before, metric)?,
                    )),
                },
                None => Err(Refusal::missing(
                    "no other profile was given: thalweg serve AFTER --before BEFORE",
                )),
            },
            "source" if self.may_read_sources => json(&source::answer(
                &self.profile,
                question.function(&self.profile, "f")?,
            )),
            "source" => Err(Refusal::missing("sources are read by 'thalweg serve' only")),
            _ => Err(Refusal::missing("there is no such question")),
        }
    }

    /// What a metric was then, and is now.
    fn diff_by(&self, before: &Profile, metric: Metric) -> Result<Diff, Refusal> {
        if !before.meta.metrics.contains(&metric) {
            let name = metric.name();
            let reason = format!("the other profile does not have {name}: nothing to compare");
            return Err(Refusal::missing(reason));
        }
        let [before, after] =
            [before, &*self.profile].map(|side| thalweg_analysis::weigh(side.clone(), metric));
        Ok(thalweg_analysis::diff(&[before], &[after]))
    }

    fn part(&self, question: &Question) -> Result<Part, Refusal> {
        let threads = thalweg_analysis::threads(&self.profile).count() as u32;
        let mut part = Part {
            threads: question.numbers("threads", threads)?,
            root: question.function_if_any(&self.profile, "root")?,
        };
        part.threads.sort_unstable();
        part.threads.dedup();
        if part.threads.len() as u32 == threads {
            part.threads.clear();
        }
        Ok(part)
    }

    fn summary(&self, cut: &Cut) -> Result<Vec<u8>, Refusal> {
        let sort = match cut.profile().meta.timed {
            true => SortKey::Base,
            false => SortKey::Calls,
        };
        let mut selection = Selection::by(sort);
        selection.limit = Some(SUMMARY_ROWS);
        let mut out = Vec::new();
        report::print_overview_json(cut.profile(), None, &selection, &mut out)
            .map_err(|error| Refusal::broken(error.to_string()))?;
        Ok(out)
    }

    fn meta(&self) -> impl Serialize {
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
        let figures = summary(profile);
        let all = self.parts.get(&Part::default());
        let metrics = profile.meta.metrics.iter();
        Meta {
            version: env!("CARGO_PKG_VERSION"),
            origin: &self.origin,
            command: report::command_line(&profile.meta.command),
            timed: profile.meta.timed,
            wall: all.waits().1,
            attached: profile.meta.attached,
            duration: profile.meta.duration_ns,
            calls: figures.calls,
            at_least: Bounds::of(profile).any(),
            time: figures.time,
            error: report::error_of_time(profile),
            threads: figures.threads,
            processes: figures.processes,
            functions: profile.functions.len(),
            contexts: figures.contexts,
            notes: &profile.notes,
            before: self
                .before
                .as_ref()
                .map(|(before, _)| report::command_line(&before.meta.command)),
            live: self.live.as_ref().map(|reading| LiveMeta {
                pid: reading.pid,
                reading: reading.number,
                ended: reading.ended,
            }),
            sources: self.may_read_sources,
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

fn json(answer: &impl Serialize) -> Result<Vec<u8>, Refusal> {
    serde_json::to_vec(answer).map_err(|error| Refusal::broken(error.to_string()))
}

#[cfg(test)]
mod tests;
