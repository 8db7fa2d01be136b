//! `thalweg checkpoint`: save what an attached process has counted so far; it goes on counting.

use std::path::PathBuf;
use std::process::ExitCode;

use thalweg_model::OutputFile;
use thalweg_ptrace::proc::Pid;

use crate::args::DEFAULT_FILE;
use crate::live;
use crate::session;

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

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pid = Pid(args.pid as i32);
    let output = OutputFile::create(&args.output)?;
    let profile = session::read(pid)?;
    live::save(profile, output, !args.quiet)?;
    Ok(ExitCode::SUCCESS)
}
