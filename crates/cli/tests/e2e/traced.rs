//! `thalweg trace`: calls of chosen functions in order as they happen, and again from a file.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, refuse, succeed};
use serde_json::Value;

fn program() -> Program {
    Build::new("recorded")
        .source("recorded.c")
        .flag("-O2")
        .flag("-g")
        .finish()
}

/// What is printed behind the thread: the call itself, with its indentation.
fn calls(trace: &str) -> Vec<String> {
    let lines = trace.lines().filter(|line| line.contains(" s  "));
    let column = trace.lines().next().expect("a head").find("Call");
    let column = column.expect("a column of calls");
    lines.map(|line| line[column..].to_string()).collect()
}

#[test]
fn calls_are_told_in_order_with_values_and_again_from_the_file() {
    let scratch = Scratch::new();
    let file = scratch.join("trace.thalweg");
    let path = file.to_str().expect("UTF-8");
    let output = command()
        .args(["trace", "-F", "^query$", "-F", "^serve$", "-o", path, "--"])
        .arg(&program().path)
        .arg("6")
        .output()
        .expect("thalweg starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{said}");
    let told = calls(&said);
    let queries: Vec<&String> = told.iter().filter(|call| call.contains("query(")).collect();
    assert_eq!(queries.len(), 6, "{said}");
    for (line, n) in queries.iter().zip(told_by_the_rules(path)) {
        // Below the one that made it.
        assert!(line.starts_with("  query("), "{line}");
        assert!(line.contains(&format!("n={}", n.0)), "{line} {n:?}");
        assert!(line.ends_with(&format!(" = {}", n.1)), "{line} {n:?}");
    }
    let begun = told.iter().filter(|call| call.ends_with(" {")).count();
    let ended = told.iter().filter(|call| call.starts_with('}')).count();
    assert_eq!((begun, ended), (6, 6), "{said}");
    // Times only grow, line by line.
    let times = said.lines().filter_map(|line| line.split_once(" s  "));
    let times: Vec<f64> = times.filter_map(|(at, _)| at.trim().parse().ok()).collect();
    assert!(times.is_sorted(), "{said}");
    assert!(
        said.contains("--rule '/^query$/; record args, ret'"),
        "{said}"
    );
    let again = succeed(&["replay", path]);
    assert_eq!(calls(&again), told);
}

/// Argument and result of each query, as `calls` has them.
fn told_by_the_rules(path: &str) -> Vec<(i64, i64)> {
    let lines = succeed(&["calls", "-i", path, "--json"]);
    let all = lines.lines().map(|line| {
        let call: Value = serde_json::from_str(line).expect("JSON");
        call
    });
    let queries = all.filter(|call| call["function"] == "query");
    queries
        .map(|call| {
            let number = |at: &str, name: &str| call[at][name].as_i64().expect("a number");
            (number("entry", "n"), number("exit", "ret"))
        })
        .collect()
}

#[test]
fn a_running_process_is_traced_for_so_many_calls_and_let_go() {
    let server = Build::new("requests")
        .source("requests.cpp")
        .compiler("g++")
        .flag("-O1")
        .flag("-g")
        .flag("-pthread")
        .finish();
    let mut live = Live::start(&server.path, &["0"]);
    let trace = |number: &str| {
        let output = command()
            .args(["trace", "-F", "^query", "-n", number, "-p", &live.id()])
            .output()
            .expect("thalweg starts");
        let said = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{said}");
        said
    };
    // It is itself a moment after it was started.
    let maps = format!("/proc/{}/maps", live.id());
    while !std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("r-xp")) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Then it has loaded what it needs.
    trace("1");
    let text = live.text();
    let said = trace("5");
    assert_eq!(calls(&said).len(), 5, "{said}");
    assert_restored(&text, &live.text());
    live.assert_healthy();
}

#[test]
fn a_name_that_no_function_has_is_told_and_nothing_is_started() {
    let said = refuse(&["trace", "-F", "nothing_is_called_so", "--", "/bin/true"]);
    assert!(said.contains("no function"), "{said}");
}
