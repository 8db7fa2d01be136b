//! `thalweg detach`: restore every patched byte of an attached process; optionally save what it counted.
//!
//! What it counted is saved before its memory is given back; where that fails, a process of ours keeps it. So it does for a
//! target that has ended while it was attached, which has nothing left to restore.

use std::path::PathBuf;
use std::process::ExitCode;

use thalweg_instrument::detach;
use thalweg_model::{OutputFile, Profile};
use thalweg_ptrace::proc::Pid;
use thalweg_region::{clock, memory};
use thalweg_session::sidecar::{self, Left};
use thalweg_snapshot::lines;
use thalweg_snapshot::snapshot::{self, ThreadRegistry};

use crate::args::StopArgs;
use crate::live::{self, Interrupts};
use crate::session::completed;
use crate::sidecar::hold;

/// Restore an attached process to what it was before
///
/// Also cleans a process whose controller was killed, and saves what one had counted that has ended meanwhile.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The attached process
    pub pid: u32,

    /// Save the profile here first; without this option what was counted is dropped
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,

    #[command(flatten)]
    pub stop: StopArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.stop.apply();
    let output = args.output.as_ref().map(OutputFile::create).transpose()?;
    let _interrupts = Interrupts::catch()?;
    let pid = Pid(args.pid as i32);
    let carried = memory::find(pid).ok().flatten();
    if carried.is_none()
        && let Some(left) = sidecar::left_by(pid)?
    {
        take(pid, left, output, args.quiet)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut registry = ThreadRegistry::default();
    if let Some((_, shared, header)) = carried
        && header.magic == thalweg_abi::MAGIC
    {
        registry.update(&shared)?;
    }
    if detach::tidy(pid)? {
        if !args.quiet {
            tell!("removed what an interrupted attach had left in process {pid}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let detached = detach::detach(pid)?;
    let ended = clock::ticks();
    let snapshot = output
        .is_some()
        .then(|| snapshot::take(&detached.shared, &registry, Some(ended)));
    if !args.quiet {
        tell!(
            "detached from process {pid}: its code is what it was; it stood still for {:.1} ms at most",
            detached.longest_stop_ns as f64 / 1e6
        );
        for address in &detached.foreign {
            tell!(
                "the code at {address:#x} was changed by somebody else meanwhile and was left so"
            );
        }
    }
    // Its memory is there until what it counted is safe.
    let saved = match (output, snapshot) {
        (Some(output), Some(Ok(profile))) => save(pid, profile, output, args.quiet),
        (_, Some(Err(error))) => Err(error.into()),
        _ => Ok(()),
    };
    if !detached.unmap()? && !args.quiet {
        tell!(
            "the memory of the probes stays: a signal handler that is running will return into one (then run `thalweg detach {pid}` again), or a seccomp filter forbids to unmap it"
        );
    }
    saved?;
    Ok(ExitCode::SUCCESS)
}

fn save(pid: Pid, profile: Profile, output: OutputFile, quiet: bool) -> anyhow::Result<()> {
    let profile = completed(profile, &mut lines::Lookup::default());
    live::save_or(profile, output, !quiet, |profile| hold(pid, profile))
}

/// Of a process that has ended.
fn take(pid: Pid, left: Left, output: Option<OutputFile>, quiet: bool) -> anyhow::Result<()> {
    if !quiet {
        tell!("process {pid} has ended since it was attached: there is nothing to restore");
    }
    let keeper = left.sidecar;
    if let Some(output) = output {
        let profile = completed(left.profile()?, &mut lines::Lookup::default());
        live::save_or(profile, output, !quiet, |_| {
            Some(format!(
                "process {keeper} still keeps what was counted: `thalweg detach {pid} -o FILE` saves it elsewhere"
            ))
        })?;
    }
    left.release();
    Ok(())
}
