//! What the figures of functions that were never off under a budget are worth, against the same work without one.
//!
//! Their calls, to the unit, against runs in which everything is counted (those that differ between such runs are the program's own doing); and of
//! those with a hundredth of all time or more the cum time, estimated where they were sampled, against a recording in which nothing else
//! is patched. A fully timed run is shown beside it, and is no truth: what its probes cost is a multiple of what is measured.
//! The whole is held against the program by itself in `looks.rs`.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use thalweg_analysis::{FunctionTotals, flat, summary};
use thalweg_model::{FuncId, ProbeState, Profile};

use super::budget::BUDGET;
use super::programs::WORK_SQL;
use super::table::{Goal, Table};
use super::truth::is_compensated;
use super::{Bench, Program, find};
use thalweg_analysis::Pipeline;

/// How far off a time may be.
const MOST_OFF: f64 = 5.0;
/// Functions below this share of all time are not compared by time.
const LEAST_SHARE: f64 = 0.01;
/// How often it runs with a budget, and with few functions; the quickest counts.
const RUNS: u32 = 3;
/// How often all calls are counted: CPython's differ in two or three ways from run to run, by where its memory lies.
const COUNTED: u32 = 8;
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

fn place(profile: &Profile, function: FuncId) -> Place {
    let function = &profile.functions[function];
    let module = &profile.modules[function.module as usize];
    (module.name.clone(), function.address)
}

impl Bench {
    pub(super) fn estimated(&self, table: &mut Table) -> anyhow::Result<()> {
        self.calibrate_once()?;
        table.heading(&format!(
            "--budget {BUDGET}: figures of functions that were never off, against the same work without a budget"
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
            let record = |options: &[&str]| self.whole(&path, arguments, options);
            let timed = record(&[])?;
            let budget = quickest(|| record(&["--budget", BUDGET]))?;
            let chosen = compared_by_time(&budget);
            let pattern = format!("^({})$", chosen.join("|"));
            let alone = quickest(|| record(&["-F", &pattern]))?;
            eprint!("\r\x1b[K{name}: all calls, {COUNTED} times");
            let mut counted = Vec::new();
            for _ in 0..COUNTED {
                counted.push(by_place(&record(&["--no-clock"])?));
            }
            eprint!("\r\x1b[K");
            states(name, &timed, &budget, table);
            compare_calls(name, &counted, &budget, table);
            compare_times(name, &timed, &budget, &alone, table);
        }
        Ok(())
    }

    /// As reports show it.
    fn whole(
        &self,
        program: &Path,
        arguments: &[&str],
        options: &[&str],
    ) -> anyhow::Result<Profile> {
        let mut command = Command::new(&self.thalweg);
        command
            .args(["record", "--no-report", "-q", "-o"])
            .arg(self.path("profile.thalweg"))
            .args(options);
        command.arg("--").arg(program).args(arguments);
        self.execute(self.with_input(command)?)?;
        let profile = thalweg_model::read_file(self.path("profile.thalweg"))?;
        let profile = Pipeline::new().run(profile)?;
        let is_right = !profile.meta.timed || is_compensated(&profile);
        ensure!(is_right, "the recording was not calibrated");
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

fn quickest(mut record: impl FnMut() -> anyhow::Result<Profile>) -> anyhow::Result<Profile> {
    let mut best = record()?;
    for _ in 1..RUNS {
        let another = record()?;
        if summary(&another).time < summary(&best).time {
            best = another;
        }
    }
    Ok(best)
}

fn never_off(profile: &Profile) -> impl Fn(FuncId) -> bool {
    let was_off = profile.switched.iter().filter(|one| one.off_ns > 0);
    let off: HashSet<FuncId> = was_off.map(|one| one.function).collect();
    move |function| !off.contains(&function)
}

/// Functions that take enough time to be compared, as patterns.
fn compared_by_time(budget: &Profile) -> Vec<String> {
    let stays = never_off(budget);
    let whole = summary(budget).time as f64;
    let rows = flat(budget).into_iter();
    let large =
        rows.filter(|row| stays(row.function) && row.total_ns as f64 >= LEAST_SHARE * whole);
    large
        .map(|row| regex::escape(&budget.functions[row.function].name))
        .collect()
}

fn off_by(a: f64, b: f64) -> f64 {
    100.0 * (a - b).abs() / b.max(1.0)
}

fn states(name: &str, timed: &Profile, budget: &Profile, table: &mut Table) {
    let states = |state: ProbeState| {
        let switched = budget.switched.iter();
        switched.filter(|one| one.state == state).count()
    };
    let (sampled, counted, gone) = (
        states(ProbeState::Sampled),
        states(ProbeState::Counted),
        states(ProbeState::Off),
    );
    // Some went along with a neighbour and were never called.
    let all = by_place(budget).len().max(sampled + counted + gone);
    table.note(&format!(
        "  {name}: of {all} functions {} are timed at the end, {sampled} sampled, {counted} counted, {gone} off; {:.1} % of all calls were counted",
        all - sampled - counted - gone,
        100.0 * summary(budget).calls as f64 / summary(timed).calls.max(1) as f64
    ));
}

/// Of functions that are called as often in all of the runs in which calls are only counted.
fn compare_calls(
    name: &str,
    counted: &[BTreeMap<Place, FunctionTotals>],
    budget: &Profile,
    table: &mut Table,
) {
    let seen = by_place(budget);
    let stays = never_off(budget);
    let off: HashSet<Place> = (0..budget.functions.len() as u32)
        .filter(|function| !stays(FuncId(*function)))
        .map(|function| place(budget, FuncId(function)))
        .collect();
    let Some((once, others)) = counted.split_first() else {
        return;
    };
    let (mut compared, mut differ) = (0, 0);
    for (place, row) in once.iter().filter(|(place, _)| !off.contains(place)) {
        let calls = |run: &BTreeMap<Place, FunctionTotals>| run.get(place).map_or(0, |r| r.calls);
        if others.iter().all(|other| calls(other) == row.calls) {
            compared += 1;
            differ += u32::from(calls(&seen) != row.calls);
        }
    }
    let goal = Goal::at_most("differ", differ.into(), 0.0);
    table.goal(&format!("{name}, calls of {compared} functions"), goal);
}

fn compare_times(
    name: &str,
    timed: &Profile,
    budget: &Profile,
    alone: &Profile,
    table: &mut Table,
) {
    let [timed, seen] = [timed, budget].map(by_place);
    let whole = summary(budget).time as f64;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (place, right) in by_place(alone) {
        // Looks know of others; and what was on a processor for so short a time that it was hardly measured tells nothing.
        if right.calls == 0 || (right.total_ns as f64) < LEAST_SHARE / 2.0 * whole {
            continue;
        }
        if let (Some(row), Some(full)) = (seen.get(&place), timed.get(&place)) {
            ours.push(off_by(row.total_ns as f64, right.total_ns as f64));
            theirs.push(off_by(full.total_ns as f64, right.total_ns as f64));
        }
    }
    let median = |figures: &mut Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(0.0)
    };
    let (usual, full) = (median(&mut ours), median(&mut theirs));
    let what = format!("{name}, cum of {} functions, the median", ours.len());
    table.goal(&what, Goal::at_most("% off", usual, MOST_OFF));
    let worst = ours.last().copied().unwrap_or(0.0);
    table.note(&format!(
        "  {name}: the worst of them is {worst:.1} % off; fully timed the median is {full:.1} %"
    ));
}
