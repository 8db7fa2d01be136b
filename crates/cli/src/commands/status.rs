//! `thalweg status`: what an attached process carries, read without stopping it.

use std::process::ExitCode;

use anyhow::bail;

/// Say whether a process is attached, since when, and what it has counted so far
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The process to look at
    pub pid: u32,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    bail!("not built yet")
}
