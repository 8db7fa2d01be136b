//! `thalweg calls`: what was recorded of single calls, from a file or from a process that thalweg is attached to.

mod collector;
mod filter;
mod follow;
mod listed;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ArgGroup;
use thalweg_formats::calls::{self, Calls};
use thalweg_formats::spans;
use thalweg_model::OutputFile;
use thalweg_ptrace::proc::Pid;
use thalweg_views::durations::CallDurations;
use thalweg_views::write_json;

use crate::args::InputArgs;
use crate::report::{self, OutputArgs};
use collector::Address;
pub use filter::Where;

/// Show the calls that rules have chosen, with the calls that they were made by
///
/// Record them with `thalweg record --rule 'FUNCTIONS: duration > 5ms'`.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("shape").args(["tree", "list", "durations", "trace", "otlp"]))]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// Each chosen call below its callers (this is so anyway)
    #[arg(long)]
    pub tree: bool,

    /// The chosen calls alone, one after the other
    #[arg(long)]
    pub list: bool,

    /// How long the chosen calls took: a histogram for each function
    #[arg(long)]
    pub durations: bool,

    /// Write a trace of events for chrome://tracing and ui.perfetto.dev to this file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,

    /// Only calls for which this holds: 'duration > 5ms and sql =~ ^select' (duration, self, waiting, function, module, thread, rule, end,
    /// pid, tid, request, and the names of values)
    #[arg(long = "where", value_name = "EXPR")]
    pub condition: Option<String>,

    /// With -p: show each call as it ends, until Ctrl-C or until the process is detached
    #[arg(long, requires = "pid", conflicts_with_all = ["tree", "durations", "trace", "otlp"])]
    pub follow: bool,

    /// Send the calls as OpenTelemetry spans to this collector: http://HOST:4318
    #[arg(long, value_name = "URL")]
    pub otlp: Option<String>,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let address = args.otlp.as_deref().map(Address::parse).transpose()?;
    let filter = args.condition.as_deref().map(Where::parse).transpose()?;
    let filter = filter.unwrap_or_default();
    if let Some(pid) = args.input.pid
        && args.follow
    {
        let style = args.output.style();
        follow::follow(Pid(pid as i32), &filter, args.output.json, style)?;
        return Ok(ExitCode::SUCCESS);
    }
    let one_by_one = args.list || args.output.json && !args.durations;
    if args.input.pid.is_none() && args.input.by.is_none() && one_by_one {
        listed::print(&args.input, &args.output, &filter)?;
        return Ok(ExitCode::SUCCESS);
    }
    let profile = args.input.read()?;
    if profile.recorded.is_empty() {
        bail!(none_recorded(&args.input));
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
    let all = Calls::new(&profile);
    let printed = args.output.print(|out, style| {
        if args.durations {
            let wanted = all.all().iter().filter(|call| filter.holds(&all, call));
            let durations = CallDurations::new(&all, wanted);
            return match args.output.json {
                true => write_json(None, &durations, out),
                false => report::print_durations(&durations, out, style),
            };
        }
        if one_by_one {
            let mut shown = listed::Shown::new(args.output.json, style);
            shown.some(&all, &filter, out)?;
            return shown.finish(&profile, out);
        }
        let holds = all.all().iter().map(|call| filter.holds(&all, call));
        let chosen: Vec<bool> = holds.collect();
        report::print_call_tree(&profile, &chosen, out, style)
    });
    printed.context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn none_recorded(input: &InputArgs) -> String {
    format!(
        "{} has no recorded calls: choose some with 'thalweg record --rule RULE'",
        input.origin()
    )
}
