//! `thalweg diff`: what changed between two sides, most first, with what runs differ by anyway.

use std::cmp::Ordering;
use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{Change, Delta, Diff};
use thalweg_model::Metric;

use super::json::finish;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{at_least, count, counted, printable, signed_count, signed_time, time};

/// What is compared, and which rows are wanted.
pub struct Sides<'a> {
    /// The metric in the place of time.
    pub weighed_by: Option<Metric>,
    pub diff: &'a Diff,
    pub timed: bool,
    pub before: usize,
    pub after: usize,
    /// Rows per calling context instead of per function.
    pub contexts: bool,
    /// Rows that are noise as well, and those that did not change.
    pub all: bool,
    pub limit: Option<usize>,
    /// Of each name in the diff, whether it is wanted.
    pub keeps: Vec<bool>,
}

struct Row {
    /// Index into the functions or contexts of the diff.
    index: usize,
    name: u32,
    change: Change,
}

struct Rows {
    shown: Vec<Row>,
    within_noise: u64,
    unchanged: u64,
    beyond_limit: u64,
}

impl Sides<'_> {
    /// Whether times have errors, or several runs noise.
    fn has_limits(&self) -> bool {
        self.before + self.after > 2 || self.has_errors()
    }

    fn has_errors(&self) -> bool {
        let functions = self.diff.functions.iter();
        functions.clone().any(|row| row.change.base.error > 0.0)
    }

    fn figure(&self, change: &Change) -> Delta {
        match self.timed {
            true => change.base,
            false => change.calls,
        }
    }

    fn is_real(&self, change: &Change) -> bool {
        change.calls.is_real() || (self.timed && change.base.is_real())
    }

    /// Most change of the figure that counts first.
    fn rows(&self) -> Rows {
        let functions = self.diff.functions.iter().map(|row| (row.name, row.change));
        let contexts = self.diff.contexts.iter().map(|row| (row.name, row.change));
        let all: Vec<(u32, Change)> = match self.contexts {
            true => contexts.collect(),
            false => functions.collect(),
        };
        let mut rows = Rows {
            shown: Vec::new(),
            within_noise: 0,
            unchanged: 0,
            beyond_limit: 0,
        };
        for (index, (name, change)) in all.into_iter().enumerate() {
            let moved = change.calls.change() != 0.0 || change.base.change() != 0.0;
            if !self.keeps[name as usize] {
                continue;
            } else if !self.all && !moved {
                rows.unchanged += 1;
            } else if !self.all && !self.is_real(&change) {
                rows.within_noise += 1;
            } else {
                let row = Row {
                    index,
                    name,
                    change,
                };
                rows.shown.push(row);
            }
        }
        let size = |row: &Row| self.figure(&row.change).change().abs();
        rows.shown.sort_by(|a, b| {
            let by_size = size(b).partial_cmp(&size(a)).unwrap_or(Ordering::Equal);
            by_size
                .then_with(|| {
                    let calls = |row: &Row| row.change.calls.change().abs();
                    calls(b).partial_cmp(&calls(a)).unwrap_or(Ordering::Equal)
                })
                .then(a.index.cmp(&b.index))
        });
        if let Some(limit) = self.limit
            && rows.shown.len() > limit
        {
            rows.beyond_limit = (rows.shown.len() - limit) as u64;
            rows.shown.truncate(limit);
        }
        rows
    }

    fn name(&self, name: u32) -> String {
        printable(&self.diff.names[name as usize].function).into_owned()
    }

    /// `main > a > b` for a context.
    fn path(&self, context: usize) -> String {
        let contexts = &self.diff.contexts;
        let chain = std::iter::successors(Some(context as u32), |&at| contexts[at as usize].parent);
        let mut names: Vec<String> = chain
            .take(LONGEST_PATH)
            .map(|at| self.name(contexts[at as usize].name))
            .collect();
        if names.len() == LONGEST_PATH {
            names.push("...".to_string());
        }
        names.reverse();
        names.join(" > ")
    }
}

const LONGEST_PATH: usize = 40;

pub fn print_diff(sides: &Sides, out: &mut impl Write, style: Style) -> io::Result<()> {
    let whole = &sides.diff.whole;
    let side = |label: &str, runs: usize, calls: f64, is_bound: bool, base: f64| {
        let mean = if runs > 1 { " on average" } else { "" };
        let time = match sides.timed {
            true => format!(", {}", time(base as u64).trim()),
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
            sides.before,
            whole.calls.before,
            whole.calls.at_least[0],
            whole.base.before
        )
    )?;
    writeln!(
        out,
        "{}",
        side(
            "after",
            sides.after,
            whole.calls.after,
            whole.calls.at_least[1],
            whole.base.after
        )
    )?;
    if sides.before + sides.after == 2 && sides.timed {
        let text = "one run a side: +- is what the figures may be off by and what calls differ by within a run; \
                    what runs differ by anyway is not known (--before A1 A2 --after B1 B2)";
        writeln!(out, "{}", style.paint(Paint::Aside, text))?;
    }
    writeln!(out)?;

    let rows = sides.rows();
    if rows.shown.is_empty() {
        let text = match rows.within_noise {
            0 => "Nothing changed.",
            _ => "No change seen.",
        };
        writeln!(out, "{text}")?;
    } else {
        print_table(sides, &rows, out, style)?;
    }
    let what = |count| match sides.contexts {
        true => counted(count, "context", "contexts"),
        false => counted(count, "function", "functions"),
    };
    let mut left_out = Vec::new();
    if rows.beyond_limit > 0 {
        left_out.push(format!("{} that changed less", what(rows.beyond_limit)));
    }
    if rows.within_noise > 0 {
        left_out.push(format!(
            "{} with no change beyond noise and errors",
            what(rows.within_noise)
        ));
    }
    if rows.unchanged > 0 {
        left_out.push(format!("{} that did not change", what(rows.unchanged)));
    }
    if !left_out.is_empty() {
        let text = format!("not shown: {}", left_out.join(", "));
        writeln!(out, "{}", style.paint(Paint::Aside, &text))?;
    }
    Ok(())
}

