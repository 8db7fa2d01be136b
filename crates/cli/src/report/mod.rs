//! A profile as text for people.
//!
//! End of the way of the data: profile -> analysis -> views, which choose the rows -> here.

mod arcs;
mod callers_callees;
mod calls;
mod context;
mod counting;
mod diff;
mod durations;
mod flat;
mod graph;
mod held;
mod kernel;
mod output;
mod overview;
mod processes;
mod sites;
mod state;
mod stays;
mod style;
mod summary;
mod table;
mod text;
mod threads;
mod tree;

use anyhow::bail;
use thalweg_instrument::filter::{BadPattern, Filter};
use thalweg_model::{FuncId, Function, Profile};
use thalweg_views::Selection;

pub use arcs::{DEFAULT_MIN_ARC_PERCENT, print_arcs};
pub use callers_callees::print_callers_callees;
pub use calls::{List, print_call, print_call_tree};
pub use context::{print_context, wanted};
pub use diff::print_diff;
pub use durations::print_durations;
pub use flat::{Columns, Field, print_flat};
pub use graph::print_graph;
pub use output::OutputArgs;
pub use overview::print_overview;
pub use stays::print_stays;
pub use style::{Paint, Style};
pub use summary::{HOTTEST_FUNCTIONS, print_end, print_summary_of};
pub use table::{Align, Cell, Table};
pub use text::{
    Weights, at_least, bytes, command_line, count, counted, cut, printable, printable_lines, share,
    time, time_inline,
};
pub use threads::print_threads;
pub use tree::print_tree;

/// A tree of a real program has more contexts than anyone reads; leaves out the light ones unless
/// told otherwise.
pub fn prune_for_reading(selection: &mut Selection) {
    if selection.limit.is_none() {
        selection
            .min_percent
            .get_or_insert(tree::DEFAULT_MIN_PERCENT);
    }
}

/// Of each function whether the filter keeps it; `None` where it keeps all.
pub fn kept_functions(profile: &Profile, filter: &Filter) -> Option<Vec<bool>> {
    let keeps = |function: &Function| {
        let module = &profile.modules[function.module as usize];
        filter.keeps_function(&function.name, None) && filter.keeps_module(&module.name)
    };
    (!filter.is_empty()).then(|| profile.functions.iter().map(keeps).collect())
}

/// The functions that were seen and match `pattern`: those of exactly this name, else those whose name
/// matches it as a regular expression, most self time first. `option`: where the pattern was given.
pub fn functions_matching(
    profile: &Profile,
    option: &'static str,
    pattern: &str,
) -> anyhow::Result<Vec<FuncId>> {
    let mut seen = thalweg_analysis::flat(profile);
    seen.sort_by_key(|row| std::cmp::Reverse((row.self_ns, row.calls)));
    let name = |function: FuncId| profile.functions[function].name.as_str();
    let named = |test: &dyn Fn(&str) -> bool| -> Vec<FuncId> {
        let functions = seen.iter().map(|row| row.function);
        functions.filter(|&function| test(name(function))).collect()
    };
    let mut found = named(&|name| name == pattern);
    if found.is_empty() {
        let filter = Filter::new(&[pattern.to_string()], &[], &[], &[])
            .map_err(|error| BadPattern { option, ..error })?;
        found = named(&|name| filter.keeps_function(name, None));
    }
    if found.is_empty() {
        bail!(
            "no function that was seen is called '{}' or matches it: 'thalweg report --flat' lists them",
            text::printable(pattern)
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
