//! `thalweg threads`: one row per thread: who made it, from when to when it lived, and what it did.

use std::cmp::Reverse;
use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;
use thalweg_analysis::{Bounds, Lineage, Origin, ThreadNumber, summary, threads};
use thalweg_model::{KernelCounts, Process, Profile, Thread};

use super::context::{made, made_in};
use super::json::finish;
use super::processes::{ProcessOf, print_processes};
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{TIME_WIDTH, at_least, count, counted, nanoseconds, printable, share, time};

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadOrder {
    /// As they were recorded: makers usually before those they made
    Number,
    Calls,
    #[value(name = "self", alias = "base")]
    Base,
    /// When they began
    Start,
    Contexts,
}

struct Row<'a> {
    number: ThreadNumber,
    origin: Option<Origin>,
    level: u32,
    process: &'a Process,
    thread: &'a Thread,
    calls: u64,
    base: u64,
    busiest: Option<u32>,
}

fn rows<'a>(profile: &'a Profile, order: ThreadOrder) -> Vec<Row<'a>> {
    let lineage = Lineage::of(profile);
    let mut own = vec![0u64; profile.functions.len()];
    let mut rows: Vec<Row> = (0..)
        .map(ThreadNumber)
        .zip(threads(profile))
        .map(|(number, (process, thread))| {
            let figure = |node: &thalweg_model::Node| match profile.meta.timed {
                true => node.base,
                false => node.calls,
            };
            let sum = |figure: &dyn Fn(&thalweg_model::Node) -> u64| {
                let nodes = thread.nodes.iter();
                nodes.fold(0u64, |sum, node| sum.saturating_add(figure(node)))
            };
            for node in &thread.nodes {
                let own = &mut own[node.function as usize];
                *own = own.saturating_add(figure(node));
            }
            let functions = thread.nodes.iter().map(|node| node.function);
            let busiest = functions.max_by_key(|&f| (own[f as usize], Reverse(f)));
            for node in &thread.nodes {
                own[node.function as usize] = 0;
            }
            Row {
                number,
                origin: lineage.origin(number),
                level: lineage.level(number),
                process,
                thread,
                calls: sum(&|node| node.calls),
                base: sum(&|node| node.base),
                busiest,
            }
        })
        .collect();
    match order {
        ThreadOrder::Number => {}
        ThreadOrder::Calls => rows.sort_by_key(|row| Reverse(row.calls)),
        ThreadOrder::Base => rows.sort_by_key(|row| Reverse(row.base)),
        ThreadOrder::Start => rows.sort_by_key(|row| row.thread.start_ns),
        ThreadOrder::Contexts => rows.sort_by_key(|row| Reverse(row.thread.nodes.len())),
    }
    rows
}

