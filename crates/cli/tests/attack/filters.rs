//! Seccomp filters and syscall user dispatch that come by a bare system call.
//!
//! Here is also what the tests of all limits that a program may set to itself share: `limits.c`, which limits itself and works on.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::text::{assert_restored, compare};
use crate::support::thalweg::{Recorded, record_with_input, refuse, succeed};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// Calls of `work` before `limits` limits itself, and after.
pub const BEFORE: u64 = 10;
pub const AFTER: u64 = 30 * 100_000;
/// Those of the thread that it makes under a filter.
const OF_ANOTHER: u64 = 100_000;

pub const FILTERS: &str = "filters its system calls";
pub const NO_CLOCK: &str = "forbidden itself to read the time-stamp counter";
pub const RETIRED: &str = "set its GS segment base or made a thread without a thread pointer";

/// How `limits` can set a limit.
pub const WAYS: [&str; 4] = ["wrapper", "syscall", "bare", "number"];

fn build() -> Build {
    // A thread without a thread pointer can have no stack protector.
    Build::new("limits")
        .source("limits.c")
        .flags(&["-O2", "-fno-stack-protector"])
}

pub fn limits() -> Program {
    build().finish()
}

/// No symbol tells where its C library makes which system call.
pub fn limits_without_names() -> Program {
    build().link_flag("-static").stripped().finish()
}

/// Recorded from its start, the program does what it does alone.
#[track_caller]
pub fn survives(program: &Program, arguments: &[&str], noted: &[&str]) -> Recorded {
    let options = ["-q", "--no-report"];
    let recorded = record_with_input(&options, &program.path, arguments, b"go\n");
    let said = String::from_utf8_lossy(&recorded.stdout);
    assert_eq!(
        (said.as_ref(), recorded.status.code()),
        ("ready\ndone\n", Some(0)),
        "{arguments:?} ended by signal {:?}: {}",
        recorded.status.signal(),
        recorded.stderr
    );
    for note in noted {
        let has = recorded.profile.notes.iter().any(|one| one.contains(note));
        assert!(has, "{arguments:?}: no note {note:?}");
    }
    recorded
}

/// Attached to, with nobody recording, it does the same, and can be left again.
#[track_caller]
pub fn survives_attached(program: &Program, arguments: &[&str]) {
    let mut arguments = arguments.to_vec();
    arguments.push("stays");
    let mut live = Live::ready(&program.path, &arguments);
    let before = live.text();
    succeed(&["attach", "--budget", "off", &live.id()]);
    assert_eq!(live.ask("go"), "done", "{arguments:?}");
    succeed(&["detach", &live.id()]);
    let (changed, _) = compare(&before, &live.text());
    assert!(changed.is_empty(), "{arguments:?}: {changed:?}");
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{arguments:?}: {status}");
}

/// Nothing is done to a process that has limited itself before.
#[track_caller]
pub fn is_refused(program: &Program, how: &str, reason: &str) {
    let mut live = Live::ready(&program.path, &[how, "wrapper"]);
    let before = live.text();
    for command in [
        &["attach", "--budget", "off"][..],
        &["record", "--duration", "1", "-p"],
    ] {
        let id = live.id();
        let mut arguments = command.to_vec();
        arguments.push(&id);
        let message = refuse(&arguments);
        assert!(message.contains(reason), "{message}");
    }
    assert_restored(&before, &live.text());
    live.assert_healthy();
    assert_eq!(live.ask("go"), "done");
}

/// The filter forbids every system call of the agent's that the program does without. A thread begins under it.
#[test]
fn filters_by_every_way() {
    let program = limits();
    for by in WAYS {
        let recorded = survives(&program, &["filter", by], &[FILTERS]);
        let calls = recorded.profile.calls_by_name();
        let expected = BEFORE + AFTER + OF_ANOTHER;
        assert_eq!(calls.get("work"), Some(&expected), "{by}");
    }
    survives(&program, &["filter", "bare", "crowd"], &[FILTERS]);
    survives_attached(&program, &["filter", "number"]);
}

#[test]
fn filters_of_a_program_without_names() {
    let program = limits_without_names();
    for by in ["wrapper", "bare"] {
        survives(&program, &["filter", by], &[FILTERS]);
    }
}

#[test]
fn system_calls_that_the_program_handles_itself() {
    let program = limits();
    for by in WAYS {
        let recorded = survives(&program, &["dispatch", by], &[FILTERS]);
        let calls = recorded.profile.calls_by_name();
        assert_eq!(calls.get("work"), Some(&(BEFORE + AFTER)), "{by}");
    }
    survives_attached(&program, &["dispatch", "bare"]);
}

/// Kernels before 6.4 do not tell.
#[test]
fn system_calls_that_the_program_handles_already() {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) >= (Some(6), Some(4)) {
        is_refused(&limits(), "before-dispatch", "syscall user dispatch");
    }
}
