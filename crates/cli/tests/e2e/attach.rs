//! Attaching to a process that is already running, looking, and leaving it as it was.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_patched, assert_restored};
use crate::support::thalweg::{command, export, refuse, succeed, text, through};
use crate::support::watched::Recording;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn torture() -> Live {
    Live::ready(&Build::simple("torture.c").path, &[])
}

#[track_caller]
fn assert_ends_well(mut live: Live) {
    live.assert_healthy();
    let (words, status) = live.terminate();
    assert!(
        status.success() && words.starts_with("OK "),
        "{status}: {words}"
    );
}

#[test]
fn a_lock_of_the_shell_is_not_held_by_the_sidecar() {
    let live = torture();
    let scratch = Scratch::new();
    let lock = scratch.join("lock");
    let script = r#"exec 9>"$0"; flock 9; exec "$@""#;
    let output = through("bash")
        .args(["-c", script])
        .arg(&lock)
        .arg(env!("CARGO_BIN_EXE_thalweg"))
        .args(["attach", &live.id()])
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "{}", text(&output));
    // The command has ended; the target and what stays beside it go on.
    let status = std::process::Command::new("flock")
        .arg("--nonblock")
        .arg(&lock)
        .arg("true")
        .status()
        .expect("flock runs");
    assert!(status.success(), "the lock is still held");
    succeed(&["detach", &live.id()]);
    assert_ends_well(live);
}

/// What the threads of the torture program do.
const WORK: [&str; 6] = ["fib", "ping", "pong", "compare", "hash", "on_signal"];

fn calls_of_work(profile: &std::path::Path) -> [u64; WORK.len()] {
    let calls = export(profile).calls_by_name();
    WORK.map(|name| calls.get(name).copied().unwrap_or(0))
}

#[test]
fn attach_status_checkpoint_detach() {
    let mut live = torture();
    let scratch = Scratch::new();
    let file = |name: &str| scratch.join(name).to_str().expect("UTF-8").to_owned();
    let before = live.text();
    // Under a budget, which is the default, functions that are called all the time go off.
    succeed(&["attach", "--budget", "off", &live.id()]);
    live.assert_healthy();
    assert_patched(&before, &live.text());
    let status = succeed(&["status", &live.id()]);
    assert!(status.contains(&live.id()), "{status}");
    // Every thread gets to its work in time, though on a busy machine not within any time that could be named.
    let mut last = [0; WORK.len()];
    for checkpoint in ["a.thalweg", "b.thalweg"] {
        let deadline = Instant::now() + Duration::from_secs(60);
        last = loop {
            std::thread::sleep(Duration::from_millis(200));
            succeed(&["checkpoint", &live.id(), "-o", &file(checkpoint)]);
            let now = calls_of_work(&scratch.join(checkpoint));
            if now.iter().zip(last).all(|(now, last)| *now > last) {
                break now;
            }
            assert!(
                Instant::now() < deadline,
                "calls of {WORK:?} do not go on: {last:?}, then {now:?}"
            );
        };
    }
    succeed(&["detach", &live.id(), "-o", &file("c.thalweg")]);
    assert_restored(&before, &live.text());
    let end = calls_of_work(&scratch.join("c.thalweg"));
    assert!(
        end.iter().zip(last).all(|(end, last)| *end >= last),
        "calls of {WORK:?} are lost at the detach: {last:?}, then {end:?}"
    );
    assert_ends_well(live);
}

#[test]
fn record_a_process_for_a_while() {
    let live = torture();
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let before = live.text();
    let started = Instant::now();
    let output = command()
        .args([
            "record",
            "--budget",
            "off",
            "-p",
            &live.id(),
            "-d",
            "500ms",
            "-o",
        ])
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    assert!(started.elapsed() >= Duration::from_millis(500));
    assert!(
        output.stdout.is_empty(),
        "thalweg writes to stderr only: {}",
        text(&output)
    );
    let summary = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        summary.contains("fib"),
        "the summary names the hottest functions: {summary}"
    );
    assert_restored(&before, &live.text());
    let profile = export(&file);
    assert!(profile.calls_by_name()["fib"] > 0);
    assert_eq!(
        scratch.list(),
        ["out.thalweg"],
        "nothing else is left in the folder"
    );
    assert_ends_well(live);
}

#[test]
fn only_chosen_threads_are_counted() {
    let live = torture();
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let threads = live.threads();
    let chosen = [threads[1], threads[2]];
    let (first, second) = (chosen[0].to_string(), chosen[1].to_string());
    let arguments = [
        "record",
        "--budget",
        "off",
        "-p",
        &live.id(),
        "-t",
        &first,
        "-t",
        &second,
        "-d",
        "1s",
        "--no-report",
        "-o",
    ];
    let output = command()
        .args(arguments)
        .arg(&file)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    let profile = export(&file);
    let counted: BTreeSet<u64> = profile
        .threads
        .iter()
        .filter(|t| t.nodes.iter().any(|n| n.calls > 0))
        .map(|t| t.tid)
        .collect();
    assert_eq!(counted, chosen.map(u64::from).into_iter().collect());
    let calls = profile.calls_by_name();
    assert!(
        calls.contains_key("fib") && calls.contains_key("compare"),
        "the first two threads compute and sort"
    );
    assert!(
        !calls.contains_key("on_signal"),
        "the last one is not counted"
    );
    assert_ends_well(live);
}

