//! A question of the page: its name and its parameters, checked before anything is computed from them.

use std::collections::HashMap;

use thalweg_analysis::Weight;
use thalweg_model::{Metric, Profile};

use crate::args::{Detail, RefineArgs};

/// Longer lists than a page ever sends.
const MOST_NUMBERS: usize = 10_000;

#[derive(Clone, Debug, Default)]
pub struct Question {
    pub what: String,
    parameters: HashMap<String, String>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    pub kind: RefusalKind,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The question makes no sense.
    Question,
    /// What it asks for is not there.
    Missing,
    /// It is our fault.
    Broken,
}

impl Refusal {
    pub fn question(reason: impl Into<String>) -> Refusal {
        Refusal {
            kind: RefusalKind::Question,
            reason: reason.into(),
        }
    }

    pub fn missing(reason: impl Into<String>) -> Refusal {
        Refusal {
            kind: RefusalKind::Missing,
            reason: reason.into(),
        }
    }

    pub fn broken(reason: impl Into<String>) -> Refusal {
        Refusal {
            kind: RefusalKind::Broken,
            reason: reason.into(),
        }
    }
}

impl Question {
    pub fn new(what: &str, query: &str) -> Question {
        Question {
            what: what.to_string(),
            parameters: form_urlencoded::parse(query.as_bytes())
                .into_owned()
                .collect(),
        }
    }

    /// `river?cut=1.5`
    pub fn parse(text: &str) -> Question {
        let (what, query) = text.split_once('?').unwrap_or((text, ""));
        Question::new(what, query)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.parameters
            .get(name)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Refusal> {
        self.text(name)
            .map(|text| {
                let number = text.parse();
                number.map_err(|_| Refusal::question(format!("'{name}' is no number of its kind")))
            })
            .transpose()
    }

    /// From 0 to 100; as a share.
    pub fn percent(&self, name: &str) -> Result<Option<f64>, Refusal> {
        match self.number::<f64>(name)? {
            None => Ok(None),
            Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Some(percent / 100.0)),
            Some(_) => Err(Refusal::question(format!("'{name}' goes from 0 to 100"))),
        }
    }

    /// `3,17,21`, each below `end`.
    pub fn numbers(&self, name: &str, end: u32) -> Result<Vec<u32>, Refusal> {
        let Some(text) = self.text(name) else {
            return Ok(Vec::new());
        };
        let numbers: Vec<u32> = text
            .split(',')
            .take(MOST_NUMBERS)
            .map(|number| number.parse().ok().filter(|&number| number < end))
            .collect::<Option<_>>()
            .ok_or_else(|| Refusal::question(format!("'{name}' lists what is not there")))?;
        Ok(numbers)
    }

    pub fn function_if_any(&self, profile: &Profile, name: &str) -> Result<Option<u32>, Refusal> {
        let end = profile.functions.len() as u32;
        Ok(self.numbers(name, end)?.first().copied())
    }

    pub fn function(&self, profile: &Profile, name: &str) -> Result<u32, Refusal> {
        self.function_if_any(profile, name)?
            .ok_or_else(|| Refusal::question(format!("'{name}' names no function")))
    }

    /// What is weighed: time, calls, or wall time; of a profile that is weighed by a metric, that.
    pub fn weight(&self, profile: &Profile) -> Weight {
        match self.text("metric") {
            Some("calls") => Weight::Calls,
            Some("wall") => Weight::Elapsed,
            _ if profile.meta.timed => Weight::Time,
            _ => Weight::Calls,
        }
    }

    /// `focus`, `ignore`, `hide`, `from`, and `per`: as the options of the commands.
    pub fn refine(&self) -> Result<RefineArgs, Refusal> {
        let pattern = |name: &str| self.text(name).map(str::to_string);
        Ok(RefineArgs {
            focus: pattern("focus"),
            ignore: pattern("ignore"),
            hide: pattern("hide"),
            show_from: pattern("from"),
            granularity: match self.text("per") {
                None | Some("function") => Detail::Function,
                Some("file") => Detail::File,
                Some("module") => Detail::Module,
                Some(_) => return Err(Refusal::question("'per' is function, file or module")),
            },
        })
    }

    /// What is to be in the place of time, if anything.
    pub fn metric(&self, profile: &Profile) -> Result<Option<Metric>, Refusal> {
        let Some(name) = self
            .text("metric")
            .filter(|name| !["calls", "wall"].contains(name))
        else {
            return Ok(None);
        };
        let known = Metric::named(name).filter(|metric| profile.meta.metrics.contains(metric));
        known.map(Some).ok_or_else(|| {
            Refusal::question("'metric' is calls, wall, or one that the profile has")
        })
    }
}
