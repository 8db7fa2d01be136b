//! `thalweg completions`: write a shell's completion script to standard output.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

/// Write the completion script of a shell to standard output
#[derive(clap::Args, Debug)]
pub struct Args {
    pub shell: Shell,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // Into memory first: the generator panics where a pipe is closed on it.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "thalweg", &mut script);
    std::io::stdout()
        .write_all(&script)
        .context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
