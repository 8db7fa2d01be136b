//! `thalweg export`: write a profile in a format that other tools read.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;

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
    /// The stable contract, schema `thalweg.profile/1`
    Json,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    bail!("not built yet: {:?}", args.input.path())
}
