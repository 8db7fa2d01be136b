//! Calls that rules choose: recorded with their callers, their times and their values, and nothing else is; a rule that makes no sense is
//! refused before the target is touched.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Of its queries every fifth takes 3 ms, nearly all of which it waits.
fn program() -> Program {
    Build::new("recorded")
        .source("recorded.c")
        .flag("-O2")
        .flag("-g")
        .finish()
}

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

#[track_caller]
fn record(scratch: &Scratch, options: &[&str], program: &Program, arguments: &[&str]) -> PathBuf {
    let file = scratch.join("calls.thalweg");
    let output = command()
        .args(["record", "-q", "--no-report", "-o", path(&file)])
        .args(options)
        .arg("--")
        .arg(&program.path)
        .args(arguments)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file
}

/// The recorded calls, one object each.
#[track_caller]
fn calls(file: &Path) -> Vec<Value> {
    let lines = succeed(&["calls", "-i", path(file), "--json"]);
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn name(call: &Value) -> &str {
    call["function"].as_str().expect("a name")
}

fn number(call: &Value, field: &str) -> u64 {
    call[field].as_u64().expect("a number")
}

/// The functions of a call's callers, from it on outwards.
fn chain(calls: &[Value], call: &Value) -> Vec<String> {
    let mut chain = vec![name(call).to_string()];
    let mut at = call;
    while let Some(parent) = at["parent"].as_u64() {
        let found = calls.iter().find(|other| other["id"] == parent);
        at = found.expect("a parent is among the calls");
        chain.push(name(at).to_string());
    }
    chain
}

#[test]
fn slow_calls_are_recorded_with_all_their_callers_and_nothing_else_is() {
    let scratch = Scratch::new();
    let rule = "^query$: duration > 2ms";
    let file = record(&scratch, &["--rule", rule], &program(), &["20"]);
    let calls = calls(&file);
    let chosen: Vec<&Value> = calls
        .iter()
        .filter(|call| !call["rule"].is_null())
        .collect();
    assert_eq!(chosen.len(), 4, "{calls:#?}");
    for call in &chosen {
        assert_eq!((name(call), call["rule"].as_str()), ("query", Some(rule)));
        let chain = chain(&calls, call);
        assert_eq!(chain[..3], ["query", "work", "serve"]);
        assert!(chain.contains(&"main".to_string()), "{chain:?}");
        assert!(number(call, "total_ns") >= 3_000_000);
        assert!(number(call, "waited_ns") >= 2_000_000, "{call:#}");
        assert!(number(call, "self_ns") < 2_000_000, "{call:#}");
        let took = number(call, "exit_unix_ns") - number(call, "entry_unix_ns");
        assert_eq!(took, number(call, "total_ns"));
    }
    // Callers are there once for all that they made, and nobody else is there.
    let count = |function: &str| calls.iter().filter(|call| name(call) == function).count();
    assert_eq!((count("main"), count("work"), count("serve")), (1, 4, 4));
    assert_eq!((count("leaf"), count("small"), count("scale")), (0, 0, 0));
    for call in &calls {
        let Some(parent) = call["parent"].as_u64() else {
            continue;
        };
        let parent = calls.iter().find(|other| other["id"] == parent).unwrap();
        assert!(number(parent, "entry_unix_ns") <= number(call, "entry_unix_ns"));
        // Those outside of main are still running.
        let end = |call: &Value| call["exit_unix_ns"].as_u64().unwrap_or(u64::MAX);
        assert!(end(parent) >= end(call), "{parent:#} {call:#}");
    }
}

#[test]
fn a_call_that_was_left_by_a_longjmp_says_so_and_its_callers_are_whole() {
    let scratch = Scratch::new();
    let file = record(
        &scratch,
        &["--rule", "give_up: duration > 0ns"],
        &program(),
        &["22"],
    );
    let calls = calls(&file);
    let of = |function: &str, end: &str| {
        let those = calls.iter().filter(|call| name(call) == function);
        those.filter(|call| call["end"] == end).count()
    };
    assert_eq!(
        (of("give_up", "returned"), of("give_up", "unwound")),
        (20, 2)
    );
    assert_eq!((of("work", "returned"), of("work", "unwound")), (20, 2));
    assert_eq!(of("serve", "returned"), 22);
    assert_eq!(of("main", "returned"), 1);
}

#[test]
fn requests_are_trees_of_their_own_and_those_that_kept_nothing_leave_nothing() {
    let scratch = Scratch::new();
    let options = ["--rule", "^query$: duration > 2ms", "--root", "^serve$"];
    let file = record(&scratch, &options, &program(), &["20"]);
    let calls = calls(&file);
    let roots: Vec<&Value> = calls
        .iter()
        .filter(|call| call["parent"].is_null())
        .collect();
    assert_eq!(roots.len(), 4, "{calls:#?}");
    for root in roots {
        assert_eq!(name(root), "serve");
        let request = number(root, "request");
        let members = calls.iter().filter(|call| call["request"] == request);
        let members: Vec<&str> = members.map(name).collect();
        assert_eq!(members, ["serve", "work", "query"]);
        // Each serves one request: the fifth, the tenth and so on.
        assert_eq!(request % 5, 0, "{request}");
    }
}

#[test]
fn what_is_recorded_is_there_while_the_target_runs_and_when_it_is_detached() {
    let program = program();
    let live = Live::start(&program.path, &["1000000"]);
    let pid = live.id();
    succeed(&["attach", "-q", &pid, "--rule", "^query$: duration > 2ms"]);
    let patience = Instant::now() + Duration::from_secs(20);
    let shown = loop {
        let shown = succeed(&["calls", "-p", &pid, "--list"]);
        if shown.contains("  query") {
            break shown;
        }
        assert!(Instant::now() < patience, "{shown}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!shown.contains("leaf"), "{shown}");
    let scratch = Scratch::new();
    let file = scratch.join("detached.thalweg");
    succeed(&["detach", "-q", &pid, "-o", path(&file)]);
    let calls = calls(&file);
    assert!(calls.iter().any(|call| name(call) == "query"));
    assert!(
        calls
            .iter()
            .any(|call| name(call) == "main" && call["end"] == "open")
    );
}

#[test]
fn rules_that_make_no_sense_are_refused_before_anything_is_touched() {
    let program = program();
    let rule = |rule: &str| refuse(&["record", "--rule", rule, "--", path(&program.path), "1"]);
    assert!(rule("no_such_function: duration > 1ms").contains("no_such_function"));
    assert!(rule("query: duration > 1parsec").contains("parsec"));
}

#[test]
fn the_trace_has_true_times_and_can_be_loaded() {
    let scratch = Scratch::new();
    let file = record(
        &scratch,
        &["--rule", "^query$: duration > 2ms"],
        &program(),
        &["10"],
    );
    let trace = scratch.join("trace.json");
    succeed(&["calls", "-i", path(&file), "--trace", path(&trace)]);
    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let query = events
        .iter()
        .find(|event| event["name"] == "query")
        .unwrap();
    assert_eq!(query["ph"], "X");
    assert!(query["dur"].as_f64().unwrap() >= 3000.0);
    let main = events.iter().find(|event| event["name"] == "main").unwrap();
    assert!(main["ts"].as_f64() <= query["ts"].as_f64());
}
