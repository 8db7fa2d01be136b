//! How true the figures are from which the probes' cost was taken out: programs run by themselves and with everything patched, by turns, and
//! the sum of all base times is held against the time on a processor that they take by themselves; the share of each of the ten hottest
//! functions against what `perf` sees when it looks at the program by itself.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use thalweg_analysis::{FunctionTotals, flat, summary, total_cost};
use thalweg_model::Profile;

use super::programs::{Program, TRUTH};
use super::sampled::{Places, Sampled};
use super::table::{Goal, Table};
use super::{Bench, find};
use crate::args::as_shown;
use crate::calibration::Calibration;

/// Of so many functions the share is looked at.
const HOTTEST: usize = 10;
/// Looks at a program until a share is known to about a point, and how much it differs from run to run.
const LOOKS: u64 = 3000;
const LEAST_RUNS: u32 = 4;
const MOST_RUNS: u32 = 80;

/// What the goals are.
pub(super) const MOST_OFF: f64 = 0.05;
const MOST_POINTS: f64 = 3.0;

/// What a sample may be off by chance.
const TWO_SIGMA: f64 = 2.0;

/// Of one program, in nanoseconds.
struct Outcome {
    calls: u64,
    truth: f64,
    raw: f64,
    compensated: f64,
    error: f64,
    shares: Option<Shares>,
}

/// Of the functions with most time of their own.
#[derive(Default)]
pub(super) struct Shares {
    pub functions: u32,
    /// The largest difference of a share of the whole to the truth, in points, as measured and compensated, and whose it is.
    pub raw: f64,
    pub compensated: f64,
    pub whose: String,
    /// By how many points that function's share differs from run to run, as a standard deviation.
    pub varies: f64,
    /// Whose cum is farther from the truth than its error says.
    pub uncovered: u32,
}

impl Bench {
    pub fn truth(&self, table: &mut Table) -> anyhow::Result<()> {
        self.build_truth()?;
        eprint!("\r\x1b[Kcalibrating");
        let calibration = Calibration::measure()?;
        calibration.keep()?;
        table.heading(&format!(
            "truth: whole programs' time, ms, as measured and without the {:.1} ns of a call's probes",
            calibration.per_call()
        ));
        for program in TRUTH {
            let Some(outcome) = self.true_program(program)? else {
                table.heading(&format!("{} is not installed", program.command));
                continue;
            };
            outcome.rows(program, table);
        }
        Ok(())
    }

    pub(super) fn build_truth(&self) -> anyhow::Result<()> {
        let source = self.path("truth.c");
        fs::write(&source, super::programs::TRUTH_C)
            .context("cannot write the benchmark's source")?;
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-pthread", "-o"])
            .arg(self.path("truth"))
            .arg(source);
        self.execute(gcc).context("the benchmark needs gcc")?;
        Ok(())
    }

    /// One that was built here, or is installed.
    pub(super) fn find_program(&self, program: &Program) -> Option<PathBuf> {
        let own = self.path(program.command);
        let own = own.is_file().then_some(own);
        own.or_else(|| find(program.command))
    }

    fn true_program(&self, program: &Program) -> anyhow::Result<Option<Outcome>> {
        let Some(path) = self.find_program(program) else {
            return Ok(None);
        };
        let turns = self.by_turns(program, &path, &[])?;
        let (truth, raw_profile) = (turns.plain, turns.raw);
        let profile = as_shown(raw_profile.clone(), None, false)?;
        ensure!(is_compensated(&profile), "the recording was not calibrated");
        let shares = self.shares(program, path, truth, &raw_profile, &profile)?;
        eprint!("\r\x1b[K");
        Ok(Some(Outcome {
            calls: summary(&profile).calls,
            truth,
            raw: summary(&raw_profile).time as f64,
            compensated: summary(&profile).time as f64,
            error: total_cost(&profile).map_or(0.0, |(_, error)| error),
            shares,
        }))
    }

    pub(super) fn plain(&self, program: &Program, path: PathBuf) -> Command {
        let mut command = Command::new(path);
        command.args(program.arguments).current_dir(&self.folder);
        for (name, value) in SAME_EVERY_TIME {
            command.env(name, value);
        }
        command
    }

    pub(super) fn recorded(
        &self,
        program: &Program,
        path: PathBuf,
        options: &[&str],
    ) -> anyhow::Result<Profile> {
        let file = self.path("truth.thalweg");
        let plain = self.plain(program, path);
        let mut command = Command::new(&self.thalweg);
        command
            .args(["record", "--no-report", "--no-calibrate", "-q", "-o"])
            .arg(&file)
            .args(options)
            .arg("--")
            .arg(plain.get_program())
            .args(plain.get_args());
        for (name, value) in SAME_EVERY_TIME {
            command.env(name, value);
        }
        command.stdout(Stdio::null());
        self.execute(command)?;
        Ok(thalweg_model::read_file(&file)?)
    }

