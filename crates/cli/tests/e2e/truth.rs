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
        assert!(
            error < raw,
            "{name}: {cum} +- {error} of {raw} measured says nothing"
        );
    }
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
