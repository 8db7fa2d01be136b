//! Takes what the probes cost out of the figures again, from how often each function was called and
//! called others.
//!
//! ```text
//!   caller  ....call|entry probe   |                  |   exit probe|....
//!   clock                      read|                  |read
//!   callee                         |rest..body..begin |
//!            <--- outer ---------->                    <-- outer ---->      in the caller's self
//!                                   <--- inner ------>                      in the callee's
//!
//!   self' = self - calls * inner - calls of callees * outer - calls that called * joint
//!                - contexts of callees * first - calls of callees * far        not below 0
//!   total'  = total  - what was taken from the self of the context and of everything below it
//! ```
//!
//! Which sequences of two events there were follows from the counts: each call of a leaf is one
//! entry followed by an exit; each call of a function that calls others has an entry followed by an
//! entry, an exit followed by an exit, and an exit followed by an entry for every further callee.
//! `joint` is what the middle two cost more together than the others do. Of how many of its calls a
//! function called at all only a bound is known (no more than it made calls), which is taken.
//!
//! `first` and `far` are for what is not in the cache: a context's first call, and calls that come
//! back after so many others that their node (one half) or their function's stub (the other) had to
//! make room (`reuse.rs`). What calls cost more because the program does other things for long
//! before a function is called again is a part of `first` (`rarity.rs`).
//!
//! What a self does not have is taken from the callers' instead: where exactly between a caller and
//! its callee a probe's cost falls is known less well than what it is in all, and a clock that
//! moves in steps of ten nanoseconds makes the self of contexts with few calls a matter of chance.
//! So no figure falls below zero, and none is too large because others would have.
//!
//! Where the program was sampled, all of that by the factor that samples find it to cost more or
//! less here (`probe_cost.rs`).
//!
//! How far off: of a single function as much of the cost as the calibration's kinds of work differ
//! at the most (`spread`), in which functions differ from each other, so that in sums over
//! functions much of it cancels out; in addition what calibrations differ in (`error`), and all of
//! `first` and `far`. Rare calls are as uncertain as all of what they cost more, until samples tell
//! (`probe_cost.rs`).

use thalweg_model::{Node, NodeFlags, ProbeCosts, Profile};

use crate::by_function;
use crate::probe_cost::costs_in_this_program;
use crate::rarity::Rarity;
use crate::reuse::{ContextsBetween, functions_between};
use crate::tunables::TUNABLES;

/// What a context's self holds of the probes' cost, by calibration, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub ns: f64,
    /// How far off that may be where it is off in all contexts alike.
    pub common: f64,
    /// How far off in addition, in one context more and in another less.
    pub own: f64,
    /// Of `ns`, because calls are rare.
    pub rare: f64,
}

impl Cost {
    /// How far off it may be, by itself.
    pub fn error(&self) -> f64 {
        self.common + self.own
    }
}

/// Of each context of one thread.
pub fn costs(nodes: &[Node], costs: &ProbeCosts, rarity: &Rarity) -> Vec<Cost> {
    let mut made = vec![0u64; nodes.len()];
    let mut cold = vec![0.0; nodes.len()];
    let mut rare = vec![0.0; nodes.len()];
    let has_cold = costs.first_ns > 0.0 || costs.far.iter().any(|(_, ns)| *ns > 0.0);
    let counted = counted_costs(nodes, costs);
    for node in nodes {
        if let Some(parent) = node.parent {
            let sum = &mut made[parent as usize];
            *sum = sum.saturating_add(timed_calls(node));
        }
    }
    if has_cold {
        let contexts = ContextsBetween::new(nodes);
        let functions = functions_between(nodes);
        let functions: Vec<f64> = functions.iter().map(|&n| far_ns(n, costs)).collect();
        for node in nodes {
            let is_known = node.calls > 0 && !node.flags.contains(NodeFlags::FOLDED);
            let Some(parent) = node.parent.filter(|_| is_known) else {
                continue;
            };
            let parent = parent as usize;
            cold[parent] += costs.first_ns;
            // What follows looks at what stands above, and most contexts are called once.
            if node.calls > 1 {
                let again = (node.calls - 1) as f64;
                let of_function = functions[node.function.index()];
                let far = (far_ns(contexts.of(node), costs) + of_function) / 2.0;
                cold[parent] += far * again;
                rare[parent] += costs.first_ns * rarity.part(node.function) * again;
            }
        }
    }
    let cost = |(index, node): (usize, &Node)| {
        let (calls, made) = (timed_calls(node), made[index]);
        let (counted, cold, rare) = (counted[index], cold[index], rare[index]);
        let timed = calls as f64 * costs.inner_ns
            + made as f64 * costs.outer_ns
            + calls.min(made) as f64 * costs.joint_ns;
        let timed = timed.max(0.0);
        Cost {
            ns: timed + counted + cold + rare,
            common: (timed + rare) * costs.error.max(0.0)
                + counted * costs.counted_error.max(0.0)
                + cold,
            own: (timed + counted) * costs.spread.max(0.0),
            rare,
        }
    };
    nodes.iter().enumerate().map(cost).collect()
}

