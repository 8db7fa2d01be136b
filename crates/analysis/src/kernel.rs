//! System calls by their names: from the functions that make them and how often each was called.

use std::collections::HashMap;

use thalweg_model::{Made, Metric, Profile};

use crate::flat::flat;

/// What was asked of the kernel under one name, over all threads and contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCalls {
    /// Of functions whose every call makes several different ones: all of them.
    pub name: String,
    pub calls: u64,
    /// Own time, waiting included, of the functions that made them.
    pub time: u64,
    /// The functions, most calls first.
    pub functions: Vec<u32>,
}

/// All that were counted, most time first.
pub fn system_calls(profile: &Profile) -> Vec<SystemCalls> {
    let mut found: Vec<SystemCalls> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut rows = flat(profile);
    rows.sort_by_key(|row| std::cmp::Reverse(row.metrics.get(Metric::SyscallCalls)));
    for row in rows {
        let calls = row.metrics.get(Metric::SyscallCalls);
        let Some(Made::Each(made)) = made(profile, row.function).filter(|_| calls > 0) else {
            continue;
        };
        let names: Vec<String> = made.iter().map(|call| call.name()).collect();
        let name = names.join(" and ");
        let place = *places.entry(name.clone()).or_insert_with(|| {
            found.push(SystemCalls {
                name,
                calls: 0,
                time: 0,
                functions: Vec::new(),
            });
            found.len() - 1
        });
        let sum = &mut found[place];
        sum.calls = sum.calls.saturating_add(calls);
        let time = row.metrics.get(Metric::SyscallTime);
        sum.time = sum.time.saturating_add(time);
        sum.functions.push(row.function);
    }
    found.sort_by(|a, b| (b.time, b.calls, &a.name).cmp(&(a.time, a.calls, &b.name)));
    found
}

/// Functions that were called and may have made system calls, nobody knows how many; with their calls, most first.
pub fn uncounted_system_calls(profile: &Profile) -> Vec<(u32, u64)> {
    let rows = flat(profile).into_iter();
    let mut found: Vec<(u32, u64)> = rows
        .filter(|row| row.calls > 0)
        .filter(|row| {
            let made = made(profile, row.function);
            matches!(made, Some(Made::Between(..) | Made::Unknown))
        })
        .map(|row| (row.function, row.calls))
        .collect();
    found.sort_by_key(|&(_, calls)| std::cmp::Reverse(calls));
    found
}

/// How a function enters the kernel by itself, if it does.
pub fn made(profile: &Profile, function: u32) -> Option<&Made> {
    let all = &profile.enters_kernel;
    let found = all.binary_search_by_key(&function, |one| one.function);
    found.ok().map(|index| &all[index].made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use thalweg_model::{EntersKernel, SystemCall};

    #[test]
    fn calls_of_several_functions_add_up_under_the_name_and_what_is_not_known_is_named() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5), (A, 20)]);
        let reads = |function| EntersKernel {
            function,
            made: Made::Each(vec![SystemCall {
                number: Some(0),
                times: 1,
            }]),
        };
        profile.enters_kernel = vec![
            EntersKernel {
                function: MAIN,
                made: Made::Between(0, None),
            },
            reads(A),
            reads(B),
        ];
        let metrics = &mut profile.processes[0].threads[0].metrics;
        for (node, calls) in [(1, 3), (2, 7), (3, 1)] {
            metrics.set(node, Metric::SyscallCalls, calls);
            metrics.set(node, Metric::SyscallTime, calls * 100);
        }
        let found = system_calls(&profile);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].name.as_str(), found[0].calls), ("read", 11));
        assert_eq!((found[0].time, &found[0].functions), (1100, &vec![B, A]));
        assert_eq!(uncounted_system_calls(&profile), [(MAIN, 1)]);
    }
}
