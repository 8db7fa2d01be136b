//! What a profile says: questions asked of the trees, each answered in a file of its own.
//!
//! Between the model and what people see: [`Profile`](thalweg_model::Profile) -> analysis ->
//! reports. No figure is counted twice under recursion:
//!
//! ```text
//! calls(f) = sum of calls over all nodes of f
//! self(f)  = sum of self  over all nodes of f
//! total(f)   = sum of total   over the nodes of f that have no f above them (recursion = 0)
//! ```
//!
//! Folded nodes that stand under no parent count in all three.
#![forbid(unsafe_code)]

mod arcs;
mod bounds;
mod by_metric;
mod callers_callees;
mod combine;
mod compensate;
mod components;
mod context;
mod diff;
mod edges;
mod estimate;
mod executed;
mod flat;
mod flow_graph;
mod folded;
mod graph;
mod kernel;
mod lineage;
mod merge;
mod overview;
mod pairs;
mod pipeline;
mod probe_cost;
mod prune;
mod rarity;
mod refine;
mod reuse;
mod runtime;
mod samples;
mod selection;
mod sites;
mod stays;
mod summary;
mod timeline;
mod tree;
mod tunables;
mod turned;
mod uncertainty;
mod waiting;

pub use arcs::{Arc, Stanza, stanzas};
pub use bounds::Bounds;
pub use callers_callees::{callees, callers};
pub use combine::combine;
pub use compensate::{compensate, total_cost};
pub use context::{
    ThreadShare, call_by_thread, creation_by_thread, creations, function_at_level,
    function_by_thread,
};
pub use diff::{Change, ContextChange, Delta, Diff, FunctionChange, Name, diff};
pub use edges::{Caller, Edge, edges};
pub use estimate::estimate;
pub use executed::{
    Branch, By, Code, Executed, Insn, LineCounts, Place, cost_of_blocks, cycles, executed,
    line_counts, total_executed,
};
pub use flat::{FunctionTotals, context_errors, flat};
pub use flow_graph::{
    Choice, FlowContexts, FlowEdge, FlowGraph, FlowKey, FlowNode, READABLE_FUNCTIONS, flow_graph,
};
pub use folded::{FOLDED, FoldedPlace, add_up_all, folded_places, gather_folded};
pub use graph::{Graph, GraphEdge, GraphNode, Link, Source};
pub use kernel::{SystemCalls, made as system_calls_made, system_calls, uncounted_system_calls};
pub use lineage::{Lineage, Origin, ThreadNumber};
pub use merge::{MergeError, merge};
pub use overview::{Cycle, ModuleShare, Overview};
pub use pairs::PairTable;
pub use pipeline::{Patterns, Pipeline, PipelineError, RuntimeFrames, Sites};
pub use prune::{PRUNED, Thresholds, prune};
pub use rarity::Rarity;
pub use refine::{Granularity, Matches, Refinement, refine};
pub use samples::{NOT_ATTRIBUTED, attribute_samples};
pub use selection::{Part, makers, select, together};
pub use sites::{SiteCalls, rolled_up, site_calls, target};
pub use stays::{Stack, stays};
pub use summary::{HotPath, HotStep, Summary, hottest_path, summary};
pub use timeline::{Bin, Lane, Lanes};
pub use tree::{Tree, Weight};
pub use turned::inverted;
pub use waiting::{WaitKind, is_waiting_measured, own_waits, wait_kinds, waited_by_context, waits};

pub use by_metric::by_metric;

use thalweg_model::{Node, NodeFlags, Process, Profile, Thread};

/// Every thread with the process it belongs to.
pub fn threads(profile: &Profile) -> impl Iterator<Item = (&Process, &Thread)> {
    profile
        .processes
        .iter()
        .flat_map(|process| process.threads.iter().map(move |thread| (process, thread)))
}

/// Whether a node's total belongs into a sum over functions.
fn is_outermost(node: &Node) -> bool {
    let is_folded = node.parent.is_none() && node.flags.contains(NodeFlags::FOLDED);
    node.recursion == 0 || is_folded
}

fn outermost_total(node: &Node) -> u64 {
    if is_outermost(node) { node.total_ns } else { 0 }
}

fn outermost_wall(node: &Node) -> u64 {
    if is_outermost(node) { node.wall_ns } else { 0 }
}

/// A place for each function that contexts are of, by its number. A million lookups in a map of
/// functions took most of the time of what asks once for each context.
fn by_function<T: Clone + Default>(nodes: &[Node]) -> Vec<T> {
    let last = nodes.iter().map(|node| node.function.index()).max();
    vec![T::default(); last.map_or(0, |last| last + 1)]
}

/// Shortest and longest call over several nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Extremes {
    min: Option<u64>,
    max: u64,
}

impl Extremes {
    /// A node none of whose calls has ended yet has max 0, and its min says nothing.
    fn add(&mut self, node: &Node) {
        if node.calls > 0 && node.max > 0 {
            self.min = Some(self.min.map_or(node.min, |min| min.min(node.min)));
            self.max = self.max.max(node.max);
        }
    }

    /// Shortest and longest.
    fn both(&self) -> Option<[u64; 2]> {
        self.min.map(|min| [min, self.max])
    }
}

#[cfg(test)]
mod arbitrary;
#[cfg(test)]
mod fixture;
