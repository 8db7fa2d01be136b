//! Processes of a recording: what each ran, who started it and how it ended.

use serde::Serialize;
use thalweg_model::{End, Process, Profile};

/// A process, or a program that a process was.
#[derive(Serialize)]
pub struct ProcessOf<'a> {
    pub pid: u32,
    pub parent: Option<u32>,
    pub command: &'a [String],
    pub start_ns: u64,
    pub end_ns: u64,
    pub ended: String,
    pub threads: u64,
    pub calls: u64,
}

impl<'a> ProcessOf<'a> {
    pub fn all(profile: &'a Profile) -> Vec<ProcessOf<'a>> {
        let each = profile.processes.iter().map(|process| ProcessOf {
            pid: process.pid,
            parent: process.parent,
            command: &process.command,
            start_ns: process.start_ns,
            end_ns: process.end_ns,
            ended: ended(process.end),
            threads: threads(process),
            calls: calls(process),
        });
        each.collect()
    }
}

fn threads(process: &Process) -> u64 {
    let each = process.threads.iter();
    each.fold(0, |sum, thread| sum + 1 + thread.others)
}

fn calls(process: &Process) -> u64 {
    let nodes = process.threads.iter().flat_map(|thread| &thread.nodes);
    nodes.fold(0, |sum, node| sum.saturating_add(node.calls))
}

fn ended(end: End) -> String {
    match end {
        End::Unknown => String::new(),
        End::Running => "goes on".into(),
        End::Exited(status) => format!("status {status}"),
        End::Killed(signal) => format!("signal {signal}"),
        End::Replaced => "became another".into(),
    }
}
