//! `thalweg collect`: the file that a copy made by `thalweg instrument` has filled, as a profile.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use thalweg_abi::REGION_SUFFIX;
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
    /// The file that it has filled: NAME.PID.thalweg-region [default: the only one here]
    pub region: Option<PathBuf>,

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
    let region = match args.region {
        Some(region) => region,
        None => only_region(Path::new("."))?,
    };
    let shared = Shared::of_region_file(&region)?;
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
        std::fs::remove_file(&region)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The file that is meant where nobody names one.
fn only_region(directory: &Path) -> anyhow::Result<PathBuf> {
    let entries = std::fs::read_dir(directory).context("cannot list this directory")?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut regions: Vec<String> = names.filter(|name| name.ends_with(REGION_SUFFIX)).collect();
    regions.sort();
    match &regions[..] {
        [only] => Ok(directory.join(only)),
        [] => bail!(
            "there is no *{REGION_SUFFIX} here: run a copy that 'thalweg instrument' has made, or name its file"
        ),
        several => bail!(
            "there are {} files of instrumented programs here, name one: {}{}",
            several.len(),
            several[..several.len().min(MAX_NAMED_REGIONS)].join(", "),
            if several.len() > MAX_NAMED_REGIONS {
                ", ..."
            } else {
                ""
            }
        ),
    }
}

const MAX_NAMED_REGIONS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_region_of_a_directory_needs_no_name() {
        let directory =
            std::env::temp_dir().join(format!("thalweg-regions-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let told = || only_region(&directory).map_err(|error| error.to_string());
        assert!(told().unwrap_err().contains("there is no *.thalweg-region"));
        std::fs::write(directory.join("a.1.thalweg-region"), "").unwrap();
        std::fs::write(directory.join("a.thalweg"), "").unwrap();
        assert_eq!(told(), Ok(directory.join("a.1.thalweg-region")));
        std::fs::write(directory.join("b.2.thalweg-region"), "").unwrap();
        let several = told().unwrap_err();
        assert!(
            several.contains("a.1.thalweg-region, b.2.thalweg-region"),
            "{several}"
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
