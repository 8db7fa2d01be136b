//! Other tools' data of real programs, imported, reported, compared and merged by the real binary.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

/// Calls, base and cum by name.
#[track_caller]
fn flat(file: &Path) -> BTreeMap<String, [u64; 3]> {
    let text = succeed(&["report", "--flat", "--json", path(file)]);
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let rows = report["functions"].as_array().expect("functions");
    let mut sums: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for row in rows {
        let sum = sums
            .entry(row["name"].as_str().expect("name").to_owned())
            .or_default();
        for (sum, figure) in sum.iter_mut().zip(["calls", "self_ns", "total_ns"]) {
            *sum += row[figure].as_u64().expect("a number");
        }
    }
    sums
}

#[track_caller]
fn import(scratch: &Scratch, file: &Path, options: &[&str]) -> PathBuf {
    let profile = scratch.join(&format!(
        "{}.thalweg",
        file.file_name().expect("a name").to_string_lossy()
    ));
    let mut arguments = vec!["import", "-q", path(file), "-o", path(&profile)];
    arguments.extend(options);
    succeed(&arguments);
    profile
}

/// What thalweg itself saw of the program.
fn recorded(scratch: &Scratch, program: &Path) -> PathBuf {
    let file = scratch.join("recorded.thalweg");
    let output = command()
        .args(["record", "-q", "--no-report", "-o", path(&file), "--"])
        .arg(program)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file
}

#[test]
fn callgrinds_calls_are_those_that_thalweg_counts() {
    let scratch = Scratch::new();
    let program = Build::simple("recursion.c");
    let out = scratch.join("callgrind.out");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "-q"])
        .arg(format!("--callgrind-out-file={}", path(&out)))
        .arg(&program.path)
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.expect("valgrind starts").success());
    let imported = import(&scratch, &out, &[]);
    let ours = recorded(&scratch, &program.path);

    let (theirs, counted) = (flat(&imported), flat(&ours));
    let own = ["ackermann", "is_even", "is_odd", "parse_sum", "walk_left"];
    for name in own {
        let of = |flat: &BTreeMap<String, [u64; 3]>| {
            // Callgrind gives recursive calls a function of their own: name'2.
            let levels = flat.iter();
            let levels = levels.filter(|(other, _)| other.split('\'').next() == Some(name));
            levels.map(|(_, figures)| figures[0]).sum::<u64>()
        };
        assert_eq!(of(&theirs), of(&counted), "calls of {name}");
    }
    let changed = succeed(&[
        "diff",
        path(&imported),
        path(&ours),
        "--json",
        "--all",
        "-F",
        "^main$",
    ]);
    let changed: Value = serde_json::from_str(&changed).expect("JSON");
    assert_eq!(changed["rows"][0]["calls"]["change"], 0.0, "{changed}");

    let merged = scratch.join("merged");
    succeed(&[
        "merge",
        "-q",
        path(&imported),
        path(&ours),
        "-o",
        path(&merged),
    ]);
    assert_eq!(
        flat(&merged)["main"][0],
        flat(&imported)["main"][0] + flat(&ours)["main"][0]
    );
}

#[test]
fn pprof_brings_back_what_was_exported_after_go_has_read_and_written_it() {
    let scratch = Scratch::new();
    let ours = recorded(&scratch, &Build::simple("recursion.c").path);
    let exported = scratch.join("ours.pb.gz");
    succeed(&[
        "export",
        path(&ours),
        "--format",
        "pprof",
        "-o",
        path(&exported),
    ]);
    let rewritten = Command::new("go")
        .args(["tool", "pprof", "-proto", path(&exported)])
        .env("PPROF_TMPDIR", scratch.join("tmp"))
        .output()
        .expect("go starts");
    assert!(rewritten.status.success(), "{}", text(&rewritten));
    let again = scratch.join("again.pb.gz");
    std::fs::write(&again, rewritten.stdout).expect("a file");
    let imported = import(&scratch, &again, &[]);
    let (before, after) = (flat(&ours), flat(&imported));
    for name in ["fib", "ackermann", "is_even", "main", "walk_right"] {
        assert_eq!(before[name], after[name], "calls, base and cum of {name}");
    }
}

