//! Two sides of one or more runs each: what changed, per function and per calling context, and how much of it is noise.
//!
//! Functions of two builds are the same when their module's file name and their own name are: addresses move.
//!
//! ```text
//! change = mean(after) - mean(before)
//! noise  = t * sqrt(var(before) / runs before + var(after) / runs after)
//! ```
//!
//! with Student's t for as many runs: 19 of 20 times, runs of one and the same program differ by less.
//!
//! A side of one run has no variance of its own and borrows that of the other; with one run on both sides the noise is
//! not known.

use std::collections::HashMap;

use thalweg_model::{NodeFlags, Profile};

use crate::lineage::{Lineage, ThreadNumber};
use crate::pairs::PairTable;
use crate::{outermost_cum, threads};

/// One figure on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delta {
    pub before: f64,
    pub after: f64,
    /// What runs differ by anyway, where there were several.
    pub noise: Option<f64>,
}

impl Delta {
    pub fn change(&self) -> f64 {
        self.after - self.before
    }

    /// There is a change, and it is more than noise as far as that is known.
    pub fn is_real(&self) -> bool {
        let change = self.change();
        change != 0.0 && self.noise.is_none_or(|noise| change.abs() > noise)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    pub calls: Delta,
    pub base: Delta,
    pub cum: Delta,
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
    /// `cum` is not that of the whole but 0: the sum of base is.
    pub whole: Change,
    pub functions: Vec<FunctionChange>,
    pub contexts: Vec<ContextChange>,
}

/// Calls, base and cum of one run.
type Figures = [u64; 3];

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
        for (sum, figure) in self.row(row)[run].iter_mut().zip(figures) {
            *sum = sum.saturating_add(figure);
        }
    }
}

/// How many runs there are on the side before.
struct Sides {
    before: usize,
}

impl Sides {
    fn change(&self, runs: &[Figures]) -> Change {
        let delta = |figure: usize| {
            let values: Vec<f64> = runs.iter().map(|run| run[figure] as f64).collect();
            let (before, after) = values.split_at(self.before);
            Delta {
                before: mean(before),
                after: mean(after),
                noise: noise(before, after),
            }
        };
        Change {
            calls: delta(0),
            base: delta(1),
            cum: delta(2),
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

/// Student's t for 95 % on both sides; from 10 degrees of freedom on it is near enough to its limit.
fn student(freedom: usize) -> f64 {
    const T: [f64; 10] = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    T.get(freedom.saturating_sub(1)).copied().unwrap_or(2.0)
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
        let lineage = Lineage::of(profile);
        for (number, (_, thread)) in (0..).map(ThreadNumber).zip(threads(profile)) {
            let level = lineage.level(number);
            let mut stands: Vec<u32> = Vec::with_capacity(thread.nodes.len());
            for node in &thread.nodes {
                let name = name_of[node.function as usize];
                let above = match node.parent {
                    Some(parent) => Above::Context(stands[parent as usize]),
                    None if node.flags.contains(NodeFlags::FOLDED) => Above::Folded,
                    None => Above::Level(level),
                };
                let place = places.of(above, name, level);
                stands.push(place);
                contexts.add(place as usize, run, [node.calls, node.base, node.cum]);
                let outermost = [node.calls, node.base, outermost_cum(node)];
                functions.add(name as usize, run, outermost);
                whole.add(0, run, [node.calls, node.base, 0]);
            }
        }
    }

    let sides = Sides {
        before: before.len(),
    };
    let mut changes = Vec::new();
    for name in 0..names.len() {
        let row = functions.row(name);
        if row.iter().any(|figures| *figures != Figures::default()) {
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
    fn of(&mut self, above: Above, name: u32, level: u32) -> u32 {
        // Levels count down from the largest number; there are never as many as to meet the contexts.
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
        after.processes[0].threads[0].nodes[2].base = 120;
        let diff = diff(&[before], &[after]);
        let b = of_function(&diff, "b");
        assert_eq!((b.base.before, b.base.after), (70.0, 170.0));
        assert_eq!(b.base.noise, None);
        let changed: Vec<&ContextChange> = diff
            .contexts
            .iter()
            .filter(|context| context.change.base.change() != 0.0)
            .collect();
        assert_eq!(changed.len(), 1);
        let parent = diff.contexts[changed[0].parent.unwrap() as usize];
        assert_eq!(diff.names[parent.name as usize].function, "a");
        assert_eq!(diff.whole.base.change(), 100.0);
    }

    #[test]
    fn functions_are_the_same_by_name_when_their_addresses_moved() {
        let before = fixture::chain(&[(MAIN, 1), (A, 10)]);
        let mut after = fixture::chain(&[(MAIN, 1), (A, 10)]);
        after.functions.reverse();
        for node in &mut after.processes[0].threads[0].nodes {
            node.function = 3 - node.function;
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
        assert!(!of_function(&diff, "a").base.is_real());
        let b = of_function(&diff, "b").base;
        assert!(b.is_real());
        assert_eq!(b.change(), 20.0);
        assert!((b.noise.unwrap() - 2.78 * (1.0f64 / 3.0).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn one_run_borrows_the_noise_of_several() {
        let run = |a| fixture::chain(&[(MAIN, 1), (A, a)]);
        let diff = diff(&[run(100), run(102)], &[run(101)]);
        let noise = of_function(&diff, "a").base.noise.unwrap();
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
}
