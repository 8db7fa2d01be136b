//! What the figures of a recording with a budget are worth: the same work by itself, fully timed, and with `--budget`.
//!
//! The sum of all base times is held against the time on a processor that the program takes by itself. The others are of functions that were never
//! off: their calls, to the unit, against a fully timed run (those that differ between two such runs are the program's own doing); and of
//! those with a hundredth of all time or more the cum time, estimated where they were sampled. A fully timed run is no truth either: it
//! says itself how far off it may be, and what lies within that is no difference. (What a function that was off took is part of its
//! callers' base, so bases differ by what they mean.)

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use thalweg_analysis::{FunctionTotals, compensate, estimate, flat, summary};
use thalweg_model::{ProbeState, Profile};

use super::budget::BUDGET;
use super::programs::WORK_SQL;
use super::table::{Goal, Table};
use super::truth::time_on_processor;
use super::{Bench, Program, find};

/// How far off a time may be.
const MOST_OFF: f64 = 5.0;
/// Functions below this share of all time are not compared by time.
const LEAST_SHARE: f64 = 0.01;
/// How often what is not fully timed runs; the least counts.
const RUNS: u32 = 3;
/// About as much work as takes a second without probes.
const WORK: [(&str, &str, &[&str], usize); 3] = [
    ("cpython", "python3.11", &["work.py", "3000"], 0),
    ("lua", "lua5.4", &["work.lua", "3000"], 0),
    ("sqlite", "sqlite3", &[":memory:"], 150),
];

/// Module and address: numbers differ from one recording to the next.
type Place = (String, u64);

fn by_place(profile: &Profile) -> BTreeMap<Place, FunctionTotals> {
    let rows = flat(profile).into_iter();
    rows.map(|row| (place(profile, row.function), row))
        .collect()
}

fn place(profile: &Profile, function: u32) -> Place {
    let function = &profile.functions[function as usize];
    let module = &profile.modules[function.module as usize];
    (module.name.clone(), function.address)
}

impl Bench {
    pub(super) fn estimated(&self, table: &mut Table) -> anyhow::Result<()> {
        table.heading(&format!(
            "--budget {BUDGET}: figures of functions that were never off, against the same work fully timed"
        ));
        for (name, command, arguments, repeated) in WORK {
            let Some(path) = find(command) else {
                continue;
            };
            eprint!("\r\x1b[K{name}: fully timed, and with a budget");
            for known in Program::all() {
                known.write_files(&self.folder)?;
            }
            std::fs::write(self.path("estimated.sql"), WORK_SQL.repeat(repeated))?;
            let record = |budget: bool| self.whole(&path, arguments, budget);
            let mut plain = f64::INFINITY;
            for _ in 0..RUNS {
                let mut command = Command::new(&path);
                command.args(arguments);
                plain = plain.min(time_on_processor(self.with_input(command)?)?);
            }
            let (timed, again) = (record(false)?, record(false)?);
            let mut budget = record(true)?;
            for _ in 1..RUNS {
                let another = record(true)?;
                if summary(&another).time < summary(&budget).time {
                    budget = another;
                }
            }
            eprint!("\r\x1b[K");
            compare(name, plain, [&timed, &again], &budget, table);
        }
        Ok(())
    }

    /// As reports show it.
    fn whole(&self, program: &Path, arguments: &[&str], budget: bool) -> anyhow::Result<Profile> {
        let mut command = Command::new(&self.thalweg);
        command
            .args(["record", "--no-report", "-q", "-o"])
            .arg(self.path("profile.thalweg"));
        if budget {
            command.args(["--budget", BUDGET]);
        }
        command.arg("--").arg(program).args(arguments);
        self.execute(self.with_input(command)?)?;
        let mut profile = thalweg_model::read_file(self.path("profile.thalweg"))?;
        ensure!(compensate(&mut profile), "the recording was not calibrated");
        estimate(&mut profile);
        Ok(profile)
    }

    fn with_input(&self, mut command: Command) -> anyhow::Result<Command> {
        command
            .current_dir(&self.folder)
            .env("PYTHONHASHSEED", "0")
            .stdin(File::open(self.path("estimated.sql"))?);
        Ok(command)
    }
}

fn compare(name: &str, plain: f64, timed: [&Profile; 2], budget: &Profile, table: &mut Table) {
    let [once, again] = timed.map(by_place);
    let seen = by_place(budget);
    let switched = budget.switched.iter();
    let off: HashSet<Place> = switched
        .clone()
        .filter(|one| one.off_ns > 0)
        .map(|one| place(budget, one.function))
        .collect();
    let states = |state: ProbeState| switched.clone().filter(|one| one.state == state).count();
    let (sampled, counted, gone) = (
        states(ProbeState::Sampled),
        states(ProbeState::Counted),
        states(ProbeState::Off),
    );
    // Some went along with a neighbour and were never called.
    let all = seen.len().max(sampled + counted + gone);
    table.note(&format!(
        "  {name}: of {all} functions {} are timed at the end, {sampled} sampled, {counted} counted, {gone} off; {:.1} % of all calls were counted",
        all - sampled - counted - gone,
        100.0 * summary(budget).calls as f64 / summary(timed[0]).calls.max(1) as f64
    ));
    let total = |profile: &Profile| summary(profile).time as f64;
    let off_by = |a: f64, b: f64| 100.0 * (a - b).abs() / b.max(1.0);
    let goal = Goal::at_most("% off plain", off_by(total(budget), plain), MOST_OFF);
    table.goal(&format!("{name}, time of the whole"), goal);

    let (mut compared, mut differ) = (0, 0);
    let (mut apart, mut beyond) = (Vec::new(), Vec::new());
    let whole = total(timed[0]).min(total(timed[1]));
    for (place, row) in once.iter().filter(|(place, _)| !off.contains(place)) {
        let Some(other) = again.get(place) else {
            continue;
        };
        let got = seen.get(place).copied().unwrap_or_default();
        if row.calls == other.calls {
            compared += 1;
            differ += usize::from(got.calls != row.calls);
        }
        let least = if row.cum < other.cum { row } else { other };
        let cum = least.cum as f64;
        if cum >= LEAST_SHARE * whole {
            let difference = (got.cum as f64 - cum).abs();
            let known = (got.cum_error + least.cum_error) as f64;
            apart.push(100.0 * difference / cum);
            beyond.push(100.0 * (difference - known).max(0.0) / cum);
        }
    }
    let goal = Goal::at_most("differ", differ as f64, 0.0);
    table.goal(&format!("{name}, calls of {compared} functions"), goal);
    let median = |figures: &mut Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(0.0)
    };
    let (usual, usual_beyond) = (median(&mut apart), median(&mut beyond));
    let goal = Goal::at_most("% beyond the errors", usual_beyond, MOST_OFF);
    let what = format!("{name}, cum of {} functions of 1 % and more", beyond.len());
    table.goal(&what, goal);
    let within = beyond.iter().filter(|figure| **figure <= MOST_OFF).count();
    table.note(&format!(
        "  {name}: {within} of them are within the errors that both reports print, or at most {MOST_OFF} % beyond; the median is {usual:.1} % from the fully timed run's"
    ));
}
