//! Times of functions of which not every call was timed.
//!
//! ```text
//!   f, the share of a context's calls that were timed; B, what those took themselves
//!   E = B / f         what all of them would have taken: the context's own time, and that of untimed calls that it made
//!   U = E - B         of that, what was measured as its callers' own
//!   own = E - U of all callees
//! ```
//!
//! A call that returned while its function was off, unseen, seems to last until the thread's next
//! event. It happens once when a function goes off, and is no sample of the others: its time is
//! taken once.
//!
//! So nothing is added and nothing lost: what a context gains its callers lose. Where no call was
//! timed (f is 0) the time is in the callers' own and stays there. Calls and the counts of callees
//! are exact in any case; minimum and maximum are of timed calls.

use std::collections::HashSet;

use thalweg_model::{FuncId, Meta, Node, Profile};

/// Makes the times of sampled functions those of all their calls. `false`: there is nothing to
/// estimate, or it is done.
pub fn estimate(profile: &mut Profile) -> bool {
    if profile.meta.estimated || !profile.meta.timed {
        return false;
    }
    let was_off = profile.switched.iter().filter(|one| one.off_ns > 0);
    let was_off: HashSet<FuncId> = was_off.map(|one| one.function).collect();
    let mut threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    let mut any = false;
    threads.by_ref().for_each(|thread| {
        if thread.nodes.iter().any(|node| node.untimed > 0) {
            estimate_thread(&mut thread.nodes, &was_off);
            any = true;
        }
    });
    profile.meta.estimated = any;
    any
}

/// A single call that takes so long, and longer than all others together, of a function that was
/// off.
const MAX_LEFT_NS: f64 = 1e6;

/// More than there was, as a share of it, is not handed out.
const MAX_ADDED: f64 = 1e-3;
/// How often it is tried again with less.
const MAX_ROUNDS: u32 = 10;

/// Few timed calls that happened to be long may make all of them take more time than there was.
/// Then all estimates are that much lower.
fn estimate_thread(nodes: &mut [Node], was_off: &HashSet<FuncId>) {
    let measured: f64 = nodes.iter().map(|node| node.self_ns as f64).sum();
    let is_too_much = |added: f64| added > MAX_ADDED * measured;
    let (mut changes, added) = changes(nodes, was_off, 1.0);
    if is_too_much(added) {
        let (mut least, mut most) = (0.0, 1.0);
        for _ in 0..MAX_ROUNDS {
            let part = (least + most) / 2.0;
            let (tried, added) = self::changes(nodes, was_off, part);
            match is_too_much(added) {
                true => most = part,
                false => (least, changes) = (part, tried),
            }
        }
        if least == 0.0 {
            return;
        }
    }
    for (node, (own, change)) in nodes.iter_mut().zip(changes) {
        node.self_ns = own.round() as u64;
        let change = change.round() as i64;
        node.total_ns = node.total_ns.saturating_add_signed(change);
        node.wall_ns = node.wall_ns.saturating_add_signed(change);
    }
}

/// Of each context its own time, if calls that were not timed took `part` of what the timed ones
/// let one expect, and how much its total changes; and how much more that is in all.
fn changes(nodes: &[Node], was_off: &HashSet<FuncId>, part: f64) -> (Vec<(f64, f64)>, f64) {
    // Of each context's callees: time that was measured as its own and is not, and how much their
    // total has grown.
    let mut not_own = vec![0.0f64; nodes.len()];
    let mut changes = vec![(0.0f64, 0.0f64); nodes.len()];
    let mut added = 0.0;
    for (index, node) in nodes.iter().enumerate().rev() {
        let measured = node.self_ns as f64;
        let timed = node.calls.saturating_sub(node.untimed);
        let all = match (node.untimed, timed) {
            (0, _) => measured,
            (_, 0) => measured + not_own[index],
            _ => {
                let longest = node.max.min(node.self_ns) as f64;
                let is_left = was_off.contains(&node.function)
                    && longest >= MAX_LEFT_NS
                    && longest > measured / 2.0;
                let once = if is_left { longest } else { 0.0 };
                let sampled = measured - once;
                once + sampled + part * sampled * (node.calls as f64 / timed as f64 - 1.0)
            }
        };
        let own = (all - not_own[index]).max(0.0);
        // What does not fit here was measured further up.
        let passed_on = not_own[index] + own - measured;
        let change = own - measured + changes[index].1;
        changes[index] = (own, change);
        match node.parent {
            Some(parent) => {
                not_own[parent as usize] += passed_on;
                changes[parent as usize].1 += change;
            }
            None => added += passed_on.max(0.0),
        }
    }
    (changes, added)
}

/// What a timed call among untimed ones may be measured too long by: no more than its own probes
/// cost where they are in no cache. Where nothing was calibrated, what a call was seen to cost when
/// the recording was read.
pub(crate) fn measured_longer(meta: &Meta) -> f64 {
    match meta.costs.filter(|costs| costs.taken_out) {
        Some(known) => known.inner_ns + known.outer_ns + known.far[1].1,
        None => meta.overhead_ns_per_call.max(0.0),
    }
}

