//! `thalweg switch`: what the probes of single functions of an attached process do, while it runs.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use regex::Regex;
use serde::Serialize;
use thalweg_control::proc::Pid;
use thalweg_control::switch::{State, Switcher};
use thalweg_control::{detach, harvest};
use thalweg_model::Profile;

use crate::report::count;

/// Switch the probes of functions of an attached process: off, counting, timing one call in some, or all
///
/// Names are matched as with -F. What comes last on this page wins: --off, then --count, --sample, --time. Without any of
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

    /// Count calls of matching functions and time one in about sixty
    #[arg(long, value_name = "REGEX")]
    pub sample: Vec<String>,

    /// Count and time every call of matching functions
    #[arg(long, value_name = "REGEX")]
    pub time: Vec<String>,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// A state as people and files name it.
pub fn name_of(state: State) -> &'static str {
    match state {
        State::Timed => "timed",
        State::Sampled => "sampled",
        State::Counted => "counted",
        State::Off => "off",
    }
}

#[derive(Serialize)]
struct Report {
    functions: Vec<Line>,
    refused: Vec<Refused>,
    /// How long the target stood still for it.
    stop_us: f64,
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
    reason: &'static str,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pid = Pid(args.pid as i32);
    let orders = [
        (&args.off, State::Off),
        (&args.count, State::Counted),
        (&args.sample, State::Sampled),
        (&args.time, State::Timed),
    ];
    let (shared, header) = detach::attached(pid)?;
    let catalog = harvest::catalog(&shared)?;
    let name = |function: u32| {
        let known = catalog.functions.get(function as usize);
        known.map_or_else(String::new, |function| function.name.clone())
    };
    let line = |function: u32, state: State| Line {
        function: name(function),
        module: module_of(&catalog, function),
        state: name_of(state),
    };
    let mut report = Report {
        functions: Vec::new(),
        refused: Vec::new(),
        stop_us: 0.0,
    };
    if orders.iter().all(|(patterns, _)| patterns.is_empty()) {
        let states = thalweg_control::states::of_all(&shared, &header)?;
        for (function, state) in (0..).zip(&states) {
            if State::of(state.state) != State::Timed {
                report
                    .functions
                    .push(line(function, State::of(state.state)));
            }
        }
        return print(&report, args.json, "not timed");
    }
    let mut wanted: Vec<Option<State>> = vec![None; catalog.functions.len()];
    for (patterns, state) in orders {
        for pattern in patterns {
            let matches =
                Regex::new(pattern).with_context(|| format!("bad pattern '{pattern}'"))?;
            let mut any = false;
            for (function, wanted) in catalog.functions.iter().zip(&mut wanted) {
                if matches.is_match(&function.name) {
                    (*wanted, any) = (Some(state), true);
                }
            }
            if !any {
                bail!("no counted function of process {pid} matches '{pattern}'");
            }
        }
    }
    let wanted: Vec<(u32, State)> = (0..)
        .zip(wanted)
        .filter_map(|(function, state)| Some((function, state?)))
        .collect();
    let outcome = Switcher::of(pid)?.switch(&wanted)?;
    report.stop_us = outcome.stop.as_secs_f64() * 1e6;
    for (function, state) in outcome.changed {
        report.functions.push(line(function, state));
    }
    for (function, reason) in outcome.refused {
        let function = name(function);
        report.refused.push(Refused { function, reason });
    }
    print(&report, args.json, "switched")
}

fn module_of(catalog: &Profile, function: u32) -> String {
    let function = catalog.functions.get(function as usize);
    function
        .and_then(|function| catalog.modules.get(function.module as usize))
        .map_or_else(String::new, |module| module.name.clone())
}

/// More functions than this are told by their number only.
const LISTED: usize = 40;

fn print(report: &Report, json: bool, verb: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = match report.stop_us {
        us if us > 0.0 => format!(", with a stop of {us:.0} us"),
        _ => String::new(),
    };
    let number = report.functions.len();
    writeln!(out, "{} functions {verb}{stop}", count(number as u64))?;
    for line in report.functions.iter().take(LISTED) {
        writeln!(out, "  {:8} {}  {}", line.state, line.function, line.module)?;
    }
    if number > LISTED {
        writeln!(
            out,
            "  and {} more (--json lists them all)",
            number - LISTED
        )?;
    }
    for refused in report.refused.iter().take(LISTED) {
        writeln!(
            out,
            "  stays as it is: {}: {}",
            refused.function, refused.reason
        )?;
    }
    if report.refused.len() > LISTED {
        let more = report.refused.len() - LISTED;
        writeln!(out, "  and {more} more that stay as they are")?;
    }
    Ok(ExitCode::SUCCESS)
}
