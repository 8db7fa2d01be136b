//! Threads come and go by the thousands: every one is accounted for, every call is counted once, memory stays bounded.

use crate::support::build::{Build, Program, copy_program};
use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{Recorded, export, record, succeed};
use crate::support::watched::Recording;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

fn swarm() -> Program {
    Build::simple("swarm.c")
}

fn recorded(options: &[&str], arguments: &str) -> Recorded {
    let program = swarm();
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let mut all = vec!["--no-report", "-q"];
    all.extend(options);
    let recorded = record(&all, &program, &arguments);
    assert_eq!(
        String::from_utf8_lossy(&recorded.stdout),
        program.run(&arguments),
        "the target's output changes under thalweg"
    );
    recorded
}

/// How many threads there were: accounts may stand for several.
fn threads(profile: &Profile) -> u64 {
    profile.threads.iter().map(|thread| thread.threads).sum()
}

#[track_caller]
fn assert_calls(profile: &Profile, expected: &[(&str, u64)]) {
    let calls = profile.calls_by_name();
    for (name, count) in expected {
        assert_eq!(calls.get(*name), Some(count), "calls of {name}");
    }
}

#[test]
fn ten_thousand_short_threads_are_all_accounted() {
    for clock in [&[][..], &["--no-clock"]] {
        let profile = recorded(clock, "chain 10000 8 20").profile;
        assert_calls(
            &profile,
            &[
                ("leaf", 200_000),
                ("work", 10_000),
                ("even_body", 5_000),
                ("odd_body", 5_000),
            ],
        );
        assert_eq!(profile.threads.len(), 10_001, "each has its own tree");
        assert_eq!(threads(&profile), 10_001);
        let names: BTreeMap<&str, usize> =
            profile
                .threads
                .iter()
                .fold(BTreeMap::new(), |mut names, thread| {
                    *names.entry(thread.name.as_str()).or_default() += 1;
                    names
                });
        assert_eq!(
            (names["even"], names["odd"]),
            (5_000, 5_000),
            "as each thread called itself: {names:?}"
        );
        let main = &profile.threads[0];
        for thread in &profile.threads[1..] {
            let creator = thread.created_by.as_ref().expect("somebody made it");
            assert_eq!((creator.pid, creator.tid), (main.pid, main.tid));
            let function = creator.function.expect("it was noted when it did");
            assert_eq!(
                profile.functions[function].name,
                format!("begin_{}", thread.name),
                "what thread {} was created by",
                thread.tid
            );
            assert!(main.start <= thread.start && thread.start <= thread.end);
            assert!(thread.end <= main.end);
        }
    }
}

#[test]
fn beyond_the_bound_ended_threads_share_trees_and_nothing_is_lost() {
    let profile = recorded(&["--memory", "2MB"], "chain 3000 8 20").profile;
    assert_calls(&profile, &[("leaf", 60_000), ("work", 3_000)]);
    assert_eq!(threads(&profile), 3_001);
    assert!(
        profile.threads.len() < 2_000,
        "{} accounts in memory for far fewer",
        profile.threads.len()
    );
    // Contexts are whole also where threads share them.
    let leaves: BTreeSet<Vec<String>> = profile
        .nodes_named("leaf")
        .map(|(thread, node)| {
            let path = profile.path(thread, node);
            path[path.len() - 3..].to_vec()
        })
        .collect();
    assert_eq!(leaves.len(), 2, "{leaves:?}");
}

#[test]
fn three_thousand_threads_at_a_time() {
    let profile = recorded(&[], "crowd 3000 10").profile;
    assert_calls(
        &profile,
        &[("leaf", 60_000), ("work", 6_000), ("crowd_body", 3_000)],
    );
    assert_eq!(profile.threads.len(), 3_001);
    let tids: BTreeSet<u64> = profile.threads.iter().map(|thread| thread.tid).collect();
    assert_eq!(tids.len(), 3_001);
    for thread in &profile.threads[1..] {
        let calls: u64 = thread.nodes.iter().map(|node| node.calls).sum();
        assert!(calls >= 23, "thread {} has {calls} calls", thread.tid);
    }
}

#[test]
fn a_pool_has_as_many_accounts_as_workers() {
    let profile = recorded(&[], "pool 2000 30").profile;
    assert_calls(&profile, &[("leaf", 60_000), ("task", 2_000)]);
    let names: Vec<&str> = profile.threads.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(
        names,
        ["swarm", "worker-0", "worker-1", "worker-2", "worker-3"]
    );
}

