//! Views for scripts: the same rows as the text, every figure whole, times in nanoseconds.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use thalweg_model::Metric;

/// Writes a view as one line. Of a profile that is weighed by a metric, figures lose the unit in
/// their names, and those that are times only are left out.
pub fn write_json(
    weighed_by: Option<Metric>,
    view: &impl Serialize,
    out: &mut impl Write,
) -> io::Result<()> {
    match weighed_by {
        None => serde_json::to_writer(&mut *out, view)?,
        Some(_) => {
            let mut view = serde_json::to_value(view)?;
            for (name, without) in [("time_ns", "whole"), ("time_error_ns", "whole_error")] {
                if let Some(figure) = view.as_object_mut().and_then(|all| all.remove(name)) {
                    view[without] = figure;
                }
            }
            name_without_unit(&mut view);
            serde_json::to_writer(&mut *out, &view)?;
        }
    }
    writeln!(out)
}

/// What a metric takes the place of, and its name then; empty where it has none.
const WEIGHED: [(&str, &str); 8] = [
    ("self_ns", "self"),
    ("self_error_ns", "self_error"),
    ("total_ns", "total"),
    ("total_error_ns", "total_error"),
    ("wall_ns", ""),
    ("waiting_ns", ""),
    ("min_ns", ""),
    ("max_ns", ""),
];

fn name_without_unit(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(name_without_unit),
        Value::Object(fields) => {
            for (name, without) in WEIGHED {
                if let Some(figure) = fields.remove(name)
                    && !without.is_empty()
                {
                    fields.insert(without.into(), figure);
                }
            }
            fields.values_mut().for_each(name_without_unit);
        }
        _ => {}
    }
}
