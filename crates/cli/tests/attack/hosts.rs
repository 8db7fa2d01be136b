//! Programs that run others inside themselves: left alone, and the others with them.

use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Valgrind's lightest tool, as the `valgrind` command starts it.
fn tool() -> PathBuf {
    let places = ["/usr/libexec/valgrind", "/usr/lib/valgrind"];
    let mut tools = places.map(|dir| Path::new(dir).join("none-amd64-linux"));
    tools.sort_by_key(|tool| !tool.exists());
    tools[0].clone()
}

/// The note that a recording has of `host`, which a command that it followed has become.
#[track_caller]
fn noted(command_line: &[&str], note: &str) {
    let scratch = Scratch::new();
    let file = &scratch.word("out.thalweg");
    let output = command()
        .args(["record", "--no-report", "-o", file, "--"])
        .args(command_line)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(output.stdout, b"guest\n", "{}", text(&output));
    let json = succeed(&["export", "-i", file, "--format", "json"]);
    assert!(json.contains(note), "{json}");
}

/// Neither command touches a process of `host`, which says "ready" and then what it is told.
#[track_caller]
fn refused_while_it_runs(run: &mut Command, host: &str) {
    let mut live = Live::spawn(run);
    assert_eq!(live.line(), "ready");
    for arguments in [
        &["attach", "--budget", "off", &live.id()][..],
        &[
            "record",
            "--budget",
            "off",
            "-o",
            "/dev/null",
            "-p",
            &live.id(),
        ],
    ] {
        let message = refuse(arguments);
        assert!(message.contains(host), "{message}");
    }
    live.assert_healthy();
    assert_eq!(live.ask("over"), "over");
}

const GUEST: [&str; 3] = ["sh", "-c", "echo ready; read word; echo $word"];

#[test]
fn a_valgrind_that_is_started_runs_on_by_itself_with_a_note() {
    noted(
        &["valgrind", "-q", "/bin/echo", "guest"],
        "memcheck-amd64-linux runs inside valgrind",
    );
}

#[test]
fn a_valgrind_that_runs_is_refused_and_not_touched() {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=none", "-q"]).args(GUEST);
    refused_while_it_runs(&mut valgrind, "valgrind");
}

/// Debian's own, which is a program like any other but for what it runs.
#[test]
fn a_qemu_that_is_started_runs_on_by_itself_with_a_note() {
    noted(
        &["sh", "-c", "exec qemu-x86_64 /bin/echo guest"],
        "qemu-x86_64 runs inside qemu's user mode",
    );
}

#[test]
fn a_qemu_that_runs_is_refused_and_not_touched() {
    let mut qemu = Command::new("qemu-x86_64");
    qemu.arg("/bin/sh").args(&GUEST[1..]);
    refused_while_it_runs(&mut qemu, "qemu's user mode");
}

#[test]
fn a_qemu_as_the_command_is_refused_before_it_is_started() {
    let scratch = Scratch::new();
    let file = &scratch.word("out.thalweg");
    let message = refuse(&["record", "-o", file, "--", "qemu-x86_64", "/bin/echo"]);
    assert!(message.contains("qemu's user mode"), "{message}");
}

/// rr itself needs a processor that it knows; the library that it brings into each process tells of it anywhere.
#[test]
fn a_process_with_the_library_of_rr_is_refused_and_not_touched() {
    let library = "/usr/lib/rr/librrpreload.so";
    assert!(Path::new(library).exists(), "rr is not installed");
    let mut guest = Command::new(GUEST[0]);
    guest.args(&GUEST[1..]).env("LD_PRELOAD", library);
    refused_while_it_runs(&mut guest, "rr");
}

#[test]
fn a_host_as_the_command_is_refused_before_it_is_started() {
    let scratch = Scratch::new();
    let file = &scratch.word("out.thalweg");
    let tool = tool();
    let tool = tool.to_str().expect("UTF-8");
    let message = refuse(&["record", "-o", file, "--", tool, "/bin/echo"]);
    assert!(message.contains("valgrind"), "{message}");
}

/// It is what the file holds that counts, not what somebody has called it.
#[test]
fn a_program_with_the_name_of_a_host_is_profiled() {
    let scratch = Scratch::new();
    for name in ["memcheck-amd64-linux", "qemu-x86_64"] {
        let program = scratch.join(name);
        fs::copy("/bin/true", &program).expect("copied");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        let program = program.to_str().expect("UTF-8");
        let file = &scratch.word("out.thalweg");
        succeed(&["record", "--no-report", "-q", "-o", file, "--", program]);
    }
}
