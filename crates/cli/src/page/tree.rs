//! The heaviest part of the tree of contexts: of all threads laid over each other, from a context down; or of one that is
//! turned upside down, or of what stands above or below one function.

use std::collections::BinaryHeap;

use serde::Serialize;
use thalweg_analysis::{Bounds, Tree, Weight, callees, callers};
use thalweg_model::{FuncId, NodeFlags};

use super::part::Cut;
use super::{ApiError, Query};

const DEFAULT_ROWS: usize = 4000;
const MAX_ROWS: usize = 50_000;

/// Column by column, parents before children, siblings by weight.
#[derive(Serialize, Default)]
pub struct Rows {
    /// The weight of all roots together.
    whole: u64,
    contexts: usize,
    id: Vec<u32>,
    /// Index among the rows; -1 for the first.
    parent: Vec<i64>,
    level: Vec<u32>,
    function: Vec<FuncId>,
    weight: Vec<u64>,
    calls: Vec<u64>,
    /// 1 where there may have been more calls; where any is so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    at_least: Vec<u8>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    total: Vec<u64>,
    wall: Vec<u64>,
    recursion: Vec<u32>,
    /// How many children the context has, among the rows or not.
    children: Vec<usize>,
    flags: Vec<u8>,
}

pub fn response(cut: &Cut, query: &Query) -> Result<Rows, ApiError> {
    let weight = query.weight(cut.profile());
    let limit: usize = query.number("limit")?.unwrap_or(DEFAULT_ROWS);
    let limit = limit.clamp(1, MAX_ROWS);
    let turned;
    let thread = match query.text("shape") {
        None => cut.tree(),
        Some("inverted") => cut.inverted(),
        Some(shape @ ("callers" | "callees")) => {
            let function = query.function(cut.profile(), "f")?;
            turned = match shape {
                "callers" => callers(cut.profile(), function, None),
                _ => callees(cut.profile(), function, None),
            };
            &turned
        }
        Some(_) => {
            return Err(ApiError::bad_query(
                "'shape' is inverted, callers or callees",
            ));
        }
    };
    let tree = Tree::new(thread, weight);
    let from: Vec<u32> = match query.number::<u32>("at")? {
        None => tree.roots().to_vec(),
        Some(at) if (at as usize) < thread.nodes.len() => vec![at],
        Some(_) => return Err(ApiError::bad_query("'at' is no context of this tree")),
    };

    // The heaviest contexts of all are reached before lighter ones: none weighs more than its parent.
    let mut shown = vec![false; thread.nodes.len()];
    let mut heap: BinaryHeap<(u64, std::cmp::Reverse<u32>)> = BinaryHeap::new();
    let key = |node: u32| (tree.weight(node), std::cmp::Reverse(node));
    heap.extend(from.iter().map(|&node| key(node)));
    let mut left = limit;
    while let Some((_, std::cmp::Reverse(node))) = heap.pop() {
        if left == 0 {
            break;
        }
        left -= 1;
        shown[node as usize] = true;
        heap.extend(tree.children(node).iter().map(|&child| key(child)));
    }

    let mut rows = Rows {
        whole: tree
            .roots()
            .iter()
            .fold(0, |sum, &root| sum.saturating_add(tree.weight(root))),
        contexts: thread.nodes.len(),
        ..Rows::default()
    };
    let bounds = Bounds::from_profile(cut.profile());
    let bounds = bounds.any().then(|| bounds.contexts(&thread.nodes));
    let by_weight = |a: &u32, b: &u32| key(*a).cmp(&key(*b));
    let mut pending: Vec<(u32, i64)> = Vec::new();
    let push = |pending: &mut Vec<(u32, i64)>, nodes: &[u32], parent: i64| {
        let mut nodes: Vec<u32> = nodes
            .iter()
            .copied()
            .filter(|&n| shown[n as usize])
            .collect();
        nodes.sort_by(by_weight);
        pending.extend(nodes.into_iter().map(|node| (node, parent)));
    };
    push(&mut pending, &from, -1);
    while let Some((index, parent)) = pending.pop() {
        let node = &tree.nodes[index as usize];
        let row = rows.id.len() as i64;
        rows.id.push(index);
        rows.parent.push(parent);
        rows.level.push(tree.level(index));
        rows.function.push(node.function);
        rows.weight.push(tree.weight(index));
        rows.calls.push(node.calls);
        if let Some(bounds) = &bounds {
            rows.at_least.push(bounds[index as usize].into());
        }
        rows.own.push(node.self_ns);
        rows.total.push(node.total_ns);
        rows.wall.push(node.wall_ns);
        rows.recursion.push(node.recursion);
        rows.children.push(tree.children(index).len());
        rows.flags
            .push(node.flags.bits() & (NodeFlags::FOLDED | NodeFlags::SAMPLED).bits());
        push(&mut pending, tree.children(index), row);
    }
    debug_assert!(weight != Weight::Time || rows.id.len() <= limit);
    Ok(rows)
}
