//! `thalweg collect`: the file that a copy made by `thalweg instrument` has filled, as a profile.

use std::path::PathBuf;
use std::process::ExitCode;

use thalweg_model::OutputFile;
use thalweg_region::memory::Shared;
use thalweg_snapshot::lines;
use thalweg_snapshot::snapshot::{self, ThreadRegistry};

use crate::args::DEFAULT_FILE;
use crate::live;
use crate::session::completed;

/// Turn what an instrumented program has counted into a profile
///
/// The program may have ended in whatever way, or still run.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file that it has filled: NAME.PID.thalweg-region
    pub region: PathBuf,

    /// Where to write the profile
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    /// Delete the file when the profile is saved
    #[arg(long)]
    pub remove: bool,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shared = Shared::of_region_file(&args.region)?;
    let output = OutputFile::create(&args.output)?;
    let mut registry = ThreadRegistry::default();
    let runs = shared
        .identity()
        .is_some_and(|own| !thalweg_region::memory::carriers(own).is_empty());
    let ended = match runs {
        true => {
            registry.update(&shared)?;
            None
        }
        false => Some(snapshot::last_event(&shared)?),
    };
    let profile = snapshot::take(&shared, &registry, ended)?;
    let profile = completed(profile, &mut lines::Lookup::default());
    live::save(profile, output, !args.quiet)?;
    if args.remove {
        std::fs::remove_file(&args.region)?;
    }
    Ok(ExitCode::SUCCESS)
}
