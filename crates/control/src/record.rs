//! Recording single calls: rules go into the target's tables before anything is patched, and what its threads write down about the
//! calls that the rules choose is read out while it runs.
//!
//! ```text
//! rules + survey -> tables    record/tables.rs    which functions, which programs       before the attach, and whenever rules change
//! record areas   -> records   record/drain.rs     a ring per thread, read behind its writer
//! records        -> calls     record/walk.rs      one walk makes the pruned call trees, in record/list.rs
//! ```

mod change;
mod drain;
mod errno;
mod filters;
pub mod list;
mod making;
mod moving;
mod needed;
mod order;
pub mod tables;
pub mod walk;

pub use change::{Change, change, reapply};
pub use drain::{Drain, recorded};
pub use needed::{Needs, bring_back, check_for_budget};
pub(crate) use needed::{needed, needs_all};
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
