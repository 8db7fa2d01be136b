//! `thalweg threads`: the threads of a profile, who made them, and what each did.

use std::process::ExitCode;

use anyhow::Context;

use crate::args::InputArgs;
use crate::report::{self, OutputArgs, ThreadOrder};

/// List the threads: which made which, from when to when they lived, what they did
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Order of the rows, largest first
    #[arg(short, long, value_enum, value_name = "KEY", default_value_t = ThreadOrder::Number)]
    pub sort: ThreadOrder,

    /// Show at most this many
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub limit: Option<usize>,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profile = args.input.read()?;
    let printed = args.output.print(|out, style| match args.output.json {
        true => report::print_threads_json(&profile, args.sort, args.limit, out),
        false => report::print_threads(&profile, args.sort, args.limit, out, style),
    });
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