    pub(super) fn shares(
        &self,
        program: &Program,
        path: PathBuf,
        truth: f64,
        raw: &Profile,
        compensated: &Profile,
    ) -> anyhow::Result<Option<Shares>> {
        if find("perf").is_none() {
            eprintln!("\r\x1b[Kperf is not installed: shares are left out");
            return Ok(None);
        }
        let places = Places::of(raw);
        let mut sampled = Sampled::default();
        for run in 0..MOST_RUNS {
            if sampled.samples >= LOOKS && run >= LEAST_RUNS {
                break;
            }
            eprint!("\r\x1b[Kperf, run {}: {}", run + 1, program.name);
            let plain = self.plain(program, path.clone());
            let looked = self.asked(program, || {
                sampled.look(&plain, &self.path("perf.data"), &places)
            });
            if let Err(error) = looked {
                eprintln!("\r\x1b[Kshares are left out: {error:#}");
                return Ok(None);
            }
        }
        let (raw_whole, raw) = (summary(raw).time.max(1) as f64, flat(raw));
        let whole = summary(compensated).time.max(1) as f64;
        let rows = flat(compensated);
        let row = |rows: &[FunctionTotals], function| {
            let row = rows.iter().find(|row| row.function == function);
            row.map_or((0.0, 0.0), |row| (row.cum as f64, row.cum_error as f64))
        };
        let mut shares = Shares::default();
        for function in sampled.hottest(HOTTEST) {
            let true_share = sampled.cum_share(function);
            let points = |share: f64| 100.0 * (share - true_share).abs();
            let (cum, error) = row(&rows, function);
            let (raw_cum, _) = row(&raw, function);
            shares.functions += 1;
            shares.raw = f64::max(shares.raw, points(raw_cum / raw_whole));
            if points(cum / whole) >= shares.compensated {
                shares.compensated = points(cum / whole);
                let name = &compensated.functions[function as usize].name;
                shares.whose.clone_from(name);
                shares.varies = 100.0 * sampled.deviation(function);
            }
            let by_chance = TWO_SIGMA * sampled.deviation(function);
            let off = (cum - truth * true_share).abs();
            shares.uncovered += u32::from(off > error + truth * by_chance);
        }
        Ok(Some(shares))
    }
}

/// Programs that shuffle something by chance, or look at the language, do so no longer.
const SAME_EVERY_TIME: [(&str, &str); 4] = [
    ("LC_ALL", "C"),
    ("PYTHONHASHSEED", "0"),
    ("PERL_HASH_SEED", "0"),
    ("PERL_PERTURB_KEYS", "0"),
];

/// So that the recordings do not do it.
pub(super) fn calibrate_once() -> anyhow::Result<()> {
    if Calibration::kept().is_none() {
        eprint!("\r\x1b[Kcalibrating");
        Calibration::measure()?.keep()?;
    }
    Ok(())
}

/// Whether what the probes cost was known, and is no longer in the figures.
pub(super) fn is_compensated(profile: &Profile) -> bool {
    profile.meta.costs.is_some_and(|costs| costs.taken_out)
}

/// Nanoseconds that a command and all that it starts were on a processor.
pub(super) fn time_on_processor(mut command: Command) -> anyhow::Result<f64> {
    let used = || -> anyhow::Result<i64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok(usage.user_time().num_nanoseconds() + usage.system_time().num_nanoseconds())
    };
    let before = used()?;
    let status = command
        .stdout(Stdio::null())
        .status()
        .with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok((used()? - before) as f64)
}

impl Outcome {
    fn off(&self, time: f64) -> f64 {
        time / self.truth - 1.0
    }

    fn rows(&self, program: &Program, table: &mut Table) {
        let held_out = if program.held_out { ", held out" } else { "" };
        table.heading(&format!(
            "{}{held_out}: {} ({} calls)",
            program.name, program.what, self.calls
        ));
        let ms = |ns: f64| ns / 1e6;
        table.row("by itself", ms(self.truth), 1.0, 0, None);
        table.row("as measured", ms(self.raw), self.raw / self.truth, 0, None);
        let goal = Goal::at_most("off", self.off(self.compensated).abs(), MOST_OFF);
        let ratio = self.compensated / self.truth;
        table.row("compensated", ms(self.compensated), ratio, 0, Some(goal));
        let missed_by = (self.compensated - self.truth).abs();
        let goal = Goal::at_most("of its error", missed_by / self.error.max(1.0), 1.0);
        table.row(
            "its error",
            ms(self.error),
            self.error / self.truth,
            0,
            Some(goal),
        );
        if let Some(shares) = &self.shares {
            shares.rows(table);
        }
    }
}

impl Shares {
    pub(super) fn rows(&self, table: &mut Table) {
        let name = format!("worst share of {}, raw {:.1}", self.functions, self.raw);
        let goal = Goal::at_most("points", self.compensated, MOST_POINTS);
        table.goal(&name, goal);
        let (whose, varies) = (&self.whose, self.varies);
        table.note(&format!(
            "    of {whose}, which differs by {varies:.1} from run to run"
        ));
        let goal = Goal::at_most("not covered", self.uncovered.into(), 0.0);
        table.goal("their errors", goal);
    }
}
