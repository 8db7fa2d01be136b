//! `thalweg summary`: everything about a profile that fits on two screens.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{
    Bounds, Caller, Edge, Overview, SiteCalls, WaitKind, hottest_path, is_waiting_measured, summary,
};
use thalweg_formats::json::Stopped;
use thalweg_model::Profile;

use super::json::finish;
use super::style::{Paint, Style};
use super::summary::{print_head, print_path};
use super::table::{Align, Cell, Table};
use super::text::{TIME_WIDTH, at_least, count, counted, printable, share, time, time_inline};
use super::{Selection, flat, held, kernel};

pub fn print_overview(
    profile: &Profile,
    made: Option<SiteCalls>,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let figures = summary(profile);
    let overview = Overview::of(profile);
    let view = View {
        profile,
        style,
        limit: selection.limit.unwrap_or(usize::MAX),
        whole: figures.time,
        bounds: Bounds::of(profile),
    };
    print_head(profile, &figures, out, style)?;
    view.print_shape(&overview, made, out)?;
    if figures.contexts == 0 {
        return writeln!(out, "\nNo call was seen.");
    }
    view.title("Functions", out)?;
    let rows = flat::rows(profile, selection);
    flat::print_rows(profile, &rows.rows, selection, out, style)?;
    view.print_edges(&overview.hottest_edges, out)?;
    if let Some(path) = hottest_path(profile) {
        print_path(profile, &figures, &path, out, style)?;
    }
    view.print_modules(&overview, out)?;
    view.print_cycles(&overview, out)?;
    view.print_waits(&overview, out)?;
    if kernel::is_measured(profile) {
        kernel::print_system_calls(profile, view.limit, out, style)?;
    }
    view.print_widest(&overview, out)
}

struct View<'a> {
    profile: &'a Profile,
    style: Style,
    limit: usize,
    whole: u64,
    bounds: Bounds,
}

fn module_is_bound(profile: &Profile, bounds: &Bounds, module: u32) -> bool {
    bounds
        .functions()
        .any(|function| profile.functions[function as usize].module == module)
}

