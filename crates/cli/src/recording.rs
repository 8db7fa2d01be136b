//! Options that say which calls are recorded one by one: the same for `record` and `attach`.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use regex::Regex;
use thalweg_instrument::call_rules;
use thalweg_instrument::call_rules::Recording;
use thalweg_rules::{Options, Redactions, Rule, RulesFile};

use crate::args::{MeasureArgs, Mode, parse_size};

/// Calls to record one by one.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Recording single calls")]
pub struct RecordingArgs {
    /// Record the calls that this rule chooses, with all their callers: 'FUNCTIONS: duration > 5ms; record NAME' (may be given several
    /// times)
    #[arg(long = "rule", value_name = "RULE", conflicts_with = "no_clock")]
    pub rules: Vec<String>,

    /// The same with all rules of this file
    #[arg(long = "rules", value_name = "FILE", conflicts_with = "no_clock")]
    pub files: Vec<PathBuf>,

    /// Prepare for rules that come later, by 'thalweg rules'
    #[arg(long, conflicts_with = "no_clock")]
    pub recordable: bool,

    /// A call of a function that matches begins a request: what is recorded of it is a tree of its own
    #[arg(long = "root", value_name = "REGEX")]
    pub roots: Vec<String>,

    /// Never read arguments and fields whose name matches
    #[arg(long, value_name = "REGEX")]
    pub redact: Vec<String>,

    /// Memory for recorded calls in the target, for each of its threads
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    pub record_memory: u64,

    /// How many recorded calls the profile gets at most, callers included
    #[arg(long, value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_calls: u32,

    /// What goes when either is full [default: newest for record, oldest for attach]
    #[arg(long, value_name = "WHICH")]
    pub drop: Option<Drop>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drop {
    Newest,
    Oldest,
}

impl RecordingArgs {
    /// `usual`: what goes when the memory is full and nobody said otherwise.
    /// `mode` becomes one that goes with rules: without a budget every call is timed, because the probes of such a target have no other mode.
    pub fn build(
        &self,
        usual: Drop,
        measure: &MeasureArgs,
        mode: &mut Mode,
    ) -> anyhow::Result<Option<Recording>> {
        if self.rules.is_empty() && self.files.is_empty() && !self.recordable {
            if !self.roots.is_empty() || !self.redact.is_empty() || self.drop.is_some() {
                bail!("no calls are recorded: say which with --rule or --rules");
            }
            return Ok(None);
        }
        let mut rules = Vec::new();
        let mut redact = self.redact.clone();
        let mut options = Options::default();
        for text in &self.rules {
            rules.push(Rule::parse(text)?);
        }
        for file in &self.files {
            let name = file.display().to_string();
            let text =
                std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
            let read = RulesFile::parse(&text, &name)?;
            rules.extend(read.rules);
            redact.extend(read.redact);
            options.text_limit = read.text_limit.unwrap_or(options.text_limit);
        }
        if let Mode::Budget(_) = mode {
            match call_rules::check_for_budget(&rules) {
                // Nobody asked for a budget.
                Err(_) if measure.budget.is_none() => *mode = Mode::All,
                checked => checked?,
            }
        }
        if matches!(mode, Mode::Auto | Mode::Restless) {
            *mode = Mode::All;
        }
        options.redact = Redactions::new(&redact)?;
        let roots = self.roots.iter().map(|root| Regex::new(root));
        Ok(Some(Recording {
            rules,
            removed: Default::default(),
            options,
            redact,
            roots: roots.collect::<Result<_, _>>()?,
            memory: self.record_memory,
            overwrite: self.drop.unwrap_or(usual) == Drop::Oldest,
            keep: self.keep_calls as usize,
        }))
    }
}
