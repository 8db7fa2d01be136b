//! One row per function: everything it did, wherever it was called from.

use thalweg_model::{Metrics, Node, NodeFlags, Profile, Thread};

use crate::compensate::{Cost, costs, cum_errors};
use crate::estimate::sampling_error;
use crate::{Extremes, is_outermost, outermost_cum, outermost_elapsed, own_waits, threads};

/// A function over all threads and contexts. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionTotals {
    /// Index into the profile's functions.
    pub function: u32,
    pub calls: u64,
    pub base: u64,
    pub cum: u64,
    /// How far off base and cum may be because the probes' cost was taken out, and because they come from samples.
    pub error: u64,
    pub cum_error: u64,
    /// Wall time, as opposed to time on a processor.
    pub elapsed: u64,
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
    /// Of `cum`, what no context below one of its own has: it was called through the function while that was off.
    pub through: u64,
    /// Looks at which it was on the stack while its calls were not counted.
    pub looks: u64,
    /// Was on some thread's stack at attach: that entry was not seen and is not in `calls`.
    pub on_stack_at_attach: bool,
    /// What else the function did itself.
    pub metrics: Metrics,
    /// The same with what its callees did.
    pub cum_metrics: Metrics,
}

/// The functions that were seen, in the order of the profile's functions.
pub fn flat(profile: &Profile) -> Vec<FunctionTotals> {
    let mut rows = vec![FunctionTotals::default(); profile.functions.len()];
    let mut extremes = vec![Extremes::default(); profile.functions.len()];
    // Squares: what one context's timed calls happened to be has nothing to do with another's.
    let mut sampling = vec![0.0f64; profile.functions.len()];
    let taken_out = profile.meta.costs.as_ref().filter(|costs| costs.taken_out);
    // Number, from 1, of the thread that a function was last seen in: spares a set per function.
    let mut last_thread = vec![0u32; profile.functions.len()];

    for (number, (_, thread)) in (1..).zip(threads(profile)) {
        for (node, metrics) in thread.metrics.iter() {
            let function = thread.nodes[node as usize].function;
            rows[function as usize].metrics.add(metrics);
        }
        add_cum_metrics(profile, thread, &mut rows);
        let own_waits = own_waits(&thread.nodes);
        let errors = errors(profile, &thread.nodes);
        for ((node, waited), (error, cum_error)) in thread.nodes.iter().zip(own_waits).zip(errors) {
            let function = node.function as usize;
            let row = &mut rows[function];
            row.calls = row.calls.saturating_add(node.calls);
            row.base = row.base.saturating_add(node.base);
            row.cum = row.cum.saturating_add(outermost_cum(node));
            row.error = row.error.saturating_add(error);
            if is_outermost(node) {
                row.cum_error = row.cum_error.saturating_add(cum_error);
            }
            row.elapsed = row.elapsed.saturating_add(outermost_elapsed(node));
            let waited = waited.saturating_sub(node.terminal);
            row.waited = row.waited.saturating_add(waited);
            row.recursion = row.recursion.max(node.recursion);
            row.unwound = row.unwound.saturating_add(node.unwound);
            row.untimed = row.untimed.saturating_add(node.untimed);
            sampling[function] += sampling_error(node, taken_out).powi(2);
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
    for looked in &profile.looked {
        let function = looked.function as usize;
        let row = &mut rows[function];
        row.looks = looked.on_stack;
        row.through = looked.through_ns;
        row.cum = row.cum.saturating_add(looked.through_ns);
        row.error = looked.error_ns;
        row.cum_error = looked.cum_error_ns;
    }
    (0..)
        .zip(rows.into_iter().zip(extremes))
        .filter(|(_, (row, _))| row.contexts > 0)
        .map(|(function, (row, extremes))| FunctionTotals {
            function,
            min: extremes.min.unwrap_or(0),
            max: extremes.max,
            ..row
        })
        .collect()
}

/// Of base and of cum.
fn errors(profile: &Profile, nodes: &[Node]) -> Vec<(u64, u64)> {
    match &profile.meta.costs {
        Some(known) if known.taken_out => {
            let costs = costs(nodes, known);
            let of_cum = cum_errors(nodes, &costs);
            let rounded =
                |(cost, of_cum): (&Cost, f64)| (cost.error().round() as u64, of_cum.round() as u64);
            costs.iter().zip(of_cum).map(rounded).collect()
        }
        _ => vec![(0, 0); nodes.len()],
    }
}

fn add_cum_metrics(profile: &Profile, thread: &Thread, rows: &mut [FunctionTotals]) {
    if thread.metrics.is_empty() {
        return;
    }
    for &metric in &profile.meta.metrics {
        let nodes = (0..).zip(&thread.nodes);
        let mut cum: Vec<u64> = nodes
            .map(|(index, _)| thread.metrics.of(index).get(metric))
            .collect();
        // Parents stand before their children.
        for (index, node) in thread.nodes.iter().enumerate().rev() {
            if let Some(parent) = node.parent {
                cum[parent as usize] = cum[parent as usize].saturating_add(cum[index]);
            }
        }
        let outermost = thread.nodes.iter().zip(cum);
        for (node, cum) in outermost.filter(|(node, _)| is_outermost(node)) {
            let sum = &mut rows[node.function as usize].cum_metrics;
            sum.set(metric, sum.get(metric).saturating_add(cum));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    fn row(profile: &Profile, function: u32) -> FunctionTotals {
        let rows = flat(profile);
        *rows.iter().find(|row| row.function == function).unwrap()
    }

    #[test]
    fn recursion_adds_calls_and_base_but_its_time_counts_once() {
        // main 1 -> a 10 -> a 20 -> b 5 -> a 40: a's outermost call lasted 75 in all.
        let profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        let a = row(&profile, A);
        assert_eq!((a.calls, a.base, a.cum), (3, 70, 75));
        assert_eq!((a.min, a.max, a.recursion, a.contexts), (10, 40, 2, 3));
        let main = row(&profile, MAIN);
        assert_eq!((main.calls, main.base, main.cum), (1, 1, 76));
    }

    #[test]
    fn folded_calls_count_in_the_totals_and_are_named() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10)]);
        fixture::fold(&mut profile, A, 7, 30);
        let a = row(&profile, A);
        assert_eq!((a.calls, a.base, a.cum, a.folded_calls), (8, 40, 40, 7));

        // Whatever a folded node says of recursion: nothing stands above it that has its time already.
        profile.processes[0].threads[0].nodes[2].recursion = 1;
        assert_eq!(row(&profile, A).cum, 40);
    }

    #[test]
    fn a_function_is_counted_once_per_thread_that_saw_it() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20)]);
        let second = profile.processes[0].threads[0].clone();
        profile.processes[0].threads.push(second);
        let a = row(&profile, A);
        assert_eq!((a.threads, a.calls, a.cum), (2, 4, 60));
    }

    #[test]
    fn functions_that_were_never_seen_have_no_row() {
        let profile = fixture::chain(&[(MAIN, 1), (B, 2)]);
        let seen: Vec<u32> = flat(&profile).iter().map(|row| row.function).collect();
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
            (node.calls, node.base, node.cum) = (u64::MAX, u64::MAX, u64::MAX);
        }
        assert_eq!(row(&profile, A).calls, u64::MAX);
    }
}
