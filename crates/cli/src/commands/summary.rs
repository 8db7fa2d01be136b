//! `thalweg summary`: the properties of a whole program: graph, threads, rings, libraries, waiting.

use std::process::ExitCode;

use anyhow::Context;
use thalweg_analysis::{rolled_up, site_calls};
use thalweg_views::overview::Overview;
use thalweg_views::{Selection, SortKey, write_json};

use crate::args::{FilterArgs, InputArgs};
use crate::report::{self, OutputArgs};

/// Show what a program is like: its call graph, hottest functions, calls and path, cycles, threads, libraries, waiting
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Order of the functions, largest first [default: self, or calls when nothing was timed]
    #[arg(short, long, value_enum, value_name = "KEY")]
    pub sort: Option<SortKey>,

    /// Show at most this many rows of each table
    #[arg(short = 'n', long, value_name = "ROWS", default_value_t = 10)]
    pub limit: usize,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = args.filter.build()?;
    let profile = args.input.read_with_sites()?;
    let made = site_calls(&profile);
    let profile = rolled_up(profile);
    let mut selection = Selection::new(&profile, args.sort, SortKey::SelfTime)?;
    selection.functions = report::kept_functions(&profile, &filter);
    selection.limit = Some(args.limit);
    let overview = Overview::new(&profile, made, &selection);
    let printed = args.output.print(|out, style| match args.output.json {
        true => write_json(profile.meta.weighed_by, &overview, out),
        false => report::print_overview(&profile, &overview, selection.limit, out, style),
    });
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
