//! `thalweg merge`: several profiles into one, and one profile into a smaller one.

use std::path::PathBuf;
use std::process::ExitCode;

use thalweg_analysis::{Pipeline, combine, merge, prune, summary};
use thalweg_model::{OutputFile, read_file};

use crate::args::PruneArgs;
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

    #[command(flatten)]
    pub prune: PruneArgs,

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
    let thresholds = args.prune.thresholds();
    if !thresholds.is_nothing() {
        // What is told by costs and samples is told of whole trees.
        profile = Pipeline::with_sites().run(profile)?;
    }
    profile = prune(profile, &thresholds);
    output.save(&profile)?;
    if !args.quiet {
        let figures = summary(&profile);
        tell!(
            "{}: {} calls in {} contexts of {} threads",
            args.output.display(),
            count(figures.calls),
            count(figures.contexts),
            count(figures.threads),
        );
    }
    Ok(ExitCode::SUCCESS)
}
