//! `thalweg import`: other tools' data as a profile.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use thalweg_formats::import;
use thalweg_model::OutputFile;

use crate::args::DEFAULT_FILE;
use crate::report::printable;

/// Make a profile from another tool's data: pprof, callgrind, folded stacks, perf script, Chrome's traces
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file to read, gzipped or not; - for standard input
    pub file: PathBuf,

    /// Where to write the profile
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    /// What the file is [default: guessed from how it begins]
    #[arg(short, long, value_enum)]
    pub format: Option<Format>,

    /// What one count of a folded stack is
    #[arg(long, value_enum, default_value = "samples")]
    pub unit: Unit,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Pprof,
    Callgrind,
    Folded,
    /// Text printed by perf script
    Perf,
    /// Entries and exits in Chrome's JSON, as uftrace dump --chrome writes them
    Chrome,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Samples,
    Ns,
    Us,
    Ms,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let format = args.format.map(|format| match format {
        Format::Pprof => import::Format::Pprof,
        Format::Callgrind => import::Format::Callgrind,
        Format::Folded => import::Format::Folded,
        Format::Perf => import::Format::PerfScript,
        Format::Chrome => import::Format::Chrome,
    });
    let unit = match args.unit {
        Unit::Samples => import::Unit::Samples,
        Unit::Ns => import::Unit::Nanoseconds,
        Unit::Us => import::Unit::Microseconds,
        Unit::Ms => import::Unit::Milliseconds,
    };
    let name = args.file.display().to_string();
    let read = match name.as_str() {
        "-" => import::read(std::io::stdin().lock(), format, unit),
        _ => {
            let file = File::open(&args.file).with_context(|| format!("cannot open {name}"))?;
            import::read(file, format, unit)
        }
    };
    let (format, profile) = read.with_context(|| format!("cannot import {name}"))?;
    let output = OutputFile::create(&args.output)?;
    let path = output.path().display().to_string();
    output.save(&profile)?;
    if !args.quiet {
        let threads: usize = profile.processes.iter().map(|p| p.threads.len()).sum();
        let contexts: usize = profile
            .processes
            .iter()
            .flat_map(|process| &process.threads)
            .map(|thread| thread.nodes.len())
            .sum();
        tell!(
            "{format:?}: {} functions, {contexts} contexts, {threads} threads, saved as {path}",
            profile.functions.len()
        );
        for note in &profile.notes {
            tell!("{}", printable(note));
        }
    }
    Ok(ExitCode::SUCCESS)
}
