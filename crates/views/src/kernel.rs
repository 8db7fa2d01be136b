//! System calls by name, and those that are not counted.

use serde::Serialize;
use thalweg_analysis::{system_calls, system_calls_made, uncounted_system_calls};
use thalweg_model::{Made, Metric, Profile};

use crate::name;

pub fn is_measured(profile: &Profile) -> bool {
    let meta = &profile.meta;
    meta.weighed_by.is_none() && meta.metrics.contains(&Metric::SyscallCalls)
}

#[derive(Serialize)]
pub struct SystemCallOf<'a> {
    pub name: String,
    pub calls: u64,
    pub time_ns: u64,
    /// That made it.
    pub functions: Vec<&'a str>,
}

/// A function of which it depends on the way that a call takes how many system calls it makes.
#[derive(Serialize)]
pub struct UncountedOf<'a> {
    pub name: &'a str,
    pub calls: u64,
    #[serde(skip)]
    pub made: Option<&'a Made>,
}

pub fn by_name(profile: &Profile) -> Vec<SystemCallOf<'_>> {
    let all = system_calls(profile).into_iter();
    all.map(|one| SystemCallOf {
        functions: one.functions.iter().map(|&f| name(profile, f)).collect(),
        name: one.name,
        calls: one.calls,
        time_ns: one.time,
    })
    .collect()
}

pub fn uncounted(profile: &Profile) -> Vec<UncountedOf<'_>> {
    let all = uncounted_system_calls(profile).into_iter();
    all.map(|(function, calls)| UncountedOf {
        name: name(profile, function),
        calls,
        made: system_calls_made(profile, function),
    })
    .collect()
}
