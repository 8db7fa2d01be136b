//! `thalweg summary`: everything about a profile that fits on two screens.

use std::io::{self, Write};

use thalweg_analysis::{WaitKind, is_waiting_measured};
use thalweg_model::Profile;
use thalweg_views::overview::Overview;
use thalweg_views::summary::Path;

use super::flat::{self, Columns};
use super::kernel;
use super::style::{Paint, Style};
use super::summary::{print_head, print_path};
use super::table::{Align, Cell, Table};
use super::text::{
    TIME_WIDTH, Weights, at_least, count, counted, printable, share, time, time_inline,
};

pub fn print_overview(
    profile: &Profile,
    overview: &Overview,
    limit: Option<usize>,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let head = &overview.head;
    let view = View {
        profile,
        style,
        limit: limit.unwrap_or(usize::MAX),
        whole: head.time_ns,
        weights: Weights::of_profile(profile),
    };
    print_head(profile, head, out, style)?;
    view.print_shape(overview, out)?;
    if head.contexts == 0 {
        return writeln!(out, "\nNo call was seen.");
    }
    view.title("Functions", out)?;
    let rows = overview.hottest.iter().map(|brief| &brief.0);
    flat::print_rows(profile, rows, &Columns::default(), out, style)?;
    view.print_edges(overview, out)?;
    if let Some(path) = Path::hottest(profile) {
        print_path(profile, head.whole(), &path, out, style)?;
    }
    view.print_modules(overview, out)?;
    view.print_cycles(overview, out)?;
    view.print_waits(overview, out)?;
    if overview.system_calls.is_some() {
        kernel::print_system_calls(profile, view.limit, out, style)?;
    }
    view.print_widest(overview, out)
}

struct View<'a> {
    profile: &'a Profile,
    style: Style,
    limit: usize,
    whole: u64,
    weights: Weights,
}

