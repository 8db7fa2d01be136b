//! For how long the stacks that samples found stayed as they were.
//!
//! Two samples of a thread that follow each other have the outer part of their stacks in common.
//! Those frames have stayed; the others of the later one are newly seen.
//!
//! ```text
//! sample    1        2        3        4
//! stack     main     main     main     main         main: 4 samples, newly seen once,  stayed for 4
//!           parse    parse    eval     parse        parse: 3,        newly seen twice, stayed for 2 and 1
//!           read              add
//! ```
//!
//! A thread's samples are one period of its processor time apart. A stay of n samples took n periods
//! of it, one more or less; what ended and began again between two samples is one stay. Samples
//! whose stack nobody knows, in probes for one, end none.

use std::collections::HashMap;

use thalweg_model::FuncId;

use crate::timeline::Lane;

/// A stack, by its innermost frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// Index into the same list, always smaller.
    pub parent: Option<u32>,
    pub function: FuncId,
    pub level: u32,
    /// Samples that had it, and those in which it was the innermost.
    pub samples: u64,
    pub own: u64,
    /// Samples that had it where the one before had not.
    pub new: u64,
    /// How many samples its stays had, those in between that nobody knows included: all together,
    /// and the longest.
    pub stayed: u64,
    pub longest: u64,
}

/// All stacks of a thread, outer frames first.
pub fn stays(lane: &Lane) -> Vec<Stack> {
    let (mut stacks, places) = merged(lane);
    let mut starts = vec![0; stacks.len()];
    let (mut before, mut path): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    let mut last = 0;
    let end = |stack: &mut Stack, start: u64, last: u64| {
        let length = last - start + 1;
        stack.stayed += length;
        stack.longest = stack.longest.max(length);
    };
    for (number, sample) in (0..).zip(&lane.line().samples) {
        let Some(node) = sample.sample else { continue };
        let innermost = places[node as usize];
        stacks[innermost as usize].own += 1;
        path.clear();
        let mut next = Some(innermost);
        while let Some(place) = next {
            path.push(place);
            next = stacks[place as usize].parent;
        }
        path.reverse();
        let pairs = before.iter().zip(&path);
        let common = pairs.take_while(|(one, other)| one == other).count();
        for &place in &before[common..] {
            end(&mut stacks[place as usize], starts[place as usize], last);
        }
        for &place in &path[common..] {
            stacks[place as usize].new += 1;
            starts[place as usize] = number;
        }
        for &place in &path {
            stacks[place as usize].samples += 1;
        }
        std::mem::swap(&mut before, &mut path);
        last = number;
    }
    for place in before {
        end(&mut stacks[place as usize], starts[place as usize], last);
    }
    stacks
}

/// Without the difference between frames that were counted and those that were not, which changes
/// while a program runs; and where each of the lane's stacks went.
fn merged(lane: &Lane) -> (Vec<Stack>, Vec<u32>) {
    let mut stacks: Vec<Stack> = Vec::new();
    let mut places: Vec<u32> = Vec::new();
    let mut known = HashMap::new();
    for node in lane.stacks() {
        let parent = node.parent.map(|parent| places[parent as usize]);
        let place = *known.entry((parent, node.function)).or_insert_with(|| {
            stacks.push(Stack {
                parent,
                function: node.function,
                level: parent.map_or(0, |parent| stacks[parent as usize].level + 1),
                ..Stack::default()
            });
            stacks.len() as u32 - 1
        });
        places.push(place);
    }
    (stacks, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::{SampleNode, TimedSample, Timeline};

    const MAIN: FuncId = FuncId(0);
    const PARSE: FuncId = FuncId(1);
    const EVAL: FuncId = FuncId(2);

    fn lane(samples: &[Option<u32>]) -> Lane {
        let node = |parent, function, counted| SampleNode {
            parent,
            function,
            counted,
            own: 0,
        };
        let stacks = vec![
            node(None, MAIN, true),
            node(Some(0), PARSE, true),
            node(Some(0), EVAL, true),
            node(Some(0), PARSE, false),
        ];
        let samples = (0..).zip(samples);
        let line = Timeline {
            period_ns: 1_000,
            samples: samples
                .map(|(at_ns, &sample)| TimedSample { at_ns, sample })
                .collect(),
            waits: Vec::new(),
        };
        Lane::new(stacks, line)
    }

    fn figures(lane: &Lane) -> Vec<(FuncId, [u64; 5])> {
        let figures = |stack: Stack| {
            let Stack {
                samples,
                own,
                new,
                stayed,
                longest,
                ..
            } = stack;
            (stack.function, [samples, own, new, stayed, longest])
        };
        stays(lane).into_iter().map(figures).collect()
    }

    #[test]
    fn a_frame_stays_while_all_above_it_stay() {
        let seen = lane(&[Some(1), Some(1), Some(2), Some(1)]);
        assert_eq!(
            figures(&seen),
            [
                (MAIN, [4, 0, 1, 4, 4]),
                (PARSE, [3, 3, 2, 3, 2]),
                (EVAL, [1, 1, 1, 1, 1])
            ]
        );
    }

    #[test]
    fn neither_a_sample_that_nobody_knows_nor_a_switch_of_probes_ends_a_stay() {
        let seen = lane(&[None, Some(1), None, Some(3), None, Some(2)]);
        assert_eq!(
            figures(&seen),
            [
                (MAIN, [3, 0, 1, 5, 5]),
                (PARSE, [2, 2, 1, 3, 3]),
                (EVAL, [1, 1, 1, 1, 1])
            ]
        );
        assert_eq!(figures(&lane(&[]))[0], (MAIN, [0; 5]));
    }
}
