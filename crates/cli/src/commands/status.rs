//! `thalweg status`: what an attached process carries, read without stopping it.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use thalweg_instrument::{detach, gate, loaded};
use thalweg_model::End;
use thalweg_ptrace::proc::Pid;
use thalweg_region::{attendants, clock};
use thalweg_session::sidecar::{self, Left};
use thalweg_snapshot::snapshot;

use crate::report::{bytes, count, printable};

/// Say whether a process is attached, since when, and what it has counted so far
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The process to look at
    pub pid: u32,

    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let pid = Pid(args.pid as i32);
    if let Ok(Some(what)) = detach::left_over(pid) {
        return left_over(args, what);
    }
    let (shared, header) = match detach::attached(pid) {
        Ok(found) => found,
        Err(error) => match sidecar::left_by(pid)? {
            Some(left) => return show_ended(&args, &left),
            None => return Err(error.into()),
        },
    };
    let totals = snapshot::totals(&shared)?;
    let seconds = (clock::unix_ns().saturating_sub(header.attach_unix_ns)) as f64 / 1e9;
    let status = Status {
        pid: args.pid,
        attached_for_seconds: seconds,
        timed: header.flags & thalweg_abi::HEADER_TIMED != 0,
        functions: header.functions,
        threads: totals.threads,
        threads_ended: totals.ended,
        calls: totals.calls,
        contexts: totals.contexts,
        folded_calls: totals.folded,
        pruned_contexts: totals.pruned.contexts,
        pruned_calls: totals.pruned.calls,
        slow_events: totals.slow_events,
        resyncs: totals.resyncs,
        memory_bytes: totals.memory,
        memory_limit: header.nodes_len,
        served: gate::is_served(&header),
        budget_kept_by: attendants::keeper(&header).map(|pid| pid.0),
        looked_at_by: attendants::looker(&header)
            .filter(|_| header.looks.period_ns > 0)
            .map(|pid| pid.0),
        sidecar: sidecar::find(pid).map(|pid| pid.0),
        uncounted_modules: loaded::uncounted(pid, &shared, &header)?,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &status)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "process {pid} has been attached for {seconds:.1} s{}",
        if status.timed { "" } else { ", counting only" }
    )?;
    writeln!(out, "  functions  {}", count(status.functions.into()))?;
    writeln!(
        out,
        "  threads    {}, {} of them ended",
        count(status.threads),
        count(status.threads_ended)
    )?;
    writeln!(out, "  calls      {}", count(status.calls))?;
    writeln!(out, "  contexts   {}", count(status.contexts))?;
    if status.pruned_contexts > 0 {
        writeln!(
            out,
            "  pruned     {} contexts with {} calls",
            count(status.pruned_contexts),
            count(status.pruned_calls)
        )?;
    }
    if status.folded_calls > 0 {
        writeln!(
            out,
            "  folded     {} calls whose contexts found no room",
            count(status.folded_calls)
        )?;
    }
    writeln!(
        out,
        "  memory     {} of {}",
        bytes(status.memory_bytes),
        bytes(status.memory_limit)
    )?;
    if let Some(sidecar) = status.sidecar {
        writeln!(out, "  sidecar    process {sidecar}")?;
    }
    if let Some(keeper) = status.budget_kept_by {
        writeln!(out, "  budget     kept by process {keeper}")?;
    }
    if let Some(looker) = status.looked_at_by {
        writeln!(out, "  samples    taken by process {looker}")?;
    }
    if !status.uncounted_modules.is_empty() {
        writeln!(
            out,
            "  not counted, since loaded after attaching{}: {}",
            if status.served {
                ""
            } else {
                " while no `record` was there to instrument it"
            },
            printable(&status.uncounted_modules.join(", "))
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Of a process that has ended since it was attached.
fn show_ended(args: &Args, left: &Left) -> anyhow::Result<ExitCode> {
    let profile = left.profile()?;
    let threads = || profile.processes.iter().flat_map(|p| &p.threads);
    let nodes = || threads().flat_map(|thread| &thread.nodes);
    let process = profile.processes.iter().find(|p| p.pid == args.pid);
    let ended = match process.map_or(End::Unknown, |process| process.end) {
        End::Exited(status) => format!("exited with status {status}"),
        End::Killed(signal) => format!("was killed by signal {signal}"),
        End::Replaced => "has become another program".into(),
        End::Running | End::Unknown => "has ended".into(),
    };
    let status = Ended {
        pid: args.pid,
        ended,
        attached_for_seconds: profile.meta.duration_ns as f64 / 1e9,
        threads: threads().count() as u64,
        calls: nodes().map(|node| node.calls).sum(),
        contexts: nodes().count() as u64,
        kept_by: left.sidecar.0,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &status)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Ended { pid, ended, .. } = &status;
    writeln!(
        out,
        "process {pid} {ended} after it had been attached for {:.1} s",
        status.attached_for_seconds
    )?;
    writeln!(out, "  threads    {}", count(status.threads))?;
    writeln!(out, "  calls      {}", count(status.calls))?;
    writeln!(out, "  contexts   {}", count(status.contexts))?;
    writeln!(
        out,
        "  kept by process {} for an hour: `thalweg detach {pid} -o FILE` saves it",
        status.kept_by
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Attached, but not so that it could be counted.
fn left_over(args: Args, what: &str) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let pid = args.pid;
    if args.json {
        serde_json::to_writer_pretty(
            &mut out,
            &LeftOver {
                pid,
                left_over: what,
            },
        )?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "process {pid} is still attached and nothing is counted: it carries {what}; `thalweg detach {pid}` takes it out"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct Ended {
    pid: u32,
    /// How it ended, in words.
    ended: String,
    attached_for_seconds: f64,
    threads: u64,
    calls: u64,
    contexts: u64,
    /// The sidecar.
    kept_by: i32,
}

#[derive(Serialize)]
struct LeftOver<'a> {
    pid: u32,
    left_over: &'a str,
}

#[derive(Serialize)]
struct Status {
    pid: u32,
    attached_for_seconds: f64,
    timed: bool,
    functions: u32,
    threads: u64,
    threads_ended: u64,
    calls: u64,
    contexts: u64,
    folded_calls: u64,
    pruned_contexts: u64,
    pruned_calls: u64,
    slow_events: u64,
    resyncs: u64,
    memory_bytes: u64,
    memory_limit: u64,
    /// A `record` lives that instruments code as it is loaded.
    served: bool,
    /// The process of ours that stays beside it.
    sidecar: Option<i32>,
    /// The process that keeps a budget beside it.
    budget_kept_by: Option<i32>,
    /// The process that samples at stacks.
    looked_at_by: Option<i32>,
    uncounted_modules: Vec<String>,
}
