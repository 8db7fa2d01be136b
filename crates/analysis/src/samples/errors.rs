//! How far off times are that samples had a part in.
//!
//! ```text
//!   chance    two standard deviations of what samples and clock say together
//!   apart     what the figure differs from the samples by beyond chance, where they are what it is known by
//!   probes    what part of the samples at a function the probes may have moved: as uncertain as what they cost beside its code; all that they
//!             cost there, in a program that waits at some instruction
//!   whole     the figure's part of what the thread's time may be off by
//! ```

use std::collections::BTreeMap;

use thalweg_model::{FuncId, Node, NodeFlags, ProbeCosts, SampledFunction};

use super::Scale;
use super::fit::Fitted;
use super::fuse::Fused;
use crate::compensate::beside;
use crate::tunables::TUNABLES;
use crate::uncertainty::Uncertainty;
use crate::{is_outermost, outermost_total};

/// Of one function over all threads; times in nanoseconds.
#[derive(Default)]
pub(super) struct Sums {
    /// Samples at it while it was not counted: as the innermost, and anywhere on the stack.
    own: f64,
    on_stack: f64,
    /// They had a part in its times.
    pub used: bool,
    /// Of some of its calls the clock knows nothing.
    untimed: bool,
    /// Time that was counted below its callers, and is its total's.
    through: f64,
    self_ns: Figure,
    total_ns: Figure,
}

#[derive(Clone, Copy, Default)]
struct Figure {
    time: f64,
    /// What samples alone would make of it.
    seen: f64,
    /// Squares.
    variance: f64,
    probes: f64,
    clock: f64,
    whole: f64,
}

impl Sums {
    /// `switched`: the clock does not know all its calls.
    pub fn finish(&self, function: FuncId, switched: bool) -> SampledFunction {
        let by_samples = switched || self.untimed || self.on_stack > 0.0;
        SampledFunction {
            function,
            own: self.own.round() as u64,
            on_stack: self.on_stack.max(self.own).round() as u64,
            error_ns: self.self_ns.error(by_samples).round() as u64,
            total_error_ns: self.total_ns.error(by_samples).round() as u64,
            through_ns: self.through.round() as u64,
        }
    }
}

impl Figure {
    fn error(&self, by_samples: bool) -> f64 {
        let clock =
            (self.clock / TUNABLES.sigmas).powi(2) + (TUNABLES.repeatability * self.time).powi(2);
        let of_samples = match (by_samples, self.variance + clock) {
            (false, both) if both > 0.0 => clock / both,
            (false, _) => 0.0,
            (true, _) => 1.0,
        };
        let chance = TUNABLES.sigmas * (of_samples * self.variance).sqrt();
        let by_chance = TUNABLES.sigmas * self.variance.sqrt();
        let apart = ((self.time - self.seen).abs() - by_chance).max(0.0);
        chance + of_samples * (apart + self.probes) + self.whole
    }
}

/// What the clock may be off by, and what probes may have moved, of one thread's contexts.
pub(super) fn add_errors(
    nodes: &[Node],
    uncertainty: &Uncertainty,
    fitted: &Fitted,
    scale: &Scale,
    sums: &mut BTreeMap<FuncId, Sums>,
) {
    let none = || vec![0.0; nodes.len()];
    let moved = scale.costs.map_or_else(none, |known| beside(nodes, &known));
    // On either side, of which `beside` gives each a half.
    let all = scale.costs.map_or_else(none, |known| {
        let unsure = ProbeCosts {
            error: 1.0,
            counted_error: 1.0,
            ..known
        };
        beside(nodes, &unsure)
    });
    let moved: Vec<f64> = (0..nodes.len())
        .map(|index| match scale.waits {
            true => 2.0 * all[index],
            false => moved[index].max(uncertainty.hidden[index]),
        })
        .collect();
    let below = sums_below(nodes, &moved);
    let hidden_below = sums_below(nodes, &uncertainty.hidden);
    for (index, node) in nodes.iter().enumerate() {
        let sum = sums.entry(node.function).or_default();
        sum.untimed |= node.untimed as f64 > TUNABLES.nearly_all_timed * node.calls as f64;
        sum.self_ns.clock += uncertainty.probes[index] + uncertainty.untimed[index];
        sum.self_ns.probes += moved[index];
        sum.self_ns.seen += uncertainty.hidden[index];
        if is_outermost(node) {
            sum.total_ns.clock += uncertainty.totals[index];
            sum.total_ns.probes += below[index];
            sum.total_ns.seen += hidden_below[index];
        }
    }
    for (function, (own, on_stack)) in &fitted.uncounted {
        let sum = sums.entry(*function).or_default();
        sum.own += own;
        sum.on_stack += on_stack;
    }
}

