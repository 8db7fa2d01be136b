//! A profile as text for people, or as a small JSON object for scripts.
//!
//! End of the way of the data: profile -> analysis -> here. Each report first chooses its rows, then prints them; the
//! choice (`Rows`) is the same for text and JSON.

mod flat;
mod json;
mod style;
mod summary;
mod text;
mod tree;

use anyhow::bail;
use clap::ValueEnum;
use thalweg_control::filter::Filter;
use thalweg_model::Profile;

pub use flat::print_flat;
pub use json::{print_flat_json, print_summary_json, print_tree_json};
pub use style::Style;
pub use summary::{HOTTEST_FUNCTIONS, print_summary, print_summary_of};
pub use text::{bytes, count};
pub use tree::print_tree;

/// By what the rows of a report are ordered.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    Base,
    Cum,
    Calls,
    Min,
    Max,
    Name,
}

/// Which rows a report shows, and in which order.
#[derive(Clone, Debug)]
pub struct Selection {
    pub sort: SortKey,
    pub limit: Option<usize>,
    /// Of the tree only: the least share of the whole that a context must have.
    pub min_percent: Option<f64>,
    pub filter: Filter,
}

impl Selection {
    /// Times cannot order what was not timed: without a wish it is `default`, or calls after `--no-clock`.
    pub fn new(
        profile: &Profile,
        sort: Option<SortKey>,
        default: SortKey,
    ) -> anyhow::Result<Selection> {
        let timed = profile.meta.timed;
        let sort = match sort {
            None if timed => default,
            None => SortKey::Calls,
            Some(key @ (SortKey::Calls | SortKey::Name)) => key,
            Some(key) if timed => key,
            Some(_) => {
                bail!(
                    "this profile was recorded with --no-clock and has no times: sort it by calls or name"
                )
            }
        };
        Ok(Selection {
            sort,
            limit: None,
            min_percent: None,
            filter: Filter::default(),
        })
    }

    /// A tree of a real program has more contexts than anyone reads; leaves out the light ones unless told otherwise.
    pub fn prune_for_reading(&mut self) {
        if self.limit.is_none() {
            self.min_percent.get_or_insert(tree::DEFAULT_MIN_PERCENT);
        }
    }
}

/// What a report does not show, so that no row is missing silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    pub rows: u64,
    pub calls: u64,
    pub base: u64,
}

impl LeftOut {
    fn add(&mut self, calls: u64, base: u64) {
        self.rows += 1;
        self.calls = self.calls.saturating_add(calls);
        self.base = self.base.saturating_add(base);
    }
}

#[cfg(test)]
mod tests;
