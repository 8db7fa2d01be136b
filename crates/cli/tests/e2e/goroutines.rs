//! Go programs: every call counted, goroutines as contexts, and neither the scheduler nor the collector disturbed.

use crate::support::build::targets;
use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::scratch::{self, Scratch};
use crate::support::text::{assert_patched, assert_restored};
use crate::support::thalweg::{export, record_path, record_with_input, succeed};
use crate::support::watched::Recording;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// Compilers are not run at the same time: each uses all processors anyway.
static COMPILER: Mutex<()> = Mutex::new(());

/// The compiler of the system, and one whose functions end otherwise, which `.ci/install` brings.
pub(crate) fn newer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/consumers/venv/bin/go")
}

fn go(compiler: &Path, arguments: &[&str], directory: &Path) {
    let _one = COMPILER
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let output = Command::new(compiler)
        .args(arguments)
        .current_dir(directory)
        .env("GOCACHE", scratch::root().join("go-cache"))
        .env("GO111MODULE", "off")
        .env("GOTOOLCHAIN", "local")
        .output()
        .unwrap_or_else(|e| panic!("{} does not start: {e}", compiler.display()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "go {arguments:?}: {said}");
}

/// `tests/targets/SOURCE`, built.
pub fn program(compiler: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let path = scratch::root().join(format!("go-{name}"));
    let output = path.to_str().expect("UTF-8");
    let mut arguments = vec!["build", "-o", output];
    arguments.extend(flags);
    let (directory, source) = match source.strip_suffix(".go") {
        Some(_) => (targets(), source),
        None => (targets().join(source), "."),
    };
    arguments.push(source);
    go(compiler, &arguments, &directory);
    path
}

fn goroutines(name: &str, flags: &[&str]) -> PathBuf {
    program(Path::new("go"), "goroutines.go", name, flags)
}

/// What the program says that it has called.
fn own_counts(output: &str) -> BTreeMap<String, u64> {
    let lines = output.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .filter(|(name, _)| name.starts_with("main.") || name.starts_with("c_"))
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a count")))
        .collect()
}

/// Every function whose calls the program counts itself has as many, or is listed as skipped with a reason; nearly all have.
#[track_caller]
fn assert_exact(profile: &Profile, output: &str) {
    let own = own_counts(output);
    assert!(own.len() > 3, "the program has not counted: {output}");
    let seen = profile.calls_by_name();
    let mut skipped = 0;
    for (name, calls) in &own {
        if profile.skipped.iter().any(|s| s.name == *name) {
            skipped += 1;
            continue;
        }
        let counted = seen.get(name).copied().unwrap_or(0);
        assert_eq!(counted, *calls, "calls of {name}");
    }
    assert!(
        skipped * 5 <= own.len(),
        "{skipped} of {} skipped",
        own.len()
    );
}

#[track_caller]
fn assert_exact_from_start(program: &Path, options: &[&str]) -> Profile {
    let plain = Command::new(program).arg("20").output().expect("it runs");
    let recorded = record_path(options, program, &["20"]);
    let output = String::from_utf8_lossy(&recorded.stdout);
    assert_eq!(output, String::from_utf8_lossy(&plain.stdout));
    assert_exact(&recorded.profile, &output);
    recorded.profile
}

#[test]
fn go_calls_are_exact_and_goroutines_are_contexts() {
    let profile = assert_exact_from_start(&goroutines("plain", &[]), &[]);
    let mut visits = 0;
    for (thread, node) in profile.nodes_named("main.visit") {
        let path = profile.path(thread, node);
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        let [goroutine, closure, "main.consume", "main.visit"] = names[..] else {
            panic!("visit is called through {path:?}");
        };
        assert!(
            goroutine.starts_with("main.round.func") && closure.starts_with("main.round.func"),
            "{path:?}"
        );
        visits += node.calls;
    }
    assert_eq!(visits, 20 * 4 * 500);
    let unwound = profile.nodes_named("main.throw").map(|(_, n)| n.unwound);
    assert_eq!(
        unwound.sum::<u64>(),
        profile.calls_by_name()["main.throw"],
        "every call of throw ends in a panic"
    );
}

#[test]
fn a_goroutines_time_is_the_kernels_whoever_runs_it_and_waiting_is_no_work() {
    let program = program(Path::new("go"), "gowaits.go", "gowaits", &[]);
    let recorded = record_path(&[], &program, &[]);
    let said = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let truth: u64 = match said.trim().split_once(' ') {
        Some((truth, "<nil>")) => truth.parse().expect("nanoseconds"),
        _ => panic!("{said} {}", recorded.stderr),
    };
    let profile = recorded.profile;
    let of = |name: &str| {
        let nodes = profile.nodes_named(name).map(|(_, node)| node);
        nodes.fold((0, 0), |(cum, elapsed), n| {
            (cum + n.cum, elapsed + n.elapsed)
        })
    };
    for waits in ["main.sleeps", "os.(*Process).wait"] {
        let (cum, elapsed) = of(waits);
        assert!(elapsed > 350_000_000, "{waits}: {elapsed} ns elapsed");
        assert!(cum < elapsed / 4, "{waits}: worked {cum} of {elapsed} ns");
    }
    let (cum, _) = of("main.works");
    assert!(
        cum.abs_diff(truth) < truth / 10,
        "works: {cum} ns, in truth {truth}"
    );
}

#[test]
fn stripped_and_position_independent_go_is_exact() {
    let stripped = goroutines("stripped", &["-ldflags=-s -w"]);
    assert_exact_from_start(&stripped, &[]);
    assert_exact_from_start(&stripped, &["--no-clock"]);
    let pie = goroutines("pie", &["-buildmode=pie"]);
    assert_exact_from_start(&pie, &[]);
}

#[test]
fn go_of_another_version_is_exact() {
    let program = program(&newer(), "goroutines.go", "newer", &["-ldflags=-s -w"]);
    assert_exact_from_start(&program, &[]);
    cycle(&program, 5);
}

#[test]
fn go_and_c_calling_each_other_are_exact() {
    let program = program(Path::new("go"), "cgo", "cgo", &[]);
    let profile = assert_exact_from_start(&program, &[]);
    // Out to C and back to Go, as often as the program does.
    let there_and_back = profile.nodes_named("main.back").any(|(thread, node)| {
        let path = profile.path(thread, node);
        let names: Vec<&str> = path.iter().map(String::as_str).collect();
        names.ends_with(&["c_around", "goBack", "main.back"]) && names.contains(&"main.out")
    });
    assert!(there_and_back);
    assert_exact_from_start(
        &self::program(
            Path::new("go"),
            "cgo",
            "cgo-static",
            &["-ldflags=-linkmode=external -extldflags=-static"],
        ),
        &[],
    );
}

#[test]
fn an_attached_go_program_is_exact_from_then_on() {
    let program = goroutines("attached", &[]);
    let mut live = Live::ready(&program, &["20", "wait"]);
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let recording = Recording::of(&live, &file, &[]);
    let first = live.ask("go");
    let (rest, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{first} {rest}");
    recording.end();
    assert_exact(&export(&file), &rest);
}

/// Attaches to the busy program again and again.
fn cycle(program: &Path, times: u32) {
    let rounds = "2000";
    let mut live = Live::ready(program, &[rounds, "wait"]);
    let before = live.text();
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let path = file.to_str().expect("UTF-8").to_owned();
    succeed(&["attach", "--budget", "off", &live.id()]);
    assert_patched(&before, &live.text());
    live.tell("go");
    for turn in 0..times {
        if turn > 0 {
            succeed(&["attach", "--budget", "off", &live.id()]);
        }
        // The last is the one that is looked at: it must have run, however busy the machine is.
        let pause = if turn + 1 == times {
            500
        } else {
            turn * 7 % 40
        };
        std::thread::sleep(Duration::from_millis(pause.into()));
        succeed(&["detach", &live.id(), "-o", &path]);
        assert_restored(&before, &live.text());
        live.assert_healthy();
    }
    let calls = export(&file).calls_by_name();
    assert!(
        calls.keys().any(|name| name.starts_with("main.")),
        "{calls:?}"
    );
    succeed(&["attach", "--budget", "off", &live.id()]);
    live.assert_healthy();
}

#[test]
fn a_busy_go_program_survives_attaching_again_and_again() {
    cycle(&goroutines("cycled", &[]), 20);
}

/// Go's own tests of what a profiler could break, each a program of its own.
#[test]
fn tests_of_gos_own_pass() {
    let suites = [
        ("container/heap", "."),
        ("sync", "Mutex|RWMutex|WaitGroup|Pool|Once|Cond"),
        ("encoding/json", "Unmarshal|Marshal|Encoder|Decoder"),
        (
            "runtime",
            "^TestStackGrowth|^TestStackMem|^TestPreemption|^TestGoroutineParallelism|^TestChan|^TestCallers|^TestGcDeepNesting",
        ),
    ];
    for (package, which) in suites {
        let path = scratch::root().join(format!("go-test-{}", package.replace('/', "-")));
        let output = path.to_str().expect("UTF-8");
        go(
            Path::new("go"),
            &["test", "-c", "-o", output, package],
            Path::new("/"),
        );
        let arguments = ["-test.short", "-test.run", which];
        let recorded = record_with_input(&[], &path, &arguments, b"");
        let said = String::from_utf8_lossy(&recorded.stdout);
        assert!(
            recorded.status.success() && said.contains("PASS"),
            "{package}: {said}\n{}",
            recorded.stderr
        );
        let counted = recorded.profile.total_calls();
        assert!(counted > 1000, "{package}: only {counted} calls");
    }
}