fn timed_calls(node: &Node) -> u64 {
    node.calls.saturating_sub(node.untimed)
}

/// What a call of this context costs that is counted and not timed. A function of which no call at
/// all was timed is a leaf that is counted at its entry alone.
fn counted_ns(node: &Node, never_timed: &[Option<bool>], costs: &ProbeCosts) -> f64 {
    match never_timed[node.function.index()] {
        Some(true) => costs.leaf_ns,
        _ => costs.counted_ns,
    }
}

/// By the number of the function; `None` of those that were not called.
fn never_timed(nodes: &[Node]) -> Vec<Option<bool>> {
    let mut all: Vec<Option<bool>> = by_function(nodes);
    for node in nodes.iter().filter(|node| node.calls > 0) {
        *all[node.function.index()].get_or_insert(true) &= node.untimed >= node.calls;
    }
    for parent in nodes.iter().filter_map(|node| node.parent) {
        all[nodes[parent as usize].function.index()] = Some(false);
    }
    all
}

/// What calls that are not timed add to the self of each context: such a call costs its caller all,
/// and if that is not timed either, whoever called that one.
fn counted_costs(nodes: &[Node], costs: &ProbeCosts) -> Vec<f64> {
    let mut added = vec![0.0; nodes.len()];
    let never_timed = never_timed(nodes);
    for (index, node) in nodes.iter().enumerate().rev() {
        let untimed = node.untimed as f64;
        let share = (untimed / node.calls.max(1) as f64).min(1.0);
        if let Some(parent) = node.parent {
            let each = counted_ns(node, &never_timed, costs);
            added[parent as usize] += untimed * each + share * added[index];
            added[index] *= 1.0 - share;
        }
    }
    added
}

/// Of each context, what probes may have moved of the samples at its code: as uncertain as what
/// they cost beside it. Other than in the clock's figures, calls that are not timed are beside the
/// code that makes them and the code that is called.
pub(crate) fn beside(nodes: &[Node], costs: &ProbeCosts) -> Vec<f64> {
    let part = |error: f64| (error.max(0.0) + costs.spread.max(0.0)).min(1.0);
    let (timed_part, counted_part) = (part(costs.error), part(costs.counted_error));
    let never_timed = never_timed(nodes);
    let mut beside = vec![0.0; nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        let timed = timed_part * timed_calls(node) as f64;
        let each = counted_ns(node, &never_timed, costs);
        let counted = counted_part * node.untimed as f64 * each / 2.0;
        beside[index] += timed * costs.inner_ns + counted;
        if let Some(parent) = node.parent {
            beside[parent as usize] += timed * costs.outer_ns + counted;
        }
    }
    beside
}

/// How far off each context's total may be: what is off everywhere alike adds up, what differs from
/// context to context does so less.
pub fn total_errors(nodes: &[Node], costs: &[Cost]) -> Vec<f64> {
    let mut sums: Vec<(f64, f64)> = costs
        .iter()
        .map(|cost| (cost.common, cost.own * cost.own))
        .collect();
    for (index, node) in nodes.iter().enumerate().rev() {
        if let Some(parent) = node.parent {
            let (common, own) = sums[index];
            let above = &mut sums[parent as usize];
            above.0 += common;
            above.1 += own;
        }
    }
    let error = |(common, own): (f64, f64)| common + own.sqrt();
    sums.into_iter().map(error).collect()
}

/// By how many others stand between two visits: nothing up to half of the nearer distance that was
/// measured, then what was measured there and at the farther one, and in between along the
/// logarithm.
fn far_ns(between: f64, costs: &ProbeCosts) -> f64 {
    let [near, far] = costs.far;
    let points = [(near.0 / 2.0, 0.0), near, far];
    for pair in points.windows(2) {
        let ((from, least), (to, most)) = (pair[0], pair[1]);
        if between <= from {
            return least;
        }
        if between <= to {
            return least + (most - least) * (between / from).log2() / (to / from).log2();
        }
    }
    far.1
}

/// Makes the figures those of the program without probes, as far as that is known. `false` where
/// nothing was calibrated, nothing timed, or all done already.
pub fn compensate(profile: &mut Profile) -> bool {
    let timed = profile.meta.timed;
    let Some(known) = profile.meta.costs.filter(is_sane) else {
        return false;
    };
    if known.taken_out || !timed {
        return false;
    }
    let known = ProbeCosts {
        taken_out: true,
        ..costs_in_this_program(profile, known)
    };
    profile.meta.costs = Some(known);
    let rarity = Rarity::from_profile(profile);
    for process in &mut profile.processes {
        for thread in &mut process.threads {
            take_out(&mut thread.nodes, &known, &rarity);
        }
    }
    true
}

