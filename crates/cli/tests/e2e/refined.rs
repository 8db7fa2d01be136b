//! What is refined by names is the same part in every view and export, exports of stacks do not explode, and whoever knows
//! nothing yet is told how to begin.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text, thalweg};
use serde_json::Value;
use std::path::Path;

fn recorded(scratch: &Scratch) -> String {
    let program = Build::simple("shared_time.c");
    let file = scratch.join("p.thalweg");
    let output = command()
        .args(["record", "--time", "all", "-q", "-o"])
        .arg(&file)
        .arg("--")
        .arg(&program.path)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file.to_str().expect("UTF-8").to_owned()
}

fn flat(file: &str, options: &[&str]) -> Vec<Value> {
    let said = succeed(&[&["report", file, "--flat", "--json"], options].concat());
    let said: Value = serde_json::from_str(&said).expect("JSON");
    said["functions"].as_array().expect("functions").clone()
}

fn own(rows: &[Value]) -> u64 {
    rows.iter().filter_map(|row| row["self_ns"].as_u64()).sum()
}

fn of<'a>(rows: &'a [Value], name: &str) -> Option<&'a Value> {
    rows.iter().find(|row| row["name"] == name)
}

#[test]
fn focus_and_ignore_of_a_function_share_all_time_in_reports_and_exports() {
    let scratch = Scratch::new();
    let file = recorded(&scratch);
    let all = flat(&file, &[]);
    let focused = flat(&file, &["--focus", "^D$"]);
    let ignored = flat(&file, &["--ignore", "^D$"]);
    assert_eq!(own(&focused) + own(&ignored), own(&all));
    let total = |rows: &[Value], name| of(rows, name).map(|row| row["total_ns"].clone());
    assert_eq!(total(&focused, "D"), total(&all, "D"));
    assert_eq!(
        total(&focused, "main"),
        total(&all, "D"),
        "what leads there has that time and no more"
    );
    assert!(of(&ignored, "D").is_none());

    let folded = succeed(&["export", &file, "--all", "-f", "folded", "--focus", "^D$"]);
    let stacks: Vec<&str> = folded.lines().collect();
    assert!(!stacks.is_empty());
    for stack in &stacks {
        assert!(stack.contains(";D"), "{stack}");
    }
    let sum: u64 = stacks
        .iter()
        .filter_map(|stack| stack.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    assert_eq!(sum, own(&focused));
}

#[test]
fn what_is_hidden_is_its_callers_and_a_tree_may_begin_anywhere() {
    let scratch = Scratch::new();
    let file = recorded(&scratch);
    let all = flat(&file, &[]);
    let hidden = flat(&file, &["--hide", "^(B|C)$"]);
    assert!(of(&hidden, "B").is_none() && of(&hidden, "C").is_none());
    assert_eq!(own(&hidden), own(&all));
    assert_eq!(
        of(&hidden, "D").map(|d| &d["calls"]),
        of(&all, "D").map(|d| &d["calls"])
    );
    let shown = flat(&file, &["--show-from", "^D$"]);
    assert_eq!(of(&shown, "main"), None);
    let modules = flat(&file, &["--granularity", "module"]);
    let mut names: Vec<&str> = all
        .iter()
        .filter_map(|row| row["module"].as_str())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(modules.len(), names.len());
    assert_eq!(own(&modules), own(&all));
    for (option, pattern) in [("--focus", "("), ("--show-from", "^no_such_function$")] {
        let said = refuse(&["report", &file, option, pattern]);
        assert!(said.contains(option), "{said}");
    }
}

#[test]
fn an_export_of_stacks_leaves_out_what_nobody_can_see_and_says_so() {
    let scratch = Scratch::new();
    let file = recorded(&scratch);
    let export = |options: &[&str]| {
        let output = thalweg(&[&["export", &file, "--format", "folded"], options].concat());
        assert!(output.status.success(), "{}", text(&output));
        let stacks = String::from_utf8(output.stdout).expect("text");
        let sum = |stack: &str| stack.rsplit(' ').next()?.parse::<u64>().ok();
        let sum: u64 = stacks.lines().filter_map(sum).sum();
        (
            stacks,
            sum,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (usual, usual_sum, said) = export(&[]);
    let (all, all_sum, nothing) = export(&["--all"]);
    assert!(usual.lines().count() < all.lines().count());
    assert_eq!(usual_sum, all_sum);
    assert!(usual.contains("[pruned]") && !all.contains("[pruned]"));
    assert!(said.contains("--all"), "{said}");
    assert_eq!(nothing, "");
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    let binary = env!("CARGO_BIN_EXE_thalweg");
    for options in ["probe /bin/ls --json", "cache --json", "cache", "--help"] {
        // The pipe has no reader any more when the first byte is written.
        let script = format!("set -o pipefail; {{ sleep 0.2; {binary} {options}; }} | true");
        let mut shell = crate::support::thalweg::through("bash");
        let output = shell.args(["-c", &script]).output().expect("bash");
        let status = output.status.code();
        assert!(
            status == Some(0),
            "{options}: {status:?}: {}",
            text(&output)
        );
    }
}

#[test]
fn thalweg_alone_says_how_to_begin() {
    let said = succeed::<&str>(&[]);
    for word in ["thalweg record -- ", "thalweg serve", "thalweg help"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(said.lines().all(|line| line.len() <= 80), "{said}");
    let help = succeed(&["--help"]);
    assert!(
        help.contains("completions") && help.contains("man "),
        "{help}"
    );
}

#[test]
fn a_recording_ends_on_one_screen_with_what_comes_next() {
    let scratch = Scratch::new();
    let program = Build::simple("shared_time.c");
    let file = scratch.join("p.thalweg");
    let record = |file: &Path| {
        let output = command()
            .args(["record", "--time", "all", "-o"])
            .arg(file)
            .arg("--")
            .arg(&program.path)
            .output()
            .expect("thalweg starts");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = record(&file);
    assert!(said.lines().count() <= 24, "{said}");
    assert!(said.contains("\n  time       "), "{said}");
    // Each of the commands works as it stands there.
    let next = said.split("Next:\n").nth(1).expect("what comes next");
    let reports: Vec<&str> = next
        .lines()
        .filter(|line| line.contains("thalweg report"))
        .collect();
    assert_eq!(reports.len(), 2, "{said}");
    for line in reports {
        let command = line.trim().split("  ").next().expect("a command");
        let words: Vec<String> = command
            .split(' ')
            .skip(1)
            .map(|word| word.trim_matches('\'').to_owned())
            .collect();
        succeed(&words);
    }
}
