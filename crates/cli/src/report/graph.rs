//! `report --graph`: the call graph of all threads and processes laid together, pruned as one likes: functions, and calls
//! between them.

use std::io::{self, Write};

use serde::Serialize;
use thalweg_analysis::{Bounds, Caller, Graph, GraphEdge, GraphNode, Link, Source};
use thalweg_model::Profile;

use super::Selection;
use super::json::finish;
use super::style::{Paint, Style};
use super::table::{Align, Cell, Table};
use super::text::{self, TIME_WIDTH, counted, printable, share, time};

/// The function, and where its part on one nesting level of threads is kept apart, that level.
fn name(profile: &Profile, node: &GraphNode) -> String {
    let name = printable(&profile.functions[node.function as usize].name);
    match node.level {
        None => name.into_owned(),
        Some(level) => format!("{name}@{level}"),
    }
}

fn source(profile: &Profile, graph: &Graph, edge: &GraphEdge) -> String {
    match edge.from {
        Source::Start => "START".to_string(),
        Source::Unknown => "(folded: not known)".to_string(),
        Source::Others => "(other callers)".to_string(),
        Source::Node(node) => name(profile, &graph.nodes[node as usize]),
    }
}

/// Of what pruning joined it is not known which functions were in between.
fn is_bound(bounds: &Bounds, graph: &Graph, edge: &GraphEdge) -> bool {
    let callee = graph.nodes[edge.to as usize].function;
    let caller = match edge.from {
        Source::Node(node) => Caller::Function(graph.nodes[node as usize].function),
        Source::Start | Source::Unknown | Source::Others => Caller::Outside,
    };
    let is_joined = matches!(edge.link, Link::Indirect | Link::Rest);
    is_joined && bounds.any() || bounds.call(caller, callee)
}

/// Heaviest first.
fn ordered<T>(rows: &[T], weight: impl Fn(&T) -> (u64, u64), limit: Option<usize>) -> Vec<&T> {
    let mut rows: Vec<&T> = rows.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(weight(row)));
    rows.truncate(limit.unwrap_or(usize::MAX));
    rows
}

pub fn print_graph(
    profile: &Profile,
    graph: &Graph,
    selection: &Selection,
    out: &mut impl Write,
    style: Style,
) -> io::Result<()> {
    let timed = profile.meta.timed;
    let bounds = Bounds::of(profile);
    let figures = |calls: u64, is_bound: bool, base: Option<u64>, cum: u64| {
        let calls = text::at_least(is_bound, text::calls(profile, calls));
        let mut cells = vec![Cell::new(calls)];
        if timed {
            if let Some(base) = base {
                cells.push(Cell::new(format!(
                    "{} {}",
                    time(base),
                    share(base, graph.time)
                )));
            }
            cells.push(Cell::new(format!(
                "{} {}",
                time(cum),
                share(cum, graph.time)
            )));
        }
        cells
    };
    let head = |title: &str| format!("{title:>TIME_WIDTH$} {:>6}", "%");
    let title = format!(
        "{} and {} of all threads",
        counted(graph.nodes.len() as u64, "function", "functions"),
        counted(graph.edges.len() as u64, "edge", "edges"),
    );
    writeln!(out, "{}", style.paint(Paint::Title, &title))?;
    let mut table = Table::new(style).column("Calls", Align::Right);
    if timed {
        table = table
            .column(head("Self"), Align::Right)
            .column(head("Total"), Align::Right);
    }
    table = table.column("Function", Align::Left);
    for node in ordered(&graph.nodes, |node| (node.cum, node.calls), selection.limit) {
        let is_bound = bounds.function(node.function);
        let mut cells = figures(node.calls, is_bound, Some(node.base), node.cum);
        cells.push(Cell::new(name(profile, node)));
        table.row(cells);
    }
    table.print(out)?;
    writeln!(out)?;
    let mut table = Table::new(style).column("Calls", Align::Right);
    if timed {
        table = table.column(head("Total"), Align::Right);
    }
    table = table.column("Caller -> callee", Align::Left);
    for edge in ordered(&graph.edges, |edge| (edge.cum, edge.calls), selection.limit) {
        let how = match edge.link {
            Link::Call => "",
            Link::Made => " (made the thread)",
            Link::Indirect => " (through pruned functions)",
            Link::Rest => " (edges below the threshold)",
        };
        let is_bound = is_bound(&bounds, graph, edge);
        let mut cells = figures(edge.calls, is_bound, None, edge.cum);
        let to = name(profile, &graph.nodes[edge.to as usize]);
        cells.push(Cell::new(format!(
            "{} -> {to}{how}",
            source(profile, graph, edge)
        )));
        table.row(cells);
    }
    table.print(out)?;
    let hidden = |all: usize| all.saturating_sub(selection.limit.unwrap_or(all)) as u64;
    let (nodes, edges) = (hidden(graph.nodes.len()), hidden(graph.edges.len()));
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

pub fn print_graph_json(
    profile: &Profile,
    graph: &Graph,
    selection: &Selection,
    out: &mut impl Write,
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Report {
        schema: &'static str,
        timed: bool,
        time_ns: u64,
        calls: u64,
        nodes: Vec<NodeOf>,
        edges: Vec<EdgeOf>,
    }
    #[derive(Serialize)]
    struct NodeOf {
        function: u32,
        name: String,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        self_ns: u64,
        total_ns: u64,
    }
    #[derive(Serialize)]
    struct EdgeOf {
        caller: String,
        callee: String,
        /// call, made, indirect, rest.
        link: &'static str,
        calls: u64,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        calls_at_least: bool,
        total_ns: u64,
    }
    let bounds = Bounds::of(profile);
    let nodes = ordered(&graph.nodes, |node| (node.cum, node.calls), selection.limit);
    let edges = ordered(&graph.edges, |edge| (edge.cum, edge.calls), selection.limit);
    finish(
        profile.meta.weighed_by,
        out,
        &Report {
            schema: "thalweg.report.graph/1",
            timed: profile.meta.timed,
            time_ns: graph.time,
            calls: graph.calls,
            nodes: nodes
                .into_iter()
                .map(|node| NodeOf {
                    function: node.function,
                    name: name(profile, node),
                    calls: node.calls,
                    calls_at_least: bounds.function(node.function),
                    self_ns: node.base,
                    total_ns: node.cum,
                })
                .collect(),
            edges: edges
                .into_iter()
                .map(|edge| EdgeOf {
                    caller: source(profile, graph, edge),
                    callee: name(profile, &graph.nodes[edge.to as usize]),
                    link: match edge.link {
                        Link::Call => "call",
                        Link::Made => "made",
                        Link::Indirect => "indirect",
                        Link::Rest => "rest",
                    },
                    calls: edge.calls,
                    calls_at_least: is_bound(&bounds, graph, edge),
                    total_ns: edge.cum,
                })
                .collect(),
        },
    )
}