#[test]
fn a_thread_that_is_not_there_is_refused() {
    let live = torture();
    let before = live.text();
    let message = refuse(&[
        "record",
        "--budget",
        "off",
        "-p",
        &live.id(),
        "-t",
        "1",
        "-d",
        "100ms",
    ]);
    assert!(
        message.contains('1') && message.contains("thread"),
        "{message}"
    );
    assert_restored(&before, &live.text());
    assert_ends_well(live);
}

#[test]
fn a_second_attach_is_refused_and_leaves_the_first_alone() {
    let live = torture();
    let before = live.text();
    succeed(&["attach", "--budget", "off", &live.id()]);
    let message = refuse(&["attach", "--budget", "off", &live.id()]);
    assert!(message.contains("already"), "{message}");
    let message = refuse(&["record", "--budget", "off", "-p", &live.id(), "-d", "100ms"]);
    assert!(message.contains("already"), "{message}");
    succeed(&["status", &live.id()]);
    succeed(&["detach", &live.id()]);
    assert_restored(&before, &live.text());
    assert_ends_well(live);
}

#[test]
fn commands_on_a_process_that_is_not_attached_are_refused() {
    let live = torture();
    for arguments in [
        vec!["status", &live.id()],
        vec!["detach", &live.id()],
        vec!["checkpoint", &live.id(), "-o", "never"],
    ] {
        let message = refuse(&arguments);
        assert!(message.contains("not attached"), "{arguments:?}: {message}");
    }
    assert_ends_well(live);
}

#[test]
fn an_interrupt_detaches_saves_and_reports() {
    let live = torture();
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let before = live.text();
    let said = Recording::of(&live, &file, &[]).interrupt();
    // Which functions are the hottest is not the same in each run.
    assert!(
        said.contains("recorded   attached for") && said.contains("torture"),
        "{said}"
    );
    assert_restored(&before, &live.text());
    assert!(export(&file).calls_by_name()["fib"] > 0);
    assert_ends_well(live);
}

#[test]
fn two_interrupts_leave_no_patched_target_behind() {
    for gap in [0, 1, 5, 20] {
        let live = torture();
        let scratch = Scratch::new();
        let before = live.text();
        let recording = Recording::of(&live, &scratch.join("out.thalweg"), &[]);
        recording.send(Signal::SIGINT);
        std::thread::sleep(Duration::from_millis(gap));
        recording.send(Signal::SIGINT);
        recording.end();
        assert_restored(&before, &live.text());
        assert_ends_well(live);
    }
}

#[test]
fn a_target_that_ends_while_recorded_leaves_its_profile() {
    let live = torture();
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let recording = Recording::of(&live, &file, &[]);
    let (words, status) = live.terminate();
    assert!(
        status.success() && words.starts_with("OK "),
        "{status}: {words}"
    );
    recording.end();
    assert!(export(&file).calls_by_name()["fib"] > 0);
}

/// A process that is let go into its stop takes a moment to arrive there.
fn stays_stopped(live: &Live) -> bool {
    std::thread::sleep(Duration::from_millis(100));
    live.threads().into_iter().all(|tid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/task/{tid}/stat", live.pid()));
        stat.is_ok_and(|stat| stat.contains(") T "))
    })
}

#[test]
fn a_stopped_process_stays_stopped() {
    let live = torture();
    let before = live.text();
    live.send(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_millis(100));
    succeed(&["attach", "--budget", "off", &live.id()]);
    assert!(stays_stopped(&live), "the process runs after the attach");
    succeed(&["detach", &live.id()]);
    assert!(stays_stopped(&live), "the process runs after the detach");
    live.send(Signal::SIGCONT);
    std::thread::sleep(Duration::from_millis(100));
    assert_restored(&before, &live.text());
    assert_ends_well(live);
}

#[test]
fn a_part_of_a_file_that_is_mapped_twice_is_one_module_and_a_copy() {
    let program = Build::simple("remapped.c");
    let live = Live::ready(&program.path, &[]);
    let before = live.text();
    let scratch = Scratch::new();
    let file = scratch.join("twice.thalweg");
    let name = file.to_str().expect("UTF-8");
    succeed(&[
        "record",
        "--budget",
        "off",
        "-p",
        &live.id(),
        "-d",
        "200ms",
        "-q",
        "-o",
        name,
    ]);
    assert!(export(&file).calls_by_name()["sum"] > 100);
    assert_restored(&before, &live.text());
    assert_ends_well(live);
}
