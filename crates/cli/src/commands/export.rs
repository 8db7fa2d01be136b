//! `thalweg export`: write a profile in a format that other tools read.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use thalweg_formats::json;
use thalweg_model::{OutputFile, Profile};

use crate::args::InputArgs;

/// Write a profile in a format that other tools read
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Where to write; standard output when not given
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    #[arg(long, value_enum)]
    pub format: Format,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The stable contract, schema thalweg.profile/1
    Json,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profile = args.input.read()?;
    match args.output {
        Some(path) => {
            OutputFile::create(path)?.save_with(|file| write(args.format, &profile, file))?
        }
        None => write(args.format, &profile, io::stdout().lock())
            .context("cannot write to standard output")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write(format: Format, profile: &Profile, out: impl Write) -> io::Result<()> {
    let out = BufWriter::new(out);
    match format {
        Format::Json => json::write(profile, out),
    }
}
