//! `thalweg instrument`: a copy of a program or a library with its probes inside.

use std::path::PathBuf;
use std::process::ExitCode;

use thalweg_instrument::ahead::{self, Options};

use crate::args::{FilterArgs, parse_size};
use crate::report::{bytes, count};

/// Write a copy of a program, or of a shared library, that counts its calls by itself
///
/// Whoever runs the copy needs no thalweg, no rights and no ptrace. What it counts goes to a file beside it, named after the program and
/// its process, that `thalweg collect` turns into a profile; THALWEG_OUT, THALWEG_MODE: see docs/instrument.md.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// An executable or a shared library
    pub file: PathBuf,

    /// Where to write the copy
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// Memory for the calling-context trees of each process that runs the copy; when it is full, further contexts are folded
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub memory: u64,

    /// Count calls without timing them: several times cheaper
    #[arg(long)]
    pub no_clock: bool,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,

    #[command(flatten)]
    pub filter: FilterArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        filter: args.filter.build()?,
        timed: !args.no_clock,
        memory: args.memory,
    };
    let done = ahead::instrument(&args.file, &args.output, &options)?;
    if !args.quiet {
        tell!(
            "{} functions have probes, {} are left alone (`thalweg probe` says why); {} became {}",
            count(done.functions.into()),
            count(done.skipped as u64),
            bytes(done.before),
            bytes(done.after),
        );
        tell!("run it, then: thalweg collect");
    }
    Ok(ExitCode::SUCCESS)
}
