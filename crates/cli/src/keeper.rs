//! The process that stays beside a target which nobody records: it keeps the budget and looks at stacks. Who wants one, and how it is
//! started: `attach`, `serve` and `top`; `record` does all of it itself.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use thalweg_control::budget::{self, Kept};
use thalweg_control::detach;
use thalweg_control::proc::Pid;
use thalweg_control::samples::{self, Looking, MOST_HZ, Samples};

use crate::args::{FilterArgs, MeasureArgs};
use crate::calibration::{self, Calibration};
use crate::live;
use crate::metric;

/// How often stacks are looked at under a budget, unless the user says otherwise.
const USUAL_SAMPLES: u32 = 499;
/// And where everything is timed, which costs so much that more looks are no matter.
const TIMED_SAMPLES: u32 = 997;

/// How long the process that stays may take to begin.
const BEGINNING: Duration = Duration::from_secs(20);

/// Looks at stacks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Measuring")]
pub struct SampleArgs {
    /// Look at every thread's stack this often in a second of its processor time, to know whose time it was where probes
    /// cannot tell; 0 for never [default: 499 with --budget; 997 where record knows what probes cost]
    #[arg(long, value_name = "HZ", value_parser = parse_samples, conflicts_with = "no_clock")]
    pub samples: Option<u32>,
}

fn parse_samples(text: &str) -> Result<u32, String> {
    let hz = text.parse().ok().filter(|hz| *hz <= MOST_HZ);
    hz.ok_or_else(|| format!("a number of looks per second from 0 to {MOST_HZ}"))
}

impl SampleArgs {
    /// Where it was asked for, it has to be possible; under a budget it is done where it is.
    pub fn wanted(&self, measure: &MeasureArgs) -> anyhow::Result<Option<Samples>> {
        let samples = self.told(measure);
        if let (Some(samples), Some(_)) = (samples, self.samples) {
            samples.check()?;
        }
        Ok(samples)
    }

    /// The same for a recording of its own: where the probes' cost is taken out, looks tell whose the rest is. Not where
    /// they miss what the clock has.
    pub fn recorded(&self, measure: &MeasureArgs) -> anyhow::Result<Option<Samples>> {
        let is_told = self.samples.is_some() || measure.budget.is_some() || measure.no_clock;
        if is_told || Calibration::kept().is_none() {
            return self.wanted(measure);
        }
        let usual = Samples { hz: TIMED_SAMPLES };
        Ok(usual.sees_everything().then_some(usual))
    }

    /// The same for one that says in its notes what is not possible.
    pub fn told(&self, measure: &MeasureArgs) -> Option<Samples> {
        let wanted = match self.samples {
            Some(hz) => hz,
            None if measure.budget.is_some() => USUAL_SAMPLES,
            None => 0,
        };
        (wanted > 0).then_some(Samples { hz: wanted })
    }
}

/// What the process that stays is told, and for whom.
pub struct Keeper<'a> {
    pub filter: &'a FilterArgs,
    pub measure: &'a MeasureArgs,
    pub samples: Option<Samples>,
}

impl Keeper<'_> {
    /// Is that process, until the target is detached or ends.
    pub fn stay(self, pid: Pid) -> anyhow::Result<()> {
        let options = live::options(self.filter, self.measure, &[], false)?;
        let (filter, mut wishes) = (options.filter, options.looking);
        wishes.samples = self.samples;
        let kept = Kept {
            budget: self.measure.budget.map(calibration::budget),
            looking: (!wishes.is_empty()).then_some(Looking { wishes, filter }),
        };
        Ok(budget::keep(pid, kept)?)
    }

    /// Starts it beside a process that was just attached, if there is something to do; where that fails the target is restored.
    pub fn start(self, pid: Pid) -> anyhow::Result<()> {
        let counts = metric::are_counted_outside(&self.measure.metrics);
        if self.measure.budget.is_none() && self.samples.is_none() && !counts {
            return Ok(());
        }
        self.begin(pid).or_else(|error| {
            detach::detach(pid)?.unmap()?;
            Err(error)
        })
    }

    /// It has a process group of its own: what is typed at a terminal does not reach it.
    fn begin(self, pid: Pid) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = Command::new(program);
        command
            .args(["attach", "--stay", &pid.to_string()])
            .args(self.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0);
        let mut child = command
            .spawn()
            .context("cannot start the process that keeps the budget")?;
        let deadline = Instant::now() + BEGINNING;
        while Instant::now() < deadline {
            let (_, header) = detach::attached(pid)?;
            // By then it is known where all code is, and the budget has been kept for a while.
            if samples::looker(&header).is_some() {
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                bail!(
                    "the process that keeps the budget or looks ended with {status}: process {pid} was detached"
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill()?;
        bail!(
            "the process that keeps the budget or looks did not begin: process {pid} was detached"
        )
    }

    /// All that says which functions there are, how they are numbered and what is to be done.
    fn arguments(&self) -> Vec<String> {
        let FilterArgs {
            keep,
            leave_out,
            lib,
            no_lib,
        } = self.filter;
        let mut all = Vec::new();
        for (option, patterns) in [
            ("--function", keep),
            ("--not-function", leave_out),
            ("--lib", lib),
            ("--no-lib", no_lib),
        ] {
            all.extend(patterns.iter().map(|pattern| format!("{option}={pattern}")));
        }
        let metrics = self.measure.metrics.iter();
        let metrics = metrics.filter_map(|metric| metric.to_possible_value());
        all.extend(metrics.map(|metric| format!("--metric={}", metric.get_name())));
        let budget = self.measure.budget;
        all.extend(budget.map(|percent| format!("--budget={percent}")));
        let hz = self.samples.map_or(0, |samples| samples.hz);
        all.push(format!("--samples={hz}"));
        all
    }
}
