//! What probes cost in this very program: calibrated costs of its calls against the looks that found a probe.
//!
//! Calibration knows what a call costs in programs made for that, and where caches are cold it only guesses; under a budget, where the calls
//! that are left are rare, they may cost twice of it. Looks see the program itself, but a processor does some of its work while it is in a
//! probe, so that they see probes for too long:
//!
//! ```text
//!   calibrated   by calls                                      off by what calibration says, or by what looks cannot be
//!   seen         of the measured time the share of looks in    off by chance, and by MODEL of what is calibrated
//!                probes, less what the program does meanwhile
//!   taken        both, each by its certainty; all costs by the same factor
//! ```
//!
//! Error: two standard deviations of that, and what the looks say otherwise.

use thalweg_model::{ProbeCosts, Profile};

use crate::compensate::total;
use crate::samples::variance;

/// What a program does of its own work while it is in probes: two fifths of all, if calls follow each other closely, which is such a part of
/// what it is seen at; but no more than such a part of what is calibrated, which is 2 ns a call here. How far off all that may be, as
/// a part of it too. From seven programs with everything timed (docs/calibrate.md).
const MEANWHILE: f64 = 0.65;
const MOST_MEANWHILE: f64 = 0.12;
const MODEL: f64 = 0.035;
/// What a file may say.
const LEAST: f64 = 0.25;
const MOST: f64 = 8.0;

const TWO_SIGMA: f64 = 2.0;

/// The same costs, in this program. Of a profile from which nothing was taken out.
pub(crate) fn in_this_program(profile: &Profile, known: ProbeCosts) -> ProbeCosts {
    let Some(sampling) = profile.meta.sampling.filter(|sampling| sampling.looks > 0) else {
        return known;
    };
    // Without the error of what is near, what is off everywhere alike is what is cold.
    let sure = ProbeCosts {
        error: 0.0,
        ..known
    };
    let calibrated = total(profile, &sure);
    let (cold, near) = (calibrated.common, calibrated.ns - calibrated.common);
    let nodes = crate::threads(profile).flat_map(|(_, thread)| &thread.nodes);
    let measured: f64 = nodes.map(|node| node.base as f64).sum();
    let in_probes = sampling.in_probes as f64;
    let looks = in_probes + sampling.cut_short as f64 + looks_in_contexts(profile);
    if near <= 0.0 || looks == 0.0 {
        return known;
    }
    let each = measured / looks;
    let found = each * in_probes;
    let own = (measured - found - looks * known.look_ns).max(0.0);
    let seen = (found - (MEANWHILE * own).min(MOST_MEANWHILE * near)).max(0.0);
    let of_looks = each * each * variance(in_probes, looks) + (MODEL * near).powi(2);
    let of_calls = (near * known.error.max(0.0) + calibrated.error()).powi(2);
    // What looks cannot be off by is calibration's.
    let apart = (calibrated.ns - seen).abs() - TWO_SIGMA * of_looks.sqrt();
    let of_calls = of_calls.max(apart.max(0.0).powi(2));
    let taken = (calibrated.ns * of_looks + seen * of_calls) / (of_looks + of_calls);
    let factor = (taken / calibrated.ns).clamp(LEAST, MOST);
    let deviation = (of_looks * of_calls / (of_looks + of_calls)).sqrt();
    let off = TWO_SIGMA * deviation + (calibrated.ns * factor - seen).abs();
    ProbeCosts {
        // All of what is cold is in doubt as it is.
        error: ((off / factor - cold) / near).clamp(0.0, MOST),
        ..known.times(factor)
    }
}

