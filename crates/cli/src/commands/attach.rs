//! `thalweg attach`: patch a running process and leave; the target carries all that later commands need. A second process of
//! ours, the sidecar, stays.

use std::process::ExitCode;

use thalweg_instrument::attach;
use thalweg_instrument::call_rules;
use thalweg_ptrace::proc::Pid;

use crate::args::{FilterArgs, MeasureArgs};
use crate::live::{self, AnalysisBar, Interrupts};
use crate::recording::{Drop, RecordingArgs};
use crate::sidecar::{SampleArgs, Sidecar};

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
    pub samples: SampleArgs,

    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Be the sidecar of a process that is attached
    #[arg(long, hide = true)]
    pub stay: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pid = Pid(args.pid as i32);
    let sidecar = |mode, samples| Sidecar {
        filter: &args.filter,
        measure: &args.measure,
        mode,
        samples,
    };
    let mut mode = args.measure.mode(true)?;
    if args.stay {
        sidecar(mode, args.samples.told(mode)).stay(pid)?;
        return Ok(ExitCode::SUCCESS);
    }
    let recording = args
        .recording
        .build(Drop::Oldest, &args.measure, &mut mode)?;
    let sidecar = sidecar(mode, args.samples.wanted(mode)?);
    let mut options = live::plan(
        &args.filter,
        &args.measure,
        &args.threads,
        args.follow,
        mode,
    )?
    .attach;
    options.recording = recording;
    let _interrupts = Interrupts::catch()?;
    let bar = AnalysisBar::new(args.quiet);
    let attached = attach::attach(pid, &options, &|done, all, name| bar.show(done, all, name))?;
    drop(bar);
    sidecar.start(&attached)?;
    if !args.quiet {
        eprintln!(
            "attached to process {pid}: {} functions are counted, {} are left alone (see `thalweg probe -p {pid} --skipped`); it stood still for {:.1} ms at most\n`thalweg checkpoint {pid} -o FILE` saves what was counted, `thalweg detach {pid}` ends it",
            attached.functions,
            attached.skipped,
            attached.longest_stop_ns as f64 / 1e6,
        );
        for note in call_rules::notes(&attached.shared, &attached.shared.header()?)? {
            eprintln!("{note}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
