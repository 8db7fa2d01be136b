//! Processes that a target starts, and the programs that they become: each has trees of its own in one profile, and nobody
//! notices anything.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed, text};
use crate::support::watched::Recording;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Recorded {
    json: Value,
    stderr: String,
}

/// Records a command, whose output and status must be those of a plain run.
#[track_caller]
fn recorded(options: &[&str], arguments: &[&str]) -> Recorded {
    let plain = Command::new(arguments[0])
        .args(&arguments[1..])
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let (recorded, ours) = recorded_alone(options, arguments);
    assert_eq!(
        (&ours.stdout, ours.status.code()),
        (&plain.stdout, plain.status.code()),
        "{}",
        text(&ours)
    );
    recorded
}

/// Records a command that would not do the same by itself; gives what it said and how it ended, too.
#[track_caller]
fn recorded_alone(options: &[&str], arguments: &[&str]) -> (Recorded, Output) {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let ours = command()
        .args(["record", "--no-report", "-o"])
        .arg(&file)
        .args(options)
        .arg("--")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("thalweg starts");
    let json = succeed(&["export", "-i", file.to_str().unwrap(), "--format", "json"]);
    let recorded = Recorded {
        json: serde_json::from_str(&json).expect("JSON"),
        stderr: String::from_utf8_lossy(&ours.stderr).into_owned(),
    };
    (recorded, ours)
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
fn a_program_that_was_started_by_a_bare_system_call_is_joined_late_and_named() {
    let program = Build::simple("bare.c");
    let (run, output) = recorded_alone(&[], &[program.path.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stdout);
    let steps = said.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    let steps: u64 = steps.unwrap_or_else(|| panic!("{}", text(&output)));
    assert!(said.ends_with("ended with 0\n"), "{}", text(&output));
    let all = run.of("bare");
    assert_eq!(all.len(), 2, "{}", run.stderr);
    let calls = run.calls(all[1], "step");
    assert!((100..steps).contains(&calls), "{calls} of {steps} calls");
    assert_eq!(all[1]["parent"], all[0]["pid"]);
    let notes = run.json["notes"].to_string();
    assert!(notes.contains("joined late: bare"), "{notes}");
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

/// A recording of `commands.c`, attached to, in which it is told to do `lines`; each answer must be as expected.
#[track_caller]
fn attached(options: &[&str], lines: &[(&str, &str)]) -> Recorded {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let mut live = Live::ready(&Build::simple("commands.c").path, &[]);
    let before = live.text();
    let recording = Recording::of(&live, &file, &[&["--no-report"], options].concat());
    for (line, answer) in lines {
        assert_eq!(live.ask(line), *answer);
    }
    let stderr = recording.interrupt();
    assert_eq!(before, live.text());
    live.assert_healthy();
    let json = succeed(&["export", "-i", file.to_str().unwrap(), "--format", "json"]);
    Recorded {
        json: serde_json::from_str(&json).expect("JSON"),
        stderr,
    }
}

#[test]
fn children_of_an_attached_process_are_followed_when_asked() {
    let told = [
        ("work 10", "work 10"),
        ("run /bin/true", "run 0"),
        ("frun /bin/false", "frun 1"),
        ("run /no/such/program", "run 127"),
    ];
    let run = attached(&["--follow"], &told);
    for program in ["true", "false"] {
        assert_eq!(run.of(program).len(), 1, "{program}: {}", run.json["notes"]);
    }
    // The child that could not become anything, and those before they did.
    assert_eq!(run.of("commands").len(), 4);
    let run = attached(&[], &told);
    assert_eq!(run.processes().len(), 1);
    assert_eq!(run.calls(&run.processes()[0], "work"), 10);
}

#[test]
fn programs_that_cannot_be_followed_run_untouched_and_are_named() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let scratch = Scratch::new();
    let setuid = scratch.join("setuid");
    crate::support::build::copy_program("/bin/true".as_ref(), &setuid);
    chown(&setuid, Some(65534), None).expect("tests run as root");
    std::fs::set_permissions(&setuid, PermissionsExt::from_mode(0o4755)).expect("its own file");
    let small = crate::support::build::small32(&scratch);
    let paths = [setuid.display().to_string(), small.display().to_string()];
    let told = paths.each_ref().map(|path| format!("run {path}"));
    let run = attached(&["--follow"], &[(&told[0], "run 0"), (&told[1], "run 7")]);
    assert!(run.of("setuid").is_empty() && run.of("small32").is_empty());
    let notes = run.json["notes"].to_string();
    for word in [&paths[0], "setuid", &paths[1], "32-bit"] {
        assert!(notes.contains(word), "{word} is not in {notes}");
    }
}

#[test]
fn an_interrupt_leaves_every_process_as_it_was() {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let script = "sleep 60 & sleep 60 & echo $$; wait";
    let mut recording = command()
        .args(["record", "--no-report", "-o"])
        .arg(&file)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("thalweg starts");
    let mut line = String::new();
    let stdout = recording.stdout.as_mut().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let shell: i32 = line.trim().parse().expect("a process");
    let children = || -> Vec<i32> {
        let list = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
        let list = list.expect("the shell lives");
        list.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    let asleep = |pid: i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm == "sleep\n")
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while children().len() < 2 || !children().into_iter().all(asleep) {
        assert!(Instant::now() < deadline, "the shell has {:?}", children());
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    kill(Pid::from_raw(recording.id() as i32), Signal::SIGINT).expect("thalweg runs");
    // It has saved when it waits for the command to end.
    while !file.exists() {
        assert!(Instant::now() < deadline, "nothing is saved");
        std::thread::sleep(Duration::from_millis(20));
    }
    for pid in [&[shell][..], &children()].concat() {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
        assert!(
            !maps.contains("thalweg"),
            "process {pid} still carries:\n{maps}"
        );
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
        assert!(status.contains("TracerPid:\t0"), "process {pid} is traced");
    }
    for pid in children() {
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
    }
    assert!(recording.wait().expect("it ends").success());
    let json = succeed(&["export", "-i", file.to_str().unwrap(), "--format", "json"]);
    let json = serde_json::from_str(&json).expect("JSON");
    let run = Recorded {
        json,
        stderr: String::new(),
    };
    assert_eq!(run.of("sleep").len(), 2);
    assert!(
        run.of("sleep")
            .iter()
            .all(|process| ended(process).0 == "running")
    );
}

#[test]
fn a_makefile_is_recorded_rule_by_rule() {
    let scratch = Scratch::new();
    let makefile = scratch.join("Makefile");
    let rules = "all: a b\n\ta=1 expr 1 + 2\na:\n\t@expr 3 \\* 4\nb: a\n\t@test -f Makefile && echo b | cat\n";
    std::fs::write(&makefile, rules).expect("a file");
    let run = recorded(&[], &["make", "-s", "-C", scratch.path().to_str().unwrap()]);
    assert_eq!(
        (run.of("expr").len(), run.of("cat").len()),
        (2, 1),
        "{}",
        run.stderr
    );
}
