//! The one way from a profile as it was recorded to the figures that are shown: every report,
//! export and page goes it.
//!
//! ```text
//! recorded -> compensate   the probes' cost is taken out
//!          -> estimate     times of calls that were counted and not timed
//!          -> attribute    samples tell of what the probes cannot
//!          -> gather       folded contexts stand together again
//!          -> refine       the part that names on the path choose
//!          -> roll up      call sites are forgotten, where nobody asks for them
//! ```
//!
//! With a metric in the place of time, or with raw times, the first three are left out.

use regex::Regex;
use thalweg_model::{Metric, Profile};

use crate::refine::Matches;
use crate::runtime::Runtimes;
use crate::{
    Bounds, Granularity, Refinement, add_up_all, attribute_samples, by_metric, compensate,
    estimate, folded_places, gather_folded, refine, rolled_up,
};

/// Which figures of a recorded profile are shown.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    /// This metric in the place of time.
    pub by: Option<Metric>,
    /// Times as they were measured, with what the probes cost.
    pub raw: bool,
    pub patterns: Patterns,
    pub sites: Sites,
}

/// Whether contexts are told apart by where the call is made, if they were recorded so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sites {
    #[default]
    RolledUp,
    Kept,
}

/// What of the profile is shown, by regular expressions for names on the path of a context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Patterns {
    pub focus: Option<String>,
    pub ignore: Option<String>,
    pub hide: Option<String>,
    pub show_from: Option<String>,
    pub granularity: Granularity,
    pub runtime_frames: RuntimeFrames,
}

/// What interpreters and virtual machines do between two functions of their languages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RuntimeFrames {
    /// A part of the outer one of the two.
    #[default]
    Folded,
    Shown,
}

/// Why a profile cannot be shown so. Patterns are called what the options of all commands are.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PipelineError {
    #[error("this profile does not have {}: record it with {}", .0.name(), recorded_with(*.0))]
    MissingMetric(Metric),
    #[error("{option} '{pattern}' is no regular expression: {error}")]
    BadPattern {
        option: &'static str,
        pattern: String,
        error: regex::Error,
    },
    #[error("{0} matches no function, file or module of this profile")]
    MatchesNothing(&'static str),
}

/// The options of a recording that has it.
fn recorded_with(metric: Metric) -> String {
    match metric {
        Metric::SyscallTime => "--metric syscalls and with a clock".to_string(),
        Metric::SyscallCalls => "--metric syscalls".to_string(),
        Metric::Faults
        | Metric::Switches
        | Metric::Instructions
        | Metric::Cycles
        | Metric::CacheMisses => format!("--metric {}", metric.name()),
        _ => "--metric alloc".to_string(),
    }
}

impl Pipeline {
    /// Everything, as a report without options has it.
    pub fn new() -> Pipeline {
        Pipeline::default()
    }

    /// The same with call sites and all frames of runtimes: for files, and for the page, which can show both.
    pub fn with_sites() -> Pipeline {
        Pipeline {
            sites: Sites::Kept,
            patterns: Patterns {
                runtime_frames: RuntimeFrames::Shown,
                ..Patterns::default()
            },
            ..Pipeline::default()
        }
    }

    pub fn run(&self, recorded: Profile) -> Result<Profile, PipelineError> {
        let profile = self.figures(recorded)?;
        let profile = self.patterns.apply(profile)?;
        Ok(match self.sites {
            Sites::RolledUp => rolled_up(profile),
            Sites::Kept => profile,
        })
    }

    fn figures(&self, mut profile: Profile) -> Result<Profile, PipelineError> {
        let folded = folded_places(&profile);
        if let Some(metric) = self.by {
            if !profile.meta.metrics.contains(&metric) {
                return Err(PipelineError::MissingMetric(metric));
            }
            profile = by_metric(profile, metric);
        } else if !self.raw {
            compensate(&mut profile);
            estimate(&mut profile);
            if attribute_samples(&mut profile) {
                add_up_all(&mut profile);
            }
        }
        gather_folded(&mut profile, &folded);
        let bounds = Bounds::from_profile(&profile).note(&profile);
        let is_new = |note: &String| !profile.notes.contains(note);
        if let Some(note) = bounds.filter(is_new) {
            profile.notes.push(note);
        }
        Ok(profile)
    }
}

impl Patterns {
    /// Whether all of a profile is shown as it is.
    pub fn show_all(&self, profile: &Profile) -> bool {
        let none = Patterns {
            runtime_frames: self.runtime_frames,
            ..Patterns::default()
        };
        *self == none && self.runtimes(profile).is_none()
    }

    fn runtimes(&self, profile: &Profile) -> Option<Runtimes> {
        match self.runtime_frames {
            RuntimeFrames::Folded => Runtimes::of(profile),
            RuntimeFrames::Shown => None,
        }
    }

    /// The part of a profile that they choose.
    pub fn apply(&self, profile: Profile) -> Result<Profile, PipelineError> {
        if self.show_all(&profile) {
            return Ok(profile);
        }
        let how = Refinement {
            focus: matching(&profile, "--focus", self.focus.as_deref())?,
            ignore: matching(&profile, "--ignore", self.ignore.as_deref())?,
            hide: matching(&profile, "--hide", self.hide.as_deref())?,
            show_from: matching(&profile, "--show-from", self.show_from.as_deref())?,
            granularity: self.granularity,
            runtimes: self.runtimes(&profile),
        };
        for (option, what) in [("--focus", &how.focus), ("--show-from", &how.show_from)] {
            if what.as_ref().is_some_and(|all| !all.contains(&true)) {
                return Err(PipelineError::MatchesNothing(option));
            }
        }
        Ok(refine(profile, &how))
    }
}

/// Of each function whether its name, its file or its module matches.
fn matching(
    profile: &Profile,
    option: &'static str,
    pattern: Option<&str>,
) -> Result<Matches, PipelineError> {
    let Some(pattern) = pattern else {
        return Ok(None);
    };
    let regex = Regex::new(pattern).map_err(|error| PipelineError::BadPattern {
        option,
        pattern: pattern.to_string(),
        error,
    })?;
    let is_match = |text: &str| regex.is_match(text);
    let modules: Vec<bool> = profile.modules.iter().map(|m| is_match(&m.name)).collect();
    let functions = profile.functions.iter().map(|function| {
        modules[function.module as usize]
            || is_match(&function.name)
            || function.file.as_deref().is_some_and(is_match)
    });
    Ok(Some(functions.collect()))
}
