//! Several profiles into one: functions that are the same get one number, processes and threads
//! stay what they are.
//!
//! Nothing is added up here, so that every figure can still be split by process and thread;
//! [`combine`](crate::combine) adds up.

use std::collections::{HashMap, HashSet};

use thalweg_model::{Merger, Profile};

use crate::summary;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error("there is nothing to merge")]
    Nothing,

    #[error(
        "some of the profiles were timed and some only counted (--no-clock): \
         their figures cannot be put together, merge each kind by itself"
    )]
    TimedAndNot,
}

/// Recordings of different runs, each of which has a time of its own: they are laid side by side,
/// all from 0 on.
pub fn merge(mut profiles: Vec<Profile>) -> Result<Profile, MergeError> {
    if profiles.len() < 2 {
        return profiles.pop().ok_or(MergeError::Nothing);
    }
    let count = profiles.len();
    if profiles
        .iter()
        .any(|profile| profile.meta.timed != profiles[0].meta.timed)
    {
        return Err(MergeError::TimedAndNot);
    }
    let mut merger = Merger::default();
    let mut pids = HashSet::new();
    let (mut calls, mut overhead, mut memory_limit) = (0u64, 0.0, 0u64);
    for mut profile in profiles {
        let own = summary(&profile).calls;
        calls = calls.saturating_add(own);
        overhead += profile.meta.overhead_ns_per_call * own as f64;
        memory_limit = memory_limit.saturating_add(profile.meta.memory_limit);
        separate_processes(&mut profile, &mut pids);
        merger.add(profile, 0);
    }
    let mut merged = merger.finish();
    if calls > 0 {
        merged.meta.overhead_ns_per_call = overhead / calls as f64;
    }
    merged.meta.memory_limit = memory_limit;
    merged.notes.push(format!("merged from {count} profiles"));
    Ok(merged)
}

/// Two recordings may have seen the same process number: the later process gets a free one, so that
/// it stays clear whose threads are whose.
fn separate_processes(profile: &mut Profile, taken: &mut HashSet<u32>) {
    let own: HashSet<u32> = profile
        .processes
        .iter()
        .map(|process| process.pid)
        .collect();
    let mut next = taken.iter().max().copied().unwrap_or(0);
    let mut renamed = HashMap::new();
    for &pid in own.intersection(taken) {
        loop {
            next = next.wrapping_add(1);
            if !own.contains(&next) && !taken.contains(&next) {
                break;
            }
        }
        renamed.insert(pid, next);
    }
    let now = |pid: u32| renamed.get(&pid).copied().unwrap_or(pid);
    for process in &mut profile.processes {
        process.pid = now(process.pid);
        process.parent = process.parent.map(now);
        for thread in &mut process.threads {
            // A first thread's number is its process's.
            thread.tid = now(thread.tid);
            if let Some(creator) = &mut thread.created_by {
                creator.pid = now(creator.pid);
                creator.tid = now(creator.tid);
            }
        }
        taken.insert(process.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{flat, threads};
    use thalweg_model::FuncId;

    fn calls_by_name(profile: &Profile) -> Vec<(String, u64, u64)> {
        let mut rows: Vec<(String, u64, u64)> = flat(profile)
            .iter()
            .map(|row| {
                let name = profile.functions[row.function].name.clone();
                (name, row.calls, row.self_ns)
            })
            .collect();
        rows.sort();
        rows
    }

    #[test]
    fn the_same_function_is_one_function_whatever_its_number_was() {
        let first = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5)]);
        let mut second = fixture::chain(&[(MAIN, 2), (B, 20)]);
        second.functions.reverse();
        for node in &mut second.processes[0].threads[0].nodes {
            node.function = FuncId(3 - node.function.0);
        }
        let merged = merge(vec![first, second]).unwrap();
        assert_eq!(merged.functions.len(), 4);
        assert_eq!(
            calls_by_name(&merged),
            [
                ("a".into(), 1, 10),
                ("b".into(), 2, 25),
                ("main".into(), 2, 3)
            ]
        );
        assert_eq!(merged.validate(), Ok(()));
    }

    #[test]
    fn another_build_of_a_module_has_functions_of_its_own() {
        let first = fixture::chain(&[(MAIN, 1)]);
        let mut second = first.clone();
        second.modules[0].build_id = "beef".into();
        let merged = merge(vec![first, second]).unwrap();
        assert_eq!((merged.modules.len(), merged.functions.len()), (2, 8));
    }

    #[test]
    fn processes_of_one_number_stay_apart_and_keep_their_threads() {
        let run = |time| {
            let mut profile = fixture::chain(&[(MAIN, time)]);
            profile.processes[0].pid = 41;
            profile.processes[0].threads[0].tid = 41;
            let mut worker = profile.processes[0].threads[0].clone();
            worker.tid = 42;
            worker.created_by = Some(thalweg_model::Creator {
                pid: 41,
                tid: 41,
                function: Some(MAIN),
            });
            profile.processes[0].threads.push(worker);
            profile
        };
        let merged = merge(vec![run(1), run(10), run(100)]).unwrap();
        let pids: HashSet<u32> = merged.processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids.len(), 3);
        for (process, thread) in threads(&merged) {
            if let Some(creator) = thread.created_by {
                assert_eq!((creator.pid, creator.tid), (process.pid, process.pid));
            } else {
                assert_eq!(thread.tid, process.pid);
            }
        }
        assert_eq!(calls_by_name(&merged), [("main".into(), 6, 222)]);
    }

    #[test]
    fn what_was_timed_is_not_merged_with_what_was_not() {
        let timed = fixture::chain(&[(MAIN, 1)]);
        let mut counted = timed.clone();
        counted.meta.timed = false;
        assert_eq!(merge(vec![timed, counted]), Err(MergeError::TimedAndNot));
        assert_eq!(merge(Vec::new()), Err(MergeError::Nothing));
    }
}
