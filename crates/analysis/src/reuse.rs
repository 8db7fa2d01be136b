//! How many other contexts, and how many other functions, a thread visits between two calls in the
//! same context: as many as their nodes and stubs must leave room for in a cache. Estimated from
//! nothing but the tree and its counts.
//!
//! ```text
//! contexts:   a = the nearest ancestor during whose calls this context is called twice or more
//!             the contexts below a, or the calls below a for each call here, whichever are fewer
//! functions:  those that are called as often, and of the others as many calls as fall between two of this one
//! ```

use std::collections::HashMap;

use thalweg_model::{FuncId, Node};

/// Recursion makes chains of a million contexts: who has not found the ancestor by then is far from
/// its last call in any case.
const LEVELS: usize = 64;

/// Of each context.
pub fn contexts_between(nodes: &[Node]) -> Vec<f64> {
    let mut below: Vec<(f64, f64)> = nodes.iter().map(|node| (1.0, node.calls as f64)).collect();
    for (index, node) in nodes.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            let (contexts, calls) = below[index];
            let sums = &mut below[parent as usize];
            sums.0 += contexts;
            sums.1 += calls;
        }
    }
    let whole = nodes
        .iter()
        .zip(&below)
        .filter(|(node, _)| node.parent.is_none());
    let whole = whole.fold((0.0, 0.0), |sum, (_, root)| {
        (sum.0 + root.0, sum.1 + root.1)
    });
    let between = |node: &Node| {
        let calls = node.calls.max(1);
        let mut ancestor = node.parent;
        for _ in 0..LEVELS {
            let Some(at) = ancestor else { break };
            if calls / 2 >= nodes[at as usize].calls.max(1) {
                break;
            }
            ancestor = nodes[at as usize].parent;
        }
        let (contexts, made) = ancestor.map_or(whole, |at| below[at as usize]);
        f64::min(contexts, made / calls as f64)
    };
    nodes.iter().map(between).collect()
}

/// Of each function that the contexts are of.
pub fn functions_between(nodes: &[Node]) -> HashMap<FuncId, f64> {
    let mut calls: HashMap<FuncId, u64> = HashMap::new();
    for node in nodes {
        let sum = calls.entry(node.function).or_default();
        *sum = sum.saturating_add(node.calls);
    }
    let mut calls: Vec<(FuncId, u64)> = calls.into_iter().collect();
    calls.sort_by_key(|&(function, calls)| (std::cmp::Reverse(calls), function));
    let mut rest: f64 = calls.iter().map(|(_, calls)| *calls as f64).sum();
    let between = |(rank, (function, calls)): (usize, (FuncId, u64))| {
        rest -= calls as f64;
        (function, rank as f64 + rest.max(0.0) / calls.max(1) as f64)
    };
    calls.into_iter().enumerate().map(between).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: Option<u32>, function: FuncId, calls: u64) -> Node {
        Node {
            parent,
            function,
            calls,
            ..Node::default()
        }
    }

    #[test]
    fn a_loop_visits_what_is_in_it_between_two_calls() {
        // main calls 0: a thousand times b and c; d once.
        let nodes = [
            node(None, FuncId(0), 1),
            node(Some(0), FuncId(1), 1000),
            node(Some(0), FuncId(2), 1000),
            node(Some(0), FuncId(3), 1),
        ];
        let between = contexts_between(&nodes);
        assert!((2.0..2.1).contains(&between[1]), "{between:?}");
        assert_eq!(between[3], 4.0, "once: all there is");
        let between = functions_between(&nodes);
        assert!((1.0..1.1).contains(&between[&FuncId(2)]), "{between:?}");
    }

    #[test]
    fn a_deep_recursion_takes_no_time() {
        let nodes: Vec<Node> = (0..500_000)
            .map(|index: u32| node(index.checked_sub(1), FuncId(0), 1))
            .collect();
        assert_eq!(contexts_between(&nodes).len(), nodes.len());
    }
}
