//! `thalweg record`: attach or launch, wait, detach, save, report.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::ArgGroup;

use crate::args::{DEFAULT_FILE, FilterArgs, MeasureArgs, parse_duration};

/// Record a command, or a running process, from start to end, and report
///
/// The target's standard streams stay its own: thalweg writes to standard error only, and returns the status of
/// the command it launched (128 + the signal when one killed it). Ctrl-C detaches, saves and reports.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("target").required(true).args(["pid", "command"]))]
pub struct Args {
    /// Attach to this running process
    #[arg(short, long)]
    pub pid: Option<u32>,

    /// Count only this thread (may be given several times)
    #[arg(short, long = "thread", value_name = "TID", requires = "pid")]
    pub threads: Vec<u32>,

    /// Detach after this long: 500ms, 10s, 2m
    #[arg(short, long, value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Where to write the profile
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub measure: MeasureArgs,

    /// Save the profile but print no summary at the end
    #[arg(long)]
    pub no_report: bool,

    /// Print errors only: no progress, no summary
    #[arg(short, long)]
    pub quiet: bool,

    /// The command to launch, with its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.filter.build()?;
    bail!("not built yet")
}
