//! Whose time it was where the clock cannot tell: looks at stacks against what is left of the measured time once the probes' cost is out.
//!
//! A processor works on while it reads the clock. So what a function does in few nanoseconds between two calls is hardly to be seen in
//! the measured times, and what is taken out for the probes is right in sums only: of an interpreter's loop, which does nothing else, next to
//! nothing is left. A look finds a thread at the instruction that is about to end, whatever was begun meanwhile, so looks tell
//! functions apart; but how long the whole takes without probes they do not tell.
//!
//! ```text
//!   clock     the base of a function, and how far off it may be
//!   looks     its share of all looks that found the thread in the program's code, times the thread's whole time; off by chance, and by MODEL
//!   blended   both, each by its certainty; then all functions together to what they were, so that the thread's time stays the same
//! ```
//!
//! A function with few calls is known by the clock, one with millions of short ones by looks. What a function gains or loses goes to its contexts
//! by how uncertain each of them is.

use std::collections::BTreeMap;

use thalweg_model::{Node, SampleNode};

use crate::compensate::Cost;

/// How far off the share of looks may be beside chance: probes slow one function down more than another. In twelve programs, held against
/// looks at them without probes, a hot function was off by a fifth to a third of its time (docs/benchmarks.md).
const MODEL: f64 = 0.3;
/// No clock is better than that.
const CLOCK: f64 = 0.02;

/// What is known of a function in one thread, in nanoseconds.
#[derive(Default)]
struct Known {
    clock: f64,
    error: f64,
    looks: f64,
    blended: f64,
}

/// Changes the bases of one thread's contexts, from which the probes' cost, `costs`, has been taken out.
pub(crate) fn blend(nodes: &mut [Node], costs: &[Cost], samples: &[SampleNode]) {
    let mut functions: BTreeMap<u32, Known> = BTreeMap::new();
    for (node, cost) in nodes.iter().zip(costs) {
        let known = functions.entry(node.function).or_default();
        known.clock += node.base as f64;
        known.error += cost.error();
    }
    count_looks(samples, &mut functions);
    let whole: f64 = functions.values().map(|known| known.clock).sum();
    let looks: f64 = functions.values().map(|known| known.looks).sum();
    if whole <= 0.0 || looks <= 0.0 {
        return;
    }
    let each = whole / looks;
    for known in functions.values_mut() {
        known.blended = known.blend(each);
    }
    let blended: f64 = functions.values().map(|known| known.blended).sum();
    if blended > 0.0 {
        let scale = whole / blended;
        let bases = hand_out(nodes, costs, &functions, scale);
        take_over(nodes, &bases);
    }
}

/// A look belongs to the innermost function that is counted: what others take is its own time.
fn count_looks(samples: &[SampleNode], functions: &mut BTreeMap<u32, Known>) {
    let mut counted: Vec<Option<u32>> = Vec::with_capacity(samples.len());
    for frame in samples {
        let above = || counted.get(frame.parent? as usize).copied().flatten();
        let function = match frame.counted {
            true => Some(frame.function),
            false => above(),
        };
        counted.push(function);
        if let Some(known) = function.and_then(|function| functions.get_mut(&function)) {
            known.looks += frame.own as f64;
        }
    }
}

impl Known {
    fn blend(&self, each: f64) -> f64 {
        let seen = self.looks * each;
        let by_chance = each * each * (self.looks + 1.0);
        let of_looks = by_chance + (MODEL * seen).powi(2);
        let of_clock = self.error.powi(2) + (CLOCK * self.clock).powi(2) + 1.0;
        (self.clock * of_looks + seen * of_clock) / (of_looks + of_clock)
    }
}

/// The new base of each context.
fn hand_out(
    nodes: &[Node],
    costs: &[Cost],
    functions: &BTreeMap<u32, Known>,
    scale: f64,
) -> Vec<f64> {
    let mut bases: Vec<f64> = nodes.iter().map(|node| node.base as f64).collect();
    let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
    for ((node, cost), base) in nodes.iter().zip(costs).zip(&mut bases) {
        let known = &functions[&node.function];
        if known.error > 0.0 {
            let change = known.blended * scale - known.clock;
            *base = (*base + change * cost.error() / known.error).max(0.0);
        }
        *sums.entry(node.function).or_default() += *base;
    }
    // What some contexts did not have, or all of it where none is less certain than another.
    for (node, base) in nodes.iter().zip(&mut bases) {
        let sum = sums[&node.function];
        if sum > 0.0 {
            *base *= functions[&node.function].blended * scale / sum;
        }
    }
    bases
}

