//! `thalweg record`: attach or launch, wait, detach, save, report.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::ArgGroup;
use jiff::Timestamp;
use thalweg_instrument::attach::Attached;
use thalweg_instrument::filter::Python;
use thalweg_model::{OutputFile, Profile};
use thalweg_ptrace::launch::Launched;
use thalweg_ptrace::proc::Pid;
use thalweg_session::heap;
use thalweg_session::process_tree::{Closed, Plan, ProcessTree};
use thalweg_snapshot::lines;

use crate::args::{DEFAULT_FILE, Mode, parse_duration};
use crate::checkpoints::{self, CheckpointArgs, Checkpoints, parse_time};
use crate::live::{self, Interrupts, Watch};
use crate::recording::{Drop, RecordingArgs};
use crate::report::printable;
use crate::session::{Setup, SetupArgs, Wanted, completed};
use crate::sidecar::hold;

use super::serve;

/// Record a command, or a running process, from start to end, and report
///
/// The target's standard streams stay its own: thalweg writes to standard error only, and returns the status of
/// the command it launched (128 + the signal when one killed it). Ctrl-C detaches, saves and reports.
///
/// Processes that a launched command starts are recorded too, whatever programs they become, each with trees of its own;
/// the recording ends when all of them have ended.
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

    /// Detach at this time of day or date: 17:30, 17:30:05, 2027-01-31T17:30
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub until: Option<Timestamp>,

    /// With -p: record the processes that it starts, too, and the programs that they become. With a command this is
    /// so anyway, and allows for filters that match nothing in the command itself
    #[arg(long, conflicts_with = "no_follow")]
    pub follow: bool,

    /// Record the launched command alone, not the processes that it starts
    #[arg(long)]
    pub no_follow: bool,

    /// Count how often every basic block ran, instead of calls and times: exact executions of every line and
    /// instruction, for `thalweg annotate`
    #[arg(long, conflicts_with_all = [
        "budget", "time", "restless", "call_sites", "metrics", "python", "java", "samples", "threads",
        "rules", "files", "recordable", "checkpoint_on", "prune_at",
    ])]
    pub blocks: bool,

    /// Patch no function: stacks of all threads on a timer are all that there is, as other samplers have them. Calls are
    /// not known then, and times are estimates
    #[arg(long, conflicts_with_all = [
        "blocks", "budget", "time", "restless", "no_clock", "call_sites", "metrics", "rules", "files", "recordable",
        "checkpoint_on", "prune_at", "keep", "leave_out", "lib", "no_lib", "threads",
    ])]
    pub samples_only: bool,

    /// Where to write the profile
    #[arg(short, long, value_name = "FILE", default_value = DEFAULT_FILE)]
    pub output: PathBuf,

    /// Show the profile in a browser when it is saved
    #[arg(long)]
    pub serve: bool,

    /// Save the profile but print no summary at the end
    #[arg(long)]
    pub no_report: bool,

    /// Print errors only: no progress, no summary
    #[arg(short, long)]
    pub quiet: bool,

    /// Do not measure what the probes cost here where that is not known yet; times then contain it
    #[arg(long)]
    pub no_calibrate: bool,

    #[command(flatten)]
    pub setup: SetupArgs,

    #[command(flatten)]
    pub checkpoints: CheckpointArgs,

    #[command(flatten)]
    pub recording: RecordingArgs,

    /// The command to launch, with its arguments
    #[arg(
        value_name = "CMD",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub command: Vec<OsString>,
}

/// Nothing is counted: samples must be possible.
fn only_samples(plan: &mut Plan) -> anyhow::Result<()> {
    let Some(samples) = &plan.looking.samples else {
        bail!("--samples-only has nothing to go by with --samples 0");
    };
    samples.check()?;
    let options = &mut plan.attach;
    options.filter = std::mem::take(&mut options.filter).with_no_function();
    options.samples_only = true;
    plan.policy = None;
    Ok(())
}

