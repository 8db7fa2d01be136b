//! A query of the page: its name and its parameters, checked before anything is computed from them.

use std::collections::HashMap;

use thalweg_analysis::{Granularity, Patterns, RuntimeFrames, Weight};
use thalweg_model::{FuncId, Metric, Profile};

/// Longer lists than a page ever sends.
const MAX_NUMBERS: usize = 10_000;

#[derive(Clone, Debug, Default)]
pub struct Query {
    pub what: String,
    parameters: HashMap<String, String>,
}

/// Why there is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ApiError {
    pub kind: ApiErrorKind,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiErrorKind {
    /// The query makes no sense.
    BadQuery,
    /// What it asks for is not there.
    Missing,
    /// It is our fault.
    Internal,
}

impl ApiError {
    pub fn bad_query(reason: impl Into<String>) -> ApiError {
        ApiError {
            kind: ApiErrorKind::BadQuery,
            reason: reason.into(),
        }
    }

    pub fn missing(reason: impl Into<String>) -> ApiError {
        ApiError {
            kind: ApiErrorKind::Missing,
            reason: reason.into(),
        }
    }

    pub fn internal(reason: impl Into<String>) -> ApiError {
        ApiError {
            kind: ApiErrorKind::Internal,
            reason: reason.into(),
        }
    }
}

impl Query {
    pub fn new(what: &str, parameters: &str) -> Query {
        Query {
            what: what.to_string(),
            parameters: form_urlencoded::parse(parameters.as_bytes())
                .into_owned()
                .collect(),
        }
    }

    /// `river?cut=1.5`
    pub fn parse(text: &str) -> Query {
        let (what, parameters) = text.split_once('?').unwrap_or((text, ""));
        Query::new(what, parameters)
    }

    /// The one that all its spellings have in common.
    pub fn spelling(&self) -> String {
        let mut given: Vec<_> = self.parameters.iter().collect();
        given.sort();
        let mut text = form_urlencoded::Serializer::new(format!("{}?", self.what));
        text.extend_pairs(given);
        text.finish()
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.parameters
            .get(name)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ApiError> {
        self.text(name)
            .map(|text| {
                let number = text.parse();
                number
                    .map_err(|_| ApiError::bad_query(format!("'{name}' is no number of its kind")))
            })
            .transpose()
    }

    /// From 0 to 100; as a share.
    pub fn percent(&self, name: &str) -> Result<Option<f64>, ApiError> {
        match self.number::<f64>(name)? {
            None => Ok(None),
            Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Some(percent / 100.0)),
            Some(_) => Err(ApiError::bad_query(format!("'{name}' goes from 0 to 100"))),
        }
    }

    /// `3,17,21`, each below `end`.
    pub fn numbers(&self, name: &str, end: u32) -> Result<Vec<u32>, ApiError> {
        let Some(text) = self.text(name) else {
            return Ok(Vec::new());
        };
        let numbers: Vec<u32> = text
            .split(',')
            .take(MAX_NUMBERS)
            .map(|number| number.parse().ok().filter(|&number| number < end))
            .collect::<Option<_>>()
            .ok_or_else(|| ApiError::bad_query(format!("'{name}' lists what is not there")))?;
        Ok(numbers)
    }

    pub fn function_if_any(
        &self,
        profile: &Profile,
        name: &str,
    ) -> Result<Option<FuncId>, ApiError> {
        let end = profile.functions.len() as u32;
        Ok(self
            .numbers(name, end)?
            .first()
            .map(|&number| FuncId(number)))
    }

    pub fn function(&self, profile: &Profile, name: &str) -> Result<FuncId, ApiError> {
        self.function_if_any(profile, name)?
            .ok_or_else(|| ApiError::bad_query(format!("'{name}' names no function")))
    }

    /// What is weighed: time, calls, or wall time; of a profile that is weighed by a metric, that.
    pub fn weight(&self, profile: &Profile) -> Weight {
        match self.text("metric") {
            Some("calls") => Weight::Calls,
            Some("wall") => Weight::Wall,
            _ if profile.meta.timed => Weight::Time,
            _ => Weight::Calls,
        }
    }

    /// `focus`, `ignore`, `hide`, `from`, `per` and `runtime`: as the options of the commands. `usual`: where nothing is said of the last.
    pub fn patterns(&self, usual: RuntimeFrames) -> Result<Patterns, ApiError> {
        let pattern = |name: &str| self.text(name).map(str::to_string);
        Ok(Patterns {
            focus: pattern("focus"),
            ignore: pattern("ignore"),
            hide: pattern("hide"),
            show_from: pattern("from"),
            granularity: match self.text("per") {
                None | Some("function") => Granularity::Function,
                Some("file") => Granularity::File,
                Some("module") => Granularity::Module,
                Some(_) => return Err(ApiError::bad_query("'per' is function, file or module")),
            },
            runtime_frames: match self.text("runtime") {
                None => usual,
                Some("folded") => RuntimeFrames::Folded,
                Some("shown") => RuntimeFrames::Shown,
                Some(_) => return Err(ApiError::bad_query("'runtime' is folded or shown")),
            },
        })
    }

    /// `span=100-2000`: a part of the time, in nanoseconds since the recording began.
    pub fn span(&self) -> Result<Option<(u64, u64)>, ApiError> {
        let Some(text) = self.text("span") else {
            return Ok(None);
        };
        let ends = text.split_once('-');
        let ends = ends.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
        let ends = ends.filter(|(from, to): &(u64, u64)| from < to);
        ends.map(Some)
            .ok_or_else(|| ApiError::bad_query("'span' is FROM-TO, in nanoseconds"))
    }

    /// What is to be in the place of time, if anything.
    pub fn metric(&self, profile: &Profile) -> Result<Option<Metric>, ApiError> {
        let Some(name) = self
            .text("metric")
            .filter(|name| !["calls", "wall"].contains(name))
        else {
            return Ok(None);
        };
        let known = Metric::named(name).filter(|metric| profile.meta.metrics.contains(metric));
        known.map(Some).ok_or_else(|| {
            ApiError::bad_query("'metric' is calls, wall, or one that the profile has")
        })
    }
}