/// How many fell into time that some context has.
fn looks_in_contexts(profile: &Profile) -> f64 {
    let mut sum = 0.0;
    for (_, thread) in crate::threads(profile) {
        let mut counted: Vec<bool> = Vec::with_capacity(thread.samples.len());
        for frame in &thread.samples {
            let above = frame.parent.is_some_and(|parent| counted[parent as usize]);
            counted.push(frame.counted || above);
            if counted.last() == Some(&true) {
                sum += frame.own as f64;
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{compensate, total_cost};
    use thalweg_model::{SampleNode, Sampling};

    const MS: u64 = 1_000_000;

    /// A second, in which ten million calls took 100 ms by calibration, within a tenth; looked at a thousand times.
    fn program(in_probes: u64) -> Profile {
        let mut profile = fixture::chain(&[(MAIN, 0), (A, 200 * MS), (B, 800 * MS)]);
        profile.meta.timed = true;
        profile.meta.costs = Some(ProbeCosts {
            inner_ns: 4.0,
            outer_ns: 6.0,
            error: 0.1,
            ..ProbeCosts::default()
        });
        let thread = &mut profile.processes[0].threads[0];
        thread.nodes[2].calls = 10_000_000;
        let frame = |parent, function, counted, own| SampleNode {
            parent,
            function,
            counted,
            own,
        };
        thread.samples = vec![
            frame(None, A, false, 400),
            frame(Some(0), B, true, 0),
            frame(Some(1), A, false, 1000 - in_probes),
        ];
        profile.meta.sampling = Some(Sampling {
            period_ns: MS,
            looks: 1400,
            in_probes,
            ..Sampling::default()
        });
        profile
    }

    /// What is left of the second, and how far off that may be, in milliseconds.
    fn left(mut profile: Profile) -> (f64, f64) {
        assert!(compensate(&mut profile));
        let nodes = &profile.processes[0].threads[0].nodes;
        let time: u64 = nodes.iter().map(|node| node.base).sum();
        let (_, error) = total_cost(&profile).expect("costs");
        (time as f64 / 1e6, error / 1e6)
    }

    /// Of 112 ms, 12 are the program's.
    #[test]
    fn where_looks_agree_calibration_is_right() {
        let (time, error) = left(program(112));
        assert!((899.0..901.0).contains(&time), "{time}");
        assert!((10.0..20.0).contains(&error), "{error}");
    }

    #[test]
    fn a_program_whose_calls_cost_more_is_seen_to() {
        let (time, error) = left(program(300));
        assert!((712.0..714.0).contains(&time), "{time}");
        assert!((28.0..35.0).contains(&error), "{error}");
        // By less than what both may be off by.
        let (time, error) = left(program(124));
        assert!((888.0..899.0).contains(&time), "{time}");
        assert!((15.0..30.0).contains(&error), "{error}");
    }

    #[test]
    fn where_next_to_nothing_is_seen_of_a_program_the_probes_hide_some_of_it() {
        let profile = program(980);
        let calibrated = profile.meta.costs.expect("costs").times(8.0);
        let found = in_this_program(&profile, calibrated);
        let factor = found.inner_ns / calibrated.inner_ns;
        // 980 ms of which 13, by 20 that are seen beside them, are the program's; 800 by calibration.
        assert!((1.18..1.209).contains(&factor), "{factor}");
        assert!(found.error > 0.05, "{}", found.error);
    }

    #[test]
    fn few_looks_change_little() {
        let mut profile = program(3);
        let thread = &mut profile.processes[0].threads[0];
        thread.samples[2].own = 7;
        let (time, _) = left(profile);
        assert!((895.0..900.0).contains(&time), "{time}");
    }

    #[test]
    fn what_a_file_says_has_bounds() {
        let mut profile = program(1);
        profile.processes[0].threads[0].samples.clear();
        let sampling = profile.meta.sampling.as_mut().expect("looks");
        (sampling.looks, sampling.in_probes) = (1, u64::MAX);
        let (time, error) = left(profile.clone());
        assert!((479.0..481.0).contains(&time), "a has no more: {time}");
        assert!(error.is_finite() && error > 100.0, "{error}");
        let thread = &mut profile.processes[0].threads[0];
        thread.nodes.iter_mut().for_each(|node| node.base = 0);
        let costs = profile.meta.costs.expect("costs");
        let found = in_this_program(&profile, costs);
        assert!(found.figures().iter().all(|figure| figure.is_finite()));
        let thread = &mut profile.processes[0].threads[0];
        thread.nodes.iter_mut().for_each(|node| node.calls = 0);
        assert_eq!(in_this_program(&profile, costs), costs, "no calls");
        let mut elsewhere = program(0);
        elsewhere.processes[0].threads[0].samples.truncate(1);
        assert_eq!(in_this_program(&elsewhere, costs), costs, "not looked at");
    }
}
