//! Functions whose probes were switched while they were counted: what a report says of all.

use thalweg_model::{ProbeState, Profile};

use super::text::{count, counted};

/// One line on samples.
pub fn samples(profile: &Profile) -> Option<String> {
    let sampling = profile.meta.sampling?;
    let rate = match sampling.period_ns {
        0 => 0,
        period => (1e9 / period as f64).round() as u64,
    };
    let mut text = format!(
        "{}, {} a second of processor time",
        counted(sampling.samples, "stack", "stacks"),
        count(rate),
    );
    let functions = profile
        .sampled
        .iter()
        .filter(|one| one.on_stack > 0)
        .count() as u64;
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
        all.filter(|one| one.state == state).count() as u64
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
        "{} timed 1 in 64 at the end, {} counted, {} off{estimated}",
        counted(number(ProbeState::Sampled), "function", "functions"),
        count(number(ProbeState::Counted)),
        count(number(ProbeState::Off)),
    ))
}
