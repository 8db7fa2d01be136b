//! Stacks that do not just grow and shrink: exceptions, jumps, coroutines and handlers. The program behaves as it does alone, the
//! contexts are the true ones, and a call that ended without a return is counted as such.

use crate::support::build::{Build, Program, run, rust_program};
use crate::support::counts::{Paths, assert_same};
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::scratch::Scratch;
use crate::support::text::compare;
use crate::support::thalweg::{command, export, record, record_with_input, text, thalweg};
use std::collections::BTreeMap;
use std::process::Command;

const QUIET: &[&str] = &["--no-report", "-q"];

fn stdout_alone(program: &Program, arguments: &[&str]) -> String {
    run(Command::new(&program.path).args(arguments))
}

/// Contexts as paths of these functions (parameter lists aside), others left out of them.
fn paths(profile: &Profile, names: &[&str]) -> Paths {
    let mut paths = Paths::new();
    for thread in &profile.threads {
        for node in thread.nodes.iter().filter(|node| node.calls > 0) {
            let path: Vec<String> = profile
                .path(thread, node)
                .iter()
                .map(|name| name.split('(').next().unwrap_or(name).to_owned())
                .collect();
            if path
                .last()
                .is_some_and(|last| names.contains(&last.as_str()))
            {
                let kept = path.into_iter().filter(|n| names.contains(&n.as_str()));
                *paths.entry(kept.collect()).or_default() += node.calls;
            }
        }
    }
    paths
}

/// "main>first 104" and so on.
fn expected(lines: &[&str]) -> Paths {
    let split = |line: &&str| {
        let (path, calls) = line.rsplit_once(' ').expect("path calls");
        let path = path.split('>').map(str::to_owned).collect();
        (path, calls.parse().expect("a count"))
    };
    lines.iter().map(split).collect()
}

fn coroutines() -> Build {
    Build::new("coroutines").source("coroutines.c").flag("-O2")
}

#[test]
fn a_generator_is_called_by_whoever_resumes_it() {
    let names = [
        "first", "second", "nested", "resume", "count_up", "pass_on", "give", "work", "leaf",
        "again",
    ];
    let expected = expected(&[
        "first 104",
        "first>resume 104",
        "first>resume>count_up 2",
        "first>resume>count_up>work 103",
        "first>resume>count_up>work>leaf 206",
        "first>resume>count_up>give 103",
        "second 100",
        "second>work 100",
        "second>work>leaf 200",
        "second>resume 100",
        "second>resume>count_up>work 100",
        "second>resume>count_up>work>leaf 200",
        "second>resume>count_up>give 100",
        "nested 1",
        "nested>resume 201",
        "nested>resume>pass_on 1",
        "nested>resume>pass_on>give 200",
        "nested>resume>pass_on>resume 200",
        "nested>resume>pass_on>resume>count_up 1",
        "nested>resume>pass_on>resume>count_up>work 200",
        "nested>resume>pass_on>resume>count_up>work>leaf 400",
        "nested>resume>pass_on>resume>count_up>give 200",
        "again 1",
        "again>leaf 10",
    ]);
    for (kind, build, options) in [
        ("plain", coroutines(), QUIET),
        (
            "without a clock",
            coroutines(),
            &["--no-report", "-q", "--no-clock"],
        ),
        ("static", coroutines().link_flag("-static"), QUIET),
    ] {
        let program = build.finish();
        let recorded = record(options, &program, &[]);
        assert_eq!(
            String::from_utf8_lossy(&recorded.stdout),
            stdout_alone(&program, &[]),
            "{kind}"
        );
        let found = paths(&recorded.profile, &names);
        assert_same(kind, ("thalweg", &found), ("the program", &expected));
        let unwound = |name| {
            recorded
                .profile
                .nodes_named(name)
                .any(|(_, n)| n.unwound > 0)
        };
        assert!(
            !names.iter().any(|name| unwound(name)),
            "{kind}: a switch is no exit"
        );
    }
}

#[test]
fn time_of_coroutines_is_counted_once_and_not_while_they_wait() {
    let program = coroutines().finish();
    let started = std::time::Instant::now();
    let profile = record(QUIET, &program, &[]).profile;
    let limit = started.elapsed().as_nanos() as u64;
    for thread in &profile.threads {
        let base: u64 = thread.nodes.iter().map(|node| node.base).sum();
        assert!(
            base <= limit,
            "{base} ns of self time in a run of {limit} ns"
        );
        let max = thread.nodes.iter().map(|node| node.max).max();
        assert!(max <= Some(limit), "{max:?} ns in one call, of {limit} ns");
    }
}

