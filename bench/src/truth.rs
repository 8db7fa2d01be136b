//! How true the figures are, in three ways of recording: programs run by themselves and recorded, by turns. The sum of all base times is held
//! against the time on a processor that they take by themselves, the share of each of the ten hottest functions against what `perf` sees when it looks at
//! the program by itself; both against the errors that are printed.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use thalweg_analysis::{FunctionTotals, flat, summary, total_cost};
use thalweg_model::Profile;

use super::programs::{Program, TRUTH};
use super::sampled::{Places, Sampled};
use super::table::{Goal, Table};
use super::turns::Between;
use super::{Bench, find};
use thalweg_analysis::Pipeline;

/// Of so many functions the share is looked at.
const HOTTEST: usize = 10;
/// Samples of a program until a share is known to about a point, and how much it differs from run to run.
const SAMPLES: u64 = 3000;
const LEAST_RUNS: u32 = 4;
const MOST_RUNS: u32 = 80;

/// What the goals are.
pub(super) const MOST_OFF: f64 = 0.05;
const MOST_POINTS: f64 = 3.0;
const MOST_ERROR: f64 = 0.1;

/// What a sample may be off by chance.
const TWO_SIGMA: f64 = 2.0;

/// A way of recording.
struct Mode {
    name: &'static str,
    options: &'static [&'static str],
    /// How many times longer the program may take, and whether its figures have to be as true as the goals say: with everything
    /// timed their errors have to be, and no more.
    most_slowdown: Option<f64>,
    is_judged: bool,
}

const MODES: [Mode; 3] = [
    Mode {
        name: "default",
        options: &[],
        most_slowdown: Some(2.0),
        is_judged: true,
    },
    Mode {
        name: "--budget 5%",
        options: &["--budget", "5%"],
        most_slowdown: Some(1.06),
        is_judged: true,
    },
    Mode {
        name: "--time all",
        options: &["--time", "all"],
        most_slowdown: None,
        is_judged: false,
    },
];

/// How many figures were held against the truth, how many of them were outside of their errors, and how many of those by more than the
/// truth itself is in doubt.
#[derive(Clone, Copy, Default)]
struct Covered {
    figures: u32,
    outside: u32,
    missed: u32,
}

impl std::ops::AddAssign for Covered {
    fn add_assign(&mut self, other: Covered) {
        self.figures += other.figures;
        self.outside += other.outside;
        self.missed += other.missed;
    }
}

impl Covered {
    /// `doubt`: how far off the truth may be, by itself.
    fn add(&mut self, off: f64, error: f64, doubt: f64) {
        self.figures += 1;
        self.outside += u32::from(off > error);
        self.missed += u32::from(off > error.hypot(doubt));
    }
}

/// In one way of recording.
#[derive(Clone, Copy, Default)]
struct ModeCovered {
    totals: Covered,
    own: Covered,
    cum: Covered,
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
    /// Own times, and cum.
    own: Covered,
    cum: Covered,
}

impl Bench {
    /// `only`: of programs whose name begins with it. `shares`: of functions too, which takes most of the time.
    pub fn truth(&self, only: &str, shares: bool, table: &mut Table) -> anyhow::Result<()> {
        self.build_truth()?;
        eprint!("\r\x1b[Kcalibrating");
        let calibrated = self.calibrate()?;
        table.heading("truth: whole programs' time, ms, and shares of their ten hottest functions");
        // The processor, a timed call, a counted one.
        for line in calibrated.lines().take(3) {
            table.heading(line.trim());
        }
        let mut covered = MODES.map(|_| ModeCovered::default());
        for program in TRUTH.iter().filter(|p| p.name.starts_with(only)) {
            match self.find_program(program) {
                Some(path) => self.true_program(program, &path, shares, &mut covered, table)?,
                None => table.heading(&format!("{} is not installed", program.command)),
            }
        }
        table.heading(
            "errors: how many figures are outside of theirs by more than the truth is in doubt",
        );
        for (mode, of) in MODES.iter().zip(covered) {
            let kinds = [
                ("totals", of.totals),
                ("own times", of.own),
                ("cum", of.cum),
            ];
            for (what, covered) in kinds {
                // One in twenty, and what chance allows beside.
                let expected = f64::from(covered.figures) / 20.0;
                let allowed = expected + TWO_SIGMA * (expected * 0.95).sqrt();
                let goal = Goal::at_most("outside", covered.missed.into(), allowed.floor());
                let name = format!("{}, {} {what}", mode.name, covered.figures);
                table.goal(&name, goal);
                table.note(&format!(
                    "      {} where the truth is taken for certain",
                    covered.outside
                ));
            }
        }
        Ok(())
    }

