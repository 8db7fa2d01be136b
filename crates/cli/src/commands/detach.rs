//! `thalweg detach`: restore every patched byte of an attached process; optionally save what it counted.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

/// Restore an attached process to what it was before
///
/// Also cleans a process whose controller was killed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The attached process
    pub pid: u32,

    /// Save the profile here first; without this option what was counted is dropped
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    bail!("not built yet")
}
