//! `thalweg report`: read a profile and show it as a summary, a table, a tree, or from the view of one function.

use std::io::{self, BufWriter, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use thalweg_analysis::{Graph, Lanes, Thresholds, prune};
use thalweg_model::{FuncId, OutputFile, Profile};
use thalweg_views::arcs::Stanzas;
use thalweg_views::callers_callees::{Around, Direction, Surroundings};
use thalweg_views::context::{Contexts, Wanted};
use thalweg_views::flat::{Callers, Flat};
use thalweg_views::graph::CallGraph;
use thalweg_views::stays::Stays;
use thalweg_views::summary::Summary;
use thalweg_views::tree::Tree;
use thalweg_views::{Selection, SortKey, write_json};

use crate::args::{FilterArgs, InputArgs, PruneArgs, parse_duration, parse_percent};
use crate::metric;
use crate::page::{self, ProfileView};
use crate::report::{self, Columns, Field, OutputArgs};

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

    /// All columns of the table of functions, also those that do not fit on the terminal; of --arcs, the least and the most
    /// own time of a call as well
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

    /// The same of functions that match: a name, or a regular expression
    #[arg(long, value_name = "REGEX")]
    pub peek: Option<String>,

    /// The call graph of all threads: functions, and calls between them
    #[arg(long)]
    pub graph: bool,

    /// The chains of calls that led to a function (a name, or a regular expression)
    #[arg(long, value_name = "FUNCTION")]
    pub callers: Option<String>,

    /// All that a function called, its contexts taken together
    #[arg(long, value_name = "FUNCTION")]
    pub callees: Option<String>,

    /// The stacks that samples found, as a tree: how many samples had each, how often it was newly seen, for how long it
    /// stayed
    #[arg(long)]
    pub samples: bool,

    /// A function, or one function's calls of another, split by thread; F@1 for threads of that nesting level, and F -> G
    /// also where F made threads that began in G
    #[arg(long, value_name = "FUNCTION | 'F -> G'")]
    pub context: Option<String>,

    /// Write the page of 'thalweg serve' as one file that needs no server
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// How many functions a pattern may mean when each of them gets a tree of its own.
const MAX_TREES: usize = 20;

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = args.filter.build()?;
    let view = &args.view;
    if view.samples && (args.input.refine.chooses() || args.input.by.is_some()) {
        bail!(
            "--samples shows stacks as they were found: --focus and the like, and --by, do not go with it"
        );
    }
    let mut lanes = Lanes::default();
    let profile = match args.sites {
        true => with_sites(&args)?,
        // A graph is pruned by itself.
        false if view.graph => args.input.read()?,
        // The page shows call sites beside what they add up to.
        false if view.html.is_some() || view.samples => {
            let (profile, seen) = args.input.read_with_lanes()?;
            lanes = seen;
            prune(profile, &args.prune.thresholds())
        }
        false => prune(args.input.read()?, &args.prune.thresholds()),
    };
    if let Some(path) = &view.html {
        metric::refuse_on_page(args.input.by)?;
        let output = OutputFile::create(path)?;
        let shown = ProfileView::new(profile, args.input.origin())
            .with_lanes(lanes)
            .with_runtime_frames(args.input.refine.runtime_frames());
        if io::stderr().is_terminal() {
            tell!("computing the answers that the page may ask for");
        }
        output.save_with(|file| page::write_html(&shown, &mut BufWriter::new(file)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let by_total = view.tree || view.callers.is_some() || view.callees.is_some();
    let default = if by_total {
        SortKey::Total
    } else {
        SortKey::SelfTime
    };
    let mut selection = Selection::new(&profile, args.sort, default)?;
    selection.functions = report::kept_functions(&profile, &filter);
    selection.limit = args.limit;
    selection.min_percent = args.min_percent;
    selection.depth = args.depth;
    if let Some(pattern) = &view.peek {
        let wanted = report::functions_matching(&profile, "--peek", pattern)?;
        let known = selection.functions.take();
        let known = known.unwrap_or_else(|| vec![true; profile.functions.len()]);
        let kept = (0..).map(FuncId).zip(known);
        let kept = kept.map(|(function, kept)| kept && wanted.contains(&function));
        selection.functions = Some(kept.collect());
    }
    let chosen = match view.samples {
        true if lanes.is_empty() => bail!(
            "this profile has no samples with their times: record it without --samples 0, --no-clock or --time all"
        ),
        true => View::Samples(lanes),
        false => View::new(&profile, view)?,
    };

    print(&args, &profile, &chosen, selection).context("cannot write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn with_sites(args: &Args) -> anyhow::Result<Profile> {
    let view = &args.view;
    if !(view.tree
        || view.arcs
        || view.peek.is_some()
        || view.callers.is_some()
        || view.callees.is_some())
    {
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
    CallersCallees(Direction, Vec<FuncId>),
    Context(Vec<Wanted>),
    /// Stacks as samples found them.
    Samples(Lanes),
}

impl View {
    fn new(profile: &Profile, args: &ViewArgs) -> anyhow::Result<View> {
        let of_function = |direction, option, pattern| {
            let mut functions = report::functions_matching(profile, option, pattern)?;
            functions.truncate(MAX_TREES);
            Ok(View::CallersCallees(direction, functions))
        };
        match (&args.callers, &args.callees, &args.context) {
            (Some(pattern), ..) => of_function(Direction::Callers, "--callers", pattern),
            (_, Some(pattern), _) => of_function(Direction::Callees, "--callees", pattern),
            (_, _, Some(text)) => Ok(View::Context(report::wanted(profile, text)?)),
            _ if args.flat => Ok(View::Flat),
            _ if args.tree => Ok(View::Tree),
            _ if args.arcs || args.peek.is_some() => Ok(View::Arcs),
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
        View::Tree | View::CallersCallees(..) if !json => report::prune_for_reading(&mut selection),
        View::Samples(_) if !json => report::prune_for_reading(&mut selection),
        View::Arcs if !json => {
            selection
                .min_percent
                .get_or_insert(report::DEFAULT_MIN_ARC_PERCENT);
        }
        _ => {}
    }
    let selection = &selection;
    let columns = &Columns {
        fields: args.fields.clone(),
        wide: args.wide,
    };
    let graph = || {
        let graph = Graph::pruned(profile, &args.prune.thresholds(), &edge_thresholds(args));
        CallGraph::new(profile, &graph, selection.limit)
    };
    let by = profile.meta.weighed_by;
    args.output.print(|out, style| match view {
        View::Summary if json => {
            write_json(by, &Summary::new(profile, selection, Callers::Listed), out)
        }
        View::Summary => report::print_summary_of(profile, selection, columns, out, style),
        View::Flat if json => write_json(by, &Flat::new(profile, selection, Callers::Listed), out),
        View::Flat => report::print_flat(profile, selection, columns, out, style),
        View::Tree if json => write_json(by, &Tree::new(profile, selection), out),
        View::Tree => report::print_tree(profile, selection, out, style),
        View::Arcs if json => write_json(by, &Stanzas::new(profile, selection), out),
        View::Arcs => report::print_arcs(profile, selection, args.wide, out, style),
        View::Graph if json => write_json(by, &graph(), out),
        View::Graph => report::print_graph(profile, &graph(), out, style),
        View::CallersCallees(direction, functions) if json => {
            let around = |&function: &FuncId| {
                Surroundings::new(profile, function, *direction, selection.depth)
            };
            let all: Vec<Surroundings> = functions.iter().map(around).collect();
            let timed = profile.meta.timed;
            write_json(by, &Around::new(timed, &all, *direction, selection), out)
        }
        View::CallersCallees(direction, functions) => {
            report::print_callers_callees(profile, functions, *direction, selection, out, style)
        }
        View::Samples(lanes) if json => write_json(by, &Stays::new(profile, lanes, selection), out),
        View::Samples(lanes) => report::print_stays(profile, lanes, selection, out, style),
        View::Context(wanted) if json => write_json(by, &Contexts::new(profile, wanted), out),
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
