//! Two sides of one or more runs each: what changed, per function and per calling context, and how
//! much of it is noise.
//!
//! Functions of two builds are the same when their module's file name and their own name are:
//! addresses move.
//!
//! ```text
//! change = mean(after) - mean(before)
//! noise  = t * sqrt(var(before) / runs before + var(after) / runs after)
//! ```
//!
//! with Student's t for as many runs: 19 of 20 times, runs of one and the same program differ by
//! less.
//!
//! A side of one run has no variance of its own and borrows that of the other. With one run on both
//! sides the noise is not known; what calls of one run differ by says how much there is at the
//! least:
//!
//! ```text
//! error of n calls >= t * (max - min) / d(n) * sqrt(n)        d(n): how many standard deviations n values lie apart
//!                  >= cold_call_ns                                     or the figure, if that is less
//! ```
//!
//! Each figure of each run has an error of its own, which the truth lies within 19 times of 20:
//!
//! ```text
//! error = sqrt(sum of squares of errors before / runs before^2 + the same of after)
//! limit = sqrt(noise^2 + error^2)
//! ```
//!
//! A change within the limit is none that was seen. Counts have no error: any difference is a
//! change, unless one of the sides is a lower bound, of which no difference tells anything.
//!
//! A process ends in a call whose end nobody sees: the time of that call has an error of all of it.
//!
//! The error of a context is its function's, as much smaller as the root of its share: what chance
//! does to a part.

use std::collections::HashMap;

use thalweg_model::{End, FuncId, Node, NodeFlags, Profile};

use crate::bounds::Bounds;
use crate::flat::{FunctionTotals, flat};
use crate::lineage::{Lineage, ThreadNumber};
use crate::pairs::PairTable;
use crate::threads;
use crate::tunables::TUNABLES;

/// One figure on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delta {
    pub before: f64,
    pub after: f64,
    /// What runs differ by anyway, where there were several.
    pub noise: Option<f64>,
    /// How far off the difference may be, by the errors of both sides.
    pub error: f64,
    /// One of the sides is a lower bound, or both are.
    pub at_least: [bool; 2],
}

impl Delta {
    pub fn change(&self) -> f64 {
        self.after - self.before
    }

    /// What a difference must be more than to be a change.
    pub fn limit(&self) -> f64 {
        self.noise.unwrap_or(0.0).hypot(self.error)
    }

    /// There is a change, and it is more than noise and errors as far as they are known.
    pub fn is_real(&self) -> bool {
        let change = self.change();
        let is_bound = self.at_least.contains(&true);
        change != 0.0 && !is_bound && change.abs() > self.limit()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    pub calls: Delta,
    pub self_ns: Delta,
    pub total_ns: Delta,
}

/// A function on both sides.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub module: String,
    pub function: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FunctionChange {
    /// Index into [`Diff::names`].
    pub name: u32,
    pub change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContextChange {
    /// Index into [`Diff::contexts`], smaller than this one's own.
    pub parent: Option<u32>,
    pub name: u32,
    /// Nesting level of the threads.
    pub level: u32,
    pub change: Change,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    pub names: Vec<Name>,
    /// `total` is not that of the whole but 0: the sum of self is.
    pub whole: Change,
    pub functions: Vec<FunctionChange>,
    pub contexts: Vec<ContextChange>,
}

/// Calls, self and total of one run, with how far off the times may be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    values: [u64; 3],
    errors: [f64; 3],
    /// There were at least so many calls.
    at_least: bool,
}

/// A row of figures per name or context; as many columns as there are runs.
struct Table {
    runs: usize,
    cells: Vec<Figures>,
}

impl Table {
    fn row(&mut self, row: usize) -> &mut [Figures] {
        let end = (row + 1) * self.runs;
        if self.cells.len() < end {
            self.cells.resize(end, Figures::default());
        }
        &mut self.cells[end - self.runs..end]
    }