/// They have their creator's thread pointer: what it counts and what they count must not mix.
#[test]
fn threads_of_a_bare_clone_have_accounts_of_their_own() {
    let profile = recorded(&[], "bare 40 1000").profile;
    assert_calls(&profile, &[("leaf", 60_000), ("bare_body", 40)]);
    assert_eq!(profile.threads.len(), 41);
    for thread in &profile.threads[1..] {
        let calls: u64 = thread
            .nodes
            .iter()
            .filter(|node| profile.functions[node.function].name == "leaf")
            .map(|node| node.calls)
            .sum();
        assert_eq!(calls, 1_000, "thread {}", thread.tid);
    }
}

/// A handler may run probes before its thread has a slot, and while it gets one.
#[test]
fn handlers_in_the_first_moments_of_a_thread_are_counted_once() {
    for memory in ["256MB", "1MB"] {
        let options = ["--no-report", "-q", "--memory", memory];
        let recorded = record(&options, &swarm(), &["alarmed", "2000", "20"]);
        let words = String::from_utf8_lossy(&recorded.stdout).into_owned();
        let calls = words.split(' ').next().and_then(|n| n.parse().ok());
        assert_calls(
            &recorded.profile,
            &[("leaf", calls.expect("a number")), ("even_body", 2_000)],
        );
        assert_eq!(threads(&recorded.profile), 2_001);
    }
}

#[test]
fn child_processes_that_have_ended_leave_their_slots_to_others() {
    let profile = recorded(&[], "family 4300 3").profile;
    assert_calls(&profile, &[("leaf", 12_900), ("work", 4_300)]);
    // Not by their numbers: on a machine where many processes come and go the kernel gives those out again.
    assert_eq!(threads(&profile), 4_301, "more than can live at a time");
}

#[test]
fn nobody_need_be_there_while_threads_come_and_go() {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let program = swarm();
    let mut live = Live::ready(&program.path, &[]);
    let before = live.text();
    succeed(&["attach", "--budget", "off", &live.id()]);
    let mut calls = 0;
    for work in ["chain 4000 8 10", "crowd 300 5", "bare 10 100", "pool 50 4"] {
        calls += live.ask(work).parse::<u64>().expect("a number");
    }
    let output = file.to_str().expect("text");
    succeed(&["detach", &live.id(), "-q", "-o", output]);
    live.assert_healthy();
    assert_restored(&before, &live.text());
    let profile = export(&file);
    assert_calls(&profile, &[("leaf", calls)]);
    assert_eq!(threads(&profile), 1 + 4_000 + 300 + 10 + 4);
}

/// Accounts move while they are read: none may be met twice or missed.
#[test]
fn what_is_read_while_threads_end_never_goes_back() {
    let scratch = Scratch::new();
    let program = swarm();
    let mut live = Live::ready(&program.path, &[]);
    succeed(&["attach", "--budget", "off", &live.id()]);
    let id = live.id();
    let file = scratch.join("checkpoint.thalweg");
    let reader = std::thread::spawn(move || {
        let mut seen = Vec::new();
        for _ in 0..6 {
            let output = file.to_str().expect("text");
            succeed(&["checkpoint", &id, "-q", "-o", output]);
            let profile = export(&file);
            let leaves = profile.calls_by_name().get("leaf").copied().unwrap_or(0);
            seen.push((threads(&profile), leaves));
        }
        seen
    });
    let mut made = 0;
    while !reader.is_finished() {
        assert_eq!(live.ask("chain 200 8 10"), "2000");
        made += 200;
        std::thread::sleep(Duration::from_millis(5));
    }
    let seen = reader.join().expect("reader");
    for pair in seen.windows(2) {
        assert!(pair[0] <= pair[1], "went back: {seen:?}");
    }
    let &(threads, leaves) = seen.last().expect("six");
    assert!(threads <= 1 + made, "{threads} of {made}");
    // A thread is there before its calls are: none of them is counted twice.
    assert!(
        leaves <= 10 * threads,
        "{leaves} calls of {threads} threads"
    );
}

/// Made by the function that wanted them, whatever the C library looks like.
#[test]
fn creators_are_known_in_every_kind_of_executable() {
    for (compiler, flag) in [
        ("gcc", "-static"),
        ("gcc", "-fcf-protection=full"),
        ("clang", "-O1"),
    ] {
        let program = Build::new("swarm")
            .source("swarm.c")
            .compiler(compiler)
            .flag("-O2")
            .flag(flag)
            .finish();
        let arguments = ["chain", "40", "8", "5"];
        let profile = record(&["--no-report", "-q"], &program, &arguments).profile;
        assert_eq!(profile.threads.len(), 41);
        for thread in &profile.threads[1..] {
            let creator = thread.created_by.as_ref().expect("somebody made it");
            let function = creator.function.map(|f| profile.functions[f].name.as_str());
            let wanted = format!("begin_{}", thread.name);
            assert_eq!(function, Some(wanted.as_str()), "{compiler} {flag}");
        }
    }
}

