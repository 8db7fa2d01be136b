//! `report --tree`: one row per calling context, threads one after the other.
//!
//! Level is the depth in the tree, RL the recursion level: how often the same function stands above.

use std::cmp::{Ordering, Reverse};
use std::io::{self, Write};

use thalweg_analysis::{Bounds, Tree, Weight, summary, threads};
use thalweg_model::{Metric, Node, NodeFlags, NodeMetrics, Process, Profile, Thread};

use super::sites::at_site;
use super::style::{Paint, Style};
use super::text::{
    TIME_WIDTH, at_least, bytes, count, counted, cut, printable, share, time, time_inline,
};
use super::threads::others;
use super::{LeftOut, Selection, SortKey};

/// Without this a tree of a real program has more rows than anyone reads.
pub const DEFAULT_MIN_PERCENT: f64 = 0.5;

/// Width of what [`bytes`] gives: `1023.9 KiB`.
const SIZE_WIDTH: usize = 10;

/// Below this a name says nothing; better that the terminal wraps.
const MIN_NAME_WIDTH: usize = 10;

/// The contexts to show and what else there is.
pub struct Rows<'a> {
    pub threads: Vec<ThreadRows<'a>>,
    pub left_out: LeftOut,
}

pub struct ThreadRows<'a> {
    pub process: &'a Process,
    pub thread: &'a Thread,
    pub rows: Vec<Row>,
}

#[derive(Clone, Copy)]
pub struct Row {
    pub node: u32,
    pub level: u32,
    /// Shown only because something below it is.
    pub for_context: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    No,
    ForContext,
    Chosen,
}

/// Contexts that pass the filter and weigh enough, of these the heaviest `limit`, and all that stand above them.
pub fn rows<'a>(profile: &'a Profile, selection: &Selection) -> Rows<'a> {
    rows_of(profile, selection, whole(profile))
}

/// Shares are given of this.
fn whole(profile: &Profile) -> u64 {
    let figures = summary(profile);
    match profile.meta.timed {
        true => figures.time,
        false => figures.calls,
    }
}

pub fn rows_of<'a>(profile: &'a Profile, selection: &Selection, whole: u64) -> Rows<'a> {
    let weight = match profile.meta.timed {
        true => Weight::Time,
        false => Weight::Calls,
    };
    let all: Vec<(&Process, &Thread)> = threads(profile).collect();
    let trees: Vec<Tree> = all
        .iter()
        .map(|(_, thread)| Tree::new(thread, weight))
        .collect();
    let shown = choose(profile, selection, &trees, whole);

    let mut left_out = LeftOut::default();
    let mut by_thread = Vec::new();
    for (((process, thread), tree), shown) in all.into_iter().zip(&trees).zip(&shown) {
        let hidden = thread
            .nodes
            .iter()
            .zip(shown)
            .filter(|(_, shown)| **shown == Shown::No);
        hidden.for_each(|(node, _)| left_out.add(node.calls, node.base));
        let order =
            tree.depth_first(|&a, &b| order(profile, selection.sort, tree, &thread.metrics, a, b));
        let rows = order
            .into_iter()
            .filter(|&node| shown[node as usize] != Shown::No)
            .map(|node| Row {
                node,
                level: tree.level(node),
                for_context: shown[node as usize] == Shown::ForContext,
            });
        by_thread.push(ThreadRows {
            process,
            thread,
            rows: rows.collect(),
        });
    }
    Rows {
        threads: by_thread,
        left_out,
    }
}

