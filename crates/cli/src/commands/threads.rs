//! `thalweg threads`: the threads of a profile, who made them, and what each did.

use std::process::ExitCode;

use anyhow::Context;
use thalweg_views::threads::{ThreadOrder, Threads};
use thalweg_views::write_json;

use crate::args::InputArgs;
use crate::report::{self, OutputArgs};

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
    let threads = Threads::new(&profile, args.sort, args.limit);
    let printed = args.output.print(|out, style| match args.output.json {
        true => write_json(profile.meta.weighed_by, &threads, out),
        false => report::print_threads(&profile, &threads, out, style),
    });
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
