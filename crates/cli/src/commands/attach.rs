//! `thalweg attach`: patch a running process and leave; the target carries all that later commands need. A second process of
//! ours, the sidecar, stays.

use std::process::ExitCode;

use thalweg_instrument::call_rules;
use thalweg_ptrace::proc::Pid;

use crate::live::Interrupts;
use crate::recording::{Drop, RecordingArgs};
use crate::report::printable;
use crate::session::{SetupArgs, Wanted};
use crate::sidecar::Sidecar;

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
    pub setup: SetupArgs,

    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Be the sidecar of a process that is attached
    #[arg(long, hide = true)]
    pub stay: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pid = Pid(args.pid as i32);
    if args.stay {
        Sidecar::stay(pid, &args.setup)?;
        return Ok(ExitCode::SUCCESS);
    }
    let setup = args.setup.check(Wanted {
        is_live: true,
        threads: &args.threads,
        follow: args.follow,
        quiet: args.quiet,
        recording: Some((&args.recording, Drop::Oldest)),
        ..Wanted::default()
    })?;
    let _interrupts = Interrupts::catch()?;
    let attached = setup.attach_with_sidecar(pid)?;
    if !args.quiet {
        tell!(
            "attached to process {pid}: {} functions are counted, {} are left alone (see `thalweg probe -p {pid} --skipped`); it stood still for {:.1} ms at most\n`thalweg checkpoint {pid} -o FILE` saves what was counted, `thalweg detach {pid}` ends it",
            attached.functions,
            attached.skipped,
            attached.longest_stop_ns as f64 / 1e6,
        );
        for note in &attached.notes {
            tell!("{}", printable(note));
        }
        for note in call_rules::notes(&attached.shared, &attached.shared.header()?)? {
            tell!("{}", printable(&note));
        }
    }
    Ok(ExitCode::SUCCESS)
}