/// Somebody who reads what the first process records, meanwhile.
pub trait Beside {
    /// Before the process runs, or goes on.
    fn begin(&mut self, attached: &Attached) -> anyhow::Result<()>;
    /// Often. `false`: it is enough.
    fn tick(&mut self) -> bool;
    fn end(&mut self, profile: &Profile);
}

struct Nobody;

impl Beside for Nobody {
    fn begin(&mut self, _: &Attached) -> anyhow::Result<()> {
        Ok(())
    }

    fn tick(&mut self) -> bool {
        true
    }

    fn end(&mut self, _: &Profile) {}
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    run_beside(args, &mut Nobody)
}

pub fn run_beside(mut args: Args, beside: &mut dyn Beside) -> anyhow::Result<ExitCode> {
    heap::keep_freed_memory();
    // Counters know no time.
    args.setup.measure.no_clock |= args.blocks;
    let follow = match args.pid {
        Some(_) => args.follow,
        None => !args.no_follow,
    };
    let mut setup = args.setup.check(Wanted {
        is_live: args.pid.is_some(),
        threads: &args.threads,
        follow,
        calibrate: !args.no_calibrate,
        quiet: args.quiet,
        recording: Some((&args.recording, Drop::Newest)),
    })?;
    let options = &mut setup.plan.attach;
    options.gates_suffice = args.follow;
    options.filter =
        std::mem::take(&mut options.filter).with_checkpoints(&args.checkpoints.checkpoint_on)?;
    if args.blocks {
        let filter = std::mem::take(&mut options.filter);
        options.filter = filter.with_blocks(true).with_python(Python::Off);
    }
    if args.samples_only {
        only_samples(&mut setup.plan)?;
    }
    let checkpoints = Checkpoints::new(&args.checkpoints, &args.output)?;
    // Before the target is touched: a recording that cannot be saved is not begun.
    let output = OutputFile::create(&args.output)?;
    let interrupts = Interrupts::catch()?;
    let status = match args.pid {
        Some(pid) => {
            let pid = Pid(pid as i32);
            record_process(pid, &args, &setup, output, &interrupts, checkpoints, beside)
        }
        None => record_command(&args, &setup, output, &interrupts, checkpoints, beside),
    }?;
    if args.serve {
        serve::show_file(&args.output)?;
    }
    Ok(status)
}

fn record_process(
    pid: Pid,
    args: &Args,
    setup: &Setup,
    output: OutputFile,
    interrupts: &Interrupts,
    mut checkpoints: Checkpoints,
    beside: &mut dyn Beside,
) -> anyhow::Result<ExitCode> {
    let attached = setup.attach(pid)?;
    for note in &attached.notes {
        tell!("thalweg: {}", printable(note));
    }
    let mut lines = lines::Lookup::begin(attached.pid);
    beside.begin(&attached)?;
    let mut tree = ProcessTree::begin(attached, &setup.plan)?;
    watch(&mut tree, args, setup.mode, interrupts, |tree, watch| {
        checkpoints.tick(tree, &mut lines, interrupts, watch);
        if !beside.tick() {
            interrupts.ask();
        }
        Ok(checkpoints.pause())
    })?;
    match finish(tree, args, output, lines, checkpoints, beside)? {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::from(2)),
    }
}