fn print_table(sides: &Sides, rows: &Rows, out: &mut impl Write, style: Style) -> io::Result<()> {
    let noise_known = sides.before + sides.after > 2;
    let limits_known = sides.has_limits();
    let mut table = Table::new(style);
    if sides.timed {
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
        .column("After", Align::Right)
        .column("Module", Align::Left)
        .at_most(24)
        .dispensable(3)
        .column(if sides.contexts { "Context" } else { "Name" }, Align::Left);
    for row in &rows.shown {
        let Change { calls, base, .. } = row.change;
        let mut cells = Vec::new();
        if sides.timed {
            let paint = match base.is_real() {
                true if base.change() > 0.0 => Paint::Hot,
                true => Paint::Cool,
                false => Paint::Aside,
            };
            let change = marked(&base, signed_time(base.change()));
            cells.push(Cell::painted(change, paint));
            cells.push(Cell::painted(relative(&base), paint));
            if limits_known {
                cells.push(Cell::new(time(base.limit() as u64)));
            }
            cells.push(Cell::new(time(base.before as u64)));
            cells.push(Cell::new(time(base.after as u64)));
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
        let name = &sides.diff.names[row.name as usize];
        cells.push(Cell::new(printable(&name.module)));
        cells.push(Cell::new(match sides.contexts {
            true => sides.path(row.index),
            false => sides.name(row.name),
        }));
        table.row(cells);
    }
    table.print(out)
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
    format!("{:+.1}%", delta.change() * 100.0 / delta.before)
}

fn is_nothing(value: &f64) -> bool {
    *value == 0.0
}

pub fn print_diff_json(sides: &Sides, out: &mut impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        schema: &'static str,
        timed: bool,
        runs_before: usize,
        runs_after: usize,
        calls: DeltaOf,
        self_ns: DeltaOf,
        rows: Vec<RowOf<'a>>,
        not_shown: NotShown,
    }
    #[derive(Serialize)]
    struct DeltaOf {
        before: f64,
        after: f64,
        change: f64,
        noise: Option<f64>,
        /// How far off the difference may be by the errors of both sides.
        #[serde(skip_serializing_if = "is_nothing")]
        error: f64,
        /// More than noise and errors, and not of lower bounds.
        significant: bool,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        before_at_least: bool,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        after_at_least: bool,
    }
    #[derive(Serialize)]
    struct RowOf<'a> {
        name: &'a str,
        module: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        path: Option<Vec<&'a str>>,
        calls: DeltaOf,
        self_ns: DeltaOf,
        total_ns: DeltaOf,
        /// Whether calls or self changed more than that.
        significant: bool,
    }
    #[derive(Serialize)]
    struct NotShown {
        beyond_limit: u64,
        within_noise: u64,
        unchanged: u64,
    }
    let of = |delta: &Delta| DeltaOf {
        before: delta.before,
        after: delta.after,
        change: delta.change(),
        noise: delta.noise,
        error: delta.error,
        significant: delta.is_real(),
        before_at_least: delta.at_least[0],
        after_at_least: delta.at_least[1],
    };
    let names = &sides.diff.names;
    let contexts = &sides.diff.contexts;
    let rows = sides.rows();
    finish(
        sides.weighed_by,
        out,
        &Report {
            schema: match sides.contexts {
                true => "thalweg.diff.contexts/1",
                false => "thalweg.diff.functions/1",
            },
            timed: sides.timed,
            runs_before: sides.before,
            runs_after: sides.after,
            calls: of(&sides.diff.whole.calls),
            self_ns: of(&sides.diff.whole.base),
            rows: rows
                .shown
                .iter()
                .map(|row| RowOf {
                    name: &names[row.name as usize].function,
                    module: &names[row.name as usize].module,
                    path: sides.contexts.then(|| {
                        let first = Some(row.index as u32);
                        let chain =
                            std::iter::successors(first, |&at| contexts[at as usize].parent);
                        let mut path: Vec<&str> = chain
                            .map(|at| {
                                let name = contexts[at as usize].name;
                                names[name as usize].function.as_str()
                            })
                            .collect();
                        path.reverse();
                        path
                    }),
                    calls: of(&row.change.calls),
                    self_ns: of(&row.change.base),
                    total_ns: of(&row.change.cum),
                    significant: sides.is_real(&row.change),
                })
                .collect(),
            not_shown: NotShown {
                beyond_limit: rows.beyond_limit,
                within_noise: rows.within_noise,
                unchanged: rows.unchanged,
            },
        },
    )
}
