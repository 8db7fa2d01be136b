//! What calls cost in this very program, by looks: how many of them found a probe, against how many would by what calls cost usually.
//!
//! With the hot functions off, those that are left are called so rarely that their stubs and contexts have left the caches by then: in sqlite a call costs
//! three to four times what it does where it is calibrated. How much colder a program is no calibration tells.

use crate::samples::Seen;

/// Standard deviations that an error is.
const SIGMAS: f64 = 2.0;
/// A calibration is no surer, and no less sure, than so many samples.
const SUREST: f64 = 12.0;
const LEAST_SURE: f64 = 1.0;
/// No more than so many are remembered: what a program does changes.
const MEMORY: f64 = 60.0;
/// No call costs more, however cold: what says so is chance.
const MOST: f64 = 8.0;

/// Looks in probes, without those in the slow path, which is measured.
///
/// Until they tell, calls cost a standard deviation more than what was calibrated, which weighs as much as the samples that are as sure: with an
/// error of e, two deviations, that is (2 / e)².
pub(super) struct Found {
    before: Seen,
    expected: f64,
    found: f64,
    /// Of what is taken for granted: how many times what is calibrated, and how many samples that is worth.
    colder: f64,
    weight: f64,
}

impl Found {
    /// `error`: of a call's calibrated cost.
    pub(super) fn new(error: f64) -> Found {
        let deviation = (error / SIGMAS).max(f64::MIN_POSITIVE);
        let weight = deviation.powi(-2).clamp(LEAST_SURE, SUREST);
        Found {
            before: Seen::default(),
            expected: 0.0,
            found: 0.0,
            colder: 1.0 + weight.sqrt().recip(),
            weight,
        }
    }

    /// What part of the budget is aimed at, so that chance does not exceed it: what is known by n samples is off by two times one in the root of n.
    pub(super) fn aim(&self) -> f64 {
        1.0 / (1.0 + SIGMAS / (self.found + self.weight).sqrt())
    }

    /// How many looks there were since the last time, and how many of them in probes.
    pub(super) fn since(&mut self, now: Seen) -> (f64, f64) {
        let before = std::mem::replace(&mut self.before, now);
        let more = |now: u64, before: u64| now.saturating_sub(before) as f64;
        (
            more(now.looks, before.looks),
            more(now.in_probes, before.in_probes),
        )
    }

    /// So many were in probes' hot paths, and so many were expected to be.
    pub(super) fn add(&mut self, found: f64, expected: f64) {
        self.found += found.max(0.0);
        self.expected += expected;
        let much = self.found.max(self.expected);
        if much > MEMORY {
            self.found *= MEMORY / much;
            self.expected *= MEMORY / much;
        }
    }

    /// Whether looks have more to say of it than what was assumed.
    pub(super) fn is_known(&self) -> bool {
        self.found.max(self.expected) > self.weight * self.colder
    }

    /// What a call costs here, in terms of what it does usually. Never less: some of what it costs is not in the probe.
    pub(super) fn factor(&self) -> f64 {
        let taken = self.weight * self.colder;
        ((self.found + taken) / (self.expected + self.weight)).clamp(1.0, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_cost_what_is_usual_until_looks_say_otherwise() {
        let mut found = Found::new(0.8);
        assert!((found.factor() - 1.4).abs() < 1e-9 && !found.is_known());
        found.add(3.0, 1.0);
        assert!(found.factor() < 1.7, "three looks are a matter of chance");
        for _ in 0..20 {
            found.add(12.0, 4.0);
        }
        assert!((2.4..3.0).contains(&found.factor()), "{}", found.factor());
        assert!(found.is_known());
    }

    #[test]
    fn what_is_not_sure_leaves_more_room_and_weighs_less() {
        let (sure, unsure) = (Found::new(0.5), Found::new(1.5));
        assert!(sure.factor() < unsure.factor() && sure.aim() > unsure.aim());
        assert_eq!(Found::new(0.0).weight, SUREST);
        assert_eq!(Found::new(f64::INFINITY).weight, LEAST_SURE);
        let mut found = unsure;
        let before = found.aim();
        found.add(60.0, 60.0);
        assert!(found.aim() > before && found.aim() < 0.85);
        assert!(found.factor() < 1.1, "{}", found.factor());
    }

    #[test]
    fn what_was_is_forgotten() {
        let mut found = Found::new(0.8);
        (0..50).for_each(|_| found.add(12.0, 4.0));
        (0..50).for_each(|_| found.add(4.0, 4.0));
        assert!(found.factor() < 1.1, "{}", found.factor());
        (0..50).for_each(|_| found.add(1.0, 4.0));
        assert_eq!(found.factor(), 1.0);
    }

    #[test]
    fn each_look_counts_once() {
        let mut found = Found::new(0.8);
        let at = |looks, in_probes| Seen { looks, in_probes };
        assert_eq!(found.since(at(100, 10)), (100.0, 10.0));
        assert_eq!(found.since(at(150, 11)), (50.0, 1.0));
        // Another process looks now, and has just begun.
        assert_eq!(found.since(at(3, 0)), (0.0, 0.0));
    }
}
