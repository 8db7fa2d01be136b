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
//! A function with few calls is known by the clock, one with millions of short ones by looks, and so is one of which few calls were timed: those are
//! measured too long, and where a function was switched off one of them may have ended unseen. What a function gains or loses goes to its contexts
//! by how uncertain each of them is.

use std::collections::{BTreeMap, HashSet};

use thalweg_model::{Node, ProbeCosts};

use crate::compensate::{Cost, costs, cum_errors};
use crate::estimate::{MEASURED_LONGER, sampling_error};

/// How far off the share of looks may be beside chance, as a part of what share of the time was the probes': they slow one function down more
/// than another. In twelve programs with everything timed, held against looks at them without probes, a hot function was off by a
/// fifth to a third of its time (docs/benchmarks.md), where probes took two thirds of all.
const MODEL: f64 = 0.45;
/// No clock is better than that: no program takes the same time twice.
pub(crate) const CLOCK: f64 = 0.02;

/// How far off the clock may be in one thread, in nanoseconds.
pub(crate) struct Doubts {
    /// Of each context's base, and of its cum.
    pub contexts: Vec<f64>,
    pub cums: Vec<f64>,
    /// What part of the looks at a function may be due to the probes.
    pub model: f64,
    /// What part of all the time, and of each function's, may be.
    pub whole: f64,
    /// Something was taken out, so that looks and clock are blended.
    pub blended: bool,
}

impl Doubts {
    /// `known`: what was taken out. `switched`: functions that were not timed all the time.
    pub fn of(nodes: &[Node], known: Option<&ProbeCosts>, switched: &HashSet<u32>) -> Doubts {
        let costs = match known {
            Some(known) => costs(nodes, known),
            None => vec![Cost::default(); nodes.len()],
        };
        let sum = |part: fn(&Cost) -> f64| -> f64 { costs.iter().map(part).sum() };
        let cost = sum(|cost| cost.ns);
        let off = sum(|cost| cost.common) + sum(|cost| cost.own * cost.own).sqrt();
        let left: f64 = nodes.iter().map(|node| node.base as f64).sum();
        let mut contexts: Vec<f64> = costs.iter().map(|cost| cost.error()).collect();
        let mut cums = cum_errors(nodes, &costs);
        if known.is_some() {
            let slower: Vec<f64> = nodes.iter().map(slower).collect();
            add(&mut contexts, &slower);
            add(&mut cums, &sums_below(nodes, slower));
        }
        // What a context has too much is measured as its caller's, or further up where that has not so much.
        let mut below = vec![0.0; nodes.len()];
        for (index, node) in nodes.iter().enumerate().rev() {
            let mut own = sampling_error(node);
            if switched.contains(&node.function) {
                // A call that ended unseen is the longest.
                own += node.max as f64;
            }
            contexts[index] += own + below[index];
            let passed_on = own + (below[index] - node.base as f64).max(0.0);
            cums[index] += passed_on;
            if let Some(parent) = node.parent {
                below[parent as usize] += passed_on;
            }
        }
        Doubts {
            contexts,
            cums,
            model: MODEL * cost / (cost + left).max(1.0),
            whole: off / left.max(1.0) + CLOCK,
            blended: known.is_some(),
        }
    }
}

/// What a context may have been slowed down by the probes around it.
fn slower(node: &Node) -> f64 {
    let timed = node.calls.saturating_sub(node.untimed);
    (timed as f64 * MEASURED_LONGER).min(node.base as f64)
}

fn add(to: &mut [f64], more: &[f64]) {
    to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
}

/// Of each context with all below it.
fn sums_below(nodes: &[Node], mut own: Vec<f64>) -> Vec<f64> {
    for (index, node) in nodes.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            own[parent as usize] += own[index];
        }
    }
    own
}

/// What is known of a function in one thread, in nanoseconds.
#[derive(Default)]
struct Known {
    clock: f64,
    error: f64,
    looks: f64,
    blended: f64,
    /// Squares.
    variance: f64,
}

/// Changes the bases of one thread's contexts, from which the probes' cost has been taken out. `looks` fell into the own time of each.
pub(crate) fn blend(nodes: &mut [Node], doubts: &Doubts, looks: &[f64]) {
    let mut functions: BTreeMap<u32, Known> = BTreeMap::new();
    for ((node, doubt), looks) in nodes.iter().zip(&doubts.contexts).zip(looks) {
        let known = functions.entry(node.function).or_default();
        known.clock += node.base as f64;
        known.error += doubt;
        known.looks += looks;
    }
    let whole: f64 = functions.values().map(|known| known.clock).sum();
    let looks: f64 = looks.iter().sum();
    if whole <= 0.0 || looks <= 0.0 {
        return;
    }
    let each = whole / looks;
    for known in functions.values_mut() {
        known.blend(each, doubts.model);
    }
    hand_out_rest(&mut functions, whole);
    let blended: f64 = functions.values().map(|known| known.blended).sum();
    if blended > 0.0 {
        let scale = whole / blended;
        let bases = hand_out(nodes, &doubts.contexts, &functions, scale);
        take_over(nodes, &bases);
    }
}

/// What is left of the whole, or too much, is that of functions that little is known of: what the clock is sure of stays.
fn hand_out_rest(functions: &mut BTreeMap<u32, Known>, whole: f64) {
    let blended: f64 = functions.values().map(|known| known.blended).sum();
    let variance: f64 = functions.values().map(|known| known.variance).sum();
    for known in functions.values_mut() {
        let part = (whole - blended) * known.variance / variance;
        known.blended = (known.blended + part).max(0.0);
    }
}

