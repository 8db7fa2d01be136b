//! Recorded calls in all ways in which a call can be made and left, compared with the program's own log, to the unit: who, with what, what came of it, in
//! which process and thread.

use crate::support::build::{Build, Program};
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed, text};
use serde_json::Value;
use std::collections::BTreeMap;

fn program() -> Program {
    Build::new("logged")
        .source("logged.c")
        .flag("-O2")
        .flag("-g")
        .finish()
}

/// Of one piece of work: who did it, its number, its result, and the process and thread in which that was.
type Work = (String, i64, i64, u64, u64);

struct Ran {
    /// As the program says.
    log: Vec<Work>,
    calls: Vec<Value>,
}

#[track_caller]
fn record(way: &str, options: &[&str]) -> Ran {
    let scratch = Scratch::new();
    let file = &scratch.word("calls.thalweg");
    let output = command()
        .args(["record", "-q", "--no-report", "-o", file])
        .args(options)
        .arg("--")
        .arg(&program().path)
        .arg(way)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    let log = String::from_utf8(output.stdout).expect("text");
    let log = log.lines().map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse().expect("a number");
        let who = fields[0].to_owned();
        (
            who,
            number(1),
            number(2),
            number(3) as u64,
            number(4) as u64,
        )
    });
    let mut log: Vec<Work> = log.collect();
    log.sort();
    let lines = succeed(&["calls", "-i", file, "--json"]);
    let calls = lines.lines();
    let calls = calls.map(|line| serde_json::from_str(line).expect("JSON"));
    Ran {
        log,
        calls: calls.collect(),
    }
}

impl Ran {
    fn chosen(&self) -> impl Iterator<Item = &Value> {
        self.calls.iter().filter(|call| !call["rule"].is_null())
    }

    /// What was recorded of `job`, as the log has it.
    fn work(&self) -> Vec<Work> {
        let of = |call: &Value| {
            let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{call:#}"));
            let id = |name: &str| call[name].as_u64().unwrap_or_else(|| panic!("{call:#}"));
            let who = call["entry"]["who"].as_str().expect("a text").to_owned();
            let n = number(&call["entry"]["n"]);
            let result = number(&call["exit"]["ret"]);
            (who, n, result, id("pid"), id("tid"))
        };
        let mut work: Vec<Work> = self.chosen().map(of).collect();
        work.sort();
        work
    }

    /// The functions above each chosen call, from the caller outwards, and how often.
    fn callers(&self) -> BTreeMap<Vec<&str>, usize> {
        let name = |call: &'_ Value| call["function"].as_str().map(str::to_owned);
        let by_id: BTreeMap<u64, &Value> = self
            .calls
            .iter()
            .map(|call| (call["id"].as_u64().expect("an id"), call))
            .collect();
        let mut all = BTreeMap::new();
        for call in self.chosen() {
            assert!(name(call).is_some());
            let mut chain = Vec::new();
            let mut at = call;
            while let Some(parent) = at["parent"].as_u64() {
                at = by_id[&parent];
                chain.push(at["function"].as_str().expect("a name"));
            }
            *all.entry(chain).or_default() += 1;
        }
        all
    }

    /// Functions and how their calls ended, and how often.
    fn ends(&self, function: &str) -> BTreeMap<&str, usize> {
        let mut ends = BTreeMap::new();
        for call in self.calls.iter().filter(|c| c["function"] == function) {
            *ends
                .entry(call["end"].as_str().expect("a word"))
                .or_default() += 1;
        }
        ends
    }
}

const FIFTH: [&str; 2] = ["--rule", "^job$: n % 5 == 0; record who, n, ret"];
const EACH: [&str; 2] = ["--rule", "^job$; record who, n, ret"];

/// Every fifth is what the log says, and so is every single one.
#[track_caller]
fn work_is_as_logged(way: &str, count: usize) -> Ran {
    let some = record(way, &FIFTH);
    let fifth = some.log.iter().filter(|work| work.1 % 5 == 0);
    let fifth: Vec<Work> = fifth.cloned().collect();
    assert_eq!(some.work(), fifth, "{way}");
    let all = record(way, &EACH);
    assert!(all.log.len() >= count, "{way}: {}", all.log.len());
    assert_eq!(all.work(), all.log, "{way}");
    all
}

#[test]
fn threads_that_come_and_go_have_all_their_calls() {
    work_is_as_logged("threads", 960);
}

#[test]
fn fork_children_have_their_calls_and_the_parent_its_own() {
    let ran = work_is_as_logged("fork", 120);
    let mut processes: Vec<u64> = ran.chosen().filter_map(|c| c["pid"].as_u64()).collect();
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes.len(), 5);
}