fn choose(profile: &Profile, selection: &Selection, trees: &[Tree], whole: u64) -> Vec<Vec<Shown>> {
    let least = selection
        .min_percent
        .map_or(0.0, |percent| whole as f64 * percent / 100.0);
    let passes: Vec<bool> = (0..profile.functions.len() as u32)
        .map(|function| selection.keeps(profile, function))
        .collect();

    let mut candidates: Vec<(Reverse<u64>, usize, u32)> = Vec::new();
    for (number, tree) in trees.iter().enumerate() {
        for (index, node) in (0..).zip(tree.nodes) {
            let deep = selection
                .depth
                .is_some_and(|depth| tree.level(index) >= depth);
            if passes[node.function as usize] && tree.weight(index) as f64 >= least && !deep {
                candidates.push((Reverse(tree.weight(index)), number, index));
            }
        }
    }
    if let Some(limit) = selection.limit.filter(|&limit| limit < candidates.len()) {
        if limit > 0 {
            candidates.select_nth_unstable(limit - 1);
        }
        candidates.truncate(limit);
    }

    let mut shown: Vec<Vec<Shown>> = trees
        .iter()
        .map(|tree| vec![Shown::No; tree.nodes.len()])
        .collect();
    for (_, number, index) in candidates {
        let shown = &mut shown[number];
        shown[index as usize] = Shown::Chosen;
        let mut above = trees[number].nodes[index as usize].parent;
        while let Some(parent) = above.filter(|&parent| shown[parent as usize] == Shown::No) {
            shown[parent as usize] = Shown::ForContext;
            above = trees[number].nodes[parent as usize].parent;
        }
    }
    shown
}

fn order(
    profile: &Profile,
    key: SortKey,
    tree: &Tree,
    metrics: &NodeMetrics,
    a: u32,
    b: u32,
) -> Ordering {
    let (left, right) = (&tree.nodes[a as usize], &tree.nodes[b as usize]);
    let name = |node: &Node| profile.functions[node.function as usize].name.as_str();
    match key {
        SortKey::Base => right.base.cmp(&left.base),
        SortKey::Cum => right.cum.cmp(&left.cum),
        SortKey::Elapsed => right.elapsed.cmp(&left.elapsed),
        SortKey::Calls => right.calls.cmp(&left.calls),
        SortKey::Min => right.min.cmp(&left.min),
        SortKey::Max => right.max.cmp(&left.max),
        SortKey::Mean => mean(right).cmp(&mean(left)),
        SortKey::Recursion => right.recursion.cmp(&left.recursion),
        SortKey::Allocs
        | SortKey::Allocated
        | SortKey::Freed
        | SortKey::Live
        | SortKey::Syscalls
        | SortKey::SyscallTime
        | SortKey::Faults
        | SortKey::Switches
        | SortKey::Instructions
        | SortKey::Cycles
        | SortKey::CacheMisses => {
            let metric = key.metric();
            let figure = |node| metric.map_or(0, |metric| metrics.of(node).get(metric));
            figure(b).cmp(&figure(a))
        }
        // What only whole functions have.
        SortKey::Waited
        | SortKey::Threads
        | SortKey::Contexts
        | SortKey::Module
        | SortKey::Name => Ordering::Equal,
    }
    .then_with(|| name(left).cmp(name(right)))
    .then(a.cmp(&b))
}

fn mean(node: &Node) -> u64 {
    node.base.checked_div(node.calls).unwrap_or(0)
}

pub fn print_tree(
    profile: &Profile,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let title = |process: &Process, thread: &Thread| thread_title(profile, process, thread);
    print_tree_of(profile, selection, whole(profile), title, out, style)
}

pub fn print_tree_of(
    profile: &Profile,
    selection: &Selection,
    whole: u64,
    title: impl Fn(&Process, &Thread) -> String,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let rows = rows_of(profile, selection, whole);
    let meta = &profile.meta;
    let alloc = meta.weighed_by.is_none() && meta.metrics.contains(&Metric::AllocBytes);
    let bounds = Bounds::of(profile);
    let widths = Widths::of(&rows, meta.timed, alloc, &bounds, style);
    for (number, thread) in rows
        .threads
        .iter()
        .filter(|t| !t.rows.is_empty())
        .enumerate()
    {
        if number > 0 {
            writeln!(out)?;
        }
        let title = title(thread.process, thread.thread);
        writeln!(out, "{}", style.paint(Paint::Title, &title))?;
        writeln!(out, "{}", style.paint(Paint::Title, &widths.head()))?;
        for row in &thread.rows {
            let calls = shown_calls(&bounds, thread.thread, row);
            print_row(
                profile,
                thread.thread,
                row,
                calls,
                whole,
                &widths,
                out,
                style,
            )?;
        }
    }
    print_left_out(profile, selection, &rows.left_out, out, style)
}