fn record_command(
    args: &Args,
    setup: &Setup,
    output: OutputFile,
    interrupts: &Interrupts,
    mut checkpoints: Checkpoints,
    beside: &mut dyn Beside,
) -> anyhow::Result<ExitCode> {
    let mut launched = Launched::start(&args.command)?;
    let attached = match prepare(&mut launched, args, setup) {
        Ok(attached) => attached,
        Err(error) => {
            launched.abandon();
            return Err(error);
        }
    };
    let mut lines = lines::Lookup::begin(attached.pid);
    beside.begin(&attached)?;
    let mut tree = ProcessTree::begin(attached, &setup.plan)?;
    launched.release()?;
    let mut status = None;
    let reason = watch(&mut tree, args, setup.mode, interrupts, |tree, watch| {
        checkpoints.tick(tree, &mut lines, interrupts, watch);
        if !beside.tick() {
            interrupts.ask();
        }
        if status.is_some() {
            return Ok(checkpoints.pause());
        }
        status = launched.try_wait()?;
        if let Some(status) = status {
            tree.first_ended(status);
            // The snapshot of its region is taken at this moment, if it was the last.
            let patience = Instant::now() + Duration::from_millis(300);
            while !tree.is_over() && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
            if tree.living() > 0 {
                watch.say(&format!(
                    "the command has ended; {} that it started go on and are recorded until they end, or until Ctrl-C",
                    processes(tree.living())
                ));
            }
        }
        Ok(checkpoints.pause())
    })?;
    if reason == Reason::Interrupted {
        // Ctrl-C went to the target too, which as a rule ends now by itself.
        let patience = Instant::now() + Duration::from_millis(500);
        while !tree.is_over() && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(5));
            if status.is_none() {
                status = launched.try_wait()?;
            }
        }
    }
    finish(tree, args, output, lines, checkpoints, beside)?;
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

fn processes(number: usize) -> String {
    match number {
        1 => "one process".into(),
        n => format!("{n} processes"),
    }
}

fn prepare(launched: &mut Launched, args: &Args, setup: &Setup) -> anyhow::Result<Attached> {
    launched.run_to_ready()?;
    let words = args.command.iter();
    let command = words.map(|part| part.to_string_lossy().into_owned());
    setup.instrument(launched, command.collect())
}

/// A recording that goes on for so long does not keep the memory that it was prepared in.
const KEEP_MEMORY_FOR: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    AllEnded,
    TimeIsUp,
    Interrupted,
}

/// Waits until all processes have ended, the time is up, or somebody asks us to stop. `each_time` says when it has something
/// to do next.
fn watch(
    tree: &mut ProcessTree,
    args: &Args,
    mode: Mode,
    interrupts: &Interrupts,
    mut each_time: impl FnMut(&mut ProcessTree, &Watch) -> anyhow::Result<Option<Duration>>,
) -> anyhow::Result<Reason> {
    let started = Instant::now();
    let shared = !args.command.is_empty() && std::io::stdout().is_terminal();
    let mut watch = Watch::new(args.quiet, mode == Mode::All, shared);
    let mut holds_memory = true;
    loop {
        let pause = each_time(tree, &watch)?;
        if tree.is_over() {
            return Ok(Reason::AllEnded);
        }
        if interrupts.any() {
            return Ok(Reason::Interrupted);
        }
        let left = args
            .duration
            .map(|all| all.saturating_sub(started.elapsed()))
            .into_iter()
            .chain(args.until.map(checkpoints::until))
            .min();
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Reason::TimeIsUp);
        }
        watch.tick(tree);
        if holds_memory && started.elapsed() > KEEP_MEMORY_FOR {
            heap::give_back();
            holds_memory = false;
        }
        // Short runs end without delay, long ones are not polled hard.
        let nap =
            (started.elapsed() / 50).clamp(Duration::from_millis(1), Duration::from_millis(20));
        let nap = left.into_iter().chain(pause).fold(nap, Duration::min);
        std::thread::sleep(nap);
    }
}

/// Detaches from whatever still lives, then saves and reports. `false`: a process still has its probes.
fn finish(
    tree: ProcessTree,
    args: &Args,
    output: OutputFile,
    mut lines: lines::Lookup,
    checkpoints: Checkpoints,
    beside: &mut dyn Beside,
) -> anyhow::Result<bool> {
    let Closed {
        mut profile,
        unfinished,
    } = tree.close()?;
    beside.end(&profile);
    profile.marks = checkpoints.into_marks();
    let profile = completed(profile, &mut lines);
    let saved = live::save_or(profile, output, !args.quiet && !args.no_report, |profile| {
        let first = profile.processes.first()?.pid;
        hold(Pid(first as i32), profile)
    });
    for one in &unfinished {
        tell!("thalweg: {}", printable(&one.note()));
    }
    saved?;
    Ok(unfinished.iter().all(|one| one.probed.is_none()))
}