fn take_out(nodes: &mut [Node], known: &ProbeCosts, rarity: &Rarity) {
    let own_costs = costs(nodes, known, rarity);
    let mut nobodys = 0u64;
    // Of each context: what was taken out below it, and what could not be.
    let mut below = vec![(0u64, 0u64); nodes.len()];
    for index in (0..nodes.len()).rev() {
        let node = &mut nodes[index];
        let (taken_below, missing_below) = below[index];
        let wanted = (own_costs[index].ns as u64).saturating_add(missing_below);
        let own = wanted.min(node.self_ns);
        let all = taken_below.saturating_add(own);
        let is_one_call = node.calls == 1 && node.max == node.self_ns;
        node.self_ns -= own;
        node.total_ns = node.total_ns.saturating_sub(all);
        node.wall_ns = node.wall_ns.saturating_sub(all);
        let inner = known.inner_ns as u64;
        (node.min, node.max) = match is_one_call {
            true => (node.self_ns, node.self_ns),
            false => (
                node.min.saturating_sub(inner),
                node.max.saturating_sub(inner),
            ),
        };
        if let Some(parent) = node.parent {
            let sums = &mut below[parent as usize];
            sums.0 = sums.0.saturating_add(all);
            sums.1 = sums.1.saturating_add(wanted - own);
        } else {
            nobodys = nobodys.saturating_add(wanted - own);
        }
    }
    // What none of the callers has is taken from all: the whole is known better than its parts.
    take_from_all(nodes, nobodys as f64, 1.0);
}

/// Takes so many nanoseconds out of all contexts alike, by how long each ran; of each no more than
/// the part `most`.
pub(crate) fn take_from_all(nodes: &mut [Node], ns: f64, most: f64) {
    let whole: f64 = nodes.iter().map(|node| node.self_ns as f64).sum();
    let share = match ns / whole {
        share if share > 0.0 => share.min(most),
        _ => return,
    };
    let mut below = vec![0u64; nodes.len()];
    for (index, node) in nodes.iter_mut().enumerate().rev() {
        let own = ((node.self_ns as f64 * share) as u64).min(node.self_ns);
        let all = below[index].saturating_add(own);
        node.self_ns -= own;
        node.total_ns = node.total_ns.saturating_sub(all);
        node.wall_ns = node.wall_ns.saturating_sub(all);
        if let Some(parent) = node.parent {
            let above = &mut below[parent as usize];
            *above = above.saturating_add(all);
        }
    }
}

/// A file can say anything.
fn is_sane(costs: &ProbeCosts) -> bool {
    const MAX_COST_NS: f64 = 1e6;
    let in_order = costs.far[0].0 >= 0.0 && costs.far[0].0 <= costs.far[1].0;
    let figures = costs.figures();
    in_order
        && figures
            .iter()
            .all(|value| value.is_finite() && value.abs() <= MAX_COST_NS)
}

/// What was, or will be, taken out of the whole profile, and how far off what is left may be:
/// because of that, and because no program takes the same time twice.
pub fn total_cost(profile: &Profile) -> Option<(f64, f64)> {
    let known = profile.meta.costs.filter(is_sane)?;
    let total = total(profile, &known);
    let nodes = crate::threads(profile).flat_map(|(_, thread)| &thread.nodes);
    let left: f64 = nodes.map(|node| node.self_ns as f64).sum();
    Some((total.ns, total.error() + TUNABLES.repeatability * left))
}

