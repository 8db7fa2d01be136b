//! `thalweg switch`: what the probes of single functions of an attached process do, while it runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use regex::Regex;
use serde::Serialize;
use thalweg_instrument::call_rules::Needs;
use thalweg_instrument::detach;
use thalweg_instrument::filter::Filter;
use thalweg_instrument::switch::{Refusal, State, Switcher};
use thalweg_model::Profile;
use thalweg_ptrace::proc::Pid;
use thalweg_snapshot::snapshot;

use crate::args::StopArgs;
use crate::report::{counted, printable};

/// Switch the probes of functions of an attached process: off, counting, timing one call in some, or all
///
/// Names are matched as with -F. What comes last on this page wins: --off, then --count, --time-some, --time. Without any of
/// them, what is not timed is listed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The attached process
    pub pid: u32,

    /// Take the probes of matching functions out (may be given several times, as all of these)
    #[arg(long, value_name = "REGEX")]
    pub off: Vec<String>,

    /// Count calls of matching functions without timing them
    #[arg(long, value_name = "REGEX")]
    pub count: Vec<String>,

    /// Count calls of matching functions and time about one in 64, by chance
    #[arg(long, value_name = "REGEX")]
    pub time_some: Vec<String>,

    /// Count and time every call of matching functions
    #[arg(long, value_name = "REGEX")]
    pub time: Vec<String>,

    /// Only functions of modules (the executable, libraries) whose file name matches
    #[arg(long, value_name = "REGEX")]
    pub lib: Vec<String>,

    /// No functions of modules whose file name matches
    #[arg(long, value_name = "REGEX")]
    pub no_lib: Vec<String>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub stop: StopArgs,
}

/// A state by its name.
pub fn state_named(name: &str) -> Option<State> {
    let all = [State::Timed, State::Sampled, State::Counted, State::Off];
    all.into_iter().find(|&state| name_of(state) == name)
}

/// A state as people and files name it.
pub fn name_of(state: State) -> &'static str {
    match state {
        State::Timed => "timed",
        State::Sampled => "timed 1 in 64",
        State::Counted => "counted",
        State::Off => "off",
    }
}

/// What was switched, or is not timed.
#[derive(Serialize, Default)]
pub struct Report {
    functions: Vec<Line>,
    refused: Vec<Refused>,
    /// How long the target stood still for it.
    stop_us: f64,
    /// Nothing was done, since all that was wanted is refused.
    #[serde(skip)]
    pub is_refusal: bool,
}

#[derive(Serialize)]
struct Line {
    function: String,
    module: String,
    state: &'static str,
}

