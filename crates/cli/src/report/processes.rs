//! Processes of a recording, above their threads: what each ran, who started it and how it ended.

use std::io::{self, Write};

use thalweg_views::processes::ProcessOf;

use super::style::Style;
use super::table::{Align, Cell, Table};
use super::text::{command_line, count, printable, time};

/// One row per process, or per program that a process was. Nothing where there is but one.
pub fn print_processes(
    processes: &[ProcessOf],
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    if processes.len() < 2 {
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
    for process in processes {
        let parent = process.parent.map_or(String::new(), |pid| pid.to_string());
        table.row(vec![
            Cell::new(process.pid.to_string()),
            Cell::new(parent),
            Cell::new(time(process.start_ns)),
            Cell::new(time(process.end_ns)),
            Cell::new(count(process.threads)),
            Cell::new(count(process.calls)),
            Cell::new(process.ended.clone()),
            Cell::new(printable(&command_line(process.command))),
        ]);
    }
    table.print(out)?;
    writeln!(out)
}
