//! Every export is read by the program that is made for it, and means the same there.

#[path = "consumers/metrics.rs"]
mod metrics;
mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::profile;
use tempfile::TempDir;
use thalweg_analysis::flat;
use thalweg_analysis::{Choice, flow_graph};
use thalweg_formats::graph::{self, Style};
use thalweg_formats::{callgrind, csv, firefox, folded, otlp, parquet, pprof, speedscope};

/// Where `.ci/install` puts what no package manager of the system has.
fn consumers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/consumers")
}

/// Runs a program that must accept what it is given; gives its standard output.
#[track_caller]
fn accepted(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; .ci/install installs it"));
    assert!(
        output.status.success(),
        "{command:?} ended with {}:\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// A file of this name, gone with the directory.
fn written(directory: &TempDir, name: &str, write: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = Vec::new();
    write(&mut bytes);
    let path = directory.path().join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Calls, self and total of each function by name.
fn expected() -> BTreeMap<String, [u64; 3]> {
    let profile = profile();
    let rows = flat(&profile).into_iter();
    rows.map(|row| {
        let name = profile.functions[row.function].name.clone();
        (name, [row.calls, row.self_ns, row.total_ns])
    })
    .collect()
}

fn python(how: &str, file: &Path, more: &[&Path]) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/consumers/read.py");
    let printed = accepted(
        Command::new(consumers().join("venv/bin/python"))
            .arg(script)
            .arg(how)
            .arg(file)
            .args(more),
    );
    serde_json::from_str(&printed).expect("JSON")
}

/// `flat`, `total` and name of each row of `go tool pprof -top`.
fn pprof_top(file: &Path, index: &str, unit: &str) -> BTreeMap<String, [u64; 2]> {
    let printed = accepted(
        Command::new("go")
            .args(["tool", "pprof", "-top", "-nodecount=100", "-nodefraction=0"])
            .arg(format!("-sample_index={index}"))
            .arg(format!("-unit={unit}"))
            .arg(file)
            .env("HOME", file.parent().expect("a directory"))
            .env("PPROF_TMPDIR", file.parent().expect("a directory")),
    );
    let rows = printed
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("flat"))
        .skip(1);
    rows.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| word.trim_end_matches(unit).parse().expect(line);
        (words[5..].join(" "), [number(words[0]), number(words[3])])
    })
    .collect()
}

/// pprof shortens C++ names by itself, to the same beginning.
fn in_pprof(rows: &BTreeMap<String, [u64; 2]>, name: &str) -> Option<[u64; 2]> {
    let start: String = name
        .replace("(anonymous namespace)", "")
        .chars()
        .take_while(|c| !"<;".contains(*c))
        .collect();
    let found = rows.iter().find(|(shown, _)| shown.starts_with(&start));
    found.map(|(_, figures)| *figures)
}

#[test]
fn go_tool_pprof_shows_the_same_times_and_calls() {
    let directory = directory();
    let file = written(&directory, "p.pb.gz", |out| {
        pprof::write(&profile(), out).unwrap();
    });
    let times = pprof_top(&file, "time", "ns");
    let calls = pprof_top(&file, "calls", "ns");
    for (name, [count, self_ns, total_ns]) in expected() {
        let find = |rows: &BTreeMap<String, [u64; 2]>| in_pprof(rows, &name);
        let shown_calls = find(&calls).map(|[own, _]| own);
        assert_eq!(shown_calls, Some(count), "calls of {name}: {calls:?}");
        if total_ns > 0 {
            assert_eq!(
                find(&times),
                Some([self_ns, total_ns]),
                "times of {name}: {times:?}"
            );
        }
    }
}

#[test]
fn callgrind_annotate_shows_the_same_inclusive_and_own_costs() {
    let directory = directory();
    let file = written(&directory, "callgrind.out", |out| {
        callgrind::write(&profile(), out).unwrap();
    });
    for (inclusive, column) in [("no", 1), ("yes", 2)] {
        let annotated = Annotated::of(&file, inclusive, &[]);
        for (name, figures) in expected() {
            if figures[column] == 0 {
                continue;
            }
            assert_eq!(
                annotated.cost(&name),
                figures[column],
                "{inclusive}: {name}"
            );
        }
    }
}

/// What callgrind_annotate prints.
struct Annotated(String);

impl Annotated {
    fn of(file: &Path, inclusive: &str, options: &[&str]) -> Annotated {
        Annotated(accepted(
            Command::new("callgrind_annotate")
                .arg(format!("--inclusive={inclusive}"))
                .args(["--threshold=100", "--auto=no"])
                .args(options)
                .arg(file),
        ))
    }

    /// The first figure of a function's row.
    #[track_caller]
    fn cost(&self, name: &str) -> u64 {
        self.first(&format!(":{name} ["))
    }

    #[track_caller]
    fn first(&self, word: &str) -> u64 {
        let mut lines = self.0.lines();
        let row = lines
            .find(|line| line.contains(word))
            .unwrap_or_else(|| panic!("no {word} in {}", self.0));
        let cost: String = row
            .trim_start()
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == ',')
            .filter(|c| *c != ',')
            .collect();
        cost.parse().expect("a number")
    }
}

