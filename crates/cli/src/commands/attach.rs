//! `thalweg attach`: patch a running process and leave; the target carries all that later commands need.

use std::process::ExitCode;

use anyhow::bail;
use thalweg_control::attach;
use thalweg_control::proc::Pid;

use crate::args::{FilterArgs, MeasureArgs};
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
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.measure.budget.is_some() {
        bail!(
            "attach leaves nobody behind who could keep a budget: use `thalweg record -p {} --budget ...`, \
             or switch functions by hand with `thalweg switch`",
            args.pid
        );
    }
    let mut options = live::options(&args.filter, &args.measure, &args.threads, args.follow)?;
    options.recording = args.recording.build(Drop::Oldest)?;
    let _interrupts = Interrupts::catch()?;
    let bar = AnalysisBar::new(args.quiet);
    let pid = Pid(args.pid as i32);
    let attached = attach::attach(pid, &options, &|done, all, name| bar.show(done, all, name))?;
    drop(bar);
    if !args.quiet {
        eprintln!(
            "attached to process {pid}: {} functions are counted, {} are left alone (see `thalweg probe -p {pid} --skipped`); it stood still for {:.1} ms at most\n`thalweg checkpoint {pid} -o FILE` saves what was counted, `thalweg detach {pid}` ends it",
            attached.functions,
            attached.skipped,
            attached.longest_stop_ns as f64 / 1e6,
        );
    }
    Ok(ExitCode::SUCCESS)
}
