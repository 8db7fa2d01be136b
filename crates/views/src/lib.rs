//! The rows of every report, made once: what text, JSON, the terminal's screen and the page render.
//!
//! ```text
//! profile -> analysis (pipeline, figures) -> here: chosen, ordered rows -> cli: text, or JSON
//! ```
//!
//! A view is a struct whose fields are the report's JSON, named as the contract names them. What
//! only text needs beside them is skipped by serde.
#![forbid(unsafe_code)]

pub mod arcs;
pub mod callers_callees;
pub mod context;
pub mod diff;
pub mod durations;
pub mod flat;
pub mod graph;
mod json;
pub mod kernel;
mod names;
pub mod overview;
pub mod processes;
mod selection;
pub mod sites;
pub mod state;
pub mod stays;
pub mod summary;
pub mod threads;
pub mod tree;

pub use json::write_json;
pub use names::{command_line, printable, printable_lines};
pub use selection::{LeftOut, Selection, SelectionError, SortKey};

use thalweg_model::{FuncId, Profile};

fn name(profile: &Profile, function: FuncId) -> &str {
    &profile.functions[function].name
}

fn module(profile: &Profile, function: FuncId) -> &str {
    let module = profile.functions[function].module;
    &profile.modules[module as usize].name
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}
