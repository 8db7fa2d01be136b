//! `report` without options, and the end of `record`: the head, the hottest functions, the hottest path.

use std::io::{self, Write};

use thalweg_analysis::{is_waiting_measured, waits};
use thalweg_model::{Metric, Profile};
use thalweg_views::flat::{Callers, Flat};
use thalweg_views::kernel::is_measured;
use thalweg_views::summary::{Head, Path, Step, Summary};
use thalweg_views::{Selection, SortKey};

use super::flat::{self, Columns};
use super::style::{Paint, Style};
use super::text::{
    TIME_WIDTH, Weights, at_least, bytes, calls, command_line, count, counted, cut, printable,
    share, time_inline, wrapped,
};
use super::{counting, held, kernel, state};
use crate::annotate;

/// As many as fit on a screen together with the rest.
pub const HOTTEST_FUNCTIONS: usize = 20;

/// Some programs get whole scripts as an argument; the profile has all of it.
const MAX_COMMAND_LENGTH: usize = 200;

/// The summary in the order of its importance, for those who did not ask for anything special.
pub fn print_summary_of(
    profile: &Profile,
    selection: &Selection,
    columns: &Columns,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let summary = Summary::new(profile, selection, columns.callers());
    let head = &summary.head;
    print_head(profile, head, out, style)?;
    if !profile.blocks.is_empty() {
        writeln!(out)?;
        return annotate::print_list(profile, HOTTEST_FUNCTIONS, out, style);
    }
    if head.contexts == 0 {
        return writeln!(out, "\nNo call was seen.");
    }
    if summary.hottest.is_empty() {
        return writeln!(out, "\nNo function that was seen matches.");
    }
    let title = match (summary.hottest.len() as u64, selection.sort) {
        (shown, _) if shown == head.functions_seen => "All functions".to_string(),
        (shown, SortKey::Name | SortKey::Module) => format!("{shown} functions"),
        (shown, key) => format!("The {shown} functions with most {}", key_name(key)),
    };
    writeln!(out, "\n{}", style.paint(Paint::Title, &title))?;
    flat::print_rows(profile, summary.hottest.iter(), columns, out, style)?;
    if is_measured(profile) {
        kernel::print_system_calls(profile, HOTTEST_FUNCTIONS, out, style)?;
    }
    if let Some(path) = &summary.hottest_path {
        print_path(profile, head.whole(), path, out, style)?;
    }
    Ok(())
}

fn allocated(profile: &Profile) -> String {
    let all = profile.total_metrics();
    let mut text = format!(
        "{} in {}; {} of {} freed; {} in {} live",
        bytes(all.get(Metric::AllocBytes)),
        counted(all.get(Metric::AllocCalls), "block", "blocks"),
        bytes(all.get(Metric::FreeBytes)),
        counted(all.get(Metric::FreeCalls), "block", "blocks"),
        bytes(all.get(Metric::LiveBytes)),
        counted(all.get(Metric::LiveObjects), "block", "blocks"),
    );
    if all.get(Metric::MapCalls) > 0 {
        text += &format!(
            "; {} mapped, {} unmapped",
            bytes(all.get(Metric::MapBytes)),
            bytes(all.get(Metric::UnmapBytes))
        );
    }
    text
}

/// Where waiting was kept apart both are named.
fn working(profile: &Profile, head: &Head) -> String {
    let time = match head.time_error_ns {
        0 => time_inline(head.time_ns),
        error => format!("{} +- {}", time_inline(head.time_ns), time_inline(error)),
    };
    if !is_waiting_measured(profile) {
        return time;
    }
    let waited = waits(profile).into_iter().map(|(_, time)| time);
    let waited = waited.fold(0, u64::saturating_add);
    format!("{time} on a processor, {} waiting", time_inline(waited))
}

fn key_name(key: SortKey) -> &'static str {
    match key {
        SortKey::SelfTime => "self time",
        SortKey::Total => "total time",
        SortKey::Wall => "wall time",
        SortKey::Waiting => "waiting",
        SortKey::Calls => "calls",
        SortKey::Min => "self time in their quickest call",
        SortKey::Max => "self time in one call",
        SortKey::Mean => "self time a call",
        SortKey::Threads => "threads",
        SortKey::Contexts => "contexts",
        SortKey::Recursion => "levels of recursion",
        SortKey::Allocs => "allocations",
        SortKey::Allocated => "bytes allocated",
        SortKey::Freed => "bytes freed",
        SortKey::Live => "bytes live",
        SortKey::Syscalls => "system calls",
        SortKey::SyscallTime => "time in system calls",
        SortKey::Faults => "page faults",
        SortKey::Switches => "switches",
        SortKey::Instructions => "instructions",
        SortKey::Cycles => "cycles",
        SortKey::CacheMisses => "cache misses",
        SortKey::Module | SortKey::Name => "name",
    }
}

