//! Options that say which calls are recorded one by one: the same for `record` and `attach`.

use clap::{Args, ValueEnum};
use regex::Regex;
use thalweg_control::record::{Recording, Rule};

use crate::args::parse_size;

/// Calls to record one by one.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Recording single calls")]
pub struct RecordingArgs {
    /// Record the calls that this rule chooses, with all their callers: 'FUNCTIONS: duration > 5ms' (may be given several times)
    #[arg(long = "rule", value_name = "RULE", conflicts_with = "no_clock")]
    pub rules: Vec<String>,

    /// A call of a function that matches begins a request: what is recorded of it is a tree of its own
    #[arg(long = "root", value_name = "REGEX", requires = "rules")]
    pub roots: Vec<String>,

    /// Memory for recorded calls in the target, for each of its threads
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size, requires = "rules")]
    pub record_memory: u64,

    /// What goes when that is full [default: newest for record, oldest for attach]
    #[arg(long, value_name = "WHICH", requires = "rules")]
    pub drop: Option<Drop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drop {
    Newest,
    Oldest,
}

impl RecordingArgs {
    /// `usual`: what goes when the memory is full and nobody said otherwise.
    pub fn build(&self, usual: Drop) -> anyhow::Result<Option<Recording>> {
        if self.rules.is_empty() {
            return Ok(None);
        }
        let rules = self.rules.iter().map(|text| Rule::parse(text));
        let roots = self.roots.iter().map(|root| Regex::new(root));
        Ok(Some(Recording {
            rules: rules.collect::<Result<_, _>>()?,
            roots: roots.collect::<Result<_, _>>()?,
            memory: self.record_memory,
            overwrite: self.drop.unwrap_or(usual) == Drop::Oldest,
        }))
    }
}
