//! What a profile says: questions asked of the trees, each answered in a file of its own.
//!
//! Between the model and what people see: [`Profile`](thalweg_model::Profile) -> analysis -> reports.
//! No figure is counted twice under recursion:
//!
//! ```text
//! calls(f) = sum of calls over all nodes of f
//! base(f)  = sum of base  over all nodes of f
//! cum(f)   = sum of cum   over the nodes of f that have no f above them (recursion = 0)
//! ```
//!
//! Folded nodes that stand under no parent count in all three.
#![forbid(unsafe_code)]

mod arcs;
mod around;
mod bounds;
mod combine;
mod compensate;
mod components;
mod context;
mod diff;
mod doubts;
mod edges;
mod estimate;
mod flat;
mod folded;
mod graph;
mod kernel;
mod lineage;
mod merge;
mod narrow;
mod overview;
mod pairs;
mod probed;
mod prune;
mod refine;
mod reuse;
mod samples;
mod shown;
mod sites;
mod summary;
mod tree;
mod tunables;
mod waiting;
mod weigh;

pub use arcs::{Arc, Stanza, stanzas};
pub use around::{callees, callers, inverted};
pub use bounds::Bounds;
pub use combine::combine;
pub use compensate::{Cost, compensate, costs, total_cost};
pub use context::{ThreadShare, of_call, of_function};
pub use diff::{Change, ContextChange, Delta, Diff, FunctionChange, Name, diff};
pub use edges::{Caller, Edge, edges};
pub use estimate::{estimate, sampling_error};
pub use flat::{FunctionTotals, flat};
pub use folded::{FOLDED, FoldedPlace, add_up_all, folded_places, gather_folded};
pub use graph::{Graph, GraphEdge, GraphNode, Link, Source};
pub use kernel::{SystemCalls, made as system_calls_made, system_calls, uncounted_system_calls};
pub use lineage::{Lineage, Origin, ThreadNumber};
pub use merge::{MergeError, merge};
pub use narrow::{Part, makers, narrow, together};
pub use overview::{Cycle, ModuleShare, Overview};
pub use pairs::PairTable;
pub use prune::{PRUNED, Thresholds, prune};
pub use refine::{Granularity, Meant, Refinement, refine};
pub use samples::{NOT_ATTRIBUTED, fill};
pub use shown::as_shown;
pub use sites::{SiteCalls, rolled_up, site_calls, target};
pub use summary::{HotPath, HotStep, Summary, hottest_path, summary};
pub use tree::{Tree, Weight};
pub use waiting::{WaitKind, is_waiting_measured, own_waits, wait_kinds, waited_by_context, waits};

pub use weigh::weigh;

use thalweg_model::{Node, NodeFlags, Process, Profile, Thread};

/// Every thread with the process it belongs to.
pub fn threads(profile: &Profile) -> impl Iterator<Item = (&Process, &Thread)> {
    profile
        .processes
        .iter()
        .flat_map(|process| process.threads.iter().map(move |thread| (process, thread)))
}

/// Whether a node's cum belongs into a sum over functions.
fn is_outermost(node: &Node) -> bool {
    let is_folded = node.parent.is_none() && node.flags.contains(NodeFlags::FOLDED);
    node.recursion == 0 || is_folded
}

fn outermost_cum(node: &Node) -> u64 {
    if is_outermost(node) { node.cum } else { 0 }
}

fn outermost_elapsed(node: &Node) -> u64 {
    if is_outermost(node) { node.elapsed } else { 0 }
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
}

#[cfg(test)]
mod arbitrary;
#[cfg(test)]
mod fixture;
