//! Compensated figures are those of the program without probes.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;

/// How often each loop runs.
const ROUNDS: u64 = 10;

/// Of each `drive_` function, nanoseconds a round.
fn driven(report: &str) -> BTreeMap<String, f64> {
    let report: Value = serde_json::from_str(report).expect("JSON");
    let rows = report["functions"].as_array().expect("rows");
    let driven = rows.iter().filter_map(|row| {
        let name = row["name"].as_str()?.strip_prefix("drive_")?;
        Some((name.to_string(), row["cum"].as_f64()? / ROUNDS as f64))
    });
    driven.collect()
}

#[test]
fn after_a_calibration_figures_are_close_to_those_without_probes() {
    let scratch = Scratch::new();
    let state = scratch.join("state");
    let thalweg = |arguments: &[&str]| -> String {
        let mut command = command();
        command.env("XDG_STATE_HOME", &state).args(arguments);
        let output = command.output().expect("thalweg starts");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let program = Build::simple("sizes.c");
    let path = program.path.to_str().expect("UTF-8");
    let file = scratch.join("sizes.thalweg");
    let file = file.to_str().expect("UTF-8");

    thalweg(&["calibrate"]);
    assert!(thalweg(&["calibrate", "--check"]).contains("a probed call costs"));
    thalweg(&["record", "--no-report", "-q", "-o", file, "--", path]);
    let raw = driven(&thalweg(&["report", "--flat", "--json", "--raw", file]));
    let compensated = driven(&thalweg(&["report", "--flat", "--json", file]));

    let mut truth: BTreeMap<String, f64> = BTreeMap::new();
    for _ in 0..3 {
        let output = Command::new(path).output().expect("it runs");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let (name, time) = line.split_once(' ').expect("two words");
            let time: f64 = time.parse().expect("a number");
            let best = truth.entry(name.into()).or_insert(time);
            *best = best.min(time);
        }
    }
    assert_eq!(truth.len(), 5);
    for (name, truth) in truth {
        let (raw, compensated) = (raw[&name], compensated[&name]);
        println!("{name}: {truth} in truth, {raw} raw, {compensated} compensated");
        let (off, off_raw) = ((compensated - truth).abs(), (raw - truth).abs());
        assert!(compensated < raw, "{name}: something is taken out");
        // A busy machine makes a whole run slower than the truth's best; of what the probes cost little is left.
        assert!(
            off < off_raw / 3.0 || off < truth / 4.0,
            "{name}: {truth} in truth, {raw} raw, {compensated} compensated"
        );
    }
}
