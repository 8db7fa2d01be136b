//! `thalweg replay`: recorded calls of a file in order, as `thalweg trace` has printed them.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use thalweg_formats::calls::Calls;

use super::calls::Where;
use super::trace::Lines;
use crate::args::InputArgs;
use crate::report::OutputArgs;

/// Print the recorded calls of a profile in order, with durations and values
///
/// What `thalweg trace -o FILE` or a recording with rules has kept.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Only calls for which this holds: 'duration > 5ms and function =~ ^parse' (as in `thalweg calls`)
    #[arg(long = "where", value_name = "EXPR")]
    pub condition: Option<String>,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.output.json {
        bail!("calls in JSON, one a line: thalweg calls --list --json");
    }
    let filter = args.condition.as_deref().map(Where::parse).transpose()?;
    let filter = filter.unwrap_or_default();
    let mut profile = args.input.read()?;
    if profile.recorded.is_empty() {
        bail!(
            "{} has no recorded calls: record some with 'thalweg trace -F REGEX -o FILE -- COMMAND', or with 'thalweg record --rule RULE'",
            args.input.origin()
        );
    }
    let unwanted: Vec<bool> = {
        let calls = Calls::new(&profile);
        let all = calls.all().iter();
        all.map(|call| !filter.holds(&calls, call)).collect()
    };
    for (call, _) in profile
        .recorded
        .calls
        .iter_mut()
        .zip(unwanted)
        .filter(|(_, unwanted)| *unwanted)
    {
        call.rule = None;
    }
    let printed = args.output.print(|out, style| {
        let mut lines = Lines::new(style);
        out.write_all(&lines.head())?;
        out.write_all(&lines.of(&Calls::new(&profile), None, |_| true))
    });
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}
