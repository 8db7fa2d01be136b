//! Recording single calls: rules go into the target's tables before anything is patched, and what its threads write down about the
//! calls that the rules choose is read out while it runs.
//!
//! ```text
//! rules + survey -> tables    record/tables.rs    which functions, from which duration on    before the attach, and whenever rules change
//! record areas   -> records   record/drain.rs     a ring per thread, read behind its writer
//! records        -> calls     record/walk.rs      one walk makes the pruned call trees
//! ```

mod drain;
mod errno;
pub mod tables;
pub mod walk;

pub use drain::{Drain, recorded};

use regex::Regex;

use crate::error::{Error, Result};

/// What to record, and how much room it may take.
#[derive(Clone, Debug)]
pub struct Recording {
    pub rules: Vec<Rule>,
    /// Calls of these functions begin a request.
    pub roots: Vec<Regex>,
    /// Bytes per thread.
    pub memory: u64,
    /// Where that is full the oldest records make room, as opposed to the newest not being written.
    pub overwrite: bool,
}

/// One rule: functions, and what their calls must be like.
#[derive(Clone, Debug)]
pub struct Rule {
    pub text: String,
    pub functions: Regex,
    /// Calls that took longer, in nanoseconds.
    pub longer_than: u64,
}

impl Rule {
    /// `FUNCTIONS: duration > TIME`
    pub fn parse(text: &str) -> Result<Rule> {
        let wrong = |why: &str| Error::Other(format!("the rule '{text}' cannot be read: {why}"));
        let (pattern, condition) = text
            .rsplit_once(": ")
            .ok_or_else(|| wrong("write FUNCTIONS: duration > 5ms"))?;
        let functions = Regex::new(pattern.trim()).map_err(|e| wrong(&e.to_string()))?;
        let time = condition
            .trim()
            .strip_prefix("duration")
            .and_then(|rest| rest.trim().strip_prefix('>'))
            .ok_or_else(|| wrong("write duration > TIME"))?;
        let time = time.trim();
        let digits = time
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(time.len());
        let number: f64 = time[..digits]
            .parse()
            .map_err(|_| wrong("the duration is no number"))?;
        let unit = match &time[digits..] {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return Err(wrong("the duration needs a unit: ns, us, ms, s")),
        };
        Ok(Rule {
            text: text.into(),
            functions,
            longer_than: (number * unit) as u64,
        })
    }
}