impl View<'_> {
    fn title(&self, title: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n{}", self.style.paint(Paint::Title, title))
    }

    fn print_shape(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        let mut line = |label: &str, text: String| writeln!(out, "  {label:<10} {text}");
        line(
            "graph",
            format!(
                "{} and {}",
                counted(overview.nodes, "node", "nodes"),
                counted(overview.edges, "edge", "edges")
            ),
        )?;
        if let Some(made) = overview.made_by {
            let mut text = format!(
                "{} direct and {} from {}",
                counted(made.direct, "call", "calls"),
                counted(made.indirect, "indirect call", "indirect calls"),
                counted(made.sites, "site", "sites"),
            );
            if made.unknown > 0 {
                text += &format!(", {} not known which", count(made.unknown));
            }
            line("made by", text)?;
        }
        let levels = overview.threads_by_level.iter().enumerate();
        let levels: Vec<String> = levels
            .map(|(level, &threads)| format!("{} on level {level}", count(threads)))
            .collect();
        line("threads", levels.join(", "))?;
        if let Some(recursion) = &overview.recursion {
            let levels = counted(recursion.levels.into(), "level", "levels");
            let text = format!("{levels} deep in {}", printable(recursion.name));
            line("recursion", text)?;
        }
        if self.profile.meta.timed && self.profile.meta.weighed_by.is_none() {
            let waited = overview.waiting_ns;
            let whole = match is_waiting_measured(self.profile) {
                true => self.whole.saturating_add(waited),
                false => self.whole,
            };
            let text = format!(
                "{}, {} of wall time",
                time_inline(waited),
                share(waited, whole).trim()
            );
            line("waiting", text)?;
        }
        Ok(())
    }

    fn print_edges(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        let edges = &overview.hottest_edges;
        if edges.is_empty() {
            return Ok(());
        }
        self.title("Calls between functions", out)?;
        let mut table = self.table().column("Caller -> callee", Align::Left);
        for edge in edges {
            let mut cells = self.figures(edge.calls, edge.calls_at_least, edge.total_ns);
            let caller = printable(edge.caller.unwrap_or_default());
            cells.push(Cell::new(format!("{caller} -> {}", printable(edge.callee))));
            table.row(cells);
        }
        table.print(out)?;
        self.print_more(overview.all_edges, out)
    }

    fn print_modules(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        self.title("Modules", out)?;
        let head = if self.profile.meta.timed { "Self" } else { "" };
        let mut table = self
            .table_with(head)
            .column("Functions", Align::Right)
            .column("Module", Align::Left);
        for module in overview.modules.iter().take(self.limit) {
            let mut cells = self.figures(module.calls, module.calls_at_least, module.self_ns);
            cells.push(Cell::new(count(module.functions_seen)));
            cells.push(Cell::new(printable(module.name)));
            table.row(cells);
        }
        table.print(out)?;
        self.print_more(overview.modules.len(), out)
    }

    fn print_cycles(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        if overview.cycles.is_empty() {
            return Ok(());
        }
        self.title("Cycles: functions that call each other in a ring", out)?;
        let mut table = Table::new(self.style)
            .column("Calls inside", Align::Right)
            .column("Functions", Align::Right)
            .column("Names", Align::Left);
        for cycle in overview.cycles.iter().take(self.limit) {
            let shown = cycle.functions.iter().take(8);
            let mut names = shown.map(|n| printable(n)).collect::<Vec<_>>().join(", ");
            if cycle.functions.len() > 8 {
                names.push_str(", ...");
            }
            table.row(vec![
                Cell::new(at_least(cycle.calls_at_least, count(cycle.calls))),
                Cell::new(count(cycle.functions.len() as u64)),
                Cell::new(names),
            ]);
        }
        table.print(out)?;
        self.print_more(overview.cycles.len(), out)
    }

    fn print_waits(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        if overview.wait_kinds.is_empty() {
            return Ok(());
        }
        self.title("Waited for", out)?;
        let mut table = Table::new(self.style)
            .column(format!("{:>TIME_WIDTH$} {:>6}", "Time", "%"), Align::Right)
            .column("What", Align::Left);
        let waited = overview.wait_kinds.iter().map(|kind| kind.time_ns);
        let waited = waited.fold(0, u64::saturating_add);
        for one in &overview.wait_kinds {
            let aside = match one.kind {
                WaitKind::Terminal => " (charged to no function)",
                _ => "",
            };
            table.row(vec![
                Cell::new(format!(
                    "{} {}",
                    time(one.time_ns),
                    share(one.time_ns, waited)
                )),
                Cell::new(one.what).tail(aside),
            ]);
        }
        table.print(out)?;
        self.title("Waited in", out)?;
        let mut table = Table::new(self.style)
            .column(format!("{:>TIME_WIDTH$} {:>6}", "Time", "%"), Align::Right)
            .column("Name", Align::Left);
        for one in overview.waits.iter().take(self.limit) {
            table.row(vec![
                Cell::new(format!(
                    "{} {}",
                    time(one.time_ns),
                    share(one.time_ns, waited)
                )),
                Cell::new(printable(one.name)),
            ]);
        }
        table.print(out)?;
        self.print_more(overview.waits.len(), out)
    }

    fn print_widest(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        let several = overview.widest.iter().filter(|(_, threads)| *threads > 1);
        let several: Vec<&(&str, u32)> = several.collect();
        if several.is_empty() {
            return Ok(());
        }
        self.title("Ran in several threads", out)?;
        let mut table = Table::new(self.style)
            .column("Threads", Align::Right)
            .column("Name", Align::Left);
        for &&(name, threads) in several.iter().take(self.limit) {
            table.row(vec![
                Cell::new(count(threads.into())),
                Cell::new(printable(name)),
            ]);
        }
        table.print(out)?;
        self.print_more(several.len(), out)
    }

    fn table(&self) -> Table {
        self.table_with("Total")
    }

    fn table_with(&self, time: &str) -> Table {
        let table = Table::new(self.style).column("Calls", Align::Right);
        match self.profile.meta.timed {
            true => table.column(format!("{time:>TIME_WIDTH$} {:>6}", "%"), Align::Right),
            false => table,
        }
    }

    fn figures(&self, calls: u64, is_bound: bool, ns: u64) -> Vec<Cell> {
        let mut cells = vec![Cell::new(at_least(is_bound, count(calls)))];
        if self.profile.meta.timed {
            let text = format!("{} {}", self.weights.text(ns), share(ns, self.whole));
            cells.push(Cell::new(text));
        }
        cells
    }

    fn print_more(&self, all: usize, out: &mut impl Write) -> io::Result<()> {
        if all <= self.limit {
            return Ok(());
        }
        let text = format!("not shown: {} more", count((all - self.limit) as u64));
        writeln!(out, "{}", self.style.paint(Paint::Aside, &text))
    }
}
