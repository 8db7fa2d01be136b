//! Compensated figures are those of the program without probes, as far as they say so themselves.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// How often each loop runs.
const ROUNDS: f64 = 10.0;
/// Recordings and runs without probes, by turns: on a busy machine the quickest ones can be compared.
const RUNS: usize = 4;

fn run(state: &Path, arguments: &[&str]) -> Output {
    let mut command = command();
    command.env("XDG_STATE_HOME", state).args(arguments);
    let output = command.output().expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    output
}

fn json(state: &Path, arguments: &[&str]) -> Value {
    serde_json::from_slice(&run(state, arguments).stdout).expect("JSON")
}

/// Nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Figures {
    base: f64,
    cum: f64,
    cum_error: f64,
}

/// Of each function.
fn figures(report: &Value) -> BTreeMap<String, Figures> {
    let rows = report["functions"].as_array().expect("rows").iter();
    rows.map(|row| {
        let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
        let figures = Figures {
            base: number("self_ns"),
            cum: number("total_ns"),
            cum_error: number("total_error_ns"),
        };
        (row["name"].as_str().expect("a name").into(), figures)
    })
    .collect()
}

#[test]
fn after_a_calibration_figures_are_those_without_probes_within_their_error() {
    let scratch = Scratch::new();
    let state = scratch.join("state");
    let program = Build::simple("sizes.c");
    let path = program.path.to_str().expect("UTF-8");
    let file = &scratch.word("sizes.thalweg");

    run(&state, &["calibrate"]);
    let check = run(&state, &["calibrate", "--check"]);
    assert!(text(&check).contains("a probed call costs"));

    // By the clock alone nothing is made larger.
    let alone = [
        "record",
        "--time",
        "all",
        "--samples",
        "0",
        "--no-report",
        "-q",
        "-o",
        file,
        "--",
        path,
    ];
    run(&state, &alone);
    let report = ["report", "--flat", "--json", file];
    let compensated = figures(&json(&state, &report));
    for (name, raw) in figures(&json(&state, &[&report[..], &["--raw"]].concat())) {
        let compensated = compensated[&name];
        let is_less = compensated.base <= raw.base && compensated.cum <= raw.cum;
        assert!(is_less, "{name}: {compensated:?}, {raw:?} raw");
    }

    let mut truth: BTreeMap<String, f64> = BTreeMap::new();
    let mut best: BTreeMap<String, (f64, Figures)> = BTreeMap::new();
    for _ in 0..RUNS {
        let output = Command::new(path).output().expect("it runs");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let (name, time) = line.split_once(' ').expect("two words");
            let time: f64 = time.parse().expect("a number");
            let best = truth.entry(name.into()).or_insert(time);
            *best = best.min(time);
        }
        run(
            &state,
            &["record", "--no-report", "-q", "-o", file, "--", path],
        );
        let compensated = figures(&json(&state, &report));
        let raw = figures(&json(&state, &[&report[..], &["--raw"]].concat()));
        let summary = json(&state, &["report", "--json", file]);

        // What holds always: the whole is the sum of its parts.
        for (name, raw) in &raw {
            let compensated = compensated[name];
            assert!(
                compensated.base <= compensated.cum,
                "{name}: {compensated:?}"
            );
            assert_eq!(raw.cum_error, 0.0, "what was measured is no estimate");
        }
        let whole: f64 = compensated.values().map(|figures| figures.base).sum();
        assert_eq!(summary["time_ns"].as_f64(), Some(whole));
        let error = summary["time_error_ns"]
            .as_f64()
            .expect("how far off it may be");
        assert!(error > 0.0 && error < whole, "{whole} +- {error}");

        for (name, raw) in raw {
            let Some(name) = name.strip_prefix("drive_") else {
                continue;
            };
            let found = (raw.cum, compensated[&format!("drive_{name}")]);
            let best = best.entry(name.into()).or_insert(found);
            if found.0 < best.0 {
                *best = found;
            }
        }
    }
    assert_eq!(truth.len(), 5);
    let mut says_something = false;
    for (name, truth) in truth {
        let (raw, compensated) = best[&name];
        let (raw, cum, error) = (
            raw / ROUNDS,
            compensated.cum / ROUNDS,
            compensated.cum_error / ROUNDS,
        );
        println!("{name}: {truth} in truth, {raw} raw, {cum} +- {error} compensated");
        // The truth is the best of ten rounds, a recording all of them: on a busy machine those take longer.
        let busy = raw * 0.1;
        // An error is two deviations, which one figure in twenty exceeds: the benchmark counts how many do. A verdict takes 4.5.
        assert!(
            (cum - truth).abs() <= error * 4.5 / 2.0 + busy,
            "{name}: {truth} in truth, {raw} raw, {cum} +- {error} compensated"
        );
        says_something |= error < raw;
    }
    // A calibration that was made on a busy machine widens the errors, of short functions beyond what was measured.
    assert!(says_something, "every error is larger than its figure");
}