#[test]
fn folded_stacks_bring_back_the_time_of_each_function() {
    let scratch = Scratch::new();
    let ours = recorded(&scratch, &Build::simple("recursion.c").path);
    let folded = scratch.join("stacks.folded");
    succeed(&[
        "export",
        path(&ours),
        "--format",
        "folded",
        "--all",
        "-o",
        path(&folded),
    ]);
    let imported = import(&scratch, &folded, &["--unit", "ns"]);
    let (before, after) = (flat(&ours), flat(&imported));
    for name in ["fib", "ackermann", "main"] {
        assert_eq!(before[name][1..], after[name][1..], "base, cum of {name}");
        assert_eq!(after[name][0], 0, "folded stacks know no calls");
    }
    let report = succeed(&["report", path(&imported)]);
    assert!(report.contains("fib"), "{report}");
}

#[test]
fn perf_script_without_stacks_has_the_functions_that_were_found() {
    let scratch = Scratch::new();
    let text = scratch.join("flat.txt");
    let line = |name: &str| {
        format!(
            "         python3    4242  8231.012345:     250000 cpu-clock:u:      55d0c0de {name}+0x1a (/usr/bin/python3.11)\n"
        )
    };
    std::fs::write(&text, [line("work"), line("cafe"), line("work")].concat()).expect("written");
    let profile = scratch.join("p.thalweg");
    let [text, profile] = [&text, &profile].map(|path| path.to_str().expect("UTF-8"));
    succeed(&["import", "-q", text, "-o", profile]);
    let flat = succeed(&["report", "-i", profile, "--flat", "--json"]);
    let flat: Value = serde_json::from_str(&flat).expect("JSON");
    let rows = flat["functions"].as_array().expect("rows");
    let found = |row: &Value| {
        (
            row["name"].as_str().map(str::to_owned),
            row["self_ns"].as_u64(),
        )
    };
    let found: Vec<_> = rows.iter().map(found).collect();
    let known = |name: &str, ns| (Some(name.to_owned()), Some(ns));
    assert_eq!(found, [known("work", 500_000), known("cafe", 250_000)]);
}

#[test]
fn perf_script_is_charged_by_its_samples() {
    let scratch = Scratch::new();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/data/perf-script.txt");
    let script = std::fs::read_to_string(&file).expect("the script");
    // The innermost function of each sample is the first line below its head.
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for sample in script.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let mut lines = sample.trim_start_matches('\n').lines();
        let head: Vec<&str> = lines.next().expect("a head").split_whitespace().collect();
        let period: u64 = head[3].parse().expect("a period");
        let inner = lines.next().expect("a frame").split_whitespace().nth(1);
        let name = inner.expect("a name").split('+').next().expect("a name");
        *expected.entry(name).or_default() += period;
    }
    assert!(expected["easy"] > 0);
    let imported = import(&scratch, &file, &[]);
    let flat = flat(&imported);
    for (name, time) in &expected {
        assert_eq!(flat[*name][1], *time, "base of {name}");
    }
    let whole: u64 = expected.values().sum();
    assert!(flat["main"][2] <= whole && flat["main"][2] > whole / 2);
    let tree = succeed(&["report", "--tree", path(&imported)]);
    assert!(tree.contains("hard"), "{tree}");
}

#[test]
fn what_is_no_such_file_is_refused() {
    let scratch = Scratch::new();
    let file = scratch.join("text");
    std::fs::write(&file, "nothing that is known\n\0\u{1}").expect("a file");
    let message = refuse(&["import", path(&file), "-o", path(&scratch.join("out"))]);
    assert!(message.contains("text"), "{message}");
    assert!(!scratch.join("out").exists());
}
