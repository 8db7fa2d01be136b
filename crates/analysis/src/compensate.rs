//! Takes what the probes cost out of the figures again, from how often each function was called and called others.
//!
//! ```text
//!   caller  ....call|entry probe   |                  |   exit probe|....
//!   clock                      read|                  |read
//!   callee                         |rest..body..begin |
//!            <--- outer ---------->                    <-- outer ---->      in the caller's base
//!                                   <--- inner ------>                      in the callee's
//!
//!   base' = base - calls * inner - calls of callees * outer - calls that called * joint        not below 0
//!   cum'  = cum  - what was taken from the bases of the context and of everything below it
//! ```
//!
//! Which sequences of two events there were follows from the counts: each call of a leaf is one entry followed by an exit; each
//! call of a function that calls others has an entry followed by an entry, an exit followed by an exit, and an exit followed by
//! an entry for every further callee. `joint` is what the middle two cost more together than the others do. Of how many of its
//! calls a function called at all only a bound is known (no more than it made calls), which is taken.

use thalweg_model::{Node, ProbeCosts, Profile};

/// What a context's base holds of the probes' cost, by calibration, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub ns: f64,
    /// How far off that may be.
    pub error: f64,
}

/// Of each context of one thread.
pub fn costs(nodes: &[Node], costs: &ProbeCosts) -> Vec<Cost> {
    let mut made = vec![0u64; nodes.len()];
    for node in nodes {
        if let Some(parent) = node.parent {
            let made = &mut made[parent as usize];
            *made = made.saturating_add(node.calls);
        }
    }
    let cost = |(node, made): (&Node, u64)| {
        let ns = node.calls as f64 * costs.inner_ns
            + made as f64 * costs.outer_ns
            + node.calls.min(made) as f64 * costs.joint_ns;
        Cost {
            ns: ns.max(0.0),
            error: (ns * costs.error).max(0.0),
        }
    };
    nodes.iter().zip(made).map(cost).collect()
}

/// Makes the figures those of the program without probes, as far as that is known. `false` where nothing was calibrated, nothing
/// timed, or all done already.
pub fn compensate(profile: &mut Profile) -> bool {
    let timed = profile.meta.timed;
    let Some(known) = &mut profile.meta.costs else {
        return false;
    };
    if known.taken_out || !timed || !is_sane(known) {
        return false;
    }
    known.taken_out = true;
    let known = *known;
    for process in &mut profile.processes {
        for thread in &mut process.threads {
            let own_costs = costs(&thread.nodes, &known);
            let mut below = vec![0u64; thread.nodes.len()];
            for index in (0..thread.nodes.len()).rev() {
                let node = &mut thread.nodes[index];
                let own = (own_costs[index].ns as u64).min(node.base);
                let all = below[index].saturating_add(own);
                let is_one_call = node.calls == 1 && node.max == node.base;
                node.base -= own;
                node.cum = node.cum.saturating_sub(all);
                node.elapsed = node.elapsed.saturating_sub(all);
                let inner = known.inner_ns as u64;
                (node.min, node.max) = match is_one_call {
                    true => (node.base, node.base),
                    false => (
                        node.min.saturating_sub(inner),
                        node.max.saturating_sub(inner),
                    ),
                };
                if let Some(parent) = node.parent {
                    let sum = &mut below[parent as usize];
                    *sum = sum.saturating_add(all);
                }
            }
        }
    }
    true
}

/// A file can say anything.
fn is_sane(costs: &ProbeCosts) -> bool {
    const MOST_NS: f64 = 1e6;
    let sane = |value: f64| value.is_finite() && value.abs() <= MOST_NS;
    sane(costs.inner_ns) && sane(costs.outer_ns) && sane(costs.joint_ns) && sane(costs.error)
}

/// What was, or will be, taken out of the whole profile.
pub fn total_cost(profile: &Profile) -> Option<Cost> {
    let known = profile.meta.costs.filter(is_sane)?;
    let mut total = Cost::default();
    for (_, thread) in crate::threads(profile) {
        for cost in costs(&thread.nodes, &known) {
            total.ns += cost.ns;
            total.error += cost.error;
        }
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    fn calibrated(calls: &[(u32, u64)]) -> Profile {
        let mut profile = fixture::chain(calls);
        profile.meta.timed = true;
        profile.meta.costs = Some(ProbeCosts {
            inner_ns: 8.0,
            outer_ns: 9.0,
            joint_ns: 1.0,
            error: 0.1,
            taken_out: false,
        });
        for node in &mut profile.processes[0].threads[0].nodes {
            node.elapsed = node.cum + 1000;
        }
        profile
    }

    #[test]
    fn each_call_gives_back_its_part_and_its_callers() {
        let mut profile = calibrated(&[(MAIN, 100), (A, 200), (B, 50)]);
        assert!(compensate(&mut profile));
        let nodes = &profile.processes[0].threads[0].nodes;
        let bases: Vec<u64> = nodes.iter().map(|node| node.base).collect();
        assert_eq!(bases, [100 - 18, 200 - 18, 50 - 8]);
        let cums: Vec<u64> = nodes.iter().map(|node| node.cum).collect();
        assert_eq!(cums, [82 + 182 + 42, 182 + 42, 42]);
        assert!(nodes.iter().all(|node| node.elapsed == node.cum + 1000));
        assert_eq!((nodes[2].min, nodes[2].max), (42, 42));
        assert!(!compensate(&mut profile), "once is enough");
    }

    #[test]
    fn nothing_falls_below_zero_and_sums_hold() {
        let mut profile = calibrated(&[(MAIN, 3), (A, 5), (B, 50)]);
        profile.processes[0].threads[0].nodes[2].calls = u64::MAX;
        assert!(compensate(&mut profile));
        let nodes = &profile.processes[0].threads[0].nodes;
        assert!(nodes.iter().all(|node| node.base == 0 && node.cum == 0));
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
