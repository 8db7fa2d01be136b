//! `report --tree`: one row per calling context, threads one after the other.
//!
//! Level is the depth in the tree, RL the recursion level: how often the same function stands above.

use std::io::{self, Write};

use thalweg_analysis::Bounds;
use thalweg_model::{Metric, Process, Profile, Thread};
use thalweg_views::tree::{Context, Tree};
use thalweg_views::{LeftOut, Selection};
use unicode_width::UnicodeWidthStr;

use super::sites::at_site;
use super::style::{Paint, Style};
use super::text::{
    TIME_WIDTH, Weights, at_least, bytes, count, counted, cut, printable, share, wrapped,
};
use super::threads::others;

/// Without this a tree of a real program has more rows than anyone reads.
pub const DEFAULT_MIN_PERCENT: f64 = 0.5;

/// Width of what [`bytes`] gives: `1023.9 KiB`.
const SIZE_WIDTH: usize = 10;

/// Below this a name says nothing; better that the terminal wraps.
const MIN_NAME_WIDTH: usize = 10;
/// In the place of marks that do not fit.
const SOME_MARKS: &str = " [\u{2026}]";

pub fn print_tree(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let title = |process: &Process, thread: &Thread| thread_title(profile, process, thread);
    let tree = Tree::new(profile, selection);
    print_tree_of(profile, &tree, selection, title, out, style)
}

pub fn print_tree_of(
    profile: &Profile,
    tree: &Tree,
    selection: &Selection,
    title: impl Fn(&Process, &Thread) -> String,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let meta = &profile.meta;
    let alloc = meta.weighed_by.is_none() && meta.metrics.contains(&Metric::AllocBytes);
    let widths = Widths::new(tree, alloc, style);
    let weights = Weights::of_profile(profile);
    let threads = tree.threads.iter().filter(|thread| !thread.is_empty());
    for (number, thread) in threads.enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        let title = title(thread.process, thread.thread);
        for line in wrapped(&title, style.width, 0) {
            writeln!(out, "{}", style.paint(Paint::Title, &line))?;
        }
        writeln!(out, "{}", style.paint(Paint::Title, &widths.head()))?;
        for row in thread.contexts() {
            print_row(&row, tree.whole, weights, &widths, out, style)?;
        }
    }
    print_left_out(profile, selection, &tree.not_shown, out, style)
}

pub(super) fn thread_title(profile: &Profile, process: &Process, thread: &Thread) -> String {
    let mut title = format!("Thread {}", thread.tid);
    if !thread.name.is_empty() {
        title.push_str(&format!(" {}", printable(&thread.name)));
    }
    title.push_str(&others(thread.others));
    if profile.processes.len() > 1 || process.pid != thread.tid {
        title.push_str(&format!(" of process {}", process.pid));
    }
    if let Some(creator) = thread.created_by {
        title.push_str(&format!(", created by thread {}", creator.tid));
        if let Some(function) = creator.function {
            let name = &profile.functions[function].name;
            title.push_str(&format!(" in {}", printable(name)));
        }
    }
    title
}

struct Widths {
    timed: bool,
    /// What the context itself has allocated, and what of it is live.
    alloc: bool,
    level: usize,
    recursion: usize,
    calls: usize,
    /// Columns for the indented name; `None`: as many as it takes.
    name: Option<usize>,
}

impl Widths {
    fn new(tree: &Tree, alloc: bool, style: Style) -> Widths {
        let timed = tree.timed;
        let (mut level, mut recursion, mut calls) = (0, 0, "Calls".len());
        for row in tree.threads.iter().flat_map(|thread| thread.contexts()) {
            level = level.max(row.level);
            recursion = recursion.max(row.recursion);
            calls = calls.max(shown_calls(&row).len());
        }
        let level = level.to_string().len().max("Level".len());
        let recursion = recursion.to_string().len().max("RL".len());
        let times = if timed { 2 * (TIME_WIDTH + 2) + 7 } else { 0 };
        let sizes = if alloc { 2 * (SIZE_WIDTH + 2) } else { 0 };
        let before = level + 2 + recursion + 2 + calls + 2 + times + sizes;
        Widths {
            timed,
            alloc,
            level,
            recursion,
            calls,
            name: style
                .width
                .map(|width| width.saturating_sub(before).max(20)),
        }
    }

    fn head(&self) -> String {
        let (level, recursion, calls) = (self.level, self.recursion, self.calls);
        let counts = format!(
            "{:>level$}  {:>recursion$}  {:>calls$}",
            "Level", "RL", "Calls"
        );
        let sizes = match self.alloc {
            true => format!("  {:>SIZE_WIDTH$}  {:>SIZE_WIDTH$}", "Allocated", "Live"),
            false => String::new(),
        };
        if self.timed {
            format!(
                "{counts}  {:>TIME_WIDTH$}  {:>TIME_WIDTH$} {:>6}{sizes}  Indent",
                "Self", "Total", "%"
            )
        } else {
            format!("{counts}{sizes}  Indent")
        }
    }

