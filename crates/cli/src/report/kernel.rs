//! System calls in reports: the table by name, and what it does not cover.

use std::io::{self, Write};

use thalweg_model::{Made, Metric, Profile};
use thalweg_views::kernel::{SystemCallOf, by_name, uncounted};

use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{count, counted, printable, share, time, time_inline};

/// As many functions as a line names.
const MAX_NAMED: usize = 6;

/// One line for all.
pub fn total(profile: &Profile) -> String {
    let all = profile.total_metrics();
    let calls = counted(all.get(Metric::SyscallCalls), "system call", "system calls");
    match profile.meta.timed {
        true => format!(
            "{calls}, {} in the functions that make them, waiting included",
            time_inline(all.get(Metric::SyscallTime))
        ),
        false => calls,
    }
}

pub fn print_system_calls(
    profile: &Profile,
    limit: usize,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let all = by_name(profile);
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", style.paint(Paint::Title, "System calls"))?;
    let whole = all
        .iter()
        .fold(0u64, |sum, one| sum.saturating_add(one.time_ns));
    let timed = profile.meta.timed;
    let mut table = Table::new(style).column("Calls", Align::Right);
    if timed {
        table = table.column(format!("{:>10} {:>6}", "Time", "%"), Align::Right);
    }
    table = table
        .column("Name", Align::Left)
        .column("Made by", Align::Left);
    for one in all.iter().take(limit) {
        let mut cells = vec![Cell::new(count(one.calls))];
        if timed {
            let text = format!("{} {}", time(one.time_ns), share(one.time_ns, whole));
            cells.push(Cell::painted(text, style.heat(one.time_ns, whole)));
        }
        cells.push(Cell::new(one.name.clone()));
        cells.push(Cell::new(makers(one)));
        table.row(cells);
    }
    table.print(out)?;
    if all.len() > limit {
        let text = format!("... and {} more", count((all.len() - limit) as u64));
        writeln!(out, "{}", style.paint(Paint::Aside, &text))?;
    }
    let uncounted = uncounted(profile);
    if !uncounted.is_empty() {
        let functions: Vec<String> = uncounted
            .iter()
            .map(|one| {
                let name = printable(one.name);
                let each = match one.made {
                    Some(Made::Between(least, Some(most))) => format!("{least} to {most} each"),
                    Some(Made::Between(least, None)) => format!("{least} or more each"),
                    _ => "unknown".to_string(),
                };
                format!("{name} ({}, {each})", counted(one.calls, "call", "calls"))
            })
            .collect();
        let text = format!(
            "not counted, because it depends on the way a call takes how many it makes: {}",
            functions.join(", ")
        );
        writeln!(out, "{}", style.paint(Paint::Aside, &text))?;
    }
    Ok(())
}

fn makers(one: &SystemCallOf) -> String {
    let names = one.functions.iter().take(MAX_NAMED);
    let names: Vec<String> = names.map(|name| printable(name).into_owned()).collect();
    let more = match one.functions.len() > MAX_NAMED {
        true => ", ...",
        false => "",
    };
    format!("{}{more}", names.join(", "))
}
