//! Every sum holds in what is shown, whatever was cut, folded, combined or pruned before.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed, text};
use serde_json::Value;
use std::path::{Path, PathBuf};

#[track_caller]
fn record_into(scratch: &Scratch, options: &[&str], source: &str, arguments: &[&str]) -> PathBuf {
    let file = scratch.join("profile.thalweg");
    let output = command()
        .args(["record", "--no-report", "-q"])
        .args(options)
        .arg("-o")
        .arg(&file)
        .arg("--")
        .arg(Build::simple(source).path)
        .args(arguments)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file
}

#[track_caller]
fn report(file: &Path, options: &[&str]) -> Value {
    let file = file.to_str().expect("UTF-8");
    let all = [&["report", file, "--json"], options].concat();
    serde_json::from_str(&succeed(&all)).expect("JSON")
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().expect("a list")
}

fn sum(rows: &[Value], name: &str) -> u64 {
    rows.iter().map(|row| number(&row[name])).sum()
}

/// The parents' calls, base and cum are Self's; the children's cum is Self's less its base; the roots have the whole.
#[track_caller]
fn assert_sums(file: &Path, options: &[&str]) {
    let arcs = report(file, &[&["--arcs"], options].concat());
    assert!(!list(&arcs, "stanzas").is_empty());
    for stanza in list(&arcs, "stanzas") {
        for figure in ["calls", "self_ns", "total_ns"] {
            let of_parents = sum(list(stanza, "parents"), figure);
            let own = number(&stanza[figure]);
            assert_eq!(
                of_parents, own,
                "{figure} of {} {options:?}",
                stanza["name"]
            );
        }
        let below = number(&stanza["total_ns"]) - number(&stanza["self_ns"]);
        let of_children = sum(list(stanza, "children"), "total_ns");
        assert_eq!(
            of_children, below,
            "children of {} {options:?}",
            stanza["name"]
        );
        assert_eq!(number(&stanza["not_in_callees"]), 0, "{}", stanza["name"]);
    }
    let tree = report(file, &[&["--tree", "--min-percent", "0"], options].concat());
    let rows: Vec<Value> = list(&tree, "threads")
        .iter()
        .flat_map(|thread| list(thread, "rows").to_vec())
        .collect();
    let roots: Vec<Value> = rows
        .iter()
        .filter(|row| number(&row["level"]) == 0)
        .cloned()
        .collect();
    assert_eq!(
        sum(&roots, "total_ns"),
        sum(&rows, "self_ns"),
        "{options:?}"
    );
}

/// The edges into a function have all of its calls and time.
#[track_caller]
fn assert_edges(file: &Path, options: &[&str]) {
    let graph = report(file, &[&["--graph"], options].concat());
    assert!(!list(&graph, "nodes").is_empty());
    for node in list(&graph, "nodes") {
        let into: Vec<Value> = list(&graph, "edges")
            .iter()
            .filter(|edge| edge["callee"] == node["name"])
            .cloned()
            .collect();
        for figure in ["calls", "total_ns"] {
            let own = number(&node[figure]);
            assert_eq!(sum(&into, figure), own, "{figure} into {node} {options:?}");
        }
    }
}

#[track_caller]
fn assert_all(file: &Path) {
    const PRUNED: [&[&str]; 5] = [
        &[],
        &["--raw"],
        &["--min-coverage", "1"],
        &["--min-time", "100us"],
        &["--min-calls", "100"],
    ];
    for options in PRUNED {
        assert_sums(file, options);
        assert_edges(file, options);
        for edges in [
            ["--min-edge-coverage", "5"],
            ["--min-edge-time", "50us"],
            ["--min-edge-calls", "500"],
        ] {
            assert_edges(file, &[options, &edges].concat());
        }
    }
}

