//! `thalweg completions` (hidden): write a shell's completion script to standard output.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

/// Write the completion script of a shell to standard output
#[derive(clap::Args, Debug)]
pub struct Args {
    pub shell: Shell,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    clap_complete::generate(
        args.shell,
        &mut Cli::command(),
        "thalweg",
        &mut std::io::stdout(),
    );
    Ok(ExitCode::SUCCESS)
}
