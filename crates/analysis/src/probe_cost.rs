//! What probes cost in this very program, by samples: they are seen outside of probes for the
//! program's own time, less what the processor does of it while it is in probes.
//!
//! ```text
//!   measured     M, of all contexts: processor time, less what the slow path took
//!   seen         samples in contexts x period
//!   hidden       calls x h / 2: between nothing and the h that calibration found to be hidden beside a call, on average. Off either way, since
//!                probes also make the code beside them slower: calls that are counted by what is hidden beside the kind of work that hides
//!                most, timed ones by h, which covers as it is (the other is five times the likely value there)
//!   waits        time in probes of the calls of and from functions that wait at an instruction: a processor that waits does a probe for nothing,
//!                or has room for less of the program beside its wait, because probes fill it
//!   sampled      A = M - seen - hidden            off by chance, by what is hidden, and by waits
//!   calibrated   B = calls x cost                 off by what the kinds of work differ in, by what rare calls cost more, and by what it differs
//!                                                 from A beyond chance
//!   taken        both, by their certainty: with many samples A, with few B
//! ```
//!
//! All costs change by the same factor: calibration only says how the whole divides among callers
//! and callees. Without samples it is all there is.

use thalweg_model::{KINDS_OF_WORK, Node, ProbeCosts, Profile, Sampling};

use crate::compensate::{Cost, total};
use crate::samples::variance;
use crate::tunables::TUNABLES;

/// What a file may say.
const MIN_RATIO: f64 = 0.05;
const MAX_RATIO: f64 = 20.0;
/// Samples that cover less of the measured time began later, or some were lost: they tell shares,
/// and no times.
const MIN_COVERAGE: f64 = 0.95;

/// The same costs, in this program. Of a profile from which nothing was taken out.
pub(crate) fn costs_in_this_program(profile: &Profile, known: ProbeCosts) -> ProbeCosts {
    let calibrated = total(profile, &known);
    if calibrated.ns <= 0.0 {
        return known;
    }
    let (taken, off) = match seen_in_probes(profile, &known, &calibrated) {
        Some(taken) => taken,
        None if calibrated.rare > 0.0 => (calibrated.ns, in_doubt(&calibrated)),
        None => return known,
    };
    let factor = (taken / calibrated.ns).clamp(MIN_RATIO, MAX_RATIO);
    // Half of that at the most is what differs from function to function; what is cold is in doubt
    // as a whole; the rest is that of all calls.
    let bare = total(
        profile,
        &ProbeCosts {
            error: 0.0,
            counted_error: 0.0,
            ..known.times(factor)
        },
    );
    let own = bare.own.min(off / 2.0);
    let near = (bare.ns - bare.common).max(f64::MIN_POSITIVE);
    let error = ((off - own - bare.common) / near).clamp(0.0, MAX_RATIO);
    ProbeCosts {
        error,
        counted_error: error,
        spread: known.spread * own / bare.own.max(f64::MIN_POSITIVE),
        ..known.times(factor)
    }
}

/// By calibration alone: what calls cost more because they are rare is somewhere between nothing and twice what it is taken for.
fn in_doubt(calibrated: &Cost) -> f64 {
    calibrated.error() + calibrated.rare
}

/// What probes took by samples and calibration, and how far off that is. `None`: there are no samples.
fn seen_in_probes(profile: &Profile, known: &ProbeCosts, calibrated: &Cost) -> Option<(f64, f64)> {
    let sampling = profile.meta.sampling.filter(|s| s.samples > 0)?;
    let nodes = crate::threads(profile).flat_map(|(_, thread)| &thread.nodes);
    let measured: f64 = nodes.map(|node| node.self_ns as f64).sum();
    let (seen, by_chance) = sampled(profile, &sampling, measured)?;
    let hidden = hidden(profile, known);
    let sampled = (seen - hidden.likely).max(0.0);
    let waits = seen * part_beside_waits(profile);
    let of_samples = by_chance + (hidden.most.hypot(waits) / TUNABLES.sigmas).powi(2);
    let apart = (calibrated.ns - sampled).abs() - TUNABLES.sigmas * of_samples.sqrt();
    let of_calls = (in_doubt(calibrated) / TUNABLES.sigmas).powi(2) + apart.max(0.0).powi(2);
    let both = (of_samples + of_calls).max(f64::MIN_POSITIVE);
    let taken = (calibrated.ns * of_samples + sampled * of_calls) / both;
    let off = TUNABLES.sigmas * (of_samples * of_calls / both).sqrt();
    Some((taken, off))
}

/// How much of the program's own time is hidden behind probes, and how far off that is at most.
struct Hidden {
    likely: f64,
    most: f64,
}

