//! Any metric in the place of time: what a context did itself becomes its self, with what its
//! callees did its total. So everything that can be asked of times can be asked of it: tables,
//! trees, graphs, pictures, exports, comparisons.

use thalweg_model::{Metric, NodeFlags, Profile, SampledFunction};

use crate::flat;
use crate::tunables::TUNABLES;

/// The same profile, weighed by a metric that it has.
pub fn by_metric(mut profile: Profile, metric: Metric) -> Profile {
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    for thread in threads {
        let nodes = &mut thread.nodes;
        for (index, node) in (0..).zip(nodes.iter_mut()) {
            node.self_ns = thread.metrics.at(index).get(metric);
            node.total_ns = node.self_ns;
            (node.min, node.max, node.terminal) = (0, 0, 0);
            // That is said of times.
            node.untimed = 0;
        }
        // Parents stand before their children.
        for index in (0..nodes.len()).rev() {
            let total_ns = nodes[index].total_ns;
            nodes[index].wall_ns = total_ns;
            if let Some(parent) = nodes[index].parent {
                let above = &mut nodes[parent as usize].total_ns;
                *above = above.saturating_add(total_ns);
            }
        }
    }
    profile.meta.timed = true;
    profile.meta.costs = None;
    profile.meta.overhead_ns_per_call = 0.0;
    profile.meta.weighed_by = Some(metric);
    let counting = profile.meta.counting_of(metric);
    if let Some(period) = counting.filter(|one| !one.is_exact()).map(|one| one.period) {
        mark_estimates(&mut profile, period);
    }
    profile
}

/// Each sample stands for `period` events: what chance makes of n samples is the root of n.
fn mark_estimates(profile: &mut Profile, period: u64) {
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    for node in threads.flat_map(|thread| &mut thread.nodes) {
        if node.total_ns > 0 {
            node.flags |= NodeFlags::SAMPLED;
        }
    }
    let error =
        |samples: u64| (TUNABLES.sigmas * (samples as f64).sqrt() * period as f64).round() as u64;
    let rows = flat(profile).into_iter().filter(|row| row.total_ns > 0);
    profile.sampled = rows
        .map(|row| {
            let (own, on_stack) = (row.self_ns / period, row.total_ns / period);
            SampledFunction {
                function: row.function,
                own,
                on_stack,
                error_ns: error(own),
                total_error_ns: error(on_stack),
                through_ns: 0,
            }
        })
        .collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FunctionTotals;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{
        Part, Thresholds, arbitrary, callees, callers, combine, flat, prune, select, threads,
    };
    use proptest::prelude::*;
    use thalweg_model::FuncId;
    use thalweg_model::{Counting, Thread};

    #[test]
    fn a_metric_adds_up_over_callees_and_counts_once_under_recursion() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5), (A, 20)]);
        let metrics = &mut profile.processes[0].threads[0].metrics;
        for (node, bytes) in (0..).zip([0, 100, 30, 7]) {
            metrics.set(node, Metric::AllocBytes, bytes);
        }
        let weighed = by_metric(profile, Metric::AllocBytes);
        let rows = flat(&weighed);
        let figures: Vec<_> = rows
            .iter()
            .map(|row| (row.function, row.self_ns, row.total_ns))
            .collect();
        assert_eq!(figures, [(MAIN, 0, 137), (A, 107, 137), (B, 30, 37)]);
        assert_eq!(weighed.validate(), Ok(()));
    }

    #[test]
    fn what_every_so_many_events_were_looked_at_for_is_an_estimate_and_says_how_good() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5)]);
        let metrics = &mut profile.processes[0].threads[0].metrics;
        metrics.set(1, Metric::Instructions, 100_000);
        metrics.set(2, Metric::Instructions, 300_000);
        metrics.set(2, Metric::Faults, 3);
        for (metric, period) in [(Metric::Instructions, 1000), (Metric::Faults, 1)] {
            profile.meta.counting.push(Counting {
                metric,
                period,
                in_kernel: false,
                samples: 400,
                lost: 0,
                in_probes: 0,
                nobodys: 0,
                cut_short: 0,
            });
        }
        let weighed = by_metric(profile.clone(), Metric::Instructions);
        let errors: Vec<_> = weighed
            .sampled
            .iter()
            .map(|one| {
                (
                    one.function,
                    one.own,
                    one.on_stack,
                    one.error_ns,
                    one.total_error_ns,
                )
            })
            .collect();
        let all = (MAIN, 0, 400, 0, 40_000);
        let of_a = (A, 100, 400, 20_000, 40_000);
        let of_b = (B, 300, 300, 34_641, 34_641);
        assert_eq!(errors, [all, of_a, of_b]);
        let marked = |profile: &Profile| {
            let nodes = &profile.processes[0].threads[0].nodes;
            nodes
                .iter()
                .filter(|n| n.flags.contains(NodeFlags::SAMPLED))
                .count()
        };
        assert_eq!(marked(&weighed), 3);
        let exact = by_metric(profile, Metric::Faults);
        assert!(exact.sampled.is_empty() && marked(&exact) == 0);
    }

    fn figures_are_with_their_contexts(thread: &Thread) -> bool {
        let mut nodes = (0..).zip(&thread.nodes);
        nodes.all(|(index, node)| thread.metrics.at(index).get(Metric::AllocBytes) == node.self_ns)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn metrics_go_where_their_contexts_go(profile in arbitrary::program(), function in 0..4u32, time in 0..200u64) {
            let at = Thresholds { time, ..Thresholds::default() };
            let part = Part { root: Some(FuncId(function)), ..Part::default() };
            for changed in [combine(profile.clone()), prune(profile.clone(), &at), select(&profile, &part).into_owned()] {
                prop_assert_eq!(changed.validate(), Ok(()));
                prop_assert!(threads(&changed).all(|(_, thread)| figures_are_with_their_contexts(thread)));
            }
            prop_assert!(figures_are_with_their_contexts(&callers(&profile, FuncId(function), None)));
            prop_assert!(figures_are_with_their_contexts(&callees(&profile, FuncId(function), None)));
            let figures = |row: &FunctionTotals| [&row.metrics, &row.total_metrics].map(|m| m.get(Metric::AllocBytes));
            prop_assert!(flat(&profile).iter().all(|row| figures(row) == [row.self_ns, row.total_ns]));
        }
    }
}