/// At the end of a recording, after the few lines that matter then.
const HOTTEST_FUNCTIONS_AT_END: usize = 8;

/// What a recording ends with, on one screen.
pub fn print_end(
    profile: &Profile,
    head: &Head,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    print_some_head(profile, head, Detail::Brief, out, style)?;
    if !profile.blocks.is_empty() {
        writeln!(out)?;
        return annotate::print_list(profile, HOTTEST_FUNCTIONS_AT_END, out, style);
    }
    if head.contexts == 0 {
        return writeln!(out, "\nNo call was seen.");
    }
    let selection = Selection::by(SortKey::usual(profile)).at_most(HOTTEST_FUNCTIONS_AT_END);
    let flat = Flat::new(profile, &selection, Callers::LeftOut);
    writeln!(out)?;
    let columns = Columns::default();
    flat::print_rows(profile, flat.functions.iter(), &columns, out, style)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Detail {
    Brief,
    Full,
}

pub fn print_head(
    profile: &Profile,
    head: &Head,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    print_some_head(profile, head, Detail::Full, out, style)
}

/// Where the texts of the head begin.
const HEAD_INDENT: usize = 13;

fn print_some_head(
    profile: &Profile,
    head: &Head,
    detail: Detail,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let full = detail == Detail::Full;
    let meta = &profile.meta;
    let command = command_line(head.command);
    let title = cut(&command, style.width.unwrap_or(MAX_COMMAND_LENGTH));
    writeln!(out, "{}", style.paint(Paint::Title, &title))?;

    let how = if meta.attached {
        "attached for"
    } else {
        "ran for"
    };
    let clock = if meta.timed {
        ""
    } else {
        ", counted without a clock"
    };
    let mut line = |label: &str, text: String| {
        let mut label = label;
        for part in wrapped(&text, style.width, HEAD_INDENT) {
            writeln!(out, "  {label:<10} {part}")?;
            label = "";
        }
        Ok::<(), io::Error>(())
    };
    line(
        "recorded",
        format!("{how} {}{clock}", time_inline(meta.duration_ns)),
    )?;
    let threads = format!(
        "{} of {}",
        counted(head.threads, "thread", "threads"),
        counted(head.processes, "process", "processes"),
    );
    // Where blocks were counted calls were not.
    match profile.blocks.is_empty() || head.calls > 0 {
        true => {
            let calls = at_least(head.calls_at_least, count(head.calls));
            line("calls", format!("{calls} in {threads}"))?;
        }
        false => line("threads", threads)?,
    }
    if meta.timed && meta.weighed_by.is_none() {
        line(
            "time",
            format!("{}, all threads together", working(profile, head)),
        )?;
    }
    if let Some(metric) = meta.weighed_by {
        line(
            "shown",
            format!(
                "{} in the place of time: Self is a function's own, Total with its callees",
                metric.name()
            ),
        )?;
    } else if meta.metrics.contains(&Metric::AllocBytes) {
        line("allocated", allocated(profile))?;
    }
    if is_measured(profile) {
        line("kernel", kernel::total(profile))?;
    }
    for (metric, text) in counting::lines(profile) {
        line(metric, text)?;
    }
    if full {
        line(
            "functions",
            format!(
                "{} seen, {} patched, {} skipped ('thalweg probe --skipped' says why)",
                count(head.functions_seen),
                count(head.functions_patched),
                count(head.skipped),
            ),
        )?;
        line(
            "contexts",
            format!(
                "{}, the deepest of {}",
                count(head.contexts),
                counted(head.deepest, "level", "levels"),
            ),
        )?;
    }
    if head.pruned_contexts > 0 {
        line(
            "pruned",
            format!(
                "{} with {}, to stay within the memory: totals are exact, callers unknown (more room: --memory)",
                counted(head.pruned_contexts, "small context", "small contexts"),
                counted(head.pruned_calls, "call", "calls"),
            ),
        )?;
    }
    let folded = head.folded_calls.saturating_sub(head.pruned_calls);
    if folded > 0 {
        line(
            "folded",
            format!(
                "{} found no room in the tree: totals are exact, callers unknown (more room: --memory)",
                counted(folded, "call", "calls"),
            ),
        )?;
    }
    if full {
        line(
            "memory",
            format!(
                "{} of {}",
                bytes(meta.memory_bytes),
                bytes(meta.memory_limit)
            ),
        )?;
    }
    if let Some((cost, error)) = head.probes {
        line(
            "probes",
            format!(
                "{}, within {}, by calibration{}: taken out, '--raw' shows it",
                time_inline(cost as u64),
                time_inline(error as u64),
                if meta.sampling.is_some() {
                    " and samples"
                } else {
                    ""
                },
            ),
        )?;
    } else if meta.overhead_ns_per_call > 0.0 && head.calls > 0 {
        let total = meta.overhead_ns_per_call * head.calls as f64;
        line(
            "overhead",
            format!(
                "about {:.1} ns a call, {} in all",
                meta.overhead_ns_per_call,
                time_inline(total as u64),
            ),
        )?;
    }
    if let Some(factor) = head.slowdown {
        line(
            "slowdown",
            format!("{factor:.2} x on a processor, by the probes' cost that was taken out"),
        )?;
    }
    if let Some(text) = held::stopped(&meta.held).filter(|_| full) {
        line("stopped", text)?;
    }
    if let Some(text) = state::summary(profile).filter(|_| full) {
        line("switched", text)?;
    }
    if let Some(text) = state::samples(profile).filter(|_| full) {
        line("samples", text)?;
    }
    for note in head.notes {
        line("note", printable(note).into_owned())?;
    }
    Ok(())
}

/// Consecutive steps of one function, as recursion makes them.
struct Run<'a> {
    first: Step<'a>,
    levels: usize,
    calls: u64,
}

