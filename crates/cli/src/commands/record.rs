//! `thalweg record`: attach or launch, wait, detach, save, report.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ArgGroup;
use thalweg_control::attach::{self, Attached, Options};
use thalweg_control::harvest::{self, Witness};
use thalweg_control::launch::Launched;
use thalweg_control::memory::Shared;
use thalweg_control::proc::{self, Pid};
use thalweg_control::{clock, detach, lines, memory};
use thalweg_model::OutputFile;

use crate::args::{DEFAULT_FILE, FilterArgs, MeasureArgs, parse_duration};
use crate::live::{self, AnalysisBar, Attendant, Interrupts, Watch};

/// Record a command, or a running process, from start to end, and report
///
/// The target's standard streams stay its own: thalweg writes to standard error only, and returns the status of
/// the command it launched (128 + the signal when one killed it). Ctrl-C detaches, saves and reports.
#[derive(clap::Args, Debug)]
#[command(group = ArgGroup::new("target").required(true).args(["pid", "command"]))]
pub struct Args {
    /// Attach to this running process
    #[arg(short, long)]
    pub pid: Option<u32>,

    /// Count only this thread (may be given several times)
    #[arg(short, long = "thread", value_name = "TID", conflicts_with = "command")]
    pub threads: Vec<u32>,

    /// Detach after this long: 500ms, 10s, 2m
    #[arg(short, long, value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Where to write the profile
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub measure: MeasureArgs,

    /// Save the profile but print no summary at the end
    #[arg(long)]
    pub no_report: bool,

    /// Print errors only: no progress, no summary
    #[arg(short, long)]
    pub quiet: bool,

    /// The command to launch, with its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = live::options(&args.filter, &args.measure, &args.threads)?;
    // Before the target is touched: a recording that cannot be saved is not begun.
    let output = OutputFile::create(&args.output)?;
    let interrupts = Interrupts::catch()?;
    match args.pid {
        Some(pid) => record_process(Pid(pid as i32), &args, &options, output, &interrupts),
        None => record_command(&args, &options, output, &interrupts),
    }
}

fn record_process(
    pid: Pid,
    args: &Args,
    options: &Options,
    output: OutputFile,
    interrupts: &Interrupts,
) -> anyhow::Result<ExitCode> {
    let bar = AnalysisBar::new(args.quiet);
    let mut attached = attach::attach(pid, options, &|done, all, name| bar.show(done, all, name))?;
    drop(bar);
    let mut attendant = Attendant::start(&attached.shared, &mut attached.modules)?;
    attendant.catch_up(pid);
    let target = proc::preflight(pid);
    let alive = || target.as_ref().is_ok_and(|target| target.is_alive());
    let lines = lines::Lookup::begin(attached.pid);
    let ended = watch(&attached.shared, args, interrupts, attendant, || {
        Ok(!alive())
    });
    finish(&attached, ended?, args, output, lines)?;
    Ok(ExitCode::SUCCESS)
}

fn record_command(
    args: &Args,
    options: &Options,
    output: OutputFile,
    interrupts: &Interrupts,
) -> anyhow::Result<ExitCode> {
    let mut launched = Launched::start(&args.command)?;
    let mut attached = match prepare(&mut launched, args, options) {
        Ok(attached) => attached,
        Err(error) => {
            launched.abandon();
            return Err(error);
        }
    };
    let attendant = Attendant::start(&attached.shared, &mut attached.modules)?;
    let lines = lines::Lookup::begin(attached.pid);
    launched.release()?;
    let mut status = None;
    let mut ended = watch(&attached.shared, args, interrupts, attendant, || {
        status = launched.try_wait()?;
        Ok(status.is_some())
    })?;
    if ended.reason == Reason::Interrupted {
        // Ctrl-C went to the target too, which as a rule ends now by itself.
        let patience = Instant::now() + Duration::from_millis(500);
        while status.is_none() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
            status = launched.try_wait()?;
        }
        if status.is_some() {
            ended.reason = Reason::TargetEnded;
            ended.ticks = clock::ticks();
        }
    }
    finish(&attached, ended, args, output, lines)?;
    let status = match status {
        Some(status) => status,
        None => launched.wait()?,
    };
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    Ok(ExitCode::from(code as u8))
}

fn prepare(launched: &mut Launched, args: &Args, options: &Options) -> anyhow::Result<Attached> {
    launched.run_to_ready()?;
    let command = args
        .command
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let bar = AnalysisBar::new(args.quiet);
    Ok(attach::instrument(
        launched,
        options,
        command,
        &|done, all, name| bar.show(done, all, name),
    )?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    TargetEnded,
    TimeIsUp,
    Interrupted,
}

struct Ended {
    reason: Reason,
    ticks: u64,
    witness: Witness,
    notes: Vec<String>,
}

/// Waits until the target ends, the time is up, or somebody asks us to stop.
fn watch(
    shared: &Shared,
    args: &Args,
    interrupts: &Interrupts,
    mut attendant: Attendant,
    mut target_ended: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<Ended> {
    let started = Instant::now();
    let mut watch = Watch::new(shared, args.quiet, !args.measure.no_clock);
    let reason = loop {
        if target_ended()? {
            break Reason::TargetEnded;
        }
        if interrupts.any() {
            break Reason::Interrupted;
        }
        let left = args
            .duration
            .map(|all| all.saturating_sub(started.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break Reason::TimeIsUp;
        }
        watch.tick();
        // Short runs end without delay, long ones are not polled hard.
        let nap =
            (started.elapsed() / 50).clamp(Duration::from_millis(1), Duration::from_millis(20));
        attendant.attend(left.map_or(nap, |left| nap.min(left)));
    };
    Ok(Ended {
        reason,
        ticks: clock::ticks(),
        witness: watch.finish(),
        notes: attendant.finish(),
    })
}

/// Detaches if there is still something to detach from, then reads, saves and reports.
fn finish(
    attached: &Attached,
    mut ended: Ended,
    args: &Args,
    output: OutputFile,
    lines: lines::Lookup,
) -> anyhow::Result<()> {
    let (pid, shared) = (attached.pid, &attached.shared);
    let mut detached = None;
    // A target that has ended, or that has become another program by exec, has nothing of ours left.
    if memory::carriers(attached.identity).contains(&pid) {
        let _ = ended.witness.look(shared);
        match detach::detach(pid) {
            Ok(done) => {
                ended.ticks = clock::ticks();
                detached = Some(done);
            }
            Err(error) if memory::carriers(attached.identity).contains(&pid) => {
                return Err(error.into());
            }
            Err(_) => {}
        }
    }
    let harvested = harvest::harvest(shared, &ended.witness, Some(ended.ticks));
    if let Some(detached) = detached {
        detached.unmap()?;
    }
    detach::detach_orphans(attached.identity);
    let mut profile = harvested?;
    profile.notes.append(&mut ended.notes);
    lines::complete(&mut profile, lines);
    live::save(&profile, output, !args.quiet && !args.no_report)
}
