//! What changed since another profile, function by function; functions are numbered as in the profile that is shown.

use std::collections::HashMap;

use serde::Serialize;
use thalweg_analysis::{Delta, Diff};
use thalweg_model::{FuncId, Profile};

#[derive(Serialize)]
pub struct Changes<'a> {
    calls: [f64; 2],
    #[serde(rename = "self")]
    own: [f64; 2],
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    /// `null` when only the earlier profile has it.
    function: Option<FuncId>,
    name: &'a str,
    module: &'a str,
    /// Before and after.
    calls: [f64; 2],
    #[serde(rename = "self")]
    own: [f64; 2],
    total: [f64; 2],
    /// How far off the differences of self and total may be.
    self_error: f64,
    total_error: f64,
    /// Whether the difference is a change: more than the errors, and not of lower bounds.
    calls_changed: bool,
    self_changed: bool,
    total_changed: bool,
    /// Before and after, where there may have been more calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls_at_least: Option<[bool; 2]>,
}

pub fn response<'a>(profile: &'a Profile, diff: &'a Diff) -> Changes<'a> {
    let numbers: HashMap<(&str, &str), FuncId> = (0..)
        .zip(&profile.functions)
        .map(|(number, function)| {
            let module = profile.modules[function.module as usize].name.as_str();
            ((module, function.name.as_str()), FuncId(number))
        })
        .collect();
    let both = |delta: &Delta| [delta.before, delta.after];
    Changes {
        calls: both(&diff.whole.calls),
        own: both(&diff.whole.self_ns),
        rows: diff
            .functions
            .iter()
            .map(|row| {
                let name = &diff.names[row.name as usize];
                let key = (name.module.as_str(), name.function.as_str());
                Row {
                    function: numbers.get(&key).copied(),
                    name: &name.function,
                    module: &name.module,
                    calls: both(&row.change.calls),
                    own: both(&row.change.self_ns),
                    total: both(&row.change.total_ns),
                    self_error: row.change.self_ns.limit(),
                    total_error: row.change.total_ns.limit(),
                    calls_changed: row.change.calls.is_real(),
                    self_changed: row.change.self_ns.is_real(),
                    total_changed: row.change.total_ns.is_real(),
                    calls_at_least: Some(row.change.calls.at_least)
                        .filter(|bounds| bounds.contains(&true)),
                }
            })
            .collect(),
    }
}