impl View<'_> {
    fn name(&self, function: u32) -> String {
        printable(&self.profile.functions[function as usize].name).into_owned()
    }

    fn title(&self, title: &str, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n{}", self.style.paint(Paint::Title, title))
    }

    fn print_shape(
        &self,
        overview: &Overview,
        made: Option<SiteCalls>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let mut line = |label: &str, text: String| writeln!(out, "  {label:<10} {text}");
        line(
            "graph",
            format!(
                "{} and {}",
                counted(overview.nodes, "node", "nodes"),
                counted(overview.edges, "edge", "edges")
            ),
        )?;
        if let Some(made) = made {
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
        if let Some((function, recursion)) = overview.recursion {
            let levels = counted(recursion.into(), "level", "levels");
            line(
                "recursion",
                format!("{levels} deep in {}", self.name(function)),
            )?;
        }
        if self.profile.meta.timed && self.profile.meta.weighed_by.is_none() {
            let waited = overview.waits.iter();
            let waited = waited.fold(0u64, |sum, (_, time)| sum.saturating_add(*time));
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

    fn print_edges(&self, edges: &[Edge], out: &mut impl Write) -> io::Result<()> {
        if edges.is_empty() {
            return Ok(());
        }
        self.title("Calls between functions", out)?;
        let mut table = self.table().column("Caller -> callee", Align::Left);
        for edge in edges.iter().take(self.limit) {
            let caller = match edge.caller {
                Caller::Function(caller) => self.name(caller),
                Caller::Outside | Caller::Unknown => String::new(),
            };
            let is_bound = self.bounds.call(edge.caller, edge.callee);
            let mut cells = self.figures(edge.calls, is_bound, edge.cum);
            cells.push(Cell::new(format!("{caller} -> {}", self.name(edge.callee))));
            table.row(cells);
        }
        table.print(out)?;
        self.print_more(edges.len(), out)
    }

    fn print_modules(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        self.title("Modules", out)?;
        let head = if self.profile.meta.timed { "Self" } else { "" };
        let mut table = self
            .table_with(head)
            .column("Functions", Align::Right)
            .column("Module", Align::Left);
        for share in overview.modules.iter().take(self.limit) {
            let module = &self.profile.modules[share.module as usize];
            let is_bound = module_is_bound(self.profile, &self.bounds, share.module);
            let mut cells = self.figures(share.calls, is_bound, share.base);
            cells.push(Cell::new(count(share.functions_seen)));
            cells.push(Cell::new(printable(&module.name)));
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
            let mut names = shown.map(|&f| self.name(f)).collect::<Vec<_>>().join(", ");
            if cycle.functions.len() > 8 {
                names.push_str(", ...");
            }
            table.row(vec![
                Cell::new(at_least(
                    cycle.functions.iter().any(|&f| self.bounds.function(f)),
                    count(cycle.calls),
                )),
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
        let waited = overview.wait_kinds.iter();
        let waited = waited.fold(0u64, |sum, (_, time)| sum.saturating_add(*time));
        for &(kind, time_of_kind) in &overview.wait_kinds {
            let aside = match kind {
                WaitKind::Terminal => " (charged to no function)",
                _ => "",
            };
            table.row(vec![
                Cell::new(format!(
                    "{} {}",
                    time(time_of_kind),
                    share(time_of_kind, waited)
                )),
                Cell::new(kind.name()).tail(aside),
            ]);
        }
        table.print(out)?;
        self.title("Waited in", out)?;
        let mut table = Table::new(self.style)
            .column(format!("{:>TIME_WIDTH$} {:>6}", "Time", "%"), Align::Right)
            .column("Name", Align::Left);
        let all = waited;
        for &(function, waited) in overview.waits.iter().take(self.limit) {
            table.row(vec![
                Cell::new(format!("{} {}", time(waited), share(waited, all))),
                Cell::new(self.name(function)),
            ]);
        }
        table.print(out)?;
        self.print_more(overview.waits.len(), out)
    }

    fn print_widest(&self, overview: &Overview, out: &mut impl Write) -> io::Result<()> {
        let several = overview.widest.iter().filter(|(_, threads)| *threads > 1);
        let several: Vec<&(u32, u32)> = several.collect();
        if several.is_empty() {
            return Ok(());
        }
        self.title("Ran in several threads", out)?;
        let mut table = Table::new(self.style)
            .column("Threads", Align::Right)
            .column("Name", Align::Left);
        for &&(function, threads) in several.iter().take(self.limit) {
            table.row(vec![
                Cell::new(count(threads.into())),
                Cell::new(self.name(function)),
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
            let text = format!("{} {}", time(ns), share(ns, self.whole));
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

pub fn print_overview_json(
    profile: &Profile,
    made: Option<SiteCalls>,
    selection: &Selection,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        schema: &'static str,
        command: &'a [String],
        timed: bool,
        duration_ns: u64,
        processes: u64,
        threads: u64,
        threads_by_level: Vec<u64>,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        time_ns: u64,
        waiting_ns: u64,
        functions_seen: u64,
        functions_patched: u64,
        functions_total: u64,
        skipped: u64,
        contexts: u64,
        deepest: u64,
        folded_calls: u64,
        pruned_contexts: u64,
        pruned_calls: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        slowdown: Option<f64>,
        stopped_by_thalweg: Stopped,
        #[serde(skip_serializing_if = "Option::is_none")]
        direct_calls: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        indirect_calls: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        call_sites: Option<u64>,
        nodes: u64,
        edges: u64,
        made: u64,
        recursion: Option<RecursionOf<'a>>,
        hottest: Vec<FunctionOf<'a>>,
        hottest_edges: Vec<EdgeOf<'a>>,
        cycles: Vec<CycleOf<'a>>,
        modules: Vec<ModuleOf<'a>>,
        wait_kinds: Vec<KindOf>,
        waits: Vec<WaitOf<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        system_calls: Option<Vec<kernel::SystemCallOf<'a>>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        uncounted_system_calls: Option<Vec<kernel::UncountedOf<'a>>>,
        notes: &'a [String],
    }
    #[derive(Serialize)]
    struct RecursionOf<'a> {
        name: &'a str,
        levels: u32,
    }
    #[derive(Serialize)]
    struct FunctionOf<'a> {
        function: u32,
        name: &'a str,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        self_ns: u64,
        total_ns: u64,
        threads: u32,
    }
    #[derive(Serialize)]
    struct EdgeOf<'a> {
        caller: &'a str,
        callee: &'a str,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        total_ns: u64,
    }
    #[derive(Serialize)]
    struct CycleOf<'a> {
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        functions: Vec<&'a str>,
    }
    #[derive(Serialize)]
    struct ModuleOf<'a> {
        name: &'a str,
        functions_seen: u64,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        self_ns: u64,
    }
    #[derive(Serialize)]
    struct WaitOf<'a> {
        name: &'a str,
        time_ns: u64,
    }
    #[derive(Serialize)]
    struct KindOf {
        what: &'static str,
        time_ns: u64,
    }

    let name = |function: u32| profile.functions[function as usize].name.as_str();
    let figures = summary(profile);
    let overview = Overview::of(profile);
    let bounds = Bounds::of(profile);
    let limit = selection.limit.unwrap_or(usize::MAX);
    let hottest_edges = overview.hottest_edges.iter().take(limit);
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.summary/1",
            command: &profile.meta.command,
            timed: profile.meta.timed,
            duration_ns: profile.meta.duration_ns,
            processes: figures.processes,
            threads: figures.threads,
            threads_by_level: overview.threads_by_level,
            calls: figures.calls,
            calls_at_least: bounds.any(),
            time_ns: figures.time,
            waiting_ns: overview
                .waits
                .iter()
                .fold(0, |sum, (_, t)| sum.saturating_add(*t)),
            functions_seen: figures.functions_seen,
            functions_patched: figures.functions_patched,
            functions_total: figures.functions_total,
            skipped: figures.skipped,
            contexts: figures.contexts,
            deepest: figures.deepest,
            folded_calls: figures.folded_calls,
            pruned_contexts: profile.meta.pruned.contexts,
            pruned_calls: profile.meta.pruned.calls,
            slowdown: held::slowdown(profile, figures.time),
            stopped_by_thalweg: Stopped::of(profile),
            direct_calls: made.map(|made| made.direct),
            indirect_calls: made.map(|made| made.indirect),
            call_sites: made.map(|made| made.sites),
            nodes: overview.nodes,
            edges: overview.edges,
            made: overview.made,
            recursion: overview.recursion.map(|(function, levels)| RecursionOf {
                name: name(function),
                levels,
            }),
            hottest: flat::rows(profile, selection)
                .rows
                .iter()
                .map(|row| FunctionOf {
                    function: row.function,
                    name: name(row.function),
                    calls: row.calls,
                    calls_at_least: bounds.function(row.function),
                    self_ns: row.base,
                    total_ns: row.cum,
                    threads: row.threads,
                })
                .collect(),
            hottest_edges: hottest_edges
                .filter_map(|edge| match edge.caller {
                    Caller::Function(caller) => Some(EdgeOf {
                        caller: name(caller),
                        callee: name(edge.callee),
                        calls: edge.calls,
                        calls_at_least: bounds.call(edge.caller, edge.callee),
                        total_ns: edge.cum,
                    }),
                    Caller::Outside | Caller::Unknown => None,
                })
                .collect(),
            cycles: overview
                .cycles
                .iter()
                .map(|cycle| CycleOf {
                    calls: cycle.calls,
                    calls_at_least: cycle.functions.iter().any(|&f| bounds.function(f)),
                    functions: cycle.functions.iter().map(|&f| name(f)).collect(),
                })
                .collect(),
            modules: overview
                .modules
                .iter()
                .map(|share| ModuleOf {
                    name: &profile.modules[share.module as usize].name,
                    functions_seen: share.functions_seen,
                    calls: share.calls,
                    calls_at_least: module_is_bound(profile, &bounds, share.module),
                    self_ns: share.base,
                })
                .collect(),
            wait_kinds: overview
                .wait_kinds
                .iter()
                .map(|&(kind, time)| KindOf {
                    what: kind.name(),
                    time_ns: time,
                })
                .collect(),
            waits: overview
                .waits
                .iter()
                .map(|&(function, time)| WaitOf {
                    name: name(function),
                    time_ns: time,
                })
                .collect(),
            system_calls: kernel::is_measured(profile).then(|| kernel::by_name(profile)),
            uncounted_system_calls: kernel::is_measured(profile)
                .then(|| kernel::uncounted(profile)),
            notes: &profile.notes,
        },
    )
}
