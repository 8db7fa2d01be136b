//! What calls cost in this very program, by looks: how many of them found a probe, against how many would by what calls cost usually.
//!
//! With the hot functions off, those that are left are called so rarely that their stubs and contexts have left the caches by then: in sqlite a call costs
//! three to four times what it does where it is calibrated. How much colder a program is no calibration tells.

use crate::samples::Seen;

/// What calls cost where nothing is known yet: in CPython, Lua and sqlite 1.4 to 3.7 times what is calibrated. It weighs as much as so many looks.
const COLDER: f64 = 1.6;
const USUAL: f64 = 6.0;
/// No more than so many are remembered: what a program does changes.
const MEMORY: f64 = 60.0;
/// No call costs more, however cold: what says so is chance.
const MOST: f64 = 8.0;

/// Looks in probes, without those in the slow path, which is measured.
#[derive(Default)]
pub(super) struct Found {
    before: Seen,
    expected: f64,
    found: f64,
}

impl Found {
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
        self.found.max(self.expected) > USUAL * COLDER
    }

    /// What a call costs here, in terms of what it does usually. Never less: some of what it costs is not in the probe.
    pub(super) fn factor(&self) -> f64 {
        ((self.found + USUAL * COLDER) / (self.expected + USUAL)).clamp(1.0, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_cost_what_is_usual_until_looks_say_otherwise() {
        let mut found = Found::default();
        assert!((found.factor() - COLDER).abs() < 1e-9 && !found.is_known());
        found.add(3.0, 1.0);
        assert!(found.factor() < 1.9, "three looks are a matter of chance");
        for _ in 0..20 {
            found.add(12.0, 4.0);
        }
        assert!((2.6..3.0).contains(&found.factor()), "{}", found.factor());
        assert!(found.is_known());
    }

    #[test]
    fn what_was_is_forgotten() {
        let mut found = Found::default();
        (0..50).for_each(|_| found.add(12.0, 4.0));
        (0..50).for_each(|_| found.add(4.0, 4.0));
        assert!(found.factor() < 1.1, "{}", found.factor());
        (0..50).for_each(|_| found.add(1.0, 4.0));
        assert_eq!(found.factor(), 1.0);
    }

    #[test]
    fn each_look_counts_once() {
        let mut found = Found::default();
        let at = |looks, in_probes| Seen { looks, in_probes };
        assert_eq!(found.since(at(100, 10)), (100.0, 10.0));
        assert_eq!(found.since(at(150, 11)), (50.0, 1.0));
        // Another process looks now, and has just begun.
        assert_eq!(found.since(at(3, 0)), (0.0, 0.0));
    }
}