#[test]
fn fibers_keep_their_activations_when_they_change_threads() {
    let program = Build::new("migrating")
        .compiler("g++")
        .source("migrating.cpp")
        .flag("-O2")
        .link_flag("-Wl,--no-as-needed")
        .link_flag("-lboost_context")
        .finish();
    let names = [
        "wait_for_turn",
        "even",
        "odd",
        "run_step",
        "body",
        "pause_fiber",
        "step",
        "leaf",
    ];
    let expected = expected(&[
        "wait_for_turn 2",
        "wait_for_turn>even 25",
        "wait_for_turn>even>run_step 500",
        "wait_for_turn>even>run_step>body 20",
        "wait_for_turn>even>run_step>body>step 500",
        "wait_for_turn>even>run_step>body>step>leaf 1000",
        "wait_for_turn>even>run_step>body>pause_fiber 500",
        "wait_for_turn>odd 25",
        "wait_for_turn>odd>run_step 500",
        "wait_for_turn>odd>run_step>body>step 500",
        "wait_for_turn>odd>run_step>body>step>leaf 1000",
        "wait_for_turn>odd>run_step>body>pause_fiber 500",
    ]);
    let recorded = record(QUIET, &program, &[]);
    assert_eq!(
        String::from_utf8_lossy(&recorded.stdout),
        stdout_alone(&program, &[])
    );
    let found = paths(&recorded.profile, &names);
    assert_same("fibers", ("thalweg", &found), ("the program", &expected));
    // Those that were destroyed before their end were unwound.
    let unwound = |name: &str| -> u64 {
        let nodes = recorded.profile.threads.iter().flat_map(|t| &t.nodes);
        nodes
            .filter(|n| {
                recorded.profile.functions[n.function]
                    .name
                    .starts_with(name)
            })
            .map(|n| n.unwound)
            .sum()
    };
    assert_eq!((unwound("body("), unwound("pause_fiber(")), (20, 20));
}

