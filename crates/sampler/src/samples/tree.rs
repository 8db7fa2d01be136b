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
    /// Samples by time, each with the place of its innermost frame.
    pub(super) times: Vec<(u64, Option<u32>)>,
    /// How many there were, kept or not.
    pub(super) timed: u64,
}

impl Tree {
    pub(super) fn new(first_ns: u64, name: String) -> Tree {
        Tree {
            first_ns,
            name,
            ..Tree::default()
        }
    }

    /// Notes when the thread was on a processor, and the place that it was at: every so many times.
    pub(super) fn add_time(&mut self, at_ns: u64, place: Option<u32>, every: u64) -> bool {
        self.timed += 1;
        let is_kept = self.timed.is_multiple_of(every);
        if is_kept {
            self.times.push((at_ns, place));
        }
        is_kept
    }

    /// Keeps each second of them. Says how many are left.
    pub(super) fn thin_times(&mut self) -> usize {
        let mut number = 0;
        self.times.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        self.times.len()
    }

    /// Notes a stack, outermost frame first. Says how many nodes that took, and where it ends; none are made beyond `room`, and then nothing is noted.
    pub(super) fn add(
        &mut self,
        stack: impl Iterator<Item = (FunctionId, bool)>,
        room: usize,
    ) -> Option<(usize, Option<u32>)> {
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
        Some((self.nodes.len() - before, at))
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
        // Threads of several times are no lane.
        self.times = Vec::new();
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
        assert_eq!(tree.add(stack(true), 10), Some((2, Some(1))));
        assert_eq!(tree.add(stack(true), 10), Some((0, Some(1))));
        assert_eq!(tree.add(stack(false), 10), Some((1, Some(2))));
        assert_eq!(tree.add(stack(true).take(1), 10), Some((0, Some(0))));
        let own: Vec<u64> = tree.nodes.iter().map(|node| node.own).collect();
        assert_eq!(own, [1, 2, 1]);
        assert_eq!(tree.nodes[2].parent, Some(0));
    }

    #[test]
    fn thinned_times_are_those_that_would_have_been_kept_from_the_start() {
        let add = |tree: &mut Tree, from: u64, to: u64, every: u64| {
            for at in from..to {
                tree.add_time(at, None, every);
            }
        };
        let (mut thinned, mut sparse) = (Tree::default(), Tree::default());
        add(&mut thinned, 0, 37, 1);
        thinned.thin_times();
        add(&mut thinned, 37, 80, 2);
        add(&mut sparse, 0, 80, 2);
        assert_eq!(thinned.times, sparse.times);
    }

    #[test]
    fn a_stack_that_finds_no_room_is_not_noted() {
        let mut tree = Tree::default();
        let deep = (0..10).map(|number| (FunctionId(number), true));
        assert_eq!(tree.add(deep, 5), None);
        assert!(tree.nodes.iter().all(|node| node.own == 0));
    }
}