/// How far off the estimated self of a context may be: what the spread of the timed calls allows
/// for, one standard deviation of their mean, and what those calls were measured longer. No sample
/// whose mean is known spreads more than this between its least and its most (Bhatia and Davis): one
/// call that was interrupted for long does not make all of them doubtful.
///
/// ```text
/// variance <= (most - mean) (mean - least)
/// ```
pub(crate) fn sampling_error(node: &Node, measured_longer: f64) -> f64 {
    let timed = node.calls.saturating_sub(node.untimed);
    if node.untimed == 0 || timed == 0 {
        return 0.0;
    }
    let each = node.self_ns as f64 / node.calls as f64;
    let longer = each.min(measured_longer);
    let (least, most) = (node.min as f64, node.max as f64);
    let mut spread = (most - least).max(0.0) / 2.0;
    if (least..=most).contains(&each) {
        // The mean is off by what a probe costs: it may be that much above the least.
        let above = (each - least).max(longer);
        spread = spread.min(((most - each) * above).sqrt());
    }
    node.untimed as f64 * (spread / (timed as f64).sqrt() + longer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    fn sampled(calls: u64, timed: u64) -> Profile {
        // main 1000 -> a 100 -> b 40, as measured; b's other calls are in a's time.
        let mut profile = fixture::chain(&[(MAIN, 1000), (A, 100), (B, 40)]);
        profile.meta.timed = true;
        let b = &mut profile.processes[0].threads[0].nodes[2];
        (b.calls, b.untimed) = (calls, calls - timed);
        profile
    }

    fn self_times(profile: &Profile) -> Vec<u64> {
        let nodes = &profile.processes[0].threads[0].nodes;
        nodes.iter().map(|node| node.self_ns).collect()
    }

    #[test]
    fn what_a_sampled_function_gains_its_caller_loses() {
        let mut profile = sampled(3, 1);
        assert!(estimate(&mut profile));
        assert_eq!(self_times(&profile), [1000, 20, 120]);
        let nodes = &profile.processes[0].threads[0].nodes;
        let totals: Vec<u64> = nodes.iter().map(|node| node.total_ns).collect();
        assert_eq!(totals, [1140, 140, 120]);
        assert!(!estimate(&mut profile), "once is enough");
    }

    #[test]
    fn the_error_is_of_the_spread_and_of_what_timed_calls_take_longer() {
        let mut profile = sampled(104, 4);
        assert!(estimate(&mut profile));
        let node = &mut profile.processes[0].threads[0].nodes[2];
        (node.min, node.max) = (8, 12);
        // 1040 ns in all are 10 a call, all of which may be what was measured too long.
        assert_eq!(node.self_ns, 1040);
        assert_eq!(sampling_error(node, 20.0), 100.0 * (2.0 / 2.0 + 10.0));
        node.self_ns = 104 * 500;
        assert_eq!(sampling_error(node, 20.0), 100.0 * (2.0 / 2.0 + 20.0));
        // One that was interrupted.
        (node.min, node.max) = (480, 1_000_000);
        let off = (999_500.0f64 * 20.0).sqrt() / 2.0 + 20.0;
        assert!((sampling_error(node, 20.0) - 100.0 * off).abs() < 1.0);
        node.untimed = 0;
        assert_eq!(sampling_error(node, 20.0), 0.0);
    }

    #[test]
    fn a_call_that_ended_unseen_is_none_of_many() {
        let mut profile = sampled(1000, 10);
        let nodes = &mut profile.processes[0].threads[0].nodes;
        (nodes[1].self_ns, nodes[2].self_ns, nodes[2].max) = (10_000, 3_000_090, 3_000_000);
        profile.switched = vec![thalweg_model::Switched {
            function: B,
            off_ns: 1,
            ..Default::default()
        }];
        assert!(estimate(&mut profile));
        assert_eq!(self_times(&profile), [1000, 1_090, 3_009_000]);
    }

    #[test]
    fn no_more_time_is_handed_out_than_there_was() {
        let mut profile = sampled(1000, 1);
        assert!(estimate(&mut profile));
        let self_times = self_times(&profile);
        let all: u64 = self_times.iter().sum();
        assert!((1139..=1142).contains(&all), "{self_times:?}");
        assert!(self_times[2] > 1000, "{self_times:?}");
    }

    #[test]
    fn what_does_not_fit_into_the_caller_is_taken_further_up() {
        let mut profile = sampled(10, 1);
        assert!(estimate(&mut profile));
        assert_eq!(self_times(&profile), [740, 0, 400]);
    }

    #[test]
    fn a_function_of_which_no_call_was_timed_stays_in_its_callers_time() {
        let mut profile = sampled(10, 0);
        profile.processes[0].threads[0].nodes[2].self_ns = 0;
        assert!(estimate(&mut profile));
        assert_eq!(self_times(&profile), [1000, 100, 0]);
    }

    #[test]
    fn an_untimed_function_between_two_sampled_ones_hands_their_time_on() {
        let mut profile = sampled(4, 1);
        let nodes = &mut profile.processes[0].threads[0].nodes;
        (nodes[1].self_ns, nodes[1].calls, nodes[1].untimed) = (0, 4, 4);
        assert!(estimate(&mut profile));
        assert_eq!(self_times(&profile), [880, 0, 160]);
    }
}
