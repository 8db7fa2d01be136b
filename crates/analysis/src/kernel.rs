//! System calls by their names: from the functions that make them and how often each was called, or
//! what was counted in each.

use std::collections::HashMap;

use thalweg_model::{FuncId, Made, Metric, Profile, SystemCall};

use crate::flat::flat;

/// What was asked of the kernel under one name, over all threads and contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCalls {
    /// Of functions whose every call makes several different ones: all of them.
    pub name: String,
    pub calls: u64,
    /// Own time, waiting included, of the functions that made them; of one that made several kinds
    /// its part by their numbers.
    pub time: u64,
    /// The functions, most calls first.
    pub functions: Vec<FuncId>,
}

/// Numbers from this on are counted together.
const OTHER_SYSTEM_CALLS: u32 = 511;

/// All that were counted, most time first.
pub fn system_calls(profile: &Profile) -> Vec<SystemCalls> {
    let mut found: Vec<SystemCalls> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut add = |name: String, function: FuncId, calls: u64, time: u64| {
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
        sum.time = sum.time.saturating_add(time);
        sum.functions.push(function);
    };
    let mut rows = flat(profile);
    rows.sort_by_key(|row| std::cmp::Reverse(row.metrics.get(Metric::SyscallCalls)));
    for row in rows {
        let calls = row.metrics.get(Metric::SyscallCalls);
        let time = row.metrics.get(Metric::SyscallTime);
        match made(profile, row.function).filter(|_| calls > 0) {
            Some(Made::Each(made)) => {
                let names: Vec<String> = made.iter().map(SystemCall::name).collect();
                add(names.join(" and "), row.function, calls, time);
            }
            Some(Made::Counted(by_number)) => {
                let known = by_number.iter().map(|&(number, calls)| {
                    let number = Some(number).filter(|number| *number < OTHER_SYSTEM_CALLS);
                    let name = match number {
                        None => format!("(number {OTHER_SYSTEM_CALLS} or more)"),
                        Some(_) => SystemCall { number, times: 1 }.name(),
                    };
                    (name, calls)
                });
                let known: Vec<(String, u64)> = known.collect();
                let sum = known
                    .iter()
                    .fold(0, |sum: u64, one| sum.saturating_add(one.1));
                if sum != calls && known.len() > 1 {
                    // A part of the profile: which of them are in it is not known.
                    let names: Vec<String> = known.into_iter().map(|one| one.0).collect();
                    add(names.join(" or "), row.function, calls, time);
                    continue;
                }
                for (name, of_name) in known {
                    let of_name = of_name.min(calls);
                    let part = u128::from(time) * u128::from(of_name) / u128::from(calls);
                    add(name, row.function, of_name, part as u64);
                }
            }
            _ => {}
        }
    }
    found.sort_by(|a, b| (b.time, b.calls, &a.name).cmp(&(a.time, a.calls, &b.name)));
    found
}

/// Functions that were called and may have made system calls, nobody knows how many; with their
/// calls, most first.
pub fn uncounted_system_calls(profile: &Profile) -> Vec<(FuncId, u64)> {
    let rows = flat(profile).into_iter();
    let mut found: Vec<(FuncId, u64)> = rows
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
pub fn made(profile: &Profile, function: FuncId) -> Option<&Made> {
    let all = &profile.enters_kernel;
    let found = all.binary_search_by_key(&function, |one| one.function);
    found.ok().map(|index| &all[index].made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use thalweg_model::EntersKernel;

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
