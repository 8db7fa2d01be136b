//! `thalweg probe`: what would be patched, how, and what would be skipped and why. Touches nothing.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::ArgGroup;

use crate::args::FilterArgs;

/// Say what would be patched in a file or a running process, how, and what would be skipped and why
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("target").required(true).args(["file", "pid"]))]
pub struct Args {
    /// An executable or a shared library
    pub file: Option<PathBuf>,

    /// Every module of this running process
    #[arg(short, long)]
    pub pid: Option<u32>,

    #[command(flatten)]
    pub filter: FilterArgs,

    /// List each skipped function with its reason
    #[arg(long)]
    pub skipped: bool,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.filter.build()?;
    bail!("not built yet")
}
