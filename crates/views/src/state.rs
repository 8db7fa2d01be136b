//! Functions whose probes were switched while they were counted: what is said of each.

use thalweg_analysis::FunctionTotals;
use thalweg_formats::figures::grouped;
use thalweg_model::{FuncId, ProbeState, Profile, Switched};

/// What is known of a function that was switched.
pub fn of_function(profile: &Profile, function: FuncId) -> Option<&Switched> {
    let all = &profile.switched;
    let index = all.binary_search_by_key(&function, |one| one.function);
    index.ok().map(|index| &all[index])
}

/// The share of the recording that a function was off.
fn off_share(profile: &Profile, switched: &Switched) -> f64 {
    match profile.meta.duration_ns {
        0 => 0.0,
        whole => (switched.off_ns as f64 / whole as f64).min(1.0),
    }
}

/// | text | meaning |
/// |---|---|
/// | `timed` | |
/// | `timed 1 in 64, 98% est.` | so much of its time is estimated |
/// | `off 87%` | for so much of the recording nothing is known |
/// | `off 97%, 412 samples` | nothing but what these tell |
/// | `not patched, 12 samples` | |
pub fn text(profile: &Profile, row: &FunctionTotals) -> String {
    let switched = of_function(profile, row.function);
    let state = switched.map_or(ProbeState::Timed, |one| one.state);
    let mut text = match switched.is_none() && row.calls == 0 && row.samples > 0 {
        true => "not patched".to_owned(),
        false => state.name().to_owned(),
    };
    let off = switched.map_or(0.0, |one| off_share(profile, one));
    if off > 0.0 {
        let word = if state == ProbeState::Off {
            ""
        } else {
            ", off"
        };
        text.push_str(&format!("{word} {:.0}%", (off * 100.0).max(1.0)));
    }
    if row.untimed > 0 {
        let share = row.untimed as f64 / row.calls.max(1) as f64;
        let word = match row.untimed < row.calls {
            true => "est.",
            false => "untimed",
        };
        let share = match share {
            share if share < 0.005 => "<1".to_string(),
            share => format!("{:.0}", share * 100.0),
        };
        text.push_str(&format!(", {share}% {word}"));
    }
    match row.samples {
        0 => {}
        1 => text.push_str(", 1 sample"),
        samples => text.push_str(&format!(", {} samples", grouped(samples))),
    }
    text
}
