//! What was seen of one thread: a tree of the stacks, with how often each was seen.

use std::collections::HashMap;

use super::functions::FunctionId;

/// A function below the chain of those above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) parent: Option<u32>,
    pub(super) function: FunctionId,
    pub(super) counted: bool,
    pub(super) own: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    /// Parents before children.
    pub(super) nodes: Vec<Seen>,
    places: HashMap<(Option<u32>, FunctionId, bool), u32>,
    /// When it was first and last looked at, by the monotonic clock.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) name: String,
}

impl Tree {
    pub(super) fn new(first_ns: u64, name: String) -> Tree {
        Tree {
            first_ns,
            name,
            ..Tree::default()
        }
    }

    /// Notes a stack, outermost frame first. Says how many nodes that took; none are made beyond `room`, and then nothing is noted.
    pub(super) fn add(
        &mut self,
        stack: impl Iterator<Item = (FunctionId, bool)>,
        room: usize,
    ) -> Option<usize> {
        let before = self.nodes.len();
        let mut at = None;
        for (function, counted) in stack {
            let next = self.nodes.len();
            let key = (at, function, counted);
            let place = match self.places.get(&key) {
                Some(place) => *place,
                None if next - before >= room => return None,
                None => {
                    self.nodes.push(Seen {
                        parent: at,
                        function,
                        counted,
                        own: 0,
                    });
                    self.places.insert(key, next as u32);
                    next as u32
                }
            };
            at = Some(place);
        }
        if let Some(place) = at {
            self.nodes[place as usize].own += 1;
        }
        Some(self.nodes.len() - before)
    }

    /// Adds what was seen of another thread.
    pub(super) fn merge(&mut self, other: &Tree) {
        let mut places: Vec<u32> = Vec::with_capacity(other.nodes.len());
        for seen in &other.nodes {
            let parent = seen.parent.map(|parent| places[parent as usize]);
            let next = self.nodes.len() as u32;
            let key = (parent, seen.function, seen.counted);
            let place = *self.places.entry(key).or_insert(next);
            if place == next {
                self.nodes.push(Seen {
                    parent,
                    own: 0,
                    ..*seen
                });
            }
            self.nodes[place as usize].own += seen.own;
            places.push(place);
        }
        self.last_ns = self.last_ns.max(other.last_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_stack_is_one_branch_and_a_switched_function_two() {
        let mut tree = Tree::default();
        let (main, work) = (FunctionId(0), FunctionId(1));
        let stack = |counted| [(main, true), (work, counted)].into_iter();
        assert_eq!(tree.add(stack(true), 10), Some(2));
        assert_eq!(tree.add(stack(true), 10), Some(0));
        assert_eq!(tree.add(stack(false), 10), Some(1));
        assert_eq!(tree.add(stack(true).take(1), 10), Some(0));
        let own: Vec<u64> = tree.nodes.iter().map(|node| node.own).collect();
        assert_eq!(own, [1, 2, 1]);
        assert_eq!(tree.nodes[2].parent, Some(0));
    }

    #[test]
    fn a_stack_that_finds_no_room_is_not_noted() {
        let mut tree = Tree::default();
        let deep = (0..10).map(|number| (FunctionId(number), true));
        assert_eq!(tree.add(deep, 5), None);
        assert!(tree.nodes.iter().all(|node| node.own == 0));
    }
}
