//! While recording, stdin, stdout and the exit status are the target's own.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, record_with_input, text, through};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

#[test]
fn exit_statuses_are_passed_on() {
    let program = Build::simple("exits.c");
    for (how, expected) in [
        ("0", 0),
        ("37", 37),
        ("255", 255),
        ("quick", 17),
        ("thread", 21),
    ] {
        let recorded = record_with_input(&["--no-report", "-q"], &program.path, &[how], b"abc\n");
        assert_eq!(
            recorded.status.code(),
            Some(expected),
            "{how}: {}",
            recorded.stderr
        );
        assert_eq!(recorded.stdout, b"abc\n");
        assert!(
            recorded.stderr.contains("copied 4"),
            "the target's stderr comes through: {}",
            recorded.stderr
        );
        assert_eq!(
            recorded.profile.calls_by_name().get("copy"),
            Some(&1),
            "{how}"
        );
    }
}

#[test]
fn a_target_killed_by_a_signal_gives_128_and_the_signal() {
    let program = Build::simple("exits.c");
    for (arguments, signal) in [
        (&["signal", "15"][..], 15),
        (&["signal", "9"], 9),
        (&["abort"], 6),
        (&["signal", "11"], 11),
    ] {
        let recorded = record_with_input(&["--no-report", "-q"], &program.path, arguments, b"");
        assert_eq!(
            recorded.status.code(),
            Some(128 + signal),
            "{arguments:?}: {}",
            recorded.stderr
        );
        assert_eq!(
            recorded.profile.calls_by_name().get("main"),
            Some(&1),
            "its model is left behind"
        );
    }
}

#[test]
fn a_megabyte_through_stdin_and_stdout_is_not_changed() {
    let program = Build::simple("exits.c");
    let input: Vec<u8> = (0..1_000_000u32)
        .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
        .collect();
    let recorded = record_with_input(&["-q"], &program.path, &["0"], &input);
    assert!(recorded.status.success());
    assert!(recorded.stdout == input, "stdout is the target's own");
}

#[test]
fn the_target_sees_no_tracer_and_a_clean_environment() {
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let script = "grep TracerPid /proc/self/status; ls /proc/self/fd | wc -l; env | grep -c -i thalweg; cat /proc/self/oom_score_adj; trap; ulimit -a";
    let plain = through("bash")
        .args(["-c", script])
        .stdin(Stdio::null())
        .output()
        .expect("bash");
    let output = command()
        .args(["record", "--no-report", "-q", "-o"])
        .arg(&file)
        .args(["--", "bash", "-c", script])
        .stdin(Stdio::null())
        .output()
        .expect("thalweg starts");
    assert_eq!(
        String::from_utf8_lossy(&plain.stdout),
        String::from_utf8_lossy(&output.stdout),
        "{}",
        text(&output)
    );
}

#[test]
fn what_nohup_ignores_stays_ignored_in_the_target() {
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let ours = command();
    let output = Command::new("bash")
        .args(["-c", "trap '' HUP INT; exec \"$@\"", "bash"])
        .arg(ours.get_program())
        .args(["record", "--no-report", "-q", "-o"])
        .arg(&file)
        .args(["--", "bash", "-c", "trap"])
        .output()
        .expect("bash");
    let said = String::from_utf8_lossy(&output.stdout);
    for signal in ["SIGHUP", "SIGINT"] {
        assert!(said.contains(signal), "{}", text(&output));
    }
}

#[test]
fn record_ends_with_a_readable_summary_on_stderr() {
    let program = Build::simple("recursion.c");
    let recorded = record_with_input(&[], &program.path, &[], b"");
    for word in ["fib", "calls", "Next:"] {
        assert!(
            recorded.stderr.contains(word),
            "the summary has {word:?}: {}",
            recorded.stderr
        );
    }
    assert!(
        !recorded.stderr.contains('\u{1b}'),
        "no escape sequences when stderr is no terminal"
    );
}

#[test]
fn the_default_file_is_in_the_working_directory() {
    let program = Build::simple("recursion.c");
    let scratch = Scratch::new();
    let output = command()
        .current_dir(scratch.path())
        .arg("record")
        .arg("--")
        .arg(&program.path)
        .output()
        .expect("runs");
    assert!(
        output.status.success() && output.status.signal().is_none(),
        "{}",
        text(&output)
    );
    assert_eq!(scratch.list(), ["profile.thalweg"]);
    for arguments in [
        &["report"][..],
        &["report", "--flat"],
        &["report", "--tree"],
        &["report", "--json"],
    ] {
        let output = command()
            .current_dir(scratch.path())
            .args(arguments)
            .output()
            .expect("runs");
        assert!(output.status.success(), "{arguments:?}: {}", text(&output));
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("fib"),
            "{arguments:?}: {}",
            text(&output)
        );
    }
}