pub fn print_threads(
    profile: &Profile,
    order: ThreadOrder,
    limit: Option<usize>,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    print_processes(profile, out, style)?;
    let rows = rows(profile, order);
    let timed = profile.meta.timed;
    let whole = summary(profile);
    let is_bound = Bounds::of(profile).any();
    let mut table = Table::new(style)
        .column("Made", Align::Left)
        .column("Level", Align::Right)
        .dispensable(3)
        .column("Process", Align::Right)
        .column("Thread", Align::Right)
        .column("Start", Align::Right)
        .dispensable(2)
        .column("End", Align::Right)
        .dispensable(2)
        .column("Calls", Align::Right);
    if timed {
        table = table.column(format!("{:>TIME_WIDTH$} {:>6}", "Self", "%"), Align::Right);
    }
    let kernel = rows.iter().any(|row| row.thread.kernel.is_some());
    if kernel {
        table = table
            .column("Faults", Align::Right)
            .dispensable(5)
            .column("Switches", Align::Right)
            .dispensable(5);
    }
    table = table
        .column("Contexts", Align::Right)
        .dispensable(4)
        .column("Busiest function", Align::Left)
        .at_most(30)
        .dispensable(1)
        .column("Name", Align::Left);

    let shown = limit.unwrap_or(rows.len()).min(rows.len());
    for row in &rows[..shown] {
        let thread = row.thread;
        let mut cells = vec![
            Cell::new(made(row.number.0, row.origin)),
            Cell::new(row.level.to_string()),
            Cell::new(row.process.pid.to_string()),
            Cell::new(thread.tid.to_string()),
            Cell::new(nanoseconds(thread.start_ns)),
            Cell::new(nanoseconds(thread.end_ns)),
            Cell::new(at_least(is_bound, count(row.calls))),
        ];
        if timed {
            let text = format!("{} {}", time(row.base), share(row.base, whole.time));
            cells.push(Cell::painted(text, style.heat(row.base, whole.time)));
        }
        if kernel {
            let text = |counts: &dyn Fn(KernelCounts) -> (u64, u64)| {
                let counts = row.thread.kernel.map(counts);
                counts.map_or("-".to_string(), |(one, other)| {
                    format!("{}+{}", count(one), count(other))
                })
            };
            let faults = text(&|k| (k.minor_faults, k.major_faults));
            let switches = text(&|k| (k.voluntary_switches, k.involuntary_switches));
            cells.extend([Cell::new(faults), Cell::new(switches)]);
        }
        let busiest = row.busiest.map_or(String::new(), |function| {
            printable(&profile.functions[function as usize].name).into_owned()
        });
        cells.extend([
            Cell::new(count(thread.nodes.len() as u64)),
            Cell::new(busiest),
            Cell::new(printable(&thread.name)).tail(format!(
                "{}{}",
                others(thread),
                made_in(profile, row.origin)
            )),
        ]);
        table.row(cells);
    }
    table.print(out)?;
    if shown < rows.len() {
        let rest = counted((rows.len() - shown) as u64, "thread", "threads");
        writeln!(
            out,
            "{}",
            style.paint(Paint::Aside, &format!("not shown: {rest}"))
        )?;
    }
    Ok(())
}

pub(super) fn others(thread: &Thread) -> String {
    match thread.others {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other", "others")),
    }
}

pub fn print_threads_json(
    profile: &Profile,
    order: ThreadOrder,
    limit: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report<'a> {
        schema: &'static str,
        timed: bool,
        processes: Vec<ProcessOf<'a>>,
        threads: Vec<ThreadOf<'a>>,
        not_shown: usize,
    }
    #[derive(Serialize)]
    struct ThreadOf<'a> {
        thread: u32,
        made_by: Option<u32>,
        made_in: Option<u32>,
        level: u32,
        pid: u32,
        tid: u32,
        name: &'a str,
        start_ns: u64,
        end_ns: u64,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        self_ns: u64,
        contexts: usize,
        busiest: Option<u32>,
        folded_calls: u64,
        others: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<Kernel>,
    }
    #[derive(Serialize)]
    struct Kernel {
        minor_faults: u64,
        major_faults: u64,
        voluntary_switches: u64,
        involuntary_switches: u64,
    }
    let rows = rows(profile, order);
    let is_bound = Bounds::of(profile).any();
    let shown = limit.unwrap_or(rows.len()).min(rows.len());
    let threads = rows[..shown].iter().map(|row| ThreadOf {
        thread: row.number.0,
        made_by: row.origin.map(|origin| origin.maker.0),
        made_in: row.origin.and_then(|origin| origin.function),
        level: row.level,
        pid: row.process.pid,
        tid: row.thread.tid,
        name: &row.thread.name,
        start_ns: row.thread.start_ns,
        end_ns: row.thread.end_ns,
        calls: row.calls,
        calls_at_least: is_bound,
        self_ns: row.base,
        contexts: row.thread.nodes.len(),
        busiest: row.busiest,
        folded_calls: row.thread.folded_calls,
        others: row.thread.others,
        kernel: row.thread.kernel.map(|counts| Kernel {
            minor_faults: counts.minor_faults,
            major_faults: counts.major_faults,
            voluntary_switches: counts.voluntary_switches,
            involuntary_switches: counts.involuntary_switches,
        }),
    });
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.report.threads/1",
            timed: profile.meta.timed,
            processes: ProcessOf::all(profile),
            threads: threads.collect(),
            not_shown: rows.len() - shown,
        },
    )
}
