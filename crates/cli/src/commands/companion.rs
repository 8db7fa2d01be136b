//! `thalweg push`, `query`, `fleet`, `store` and `agent`: handed over to `thalweg-fleet`, a program
//! of its own, because the engine behind it is larger than all the rest. It has the options and
//! their help.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

const PROGRAM: &str = "thalweg-fleet";

/// Put profiles into a store: a directory, or s3://, gs://, az:// (with thalweg-fleet)
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct PushArgs {
    #[command(flatten)]
    rest: Rest,
}

/// Ask a store of profiles in SQL (with thalweg-fleet)
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct QueryArgs {
    #[command(flatten)]
    rest: Rest,
}

/// Ready questions to a store: top, diff, trend, find (with thalweg-fleet)
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct FleetArgs {
    #[command(flatten)]
    rest: Rest,
}

/// Look after a store: check, compact, expire (with thalweg-fleet)
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct StoreArgs {
    #[command(flatten)]
    rest: Rest,
}

/// Record processes of this host again and again, into a store (with thalweg-fleet)
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct AgentArgs {
    #[command(flatten)]
    rest: Rest,
}

#[derive(clap::Args, Debug)]
struct Rest {
    /// As thalweg-fleet takes them; --help lists them
    #[arg(
        value_name = "OPTIONS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    rest: Vec<OsString>,
}

pub fn push(args: PushArgs) -> anyhow::Result<ExitCode> {
    hand_over("push", args.rest)
}

pub fn query(args: QueryArgs) -> anyhow::Result<ExitCode> {
    hand_over("query", args.rest)
}

pub fn fleet(args: FleetArgs) -> anyhow::Result<ExitCode> {
    hand_over("fleet", args.rest)
}

pub fn store(args: StoreArgs) -> anyhow::Result<ExitCode> {
    hand_over("store", args.rest)
}

pub fn agent(args: AgentArgs) -> anyhow::Result<ExitCode> {
    hand_over("agent", args.rest)
}

/// This process becomes the other program.
fn hand_over(command: &str, rest: Rest) -> anyhow::Result<ExitCode> {
    let program = find()?;
    let error = Command::new(&program).arg(command).args(rest.rest).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}

/// Beside this program, or where the shell would look.
fn find() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(|own| own.parent());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside
        .map(PathBuf::from)
        .into_iter()
        .chain(std::env::split_paths(&path));
    let found = folders
        .filter(|folder| folder.as_os_str() != OsStr::new(""))
        .map(|folder| folder.join(PROGRAM))
        .find(|program| program.is_file());
    let Some(found) = found else {
        bail!(
            "this needs {PROGRAM}, which is neither beside thalweg nor on PATH: \
             cargo build --release --manifest-path crates/fleet/Cargo.toml --target-dir target"
        );
    };
    Ok(found)
}
