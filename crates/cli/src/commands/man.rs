//! `thalweg man`: write the man pages, one per subcommand, from the same table as the help.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

use crate::args::Cli;

/// Write the man pages into a directory
#[derive(clap::Args, Debug)]
pub struct Args {
    pub directory: PathBuf,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), directory))
        .with_context(|| format!("cannot write man pages into {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
