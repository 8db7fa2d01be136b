//! `thalweg report`: read a profile and show it as a summary, a table, a tree, or from the view of one function.

use std::io::{self, BufWriter, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use thalweg_analysis::{Graph, Thresholds, prune};
use thalweg_model::{OutputFile, Profile};

use crate::args::{FilterArgs, InputArgs, PruneArgs, parse_duration, parse_percent};
use crate::metric;
use crate::page::{self, Subject};
use crate::report::{self, Direction, Field, OutputArgs, Selection, SortKey, Wanted};

/// Show a profile: a summary, every function (--flat), every calling context (--tree), or one function's surroundings
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    pub input: InputArgs,

    #[command(flatten)]
    pub view: ViewArgs,

    /// Order of the rows, largest first, names from a to z [default: self, of a tree total, calls when nothing was timed]
    #[arg(short, long, value_enum, value_name = "KEY")]
    pub sort: Option<SortKey>,

    /// Show at most this many rows; of a tree, the heaviest contexts and what stands above them
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub limit: Option<usize>,

    /// Leave out contexts of a tree below this share of the whole: of all time, or of all calls when nothing was timed
    /// [default: 0.5 for text without -n]; of --arcs, put arcs below this share of their function into one row
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    pub min_percent: Option<f64>,

    /// Show at most this many levels of a tree, or of callers or callees
    #[arg(long, value_name = "LEVELS")]
    pub depth: Option<u32>,

    /// Tell calls from different places apart, in --tree, --arcs, --callers and --callees of a profile recorded with
    /// --call-sites
    #[arg(long)]
    pub sites: bool,

    /// Columns of the table of functions, separated by commas
    #[arg(long, value_enum, value_name = "FIELD", value_delimiter = ',')]
    pub fields: Vec<Field>,

    /// All columns of the table of functions, also those that do not fit on the terminal
    #[arg(long, conflicts_with = "fields")]
    pub wide: bool,

    #[command(flatten)]
    pub prune: PruneArgs,

    /// Of --graph: leave out calls between functions that took less than this share of all time
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, help_heading = "Pruning")]
    pub min_edge_coverage: Option<f64>,

    /// Of --graph: leave out calls between functions that took less than this
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Pruning")]
    pub min_edge_time: Option<Duration>,

    /// Of --graph: leave out pairs of functions with fewer calls
    #[arg(long, value_name = "CALLS", help_heading = "Pruning")]
    pub min_edge_calls: Option<u64>,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// What to show. Without any of these: a summary.
#[derive(clap::Args, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Views")]
pub struct ViewArgs {
    /// One row per function
    #[arg(long)]
    pub flat: bool,

    /// One row per calling context: level, recursion level (RL), calls, times, indented name
    #[arg(long)]
    pub tree: bool,

    /// Each function between its callers and its callees: Parent, Self, Child
    #[arg(long)]
    pub arcs: bool,

    /// The call graph of all threads: functions, and calls between them
    #[arg(long)]
    pub graph: bool,

    /// The chains of calls that led to a function (a name, or a regular expression)
    #[arg(long, value_name = "FUNCTION")]
    pub callers: Option<String>,

    /// All that a function called, its contexts taken together
    #[arg(long, value_name = "FUNCTION")]
    pub callees: Option<String>,

    /// A function, or one function's calls of another, split by thread
    #[arg(long, value_name = "FUNCTION | 'F -> G'")]
    pub context: Option<String>,

