//! `thalweg threads`: one row per thread: who made it, from when to when it lived, and what it did.

use std::io::{self, Write};

use thalweg_analysis::summary;
use thalweg_model::Profile;
use thalweg_views::threads::{Kernel, Threads};

use super::context::{made, made_in};
use super::processes::print_processes;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{TIME_WIDTH, Weights, at_least, count, counted, printable, share, time};

pub fn print_threads(
    profile: &Profile,
    view: &Threads,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    print_processes(&view.processes, out, style)?;
    let rows = &view.threads;
    let timed = view.timed;
    let weights = Weights::of_profile(profile);
    let whole = summary(profile);
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
    let kernel = rows.iter().any(|row| row.kernel.is_some());
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

    for row in rows {
        let mut cells = vec![
            Cell::new(made(row.thread, row.made_by)),
            Cell::new(row.level.to_string()),
            Cell::new(row.pid.to_string()),
            Cell::new(row.tid.to_string()),
            Cell::new(time(row.start_ns)),
            Cell::new(time(row.end_ns)),
            Cell::new(at_least(row.calls_at_least, count(row.calls))),
        ];
        if timed {
            let text = format!(
                "{} {}",
                weights.text(row.self_ns),
                share(row.self_ns, whole.time)
            );
            cells.push(Cell::painted(text, style.heat(row.self_ns, whole.time)));
        }
        if kernel {
            let text = |counts: &dyn Fn(Kernel) -> (u64, u64)| {
                let counts = row.kernel.map(counts);
                counts.map_or("-".to_string(), |(one, other)| {
                    format!("{}+{}", count(one), count(other))
                })
            };
            let faults = text(&|k| (k.minor_faults, k.major_faults));
            let switches = text(&|k| (k.voluntary_switches, k.involuntary_switches));
            cells.extend([Cell::new(faults), Cell::new(switches)]);
        }
        let busiest = row.busiest.map_or(String::new(), |function| {
            printable(&profile.functions[function].name).into_owned()
        });
        cells.extend([
            Cell::new(count(row.contexts as u64)),
            Cell::new(busiest),
            Cell::new(printable(row.name)).tail(format!(
                "{}{}",
                others(row.others),
                made_in(profile, row.made_in)
            )),
        ]);
        table.row(cells);
    }
    table.print(out)?;
    if view.not_shown > 0 {
        let rest = counted(view.not_shown as u64, "thread", "threads");
        writeln!(
            out,
            "{}",
            style.paint(Paint::Aside, &format!("not shown: {rest}"))
        )?;
    }
    Ok(())
}

pub(super) fn others(number: u64) -> String {
    match number {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other", "others")),
    }
}
