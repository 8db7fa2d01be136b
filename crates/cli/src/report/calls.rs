//! `thalweg calls`: calls that were recorded one by one, as trees or as a list.

use std::io::{self, Write};

use thalweg_formats::calls::Calls;
use thalweg_model::{Call, CallEnd, Profile};

use super::style::{Paint, Style};
use super::text::{TIME_WIDTH, count, counted, cut, printable, time, time_inline};

const MIN_NAME_WIDTH: usize = 10;

/// Of how many functions it is said how they are declared.
const MOST_SIGNATURES: usize = 20;

/// Which of the calls, by index: those that pass a filter, and for trees also those above them.
pub fn print_calls(
    profile: &Profile,
    chosen: &[bool],
    as_tree: bool,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let calls = Calls::new(profile);
    let shown = match as_tree {
        true => with_callers(calls.all(), chosen),
        false => chosen.to_vec(),
    };
    let heading = format!(
        "{:>12}  {:>width$}  {:>width$}  {:>width$}  {}",
        "At",
        "Total",
        "Self",
        "Waited",
        "Call",
        width = TIME_WIDTH
    );
    let mut levels = vec![0u32; calls.all().len()];
    let mut last = None;
    for (index, call) in calls.all().iter().enumerate() {
        levels[index] = call.parent.map_or(0, |parent| levels[parent as usize] + 1);
        let wanted = match as_tree {
            true => shown[index],
            false => shown[index] && call.rule.is_some(),
        };
        if !wanted {
            continue;
        }
        let group = (call.pid, call.tid, call.request);
        if as_tree && last != Some(group) {
            if last.is_some() {
                writeln!(out)?;
            }
            writeln!(out, "{}", style.paint(Paint::Title, &title(&calls, call)))?;
        }
        if last.is_none() || as_tree && last != Some(group) {
            writeln!(out, "{}", style.paint(Paint::Aside, &heading))?;
        }
        last = Some(group);
        let level = if as_tree { levels[index] } else { 0 };
        row(&calls, call, level, out, style)?;
    }
    footer(profile, chosen, out)
}

/// One call, without those around it.
pub fn print_call(
    calls: &Calls,
    call: &Call,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    row(calls, call, 0, out, style)
}

fn with_callers(calls: &[Call], chosen: &[bool]) -> Vec<bool> {
    let mut shown = chosen.to_vec();
    for (index, call) in calls.iter().enumerate().rev() {
        if let Some(parent) = call.parent
            && shown[index]
        {
            shown[parent as usize] = true;
        }
    }
    shown
}

fn title(calls: &Calls, call: &Call) -> String {
    let thread = printable(calls.thread(call));
    let of = match thread.is_empty() {
        true => format!("thread {}", call.tid),
        false => format!("thread {} {thread}", call.tid),
    };
    let of = match call.pid == call.tid {
        true => of,
        false => format!("{of} of process {}", call.pid),
    };
    match call.request {
        0 => of,
        request => format!("request {request}, {of}"),
    }
}

fn row(
    calls: &Calls,
    call: &Call,
    level: u32,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let known = !matches!(call.end, CallEnd::Lost);
    let span = |ns: u64| match known {
        true => time(ns),
        false => format!("{:>TIME_WIDTH$}", "?"),
    };
    let figures = format!(
        "{:>10.6} s  {}  {}  {}  ",
        call.entry_ns as f64 / 1e9,
        span(call.total_ns()),
        span(call.self_ns),
        span(call.waited_ns)
    );
    let indent = "  ".repeat(level as usize);
    let mut name = printable(calls.function(call)).into_owned();
    for (what, at_entry, json) in calls.values(call) {
        let arrow = if at_entry { "" } else { "-> " };
        name.push_str(&format!("  {arrow}{}={}", printable(what), printable(json)));
    }
    if call.end != CallEnd::Returned {
        name.push_str(&format!("  [{}]", call.end.word()));
    }
    let name = match style.width {
        Some(width) => {
            let room = width.saturating_sub(figures.len() + indent.len());
            cut(&name, room.max(MIN_NAME_WIDTH)).into_owned()
        }
        None => name,
    };
    let paint = match call.rule {
        Some(_) => Paint::Plain,
        None => Paint::Aside,
    };
    writeln!(out, "{figures}{indent}{}", style.paint(paint, &name))
}

fn footer(profile: &Profile, chosen: &[bool], out: &mut impl Write) -> io::Result<()> {
    let recorded = &profile.recorded;
    let calls = recorded.calls.iter().zip(chosen);
    let kept = calls.filter(|(call, chosen)| **chosen && call.rule.is_some());
    let kept = kept.count() as u64;
    if !recorded.calls.is_empty() {
        writeln!(out)?;
    }
    writeln!(
        out,
        "{} chosen by {}",
        counted(kept, "call", "calls"),
        counted(recorded.rules.len() as u64, "rule", "rules"),
    )?;
    for (number, rule) in recorded.rules.iter().enumerate() {
        let took = recorded.calls.iter().zip(chosen);
        let took = took.filter(|(call, chosen)| **chosen && call.rule == Some(number as u32));
        let longest = took.map(|(call, _)| call.total_ns()).max();
        let longest = longest.map_or_else(String::new, |ns| {
            format!(", the longest took {}", time_inline(ns))
        });
        writeln!(
            out,
            "  {}: {}{longest}",
            printable(&rule.text),
            count(rule.kept)
        )?;
    }
    let calls = Calls::new(profile);
    let mut declared: Vec<(&str, &str)> = Vec::new();
    for (call, _) in recorded
        .calls
        .iter()
        .zip(chosen)
        .filter(|(call, chosen)| **chosen && call.rule.is_some())
    {
        let pair = (calls.function(call), recorded.signature(call.function));
        if let (name, Some(text)) = pair
            && !declared.contains(&(name, text))
        {
            declared.push((name, text));
        }
        if declared.len() == MOST_SIGNATURES {
            break;
        }
    }
    for (name, text) in declared {
        writeln!(out, "  {} is {}", printable(name), printable(text))?;
    }
    if recorded.dropped > 0 {
        writeln!(
            out,
            "{} found no room and were dropped: see --record-memory and --keep-calls",
            counted(recorded.dropped, "chosen call", "chosen calls")
        )?;
    }
    Ok(())
}