fn hidden(profile: &Profile, known: &ProbeCosts) -> Hidden {
    let nodes = crate::threads(profile).flat_map(|(_, thread)| &thread.nodes);
    let (mut timed, mut counted) = (0.0, 0.0);
    for node in nodes {
        let untimed = node.untimed.min(node.calls);
        timed += (node.calls - untimed) as f64;
        counted += untimed as f64;
    }
    let [of_timed, of_counted] = known.hidden.map(hidden_beside);
    let most = hidden_most(known.hidden[1]);
    Hidden {
        likely: timed * of_timed + counted * of_counted,
        most: timed * of_timed * 2.0 + counted * most,
    }
}

/// Of each context of a thread, half beside the code that calls and half beside what is called; of
/// all `left` no more than half.
pub(crate) fn hidden_in(nodes: &[Node], known: &ProbeCosts, left: f64) -> Vec<f64> {
    let [of_timed, of_counted] = known.hidden.map(hidden_beside);
    let mut hidden = vec![0.0; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        let untimed = node.untimed.min(node.calls);
        let all = (node.calls - untimed) as f64 * of_timed + untimed as f64 * of_counted;
        hidden[index] += all / 2.0;
        hidden[node.parent.unwrap_or(index as u32) as usize] += all / 2.0;
    }
    let all: f64 = hidden.iter().sum();
    if all > left / 2.0 {
        hidden
            .iter_mut()
            .for_each(|hidden| *hidden *= left / 2.0 / all);
    }
    hidden
}

/// Of one call: half of the mean of the kinds of work that leave a processor as much room as
/// programs do, which are none, little and a chain. The other two keep all of it busy. Half,
/// because a program has between nothing and all of that to hide.
fn hidden_beside(kinds: [(f64, f64); KINDS_OF_WORK]) -> f64 {
    let [none, little, _, _, chain] = kinds.map(|(_, more)| more.max(0.0));
    (none + little + chain) / 3.0 / 2.0
}

/// Of one call that is counted: beside the kind of those three that hides most.
fn hidden_most(kinds: [(f64, f64); KINDS_OF_WORK]) -> f64 {
    let [none, little, _, _, chain] = kinds.map(|(_, more)| more.max(0.0));
    none.max(little).max(chain)
}

/// What part of all calls has a function that waits at either side.
fn part_beside_waits(profile: &Profile) -> f64 {
    let waits = |node: &Node| profile.functions[node.function].waits;
    let (mut all, mut beside) = (0.0, 0.0);
    for (_, thread) in crate::threads(profile) {
        for node in &thread.nodes {
            let calls = node.calls as f64;
            let caller = node.parent.map(|parent| &thread.nodes[parent as usize]);
            all += calls;
            if waits(node) || caller.is_some_and(waits) {
                beside += calls;
            }
        }
    }
    if all > 0.0 { beside / all } else { 0.0 }
}

/// What samples say that probes took of the measured time, and the variance of that.
fn sampled(profile: &Profile, sampling: &Sampling, measured: f64) -> Option<(f64, f64)> {
    let in_probes = sampling.in_probes as f64;
    let whole = samples_in_contexts(profile);
    // Stacks that were cut short are as much the program's as others.
    let seen = whole + sampling.cut_short as f64;
    let all = seen + in_probes;
    if all <= 0.0 || measured <= 0.0 {
        return None;
    }
    let period = sampling.period_ns as f64;
    let sampled_ns = period * sampling.samples as f64;
    let each = match sampled_ns >= MIN_COVERAGE * measured {
        true => period,
        false => measured / all,
    };
    let own = (seen * each).min(measured);
    Some((measured - own, each * each * variance(in_probes, all)))
}

