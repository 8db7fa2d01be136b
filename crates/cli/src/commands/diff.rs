//! `thalweg diff`: what changed between two profiles, or between two sets of runs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use thalweg_analysis::{Pipeline, diff};
use thalweg_model::{Metric, Profile, read_file};
use thalweg_views::diff::Sides;
use thalweg_views::write_json;

use crate::args::FilterArgs;
use crate::metric;
use crate::report::{self, OutputArgs, Weights};

/// Compare two profiles, or several runs before and after, per function or per calling context
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The profile before and the profile after
    #[arg(value_name = "FILE", num_args = 2, conflicts_with_all = ["before", "after"])]
    pub files: Vec<PathBuf>,

    /// Runs of the program as it was; several tell how much runs differ anyway
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "after")]
    pub before: Vec<PathBuf>,

    /// Runs of the program as it is
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "before")]
    pub after: Vec<PathBuf>,

    /// One row per calling context instead of per function
    #[arg(long)]
    pub contexts: bool,

    /// Show what did not change, or within the noise, as well
    #[arg(long)]
    pub all: bool,

    /// Show at most this many rows [default: 30 for text]
    #[arg(short = 'n', long, value_name = "DEFAULT_ROWS")]
    pub limit: Option<usize>,

    /// Compare this metric in the place of time: alloc.bytes, live.bytes, ... of profiles recorded with --metric alloc
    #[arg(long, value_name = "METRIC", value_parser = metric::parse)]
    pub by: Option<Metric>,

    /// Times as they were measured, with what the probes cost
    #[arg(long)]
    pub raw: bool,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

const DEFAULT_ROWS: usize = 30;

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = args.filter.build()?;
    let (before, after) = match args.files.as_slice() {
        [before, after] => (vec![before.clone()], vec![after.clone()]),
        _ => (args.before.clone(), args.after.clone()),
    };
    if before.is_empty() || after.is_empty() {
        bail!(
            "name two profiles: 'thalweg diff BEFORE AFTER', or --before A1 A2 ... --after B1 B2 ..."
        );
    }
    let pipeline = Pipeline {
        by: args.by,
        raw: args.raw,
        ..Pipeline::new()
    };
    let read = |files: &[PathBuf]| -> anyhow::Result<Vec<Profile>> {
        let each = files.iter();
        each.map(|file| Ok(pipeline.run(read_file(file)?)?))
            .collect()
    };
    let (before, after) = (read(&before)?, read(&after)?);
    // Where one run has no times, times cannot be compared.
    let timed = before
        .iter()
        .chain(&after)
        .all(|profile| profile.meta.timed);
    let diff = diff(&before, &after);
    let keeps = |name: &thalweg_analysis::Name| {
        filter.keeps_function(&name.function, None) && filter.keeps_module(&name.module)
    };
    let sides = Sides {
        timed,
        before: before.len(),
        after: after.len(),
        contexts: args.contexts,
        all: args.all,
        limit: match args.output.json {
            true => args.limit,
            false => Some(args.limit.unwrap_or(DEFAULT_ROWS)),
        },
        keeps: diff.names.iter().map(keeps).collect(),
        diff: &diff,
    };
    let changes = sides.changes();
    let printed = args.output.print(|out, style| match args.output.json {
        true => write_json(args.by, &changes, out),
        false => report::print_diff(&changes, Weights::by(args.by), out, style),
    });
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
