//! `thalweg calls --durations`: how long recorded calls took, a histogram for each function.

use std::io::{self, Write};

use thalweg_views::durations::{CallDurations, Durations};

use super::style::{Paint, Style};
use super::text::{TIME_WIDTH, count, counted, printable, time, time_inline};

/// The longest bar, where the terminal has room for it.
const MAX_BAR: usize = 50;
const MIN_BAR: usize = 8;

pub fn print_durations(
    durations: &CallDurations,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    if durations.functions.is_empty() {
        return writeln!(out, "none of the chosen calls that are meant has ended");
    }
    for (number, function) in durations.functions.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let name = printable(function.name);
        let name = style.paint(Paint::Title, &name);
        let module = printable(function.module);
        writeln!(
            out,
            "{name}{}",
            style.paint(Paint::Aside, &format!("  {module}"))
        )?;
        print_one(&function.durations, out, style)?;
    }
    Ok(())
}

fn print_one(durations: &Durations, out: &mut impl Write, style: Style) -> io::Result<()> {
    writeln!(
        out,
        "  {}: half within {}, 90 % {}, 99 % {}, all {}",
        counted(durations.calls, "call", "calls"),
        time_inline(durations.median_ns),
        time_inline(durations.p90_ns),
        time_inline(durations.p99_ns),
        time_inline(durations.longest_ns),
    )?;
    let most = durations.buckets.iter().map(|bucket| bucket.calls).max();
    let most = most.unwrap_or(0).max(1);
    let calls_width = count(most).len().max("Calls".len());
    let heading = format!(
        "  {:>TIME_WIDTH$}  {:>TIME_WIDTH$}  {:>calls_width$}",
        "From", "Below", "Calls"
    );
    writeln!(out, "{}", style.paint(Paint::Aside, &heading))?;
    let room = style.width.map_or(MAX_BAR, |width| {
        let room = width.saturating_sub(heading.len() + 2);
        room.clamp(MIN_BAR, MAX_BAR)
    });
    for bucket in &durations.buckets {
        // Whatever is not none can be seen.
        let length = (bucket.calls as u128 * room as u128).div_ceil(u128::from(most)) as usize;
        let row = format!(
            "  {}  {}  {:>calls_width$}  {}",
            time(bucket.from_ns),
            time(bucket.to_ns),
            count(bucket.calls),
            "#".repeat(length)
        );
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(())
}