/// Of a long path the start and the end tell the most.
const PATH_HEAD: usize = 12;
const PATH_TAIL: usize = 12;

pub fn print_path(
    profile: &Profile,
    whole: u64,
    path: &Path,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let timed = profile.meta.timed;
    let title = format!(
        "Hottest path (thread {} {})",
        path.tid,
        printable(&path.thread_name)
    );
    writeln!(out, "\n{}", style.paint(Paint::Title, &title))?;

    let runs = runs(&path.steps);
    let weights = Weights::of_profile(profile);
    let calls_width = runs
        .iter()
        .map(|run| run_calls(profile, run).len())
        .fold("Calls".len(), usize::max);
    let total_head = if timed {
        format!("{:>TIME_WIDTH$}  ", "Total")
    } else {
        String::new()
    };
    let head = format!("{:>calls_width$}  {total_head}{:>6}  Name", "Calls", "%");
    writeln!(out, "{}", style.paint(Paint::Title, &head))?;

    let before_name = calls_width + 2 + total_head.len() + 8;
    let hidden = hidden_part(runs.len());
    for (number, run) in runs.iter().enumerate() {
        if number == hidden.start && !hidden.is_empty() {
            let text = format!("{:before_name$}... {} more levels ...", "", hidden.len());
            writeln!(out, "{}", style.paint(Paint::Aside, &text))?;
        }
        if hidden.contains(&number) {
            continue;
        }
        let step = &run.first;
        let total_ns = if timed {
            format!("{}  ", weights.text(step.weight))
        } else {
            String::new()
        };
        let share = share(step.weight, whole);
        let indent = (number
            - if number >= hidden.end {
                hidden.len()
            } else {
                0
            })
        .min(PATH_HEAD + PATH_TAIL);
        let mut name = printable(step.name).into_owned();
        if run.levels > 1 {
            name.push_str(&format!(" ({} levels)", count(run.levels as u64)));
        }
        if let Some(width) = style.width {
            let room = width.saturating_sub(before_name + indent).max(16);
            name = cut(&name, room).into_owned();
        }
        writeln!(
            out,
            "{:>calls_width$}  {total_ns}{share}  {:indent$}{name}",
            run_calls(profile, run),
            "",
        )?;
    }
    if path.spreads_over > 0 {
        let callees = counted(path.spreads_over as u64, "callee", "callees");
        let text = format!("{:before_name$}and from there into {callees}", "");
        writeln!(out, "{}", style.paint(Paint::Aside, &text))?;
    }
    Ok(())
}

fn run_calls(profile: &Profile, run: &Run) -> String {
    at_least(run.first.calls_at_least, calls(profile, run.calls))
}

fn runs<'a>(steps: &[Step<'a>]) -> Vec<Run<'a>> {
    steps
        .chunk_by(|a, b| a.function == b.function)
        .map(|run| Run {
            first: run[0],
            levels: run.len(),
            calls: run
                .iter()
                .fold(0, |sum, step| sum.saturating_add(step.calls)),
        })
        .collect()
}

fn hidden_part(steps: usize) -> std::ops::Range<usize> {
    // A line that stands for one or two others saves nothing.
    if steps <= PATH_HEAD + PATH_TAIL + 2 {
        return steps..steps;
    }
    PATH_HEAD..steps - PATH_TAIL
}
