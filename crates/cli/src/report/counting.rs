//! What the kernel and the processor counted, in reports: one line for each, and how its figures are written.

use thalweg_model::{Counting, Metric, Profile};

use super::text::{count, counted};

/// The metric's name, and what there is to say of it. A profile that is shown by a metric is about that one.
pub fn lines(profile: &Profile) -> Vec<(&'static str, String)> {
    let meta = &profile.meta;
    let is_shown = |one: &&Counting| meta.weighed_by.is_none_or(|metric| metric == one.metric);
    let all = profile.total_metrics();
    let line = |one: &Counting| (one.metric.name(), line(one, all.get(one.metric)));
    meta.counting.iter().filter(is_shown).map(line).collect()
}

fn line(one: &Counting, total: u64) -> String {
    let mut text = match (one.metric, one.is_exact()) {
        (Metric::Faults, true) => counted(total, "page fault", "page faults"),
        (Metric::Switches, true) => format!(
            "threads left their processor {}",
            counted(total, "time", "times")
        ),
        _ => format!(
            "about {}, by a sample at every {}",
            count(total),
            count(one.period)
        ),
    };
    for (samples, what) in [
        (one.in_probes, "in probes"),
        (one.nobodys, "where nothing is counted"),
    ] {
        if samples > 0 {
            let events = samples.saturating_mul(one.period);
            text.push_str(&format!("; {} {what}, in nobody's figures", count(events)));
        }
    }
    if one.cut_short > 0 {
        let events = one.cut_short.saturating_mul(one.period);
        text.push_str(&format!(
            "; of {} the stack is not known as a whole",
            count(events)
        ));
    }
    text
}

/// A function's own figure. Estimates have a mark.
pub fn figure(profile: &Profile, metric: Metric, value: u64) -> String {
    let counting = profile.meta.counting_of(metric);
    match counting.is_some_and(|one| !one.is_exact()) {
        true => format!("~{}", count(value)),
        false => count(value),
    }
}