#[test]
fn a_program_that_switches_stacks_all_the_time_survives_attaching_and_detaching() {
    let program = coroutines().finish();
    let alone = stdout_alone(&program, &[]);
    let mut live = Live::ready(&program.path, &["forever"]);
    let before = live.text();
    let scratch = Scratch::new();
    for round in 0..in_short_or_long(4, 100) {
        let file = scratch.join("profile.thalweg");
        let id = live.id();
        let file_name = file.to_str().expect("UTF-8");
        let arguments = [
            "record",
            "--budget",
            "off",
            "-p",
            &id,
            "-d",
            "0.2s",
            "--no-report",
            "-q",
            "-o",
            file_name,
        ];
        // While a handler stands on a probe of the last attach, there is no next one.
        let mut output = thalweg(&arguments);
        for _ in 0..100 {
            if output.status.success() || !text(&output).contains("try again") {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
            output = thalweg(&arguments);
        }
        assert!(output.status.success(), "round {round}: {}", text(&output));
        live.assert_healthy();
        let calls = export(&file).calls_by_name();
        let called = |name: &str| calls.get(name).copied().unwrap_or(0);
        assert!(called("leaf") > 0, "round {round}: {calls:?}");
        assert!(
            called("leaf") >= 2 * called("work") - 2,
            "round {round}: each work calls leaf twice: {calls:?}"
        );
        // Where a handler will return into a probe, the stubs stay until the next attach or detach.
        let (changed, _) = compare(&before, &live.text());
        assert!(changed.is_empty(), "round {round}: {changed:?} differ");
    }
    let (last_words, status) = live.terminate();
    assert!(status.success(), "{status}: {last_words}");
    assert_eq!(last_words, alone);
}

fn unwound() -> Program {
    let library = Build::new("unwound")
        .source("unwound_lib.c")
        .flags(&["-O1", "-fexceptions"]);
    Build::new("unwound")
        .compiler("g++")
        .source("unwound.cpp")
        .flag("-O1")
        .shared(library)
        .finish()
}

/// Calls and calls without a return, by name.
fn left(profile: &Profile) -> BTreeMap<&str, (u64, u64)> {
    let mut left: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for node in profile.threads.iter().flat_map(|t| &t.nodes) {
        let sums = left
            .entry(profile.functions[node.function].name.as_str())
            .or_default();
        sums.0 += node.calls;
        sums.1 += node.unwound;
    }
    left
}

/// The program's own lines: name, entered, returned.
fn counted(stdout: &str) -> Vec<(&str, u64, u64)> {
    let parse = |line| {
        let mut words = str::split_whitespace(line);
        let name = words.next()?;
        let entered = words.next()?.parse().ok()?;
        Some((name, entered, words.next()?.parse().ok()?))
    };
    stdout.lines().filter_map(parse).collect()
}

#[test]
fn calls_that_end_by_an_exception_or_a_jump_are_counted_as_such() {
    let program = unwound();
    for (kind, options, unseen) in [
        ("everything", QUIET, &[][..]),
        // Thrown and caught in code without probes. Nothing more is seen of threads that end there.
        (
            "one module",
            &["--no-report", "-q", "--lib", "^unwound$"],
            &["waits", "ends"],
        ),
        (
            "without the catchers",
            &["--no-report", "-q", "-N", "^catches$|^main$|^jumps$"],
            &["catches", "jumps"],
        ),
    ] {
        let recorded = record(options, &program, &[]);
        let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
        let left = left(&recorded.profile);
        let lines = counted(&stdout);
        assert_eq!(lines.len(), 12, "{kind}: {stdout}");
        for (name, entered, returned) in lines {
            if !unseen.contains(&name) {
                let found = left.get(name).copied().unwrap_or_default();
                assert_eq!(found, (entered, entered - returned), "{kind}: {name}");
            }
        }
        assert_eq!(
            stdout.lines().next(),
            stdout_alone(&program, &[]).lines().next(),
            "{kind}"
        );
    }
}

#[test]
fn panics_that_are_caught_or_end_a_thread_are_exits_without_a_return() {
    for level in ["-Copt-level=0", "-Copt-level=3"] {
        let program = rust_program("panics.rs", &[level]);
        let recorded = record(QUIET, &program, &[]);
        let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
        assert_eq!(stdout, stdout_alone(&program, &[]), "{level}");
        let left = left(&recorded.profile);
        for (name, entered, returned) in counted(&stdout) {
            let found = left.get(name).copied().unwrap_or_default();
            assert_eq!(found, (entered, entered - returned), "{level}: {name}");
        }
    }
}

#[test]
fn programs_that_end_by_an_exception_end_as_they_do_alone() {
    let exceptions = unwound();
    let panics = rust_program("panics.rs", &["-Copt-level=3"]);
    for (program, how) in [
        (&exceptions, "noexcept"),
        (&exceptions, "exit"),
        (&exceptions, "throw"),
        (&exceptions, "destructor"),
        (&panics, "uncaught"),
    ] {
        let alone = Command::new(&program.path)
            .arg(how)
            .output()
            .expect("starts");
        let recorded = record_with_input(QUIET, &program.path, &[how], b"");
        let status = alone.status.code().or_else(|| {
            use std::os::unix::process::ExitStatusExt;
            Some(128 + alone.status.signal()?)
        });
        assert_eq!(recorded.status.code(), status, "{how}");
        assert_eq!(recorded.stdout, alone.stdout, "{how}");
        // Rust names the thread by its number.
        let words = String::from_utf8_lossy(&alone.stderr).into_owned();
        let words = words.lines().last().unwrap_or_default();
        assert!(
            recorded.stderr.contains(words),
            "{how}: {}",
            recorded.stderr
        );
        assert_eq!(
            recorded.profile.calls_by_name().get("main"),
            Some(&1),
            "{how}"
        );
    }
}

#[test]
fn handlers_at_ten_thousand_a_second_are_counted_to_the_unit() {
    let program = Build::simple("signals.c");
    let recorded = record(QUIET, &program, &[]);
    let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let calls = recorded.profile.calls_by_name();
    let mut lines = 0;
    for line in stdout.lines() {
        let (name, count) = line.split_once(' ').expect("name count");
        let count: u64 = count.parse().expect("a count");
        assert_eq!(calls.get(name), Some(&count), "{name}");
        lines += 1;
    }
    assert_eq!(lines, 8, "{stdout}");
}

#[test]
fn a_sanitizer_and_a_profiler_in_the_program_work_on() {
    let source = |name: &str, flag: &str| {
        Build::new(name)
            .compiler("g++")
            .source("exceptions.cpp")
            .flags(&["-O1", flag])
            .finish()
    };
    let plain = source("exceptions", "-g");
    let wanted = left(&record(QUIET, &plain, &[]).profile)
        .into_iter()
        .filter(|(name, _)| name.starts_with("descend(") || name.starts_with("thrower("))
        .map(|(name, sums)| (name.to_owned(), sums))
        .collect::<Vec<_>>();
    assert_eq!(wanted.len(), 2, "{wanted:?}");
    for (name, flag) in [("sanitized", "-fsanitize=address"), ("profiled", "-pg")] {
        let program = source(name, flag);
        let scratch = Scratch::new();
        let file = scratch.join("profile.thalweg");
        let output = command()
            .args(["record", "--no-report", "-q", "-o"])
            .arg(&file)
            .arg("--")
            .arg(&program.path)
            .env("GMON_OUT_PREFIX", scratch.join("gmon"))
            .output()
            .expect("thalweg starts");
        assert!(output.status.success(), "{name}: {}", text(&output));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            stdout_alone(&plain, &[]),
            "{name}"
        );
        let profile = export(&file);
        let found = left(&profile);
        for (function, sums) in &wanted {
            assert_eq!(
                found.get(function.as_str()),
                Some(sums),
                "{name}: {function}"
            );
        }
        if name == "profiled" {
            let written =
                |e: std::fs::DirEntry| e.file_name().to_string_lossy().starts_with("gmon");
            let mut files = std::fs::read_dir(scratch.join("."))
                .expect("readable")
                .flatten();
            assert!(files.any(written), "the program's own profile is written");
        }
    }
}
