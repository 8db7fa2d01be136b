//! `thalweg report`: read a profile and show it as a summary, a flat table or a tree.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use thalweg_control::filter::Filter;
use thalweg_model::Profile;

use crate::args::InputArgs;
use crate::report::{self, Selection, SortKey, Style};

/// Show a profile: a summary, every function (--flat), or every calling context (--tree)
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    /// One row per function
    #[arg(long, conflicts_with = "tree")]
    pub flat: bool,

    /// One row per calling context: level, recursion level (RL), calls, times, indented name
    #[arg(long)]
    pub tree: bool,

    /// Order of the rows, largest first, names from a to z [default: base, of a tree cum, calls when nothing was timed]
    #[arg(
        short,
        long,
        value_enum,
        value_name = "KEY",
        hide_possible_values = false
    )]
    pub sort: Option<SortKey>,

    /// Show at most this many rows; of a tree, the heaviest contexts and what stands above them
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub limit: Option<usize>,

    /// Leave out contexts of the tree below this share of all time, or of all calls when nothing was timed
    /// [default: 0.5 for text without -n]
    #[arg(long, value_name = "PERCENT", requires = "tree", value_parser = parse_percent)]
    pub min_percent: Option<f64>,

    /// Show only functions whose name matches; a tree also shows what stands above them
    #[arg(short = 'F', long = "function", value_name = "REGEX")]
    pub keep: Vec<String>,

    /// Leave out functions whose name matches
    #[arg(short = 'N', long = "not-function", value_name = "REGEX")]
    pub leave_out: Vec<String>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = Filter::new(&args.keep, &args.leave_out, &[], &[])?;
    let profile = args.input.read()?;
    let default = if args.tree {
        SortKey::Cum
    } else {
        SortKey::Base
    };
    let mut selection = Selection::new(&profile, args.sort, default)?;
    selection.filter = filter;
    selection.limit = args.limit;
    selection.min_percent = args.min_percent;

    print(&args, &profile, selection).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, profile: &Profile, mut selection: Selection) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let style = Style::for_stdout();
    match (args.flat, args.tree) {
        (true, _) if args.json => report::print_flat_json(profile, &selection, &mut out)?,
        (true, _) => report::print_flat(profile, &selection, &mut out, style)?,
        (_, true) if args.json => report::print_tree_json(profile, &selection, &mut out)?,
        (_, true) => {
            selection.prune_for_reading();
            report::print_tree(profile, &selection, &mut out, style)?;
        }
        _ => {
            selection.limit.get_or_insert(report::HOTTEST_FUNCTIONS);
            if args.json {
                report::print_summary_json(profile, &selection, &mut out)?;
            } else {
                report::print_summary_of(profile, &selection, &mut out, style)?;
            }
        }
    }
    out.flush()
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>();
    number
        .ok()
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "not a share: write a number from 0 to 100".to_string())
}