/// How many fell into time that some context has.
fn samples_in_contexts(profile: &Profile) -> f64 {
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
    use thalweg_model::SampleNode;

    const MS: u64 = 1_000_000;

    /// A second, in which ten million calls took 100 ms by calibration, within a tenth; sampled a
    /// thousand times.
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
            samples: 1400,
            in_probes,
            ..Sampling::default()
        });
        profile
    }

    /// What is left of the second, and how far off that may be, in milliseconds.
    fn left(mut profile: Profile) -> (f64, f64) {
        assert!(compensate(&mut profile));
        let nodes = &profile.processes[0].threads[0].nodes;
        let time: u64 = nodes.iter().map(|node| node.self_ns).sum();
        let (_, error) = total_cost(&profile).expect("costs");
        (time as f64 / 1e6, error / 1e6)
    }

    #[test]
    fn where_both_agree_that_is_what_is_taken_out() {
        let (time, error) = left(program(100));
        assert!((899.0..901.0).contains(&time), "{time}");
        // Calibration is off by 10, chance by twice 9.6; a fiftieth is that of any program.
        assert!((26.0..28.5).contains(&error), "{error}");
    }

    #[test]
    fn many_samples_are_believed_before_the_calibration() {
        for in_probes in [20, 300, 600] {
            let (time, error) = left(program(in_probes));
            let sampled = 1000.0 - in_probes as f64;
            assert!(
                (time - sampled).abs() < error,
                "{in_probes}: {time} +- {error}"
            );
            assert!((time - sampled).abs() < 15.0, "{in_probes}: {time}");
        }
    }

    /// Beside each call 2 ns more are the program's, within 4: none, little and a chain of work
    /// hide 2, 4 and 6.
    #[test]
    fn what_a_processor_does_beside_a_probe_is_the_programs() {
        let mut profile = program(250);
        let costs = profile.meta.costs.as_mut().expect("costs");
        costs.hidden[0] = [2.0, 4.0, 90.0, 90.0, 6.0].map(|more| (1.0, more));
        costs.error = 2.0;
        let (time, error) = left(profile);
        assert!((760.0..780.0).contains(&time), "{time}");
        assert!((50.0..75.0).contains(&error), "{error}");
    }

    /// Four hundred of a thousand samples are in probes, nearly all of them of calls of the second function.
    #[test]
    fn where_a_program_waits_probes_may_make_it_wait_longer() {
        let error = |waits: usize| {
            let mut profile = program(400);
            profile.functions[waits].waits = true;
            profile.meta.costs.as_mut().expect("costs").error = 9.0;
            left(profile)
        };
        let (_, certain) = error(MAIN.index());
        let (_, waiting) = error(B.index());
        assert!((32.0..48.0).contains(&certain), "{certain}");
        assert!(waiting > 300.0, "{waiting}");
    }

    #[test]
    fn samples_that_cover_a_part_of_the_time_tell_shares() {
        let mut profile = program(100);
        let sampling = profile.meta.sampling.as_mut().expect("samples");
        (sampling.period_ns, sampling.samples) = (MS / 2, 1400);
        let (time, _) = left(profile);
        assert!((899.0..901.0).contains(&time), "{time}");
    }

    #[test]
    fn few_samples_change_little() {
        let mut profile = program(3);
        let thread = &mut profile.processes[0].threads[0];
        thread.samples[2].own = 7;
        profile.meta.sampling.as_mut().expect("samples").samples = 10;
        let (time, _) = left(profile);
        assert!((880.0..900.5).contains(&time), "{time}");
    }

    /// Ten thousand calls in a second, of which each may find its probe in no cache: 5 ms, or as much off.
    #[test]
    fn calls_that_are_rare_may_cost_more_than_in_a_loop() {
        let rare = |in_probes: u64, first_ns: f64| {
            let mut profile = program(in_probes);
            profile.processes[0].threads[0].nodes[2].calls = 10_000;
            profile.meta.costs.as_mut().expect("costs").first_ns = first_ns;
            profile
        };
        let (time, error) = left(rare(10, 1000.0));
        assert!((time - 990.0).abs() < error, "{time} +- {error}");
        let unsampled = |mut profile: Profile| {
            profile.processes[0].threads[0].samples.clear();
            profile.meta.sampling = None;
            left(profile)
        };
        let (time, error) = unsampled(rare(0, 1000.0));
        assert!((994.0..996.0).contains(&time), "{time}");
        // A fiftieth is that of any program.
        assert!((24.0..27.0).contains(&error), "{error}");
        let (time, error) = unsampled(rare(0, 0.0));
        assert!(time > 999.0 && error < 21.0, "{time} +- {error}");
    }

    #[test]
    fn what_a_file_says_has_bounds() {
        let mut profile = program(1);
        profile.processes[0].threads[0].samples.clear();
        let sampling = profile.meta.sampling.as_mut().expect("samples");
        (sampling.samples, sampling.in_probes) = (1, u64::MAX);
        let (_, error) = left(profile.clone());
        assert!(error.is_finite(), "{error}");
        let thread = &mut profile.processes[0].threads[0];
        thread.nodes.iter_mut().for_each(|node| node.self_ns = 0);
        let costs = profile.meta.costs.expect("costs");
        let found = costs_in_this_program(&profile, costs);
        assert!(found.figures().iter().all(|figure| figure.is_finite()));
        let thread = &mut profile.processes[0].threads[0];
        thread.nodes.iter_mut().for_each(|node| node.calls = 0);
        assert_eq!(costs_in_this_program(&profile, costs), costs, "no calls");
    }
}
