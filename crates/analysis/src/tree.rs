//! The tree of one thread with the links that the profile leaves out: children, levels, weights.
//!
//! No step here recurses: a tree may be a million levels deep.

use thalweg_model::{Node, Thread};

/// What makes a context important.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Time in the context and below it.
    Time,
    /// Calls in the context and below it, where nothing was timed.
    Calls,
    /// Time in the context and below it, waiting included.
    Wall,
}

pub struct Tree<'a> {
    pub nodes: &'a [Node],
    /// Children of node i: `children[starts[i]..starts[i + 1]]`, in the order of the nodes.
    starts: Vec<u32>,
    children: Vec<u32>,
    roots: Vec<u32>,
    levels: Vec<u32>,
    weights: Vec<u64>,
}

impl<'a> Tree<'a> {
    pub fn new(thread: &'a Thread, weight: Weight) -> Tree<'a> {
        let nodes = thread.nodes.as_slice();
        let mut starts = vec![0u32; nodes.len() + 1];
        let mut levels = vec![0u32; nodes.len()];
        let mut roots = Vec::new();
        for (index, node) in (0..).zip(nodes) {
            match node.parent {
                Some(parent) => {
                    starts[parent as usize + 1] += 1;
                    levels[index as usize] = levels[parent as usize] + 1;
                }
                None => roots.push(index),
            }
        }
        for index in 0..nodes.len() {
            starts[index + 1] += starts[index];
        }
        let mut next = starts.clone();
        let mut children = vec![0u32; starts[nodes.len()] as usize];
        for (index, node) in (0..).zip(nodes) {
            if let Some(parent) = node.parent {
                let place = &mut next[parent as usize];
                children[*place as usize] = index;
                *place += 1;
            }
        }
        Tree {
            nodes,
            starts,
            children,
            roots,
            levels,
            weights: weights(nodes, weight),
        }
    }

    /// In the order of the nodes.
    pub fn roots(&self) -> &[u32] {
        &self.roots
    }

    /// In the order of the nodes.
    pub fn children(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.children[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// 0 for a root.
    pub fn level(&self, node: u32) -> u32 {
        self.levels[node as usize]
    }

    /// Never less than the weight of any context below.
    pub fn weight(&self, node: u32) -> u64 {
        self.weights[node as usize]
    }

    /// Calls `visit` with each node and `true` before those below it, and with `false` after them.
    pub fn walk(&self, mut visit: impl FnMut(u32, bool)) {
        let mut pending: Vec<(u32, bool)> = self.roots.iter().rev().map(|&r| (r, true)).collect();
        while let Some((node, entering)) = pending.pop() {
            visit(node, entering);
            if entering {
                pending.push((node, false));
                let children = self.children(node).iter().rev();
                pending.extend(children.map(|&child| (child, true)));
            }
        }
    }

    /// Each node before those below it, siblings in the order that `compare` gives them.
    pub fn depth_first(
        &self,
        mut compare: impl FnMut(&u32, &u32) -> std::cmp::Ordering,
    ) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut pending = self.roots.clone();
        pending.sort_by(|a, b| compare(b, a));
        while let Some(node) = pending.pop() {
            order.push(node);
            let first = pending.len();
            pending.extend_from_slice(self.children(node));
            pending[first..].sort_by(|a, b| compare(b, a));
        }
        order
    }
}

fn weights(nodes: &[Node], weight: Weight) -> Vec<u64> {
    let mut weights: Vec<u64> = nodes
        .iter()
        .map(|node| match weight {
            Weight::Time => node.total_ns,
            Weight::Calls => node.calls,
            Weight::Wall => node.wall_ns,
        })
        .collect();
    for (index, node) in nodes.iter().enumerate().rev() {
        let Some(parent) = node.parent else { continue };
        let parent = parent as usize;
        weights[parent] = match weight {
            Weight::Time | Weight::Wall => weights[parent].max(weights[index]),
            Weight::Calls => weights[parent].saturating_add(weights[index]),
        };
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn children_levels_and_roots_follow_from_the_parents() {
        let profile = fixture::branching();
        let tree = Tree::new(&profile.processes[0].threads[0], Weight::Time);
        assert_eq!(tree.roots(), [0]);
        assert_eq!(tree.children(0), [1, 3]);
        assert_eq!(tree.children(1), [2]);
        assert_eq!(tree.children(2), [0u32; 0]);
        assert_eq!([0, 1, 2, 3].map(|node| tree.level(node)), [0, 1, 2, 1]);
    }

    #[test]
    fn depth_first_visits_parents_first_and_siblings_in_the_order_asked_for() {
        let profile = fixture::branching();
        let tree = Tree::new(&profile.processes[0].threads[0], Weight::Time);
        assert_eq!(tree.depth_first(|a, b| a.cmp(b)), [0, 1, 2, 3]);
        assert_eq!(tree.depth_first(|a, b| b.cmp(a)), [0, 3, 1, 2]);
    }

    #[test]
    fn without_a_clock_a_context_weighs_the_calls_below_it() {
        let profile = fixture::branching();
        let tree = Tree::new(&profile.processes[0].threads[0], Weight::Calls);
        assert_eq!([0, 1, 2, 3].map(|node| tree.weight(node)), [4, 2, 1, 1]);
    }

    #[test]
    fn a_million_levels_do_not_overflow_the_stack() {
        let nodes = (0..1_000_000u32).map(|index| Node {
            parent: index.checked_sub(1),
            total_ns: u64::from(1_000_000 - index),
            ..Node::default()
        });
        let thread = Thread {
            nodes: nodes.collect(),
            ..Thread::default()
        };
        let tree = Tree::new(&thread, Weight::Time);
        assert_eq!(tree.depth_first(|a, b| a.cmp(b)).len(), 1_000_000);
        assert_eq!(tree.level(999_999), 999_999);
        assert_eq!(tree.weight(0), 1_000_000);
    }
}
