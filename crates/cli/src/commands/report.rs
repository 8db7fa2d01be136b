//! `thalweg report`: read a profile and show it as a summary, a flat table or a tree.

use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;

use crate::args::InputArgs;

/// Show a profile: a summary, every function (--flat), or every calling context (--tree)
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// One row per function
    #[arg(long, conflicts_with = "tree")]
    pub flat: bool,

    /// One row per calling context
    #[arg(long)]
    pub tree: bool,

    /// Order of the rows: largest first, names from a to z
    #[arg(short, long, value_enum, value_name = "KEY")]
    pub sort: Option<SortKey>,

    /// Show at most this many rows
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub limit: Option<usize>,

    /// Leave out contexts of the tree below this share of all time (of all calls when nothing was timed)
    #[arg(long, value_name = "PERCENT", requires = "tree")]
    pub min_percent: Option<f64>,

    /// Show only functions whose name matches
    #[arg(short = 'F', long = "function", value_name = "REGEX")]
    pub keep: Vec<String>,

    /// Leave out functions whose name matches
    #[arg(short = 'N', long = "not-function", value_name = "REGEX")]
    pub leave_out: Vec<String>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    Base,
    Cum,
    Calls,
    Min,
    Max,
    Name,
}

pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    bail!("not built yet")
}