fn thread_title(profile: &Profile, process: &Process, thread: &Thread) -> String {
    let mut title = format!("Thread {}", thread.tid);
    if !thread.name.is_empty() {
        title.push_str(&format!(" {}", printable(&thread.name)));
    }
    title.push_str(&others(thread));
    if profile.processes.len() > 1 || process.pid != thread.tid {
        title.push_str(&format!(" of process {}", process.pid));
    }
    if let Some(creator) = thread.created_by {
        title.push_str(&format!(", created by thread {}", creator.tid));
        if let Some(function) = creator.function {
            let name = &profile.functions[function as usize].name;
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
    fn of(rows: &Rows, timed: bool, alloc: bool, bounds: &Bounds, style: Style) -> Widths {
        let (mut level, mut recursion, mut calls) = (0, 0, "Calls".len());
        for thread in &rows.threads {
            for row in &thread.rows {
                let node = &thread.thread.nodes[row.node as usize];
                level = level.max(row.level);
                recursion = recursion.max(node.recursion);
                calls = calls.max(shown_calls(bounds, thread.thread, row).len());
            }
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

fn shown_calls(bounds: &Bounds, thread: &Thread, row: &Row) -> String {
    let node = &thread.nodes[row.node as usize];
    match node.calls {
        0 if node.flags.contains(NodeFlags::LOOKED) => "-".into(),
        calls => at_least(bounds.context(&thread.nodes, row.node), count(calls)),
    }
}

#[allow(clippy::too_many_arguments)]
fn print_row(
    profile: &Profile,
    thread: &Thread,
    row: &Row,
    calls: String,
    whole: u64,
    widths: &Widths,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let node = &thread.nodes[row.node as usize];
    write!(
        out,
        "{:>level$}  {:>recursion$}  {:>width$}  ",
        row.level,
        node.recursion,
        calls,
        level = widths.level,
        recursion = widths.recursion,
        width = widths.calls,
    )?;
    if widths.timed {
        let cum_share = share(node.cum, whole);
        write!(
            out,
            "{}  {} {}  ",
            time(node.base),
            time(node.cum),
            style.paint(style.heat(node.base, whole), &cum_share),
        )?;
    }
    if widths.alloc {
        for metric in [Metric::AllocBytes, Metric::LiveBytes] {
            let size = match thread.metrics.of(row.node).get(metric) {
                0 => String::new(),
                size => bytes(size),
            };
            write!(out, "{size:>SIZE_WIDTH$}  ")?;
        }
    }
    let indent = widths.indent(row.level);
    let name = printable(&profile.functions[node.function as usize].name);
    let marks = format!("{}{}", at_site(profile, node.site), marks(node));
    let name = match widths.name {
        None => format!("{name}{marks}"),
        Some(width) if width < indent + marks.len() + MIN_NAME_WIDTH => {
            cut(&format!("{name}{marks}"), width - indent).into_owned()
        }
        Some(width) => format!("{}{marks}", cut(&name, width - indent - marks.len())),
    };
    let paint = if row.for_context {
        Paint::Aside
    } else {
        Paint::Plain
    };
    writeln!(out, "{:indent$}{}", "", style.paint(paint, &name))
}

fn marks(node: &Node) -> String {
    let state = if node.flags.contains(NodeFlags::FOLDED) && node.calls > 0 {
        " [folded: callers unknown]"
    } else if node
        .flags
        .contains(NodeFlags::ON_STACK_AT_ATTACH | NodeFlags::OPEN)
    {
        " [on stack at attach, running]"
    } else if node.flags.contains(NodeFlags::ON_STACK_AT_ATTACH) {
        " [on stack at attach]"
    } else if node.flags.contains(NodeFlags::OPEN) {
        " [running]"
    } else {
        ""
    };
    let looked = match node.flags.contains(NodeFlags::LOOKED) {
        true => " [by samples]",
        false => "",
    };
    match node.unwound {
        0 => format!("{state}{looked}"),
        unwound => format!("{state}{looked} [{} unwound]", count(unwound)),
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
    if !selection.filter.is_empty() {
        why.push("filtered by name".to_string());
    }
    let base = match profile.meta.timed {
        true => format!(", {} of self time", time_inline(left_out.base)),
        false => String::new(),
    };
    let text = format!(
        "not shown: {} ({}{base}), {}",
        counted(left_out.rows, "context", "contexts"),
        at_least(
            Bounds::of(profile).any(),
            counted(left_out.calls, "call", "calls")
        ),
        why.join(" or "),
    );
    writeln!(out, "\n{}", style.paint(Paint::Aside, &text))
}