    /// Write the page of 'thalweg serve' as one file that needs no server
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// How many functions a pattern may mean when each of them gets a tree of its own.
const MOST_TREES: usize = 20;

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = args.filter.build()?;
    let view = &args.view;
    let profile = match args.sites {
        true => with_sites(&args)?,
        // A graph is pruned by itself.
        false if view.graph => args.input.read()?,
        // The page shows call sites beside what they add up to.
        false if view.html.is_some() => {
            prune(args.input.read_with_sites()?, &args.prune.thresholds())
        }
        false => prune(args.input.read()?, &args.prune.thresholds()),
    };
    if let Some(path) = &view.html {
        metric::refuse_on_page(args.input.by)?;
        let output = OutputFile::create(path)?;
        let subject = Subject::new(profile, args.input.origin());
        if io::stderr().is_terminal() {
            eprintln!("computing the answers that the page may ask for");
        }
        output.save_with(|file| page::write_html(&subject, &mut BufWriter::new(file)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let by_cum = view.tree || view.callers.is_some() || view.callees.is_some();
    let default = if by_cum { SortKey::Cum } else { SortKey::Base };
    let mut selection = Selection::new(&profile, args.sort, default)?;
    selection.filter = filter;
    selection.limit = args.limit;
    selection.min_percent = args.min_percent;
    selection.depth = args.depth;
    selection.fields.clone_from(&args.fields);
    selection.wide = args.wide;
    let chosen = View::of(&profile, view)?;

    print(&args, &profile, &chosen, selection).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn with_sites(args: &Args) -> anyhow::Result<Profile> {
    let view = &args.view;
    if !(view.tree || view.arcs || view.callers.is_some() || view.callees.is_some()) {
        bail!("--sites goes with --tree, --arcs, --callers and --callees");
    }
    if !args.prune.thresholds().is_nothing() {
        bail!(
            "--sites does not go with pruning: between what is left there is no single call site"
        );
    }
    let profile = args.input.read_with_sites()?;
    if profile.sites.is_empty() {
        bail!("this profile knows no call sites: record it with --call-sites");
    }
    Ok(profile)
}

/// What to show, with its names looked up.
enum View {
    Summary,
    Flat,
    Tree,
    Arcs,
    Graph,
    Around(Direction, Vec<u32>),
    Context(Vec<Wanted>),
}

impl View {
    fn of(profile: &Profile, args: &ViewArgs) -> anyhow::Result<View> {
        let around = |direction, option, pattern| {
            let mut functions = report::meant(profile, option, pattern)?;
            functions.truncate(MOST_TREES);
            Ok(View::Around(direction, functions))
        };
        match (&args.callers, &args.callees, &args.context) {
            (Some(pattern), ..) => around(Direction::Callers, "--callers", pattern),
            (_, Some(pattern), _) => around(Direction::Callees, "--callees", pattern),
            (_, _, Some(text)) => Ok(View::Context(Wanted::parse(profile, text)?)),
            _ if args.flat => Ok(View::Flat),
            _ if args.tree => Ok(View::Tree),
            _ if args.arcs => Ok(View::Arcs),
            _ if args.graph => Ok(View::Graph),
            _ => Ok(View::Summary),
        }
    }
}

fn print(args: &Args, profile: &Profile, view: &View, mut selection: Selection) -> io::Result<()> {
    let json = args.output.json;
    match view {
        View::Summary => {
            selection.limit.get_or_insert(report::HOTTEST_FUNCTIONS);
        }
        View::Tree | View::Around(..) if !json => selection.prune_for_reading(),
        View::Arcs if !json => {
            selection
                .min_percent
                .get_or_insert(report::LEAST_ARC_PERCENT);
        }
        _ => {}
    }
    let graph = match view {
        View::Graph => Graph::pruned(profile, &args.prune.thresholds(), &edge_thresholds(args)),
        _ => Graph::default(),
    };
    let selection = &selection;
    args.output.print(|out, style| match view {
        View::Summary if json => report::print_summary_json(profile, selection, out),
        View::Summary => report::print_summary_of(profile, selection, out, style),
        View::Flat if json => report::print_flat_json(profile, selection, out),
        View::Flat => report::print_flat(profile, selection, out, style),
        View::Tree if json => report::print_tree_json(profile, selection, out),
        View::Tree => report::print_tree(profile, selection, out, style),
        View::Arcs if json => report::print_arcs_json(profile, selection, out),
        View::Arcs => report::print_arcs(profile, selection, out, style),
        View::Graph if json => report::print_graph_json(profile, &graph, selection, out),
        View::Graph => report::print_graph(profile, &graph, selection, out, style),
        View::Around(direction, functions) if json => {
            report::print_around_json(profile, functions, *direction, selection, out)
        }
        View::Around(direction, functions) => {
            report::print_around(profile, functions, *direction, selection, out, style)
        }
        View::Context(wanted) if json => report::print_context_json(profile, wanted, out),
        View::Context(wanted) => report::print_context(profile, wanted, out, style),
    })
}

fn edge_thresholds(args: &Args) -> Thresholds {
    Thresholds {
        coverage: args.min_edge_coverage.unwrap_or(0.0) / 100.0,
        time: args.min_edge_time.map_or(0, |time| time.as_nanos() as u64),
        calls: args.min_edge_calls.unwrap_or(0),
    }
}
