//! The rules of call traces: they go into the target's tables before anything is patched, and whenever they change. What
//! its threads write down about the calls that the rules choose is read by the snapshot's `call_trace`.

mod change;
mod errno;
mod filters;
mod needed;
pub mod tables;

pub use change::{Change, change, reapply};
pub use needed::{Needs, bring_back, check_for_budget};
pub use needed::{needed, needs_all};
pub use tables::notes;

use std::collections::BTreeSet;

use regex::Regex;
use thalweg_rules::{Options, Rule};

/// What to record, and how much room it may take.
#[derive(Clone, Debug)]
pub struct Recording {
    pub rules: Vec<Rule>,
    /// Rules that are no longer in force, by place.
    pub removed: BTreeSet<usize>,
    pub options: Options,
    /// The patterns in `options`.
    pub redact: Vec<String>,
    /// Calls of these functions begin a request.
    pub roots: Vec<Regex>,
    /// Bytes per thread.
    pub memory: u64,
    /// Where that is full the oldest records make room, as opposed to the newest not being written.
    pub overwrite: bool,
    /// How many calls whoever reads them keeps, callers included.
    pub keep: usize,
}