#[derive(Serialize)]
struct Refused {
    function: String,
    reason: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.stop.apply();
    let pid = Pid(args.pid as i32);
    let orders = [
        (&args.off, State::Off),
        (&args.count, State::Counted),
        (&args.time_some, State::Sampled),
        (&args.time, State::Timed),
    ];
    let modules = Filter::new(&[], &[], &args.lib, &args.no_lib)?;
    let modules = &modules;
    let named = |pattern| Which::Named(pattern, modules);
    let orders: Vec<Order> = orders
        .into_iter()
        .flat_map(|(patterns, state)| patterns.iter().map(move |p| (named(p), state)))
        .collect();
    if orders.is_empty() && !modules.is_empty() {
        bail!(
            "--lib and --no-lib say where: add --off, --count, --time-some or --time, as in --off . --lib libc"
        );
    }
    let (report, verb) = match orders.is_empty() {
        true => (not_timed(pid)?, "not timed"),
        false => (switch(pid, &orders)?, "switched"),
    };
    if report.is_refusal {
        bail!("{}", report.text(verb));
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", report.text(verb))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Which functions.
pub enum Which<'a> {
    /// By a regular expression, of the modules that the filter keeps.
    Named(&'a str, &'a Filter),
    /// By their numbers in the process's catalog.
    Numbered(&'a [u32]),
}

pub type Order<'a> = (Which<'a>, State);

/// Carries out the orders, the later ones winning.
pub fn switch(pid: Pid, orders: &[Order]) -> anyhow::Result<Report> {
    let (shared, _) = detach::attached(pid)?;
    let catalog = snapshot::catalog(&shared)?;
    let mut wanted: BTreeMap<u32, State> = BTreeMap::new();
    for (which, state) in orders {
        match which {
            Which::Named(pattern, modules) => {
                let found = named(&catalog, pattern, modules)?;
                if found.is_empty() {
                    let there = match modules.is_empty() {
                        true => "",
                        false => " in the modules that --lib and --no-lib leave",
                    };
                    bail!("no counted function of process {pid} matches '{pattern}'{there}");
                }
                wanted.extend(found.into_iter().map(|function| (function, *state)));
            }
            Which::Numbered(functions) => {
                wanted.extend(functions.iter().map(|&function| (function, *state)));
            }
        }
    }
    let wanted: Vec<(u32, State)> = wanted.into_iter().collect();
    let outcome = Switcher::of(pid)?.switch(&wanted)?;
    let is_needed = |(_, why): &(u32, Refusal)| matches!(why, Refusal::Needed(_));
    let needs = match outcome.refused.iter().any(is_needed) {
        true => Some(Needs::read(pid, &shared)?),
        false => None,
    };
    let why = |function: u32, refusal: Refusal| match (refusal, &needs) {
        (Refusal::Needed(needed), Some(needs)) if needed == function => needs.of(needed),
        (Refusal::Needed(needed), Some(needs)) => {
            format!(
                "{} hangs on it, and {}",
                name(&catalog, needed),
                needs.of(needed)
            )
        }
        (Refusal::Needed(_), None) => String::new(),
        (Refusal::Because(why), _) => why.into(),
    };
    let is_refusal = outcome.refused.len() == wanted.len();
    let changed = outcome.changed.into_iter();
    let refused = outcome.refused.into_iter();
    Ok(Report {
        is_refusal,
        functions: changed
            .map(|(function, state)| Line::new(&catalog, function, state))
            .collect(),
        refused: refused
            .map(|(function, refusal)| Refused {
                function: name(&catalog, function),
                reason: why(function, refusal),
            })
            .collect(),
        stop_us: outcome.stop.as_secs_f64() * 1e6,
    })
}

fn named(catalog: &Profile, pattern: &str, modules: &Filter) -> anyhow::Result<Vec<u32>> {
    let matches = Regex::new(pattern).with_context(|| format!("bad pattern '{pattern}'"))?;
    let all = (0..).zip(&catalog.functions);
    let found = all.filter(|(_, function)| {
        let module = &catalog.modules[function.module as usize];
        matches.is_match(&function.name) && modules.keeps_module(&module.name)
    });
    Ok(found.map(|(number, _)| number).collect())
}

fn not_timed(pid: Pid) -> anyhow::Result<Report> {
    let (shared, header) = detach::attached(pid)?;
    let catalog = snapshot::catalog(&shared)?;
    let states = thalweg_instrument::states::of_all(&shared, &header)?;
    let states = states.iter().map(|state| State::of(state.state));
    let not_timed = (0..).zip(states).filter(|(_, s)| *s != State::Timed);
    Ok(Report {
        functions: not_timed
            .map(|(function, state)| Line::new(&catalog, function, state))
            .collect(),
        ..Report::default()
    })
}

fn name(catalog: &Profile, function: u32) -> String {
    let known = catalog.functions.get(function as usize);
    known.map_or_else(String::new, |function| function.name.clone())
}

impl Line {
    fn new(catalog: &Profile, function: u32, state: State) -> Line {
        let known = catalog.functions.get(function as usize);
        let module = known.and_then(|known| catalog.modules.get(known.module as usize));
        Line {
            function: name(catalog, function),
            module: module.map_or_else(String::new, |module| module.name.clone()),
            state: name_of(state),
        }
    }
}

/// More functions than this are told by their number only.
const MAX_LISTED: usize = 40;

impl Report {
    /// As text.
    pub fn text(&self, verb: &str) -> String {
        let stop = match self.stop_us {
            us if us > 0.0 => format!(", with a stop of {us:.0} us"),
            _ => String::new(),
        };
        let number = self.functions.len();
        let mut lines = vec![match self.is_refusal {
            true => "nothing was switched".to_owned(),
            false => format!(
                "{} {verb}{stop}",
                counted(number as u64, "function", "functions")
            ),
        }];
        let shown = self.functions.iter().take(MAX_LISTED);
        lines.extend(
            shown.map(|line| format!("  {:8} {}  {}", line.state, line.function, line.module)),
        );
        if number > MAX_LISTED {
            let more = number - MAX_LISTED;
            lines.push(format!("  and {more} more (--json lists them all)"));
        }
        let refused = self.refused.iter().take(MAX_LISTED);
        lines.extend(
            refused.map(|one| format!("  stays as it is: {}: {}", one.function, one.reason)),
        );
        if self.refused.len() > MAX_LISTED {
            let more = self.refused.len() - MAX_LISTED;
            lines.push(format!("  and {more} more that stay as they are"));
        }
        let lines: Vec<_> = lines.iter().map(|line| printable(line)).collect();
        lines.join("\n")
    }
}
