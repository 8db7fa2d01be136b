//! One row per function: everything it did, wherever it was called from.

use thalweg_model::{FuncId, Metrics, Node, NodeFlags, Profile, Thread};

use crate::compensate::{Cost, costs, total_errors};
use crate::estimate::{measured_longer, sampling_error};
use crate::rarity::Rarity;
use crate::tunables::TUNABLES;
use crate::{Extremes, is_outermost, outermost_total, outermost_wall, own_waits, threads};

/// A function over all threads and contexts. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionTotals {
    /// Index into the profile's functions.
    pub function: FuncId,
    pub calls: u64,
    pub self_ns: u64,
    pub total_ns: u64,
    /// How far off self and total may be because the probes' cost was taken out, and because they
    /// come from samples.
    pub error: u64,
    pub total_error: u64,
    /// Wall time, as opposed to time on a processor.
    pub wall_ns: u64,
    /// Off the processor in the function itself, but for a terminal's input.
    pub waited: u64,
    pub min: u64,
    pub max: u64,
    /// In how many threads it was seen, and in how many contexts.
    pub threads: u32,
    pub contexts: u64,
    /// Of `calls`, those whose context is not known.
    pub folded_calls: u64,
    /// Deepest recursion seen: 0 when it never called itself, directly or through others.
    pub recursion: u32,
    /// Of `calls`, those that ended without a return.
    pub unwound: u64,
    /// Of `calls`, those that were not timed.
    pub untimed: u64,
    /// Of `total`, what no context below one of its own has: it was called through the function
    /// while that was off.
    pub through: u64,
    /// Samples that had it on the stack while its calls were not counted.
    pub samples: u64,
    /// Was on some thread's stack at attach: that entry was not seen and is not in `calls`.
    pub on_stack_at_attach: bool,
    /// What else the function did itself.
    pub metrics: Metrics,
    /// The same with what its callees did.
    pub total_metrics: Metrics,
}

/// The functions that were seen, in the order of the profile's functions.
pub fn flat(profile: &Profile) -> Vec<FunctionTotals> {
    let mut rows = vec![FunctionTotals::default(); profile.functions.len()];
    let mut extremes = vec![Extremes::default(); profile.functions.len()];
    // Squares: what one context's timed calls happened to be has nothing to do with another's.
    let mut sampling = vec![0.0f64; profile.functions.len()];
    let longer = measured_longer(&profile.meta);
    let rarity = Rarity::from_profile(profile);
    // Number, from 1, of the thread that a function was last seen in: spares a set per function.
    let mut last_thread = vec![0u32; profile.functions.len()];

    for (number, (_, thread)) in (1..).zip(threads(profile)) {
        for (node, metrics) in thread.metrics.iter() {
            let function = thread.nodes[node as usize].function;
            rows[function.index()].metrics.add(metrics);
        }
        add_total_metrics(profile, thread, &mut rows);
        let own_waits = own_waits(&thread.nodes);
        let errors = errors(profile, &thread.nodes, &rarity);
        for ((node, waited), (error, total_error)) in thread.nodes.iter().zip(own_waits).zip(errors)
        {
            let function = node.function.index();
            let row = &mut rows[function];
            row.calls = row.calls.saturating_add(node.calls);
            row.self_ns = row.self_ns.saturating_add(node.self_ns);
            row.total_ns = row.total_ns.saturating_add(outermost_total(node));
            row.error = row.error.saturating_add(error);
            if is_outermost(node) {
                row.total_error = row.total_error.saturating_add(total_error);
            }
            row.wall_ns = row.wall_ns.saturating_add(outermost_wall(node));
            let waited = waited.saturating_sub(node.terminal);
            row.waited = row.waited.saturating_add(waited);
            row.recursion = row.recursion.max(node.recursion);
            row.unwound = row.unwound.saturating_add(node.unwound);
            row.untimed = row.untimed.saturating_add(node.untimed);
            sampling[function] += sampling_error(node, longer).powi(2);
            row.contexts += 1;
            if node.flags.contains(NodeFlags::FOLDED) {
                row.folded_calls = row.folded_calls.saturating_add(node.calls);
            }
            row.on_stack_at_attach |= node.flags.contains(NodeFlags::ON_STACK_AT_ATTACH);
            extremes[function].add(node);
            if last_thread[function] != number {
                last_thread[function] = number;
                row.threads += 1;
            }
        }
    }

    for (row, squares) in rows.iter_mut().zip(sampling) {
        row.error = row.error.saturating_add(squares.sqrt() as u64);
    }
    for sampled in &profile.sampled {
        let function = sampled.function.index();
        let row = &mut rows[function];
        row.samples = sampled.on_stack;
        row.through = sampled.through_ns;
        row.total_ns = row.total_ns.saturating_add(sampled.through_ns);
        row.error = sampled.error_ns;
        row.total_error = sampled.total_error_ns;
    }
    (0..)
        .zip(rows.into_iter().zip(extremes))
        .filter(|(_, (row, _))| row.contexts > 0)
        .map(|(function, (row, extremes))| FunctionTotals {
            function: FuncId(function),
            min: extremes.min.unwrap_or(0),
            max: extremes.max,
            ..row
        })
        .collect()
}