/// Calls of easy() and hard(), which takes three times as long, and each of which waits for the one before. Probes are done
/// meanwhile, so that of 5 ns samples see half: the error says so. From 20 ns on the ratio is what it is.
#[test]
fn what_takes_three_times_as_long_is_within_its_error() {
    let scratch = Scratch::new();
    let state = scratch.join("state");
    let pairs = Build::simple("pairs.c");
    let path = pairs.path.to_str().expect("UTF-8");
    let file = &scratch.word("pairs.thalweg");
    run(&state, &["calibrate"]);
    // Some 5, 20, 100 and 1,000 ns.
    for (steps, calls) in [
        ("4", "15000000"),
        ("16", "5000000"),
        ("80", "1000000"),
        ("800", "100000"),
    ] {
        let record = [
            "record",
            "--samples",
            "1999",
            "--no-report",
            "-q",
            "-o",
            file,
            "--",
            path,
            steps,
            calls,
        ];
        run(&state, &record);
        let own = Command::new(path).arg(steps).output().expect("it runs");
        let own = String::from_utf8_lossy(&own.stdout).into_owned();
        let report = json(&state, &["report", "--flat", "--json", file]);
        let calls: f64 = calls.parse().expect("a number");
        let mut seen = Vec::new();
        for (name, truth) in ["easy", "hard"].into_iter().zip(own.split_whitespace()) {
            let truth: f64 = truth.parse().expect("a number");
            let rows = report["functions"].as_array().expect("rows");
            let row = rows.iter().find(|row| row["name"] == name).expect(name);
            let each = |key: &str| row[key].as_f64().unwrap_or(0.0) / calls;
            let (is, error) = (each("self_ns"), each("self_error_ns"));
            println!("{name}: {truth} in truth, {is} +- {error}");
            assert!(
                (is - truth).abs() <= error * 4.5 / 2.0,
                "{name}: {truth} in truth, {is} +- {error}"
            );
            assert!(error < 2.0 * truth, "{name}: {is} +- {error} says nothing");
            seen.push((truth, is, error, row["samples"].as_f64().unwrap_or(0.0)));
        }
        let [easy, hard] = seen[..] else {
            panic!("{own}")
        };
        let (truth, ratio) = (hard.0 / easy.0, hard.1 / easy.1);
        let error = ratio * (easy.2 / easy.1).hypot(hard.2 / hard.1);
        // What so many samples may be off by, but for one run in some ten thousand.
        let chance = 4.0 * (1.0 / easy.3.max(1.0) + 1.0 / hard.3.max(1.0)).sqrt();
        let is_close = (ratio / truth - 1.0).abs() <= 0.15 + chance;
        let is_within = (ratio - truth).abs() <= error * 4.5 / 2.0;
        println!("{truth} times as long in truth, {ratio} +- {error}");
        assert!(
            is_close || is_within,
            "{truth} times as long in truth, {ratio} +- {error}, of which {chance} by chance"
        );
    }
}

/// What one recording says of a function, nanoseconds.
struct Said {
    own: f64,
    error: f64,
}

