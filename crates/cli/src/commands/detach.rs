//! `thalweg detach`: restore every patched byte of an attached process; optionally save what it counted.

use std::path::PathBuf;
use std::process::ExitCode;

use thalweg_control::harvest::{self, Witness};
use thalweg_control::proc::Pid;
use thalweg_control::{clock, detach, lines, memory};
use thalweg_model::OutputFile;

use crate::live::{self, Interrupts};

/// Restore an attached process to what it was before
///
/// Also cleans a process whose controller was killed.
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
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let output = args.output.as_ref().map(OutputFile::create).transpose()?;
    let _interrupts = Interrupts::catch()?;
    let pid = Pid(args.pid as i32);
    let mut witness = Witness::default();
    if let Some((_, shared, header)) = memory::find(pid).ok().flatten()
        && header.magic == thalweg_control::MAGIC
    {
        witness.look(&shared)?;
    }
    if detach::tidy(pid)? {
        if !args.quiet {
            eprintln!("removed what an interrupted attach had left in process {pid}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    let detached = detach::detach(pid)?;
    let ended = clock::ticks();
    let harvested = output
        .is_some()
        .then(|| harvest::harvest(&detached.shared, &witness, Some(ended)));
    let clean = detached.unmap()?;
    if !args.quiet {
        eprintln!(
            "detached from process {pid}: its code is what it was; it stood still for {:.1} ms at most",
            detached.longest_stop_ns as f64 / 1e6
        );
        if !clean {
            eprintln!(
                "the memory of the probes stays: a signal handler that is running will return into one (then run `thalweg detach {pid}` again), or a seccomp filter forbids to unmap it"
            );
        }
        for address in &detached.foreign {
            eprintln!(
                "the code at {address:#x} was changed by somebody else meanwhile and was left so"
            );
        }
    }
    if let (Some(output), Some(harvested)) = (output, harvested) {
        let mut profile = harvested?;
        lines::complete(&mut profile, &mut lines::Lookup::default());
        live::save(profile, output, !args.quiet)?;
    }
    Ok(ExitCode::SUCCESS)
}