/// Of each context with all below it.
fn sums_below(nodes: &[Node], own: &[f64]) -> Vec<f64> {
    let mut sums = own.to_vec();
    for (index, node) in nodes.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            sums[parent as usize] += sums[index];
        }
    }
    sums
}

/// What came of it, and what was seen of each function.
pub(super) fn add_figures(
    nodes: &[Node],
    places: &[Option<u32>],
    fitted: &Fitted,
    fused: &Fused,
    uncertainty: &Uncertainty,
    scale: &Scale,
    sums: &mut BTreeMap<FuncId, Sums>,
) {
    for node in nodes {
        let sum = sums.entry(node.function).or_default();
        sum.used |= scale.costs.is_some() || node.flags.contains(NodeFlags::SAMPLED);
        let total_ns = outermost_total(node) as f64;
        sum.self_ns.time += node.self_ns as f64;
        sum.self_ns.whole += uncertainty.whole * node.self_ns as f64;
        sum.total_ns.time += total_ns;
        sum.total_ns.whole += uncertainty.whole * total_ns;
    }
    let own = |place: &super::fit::Place| place.own + place.outside;
    let mut on_stack: Vec<f64> = fitted.places.iter().map(own).collect();
    let mut seen: BTreeMap<FuncId, (f64, f64)> = BTreeMap::new();
    for (index, place) in fitted.places.iter().enumerate().rev() {
        if let Some(parent) = place.parent {
            on_stack[parent as usize] += on_stack[index];
        }
        let (as_innermost, anywhere) = seen.entry(place.function).or_default();
        *as_innermost += own(place);
        let node = places[index].map(|node| &nodes[node as usize]);
        if node.is_some_and(is_outermost) {
            *anywhere += on_stack[index];
        }
    }
    for (&(function, place), &samples) in &fitted.through {
        seen.entry(function).or_default().1 += samples;
        let place = place as usize;
        let time = fused.own[place] * samples / fitted.places[place].own;
        let sum = sums.entry(function).or_default();
        sum.through += time;
        sum.total_ns.time += time;
        sum.total_ns.whole += uncertainty.whole * time;
    }
    seen.insert(
        FuncId::from_index(scale.functions),
        (fitted.not_attributed, fitted.not_attributed),
    );
    let outside = fitted.places.iter().map(|place| place.outside);
    let all = fused.samples + outside.sum::<f64>();
    for (function, (own, on_stack)) in seen {
        let Some(sum) = sums.get_mut(&function) else {
            continue;
        };
        for (figure, seen) in [(&mut sum.self_ns, own), (&mut sum.total_ns, on_stack)] {
            figure.seen += seen * fused.each;
            figure.variance += fused.each * fused.each * variance(seen, all);
        }
    }
}

/// Of a number of samples, out of all.
pub(crate) fn variance(seen: f64, all: f64) -> f64 {
    // Somewhere between what was seen and even odds: one sample of one says little.
    let share = (seen + 1.0) / (all + 2.0);
    all * share * (1.0 - share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_the_clocks_where_that_is_surer_than_samples() {
        let figure = |seen: f64, clock: f64| Figure {
            time: 1000.0,
            seen,
            variance: 100.0,
            probes: 30.0,
            clock,
            whole: 40.0,
        };
        // Twenty by chance.
        assert_eq!(figure(990.0, 5.0).error(true), 20.0 + 30.0 + 40.0);
        assert_eq!(figure(900.0, 5.0).error(true), 20.0 + 80.0 + 30.0 + 40.0);
        let unsure = figure(990.0, 1e9).error(false);
        assert!((89.0..=90.0).contains(&unsure), "{unsure}");
        let sure = figure(990.0, 0.0).error(false);
        // The clock is off by twenty from run to run, samples by ten by chance.
        assert!((40.0 + 17.0..40.0 + 45.0).contains(&sure), "{sure}");
    }
}