    /// What the probes cost here, measured anew and kept; what it says.
    fn calibrate(&self) -> anyhow::Result<String> {
        let out = Command::new(&self.thalweg).arg("calibrate").output()?;
        ensure!(
            out.status.success(),
            "calibrating failed: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// So that the recordings do not do it.
    pub(super) fn calibrate_once(&self) -> anyhow::Result<()> {
        let known = Command::new(&self.thalweg)
            .args(["calibrate", "--check"])
            .output()?;
        if !known.status.success() {
            eprint!("\r\x1b[Kcalibrating");
            self.calibrate()?;
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

    fn true_program(
        &self,
        program: &Program,
        path: &Path,
        shares: bool,
        covered: &mut [ModeCovered; 3],
        table: &mut Table,
    ) -> anyhow::Result<()> {
        let options = MODES.map(|mode| mode.options);
        let runs = self.interleaved(program, path, &options)?;
        let first = |way: usize| runs.recorded[way].first().context("no rounds");
        let sampled = match shares {
            true => self.sampled(program, path, &first(0)?.raw)?,
            false => None,
        };
        eprint!("\r\x1b[K");
        let held_out = if program.held_out { ", held out" } else { "" };
        table.heading(&format!(
            "{}{held_out}: {} ({} calls, {:.2} ms by itself, a run and its neighbours within {:.1} %)",
            program.name,
            program.what,
            summary(&first(0)?.raw).calls,
            runs.mean() / 1e6,
            100.0 * runs.varies(),
        ));
        for (way, (mode, covered)) in MODES.iter().zip(covered).enumerate() {
            let mut outcomes = Vec::new();
            let mut all_shares: Vec<Shares> = Vec::new();
            for Between { plain, raw } in &runs.recorded[way] {
                let profile = Pipeline::new().run(raw.clone())?;
                ensure!(is_compensated(&profile), "the recording was not calibrated");
                let outcome = Outcome {
                    truth: *plain,
                    measured: used(raw),
                    compensated: summary(&profile).time as f64,
                    error: total_cost(&profile).map_or(0.0, |(_, error)| error),
                };
                let doubt = runs.varies() * plain;
                covered.totals.add(outcome.off(), outcome.error, doubt);
                outcomes.push(outcome);
                if let Some(sampled) = &sampled {
                    let places = by_place(&first(0)?.raw);
                    all_shares.push(Shares::of(sampled, &places, *plain, raw, &profile));
                }
            }
            rows(&outcomes, mode, table);
            for shares in &all_shares {
                covered.own += shares.own;
                covered.cum += shares.cum;
            }
            all_shares.sort_by(|a, b| a.compensated.total_cmp(&b.compensated));
            if let Some(shares) = all_shares.get(all_shares.len() / 2) {
                shares.mode_rows(mode, table);
            }
        }
        Ok(())
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

    /// What `perf` sees of the program by itself, by the functions of this profile.
    fn sampled(
        &self,
        program: &Program,
        path: &Path,
        profile: &Profile,
    ) -> anyhow::Result<Option<Sampled>> {
        if find("perf").is_none() {
            eprintln!("\r\x1b[Kperf is not installed: shares are left out");
            return Ok(None);
        }
        let places = Places::of(profile);
        let mut sampled = Sampled::default();
        for run in 0..MOST_RUNS {
            if sampled.samples >= SAMPLES && run >= LEAST_RUNS {
                break;
            }
            eprint!("\r\x1b[Kperf, run {}: {}", run + 1, program.name);
            let plain = self.plain(program, path.into());
            let looked = self.asked(program, || {
                sampled.look(&plain, &self.path("perf.data"), &places)
            });
            if let Err(error) = looked {
                eprintln!("\r\x1b[Kshares are left out: {error:#}");
                return Ok(None);
            }
        }
        Ok(Some(sampled))
    }

    pub(super) fn shares(
        &self,
        program: &Program,
        path: PathBuf,
        truth: f64,
        raw: &Profile,
        compensated: &Profile,
    ) -> anyhow::Result<Option<Shares>> {
        let sampled = self.sampled(program, &path, raw)?;
        let places = by_place(raw);
        Ok(sampled.map(|sampled| Shares::of(&sampled, &places, truth, raw, compensated)))
    }
}

/// Module and address: numbers differ from one recording to the next.
type Place = (String, u64);

/// By number.
fn by_place(profile: &Profile) -> Vec<Place> {
    let functions = profile.functions.iter();
    functions
        .map(|function| {
            let module = &profile.modules[function.module as usize];
            (module.name.clone(), function.address)
        })
        .collect()
}

/// Nanoseconds that the target was on a processor.
fn used(raw: &Profile) -> f64 {
    let measured = summary(raw).time as f64;
    let sampled = raw
        .meta
        .sampling
        .map_or(0.0, |s| s.samples as f64 * s.period_ns as f64);
    measured.max(sampled)
}

/// Programs that shuffle something by chance, or look at the language, do so no longer.
const SAME_EVERY_TIME: [(&str, &str); 4] = [
    ("LC_ALL", "C"),
    ("PYTHONHASHSEED", "0"),
    ("PERL_HASH_SEED", "0"),
    ("PERL_PERTURB_KEYS", "0"),
];

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

/// Of one program in one way of recording, in nanoseconds.
struct Outcome {
    truth: f64,
    measured: f64,
    compensated: f64,
    error: f64,
}

impl Outcome {
    fn off(&self) -> f64 {
        (self.compensated - self.truth).abs()
    }
}

/// Means of all recordings, and each of them in parts of the truth.
fn rows(outcomes: &[Outcome], mode: &Mode, table: &mut Table) {
    let mean = |of: &dyn Fn(&Outcome) -> f64| {
        outcomes.iter().map(of).sum::<f64>() / outcomes.len().max(1) as f64
    };
    let ms = |of: &dyn Fn(&Outcome) -> f64| mean(of) / 1e6;
    let ratio = |of: &dyn Fn(&Outcome) -> f64| mean(&|one| of(one) / one.truth);
    let measured = |one: &Outcome| one.measured;
    let reported = |one: &Outcome| one.compensated;
    let error = |one: &Outcome| one.error;
    let slower = ratio(&measured);
    let goal = mode
        .most_slowdown
        .map(|most| Goal::at_most("slower", slower, most));
    let name = format!("{}: measured", mode.name);
    table.row(&name, ms(&measured), slower, 0, goal);
    let off = ratio(&reported);
    let goal = Goal::at_most("off", (off - 1.0).abs(), MOST_OFF);
    let goal = mode.is_judged.then_some(goal);
    table.row("  reported", ms(&reported), off, 0, goal);
    let goal = Goal::at_most("of the whole", ratio(&error), MOST_ERROR);
    let goal = mode.is_judged.then_some(goal);
    table.row("  its error", ms(&error), ratio(&error), 0, goal);
    let each = |one: &Outcome| {
        let (off, error) = (one.compensated / one.truth, one.error / one.truth);
        format!("{off:.3} ± {error:.3}")
    };
    let each: Vec<String> = outcomes.iter().map(each).collect();
    table.note(&format!("      {}", each.join(", ")));
}

impl Shares {
    /// `places`: of the functions by the numbers that they were sampled by.
    fn of(
        sampled: &Sampled,
        places: &[Place],
        truth: f64,
        raw: &Profile,
        compensated: &Profile,
    ) -> Shares {
        let rows = |profile: &Profile| -> HashMap<Place, FunctionTotals> {
            let places = by_place(profile);
            let rows = flat(profile).into_iter();
            rows.map(|row| (places[row.function.index()].clone(), row))
                .collect()
        };
        let (raw_whole, raw) = (summary(raw).time.max(1) as f64, rows(raw));
        let whole = summary(compensated).time.max(1) as f64;
        let shown = rows(compensated);
        let figures = |rows: &HashMap<Place, FunctionTotals>, function: u32| {
            let row = rows.get(&places[function as usize]);
            row.map_or(((0.0, 0.0), (0.0, 0.0)), |row| {
                (
                    (row.self_ns as f64, row.error as f64),
                    (row.total_ns as f64, row.total_error as f64),
                )
            })
        };
        let mut shares = Shares::default();
        for function in sampled.hottest(HOTTEST) {
            let true_share = sampled.cum_share(function);
            let points = |share: f64| 100.0 * (share - true_share).abs();
            let ((own, own_error), (cum, error)) = figures(&shown, function);
            let (_, (raw_cum, _)) = figures(&raw, function);
            shares.functions += 1;
            shares.raw = f64::max(shares.raw, points(raw_cum / raw_whole));
            if points(cum / whole) >= shares.compensated {
                shares.compensated = points(cum / whole);
                let name = compensated.functions.get(function as usize);
                shares.whose = name.map(|f| f.name.clone()).unwrap_or_default();
                shares.varies = 100.0 * sampled.deviation(function);
            }
            let by_chance = truth * TWO_SIGMA * sampled.deviation(function);
            let off = (cum - truth * true_share).abs();
            shares.cum.add(off, error, by_chance);
            let off = (own - truth * sampled.own_share(function)).abs();
            shares.own.add(off, own_error, by_chance);
        }
        shares
    }

    fn mode_rows(&self, mode: &Mode, table: &mut Table) {
        let name = format!("  worst share of {}", self.functions);
        let goal = Goal::at_most("points", self.compensated, MOST_POINTS);
        match mode.is_judged {
            true => table.goal(&name, goal),
            false => table.note(&format!("  {name}: {:.1} points", self.compensated)),
        }
        table.note(&format!(
            "      of {}, which differs by {:.1} from run to run; {} own times and {} cum outside of their errors",
            self.whose, self.varies, self.own.missed, self.cum.missed
        ));
    }

    pub(super) fn rows(&self, table: &mut Table) {
        let name = format!("worst share of {}, raw {:.1}", self.functions, self.raw);
        let goal = Goal::at_most("points", self.compensated, MOST_POINTS);
        table.goal(&name, goal);
        let (whose, varies) = (&self.whose, self.varies);
        table.note(&format!(
            "    of {whose}, which differs by {varies:.1} from run to run"
        ));
        let goal = Goal::at_most("not covered", self.cum.missed.into(), 0.0);
        table.goal("their errors", goal);
    }
}
