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

#[test]
fn a_valgrind_that_is_started_runs_on_by_itself_with_a_note() {
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let output = command()
        .args(["record", "--no-report", "-o"])
        .arg(&file)
        .args(["--", "valgrind", "-q", "/bin/echo", "guest"])
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(output.stdout, b"guest\n", "{}", text(&output));
    let file = file.to_str().expect("UTF-8");
    let json = succeed(&["export", "-i", file, "--format", "json"]);
    assert!(
        json.contains("memcheck-amd64-linux runs inside valgrind"),
        "{json}"
    );
}

#[test]
fn a_valgrind_that_runs_is_refused_and_not_touched() {
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--tool=none",
        "-q",
        "sh",
        "-c",
        "echo ready; read word; echo $word",
    ]);
    let mut live = Live::spawn(&mut valgrind);
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
        assert!(message.contains("valgrind"), "{message}");
    }
    live.assert_healthy();
    assert_eq!(live.ask("over"), "over");
}

#[test]
fn a_host_as_the_command_is_refused_before_it_is_started() {
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let file = file.to_str().expect("UTF-8");
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
        let file = scratch.join("out.thalweg");
        let file = file.to_str().expect("UTF-8");
        succeed(&["record", "--no-report", "-q", "-o", file, "--", program]);
    }
}
