//! The call graph of all threads and processes laid together, pruned as one likes: functions, and
//! calls between them.

use serde::Serialize;
use thalweg_analysis::{Bounds, Caller, Graph, GraphEdge, GraphNode, Link, Source};
use thalweg_model::{FuncId, Profile};

use crate::{is_false, printable};

#[derive(Serialize)]
pub struct CallGraph {
    schema: &'static str,
    pub timed: bool,
    pub time_ns: u64,
    pub calls: u64,
    pub nodes: Vec<NodeOf>,
    pub edges: Vec<EdgeOf>,
    /// Functions and edges of the graph, shown or not.
    #[serde(skip)]
    pub all: (usize, usize),
}

#[derive(Serialize)]
pub struct NodeOf {
    pub function: FuncId,
    pub name: String,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
    pub total_ns: u64,
}

#[derive(Serialize)]
pub struct EdgeOf {
    pub caller: String,
    pub callee: String,
    /// call, made, indirect, rest.
    #[serde(rename = "link")]
    link_name: &'static str,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub total_ns: u64,
    #[serde(skip)]
    pub link: Link,
}

impl CallGraph {
    /// The heaviest of each.
    pub fn new(profile: &Profile, graph: &Graph, limit: Option<usize>) -> CallGraph {
        let bounds = Bounds::from_profile(profile);
        let nodes = ordered(&graph.nodes, |node| (node.total_ns, node.calls), limit);
        let edges = ordered(&graph.edges, |edge| (edge.total_ns, edge.calls), limit);
        let names = Names::new(profile, graph);
        let nodes = nodes.into_iter().map(|node| NodeOf {
            function: node.function,
            name: names.of(node),
            calls: node.calls,
            calls_at_least: bounds.function(node.function),
            self_ns: node.self_ns,
            total_ns: node.total_ns,
        });
        let edges = edges.into_iter().map(|edge| EdgeOf {
            caller: source(&names, graph, edge),
            callee: names.of(&graph.nodes[edge.to as usize]),
            link_name: match edge.link {
                Link::Call => "call",
                Link::Made => "made",
                Link::Indirect => "indirect",
                Link::Rest => "rest",
            },
            calls: edge.calls,
            calls_at_least: is_bound(&bounds, graph, edge),
            total_ns: edge.total_ns,
            link: edge.link,
        });
        CallGraph {
            schema: "thalweg.report.graph/1",
            timed: profile.meta.timed,
            time_ns: graph.time,
            calls: graph.calls,
            nodes: nodes.collect(),
            edges: edges.collect(),
            all: (graph.nodes.len(), graph.edges.len()),
        }
    }
}

struct Names<'a> {
    profile: &'a Profile,
    /// There are threads that others made: levels say something.
    levels: bool,
}

impl Names<'_> {
    fn new<'a>(profile: &'a Profile, graph: &Graph) -> Names<'a> {
        let mut levels = graph.nodes.iter().filter_map(|node| node.level);
        Names {
            profile,
            levels: levels.any(|level| level > 0),
        }
    }

    /// The function, and where its part on one nesting level of threads is kept apart, that level.
    fn of(&self, node: &GraphNode) -> String {
        let name = printable(crate::name(self.profile, node.function));
        match node.level.filter(|_| self.levels) {
            None => name.into_owned(),
            Some(level) => format!("{name}@{level}"),
        }
    }
}

fn source(names: &Names, graph: &Graph, edge: &GraphEdge) -> String {
    match edge.from {
        Source::Start => "START".to_string(),
        Source::Unknown => "(folded: not known)".to_string(),
        Source::Others => "(other callers)".to_string(),
        Source::Node(node) => names.of(&graph.nodes[node as usize]),
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
