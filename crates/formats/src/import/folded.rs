//! Folded stacks: `main;parse;read 812`, one per line.

use thalweg_model::{FuncId, Profile};

use super::trees::Trees;
use super::{ImportError, Unit};

pub fn read(text: &str, unit: Unit) -> Result<Profile, ImportError> {
    let mut trees = Trees::new("folded stacks");
    let factor = match unit {
        Unit::Samples | Unit::Nanoseconds => 1,
        Unit::Microseconds => 1_000,
        Unit::Milliseconds => 1_000_000,
    };
    trees.notes.push(match unit {
        Unit::Samples => "imported from folded stacks: times are samples, one shown as 1 ns; calls were not counted".into(),
        _ => "imported from folded stacks: calls were not counted".to_string(),
    });
    let module = trees.module("", "");
    let thread = trees.thread(0, 0, "");
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (stack, weight) = split(line).ok_or_else(|| ImportError::Line {
            line: number,
            what: "not a stack: expected 'function;function count'".to_string(),
        })?;
        let functions: Vec<FuncId> = stack
            .split(';')
            .map(|name| trees.function(module, name, 0, None, 0))
            .collect();
        trees.add(thread, functions, 0, weight.saturating_mul(factor))?;
    }
    trees.finish()
}

/// The stack and its count, or nothing where a line is no such thing.
pub fn split(line: &str) -> Option<(&str, u64)> {
    let (stack, weight) = line.trim().rsplit_once([' ', '\t'])?;
    // Some scripts write fractions.
    let weight = weight.parse().ok().or_else(|| {
        weight
            .parse::<f64>()
            .ok()
            .filter(|w| *w >= 0.0)
            .map(|w| w.round() as u64)
    })?;
    (!stack.trim().is_empty()).then_some((stack.trim_end(), weight))
}