/// Of all contexts together: what differs from function to function cancels out in part.
pub(crate) fn total(profile: &Profile, known: &ProbeCosts) -> Cost {
    let mut total = Cost::default();
    let mut own = vec![0.0; profile.functions.len()];
    let rarity = Rarity::from_profile(profile);
    for (_, thread) in crate::threads(profile) {
        for (node, cost) in thread
            .nodes
            .iter()
            .zip(costs(&thread.nodes, known, &rarity))
        {
            total.ns += cost.ns;
            total.common += cost.common;
            total.rare += cost.rare;
            own[node.function.index()] += cost.own;
        }
    }
    total.own = own.iter().map(|own| own * own).sum::<f64>().sqrt();
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use thalweg_model::FuncId;

    fn calibrated(calls: &[(FuncId, u64)]) -> Profile {
        let mut profile = fixture::chain(calls);
        profile.meta.timed = true;
        profile.meta.costs = Some(ProbeCosts {
            inner_ns: 8.0,
            outer_ns: 9.0,
            joint_ns: 1.0,
            error: 0.1,
            spread: 0.2,
            taken_out: false,
            ..ProbeCosts::default()
        });
        for node in &mut profile.processes[0].threads[0].nodes {
            node.wall_ns = node.total_ns + 1000;
        }
        profile
    }

    #[test]
    fn each_call_gives_back_its_part_and_its_callers() {
        let mut profile = calibrated(&[(MAIN, 100), (A, 200), (B, 50)]);
        assert!(compensate(&mut profile));
        let nodes = &profile.processes[0].threads[0].nodes;
        let self_times: Vec<u64> = nodes.iter().map(|node| node.self_ns).collect();
        assert_eq!(self_times, [100 - 18, 200 - 18, 50 - 8]);
        let totals: Vec<u64> = nodes.iter().map(|node| node.total_ns).collect();
        assert_eq!(totals, [82 + 182 + 42, 182 + 42, 42]);
        assert!(
            nodes
                .iter()
                .all(|node| node.wall_ns == node.total_ns + 1000)
        );
        assert_eq!((nodes[2].min, nodes[2].max), (42, 42));
        assert!(!compensate(&mut profile), "once is enough");
    }

    #[test]
    fn nothing_falls_below_zero_and_sums_hold() {
        let mut profile = calibrated(&[(MAIN, 3), (A, 5), (B, 50)]);
        profile.processes[0].threads[0].nodes[2].calls = u64::MAX;
        assert!(compensate(&mut profile));
        let nodes = &profile.processes[0].threads[0].nodes;
        assert!(
            nodes
                .iter()
                .all(|node| node.self_ns == 0 && node.total_ns == 0)
        );
    }

    #[test]
    fn what_self_does_not_have_is_taken_from_the_callers() {
        let mut profile = calibrated(&[(MAIN, 100), (A, 3), (B, 50)]);
        assert!(compensate(&mut profile));
        let nodes = &profile.processes[0].threads[0].nodes;
        let self_times: Vec<u64> = nodes.iter().map(|node| node.self_ns).collect();
        assert_eq!(self_times, [100 - 18 - 15, 0, 50 - 8]);
        let totals: Vec<u64> = nodes.iter().map(|node| node.total_ns).collect();
        assert_eq!(totals, [67 + 42, 42, 42]);
    }

    #[test]
    fn first_calls_and_calls_from_afar_cost_more() {
        let mut profile = calibrated(&[(MAIN, 10_000), (A, 1000)]);
        let known = profile.meta.costs.as_mut().unwrap();
        (known.first_ns, known.far) = (100.0, [(512.0, 2.0), (1024.0, 8.0)]);
        let known = *known;
        let nodes = &profile.processes[0].threads[0].nodes;
        let cost = costs(nodes, &known, &Rarity::default());
        assert_eq!((cost[0].ns, cost[1].ns), (118.0, 8.0));
        assert_eq!(cost[0].common, 1.8 + 100.0);

        assert_eq!(far_ns(200.0, &known), 0.0);
        assert_eq!(far_ns(512.0, &known), 2.0);
        assert!((2.1..7.9).contains(&far_ns(700.0, &known)));
        assert_eq!(far_ns(1e9, &known), 8.0);
        assert_eq!(far_ns(1e9, &ProbeCosts::default()), 0.0);
    }

    #[test]
    fn of_a_sum_less_is_uncertain_than_of_its_parts() {
        let profile = calibrated(&[(MAIN, 100), (A, 200), (B, 50)]);
        let (all, error) = total_cost(&profile).unwrap();
        let error = error - TUNABLES.repeatability * 350.0;
        let known = profile.meta.costs.unwrap();
        let nodes = &profile.processes[0].threads[0].nodes;
        let parts = costs(nodes, &known, &Rarity::default());
        assert_eq!(all, parts.iter().map(|part| part.ns).sum::<f64>());
        assert!(error < parts.iter().map(Cost::error).sum::<f64>());
        assert!(error > parts.iter().map(|part| part.common).sum::<f64>());
        let totals = total_errors(&profile.processes[0].threads[0].nodes, &parts);
        assert!(
            (totals[0] - error).abs() < 1e-9,
            "main's cum is all there is"
        );
        assert_eq!(totals[2], parts[2].error());
    }

    #[test]
    fn without_a_calibration_or_with_a_mad_one_figures_stay() {
        let mut profile = calibrated(&[(MAIN, 100)]);
        profile.meta.costs.as_mut().unwrap().inner_ns = f64::NAN;
        let before = profile.processes.clone();
        assert!(!compensate(&mut profile));
        profile.meta.costs = None;
        assert!(!compensate(&mut profile));
        assert_eq!(profile.processes, before);
    }
}
