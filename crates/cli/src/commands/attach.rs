//! `thalweg attach`: patch a running process and leave; the target carries all that later commands need. With a budget a second
//! process of ours stays, which keeps it.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use thalweg_control::proc::Pid;
use thalweg_control::{attach, budget, detach, record};

use crate::args::{FilterArgs, MeasureArgs};
use crate::calibration;
use crate::live::{self, AnalysisBar, Interrupts};
use crate::recording::{Drop, RecordingArgs};

/// Begin to count in a running process and leave it so
///
/// `status`, `checkpoint` and `detach` find the process again later, from any shell.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The process to attach to
    pub pid: u32,

    /// Count only this thread (may be given several times)
    #[arg(short, long = "thread", value_name = "TID")]
    pub threads: Vec<u32>,

    /// Count its fork children too (what they become by exec, only `record --follow` can)
    #[arg(long)]
    pub follow: bool,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,

    #[command(flatten)]
    pub filter: FilterArgs,

    #[command(flatten)]
    pub measure: MeasureArgs,

    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Be the process that keeps the budget of one that is attached
    #[arg(long, hide = true)]
    pub keep_budget: bool,
}

/// How long the process that keeps a budget may take to begin.
const BEGINNING: Duration = Duration::from_secs(20);

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pid = Pid(args.pid as i32);
    if args.keep_budget {
        let percent = args
            .measure
            .budget
            .context("--keep-budget needs --budget")?;
        budget::keep(pid, calibration::budget(percent))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut options = live::options(&args.filter, &args.measure, &args.threads, args.follow)?;
    options.recording = args.recording.build(Drop::Oldest)?;
    let _interrupts = Interrupts::catch()?;
    let bar = AnalysisBar::new(args.quiet);
    let attached = attach::attach(pid, &options, &|done, all, name| bar.show(done, all, name))?;
    drop(bar);
    if let Some(percent) = args.measure.budget
        && let Err(error) = start_keeper(pid, percent)
    {
        detach::detach(pid)?.unmap()?;
        return Err(error);
    }
    if !args.quiet {
        eprintln!(
            "attached to process {pid}: {} functions are counted, {} are left alone (see `thalweg probe -p {pid} --skipped`); it stood still for {:.1} ms at most\n`thalweg checkpoint {pid} -o FILE` saves what was counted, `thalweg detach {pid}` ends it",
            attached.functions,
            attached.skipped,
            attached.longest_stop_ns as f64 / 1e6,
        );
        for note in record::notes(&attached.shared, &attached.shared.header()?)? {
            eprintln!("{note}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the process that stays. It has a process group of its own: what is typed at a terminal does not reach it.
fn start_keeper(pid: Pid, percent: f64) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command
        .args(["attach", "--keep-budget", &pid.to_string(), "--budget"])
        .arg(percent.to_string())
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
        if budget::keeper(&header).is_some() {
            return Ok(());
        }
        if let Some(status) = child.try_wait()? {
            bail!(
                "the process that keeps the budget ended with {status}: process {pid} was detached"
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    bail!("the process that keeps the budget did not begin: process {pid} was detached")
}
