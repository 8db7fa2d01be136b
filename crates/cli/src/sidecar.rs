//! The sidecar: the process that `attach`, `serve` and `top` leave beside a target which nobody records. It holds what was counted
//! should the target die, keeps the budget and samples at stacks; how it is started and what it is told. `record` does all of it itself.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use thalweg_instrument::attach::Attached;
use thalweg_instrument::detach;
use thalweg_instrument::filter::Python;
use thalweg_model::Profile;
use thalweg_ptrace::proc::Pid;
use thalweg_region::attendants;
use thalweg_region::memory::Shared;
use thalweg_sampler::samples::{Looking, MOST_HZ, Samples};
use thalweg_session::process_tree::Plan;
use thalweg_session::sidecar::{self, Kept};

use crate::args::{FilterArgs, Mode};
use crate::calibration::Calibration;
use crate::session::SetupArgs;

/// How often stacks are sampled under a budget, unless the user says otherwise.
const BUDGET_SAMPLES_HZ: u32 = 499;
/// And where every call is counted, which costs so much that more samples are no matter.
const DEFAULT_SAMPLES_HZ: u32 = 997;

/// What part of a budget the timers may take by which stacks are sampled; the rest is for probes.
const SAMPLES_PART: f64 = 0.25;

/// How long a sidecar may take to begin to keep a budget, or to sample.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// Samples of stacks.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Measuring")]
pub struct SampleArgs {
    /// Sample every thread's stack this often in a second of its processor time, to know whose time it was where probes
    /// cannot tell; 0 for never [default: 997, with a budget 499]
    #[arg(long, value_name = "HZ", value_parser = parse_samples, conflicts_with = "no_clock")]
    pub samples: Option<u32>,
}

fn parse_samples(text: &str) -> Result<u32, String> {
    let hz = text.parse().ok().filter(|hz| *hz <= MOST_HZ);
    hz.ok_or_else(|| format!("a number of samples per second from 0 to {MOST_HZ}"))
}

impl SampleArgs {
    /// An explicit `--samples` fails if sampling is not supported; otherwise sampling is used where it is.
    pub fn wanted(&self, mode: Mode) -> anyhow::Result<Option<Samples>> {
        let samples = self.told(mode);
        if let (Some(samples), Some(_)) = (samples, self.samples) {
            samples.check()?;
        }
        Ok(samples)
    }

    /// The same for one that says in its notes what is not possible.
    pub fn told(&self, mode: Mode) -> Option<Samples> {
        let hz = match (self.samples, mode) {
            (Some(hz), _) => hz,
            (None, Mode::Budget(_)) => BUDGET_SAMPLES_HZ,
            (None, Mode::Auto | Mode::Restless) => DEFAULT_SAMPLES_HZ,
            // Where the probes' cost is taken out, samples tell whose the rest is. Not where they miss what the clock has.
            (None, Mode::All) => {
                let usual = Samples {
                    hz: DEFAULT_SAMPLES_HZ,
                };
                let is_of_use = Calibration::kept().is_some() && usual.sees_everything();
                return is_of_use.then_some(usual);
            }
            (None, Mode::NoClock) => 0,
        };
        (hz > 0).then_some(Samples { hz })
    }

    /// What part of a target's time timers may take under a budget, unless the user has said how
    /// often stacks are sampled.
    pub fn share(&self, mode: Mode) -> Option<f64> {
        match mode {
            Mode::Budget(percent) if self.samples.is_none() => Some(percent / 100.0 * SAMPLES_PART),
            _ => None,
        }
    }
}

/// What the sidecar is told.
pub struct Sidecar<'a> {
    pub args: &'a SetupArgs,
    pub mode: Mode,
    pub plan: &'a Plan,
}

