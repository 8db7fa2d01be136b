//! Programs that trace their own children: what they see of these is what they would see without us.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{bounded, command, text};
use std::path::Path;
use std::process::Output;

/// In the same environment as ours, which moves the stack.
fn plain(words: &[&str]) -> Output {
    bounded().args(words).output().expect("timeout starts")
}

fn recorded(words: &[&str], file: &Path) -> Output {
    let mut record = bounded();
    record.arg(command().get_program());
    record.args(["record", "--no-report", "-q", "-o"]).arg(file);
    record.arg("--").args(words);
    record.output().expect("timeout starts")
}

#[track_caller]
fn assert_same(words: &[&str], scratch: &Scratch) {
    let (plain, ours) = (plain(words), recorded(words, &scratch.join("out.thalweg")));
    assert_eq!(
        ours.status.code(),
        plain.status.code(),
        "{words:?}: {}",
        text(&ours)
    );
    assert_eq!(
        String::from_utf8_lossy(&ours.stdout),
        String::from_utf8_lossy(&plain.stdout),
        "{words:?}"
    );
}

/// The child has slots in our memory, and functions that run for long, after each of which the agent would ask for its time.
#[test]
fn a_tracer_sees_no_system_call_that_its_child_does_not_make() {
    let program = Build::simple("traces.c");
    let path = program.path.to_str().expect("UTF-8");
    let scratch = Scratch::new();
    for how in ["me", "syscall", "bare", "seize", "attach"] {
        assert_same(&[path, how], &scratch);
    }
}

/// The names of the system calls in the order of a list that strace has made, of the traced program itself.
fn traced(list: &Path) -> Vec<String> {
    let list = std::fs::read_to_string(list).expect("strace has written");
    let name = |line: &str| line.split('(').next().map(str::to_owned);
    list.lines().filter_map(name).collect()
}

#[test]
fn strace_lists_what_it_lists_alone() {
    let scratch = Scratch::new();
    let (alone, with) = (scratch.join("alone"), scratch.join("with"));
    let [first, second] = [&alone, &with].map(|path| path.to_str().expect("UTF-8"));
    let said = plain(&["strace", "-o", first, "/bin/true"]);
    assert!(said.status.success(), "{}", text(&said));
    let said = recorded(&["strace", "-o", second, "/bin/true"], &scratch.join("out"));
    assert!(said.status.success(), "{}", text(&said));
    assert_eq!(traced(&with), traced(&alone));
}

#[test]
fn gdb_runs_a_program_as_it_does_alone() {
    let program = Build::simple("traces.c");
    let path = program.path.to_str().expect("UTF-8");
    let scratch = Scratch::new();
    let run = [
        "gdb",
        "-nx",
        "-batch",
        "-ex",
        "break main",
        "-ex",
        "run",
        "-ex",
        "cont",
    ];
    let words = [&run[..], &["--args", path, "leaf"]].concat();
    // It says which number the process has.
    let said = |output: &Output| -> Vec<String> {
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.lines().filter(|line| !line.contains("process "));
        lines.map(str::to_owned).collect()
    };
    let (alone, with) = (plain(&words), recorded(&words, &scratch.join("out")));
    assert_eq!(with.status.code(), alone.status.code(), "{}", text(&with));
    assert_eq!(said(&with), said(&alone));
}