/// Those that were cut or folded are not in nobody's time: `main` has that of all functions that it calls. (What else a
/// process does, before it and after it, is no part of that, however long it takes.)
#[track_caller]
fn assert_main_has_the_whole(file: &Path, called: impl Fn(&str) -> bool) {
    let flat = report(file, &["--flat"]);
    let rows = list(&flat, "functions");
    assert!(
        rows.iter().any(|row| number(&row["folded_calls"]) > 0),
        "no call was folded"
    );
    let name = |row: &Value| row["name"].as_str().expect("a name").to_string();
    let main = rows.iter().find(|row| name(row) == "main");
    let main = number(&main.expect("main")["total_ns"]);
    let own: Vec<Value> = rows
        .iter()
        .filter(|row| called(&name(row)))
        .cloned()
        .collect();
    assert!(own.len() > 2, "the program's own functions");
    let whole = sum(&own, "self_ns");
    // Each figure is rounded by itself.
    assert!(
        main + own.len() as u64 >= whole,
        "main has {main} of {whole} ns"
    );
}

#[test]
fn every_sum_holds_in_trees_that_were_pruned_as_they_grew() {
    let scratch = Scratch::new();
    let limits = ["--memory", "4M", "--prune-at", "1M"];
    let file = record_into(&scratch, &limits, "churn.c", &["20000"]);
    assert_main_has_the_whole(&file, |name| {
        name.starts_with("chain_") || name.starts_with("hot_")
    });
    assert_all(&file);
}

#[test]
fn every_sum_holds_when_several_threads_pruned_theirs_and_were_combined() {
    let scratch = Scratch::new();
    let limits = ["--memory", "4M", "--prune-at", "1M"];
    let file = record_into(&scratch, &limits, "churn.c", &["6000", "3"]);
    assert_all(&file);
    let combined = scratch.join("combined.thalweg");
    let (from, to) = (file.to_str().expect("UTF-8"), combined.to_str());
    succeed(&["merge", "--combine", from, "-o", to.expect("UTF-8")]);
    assert_all(&combined);
    let pruned = scratch.join("pruned.thalweg");
    let to = pruned.to_str().expect("UTF-8");
    succeed(&["merge", "--min-calls", "50", from, "-o", to]);
    assert_all(&pruned);
}

#[test]
fn every_sum_holds_where_contexts_found_no_room() {
    let scratch = Scratch::new();
    let file = record_into(&scratch, &["--memory", "1M"], "contexts.c", &["200000"]);
    assert_main_has_the_whole(&file, |name| name.starts_with("step_"));
    assert_all(&file);
    let file = record_into(&scratch, &["--memory", "1M"], "cut_calls.c", &[]);
    assert_main_has_the_whole(&file, is_cut_calls);
    assert_all(&file);
}

/// An attach counts calls at first, so that times say nothing of where those that found no room were made.
#[test]
fn folded_calls_stand_below_main_though_none_was_timed() {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let mut live = Live::ready(&Build::simple("cut_calls.c").path, &["wait"]);
    succeed(&["attach", "--memory", "1M", &live.id()]);
    live.ask("go");
    succeed(&["detach", "-o", file.to_str().expect("UTF-8"), &live.id()]);
    live.assert_healthy();
    let tree = report(&file, &["--tree", "--min-percent", "0"]);
    let threads = list(&tree, "threads").iter();
    let rows: Vec<&Value> = threads.flat_map(|thread| list(thread, "rows")).collect();
    let folded = rows.iter().position(|row| row["name"] == "[folded]");
    let folded = folded.unwrap_or_else(|| panic!("nothing is folded: {rows:?}"));
    let main = rows.iter().position(|row| row["name"] == "main");
    let main = main.expect("main was on the stack");
    assert!(main < folded && number(&rows[main]["level"]) < number(&rows[folded]["level"]));
    assert_main_has_the_whole(&file, is_cut_calls);
    assert_all(&file);
}

fn is_cut_calls(name: &str) -> bool {
    ["left", "right", "sometimes"].contains(&name)
}
