//! Processes that a target starts, and the programs that they become: each has trees of its own in one profile, and nobody
//! notices anything.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed, text};
use serde_json::Value;
use std::process::{Command, Stdio};

struct Recorded {
    json: Value,
    stderr: String,
}

/// Records a command, whose output and status must be those of a plain run.
#[track_caller]
fn recorded(options: &[&str], arguments: &[&str]) -> Recorded {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let plain = Command::new(arguments[0])
        .args(&arguments[1..])
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let ours = command()
        .args(["record", "--no-report", "-o"])
        .arg(&file)
        .args(options)
        .arg("--")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("thalweg starts");
    assert_eq!(
        (&ours.stdout, ours.status.code()),
        (&plain.stdout, plain.status.code()),
        "{}",
        text(&ours)
    );
    let json = succeed(&["export", "-i", file.to_str().unwrap(), "--format", "json"]);
    Recorded {
        json: serde_json::from_str(&json).expect("JSON"),
        stderr: String::from_utf8_lossy(&ours.stderr).into_owned(),
    }
}

impl Recorded {
    fn processes(&self) -> &[Value] {
        self.json["processes"].as_array().expect("a list")
    }

    /// The processes that ran a program of this name, by the first word of their command.
    fn of(&self, program: &str) -> Vec<&Value> {
        let named = |process: &&Value| {
            let word = process["command"][0].as_str().unwrap_or_default();
            word.rsplit('/').next() == Some(program)
        };
        self.processes().iter().filter(named).collect()
    }

    /// How often a process called a function.
    fn calls(&self, process: &Value, name: &str) -> u64 {
        let functions = self.json["functions"].as_array().expect("a list");
        process["threads"]
            .as_array()
            .expect("a list")
            .iter()
            .flat_map(|thread| thread["nodes"].as_array().expect("a list"))
            .filter(|node| functions[node["function"].as_u64().unwrap() as usize]["name"] == name)
            .map(|node| node["calls"].as_u64().unwrap())
            .sum()
    }
}

fn ended(process: &Value) -> (&str, Option<u64>) {
    let ended = &process["ended"];
    (ended["how"].as_str().unwrap(), ended["status"].as_u64())
}

#[test]
fn every_command_of_a_shell_is_recorded_with_its_parent_and_its_end() {
    let run = recorded(&[], &["sh", "-c", "ls / | wc; cat /nonexistent; exit 3"]);
    let shell = run.of("sh")[0];
    assert!(shell["parent"].is_null());
    assert_eq!(ended(shell), ("exited", Some(3)));
    for (program, status) in [("ls", 0), ("wc", 0), ("cat", 1)] {
        let found = run.of(program);
        assert_eq!(found.len(), 1, "{program}: {}", run.stderr);
        assert_eq!(found[0]["parent"], shell["pid"], "{program}");
        assert!(run.calls(found[0], "malloc") > 0, "{program}");
        // Kernels before 6.15 do not keep what the parent was told.
        let end = ended(found[0]);
        assert!(
            end == ("exited", Some(status)) || end.0 == "unknown",
            "{program}: {end:?}"
        );
    }
}

#[test]
fn spawned_vforked_and_system_commands_are_recorded_beside_exact_counts() {
    let program = Build::simple("forking.c");
    let run = recorded(&[], &[program.path.to_str().unwrap()]);
    for started in ["true", "false", "sh"] {
        assert_eq!(run.of(started).len(), 1, "{started}");
    }
    let forked = run.of("forking");
    let children: Vec<_> = forked
        .iter()
        .filter(|p| run.calls(p, "child") == 1)
        .collect();
    assert_eq!(children.len(), 5);
    for child in children {
        // fib(15) and a thread's fib(10), each fib(n) being 2 fib(n + 1) - 1 activations.
        assert_eq!(run.calls(child, "fib"), 2 * 987 - 1 + 2 * 89 - 1);
        assert_eq!(child["parent"], forked[0]["pid"]);
    }
}

#[test]
fn a_process_that_replaces_itself_again_and_again_is_followed_every_time() {
    let script = "n=$1; [ $n -gt 0 ] || exit 7; exec sh -c \"$0\" \"$0\" $((n - 1))";
    let run = recorded(&[], &["sh", "-c", script, script, "20"]);
    let all = run.processes();
    assert_eq!(all.len(), 21, "{}", run.stderr);
    assert!(all.iter().all(|process| process["pid"] == all[0]["pid"]));
    assert!(
        all[..20]
            .iter()
            .all(|process| ended(process).0 == "replaced")
    );
    assert_eq!(ended(&all[20]), ("exited", Some(7)));
}

#[test]
fn a_daemon_that_outlives_the_command_is_recorded_to_its_end() {
    let script = "(sh -c 'sleep 0.6; expr 6 \\* 7 >/dev/null; exit 4' &) ; exit 0";
    let run = recorded(&[], &["sh", "-c", script]);
    assert_eq!(run.of("expr").len(), 1, "{}", run.stderr);
    assert!(run.calls(run.of("expr")[0], "malloc") > 0);
}

#[test]
fn python_subprocesses_are_recorded() {
    let script = "import subprocess, os; print(subprocess.check_output(['echo', 'one'])); print(os.popen('echo two').read())";
    let run = recorded(&["--lib", "libc"], &["/usr/bin/python3", "-c", script]);
    assert_eq!(run.of("echo").len(), 1, "{}", run.stderr);
    assert_eq!(run.of("sh").len(), 1, "{}", run.stderr);
}

#[test]
fn with_no_follow_children_work_and_are_not_counted() {
    let program = Build::simple("forking.c");
    let run = recorded(&["--no-follow"], &[program.path.to_str().unwrap()]);
    assert_eq!(run.processes().len(), 1);
    assert_eq!(run.calls(&run.processes()[0], "status_of"), 7);
    assert_eq!(run.calls(&run.processes()[0], "child"), 0);
}

#[test]
fn a_filter_that_fits_only_a_later_program_leads_through_those_before_it() {
    let program = Build::simple("forking.c");
    let path = program.path.to_str().unwrap();
    let run = recorded(
        &["--follow", "-F", "^fib$"],
        &["sh", "-c", &format!("env {path}; exit 0")],
    );
    let counted: u64 = run.processes().iter().map(|p| run.calls(p, "fib")).sum();
    assert!(counted > 5 * 1973, "{counted}: {}", run.stderr);
}
