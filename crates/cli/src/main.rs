//! The `thalweg` command: parse the arguments, run one subcommand, turn what came of it into an exit status.
#![forbid(unsafe_code)]

/// Tells the user, on standard error. Where nobody can be told (a log on a full disk, a closed pipe) the work goes on:
/// `eprintln` would end it where it stands, with a target half restored and a profile that is not saved.
macro_rules! tell {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($what)*);
    }};
}

mod annotate;
mod args;
mod calibration;
mod checkpoints;
mod commands;
mod cycles;
mod live;
mod metric;
mod page;
mod recording;
mod report;
mod serve;
mod session;
mod sidecar;
mod top;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

/// Every error of ours; clap uses the same for a wrong command line.
const EXIT_ERROR: u8 = 2;

fn main() -> ExitCode {
    thalweg_region::clock::began();
    live::outlive_file_limits();
    let cli = Cli::parse();
    commands::cache::enable();
    let result = match cli.command {
        Some(command) => run(command),
        None => commands::begin::run(),
    };
    thalweg_instrument::cache::finish();
    match result {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Names of the target's and of files stand in it.
            let told = report::printable_lines(&format!("{error:#}"));
            tell!("thalweg: {told}");
            ExitCode::from(EXIT_ERROR)
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Record(args) => commands::record::run(args),
        Command::Attach(args) => commands::attach::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::Checkpoint(args) => commands::checkpoint::run(args),
        Command::Detach(args) => commands::detach::run(args),
        Command::Switch(args) => commands::switch::run(args),
        Command::Probe(args) => commands::probe::run(args),
        Command::Instrument(args) => commands::instrument::run(args),
        Command::Collect(args) => commands::collect::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Annotate(args) => commands::annotate::run(args),
        Command::Summary(args) => commands::summary::run(args),
        Command::Threads(args) => commands::threads::run(args),
        Command::Calls(args) => commands::calls::run(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Replay(args) => commands::replay::run(args),
        Command::Rules(args) => commands::rules::run(args),
        Command::Diff(args) => commands::diff::run(args),
        Command::Merge(args) => commands::merge::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Import(args) => commands::import::run(args),
        Command::Graph(args) => commands::graph::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Push(args) => commands::companion::push(args),
        Command::Query(args) => commands::companion::query(args),
        Command::Fleet(args) => commands::companion::fleet(args),
        Command::Store(args) => commands::companion::store(args),
        Command::Agent(args) => commands::companion::agent(args),
        Command::Cache(args) => commands::cache::run(args),
        Command::Calibrate(args) => commands::calibrate::run(args),
        Command::Man(args) => commands::man::run(args),
        Command::Completions(args) => commands::completions::run(args),
    }
}

/// Whoever read our output has seen enough (`thalweg report | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let plain = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        let of_json = cause.downcast_ref::<serde_json::Error>();
        let kind = plain.or_else(|| of_json.and_then(serde_json::Error::io_error_kind));
        kind == Some(io::ErrorKind::BrokenPipe)
    })
}
