//! What the figures of a recording with a budget are worth: the same work fully timed and with `--budget`, one beside the other.
//!
//! Compared are functions that were never off: their calls, to the unit, and of those with a hundredth of all time or more the cum
//! time, estimated where they were sampled. (What a function that was off took is part of its callers' base, so bases differ by what
//! they mean.) Calls that differ between two fully timed runs are the program's own, and are left out.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::ensure;
use thalweg_analysis::{FunctionTotals, compensate, estimate, flat, summary};
use thalweg_model::{ProbeState, Profile};

use super::budget::BUDGET;
use super::programs::WORK_SQL;
use super::table::{Goal, Table};
use super::{Bench, Program, find};

/// How far off a time may be.
const MOST_OFF: f64 = 5.0;
/// Functions below this share of all time are not compared by time.
const LEAST_SHARE: f64 = 0.01;
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
            let (timed, again, budget) = (record(false)?, record(false)?, record(true)?);
            eprint!("\r\x1b[K");
            compare(name, [&timed, &again], &budget, table);
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
        command
            .env("PYTHONHASHSEED", "0")
            .stdin(File::open(self.path("estimated.sql"))?)
            .stdout(Stdio::null());
        self.execute(command)?;
        let mut profile = thalweg_model::read_file(self.path("profile.thalweg"))?;
        ensure!(compensate(&mut profile), "the recording was not calibrated");
        estimate(&mut profile);
        Ok(profile)
    }
}

fn compare(name: &str, timed: [&Profile; 2], budget: &Profile, table: &mut Table) {
    let [once, again] = timed.map(by_place);
    let seen = by_place(budget);
    let switched = budget.switched.iter();
    let off: HashMap<Place, bool> = switched
        .clone()
        .map(|one| (place(budget, one.function), one.off_ns > 0))
        .collect();
    let was_off = |place: &Place| off.get(place).copied().unwrap_or(false);
    let states = |state: ProbeState| switched.clone().filter(|one| one.state == state).count();
    let (sampled, counted, gone) = (
        states(ProbeState::Sampled),
        states(ProbeState::Counted),
        states(ProbeState::Off),
    );
    // Not those that went along with a neighbour and were never called.
    let all = seen.len().max(sampled + counted + gone);
    table.note(&format!(
        "  {name}: of {all} functions {} are timed at the end, {sampled} sampled, {counted} counted, {gone} off; {:.0} % of the calls are seen",
        all - sampled - counted - gone,
        100.0 * summary(budget).calls as f64 / summary(timed[0]).calls.max(1) as f64
    ));
    let total = |profile: &Profile| summary(profile).time as f64;
    let whole = total(timed[0]).min(total(timed[1]));
    let off_by = |a: f64, b: f64| 100.0 * (a - b).abs() / b.max(1.0);
    let goal = Goal::at_most("% off", off_by(total(budget), whole), MOST_OFF);
    table.goal(&format!("{name}, time of the whole"), goal);

    let (mut compared, mut differ, mut times, mut covered) = (0, 0, Vec::new(), 0);
    for (place, row) in &once {
        let (Some(other), false) = (again.get(place), was_off(place)) else {
            continue;
        };
        let Some(got) = seen.get(place) else {
            differ += usize::from(row.calls == other.calls);
            continue;
        };
        if row.calls == other.calls {
            compared += 1;
            differ += usize::from(got.calls != row.calls);
        }
        let cum = (row.cum.min(other.cum)) as f64;
        if cum >= LEAST_SHARE * whole {
            times.push(off_by(got.cum as f64, cum));
            let apart = (got.cum as f64 - cum).abs();
            let error = (got.cum_error + row.cum_error) as f64;
            covered += usize::from(apart <= error);
        }
    }
    let goal = Goal::at_most("differ", differ as f64, 0.0);
    table.goal(&format!("{name}, calls of {compared} functions"), goal);
    times.sort_by(f64::total_cmp);
    let (Some(middle), Some(worst)) = (times.get(times.len() / 2), times.last()) else {
        return;
    };
    let goal = Goal::at_most("% off", *middle, MOST_OFF);
    table.goal(
        &format!("{name}, cum of {} functions, the median", times.len()),
        goal,
    );
    table.note(&format!(
        "  {name}: the worst of them is {worst:.1} % off; {covered} are within the errors that reports print"
    ));
}
