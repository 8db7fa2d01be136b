//! What changed between two sides, most first, with what runs differ by anyway.

use std::cmp::Ordering;

use serde::{Serialize, Serializer};
use thalweg_analysis::{Change, Delta, Diff};

use crate::is_false;

/// What is compared, and which rows are wanted.
pub struct Sides<'a> {
    pub diff: &'a Diff,
    pub timed: bool,
    /// How many runs there are of each.
    pub before: usize,
    pub after: usize,
    /// Rows per calling context instead of per function.
    pub contexts: bool,
    /// Rows that are noise as well, and those that did not change.
    pub all: bool,
    pub limit: Option<usize>,
    /// Of each name in the diff, whether it is wanted.
    pub keeps: Vec<bool>,
}

#[derive(Serialize)]
pub struct Changes<'a> {
    schema: &'static str,
    pub timed: bool,
    pub runs_before: usize,
    pub runs_after: usize,
    pub calls: DeltaOf,
    pub self_ns: DeltaOf,
    pub rows: Vec<RowOf<'a>>,
    pub not_shown: NotShown,
    #[serde(skip)]
    pub contexts: bool,
    /// Whether times have errors, or several runs noise.
    #[serde(skip)]
    pub has_limits: bool,
}

/// A figure of both sides.
#[derive(Clone, Copy)]
pub struct DeltaOf(pub Delta);

impl Serialize for DeltaOf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire {
            before: f64,
            after: f64,
            change: f64,
            noise: Option<f64>,
            /// How far off the difference may be by the errors of both sides.
            #[serde(skip_serializing_if = "is_nothing")]
            error: f64,
            /// More than noise and errors, and not of lower bounds.
            significant: bool,
            #[serde(skip_serializing_if = "is_false")]
            before_at_least: bool,
            #[serde(skip_serializing_if = "is_false")]
            after_at_least: bool,
        }
        let delta = &self.0;
        Wire {
            before: delta.before,
            after: delta.after,
            change: delta.change(),
            noise: delta.noise,
            error: delta.error,
            significant: delta.is_real(),
            before_at_least: delta.at_least[0],
            after_at_least: delta.at_least[1],
        }
        .serialize(serializer)
    }
}

fn is_nothing(value: &f64) -> bool {
    *value == 0.0
}

#[derive(Serialize)]
pub struct RowOf<'a> {
    pub name: &'a str,
    pub module: &'a str,
    /// Of a context, from the outermost function on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Vec<&'a str>>,
    pub calls: DeltaOf,
    pub self_ns: DeltaOf,
    pub total_ns: DeltaOf,
    /// Whether calls or self changed more than that.
    pub significant: bool,
}

#[derive(Clone, Copy, Default, Serialize)]
pub struct NotShown {
    pub beyond_limit: u64,
    pub within_noise: u64,
    pub unchanged: u64,
}

/// A function or context of the diff, by its index.
struct Chosen {
    index: usize,
    name: u32,
    change: Change,
}

impl<'a> Sides<'a> {
    pub fn changes(&self) -> Changes<'a> {
        let (chosen, not_shown) = self.choose();
        let names = &self.diff.names;
        let rows = chosen.iter().map(|row| RowOf {
            name: &names[row.name as usize].function,
            module: &names[row.name as usize].module,
            path: self.contexts.then(|| self.path(row.index)),
            calls: DeltaOf(row.change.calls),
            self_ns: DeltaOf(row.change.self_ns),
            total_ns: DeltaOf(row.change.total_ns),
            significant: self.is_real(&row.change),
        });
        let mut functions = self.diff.functions.iter();
        Changes {
            schema: match self.contexts {
                true => "thalweg.diff.contexts/1",
                false => "thalweg.diff.functions/1",
            },
            timed: self.timed,
            runs_before: self.before,
            runs_after: self.after,
            calls: DeltaOf(self.diff.whole.calls),
            self_ns: DeltaOf(self.diff.whole.self_ns),
            rows: rows.collect(),
            not_shown,
            contexts: self.contexts,
            has_limits: self.before + self.after > 2
                || functions.any(|row| row.change.self_ns.error > 0.0),
        }
    }

    fn is_real(&self, change: &Change) -> bool {
        change.calls.is_real() || (self.timed && change.self_ns.is_real())
    }

    /// Most change of the figure that counts first.
    fn choose(&self) -> (Vec<Chosen>, NotShown) {
        let functions = self.diff.functions.iter().map(|row| (row.name, row.change));
        let contexts = self.diff.contexts.iter().map(|row| (row.name, row.change));
        let all: Vec<(u32, Change)> = match self.contexts {
            true => contexts.collect(),
            false => functions.collect(),
        };
        let mut shown = Vec::new();
        let mut not_shown = NotShown::default();
        for (index, (name, change)) in all.into_iter().enumerate() {
            let moved = change.calls.change() != 0.0 || change.self_ns.change() != 0.0;
            if !self.keeps[name as usize] {
                continue;
            } else if !self.all && !moved {
                not_shown.unchanged += 1;
            } else if !self.all && !self.is_real(&change) {
                not_shown.within_noise += 1;
            } else {
                shown.push(Chosen {
                    index,
                    name,
                    change,
                });
            }
        }
        let calls = |row: &Chosen| row.change.calls.change().abs();
        let size = |row: &Chosen| match self.timed {
            true => row.change.self_ns.change().abs(),
            false => calls(row),
        };
        let by = |a: f64, b: f64| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
        shown.sort_by(|a, b| {
            by(size(a), size(b))
                .then_with(|| by(calls(a), calls(b)))
                .then(a.index.cmp(&b.index))
        });
        if let Some(limit) = self.limit
            && shown.len() > limit
        {
            not_shown.beyond_limit = (shown.len() - limit) as u64;
            shown.truncate(limit);
        }
        (shown, not_shown)
    }

    fn path(&self, context: usize) -> Vec<&'a str> {
        let (names, contexts) = (&self.diff.names, &self.diff.contexts);
        let chain = std::iter::successors(Some(context as u32), |&at| contexts[at as usize].parent);
        let mut path: Vec<&str> = chain
            .map(|at| names[contexts[at as usize].name as usize].function.as_str())
            .collect();
        path.reverse();
        path
    }
}
