//! `report --graph`: the call graph of all threads and processes laid together, pruned as one likes: functions, and calls
//! between them.

use std::io::{self, Write};

use thalweg_analysis::Link;
use thalweg_model::Profile;
use thalweg_views::graph::CallGraph;

use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{self, TIME_WIDTH, Weights, counted, share};

pub fn print_graph(
    profile: &Profile,
    graph: &CallGraph,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let timed = graph.timed;
    let weights = Weights::of_profile(profile);
    let figures = |calls: u64, is_bound: bool, self_ns: Option<u64>, total_ns: u64| {
        let calls = text::at_least(is_bound, text::calls(profile, calls));
        let mut cells = vec![Cell::new(calls)];
        if timed {
            if let Some(self_ns) = self_ns {
                cells.push(Cell::new(format!(
                    "{} {}",
                    weights.text(self_ns),
                    share(self_ns, graph.time_ns)
                )));
            }
            cells.push(Cell::new(format!(
                "{} {}",
                weights.text(total_ns),
                share(total_ns, graph.time_ns)
            )));
        }
        cells
    };
    let head = |title: &str| format!("{title:>TIME_WIDTH$} {:>6}", "%");
    let title = format!(
        "{} and {} of all threads",
        counted(graph.all.0 as u64, "function", "functions"),
        counted(graph.all.1 as u64, "edge", "edges"),
    );
    writeln!(out, "{}", style.paint(Paint::Title, &title))?;
    let mut table = Table::new(style).column("Calls", Align::Right);
    if timed {
        table = table
            .column(head("Self"), Align::Right)
            .column(head("Total"), Align::Right);
    }
    table = table.column("Function", Align::Left);
    for node in &graph.nodes {
        let own = Some(node.self_ns);
        let mut cells = figures(node.calls, node.calls_at_least, own, node.total_ns);
        cells.push(Cell::new(node.name.clone()));
        table.row(cells);
    }
    table.print(out)?;
    writeln!(out)?;
    let mut table = Table::new(style).column("Calls", Align::Right);
    if timed {
        table = table.column(head("Total"), Align::Right);
    }
    table = table.column("Caller -> callee", Align::Left);
    for edge in &graph.edges {
        let how = match edge.link {
            Link::Call => "",
            Link::Made => " (made the thread)",
            Link::Indirect => " (through pruned functions)",
            Link::Rest => " (edges below the threshold)",
        };
        let mut cells = figures(edge.calls, edge.calls_at_least, None, edge.total_ns);
        let text = format!("{} -> {}{how}", edge.caller, edge.callee);
        cells.push(Cell::new(text));
        table.row(cells);
    }
    table.print(out)?;
    let nodes = (graph.all.0 - graph.nodes.len()) as u64;
    let edges = (graph.all.1 - graph.edges.len()) as u64;
    if nodes + edges > 0 {
        let text = format!(
            "not shown: {} and {}",
            counted(nodes, "function", "functions"),
            counted(edges, "edge", "edges")
        );
        writeln!(out, "{}", style.paint(Paint::Aside, &text))?;
    }
    Ok(())
}