/// Whole nanoseconds, of which none is lost, and sums over what is below.
fn take_over(nodes: &mut [Node], bases: &[f64]) {
    let mut grown = vec![0i64; nodes.len()];
    let mut left = 0.0;
    for index in (0..nodes.len()).rev() {
        let node = &mut nodes[index];
        let wanted = bases[index] + left;
        let base = wanted.round().max(0.0);
        left = wanted - base;
        let is_one_call = node.calls == 1 && node.max == node.base;
        let change = (base as i64).wrapping_sub(node.base as i64);
        node.base = base as u64;
        if is_one_call {
            (node.min, node.max) = (node.base, node.base);
        }
        let all = grown[index].saturating_add(change);
        node.cum = node.cum.saturating_add_signed(all);
        node.elapsed = node.elapsed.saturating_add_signed(all);
        if let Some(parent) = node.parent {
            let above = &mut grown[parent as usize];
            *above = above.saturating_add(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use proptest::prelude::*;

    fn nodes(bases: &[(u32, u64)]) -> Vec<Node> {
        let profile = fixture::chain(bases);
        profile.processes[0].threads[0].nodes.clone()
    }

    fn uncertain(errors: &[f64]) -> Vec<Cost> {
        let cost = |&error: &f64| Cost {
            ns: error,
            common: error,
            own: 0.0,
        };
        errors.iter().map(cost).collect()
    }

    /// A chain of frames.
    fn looks(frames: &[(u32, bool, u64)]) -> Vec<SampleNode> {
        let frame = |(index, &(function, counted, own)): (usize, &(u32, bool, u64))| SampleNode {
            parent: index.checked_sub(1).map(|parent| parent as u32),
            function,
            counted,
            own,
        };
        frames.iter().enumerate().map(frame).collect()
    }

    fn bases(nodes: &[Node]) -> Vec<u64> {
        nodes.iter().map(|node| node.base).collect()
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn what_the_clock_knows_nothing_of_is_known_by_looks() {
        // Of a's time nothing is left, but it may be off by more than there is.
        let mut nodes = nodes(&[(MAIN, 0), (A, 0), (B, 1000 * MS)]);
        let costs = uncertain(&[0.0, 3000e6, 3000e6]);
        blend(
            &mut nodes,
            &costs,
            &looks(&[(MAIN, true, 0), (A, true, 5000), (B, true, 5000)]),
        );
        let [main, a, b] = bases(&nodes)[..] else {
            panic!("three contexts")
        };
        assert_eq!(main + a + b, 1000 * MS);
        assert!((480 * MS..520 * MS).contains(&a), "{a}");
        assert_eq!(nodes[0].cum, 1000 * MS);
        assert_eq!(nodes[1].cum, a + b);
    }

    #[test]
    fn what_the_clock_knows_stays() {
        let mut nodes = nodes(&[(MAIN, 700 * MS), (A, 300 * MS)]);
        let costs = uncertain(&[MS as f64, MS as f64]);
        blend(
            &mut nodes,
            &costs,
            &looks(&[(MAIN, true, 50), (A, true, 50)]),
        );
        assert!(nodes[0].base.abs_diff(700 * MS) < 10 * MS, "{nodes:?}");
    }

    #[test]
    fn looks_at_what_is_not_counted_are_its_callers() {
        let mut nodes = nodes(&[(MAIN, 100 * MS), (A, 900 * MS)]);
        let costs = uncertain(&[5000e6, 5000e6]);
        let seen = looks(&[(MAIN, true, 0), (B, false, 5000), (A, true, 5000)]);
        blend(&mut nodes, &costs, &seen);
        assert!(nodes[0].base.abs_diff(500 * MS) < 20 * MS, "{nodes:?}");
    }

    #[test]
    fn without_looks_nothing_changes() {
        let before = nodes(&[(MAIN, 100), (A, 200)]);
        let mut after = before.clone();
        blend(&mut after, &uncertain(&[1e9, 1e9]), &[]);
        assert_eq!(after, before);
    }

    proptest! {
        #[test]
        fn a_threads_time_stays_and_cum_is_the_sum_of_what_is_below(
            contexts in prop::collection::vec((0u32..3, 0u64..1 << 40, 0.0f64..1e13, 0u64..100_000), 1..40),
            parents in prop::collection::vec(any::<prop::sample::Index>(), 40),
        ) {
            let mut nodes: Vec<Node> = Vec::new();
            for (index, &(function, base, ..)) in contexts.iter().enumerate() {
                let parent = (index > 0).then(|| parents[index].index(index) as u32);
                nodes.push(Node { parent, function, base, calls: 2, ..Node::default() });
            }
            let sums = |nodes: &[Node]| {
                let mut sums: Vec<u64> = nodes.iter().map(|node| node.base).collect();
                for index in (1..nodes.len()).rev() {
                    sums[nodes[index].parent.unwrap() as usize] += sums[index];
                }
                sums
            };
            for (index, cum) in sums(&nodes).into_iter().enumerate() {
                nodes[index].cum = cum;
                nodes[index].elapsed = cum + 7;
            }
            let before = nodes[0].cum;
            let costs: Vec<Cost> = uncertain(&contexts.iter().map(|c| c.2).collect::<Vec<_>>());
            let frame = |&(function, _, _, own): &(u32, u64, f64, u64)| SampleNode {
                parent: None, function, counted: true, own,
            };
            let seen: Vec<SampleNode> = contexts.iter().map(frame).collect();
            blend(&mut nodes, &costs, &seen);
            let after: Vec<u64> = nodes.iter().map(|node| node.cum).collect();
            prop_assert_eq!(&after, &sums(&nodes));
            prop_assert!(nodes[0].cum.abs_diff(before) <= 1 + before / (1 << 40), "{} {}", nodes[0].cum, before);
            prop_assert!(nodes.iter().all(|node| node.elapsed == node.cum + 7));
        }
    }
}