/// Of self and of total.
fn errors(profile: &Profile, nodes: &[Node], rarity: &Rarity) -> Vec<(u64, u64)> {
    match &profile.meta.costs {
        Some(known) if known.taken_out => {
            let costs = costs(nodes, known, rarity);
            let of_total = total_errors(nodes, &costs);
            let of_runs = |time: u64| TUNABLES.repeatability * time as f64;
            let rounded = |((cost, of_total), node): ((&Cost, f64), &Node)| {
                let own = cost.error() + of_runs(node.self_ns);
                let total = of_total + of_runs(node.total_ns);
                (own.round() as u64, total.round() as u64)
            };
            costs.iter().zip(of_total).zip(nodes).map(rounded).collect()
        }
        _ => vec![(0, 0); nodes.len()],
    }
}

/// How far off self and total of each context of a thread may be. Summed over the contexts of a function it is no less than
/// what [`flat`] says of the function, where some of it cancels out.
pub fn context_errors(profile: &Profile, thread: &Thread, rarity: &Rarity) -> Vec<(u64, u64)> {
    let longer = measured_longer(&profile.meta);
    let mut errors = errors(profile, &thread.nodes, rarity);
    for (node, (own, total)) in thread.nodes.iter().zip(&mut errors) {
        let sampling = sampling_error(node, longer).ceil() as u64;
        *own = own.saturating_add(sampling);
        *total = total.saturating_add(sampling);
    }
    for sampled in &profile.sampled {
        let is_its = |node: &Node| node.function == sampled.function;
        let of_function = |part: fn(&Node) -> u64| {
            let nodes = thread.nodes.iter().filter(|node| is_its(node));
            nodes.map(|node| part(node) as f64).sum::<f64>().max(1.0)
        };
        let (all_own, all_total) = (
            of_function(|node| node.self_ns),
            of_function(outermost_total),
        );
        for (node, (own, total)) in thread.nodes.iter().zip(&mut errors) {
            if is_its(node) {
                *own = part_of_error(sampled.error_ns, node.self_ns as f64 / all_own);
                *total = part_of_error(sampled.total_error_ns, node.total_ns as f64 / all_total);
            }
        }
    }
    errors
}

/// What chance does to a part: the root of its share.
fn part_of_error(whole: u64, share: f64) -> u64 {
    (whole as f64 * share.min(1.0).sqrt()).ceil() as u64
}

fn add_total_metrics(profile: &Profile, thread: &Thread, rows: &mut [FunctionTotals]) {
    if thread.metrics.is_empty() {
        return;
    }
    for &metric in &profile.meta.metrics {
        let nodes = (0..).zip(&thread.nodes);
        let mut total_ns: Vec<u64> = nodes
            .map(|(index, _)| thread.metrics.at(index).get(metric))
            .collect();
        // Parents stand before their children.
        for (index, node) in thread.nodes.iter().enumerate().rev() {
            if let Some(parent) = node.parent {
                total_ns[parent as usize] =
                    total_ns[parent as usize].saturating_add(total_ns[index]);
            }
        }
        let outermost = thread.nodes.iter().zip(total_ns);
        for (node, total_ns) in outermost.filter(|(node, _)| is_outermost(node)) {
            let sum = &mut rows[node.function.index()].total_metrics;
            sum.set(metric, sum.get(metric).saturating_add(total_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    fn row(profile: &Profile, function: FuncId) -> FunctionTotals {
        let rows = flat(profile);
        *rows.iter().find(|row| row.function == function).unwrap()
    }

    #[test]
    fn recursion_adds_calls_and_self_but_its_time_counts_once() {
        // main 1 -> a 10 -> a 20 -> b 5 -> a 40: a's outermost call lasted 75 in all.
        let profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        let a = row(&profile, A);
        assert_eq!((a.calls, a.self_ns, a.total_ns), (3, 70, 75));
        assert_eq!((a.min, a.max, a.recursion, a.contexts), (10, 40, 2, 3));
        let main = row(&profile, MAIN);
        assert_eq!((main.calls, main.self_ns, main.total_ns), (1, 1, 76));
    }

    #[test]
    fn folded_calls_count_in_the_totals_and_are_named() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10)]);
        fixture::fold(&mut profile, A, 7, 30);
        let a = row(&profile, A);
        assert_eq!(
            (a.calls, a.self_ns, a.total_ns, a.folded_calls),
            (8, 40, 40, 7)
        );

        // Whatever a folded node says of recursion: nothing stands above it that has its time
        // already.
        profile.processes[0].threads[0].nodes[2].recursion = 1;
        assert_eq!(row(&profile, A).total_ns, 40);
    }

    #[test]
    fn a_function_is_counted_once_per_thread_that_saw_it() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20)]);
        let second = profile.processes[0].threads[0].clone();
        profile.processes[0].threads.push(second);
        let a = row(&profile, A);
        assert_eq!((a.threads, a.calls, a.total_ns), (2, 4, 60));
    }

    #[test]
    fn functions_that_were_never_seen_have_no_row() {
        let profile = fixture::chain(&[(MAIN, 1), (B, 2)]);
        let seen: Vec<FuncId> = flat(&profile).iter().map(|row| row.function).collect();
        assert_eq!(seen, [MAIN, B]);
    }

    #[test]
    fn a_call_that_has_not_ended_has_no_shortest_time() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5), (A, 20)]);
        let open = &mut profile.processes[0].threads[0].nodes[3];
        (open.min, open.max) = (0, 0);
        assert_eq!(row(&profile, A).min, 10);
    }

    #[test]
    fn hostile_figures_saturate() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5), (A, 20)]);
        for node in &mut profile.processes[0].threads[0].nodes {
            (node.calls, node.self_ns, node.total_ns) = (u64::MAX, u64::MAX, u64::MAX);
        }
        assert_eq!(row(&profile, A).calls, u64::MAX);
    }
}
