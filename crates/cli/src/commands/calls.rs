//! `thalweg calls`: what was recorded of single calls, from a file or from a process that thalweg is attached to.

mod collector;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ArgGroup;
use thalweg_formats::{calls, spans};
use thalweg_model::OutputFile;

use crate::args::InputArgs;
use crate::report::{self, OutputArgs};
use collector::Address;

/// Show the calls that rules have chosen, with the calls that they were made by
///
/// Record them with `thalweg record --rule 'FUNCTIONS: duration > 5ms'`.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("shape").args(["tree", "list", "trace", "otlp"]))]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Each chosen call below its callers (this is so anyway)
    #[arg(long)]
    pub tree: bool,

    /// The chosen calls alone, one after the other
    #[arg(long)]
    pub list: bool,

    /// Write a trace of events for chrome://tracing and ui.perfetto.dev to this file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Send the calls as OpenTelemetry spans to this collector: http://HOST:4318
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let address = args.otlp.as_deref().map(Address::parse).transpose()?;
    let profile = args.input.read()?;
    if profile.recorded.is_empty() {
        bail!(
            "{} has no recorded calls: choose some with 'thalweg record --rule RULE'",
            args.input.origin()
        );
    }
    if let Some(path) = &args.trace {
        OutputFile::create(path)?
            .save_with(|file| calls::write_trace(&profile, std::io::BufWriter::new(file)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(address) = address {
        address.send(&spans::request(&profile))?;
        return Ok(ExitCode::SUCCESS);
    }
    let chosen = vec![true; profile.recorded.calls.len()];
    let printed = args.output.print(|out, style| match args.output.json {
        true => calls::write_lines(&profile, out),
        false => report::print_calls(&profile, &chosen, !args.list, out, style),
    });
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
