//! How many other contexts, and how many other functions, a thread visits between two calls in the
//! same context: as many as their nodes and stubs must leave room for in a cache. Estimated from
//! nothing but the tree and its counts.
//!
//! ```text
//! contexts:   a = the nearest ancestor during whose calls this context is called twice or more
//!             the contexts below a, or the calls below a for each call here, whichever are fewer
//! functions:  those that are called as often, and of the others as many calls as fall between two of this one
//! ```

use thalweg_model::{FuncId, Node};

use crate::by_function;

/// Recursion makes chains of a million contexts: who has not found the ancestor by then is far from
/// its last call in any case.
const LEVELS: usize = 64;

/// The contexts of a thread, each with how many others are visited between two of its calls.
pub struct ContextsBetween<'a> {
    nodes: &'a [Node],
    /// Contexts and calls from each one down.
    below: Vec<(f64, f64)>,
    /// The same of the whole thread.
    whole: (f64, f64),
}

impl<'a> ContextsBetween<'a> {
    pub fn new(nodes: &'a [Node]) -> ContextsBetween<'a> {
        let own = |node: &Node| (1.0, node.calls as f64);
        let mut below: Vec<(f64, f64)> = nodes.iter().map(own).collect();
        let mut whole = (0.0, 0.0);
        for (index, node) in nodes.iter().enumerate().rev() {
            let (contexts, calls) = below[index];
            let sums = match node.parent {
                Some(parent) => &mut below[parent as usize],
                None => &mut whole,
            };
            sums.0 += contexts;
            sums.1 += calls;
        }
        ContextsBetween {
            nodes,
            below,
            whole,
        }
    }

    /// Asked one by one: of most contexts, which are called once, nobody wants to know.
    pub fn of(&self, node: &Node) -> f64 {
        let calls = node.calls.max(1);
        let mut ancestor = node.parent;
        for _ in 0..LEVELS {
            let Some(at) = ancestor else { break };
            if calls / 2 >= self.nodes[at as usize].calls.max(1) {
                break;
            }
            ancestor = self.nodes[at as usize].parent;
        }
        let (contexts, made) = ancestor.map_or(self.whole, |at| self.below[at as usize]);
        f64::min(contexts, made / calls as f64)
    }
}

/// By the number of the function; 0 of those that none of the contexts is of.
pub fn functions_between(nodes: &[Node]) -> Vec<f64> {
    let mut calls: Vec<Option<u64>> = by_function(nodes);
    for node in nodes {
        let sum = calls[node.function.index()].get_or_insert(0);
        *sum = sum.saturating_add(node.calls);
    }
    let mut between = vec![0.0; calls.len()];
    let of = |(function, calls): (u32, Option<u64>)| Some((FuncId(function), calls?));
    let mut calls: Vec<(FuncId, u64)> = (0..).zip(calls).filter_map(of).collect();
    calls.sort_by_key(|&(function, calls)| (std::cmp::Reverse(calls), function));
    let mut rest: f64 = calls.iter().map(|(_, calls)| *calls as f64).sum();
    for (rank, (function, calls)) in calls.into_iter().enumerate() {
        rest -= calls as f64;
        between[function.index()] = rank as f64 + rest.max(0.0) / calls.max(1) as f64;
    }
    between
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
        let contexts = ContextsBetween::new(&nodes);
        let between = contexts.of(&nodes[1]);
        assert!((2.0..2.1).contains(&between), "{between:?}");
        assert_eq!(contexts.of(&nodes[3]), 4.0, "once: all there is");
        let between = functions_between(&nodes);
        assert!((1.0..1.1).contains(&between[2]), "{between:?}");
    }

    #[test]
    fn a_deep_recursion_takes_no_time() {
        let nodes: Vec<Node> = (0..500_000)
            .map(|index: u32| node(index.checked_sub(1), FuncId(0), 1))
            .collect();
        let contexts = ContextsBetween::new(&nodes);
        let all = nodes.iter().map(|node| contexts.of(node));
        assert_eq!(all.fold(0.0, f64::max), nodes.len() as f64);
    }
}
