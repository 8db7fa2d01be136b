//! `thalweg merge`: several profiles into one, and one profile into a smaller one.

use std::path::PathBuf;
use std::process::ExitCode;

use thalweg_analysis::{Thresholds, combine, merge, prune, summary};
use thalweg_model::{OutputFile, read_file};

use super::report::parse_percent;
use crate::args::parse_duration;
use crate::report::count;

/// Put several profiles into one; combine threads that came about in the same way; prune what does not matter
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The profiles to put together; one is enough to combine or prune it
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    /// Where to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,

    /// Add up threads that the same function of the same kind of thread made, and processes that ran the same program
    #[arg(long)]
    pub combine: bool,

    /// Prune contexts whose own time is less than this share of all time
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub min_coverage: Option<f64>,

    /// Prune contexts that took less than this in all, callees included (500us, 10ms, 2s)
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub min_time: Option<std::time::Duration>,

    /// Prune contexts that were called less often
    #[arg(long, value_name = "CALLS")]
    pub min_calls: Option<u64>,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let output = OutputFile::create(&args.output)?;
    let mut profiles = Vec::new();
    for file in &args.files {
        profiles.push(read_file(file)?);
    }
    let mut profile = merge(profiles)?;
    if args.combine {
        profile = combine(profile);
    }
    let thresholds = Thresholds {
        coverage: args.min_coverage.unwrap_or(0.0) / 100.0,
        time: args.min_time.map_or(0, |time| time.as_nanos() as u64),
        calls: args.min_calls.unwrap_or(0),
    };
    profile = prune(profile, &thresholds);
    output.save(&profile)?;
    if !args.quiet {
        let figures = summary(&profile);
        eprintln!(
            "{}: {} calls in {} contexts of {} threads",
            args.output.display(),
            count(figures.calls),
            count(figures.contexts),
            count(figures.threads),
        );
    }
    Ok(ExitCode::SUCCESS)
}
