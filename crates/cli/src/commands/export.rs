//! `thalweg export`: write a profile in a format that other tools read.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use thalweg_analysis::prune;
use thalweg_formats::{
    callgrind, callgrind_blocks, csv, firefox, folded, gcov, json, lcov, otlp, parquet, pprof,
    speedscope, stacks,
};
use thalweg_model::{OutputFile, Profile};

use super::graph;
use crate::annotate;
use crate::args::{InputArgs, PruneArgs, Whether, named};
use crate::report::printable;

/// Write a profile in a format that other tools read
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Where to write; standard output when not given, or when it is -
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    #[arg(short, long, value_enum)]
    pub format: Format,

    #[command(flatten)]
    pub prune: PruneArgs,

    /// Everything: folded, speedscope and firefox otherwise leave out contexts with less than 0.01 % of all time
    #[arg(long, help_heading = "Pruning")]
    pub all: bool,
}

/// Formats that write whole stacks out would be hundreds of megabytes of what nobody can see.
const DEFAULT_COVERAGE: f64 = 1e-4;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The stable contract, schema thalweg.profile/1
    Json,
    /// Gzipped profile.proto: go tool pprof and most continuous profilers
    Pprof,
    /// KCachegrind and callgrind_annotate
    Callgrind,
    /// One line per stack: flame graph scripts
    Folded,
    /// speedscope.app
    Speedscope,
    /// profiler.firefox.com
    Firefox,
    /// A table with a row per calling context
    Csv,
    /// The same table for duckdb, pandas, Spark
    Parquet,
    /// OpenTelemetry profiles, one ProfilesData message
    Otlp,
    /// lcov's tracefile: genhtml makes pages of it; of profiles with blocks
    Lcov,
    /// gcov's JSON; of profiles with blocks
    Gcov,
    /// The call graph as a picture; 'thalweg graph' has more to choose from
    Svg,
    /// The call graph for graphviz
    Dot,
}

pub fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    // What was recorded, unless told otherwise.
    args.input.refine.fold_runtime.get_or_insert(Whether::Off);
    let profile = match args.format.knows_sites() {
        true => args.input.read_with_sites()?,
        false => args.input.read()?,
    };
    refuse_by(args.format, &profile)?;
    let mut thresholds = args.prune.thresholds();
    let before = contexts(&profile);
    let usual = thresholds.is_nothing() && !args.all && args.format.has_whole_stacks();
    if usual && profile.meta.timed {
        thresholds.coverage = DEFAULT_COVERAGE;
    }
    let profile = prune(profile, &thresholds);
    if usual && contexts(&profile) < before {
        tell!(
            "contexts with less than 0.01 % of all time are left out, as [pruned] of their callers: --all has them"
        );
    }
    check(args.format, &profile)?;
    if args.format == Format::Folded
        && let Some(note) = stacks::unmarked_bounds(&profile)
    {
        tell!("{}", printable(&note));
    }
    match named(args.output) {
        Some(path) => {
            OutputFile::create(path)?.save_with(|file| write(args.format, &profile, file))?
        }
        None => {
            if args.format.is_binary() && io::stdout().is_terminal() {
                bail!("this format is binary and would garble the terminal: name a file with -o");
            }
            write(args.format, &profile, io::stdout()).context("cannot write to standard output")?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn contexts(profile: &Profile) -> usize {
    let threads = thalweg_analysis::threads(profile);
    threads.map(|(_, thread)| thread.nodes.len()).sum()
}

impl Format {
    fn has_whole_stacks(self) -> bool {
        matches!(self, Format::Folded | Format::Speedscope | Format::Firefox)
    }

    /// Others would have several rows that look the same.
    fn knows_sites(self) -> bool {
        matches!(self, Format::Json | Format::Pprof | Format::Callgrind)
    }

    fn is_binary(self) -> bool {
        matches!(self, Format::Pprof | Format::Parquet | Format::Otlp)
    }
}

/// Formats that hold every metric name theirs: none stands in the place of time.
fn refuse_by(format: Format, profile: &Profile) -> anyhow::Result<()> {
    let holds_all = matches!(format, Format::Json | Format::Csv | Format::Parquet);
    if let Some(metric) = profile.meta.weighed_by.filter(|_| holds_all) {
        bail!(
            "json, csv and parquet hold every metric of the profile: leave out '--by {}'",
            metric.name()
        );
    }
    Ok(())
}

/// Refuses, before anything is written, what the format cannot hold.
fn check(format: Format, profile: &Profile) -> anyhow::Result<()> {
    match format {
        Format::Lcov | Format::Gcov if profile.blocks.is_empty() => {
            bail!("this format holds lines: record the profile with `thalweg record --blocks`")
        }
        Format::Lcov | Format::Gcov => {}
        Format::Pprof | Format::Folded | Format::Speedscope | Format::Otlp => {
            stacks::check_depth(profile)?
        }
        Format::Firefox => firefox::check_times(profile)?,
        Format::Json
        | Format::Callgrind
        | Format::Csv
        | Format::Parquet
        | Format::Svg
        | Format::Dot => {}
    }
    Ok(())
}

fn write(format: Format, profile: &Profile, out: impl Write) -> io::Result<()> {
    let out = BufWriter::new(out);
    match format {
        Format::Json => json::write(profile, out),
        Format::Pprof => pprof::write(profile, out),
        Format::Callgrind if !profile.blocks.is_empty() => {
            callgrind_blocks::write(profile, &annotate::read_all(profile), out)
        }
        Format::Callgrind => callgrind::write(profile, out),
        Format::Lcov => lcov::write(profile, &annotate::read_all(profile), out),
        Format::Gcov => gcov::write(profile, &annotate::read_all(profile), out),
        Format::Folded => folded::write(profile, out),
        Format::Speedscope => speedscope::write(profile, out),
        Format::Firefox => firefox::write(profile, out),
        Format::Csv => csv::write(profile, out),
        Format::Parquet => parquet::write(profile, out),
        Format::Otlp => otlp::write(profile, out),
        Format::Svg => graph::write_default(profile, graph::Format::Svg, out),
        Format::Dot => graph::write_default(profile, graph::Format::Dot, out),
    }
}
