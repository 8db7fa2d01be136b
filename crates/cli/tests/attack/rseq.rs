//! Restartable sequences: per-CPU counters whose sum tells whether a sequence was ever torn.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{Recorded, record, refuse, succeed};
use std::time::Duration;

/// Each of eight threads: the sequences are interrupted some hundred times in that.
const INCREMENTS: &str = "2000000";

/// Nothing else need be analysed beside eight busy threads.
const OWN: &str = "--lib=^rseq_counters";

fn build() -> Build {
    Build::new("rseq_counters")
        .source("rseq_counters.c")
        .source("rseq_bump.S")
        .flags(&["-O2", "-rdynamic"])
}

fn library() -> Program {
    Build::new("librseq_bump.so")
        .source("rseq_bump.S")
        .flags(&["-fPIC", "-shared"])
        .finish()
}

#[track_caller]
fn assert_kept(run: &Recorded, kind: &str) {
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(said.contains(" lost 0\n"), "{kind}: {said}");
    let name = format!("bump_{kind}");
    let mut skipped = run.profile.skipped.iter();
    let reason = skipped
        .find(|s| s.name == name)
        .map_or("", |s| s.reason.as_str());
    assert!(
        reason.contains("restartable sequence"),
        "{name}: {reason:?}"
    );
    // Samples may have found it.
    let mut nodes = run.profile.nodes_named(&name);
    assert!(nodes.all(|(_, node)| node.calls == 0), "{name} is counted");
}

#[test]
fn no_increment_of_a_per_cpu_counter_is_lost() {
    let program = build().finish();
    for kind in ["section", "data", "made"] {
        let run = record(&["-q", "--no-report"], &program, &[kind, INCREMENTS]);
        assert_kept(&run, kind);
    }
    let fixed = build().flags(&["-no-pie", "-fno-pie"]).finish();
    for program in [build().stripped().finish(), fixed] {
        let run = record(&["-q", "--no-report"], &program, &["data", INCREMENTS]);
        assert_kept(&run, "data");
    }
}

#[test]
fn nor_one_of_a_library_that_is_loaded_later() {
    let library = library();
    let library = library.path.to_str().expect("UTF-8");
    let program = build().finish();
    for kind in ["section", "data", "made"] {
        let arguments = [kind, INCREMENTS, library];
        let run = record(&["-q", "--no-report"], &program, &arguments);
        assert_kept(&run, kind);
    }
}

/// Threads are stopped in the middle of sequences, and one is borrowed for system calls there.
#[test]
fn sequences_survive_attaching_and_detaching() {
    let program = build().finish();
    let mut live = Live::ready(&program.path, &["made", "0"]);
    for _ in 0..3 {
        succeed(&["attach", "--budget", "off", "-q", OWN, &live.id()]);
        std::thread::sleep(Duration::from_millis(50));
        succeed(&["detach", &live.id()]);
    }
    live.assert_healthy();
    let (said, _) = live.wait(Duration::from_secs(60));
    assert!(said.contains(" lost 0\n"), "{said}");
}

/// Where no file tells which function a sequence is in, the threads that are in it do.
#[test]
fn a_sequence_that_no_file_describes_is_refused_by_name() {
    let program = build().finish();
    let mut live = Live::ready(&program.path, &["hidden", "0"]);
    let message = refuse(&["attach", "--budget", "off", "-q", OWN, &live.id()]);
    assert!(
        message.contains("bump_hidden") && message.contains("-N"),
        "{message}"
    );
    live.assert_healthy();
    succeed(&[
        "attach",
        "--budget",
        "off",
        "-q",
        OWN,
        "-N",
        "^bump_hidden$",
        &live.id(),
    ]);
    std::thread::sleep(Duration::from_millis(100));
    succeed(&["detach", &live.id()]);
    let (said, _) = live.wait(Duration::from_secs(60));
    assert!(said.contains(" lost 0\n"), "{said}");
}

#[test]
fn a_program_with_sequences_is_refused_where_that_is_asked_for() {
    let program = build().finish();
    let scratch = Scratch::new();
    let path = program.path.to_str().expect("UTF-8");
    let output = &scratch.word("out.thalweg");
    let arguments = ["record", "--refuse-rseq", "-o", output, "--"];
    let message = refuse(&[&arguments[..], &[path, "data", "1"]].concat());
    assert!(message.contains("--refuse-rseq"), "{message}");
    let mut live = Live::ready(&program.path, &["data", "0"]);
    refuse(&[
        "attach",
        "--budget",
        "off",
        "-q",
        OWN,
        "--refuse-rseq",
        &live.id(),
    ]);
    live.assert_healthy();
    // The C library's own registration is no use.
    succeed(&[&arguments[..], &["true"]].concat());
}
