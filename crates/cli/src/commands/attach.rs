//! `thalweg attach`: patch a running process and leave; the target carries all that later commands need.

use std::process::ExitCode;

use anyhow::bail;

use crate::args::{FilterArgs, MeasureArgs};

/// Begin to count in a running process and leave it so
///
/// `status`, `checkpoint` and `detach` find the process again later, from any shell.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The process to attach to
    pub pid: u32,

    /// Count only this thread (may be given several times)
    #[arg(short, long = "thread", value_name = "TID")]
    pub threads: Vec<u32>,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub measure: MeasureArgs,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.filter.build()?;
    bail!("not built yet")
}
