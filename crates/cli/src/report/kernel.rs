//! System calls in reports: the table by name, and what it does not cover.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{SystemCalls, system_calls, system_calls_made, uncounted_system_calls};
use thalweg_model::{Made, Metric, Profile};

use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{count, counted, printable, share, time, time_inline};

/// As many functions as a line names.
const NAMED: usize = 6;

pub fn is_measured(profile: &Profile) -> bool {
    let meta = &profile.meta;
    meta.weighed_by.is_none() && meta.metrics.contains(&Metric::SyscallCalls)
}

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
    let all = system_calls(profile);
    if all.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{}", style.paint(Paint::Title, "System calls"))?;
    let whole = all
        .iter()
        .fold(0u64, |sum, one| sum.saturating_add(one.time));
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
            let text = format!("{} {}", time(one.time), share(one.time, whole));
            cells.push(Cell::painted(text, style.heat(one.time, whole)));
        }
        cells.push(Cell::new(one.name.clone()));
        cells.push(Cell::new(makers(profile, one)));
        table.row(cells);
    }
    table.print(out)?;
    if all.len() > limit {
        let text = format!("... and {} more", count((all.len() - limit) as u64));
        writeln!(out, "{}", style.paint(Paint::Aside, &text))?;
    }
    let uncounted = uncounted_system_calls(profile);
    if !uncounted.is_empty() {
        let functions: Vec<String> = uncounted
            .iter()
            .map(|&(function, calls)| {
                let name = printable(&profile.functions[function as usize].name);
                let each = match system_calls_made(profile, function) {
                    Some(Made::Between(least, Some(most))) => format!("{least} to {most} each"),
                    Some(Made::Between(least, None)) => format!("{least} or more each"),
                    _ => "unknown".to_string(),
                };
                format!("{name} ({}, {each})", counted(calls, "call", "calls"))
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

fn makers(profile: &Profile, one: &SystemCalls) -> String {
    let names = one.functions.iter().take(NAMED);
    let names: Vec<String> = names
        .map(|&function| printable(&profile.functions[function as usize].name).into_owned())
        .collect();
    let more = match one.functions.len() > NAMED {
        true => ", ...",
        false => "",
    };
    format!("{}{more}", names.join(", "))
}

#[derive(Serialize)]
pub struct SystemCallOf<'a> {
    name: String,
    calls: u64,
    time_ns: u64,
    functions: Vec<&'a str>,
}

#[derive(Serialize)]
pub struct UncountedOf<'a> {
    name: &'a str,
    calls: u64,
}

pub fn by_name(profile: &Profile) -> Vec<SystemCallOf<'_>> {
    let name = |function: &u32| profile.functions[*function as usize].name.as_str();
    let all = system_calls(profile).into_iter();
    all.map(|one| SystemCallOf {
        functions: one.functions.iter().map(name).collect(),
        name: one.name,
        calls: one.calls,
        time_ns: one.time,
    })
    .collect()
}

pub fn uncounted(profile: &Profile) -> Vec<UncountedOf<'_>> {
    let all = uncounted_system_calls(profile).into_iter();
    all.map(|(function, calls)| UncountedOf {
        name: &profile.functions[function as usize].name,
        calls,
    })
    .collect()
}