impl Sidecar<'_> {
    /// Is that process, until the target is detached, or has ended and what it left is taken.
    pub fn stay(pid: Pid, args: &SetupArgs) -> anyhow::Result<()> {
        if sidecar::has_profile() {
            sidecar::wait_for_takers();
            return Ok(());
        }
        let Some(shared) = Shared::from_stdin() else {
            bail!("--stay is for the sidecar that attach starts");
        };
        let Plan {
            attach,
            policy,
            looking: wishes,
        } = args.for_sidecar()?.plan;
        let filter = attach.filter;
        let kept = Kept {
            policy,
            looking: (!wishes.is_empty()).then_some(Looking { wishes, filter }),
        };
        Ok(sidecar::stay(pid, kept, shared)?)
    }

    /// Starts it beside a process that was just attached; where that fails the target is restored.
    pub fn start(self, attached: &Attached) -> anyhow::Result<()> {
        let pid = attached.pid;
        self.begin(attached).or_else(|error| {
            detach::detach(pid)?.unmap()?;
            Err(error)
        })
    }

    fn begin(self, attached: &Attached) -> anyhow::Result<()> {
        let pid = attached.pid;
        let mut child = spawn(pid, attached.shared.file()?, &self.arguments())?;
        if self.plan.policy.is_none() && self.plan.looking.is_empty() {
            // It holds the memory from its first moment on.
            return Ok(());
        }
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            let (_, header) = detach::attached(pid)?;
            // By then it is known where all code is, and the budget has been kept for a while.
            if attendants::looker(&header).is_some() {
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                bail!("the sidecar ended with {status}: process {pid} was detached");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill()?;
        bail!("the sidecar did not begin: process {pid} was detached")
    }

    /// All that says which functions there are, how they are numbered and what is to be done.
    fn arguments(&self) -> Vec<String> {
        let FilterArgs {
            keep,
            leave_out,
            lib,
            no_lib,
        } = &self.args.filter;
        let measure = &self.args.measure;
        let mut all = Vec::new();
        for (option, patterns) in [
            ("--function", keep),
            ("--not-function", leave_out),
            ("--lib", lib),
            ("--no-lib", no_lib),
        ] {
            all.extend(patterns.iter().map(|pattern| format!("{option}={pattern}")));
        }
        let metrics = measure.metrics.iter();
        let metrics = metrics.filter_map(|metric| metric.to_possible_value());
        all.extend(metrics.map(|metric| format!("--metric={}", metric.get_name())));
        all.push(match self.mode {
            Mode::Budget(percent) => format!("--budget={percent}"),
            Mode::Auto => "--time=auto".into(),
            Mode::Restless => "--restless".into(),
            Mode::All | Mode::NoClock => "--time=all".into(),
        });
        // By it the sidecar knows what switching the evaluator means.
        let python = match measure.python() {
            Python::On => "on",
            Python::Auto => "auto",
            Python::Off => "off",
        };
        all.push(format!("--python={python}"));
        let timeout = measure.stop.stop_timeout;
        all.push(format!("--stop-timeout={}ms", timeout.as_millis()));
        // Without it the sidecar finds out by itself how often the budget allows.
        let looking = &self.plan.looking;
        if looking.samples.is_none() || looking.samples_share.is_none() {
            let hz = looking.samples.map_or(0, |samples| samples.hz);
            all.push(format!("--samples={hz}"));
        }
        all
    }
}

/// Keeps a profile that could not be saved, until it is taken; says so.
pub fn hold(pid: Pid, profile: &Profile) -> Option<String> {
    let kept = sidecar::keep_profile(profile).ok()?;
    let keeper = spawn(pid, kept, &[]).ok()?.id();
    Some(format!(
        "process {keeper} keeps what was counted for an hour: `thalweg detach {pid} -o FILE` saves it elsewhere"
    ))
}

/// It has a process group of its own: what is typed at a terminal does not reach it. What it holds is its standard input, where
/// later commands find it.
fn spawn(pid: Pid, held: File, arguments: &[String]) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program")?;
    // Kernels before 5.11 do not know how: there it has what we have, as any child.
    let _ = sidecar::pass_nothing_on();
    let mut command = Command::new(program);
    command
        .args(["attach", "--stay", &pid.to_string()])
        .args(arguments)
        .stdin(held)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0);
    command.spawn().context("cannot start the sidecar")
}
