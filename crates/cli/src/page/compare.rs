//! What changed since another profile, function by function; functions are numbered as in the profile that is shown.

use std::collections::HashMap;

use serde::Serialize;
use thalweg_analysis::{Delta, Diff};
use thalweg_model::Profile;

#[derive(Serialize)]
pub struct Changes<'a> {
    calls: [f64; 2],
    base: [f64; 2],
    rows: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    /// `null` when only the earlier profile has it.
    function: Option<u32>,
    name: &'a str,
    module: &'a str,
    /// Before and after.
    calls: [f64; 2],
    base: [f64; 2],
    cum: [f64; 2],
}

pub fn answer<'a>(profile: &'a Profile, diff: &'a Diff) -> Changes<'a> {
    let numbers: HashMap<(&str, &str), u32> = (0..)
        .zip(&profile.functions)
        .map(|(number, function)| {
            let module = profile.modules[function.module as usize].name.as_str();
            ((module, function.name.as_str()), number)
        })
        .collect();
    let both = |delta: &Delta| [delta.before, delta.after];
    Changes {
        calls: both(&diff.whole.calls),
        base: both(&diff.whole.base),
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
                    base: both(&row.change.base),
                    cum: both(&row.change.cum),
                }
            })
            .collect(),
    }
}
