//! `thalweg checkpoint`: save what an attached process has counted so far; it goes on counting.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use crate::args::DEFAULT_FILE;

/// Save what an attached process has counted so far, and let it go on
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The attached process
    pub pid: u32,

    /// Where to write the profile
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    bail!("not built yet")
}