    /// Two blanks a level, until they would push the names out of sight; the Level column goes on telling.
    fn indent(&self, level: u32) -> usize {
        let most = self.name.map_or(60, |width| width / 2);
        (level as usize * 2).min(most)
    }
}

fn shown_calls(row: &Context) -> String {
    match row.calls {
        0 if row.sampled => "-".into(),
        calls => at_least(row.calls_at_least, count(calls)),
    }
}

fn print_row(
    row: &Context,
    whole: u64,
    weights: Weights,
    widths: &Widths,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    write!(
        out,
        "{:>level$}  {:>recursion$}  {:>width$}  ",
        row.level,
        row.recursion,
        shown_calls(row),
        level = widths.level,
        recursion = widths.recursion,
        width = widths.calls,
    )?;
    if widths.timed {
        let total_share = share(row.total_ns, whole);
        write!(
            out,
            "{}  {} {}  ",
            weights.text(row.self_ns),
            weights.text(row.total_ns),
            style.paint(style.heat(row.self_ns, whole), &total_share),
        )?;
    }
    if widths.alloc {
        for metric in [Metric::AllocBytes, Metric::LiveBytes] {
            let size = match row.metrics.0.get(metric) {
                0 => String::new(),
                size => bytes(size),
            };
            write!(out, "{size:>SIZE_WIDTH$}  ")?;
        }
    }
    let indent = widths.indent(row.level);
    let name = printable(row.name);
    let marks = format!("{}{}", at_site(&row.site), marks(row));
    let name = match widths.name {
        None => format!("{name}{marks}"),
        Some(width) => fitted(&name, &marks, width - indent),
    };
    let paint = if row.for_context {
        Paint::Aside
    } else {
        Paint::Plain
    };
    writeln!(out, "{:indent$}{}", "", style.paint(paint, &name))
}

/// The name goes before its marks: where both have no room, it is only told that there are any.
fn fitted(name: &str, marks: &str, room: usize) -> String {
    let marks = match name.width() + marks.width() <= room || marks.is_empty() {
        true => marks,
        false if marks.width() + MIN_NAME_WIDTH <= room && name.width() > room => marks,
        false => SOME_MARKS,
    };
    let room = room.saturating_sub(marks.width()).max(MIN_NAME_WIDTH);
    format!("{}{marks}", cut(name, room))
}

fn marks(row: &Context) -> String {
    let state = if row.folded && row.calls > 0 {
        " [folded: callers unknown]"
    } else if row.on_stack_at_attach && row.open {
        " [on stack at attach, running]"
    } else if row.on_stack_at_attach {
        " [on stack at attach]"
    } else if row.open {
        " [running]"
    } else {
        ""
    };
    let sampled = match row.sampled {
        true => " [by samples]",
        false => "",
    };
    match row.unwound {
        0 => format!("{state}{sampled}"),
        unwound => format!("{state}{sampled} [{} unwound]", count(unwound)),
    }
}

fn print_left_out(
    profile: &Profile,
    selection: &Selection,
    left_out: &LeftOut,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    if left_out.rows == 0 {
        return Ok(());
    }
    let mut why = Vec::new();
    if let Some(depth) = selection.depth {
        why.push(format!(
            "deeper than {}",
            counted(depth.into(), "level", "levels")
        ));
    }
    if let Some(percent) = selection.min_percent {
        why.push(format!("below {percent}%"));
    }
    if let Some(limit) = selection.limit {
        why.push(format!("not among the {} heaviest", count(limit as u64)));
    }
    if selection.functions.is_some() {
        why.push("filtered by name".to_string());
    }
    let self_ns = match profile.meta.timed {
        true => format!(
            ", {} of self time",
            Weights::of_profile(profile).inline(left_out.self_ns)
        ),
        false => String::new(),
    };
    let text = format!(
        "not shown: {} ({}{self_ns}), {}",
        counted(left_out.rows, "context", "contexts"),
        at_least(
            Bounds::from_profile(profile).any(),
            counted(left_out.calls, "call", "calls")
        ),
        why.join(" or "),
    );
    writeln!(out)?;
    for line in wrapped(&text, style.width, 0) {
        writeln!(out, "{}", style.paint(Paint::Aside, &line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_not_cut_for_its_marks() {
        let marks = " [by samples]";
        assert_eq!(fitted("Py_RunMain", marks, 23), "Py_RunMain [by samples]");
        assert_eq!(fitted("Py_RunMain", marks, 22), "Py_RunMain [\u{2026}]");
        assert_eq!(
            fitted("_PyRun_SimpleFileObject", "", 16),
            "_PyRun_Si\u{2026}Object"
        );
        let both = fitted("_PyRun_SimpleFileObject", marks, 20);
        assert_eq!((both.width(), both.ends_with(" [\u{2026}]")), (20, true));
    }
}