/// An error is a property of the measurement: it is about the same in each of six runs of one
/// program, what the runs differ by is within it, and their comparisons show no change.
#[track_caller]
fn assert_six_runs_agree(program: &str, arguments: &[&str], input: &str) {
    const RUNS: usize = 6;
    let scratch = Scratch::new();
    let state = scratch.join("state");
    run(&state, &["calibrate"]);
    let script = scratch.word("input");
    std::fs::write(&script, input).expect("a file");
    let files: Vec<String> = (0..RUNS)
        .map(|number| {
            let file = scratch.word(&format!("{number}.thalweg"));
            let record = [
                "record",
                "--samples",
                "1999",
                "--no-report",
                "-q",
                "-o",
                &file,
                "--",
            ];
            let mut record_it = command();
            let input = std::fs::File::open(&script).expect("it was written");
            record_it
                .env("XDG_STATE_HOME", &state)
                .args(record)
                .stdin(input);
            let output = record_it.arg(program).args(arguments).output();
            let output = output.expect("thalweg starts");
            assert!(output.status.success(), "{}", text(&output));
            file
        })
        .collect();

    let mut functions: BTreeMap<String, Vec<Said>> = BTreeMap::new();
    let mut whole = 0.0;
    for file in &files {
        let report = json(&state, &["report", "--flat", "--json", file]);
        for row in report["functions"].as_array().expect("rows") {
            let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
            let said = Said {
                own: number("self_ns"),
                error: number("self_error_ns"),
            };
            whole += said.own / RUNS as f64;
            let name = format!("{} {}", row["module"], row["name"]);
            functions.entry(name).or_default().push(said);
        }
    }
    let mean = |runs: &[Said]| runs.iter().map(|said| said.own).sum::<f64>() / RUNS as f64;
    let hot = functions
        .iter()
        .filter(|(_, runs)| mean(runs) > 0.05 * whole);
    let mut seen = 0;
    for (name, runs) in hot {
        seen += 1;
        assert_eq!(runs.len(), RUNS, "{name}");
        let said: Vec<String> = runs
            .iter()
            .map(|said| format!("{:.2} +- {:.2}", said.own / 1e6, said.error / 1e6))
            .collect();
        println!("{name}: {}", said.join(", "));
        for (number, one) in runs.iter().enumerate() {
            for other in &runs[..number] {
                // Two deviations each; a verdict takes 4.5.
                let error = one.error.hypot(other.error) * 4.5 / 2.0;
                assert!((one.own - other.own).abs() <= error, "{name}: {said:?}");
            }
        }
        let least = runs
            .iter()
            .map(|said| said.error)
            .fold(f64::INFINITY, f64::min);
        let most = runs.iter().map(|said| said.error).fold(0.0, f64::max);
        assert!(
            least > 0.0 && most <= 3.0 * least,
            "errors of {name}: {said:?}"
        );
    }
    assert!(seen > 0, "no function has a twentieth of the time");

    let (mut rows, mut changed) = (0u32, Vec::new());
    for (number, before) in files.iter().enumerate() {
        for after in &files[number + 1..] {
            let diff = json(&state, &["diff", before, after, "--all", "--json"]);
            for row in diff["rows"].as_array().expect("rows") {
                let own = &row["self_ns"];
                rows += u32::from(own["before"] != 0.0 || own["after"] != 0.0);
                if own["significant"] == true {
                    changed.push(row.to_string());
                }
            }
        }
    }
    // One in twenty by chance, if every figure were as far off as it may be.
    println!("{} of {rows} rows changed", changed.len());
    assert!(changed.len() * 20 <= rows as usize, "{changed:#?}");
}

#[test]
fn six_runs_of_lua_differ_by_no_more_than_their_errors() {
    let work = include_str!("../../../../tests/targets/real/work.lua");
    assert_six_runs_agree("lua5.4", &["-", "60"], work);
}

#[test]
fn six_runs_of_sqlite_differ_by_no_more_than_their_errors() {
    let work = include_str!("../../../../tests/targets/real/work.sql");
    assert_six_runs_agree("sqlite3", &[":memory:"], &work.repeat(4));
}

#[test]
fn the_first_recording_calibrates_and_the_next_one_uses_it() {
    let scratch = Scratch::new();
    let state = scratch.join("state");
    let file = scratch.join("true.thalweg");
    let record = |options: &[&str]| {
        let mut command = command();
        command
            .env_remove("THALWEG_NO_CALIBRATE")
            .env("XDG_STATE_HOME", &state)
            .args(["record", "-o"])
            .arg(&file)
            .args(options)
            .args(["--", "/bin/true"]);
        let output = command.output().expect("thalweg starts");
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    let kept = state.join("thalweg/calibration.json");

    assert!(!record(&["--no-calibrate"]).contains("measuring once"));
    assert!(!record(&["--no-clock"]).contains("measuring once"));
    assert!(!kept.exists(), "nobody wanted one");
    let first = record(&[]);
    assert!(first.contains("measuring once"), "{first}");
    assert!(first.contains("taken out"), "{first}");
    assert!(kept.exists());
    let second = record(&[]);
    assert!(!second.contains("measuring once"), "{second}");
    assert!(second.contains("taken out"), "{second}");
    std::fs::write(&kept, "{}").expect("it can be written");
    assert!(
        record(&[]).contains("measuring once"),
        "not one that makes no sense"
    );
}
