//! `thalweg-fleet`: what thalweg does with many machines. `thalweg push`, `query`, `fleet`, `store`, `agent` and `collect` hand
//! over to it; it is a program of its own because the engine behind it is larger than all the rest of thalweg.
#![forbid(unsafe_code)]

/// Tells the user, on standard error; where nobody can be told the work goes on.
macro_rules! tell {
    ($($what:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($what)*);
    }};
}

mod agent;
mod contexts;
mod costs;
mod credentials;
mod fleet;
mod hooks;
mod labels;
mod merged;
mod object;
mod output;
mod overlay;
mod panics;
mod place;
mod push;
mod query;
mod rows;
mod schema;
mod session;
mod store;
mod udf;
mod upkeep;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Every error of ours; clap uses the same for a wrong command line.
const EXIT_ERROR: u8 = 2;

/// Profiles of many machines: put into a store, asked in SQL.
#[derive(Parser, Debug)]
#[command(
    name = "thalweg-fleet",
    bin_name = "thalweg",
    version,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Push(push::Args),
    Query(query::Args),
    Fleet(fleet::Args),
    Store(upkeep::Args),
    Agent(Box<agent::Args>),
}

fn main() -> ExitCode {
    panics::note();
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(run(cli.command)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(status) => status,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Names of files and of what is in them stand in it.
            let told = output::printable_lines(&format!("{error:#}"));
            tell!("thalweg: {told}");
            ExitCode::from(EXIT_ERROR)
        }
    }
}

async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Push(args) => push::run(args).await,
        Command::Query(args) => query::run(args).await,
        Command::Fleet(args) => fleet::run(args).await,
        Command::Store(args) => upkeep::run(args).await,
        Command::Agent(args) => agent::run(*args).await,
    }
}

/// Whoever read our output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = cause
            .downcast_ref::<std::io::Error>()
            .map(std::io::Error::kind);
        kind == Some(std::io::ErrorKind::BrokenPipe)
    })
}
