//! Rules are learned from a recording: the next one has the calls that failed in it. Several rules
//! that choose one call all have what they read of it. How long recorded calls took is told as a
//! histogram.

use crate::calls::calls;
use crate::support::build::{Build, Program};
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

#[track_caller]
fn record(file: PathBuf, options: &[&str], program: &Program, arguments: &[&str]) -> PathBuf {
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

#[test]
fn what_an_exception_left_is_recorded_by_the_rules_that_were_learned() {
    let scratch = Scratch::new();
    let program = Build::new("throwing")
        .source("throwing.cpp")
        .compiler("g++")
        .flag("-O2")
        .finish();
    let before = record(scratch.join("before.thalweg"), &[], &program, &["30"]);
    let printed = succeed(&["rules", "learn", path(&before)]);
    assert!(printed.contains("[[rule]]"), "{printed}");
    let rules = scratch.join("learned.toml");
    succeed(&["rules", "learn", path(&before), "-o", path(&rules)]);
    let written = std::fs::read_to_string(&rules).expect("rules");
    assert_eq!(printed, written);
    assert!(
        written.contains("# 10 of 30 calls were left by"),
        "{written}"
    );
    assert!(!written.contains("libstdc++"), "{written}");

    let options = ["--rules", path(&rules)];
    let after = record(scratch.join("after.thalweg"), &options, &program, &["9"]);
    let all = calls(&after);
    let chosen: Vec<&Value> = all.iter().filter(|call| !call["rule"].is_null()).collect();
    let is_risky = |call: &&&Value| {
        call["function"]
            .as_str()
            .is_some_and(|f| f.starts_with("risky"))
    };
    assert_eq!(chosen.iter().filter(is_risky).count(), 3, "{all:#?}");
    assert!(
        chosen.iter().all(|call| call["end"] == "unwound"),
        "{all:#?}"
    );
}

#[test]
fn where_nothing_failed_there_is_nothing_to_learn() {
    let scratch = Scratch::new();
    let program = Build::new("throwing")
        .source("throwing.cpp")
        .compiler("g++")
        .flag("-O2")
        .finish();
    // The third call would be the first that throws.
    let file = record(scratch.join("fine.thalweg"), &[], &program, &["2"]);
    let refused = refuse(&["rules", "learn", path(&file)]);
    assert!(refused.contains("there is nothing to learn"), "{refused}");
    let refused = refuse(&["rules"]);
    assert!(refused.contains("--pid"), "{refused}");
}

#[test]
fn each_recorded_call_is_in_one_bucket_of_its_functions_durations() {
    let scratch = Scratch::new();
    let program = Build::new("recorded")
        .source("recorded.c")
        .flag("-O2")
        .flag("-g")
        .finish();
    let rule = "^query$: duration >= 0ns";
    let file = record(
        scratch.join("p.thalweg"),
        &["--rule", rule],
        &program,
        &["20"],
    );
    let told = succeed(&["calls", path(&file), "--durations", "--json"]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    let query = &told["functions"][0];
    assert_eq!(query["name"], "query", "{told:#}");
    let number = |value: &Value| value.as_u64().expect("a number");
    let buckets = query["buckets"].as_array().expect("buckets");
    let in_buckets: u64 = buckets.iter().map(|bucket| number(&bucket["calls"])).sum();
    let recorded = calls(&file);
    let chosen = recorded.iter().filter(|call| !call["rule"].is_null());
    assert_eq!((in_buckets, number(&query["calls"])), {
        let chosen = chosen.count() as u64;
        (chosen, chosen)
    });
    // Every fifth takes 3 ms.
    let slow = buckets
        .iter()
        .filter(|b| number(&b["from_ns"]) >= 2_000_000);
    let slow: u64 = slow.map(|bucket| number(&bucket["calls"])).sum();
    assert!(slow * 5 >= in_buckets, "{told:#}");
    assert!(number(&query["longest_ns"]) >= 3_000_000, "{told:#}");
    let only = [
        "calls",
        path(&file),
        "--durations",
        "--where",
        "duration >= 2ms",
    ];
    assert!(succeed(&only).contains("query"));
}

#[test]
fn each_of_several_rules_on_a_call_has_what_it_reads_of_it() {
    let scratch = Scratch::new();
    let program = Build::new("recorded")
        .source("recorded.c")
        .flag("-O2")
        .flag("-g")
        .finish();
    // The first is decided when the call begins, the others when it ends; two read the same.
    let rules = [
        "^query$: n > 3; record n; as early",
        "^query$: duration >= 0ns; record sql, ret; as late",
        "^query$: ret < 0; record n, errno; as failed",
    ];
    let mut options = Vec::new();
    for rule in rules {
        options.extend(["--rule", rule]);
    }
    let file = record(scratch.join("p.thalweg"), &options, &program, &["20"]);
    let recorded = calls(&file);
    let chosen = recorded.iter().filter(|call| !call["rule"].is_null());
    let chosen: Vec<&Value> = chosen.collect();
    let ids: std::collections::BTreeSet<u64> = chosen
        .iter()
        .filter_map(|call| call["entry_unix_ns"].as_u64())
        .collect();
    assert_eq!(ids.len(), chosen.len(), "each call once: {recorded:#?}");
    assert!(!chosen.is_empty());
    for call in &chosen {
        assert!(call["entry"]["sql"].is_string(), "{call:#}");
        let ret = call["exit"]["ret"].as_i64().expect("a number");
        // It returns n, or -n. Only a rule that keeps the call has anything read of it.
        let n = ret.unsigned_abs();
        assert_eq!(
            call["entry"]["n"].as_u64(),
            (n > 3).then_some(n),
            "{call:#}"
        );
        let errno = call["exit"]["errno"].as_i64();
        assert_eq!(errno, (ret < 0).then_some(2), "{call:#}");
    }
    assert!(
        chosen.iter().any(|call| call["exit"]["errno"] == 2),
        "{recorded:#?}"
    );
    let told = succeed(&["calls", path(&file), "--list"]);
    assert!(
        told.contains(&format!("{} calls chosen", chosen.len())),
        "{told}"
    );
}
