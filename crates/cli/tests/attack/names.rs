//! Names that a program, a file or a thread has chosen so that a terminal would obey them: escape sequences, lines of their own, and
//! marks that turn a text round. They are shown, and nothing of them is obeyed.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{text, thalweg};
use std::path::PathBuf;
use std::process::Command;

/// Clears the screen, changes its title, and pretends to be a line of thalweg's own; in a file's name and in a function's.
const FILE: &str = "na\u{1b}[2J\u{9b}31m\nthalweg: me";
const FUNCTION: &str = "ev\u{1b}]0;title\u{7}\u{1b}[31mil\r\nfake\u{202e}elif";

/// A program whose file, whose function and whose thread are called so.
fn program(scratch: &Scratch) -> PathBuf {
    let plain = Build::simple("names.c");
    let path = scratch.join(FILE);
    let status = Command::new("objcopy")
        .arg("--redefine-sym")
        .arg(format!("evil={FUNCTION}"))
        .arg(&plain.path)
        .arg(&path)
        .status()
        .expect("objcopy");
    assert!(status.success());
    path
}

/// Runs thalweg, whatever comes of it, and looks at each character that it says.
#[track_caller]
fn says_nothing_obeyed(arguments: &[&str]) -> String {
    let output = thalweg(arguments);
    for said in [&output.stdout, &output.stderr] {
        let said = String::from_utf8_lossy(said);
        let obeyed = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202a}'..='\u{202e}');
        assert!(!said.contains(obeyed), "{arguments:?}: {said:?}");
        let own_line = |line: &str| line.starts_with("fake") || line == "thalweg: me";
        assert!(!said.lines().any(own_line), "{arguments:?}: {said:?}");
    }
    text(&output)
}

#[test]
fn no_name_of_a_recorded_program_commands_the_terminal() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    let program = program.to_str().expect("UTF-8");
    let file = &scratch.word("profile.thalweg");
    let svg = &scratch.word("picture.svg");
    says_nothing_obeyed(&["record", "-o", file, "--", program]);
    for view in ["--flat", "--tree", "--arcs", "--graph", "--processes"] {
        says_nothing_obeyed(&["report", file, view]);
    }
    let flat = says_nothing_obeyed(&["report", file, "--flat"]);
    assert!(flat.contains("fake"), "its function is shown: {flat}");
    says_nothing_obeyed(&["report", file, "--callers", "fake"]);
    says_nothing_obeyed(&["summary", file]);
    says_nothing_obeyed(&["threads", file]);
    says_nothing_obeyed(&["graph", file, "-o", svg]);
    says_nothing_obeyed(&["diff", file, file]);
    let probed = says_nothing_obeyed(&["probe", program, "--skipped"]);
    assert!(probed.contains("[2J"), "its file is shown: {probed}");
    // A message about it is no better.
    says_nothing_obeyed(&["report", file, "--callers", "no such function"]);
    says_nothing_obeyed(&["record", "-o", file, "-F", "^nothing$", "--", program]);
}

#[test]
fn no_name_of_a_running_program_commands_the_terminal() {
    let scratch = Scratch::new();
    let mut live = Live::ready(&program(&scratch), &["stay"]);
    let before = live.text();
    let id = &live.id();
    let file = &scratch.word("saved.thalweg");
    says_nothing_obeyed(&["probe", "-p", id, "--skipped"]);
    says_nothing_obeyed(&["attach", "--budget", "off", id]);
    says_nothing_obeyed(&["status", id]);
    says_nothing_obeyed(&["report", "-p", id, "--tree"]);
    says_nothing_obeyed(&["threads", "-p", id]);
    let switched = says_nothing_obeyed(&["switch", id, "--off", "fake", "--count", "fake"]);
    assert!(switched.contains("fake"), "{switched}");
    says_nothing_obeyed(&["switch", id]);
    says_nothing_obeyed(&["switch", id, "--off", "no such function"]);
    says_nothing_obeyed(&["checkpoint", id, "-o", file]);
    says_nothing_obeyed(&["detach", id]);
    assert_restored(&before, &live.text());
    live.assert_healthy();
}
