//! `thalweg rules`: which calls an attached process records, and other rules while it runs.

mod learn;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use thalweg_instrument::call_rules::{Change, bring_back, change};
use thalweg_instrument::detach;
use thalweg_ptrace::proc::Pid;
use thalweg_rules::{Rule, RulesFile};

use crate::report::printable;

/// List, add and remove the rules of a process whose calls are recorded; learn rules from a recording
///
/// The process runs on meanwhile, and what was recorded stays.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    pub other: Option<Other>,

    /// The process, attached or being recorded with --rule, --rules or --recordable
    #[arg(short, long, required = true)]
    pub pid: Option<u32>,

    /// Record the calls that this rule chooses, too
    #[arg(long, value_name = "RULE")]
    pub add: Vec<String>,

    /// The same with all rules of this file
    #[arg(long, value_name = "FILE")]
    pub add_file: Vec<PathBuf>,

    /// No longer follow the rule of this number
    #[arg(long, value_name = "NUMBER")]
    pub remove: Vec<usize>,
}

#[derive(clap::Subcommand, Debug)]
pub enum Other {
    Learn(learn::Args),
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Other::Learn(args)) = args.other {
        return learn::run(args);
    }
    let Some(pid) = args.pid else {
        bail!("name the process with -p");
    };
    let mut add = Vec::new();
    for text in &args.add {
        add.push(Rule::parse(text)?);
    }
    for file in &args.add_file {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
        add.extend(RulesFile::parse(&text, &name)?.rules);
    }
    let pid = Pid(pid as i32);
    let (shared, _) = detach::attached(pid)?;
    let wanted = Change {
        add,
        remove: args.remove,
    };
    let about = change(&shared, &wanted)?;
    if !wanted.add.is_empty() {
        bring_back(pid, &shared)?;
    }
    let mut out = std::io::stdout().lock();
    for (index, rule) in about.rules.iter().enumerate() {
        if !rule.removed {
            writeln!(out, "{:>4}  {}", index + 1, printable(&rule.text))?;
        }
    }
    for note in &about.notes {
        tell!("note: {}", printable(note));
    }
    Ok(ExitCode::SUCCESS)
}