impl Known {
    fn blend(&mut self, each: f64, model: f64) {
        let seen = self.looks * each;
        let by_chance = each * each * (self.looks + 1.0);
        let of_looks = by_chance + (model * seen).powi(2);
        let of_clock = self.error.powi(2) + (CLOCK * self.clock).powi(2) + 1.0;
        self.blended = (self.clock * of_looks + seen * of_clock) / (of_looks + of_clock);
        self.variance = of_looks * of_clock / (of_looks + of_clock);
    }
}

/// The new base of each context.
fn hand_out(
    nodes: &[Node],
    doubts: &[f64],
    functions: &BTreeMap<u32, Known>,
    scale: f64,
) -> Vec<f64> {
    let mut bases: Vec<f64> = nodes.iter().map(|node| node.base as f64).collect();
    let mut sums: BTreeMap<u32, f64> = BTreeMap::new();
    for ((node, doubt), base) in nodes.iter().zip(doubts).zip(&mut bases) {
        let known = &functions[&node.function];
        if known.error > 0.0 {
            let change = known.blended * scale - known.clock;
            *base = (*base + change * doubt / known.error).max(0.0);
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

    fn uncertain(errors: &[f64]) -> Doubts {
        Doubts {
            contexts: errors.to_vec(),
            cums: errors.to_vec(),
            model: 0.3,
            whole: 0.0,
            blended: true,
        }
    }

    fn bases(nodes: &[Node]) -> Vec<u64> {
        nodes.iter().map(|node| node.base).collect()
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn what_the_clock_knows_nothing_of_is_known_by_looks() {
        // Of a's time nothing is left, but it may be off by more than there is.
        let mut nodes = nodes(&[(MAIN, 0), (A, 0), (B, 1000 * MS)]);
        let doubts = uncertain(&[0.0, 3000e6, 3000e6]);
        blend(&mut nodes, &doubts, &[0.0, 5000.0, 5000.0]);
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
        let doubts = uncertain(&[MS as f64, MS as f64]);
        blend(&mut nodes, &doubts, &[50.0, 50.0]);
        assert!(nodes[0].base.abs_diff(700 * MS) < 10 * MS, "{nodes:?}");
    }

    #[test]
    fn what_was_measured_too_long_in_a_sampled_function_is_missing_in_its_caller() {
        let mut nodes = nodes(&[(MAIN, 500 * MS), (A, 100 * MS), (B, 400 * MS)]);
        (nodes[2].calls, nodes[2].untimed) = (10_000_000, 9_900_000);
        (nodes[2].min, nodes[2].max) = (0, 20 * MS);
        let doubts = Doubts::of(&nodes, None, &HashSet::new());
        assert!(doubts.contexts[2] >= 400e6, "{:?}", doubts.contexts);
        assert!(doubts.contexts[1] >= doubts.contexts[2]);
        blend(&mut nodes, &doubts, &[5000.0, 4800.0, 200.0]);
        assert!(nodes[1].base.abs_diff(480 * MS) < 20 * MS, "{nodes:?}");
        assert!(nodes[2].base.abs_diff(20 * MS) < 5 * MS, "{nodes:?}");
    }

    #[test]
    fn a_call_that_may_have_ended_unseen_is_in_doubt() {
        let nodes = nodes(&[(MAIN, 10), (A, 500 * MS)]);
        let doubts = Doubts::of(&nodes, None, &HashSet::from([A]));
        assert!(doubts.contexts[1] >= 500e6, "{:?}", doubts.contexts);
        assert!(doubts.cums[1] >= 500e6, "and in its sum: {:?}", doubts.cums);
        assert!(Doubts::of(&nodes, None, &HashSet::new()).contexts[1] == 0.0);
    }

    #[test]
    fn what_probes_may_have_done_is_in_doubt() {
        let mut nodes = nodes(&[(MAIN, 50 * MS), (A, 50 * MS), (B, 100 * MS)]);
        nodes[2].calls = 1_000_000;
        let mut known = ProbeCosts {
            inner_ns: 100.0,
            ..ProbeCosts::default()
        };
        let doubts = |known: &ProbeCosts| Doubts::of(&nodes, Some(known), &HashSet::new());
        let sure = doubts(&known);
        let slower: f64 = nodes.iter().map(slower).sum();
        assert!(slower > 0.0 && sure.cums[0] >= slower, "{:?}", sure.cums);
        // A third of all was the probes'.
        assert!((sure.model - MODEL / 3.0).abs() < 0.001, "{}", sure.model);
        known.error = 0.2;
        let unsure = doubts(&known);
        assert!((unsure.whole - sure.whole - 0.1).abs() < 0.001);
    }

    #[test]
    fn without_looks_nothing_changes() {
        let before = nodes(&[(MAIN, 100), (A, 200)]);
        let mut after = before.clone();
        blend(&mut after, &uncertain(&[1e9, 1e9]), &[0.0, 0.0]);
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
            let doubts = uncertain(&contexts.iter().map(|c| c.2).collect::<Vec<_>>());
            let seen: Vec<f64> = contexts.iter().map(|c| c.3 as f64).collect();
            blend(&mut nodes, &doubts, &seen);
            let after: Vec<u64> = nodes.iter().map(|node| node.cum).collect();
            prop_assert_eq!(&after, &sums(&nodes));
            prop_assert!(nodes[0].cum.abs_diff(before) <= 1 + before / (1 << 40), "{} {}", nodes[0].cum, before);
            prop_assert!(nodes.iter().all(|node| node.elapsed == node.cum + 7));
        }
    }
}
