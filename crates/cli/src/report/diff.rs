//! `thalweg diff`: what changed between two sides, most first, with what runs differ by anyway.

use std::io::{self, Write};

use thalweg_analysis::Delta;
use thalweg_views::diff::{Changes, DeltaOf};

use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{Weights, at_least, count, counted, printable, signed_count, wrapped};

const MAX_PATH_LENGTH: usize = 40;

/// `weights`: what stands in the place of time.
pub fn print_diff(
    view: &Changes,
    weights: Weights,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let (DeltaOf(whole_calls), DeltaOf(whole_self)) = (view.calls, view.self_ns);
    let side = |label: &str, runs: usize, calls: f64, is_bound: bool, self_ns: f64| {
        let mean = if runs > 1 { " on average" } else { "" };
        let time = match view.timed {
            true => format!(", {}", weights.inline(self_ns as u64)),
            false => String::new(),
        };
        let runs = counted(runs as u64, "run", "runs");
        format!(
            "{label:<7} {runs}, {} calls{time}{mean}",
            at_least(is_bound, count(calls.round() as u64))
        )
    };
    writeln!(
        out,
        "{}",
        side(
            "before",
            view.runs_before,
            whole_calls.before,
            whole_calls.at_least[0],
            whole_self.before
        )
    )?;
    writeln!(
        out,
        "{}",
        side(
            "after",
            view.runs_after,
            whole_calls.after,
            whole_calls.at_least[1],
            whole_self.after
        )
    )?;
    if view.runs_before + view.runs_after == 2 && view.timed {
        let text = "one run a side: +- is what the figures may be off by and what calls differ by within a run; \
                    what runs differ by anyway is not known (--before A1 A2 --after B1 B2)";
        for line in wrapped(text, style.width, 0) {
            writeln!(out, "{}", style.paint(Paint::Aside, &line))?;
        }
    }
    writeln!(out)?;

    let not_shown = view.not_shown;
    if view.rows.is_empty() {
        let text = match not_shown.within_noise {
            0 => "Nothing changed.",
            _ => "No change seen.",
        };
        writeln!(out, "{text}")?;
    } else {
        print_table(view, weights, out, style)?;
    }
    let what = |count| match view.contexts {
        true => counted(count, "context", "contexts"),
        false => counted(count, "function", "functions"),
    };
    let mut left_out = Vec::new();
    if not_shown.beyond_limit > 0 {
        left_out.push(format!(
            "{} that changed less",
            what(not_shown.beyond_limit)
        ));
    }
    if not_shown.within_noise > 0 {
        left_out.push(format!(
            "{} with no change beyond noise and errors",
            what(not_shown.within_noise)
        ));
    }
    if not_shown.unchanged > 0 {
        left_out.push(format!("{} that did not change", what(not_shown.unchanged)));
    }
    if !left_out.is_empty() {
        let text = format!("not shown: {}", left_out.join(", "));
        for line in wrapped(&text, style.width, 0) {
            writeln!(out, "{}", style.paint(Paint::Aside, &line))?;
        }
    }
    Ok(())
}

fn print_table(
    view: &Changes,
    weights: Weights,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let noise_known = view.runs_before + view.runs_after > 2;
    let limits_known = view.has_limits;
    let mut table = Table::new(style);
    if view.timed {
        table = table.column("Self", Align::Right).column("%", Align::Right);
        if limits_known {
            table = table.column("+-", Align::Right);
        }
        table = table
            .column("Before", Align::Right)
            .dispensable(1)
            .column("After", Align::Right)
            .dispensable(1);
    }
    table = table.column("Calls", Align::Right);
    if noise_known {
        table = table.column("+-", Align::Right).dispensable(2);
    }
    table = table
        .column("Before", Align::Right)
        .dispensable(2)
        .column("After", Align::Right)
        .dispensable(2)
        .column("Module", Align::Left)
        .at_most(24)
        .dispensable(3)
        .column(if view.contexts { "Context" } else { "Name" }, Align::Left);
    for row in &view.rows {
        let (DeltaOf(calls), DeltaOf(self_ns)) = (row.calls, row.self_ns);
        let mut cells = Vec::new();
        if view.timed {
            let paint = match self_ns.is_real() {
                true if self_ns.change() > 0.0 => Paint::Hot,
                true => Paint::Cool,
                false => Paint::Aside,
            };
            let change = marked(&self_ns, weights.signed(self_ns.change()));
            cells.push(Cell::painted(change, paint));
            cells.push(Cell::painted(relative(&self_ns), paint));
            if limits_known {
                cells.push(Cell::new(weights.text(self_ns.limit() as u64)));
            }
            cells.push(Cell::new(weights.text(self_ns.before as u64)));
            cells.push(Cell::new(weights.text(self_ns.after as u64)));
        }
        cells.push(Cell::new(marked(&calls, signed_count(calls.change()))));
        if noise_known {
            let noise = calls
                .noise
                .map_or(String::new(), |n| count(n.round() as u64));
            cells.push(Cell::new(noise));
        }
        for (figure, is_bound) in [calls.before, calls.after].into_iter().zip(calls.at_least) {
            let figure = count(figure.round() as u64);
            cells.push(Cell::new(at_least(is_bound, figure)));
        }
        cells.push(Cell::new(printable(row.module)));
        cells.push(Cell::new(match &row.path {
            Some(path) => chain(path),
            None => printable(row.name).into_owned(),
        }));
        table.row(cells);
    }
    table.print(out)
}

/// `main > a > b` for a context, of which the innermost functions tell the most.
fn chain(path: &[&str]) -> String {
    let inner = &path[path.len().saturating_sub(MAX_PATH_LENGTH)..];
    let names = inner.iter().map(|name| printable(name));
    let text = names.collect::<Vec<_>>().join(" > ");
    match inner.len() == MAX_PATH_LENGTH {
        true => format!("... > {text}"),
        false => text,
    }
}

/// `~`: a difference, but no change that was seen.
fn marked(delta: &Delta, text: String) -> String {
    match delta.change() != 0.0 && !delta.is_real() {
        true => format!("~ {text}"),
        false => text,
    }
}

fn relative(delta: &Delta) -> String {
    if delta.before == 0.0 {
        return "new".to_string();
    }
    if delta.after == 0.0 {
        return "gone".to_string();
    }
    let times = delta.after / delta.before;
    match times >= MIN_TIMES {
        true => format!("{} x", count(times.round() as u64)),
        false => format!("{:+.1}%", delta.change() * 100.0 / delta.before),
    }
}

/// From here on nobody reads a change in percent.
const MIN_TIMES: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_in_percent_until_that_says_nothing() {
        let told = |before: f64, after: f64| {
            relative(&Delta {
                before,
                after,
                ..Delta::default()
            })
        };
        assert_eq!(told(0.0, 5.0), "new");
        assert_eq!(told(5.0, 0.0), "gone");
        assert_eq!(told(4.0, 5.0), "+25.0%");
        assert_eq!(told(4.0, 39.0), "+875.0%");
        assert_eq!(told(1.0, 29_425.0), "29,425 x");
    }
}
