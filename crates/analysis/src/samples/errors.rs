//! How far off times are that looks had a part in: by chance, by what probes do to a program, and by what clock and looks disagree in.
//!
//! ```text
//!   by looks    two standard deviations of what was seen + what part of it the probes may have moved + how far the figure is from it,
//!               and its part of what the whole may be off by, for looks tell shares
//!   by clock    what calibration and timed calls allow for, of functions that were timed all the time and seen about as long
//!   a figure    whichever is less
//! ```

use std::collections::BTreeMap;

use thalweg_model::{Looked, Node, NodeFlags};

use crate::blend::{CLOCK, Doubts};
use crate::{is_outermost, outermost_cum};

/// What chance exceeds once in twenty times.
const TWO_SIGMA: f64 = 2.0;

/// Of one function over all threads; times in nanoseconds.
#[derive(Default)]
pub struct Sums {
    /// Looks at it while it was not counted: as the innermost, and anywhere on the stack.
    pub own: f64,
    pub on_stack: f64,
    /// They had a part in its times.
    pub used: bool,
    base: Figure,
    cum: Figure,
}

#[derive(Default)]
struct Figure {
    time: f64,
    /// What looks alone would make of it.
    seen: f64,
    /// Squares.
    variance: f64,
    model: f64,
    clock: f64,
    whole: f64,
}

impl Sums {
    /// `switched`: the clock does not know all its calls.
    pub fn finish(&self, function: u32, switched: bool) -> Looked {
        let by_looks = switched || self.on_stack > 0.0;
        Looked {
            function,
            own: self.own.round() as u64,
            on_stack: self.on_stack.max(self.own).round() as u64,
            error_ns: self.base.error(by_looks).round() as u64,
            cum_error_ns: self.cum.error(by_looks).round() as u64,
        }
    }
}

impl Figure {
    fn error(&self, by_looks: bool) -> f64 {
        let chance = TWO_SIGMA * self.variance.sqrt();
        let apart = (self.time - self.seen).abs();
        let looks = chance + self.model + apart + self.whole;
        let clock = self.clock + CLOCK * self.time;
        match by_looks || apart > chance + self.model {
            true => looks,
            false => looks.min(clock),
        }
    }
}

/// What the clock may be off by, of one thread's contexts.
pub fn add_errors(nodes: &[Node], doubts: &Doubts, sums: &mut BTreeMap<u32, Sums>) {
    for (index, node) in nodes.iter().enumerate() {
        let sum = sums.entry(node.function).or_default();
        sum.base.clock += doubts.contexts[index];
        if is_outermost(node) {
            sum.cum.clock += doubts.cums[index];
        }
    }
}

/// What came of it, `nodes`, and what was seen of each function: as the innermost, and anywhere on the stack.
pub fn add_figures(
    nodes: &[Node],
    seen: &BTreeMap<u32, (f64, f64)>,
    looks: f64,
    ns_per_look: f64,
    doubts: &Doubts,
    sums: &mut BTreeMap<u32, Sums>,
) {
    for node in nodes {
        let sum = sums.entry(node.function).or_default();
        sum.used |= doubts.blended || node.flags.contains(NodeFlags::LOOKED);
        let cum = outermost_cum(node) as f64;
        sum.base.time += node.base as f64;
        sum.base.whole += doubts.whole * node.base as f64;
        sum.cum.time += cum;
        sum.cum.whole += doubts.whole * cum;
    }
    for (function, &(own, on_stack)) in seen {
        let sum = sums.entry(*function).or_default();
        for (figure, seen) in [(&mut sum.base, own), (&mut sum.cum, on_stack)] {
            figure.seen += seen * ns_per_look;
            figure.variance += ns_per_look * ns_per_look * variance(seen, looks);
            figure.model += doubts.model * seen * ns_per_look;
        }
    }
}

/// Of a number of looks, out of all.
pub(crate) fn variance(seen: f64, all: f64) -> f64 {
    // Somewhere between what was seen and even odds: one look of one says little.
    let share = (seen + 1.0) / (all + 2.0);
    all * share * (1.0 - share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_believed_only_where_looks_do_not_speak_against_it() {
        let figure = |seen: f64| Figure {
            time: 1000.0,
            seen,
            variance: 100.0,
            model: 30.0,
            clock: 5.0,
            whole: 40.0,
        };
        // Two standard deviations and what probes may have moved: 50.
        assert_eq!(figure(960.0).error(false), 5.0 + CLOCK * 1000.0);
        assert_eq!(figure(900.0).error(false), 20.0 + 30.0 + 100.0 + 40.0);
        assert_eq!(figure(960.0).error(true), 20.0 + 30.0 + 40.0 + 40.0);
    }
}