#[test]
fn thousands_of_threads_are_attached_to_and_left_alone() {
    let program = swarm();
    let mut live = Live::ready(&program.path, &[]);
    let before = live.text();
    assert_eq!(live.ask("hold 2500"), "0");
    assert_eq!(live.threads().len(), 2_501);
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    succeed(&["attach", "--budget", "off", &live.id()]);
    assert_eq!(live.ask("free 2500 3"), "7500");
    let output = file.to_str().expect("text");
    succeed(&["detach", &live.id(), "-q", "-o", output]);
    live.assert_healthy();
    assert_restored(&before, &live.text());
    let profile = export(&file);
    assert_calls(&profile, &[("leaf", 7_500), ("work", 2_500)]);
    assert_eq!(threads(&profile), 2_501);
}

/// Inside the target's namespace its threads have other numbers than outside.
#[test]
fn targets_in_a_pid_namespace_are_one_process() {
    let program = swarm();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    let mut live = Live::spawn(command.arg(&program.path));
    assert_eq!(live.line(), "ready");
    let children = format!("/proc/{0}/task/{0}/children", live.pid());
    let children = std::fs::read_to_string(children).expect("unshare lives");
    let pid = children.trim();
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let output = file.to_str().expect("text");
    succeed(&["attach", "--budget", "off", "--samples", "0", pid]);
    assert_eq!(live.ask("chain 100 4 10"), "1000");
    succeed(&["detach", pid, "-q", "-o", output]);
    let profile = export(&file);
    assert_calls(&profile, &[("leaf", 1_000)]);
    assert_eq!(threads(&profile), 101);
    for thread in &profile.threads {
        assert_eq!(thread.pid.to_string(), pid);
        let creator = thread.created_by.as_ref();
        assert!(creator.is_none_or(|creator| creator.tid.to_string() == pid));
    }
}

/// As in a container: other processes, other files. The program's own path means something else to us.
#[test]
fn targets_behind_another_root_are_recorded_with_their_own_files() {
    let root = Scratch::new();
    std::fs::create_dir(root.join("bin")).expect("a directory");
    let static_swarm = Build::new("swarm")
        .source("swarm.c")
        .link_flag("-static")
        .finish();
    copy_program(&static_swarm.path, &root.join("bin/true"));
    let mut command = Command::new("unshare");
    command.args(["--pid", "--mount", "--fork", "--kill-child", "--root"]);
    let mut live = Live::spawn(command.arg(root.path()).arg("/bin/true"));
    assert_eq!(live.line(), "ready");
    let children = format!("/proc/{0}/task/{0}/children", live.pid());
    let children = std::fs::read_to_string(children).expect("unshare lives");
    let pid = children.trim();
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    succeed(&["attach", "--budget", "off", pid]);
    assert_eq!(live.ask("chain 50 4 10"), "500");
    succeed(&["detach", pid, "-q", "-o", file.to_str().expect("text")]);
    let profile = export(&file);
    assert_calls(&profile, &[("leaf", 500), ("work", 50)]);
    assert_eq!(threads(&profile), 51);
}

#[test]
fn lines_are_those_of_the_file_that_ran_and_of_no_namesake() {
    let root = Scratch::new();
    let program = Build::simple("commands.c");
    let other = Build::new("other")
        .source("swarm.c")
        .flags(&["-O1", "-g"])
        .finish();
    // Where the target finds commands.c's program we find another.
    let here = root.join("commands");
    copy_program(&other.path, &here);
    let script = format!("mount --bind {} {0}; exec {0}", here.display());
    let script = script.replacen(
        &here.display().to_string(),
        &program.path.display().to_string(),
        1,
    );
    let mut command = Command::new("unshare");
    let mut live = Live::spawn(command.args(["--mount", "sh", "-c", &script]));
    assert_eq!(live.line(), "ready");
    let file = root.join("profile.thalweg");
    let recording = Recording::of(&live, &file, &["--no-report"]);
    assert_eq!(live.ask("work 3"), "work 3");
    recording.interrupt();
    let json = succeed(&[
        "export",
        "-i",
        file.to_str().expect("text"),
        "--format",
        "json",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let functions = json["functions"].as_array().expect("a list");
    let work = functions
        .iter()
        .find(|f| f["name"] == "work")
        .expect("it ran");
    assert!(
        work["file"]
            .as_str()
            .is_some_and(|f| f.ends_with("commands.c")),
        "{work}"
    );
}