    fn add(&mut self, row: usize, run: usize, figures: Figures) {
        let sums = &mut self.row(row)[run];
        for (sum, figure) in sums.values.iter_mut().zip(figures.values) {
            *sum = sum.saturating_add(figure);
        }
        for (sum, error) in sums.errors.iter_mut().zip(figures.errors) {
            *sum = sum.hypot(error);
        }
        sums.at_least |= figures.at_least;
    }
}

/// How many runs there are on the side before.
struct Sides {
    before: usize,
}

impl Sides {
    fn change(&self, runs: &[Figures]) -> Change {
        let delta = |figure: usize| {
            let values: Vec<f64> = runs.iter().map(|run| run.values[figure] as f64).collect();
            let (before, after) = values.split_at(self.before);
            let (runs_before, runs_after) = runs.split_at(self.before);
            let error = |runs: &[Figures]| {
                let errors = runs.iter().map(|run| run.errors[figure]);
                errors.fold(0.0, f64::hypot) / runs.len().max(1) as f64
            };
            let is_bound = |runs: &[Figures]| figure == 0 && runs.iter().any(|run| run.at_least);
            Delta {
                before: mean(before),
                after: mean(after),
                noise: noise(before, after),
                error: error(runs_before).hypot(error(runs_after)),
                at_least: [is_bound(runs_before), is_bound(runs_after)],
            }
        };
        Change {
            calls: delta(0),
            self_ns: delta(1),
            total_ns: delta(2),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn variance(values: &[f64]) -> Option<f64> {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| squares / (values.len() - 1) as f64)
}

fn noise(before: &[f64], after: &[f64]) -> Option<f64> {
    let (own_before, own_after) = (variance(before), variance(after));
    let of_before = own_before.or(own_after)?;
    let of_after = own_after.or(own_before)?;
    let error = (of_before / before.len() as f64 + of_after / after.len() as f64).sqrt();
    let freedom = before.len() + after.len() - 2;
    Some(student(freedom) * error)
}

/// Student's t for 95 % on both sides; from 10 degrees of freedom on it is near enough to its
/// limit.
fn student(freedom: usize) -> f64 {
    const T_QUANTILES_95: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    T_QUANTILES_95
        .get(freedom.saturating_sub(1))
        .copied()
        .unwrap_or(2.0)
}

/// What one run tells of how far another may be from it: calls that took from `min` to `max`,
/// `self` in all.
fn within_run(calls: u64, min: u64, max: u64, self_ns: u64) -> f64 {
    let least = (self_ns as f64).min(TUNABLES.cold_call_ns);
    let range = max.saturating_sub(min) as f64;
    match calls {
        0 | 1 => least,
        _ => {
            let freedom = usize::try_from(calls - 1).unwrap_or(usize::MAX);
            let of_calls = range / deviations_apart(calls) * (calls as f64).sqrt();
            least.max(student(freedom) * of_calls)
        }
    }
}

/// How many standard deviations the least and the largest of `count` values lie apart on average,
/// of normal ones.
fn deviations_apart(count: u64) -> f64 {
    const RANGE_IN_DEVIATIONS: [f64; 9] = [
        1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078,
    ];
    let few = usize::try_from(count.saturating_sub(2)).unwrap_or(usize::MAX);
    let many = || (3.078 + 0.75 * (count as f64 / 10.0).ln()).min(10.0);
    RANGE_IN_DEVIATIONS.get(few).copied().unwrap_or_else(many)
}

/// Neither side may be empty.
pub fn diff(before: &[Profile], after: &[Profile]) -> Diff {
    let runs = before.len() + after.len();
    let table = || Table {
        runs,
        cells: Vec::new(),
    };
    let mut names: Vec<Name> = Vec::new();
    let mut numbers: HashMap<Name, u32> = HashMap::new();
    let (mut functions, mut contexts, mut whole) = (table(), table(), table());
    whole.row(0);
    let mut places = Places::default();

    for (run, profile) in before.iter().chain(after).enumerate() {
        let name_of: Vec<u32> = profile
            .functions
            .iter()
            .map(|function| {
                let name = Name {
                    module: profile.modules[function.module as usize].name.clone(),
                    function: function.name.clone(),
                };
                *numbers.entry(name).or_insert_with_key(|name| {
                    names.push(name.clone());
                    names.len() as u32 - 1
                })
            })
            .collect();
        let is_alone = runs == 2 && profile.meta.timed && profile.meta.weighed_by.is_none();
        let errors = Errors::from_profile(profile, is_alone);
        let bounds = Bounds::from_profile(profile);
        whole.add(
            0,
            run,
            Figures {
                errors: [0.0, errors.of_whole, 0.0],
                at_least: bounds.any(),
                ..Figures::default()
            },
        );
        for row in flat(profile) {
            let name = name_of[row.function.index()];
            let figures = Figures {
                values: [row.calls, row.self_ns, row.total_ns],
                errors: errors.of_function(&row),
                at_least: bounds.function(row.function),
            };
            functions.add(name as usize, run, figures);
        }
        let lineage = Lineage::from_profile(profile);
        for (number, (_, thread)) in (0..).map(ThreadNumber).zip(threads(profile)) {
            let level = lineage.level(number);
            let mut stands: Vec<u32> = Vec::with_capacity(thread.nodes.len());
            let at_least = bounds.contexts(&thread.nodes);
            for (node, at_least) in thread.nodes.iter().zip(at_least) {
                let name = name_of[node.function.index()];
                let above = match node.parent {
                    Some(parent) => Above::Context(stands[parent as usize]),
                    None if node.flags.contains(NodeFlags::FOLDED) => Above::Folded,
                    None => Above::Level(level),
                };
                let place = places.number(above, name, level);
                stands.push(place);
                let figures = Figures {
                    values: [node.calls, node.self_ns, node.total_ns],
                    errors: errors.of_context(node),
                    // Which of its function's calls were made here is an estimate.
                    at_least: at_least || node.flags.contains(NodeFlags::SAMPLED),
                };
                contexts.add(place as usize, run, figures);
                let figures = Figures {
                    values: [node.calls, node.self_ns, 0],
                    ..Figures::default()
                };
                whole.add(0, run, figures);
            }
        }
    }

    let sides = Sides {
        before: before.len(),
    };
    let mut changes = Vec::new();
    for name in 0..names.len() {
        let row = functions.row(name);
        if row.iter().any(|figures| figures.values != [0; 3]) {
            changes.push(FunctionChange {
                name: name as u32,
                change: sides.change(row),
            });
        }
    }
    Diff {
        names,
        whole: sides.change(whole.row(0)),
        functions: changes,
        contexts: (0..)
            .zip(places.places)
            .map(|(row, (parent, name, level))| ContextChange {
                parent,
                name,
                level,
                change: sides.change(contexts.row(row)),
            })
            .collect(),
    }
}

/// What the figures of one profile may be off by.
struct Errors {
    /// Of each function self and total, each with its error.
    functions: Vec<[(f64, f64); 2]>,
    of_whole: f64,
    /// There is no other run of the same side, nor of the other: what calls differ by is all that
    /// is known of noise.
    is_alone: bool,
}

impl Errors {
    fn from_profile(profile: &Profile, is_alone: bool) -> Errors {
        let mut functions = vec![[(0.0, 0.0); 2]; profile.functions.len()];
        let mut of_whole = 0.0f64;
        for row in flat(profile) {
            functions[row.function.index()] = [
                (row.self_ns as f64, row.error as f64),
                (row.total_ns as f64, row.total_error as f64),
            ];
            of_whole = of_whole.hypot(row.error as f64);
        }
        for (function, [own, below]) in unseen_ends(profile) {
            let [self_ns, total_ns] = &mut functions[function.index()];
            self_ns.1 = self_ns.1.hypot(own);
            total_ns.1 = total_ns.1.hypot(below);
            of_whole = of_whole.hypot(own);
        }
        let taken_out = profile.meta.costs.is_some_and(|costs| costs.taken_out);
        if let Some((_, error)) = crate::total_cost(profile).filter(|_| taken_out) {
            of_whole = of_whole.max(error);
        }
        Errors {
            functions,
            of_whole,
            is_alone,
        }
    }

    fn of_function(&self, row: &FunctionTotals) -> [f64; 3] {
        let errors = self.functions[row.function.index()].map(|(_, error)| error);
        let timed = row.calls.saturating_sub(row.untimed);
        self.with_noise(
            errors,
            [row.self_ns, row.total_ns],
            timed,
            (row.min, row.max),
        )
    }

    /// What a callee's calls differ by is taken to be as much, for its size, as what the function's
    /// do.
    fn with_noise(
        &self,
        [self_error, total_error]: [f64; 2],
        [self_ns, total_ns]: [u64; 2],
        timed: u64,
        (min, max): (u64, u64),
    ) -> [f64; 3] {
        if !self.is_alone {
            return [0.0, self_error, total_error];
        }
        let noise = within_run(timed, min, max, self_ns);
        let below = (total_ns as f64).min(TUNABLES.cold_call_ns);
        let larger = (total_ns as f64 / (self_ns as f64).max(1.0))
            .max(1.0)
            .sqrt();
        let of_total = (noise * larger).min(total_ns as f64).max(below);
        [0.0, self_error.hypot(noise), total_error.hypot(of_total)]
    }

    fn of_context(&self, node: &Node) -> [f64; 3] {
        let [self_ns, total_ns] = self.functions[node.function.index()];
        let part = |(whole, error): (f64, f64), part: u64| match whole > 0.0 {
            true => error * (part as f64 / whole).min(1.0).sqrt(),
            false => error,
        };
        let errors = [part(self_ns, node.self_ns), part(total_ns, node.total_ns)];
        let timed = node.calls.saturating_sub(node.untimed);
        self.with_noise(
            errors,
            [node.self_ns, node.total_ns],
            timed,
            (node.min, node.max),
        )
    }
}

/// The last call of a thread whose process ended in it: nobody saw when that was, so that its time
/// is there in one run and not in the other. By function, what it took, for the function itself and
/// for those that had called it.
fn unseen_ends(profile: &Profile) -> HashMap<FuncId, [f64; 2]> {
    let mut ends: HashMap<FuncId, [f64; 2]> = HashMap::new();
    let ended = profile.processes.iter().filter(|p| p.end != End::Running);
    for thread in ended.flat_map(|process| &process.threads) {
        let nodes = &thread.nodes;
        let mut is_innermost: Vec<bool> = nodes
            .iter()
            .map(|node| node.flags.contains(NodeFlags::OPEN))
            .collect();
        for index in (0..nodes.len()).filter(|&index| nodes[index].flags.contains(NodeFlags::OPEN))
        {
            if let Some(parent) = nodes[index].parent {
                is_innermost[parent as usize] = false;
            }
        }
        for node in nodes
            .iter()
            .zip(is_innermost)
            .filter(|(_, is)| *is)
            .map(|(node, _)| node)
        {
            let last = match node.calls {
                0 | 1 => node.self_ns,
                _ => node.max.min(node.self_ns),
            };
            ends.entry(node.function).or_default()[0] += last as f64;
            let mut at = Some(node);
            while let Some(above) = at {
                if above.recursion == 0 {
                    ends.entry(above.function).or_default()[1] += last as f64;
                }
                at = above.parent.map(|parent| &nodes[parent as usize]);
            }
        }
    }
    ends
}

enum Above {
    Context(u32),
    Level(u32),
    Folded,
}

/// The contexts of all runs, each once.
#[derive(Default)]
struct Places {
    table: PairTable,
    places: Vec<(Option<u32>, u32, u32)>,
}

impl Places {
    fn number(&mut self, above: Above, name: u32, level: u32) -> u32 {
        // Levels count down from the largest number; there are never as many as to meet the
        // contexts.
        let (parent, key) = match above {
            Above::Context(context) => (Some(context), context),
            Above::Folded => (None, u32::MAX),
            Above::Level(level) => (None, u32::MAX - 1 - level),
        };
        let next = self.places.len() as u32;
        let place = self.table.get_or_insert(key, name, next);
        if place == next {
            self.places.push((parent, name, level));
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    fn of_function<'a>(diff: &'a Diff, name: &str) -> &'a Change {
        let found = diff
            .functions
            .iter()
            .find(|row| diff.names[row.name as usize].function == name);
        &found.unwrap().change
    }

    #[test]
    fn a_change_is_found_in_its_function_and_in_its_context() {
        let before = fixture::branching();
        let mut after = fixture::branching();
        after.processes[0].threads[0].nodes[2].self_ns = 120;
        let diff = diff(&[before], &[after]);
        let b = of_function(&diff, "b");
        assert_eq!((b.self_ns.before, b.self_ns.after), (70.0, 170.0));
        assert_eq!(b.self_ns.noise, None);
        let changed: Vec<&ContextChange> = diff
            .contexts
            .iter()
            .filter(|context| context.change.self_ns.change() != 0.0)
            .collect();
        assert_eq!(changed.len(), 1);
        let parent = diff.contexts[changed[0].parent.unwrap() as usize];
        assert_eq!(diff.names[parent.name as usize].function, "a");
        assert_eq!(diff.whole.self_ns.change(), 100.0);
    }

    #[test]
    fn what_a_process_did_to_end_is_no_change() {
        let run = |end: u64| {
            let mut run = fixture::chain(&[(MAIN, 1000), (A, 10), (B, end)]);
            let nodes = &mut run.processes[0].threads[0].nodes;
            nodes
                .iter_mut()
                .for_each(|node| node.flags = NodeFlags::OPEN);
            run
        };
        let shown = diff(&[run(0)], &[run(500_000)]);
        for name in ["main", "a", "b"] {
            let change = of_function(&shown, name);
            let times = [change.self_ns, change.total_ns];
            assert!(times.iter().all(|delta| !delta.is_real()), "{name}");
        }
        assert!(!shown.whole.self_ns.is_real());
        let [before, mut after] = [run(0), run(500_000)];
        after.processes[0].end = End::Running;
        let shown = diff(&[before], &[after]);
        assert!(of_function(&shown, "b").self_ns.is_real());
    }

    #[test]
    fn functions_are_the_same_by_name_when_their_addresses_moved() {
        let before = fixture::chain(&[(MAIN, 1), (A, 10)]);
        let mut after = fixture::chain(&[(MAIN, 1), (A, 10)]);
        after.functions.reverse();
        for node in &mut after.processes[0].threads[0].nodes {
            node.function = FuncId(3 - node.function.0);
        }
        after.functions.iter_mut().for_each(|f| f.address += 0x40);
        let diff = diff(&[before], &[after]);
        assert!(diff.functions.iter().all(|row| !row.change.calls.is_real()));
        assert_eq!(diff.contexts.len(), 2);
    }

    #[test]
    fn what_runs_differ_by_anyway_is_not_called_a_change() {
        let run = |a, b| fixture::chain(&[(MAIN, 1), (A, a), (B, b)]);
        let diff = diff(
            &[run(100, 10), run(120, 10), run(80, 10)],
            &[run(110, 30), run(90, 31), run(115, 29)],
        );
        assert!(!of_function(&diff, "a").self_ns.is_real());
        let b = of_function(&diff, "b").self_ns;
        assert!(b.is_real());
        assert_eq!(b.change(), 20.0);
        assert!((b.noise.unwrap() - 2.78 * (1.0f64 / 3.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn one_run_borrows_the_noise_of_several() {
        let run = |a| fixture::chain(&[(MAIN, 1), (A, a)]);
        let diff = diff(&[run(100), run(102)], &[run(101)]);
        let noise = of_function(&diff, "a").self_ns.noise.unwrap();
        assert!((noise - 12.71 * 3f64.sqrt()).abs() < 1e-9, "{noise}");
    }

    #[test]
    fn a_function_of_one_side_only_is_there_with_zero_on_the_other() {
        let diff = diff(
            &[fixture::chain(&[(MAIN, 1), (A, 10)])],
            &[fixture::chain(&[(MAIN, 1), (B, 10)])],
        );
        assert_eq!(of_function(&diff, "a").calls.after, 0.0);
        assert_eq!(of_function(&diff, "b").calls.before, 0.0);
    }

    const MS: u64 = 1_000_000;

    /// The same with errors, as samples give them.
    fn with_errors(mut profile: Profile, errors: &[(u32, u64)]) -> Profile {
        profile.meta.timed = true;
        profile.sampled = errors
            .iter()
            .map(|&(function, error)| thalweg_model::SampledFunction {
                function: FuncId(function),
                error_ns: error,
                total_error_ns: error,
                ..thalweg_model::SampledFunction::default()
            })
            .collect();
        profile
    }

    #[test]
    fn what_is_within_the_errors_of_both_sides_is_no_change() {
        let run = |a: u64, error| {
            let chain = fixture::chain(&[(MAIN, 1), (A, a * MS)]);
            with_errors(chain, &[(A.0, error * MS)])
        };
        let between = |before, after| {
            let diff = diff(&[before], &[after]);
            let a = of_function(&diff, "a").self_ns;
            let context = diff.contexts[1].change.self_ns;
            assert_eq!(a.is_real(), context.is_real());
            (a.is_real(), (a.error / MS as f64).round())
        };
        assert_eq!(between(run(100, 30), run(140, 40)), (false, 50.0));
        assert_eq!(between(run(100, 30), run(151, 40)), (true, 50.0));
        assert_eq!(between(run(100, 0), run(101, 0)), (true, 0.0));
        assert_eq!(between(run(100, 30), run(100, 30)), (false, 42.0));
    }

    #[test]
    fn what_calls_of_one_run_differ_by_is_no_change_between_two() {
        // 100 calls of 1 to 3 ms, 0.2 s in all: the next 100 may well take 4 % more.
        let run = |self_ns: u64, max: u64, calls: u64| {
            let mut profile = fixture::chain(&[(MAIN, 1), (A, self_ns)]);
            profile.meta.timed = true;
            let node = &mut profile.processes[0].threads[0].nodes[1];
            (node.calls, node.min, node.max) = (calls, MS, max);
            profile
        };
        let is_real = |before, after| {
            let diff = diff(&[before], &[after]);
            of_function(&diff, "a").self_ns.is_real()
        };
        assert!(!is_real(
            run(200 * MS, 3 * MS, 100),
            run(208 * MS, 3 * MS, 100)
        ));
        assert!(is_real(
            run(200 * MS, 3 * MS, 100),
            run(240 * MS, 3 * MS, 100)
        ));
        assert!(is_real(run(200 * MS, MS, 100), run(208 * MS, MS, 100)));
        // A single call of microseconds may meet a cold cache.
        assert!(!is_real(run(1_200, 1_200, 1), run(23_000, 23_000, 1)));
        assert!(is_real(run(MS, MS, 1), run(3 * MS, 3 * MS, 1)));
    }

    #[test]
    fn several_runs_have_noise_and_errors() {
        let run = |a, error| with_errors(fixture::chain(&[(MAIN, 1), (A, a)]), &[(A.0, error)]);
        let diff = diff(&[run(100, 10), run(100, 10)], &[run(104, 10), run(104, 10)]);
        let a = of_function(&diff, "a").self_ns;
        assert_eq!(a.noise, Some(0.0));
        assert!((a.error - 10.0).abs() < 1e-9, "{}", a.error);
        assert!(!a.is_real());
    }

    #[test]
    fn counts_differ_or_not_unless_they_are_lower_bounds() {
        let run = |calls, off| {
            let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5)]);
            profile.processes[0].threads[0].nodes[1].calls = calls;
            profile.processes[0].threads[0].nodes[2].calls = calls;
            if off {
                profile.switched.push(thalweg_model::Switched {
                    function: A,
                    off_ns: 1,
                    ..Default::default()
                });
            }
            profile
        };
        let exact = diff(&[run(100, false)], &[run(101, false)]);
        assert!(of_function(&exact, "a").calls.is_real());
        let bound = diff(&[run(100, false)], &[run(101, true)]);
        let a = of_function(&bound, "a").calls;
        assert_eq!((a.is_real(), a.at_least), (false, [false, true]));
        assert!(of_function(&bound, "b").calls.is_real());
        // That a called b so often is not known: it may have been called while a was off.
        assert!(!bound.contexts[2].change.calls.is_real());
        assert!(!bound.whole.calls.is_real());
    }
}
