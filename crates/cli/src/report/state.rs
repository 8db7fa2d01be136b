//! Functions whose probes were switched while they were counted: what a report says of each, and of all.

use thalweg_analysis::FunctionTotals;
use thalweg_model::{ProbeState, Profile, Switched};

use super::text::{count, counted};

/// What is known of a function that was switched.
pub fn of_function(profile: &Profile, function: u32) -> Option<&Switched> {
    let all = &profile.switched;
    let index = all.binary_search_by_key(&function, |one| one.function);
    index.ok().map(|index| &all[index])
}

/// The share of the recording that a function was off.
pub fn off_share(profile: &Profile, switched: &Switched) -> f64 {
    match profile.meta.duration_ns {
        0 => 0.0,
        whole => (switched.off_ns as f64 / whole as f64).min(1.0),
    }
}

/// `timed`; `timed 1 in 64, 98% est.`: so much of its time is estimated; `off 87%`: for so much of the recording nothing is known; `off 97%, 412
/// samples`: nothing but what these tell; `not patched, 12 samples`.
pub fn of_row(profile: &Profile, row: &FunctionTotals) -> String {
    let switched = of_function(profile, row.function);
    let state = switched.map_or(ProbeState::Timed, |one| one.state);
    let mut text = match switched.is_none() && row.calls == 0 && row.looks > 0 {
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
    if row.looks > 0 {
        text.push_str(&format!(", {}", counted(row.looks, "sample", "samples")));
    }
    text
}

/// One line on samples.
pub fn looks(profile: &Profile) -> Option<String> {
    let sampling = profile.meta.sampling?;
    let rate = match sampling.period_ns {
        0 => 0,
        period => (1e9 / period as f64).round() as u64,
    };
    let mut text = format!(
        "{}, {} a second of processor time",
        counted(sampling.looks, "stack", "stacks"),
        count(rate),
    );
    let functions = profile.looked.iter().filter(|one| one.on_stack > 0).count() as u64;
    if functions > 0 {
        let times = match functions {
            1 => "the times of one function come from them",
            _ => &format!("times of {} functions come from them", count(functions)),
        };
        text.push_str(&format!("; {times}"));
    }
    for (number, what) in [
        (sampling.in_probes, "in probes"),
        (sampling.cut_short, "could not be followed"),
        (sampling.lost, "were lost"),
    ] {
        if number > 0 {
            text.push_str(&format!("; {} {what}", count(number)));
        }
    }
    Some(text)
}

/// One line on all of them.
pub fn summary(profile: &Profile) -> Option<String> {
    if profile.switched.is_empty() {
        return None;
    }
    let number = |state: ProbeState| {
        let all = profile.switched.iter();
        count(all.filter(|one| one.state == state).count() as u64)
    };
    let nodes = profile
        .processes
        .iter()
        .flat_map(|process| &process.threads);
    let nodes = nodes.flat_map(|thread| &thread.nodes);
    let (calls, untimed) = nodes.fold((0u64, 0u64), |sum, node| {
        (
            sum.0.saturating_add(node.calls),
            sum.1.saturating_add(node.untimed),
        )
    });
    let estimated = match untimed {
        0 => String::new(),
        _ => format!(
            "; {:.1}% of the counted calls were not timed: their time is estimated",
            untimed as f64 / calls.max(1) as f64 * 100.0
        ),
    };
    Some(format!(
        "{} functions timed 1 in 64 at the end, {} counted, {} off{estimated}",
        number(ProbeState::Sampled),
        number(ProbeState::Counted),
        number(ProbeState::Off),
    ))
}