#[test]
fn signal_handlers_have_their_calls_below_what_they_interrupt() {
    // Dense enough that some come while what was read of an interrupted call is being written down.
    let ran = work_is_as_logged("signals", 3_020);
    let handled = ran.log.iter().filter(|work| work.0 == "handler").count();
    let callers = ran.callers();
    let below: usize = callers
        .iter()
        .filter(|(chain, _)| chain.first() == Some(&"on_signal"))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(below, handled, "{callers:#?}");
}

#[test]
fn jumps_from_function_to_function_are_callers_and_end_with_what_they_jumped_to() {
    let ran = work_is_as_logged("tail", 40);
    let callers = ran.callers();
    let count = |jumps: &[&str]| {
        let those = callers.iter().filter(|(chain, _)| chain.starts_with(jumps));
        those.map(|(_, count)| count).sum::<usize>()
    };
    assert_eq!(count(&["third", "second", "first"]), 20, "{callers:#?}");
    assert_eq!(count(&["third", "first"]), 20, "{callers:#?}");
    assert_eq!(ran.ends("first"), [("returned", 40)].into());
}

#[test]
fn what_a_longjmp_leaves_is_unwound_and_what_it_skips_is_not_lost() {
    let ran = work_is_as_logged("jumps", 40);
    let expected = [("returned", 30), ("unwound", 10)].into();
    assert_eq!(ran.ends("deeper"), expected);
    assert_eq!(ran.ends("guarded"), [("returned", 40)].into());
}

#[test]
fn calls_in_coroutines_are_there_and_those_that_are_suspended_in_pieces() {
    let ran = work_is_as_logged("coroutines", 60);
    // Each step is left once, in the middle; its callers are those of whoever resumed it.
    let expected = [("returned", 30), ("suspended", 30)].into();
    assert_eq!(ran.ends("step"), expected, "{:#?}", ran.calls);
    // What the beginning decides is kept with the first piece, what the end decides with the last.
    let begun = record("coroutines", &["--rule", "^step$: n >= 10; record who, n"]);
    let first: Vec<&str> = begun.chosen().filter_map(|c| c["end"].as_str()).collect();
    assert_eq!(first, ["suspended"; 15]);
    let mut begun: Vec<(&str, i64)> = begun
        .chosen()
        .filter_map(|c| Some((c["entry"]["who"].as_str()?, c["entry"]["n"].as_i64()?)))
        .collect();
    begun.sort_unstable();
    let all = ["blue", "green", "red"].into_iter();
    let all = all.flat_map(|who| (10..20).step_by(2).map(move |n| (who, n)));
    assert_eq!(begun, all.collect::<Vec<_>>());
    let ended = record("coroutines", &["--rule", "^step$: ret > 60; record ret"]);
    let last: Vec<&str> = ended.chosen().filter_map(|c| c["end"].as_str()).collect();
    let mut results: Vec<i64> = ended
        .chosen()
        .filter_map(|c| c["exit"]["ret"].as_i64())
        .collect();
    results.sort_unstable();
    // 3 n + 1 and 3 (n + 1) + 1, for n = 10, 12, .. 18, of three coroutines each.
    let expected = (10..20).step_by(2).flat_map(|n| [6 * n + 5; 3]);
    assert_eq!(results, expected.collect::<Vec<i64>>());
    assert_eq!(last, ["returned"; 15]);
}