#[test]
fn a_flame_graph_is_made_of_folded_stacks() {
    let mut lines = Vec::new();
    folded::write(&profile(), &mut lines).unwrap();
    let text = String::from_utf8(lines).unwrap();
    assert!(
        text.contains("easy;main;hard;work;hard;work 30000\n"),
        "{text}"
    );
    let mut svg = Vec::new();
    let mut options = inferno::flamegraph::Options::default();
    options.count_name = "ns".to_string();
    inferno::flamegraph::from_lines(&mut options, text.lines(), &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let total: u64 = expected().values().map(|[_, self_ns, _]| self_ns).sum();
    let grouped = format!("{},{:03}", total / 1000, total % 1000);
    assert!(
        svg.contains(&format!("all ({grouped} ns, 100%)")),
        "{grouped}"
    );
}

#[test]
fn speedscope_files_keep_to_its_schema() {
    let directory = directory();
    let file = written(&directory, "p.speedscope.json", |out| {
        speedscope::write(&profile(), out).unwrap();
    });
    let schema =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/speedscope-file-format-schema.json");
    let own = python("speedscope", &file, &[&schema]);
    for (name, [_, self_ns, _]) in expected() {
        assert_eq!(own[&name].as_u64().unwrap_or(0), self_ns, "{name}");
    }
}

#[test]
fn duckdb_reads_the_parquet_table_and_python_the_csv() {
    let directory = directory();
    let parquet = written(&directory, "p.parquet", |out| {
        parquet::write(&profile(), out).unwrap();
    });
    let csv = written(&directory, "p.csv", |out| {
        csv::write(&profile(), out).unwrap()
    });
    for (how, file) in [("parquet", parquet), ("csv", csv)] {
        let sums = python(how, &file, &[]);
        for (name, figures) in expected() {
            let read: Vec<u64> = (0..3).map(|i| sums[&name][i].as_u64().unwrap()).collect();
            assert_eq!(read, figures, "{name} in {how}");
        }
    }
}

#[test]
fn opentelemetry_reads_the_otlp_profiles() {
    let directory = directory();
    let file = written(&directory, "p.otlp", |out| {
        otlp::write(&profile(), out).unwrap()
    });
    let sums = python("otlp", &file, &[]);
    for (name, [calls, self_ns, _]) in expected() {
        let read = |kind: &str| sums[format!("{name} {kind}")].as_u64().unwrap_or(0);
        assert_eq!([read("calls"), read("time")], [calls, self_ns], "{name}");
    }
}

/// A session of the Firefox Profiler's command line with one file loaded.
struct Firefox {
    home: PathBuf,
}

impl Firefox {
    fn load(home: &Path, file: &Path) -> Firefox {
        let session = Firefox {
            home: home.to_owned(),
        };
        // It gives its own start half a second, which a busy machine does not; it is there a little
        // later.
        let mut load = session.command(&["load", file.to_str().expect("UTF-8")]);
        let loaded = load.output().expect("node; .ci/install installs it");
        let until = Instant::now() + Duration::from_secs(60);
        while !loaded.status.success() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(500));
            if session
                .command(&["status"])
                .output()
                .is_ok_and(|o| o.status.success())
            {
                break;
            }
        }
        session
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let cli = "node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js";
        let mut command = Command::new("node");
        command
            .arg(consumers().join(cli))
            .args(arguments)
            .args(["--session", "thalweg"])
            .env("PROFILER_CLI_SESSION_DIR", &self.home);
        command
    }
}

impl Drop for Firefox {
    fn drop(&mut self) {
        // A session that is not there cannot be stopped.
        let _ = self.command(&["stop"]).output();
    }
}

#[test]
fn the_firefox_profiler_shows_the_same_total_times() {
    let directory = directory();
    let file = written(&directory, "p.json", |out| {
        firefox::write(&profile(), out).unwrap();
    });
    let session = Firefox::load(directory.path(), &file);
    let printed = accepted(&mut session.command(&["thread", "samples", "--thread", "t-0"]));
    // The first thread only; functions of the second are not there.
    for (name, total) in [("main", "121.76"), ("hard", "120.65"), ("work", "121.60")] {
        let shown = format!("easy!{name} - total: {total}\u{3bc}s");
        assert!(printed.contains(&shown), "no '{shown}' in {printed}");
    }
}

#[test]
fn a_profile_without_times_is_no_firefox_profile() {
    let mut imported = profile();
    imported.meta.duration_ns = 0;
    assert!(firefox::check_times(&imported).is_err());
    assert!(firefox::check_times(&profile()).is_ok());
}

#[test]
fn graphviz_lays_out_the_dot_graph() {
    let directory = directory();
    let profile = profile();
    let river = flow_graph(&profile, &Choice::default());
    let file = written(&directory, "p.dot", |out| {
        graph::dot::write(&profile, &river, &Style::default(), out).unwrap();
    });
    let plain = accepted(Command::new("dot").arg("-Tplain").arg(&file));
    let count = |what: &str| plain.lines().filter(|line| line.starts_with(what)).count();
    assert_eq!(count("node "), river.nodes.len());
    assert_eq!(count("edge "), river.edges.len());
}

#[test]
fn the_svg_is_xml_with_every_name_and_recursion_marked() {
    let directory = directory();
    let profile = profile();
    let river = flow_graph(&profile, &Choice::default());
    let scene = graph::draw(&profile, &river, &Style::default());
    let file = written(&directory, "p.svg", |out| {
        graph::svg::write(&scene, out).unwrap()
    });
    let texts = python("svg", &file, &[]).to_string();
    for name in [
        "START",
        "main",
        "easy",
        "hard",
        "work",
        "(anonymous namespace)::f;g",
    ] {
        assert!(texts.contains(name), "no {name} in {texts}");
    }
    assert!(
        texts.contains("rc=3\""),
        "work calls hard again three times: {texts}"
    );
    assert!(
        texts.contains("rc=40\""),
        "a function calls itself forty times: {texts}"
    );
}
