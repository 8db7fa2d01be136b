//! Processes of a recording, above their threads: what each ran, who started it and how it ended.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_model::{End, Process, Profile};

use super::style::Style;
use super::table::{Align, Cell, Table};
use super::text::{command_line, count, printable, time};

/// One row per process, or per program that a process was. Nothing where there is but one.
pub fn print_processes(profile: &Profile, out: &mut impl Write, style: Style) -> io::Result<()> {
    if profile.processes.len() < 2 {
        return Ok(());
    }
    let mut table = Table::new(style)
        .column("Process", Align::Right)
        .column("Parent", Align::Right)
        .column("Start", Align::Right)
        .column("End", Align::Right)
        .column("Threads", Align::Right)
        .dispensable(1)
        .column("Calls", Align::Right)
        .column("Ended", Align::Left)
        .column("Command", Align::Left);
    for process in &profile.processes {
        let parent = process.parent.map_or(String::new(), |pid| pid.to_string());
        table.row(vec![
            Cell::new(process.pid.to_string()),
            Cell::new(parent),
            Cell::new(time(process.start_ns)),
            Cell::new(time(process.end_ns)),
            Cell::new(count(threads(process))),
            Cell::new(count(calls(process))),
            Cell::new(ended(process.end)),
            Cell::new(printable(&command_line(&process.command))),
        ]);
    }
    table.print(out)?;
    writeln!(out)
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

#[derive(Serialize)]
pub struct ProcessOf<'a> {
    pid: u32,
    parent: Option<u32>,
    command: &'a [String],
    start_ns: u64,
    end_ns: u64,
    ended: String,
    threads: u64,
    calls: u64,
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
