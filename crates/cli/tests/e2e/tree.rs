//! What a node says of time: nothing counted twice, waiting shown where it happens, min and max within reason.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::profile::{Profile, Thread};
use crate::support::scratch::Scratch;
use crate::support::thalweg::{export, record, succeed};
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;

/// A thread's nodes keep the rules that hold whatever the program does.
#[track_caller]
fn assert_consistent(profile: &Profile, thread: &Thread) {
    let mut children = vec![0u64; thread.nodes.len()];
    let mut count = vec![0u64; thread.nodes.len()];
    for node in &thread.nodes {
        if let Some(parent) = node.parent {
            children[parent] += node.cum;
            count[parent] += 1;
        }
    }
    for (at, node) in thread.nodes.iter().enumerate() {
        let name = &profile.functions[node.function].name;
        if node.on_stack_at_attach || node.folded {
            continue;
        }
        assert!(
            node.base <= node.cum,
            "{name}: base {} is more than cum {}",
            node.base,
            node.cum
        );
        assert!(
            node.cum <= node.elapsed,
            "{name}: cum {} is more than elapsed {}",
            node.cum,
            node.elapsed
        );
        // Ticks become nanoseconds node by node: each may be off by one.
        let sum = node.base + children[at];
        assert!(
            sum.abs_diff(node.cum) <= count[at] + 1,
            "{name}: base and the children's cum make {sum}, not cum {}",
            node.cum
        );
        if node.calls > 0 {
            assert!(
                node.min <= node.max,
                "{name}: min {} is more than max {}",
                node.min,
                node.max
            );
        }
        let mut recursion = 0;
        let mut up = node.parent;
        while let Some(parent) = up {
            recursion += u64::from(thread.nodes[parent].function == node.function);
            up = thread.nodes[parent].parent;
        }
        assert_eq!(node.recursion, recursion, "{name}: recursion level");
    }
}

#[test]
fn time_is_never_counted_twice_under_recursion() {
    let program = Build::simple("recursion.c");
    let started = Instant::now();
    let recorded = record(&["--no-report", "-q"], &program, &[]);
    let limit = started.elapsed().as_nanos() as u64;
    for thread in &recorded.profile.threads {
        assert_consistent(&recorded.profile, thread);
        let base: u64 = thread.nodes.iter().map(|node| node.base).sum();
        assert!(
            base <= limit,
            "all self time together, {base} ns, is longer than the whole run, {limit} ns"
        );
    }
    let deepest = recorded
        .profile
        .nodes_named("fib")
        .map(|(_, node)| node.recursion)
        .max();
    assert_eq!(deepest, Some(16), "fib(17) is 17 deep");
}

#[test]
fn trees_of_threads_are_consistent() {
    let program = Build::simple("threads.c");
    let recorded = record(&["--no-report", "-q"], &program, &["8"]);
    assert!(
        recorded
            .profile
            .threads
            .iter()
            .all(|thread| thread.name == "threads"),
        "threads carry their names"
    );
    let workers = recorded
        .profile
        .threads
        .iter()
        .filter(|t| t.nodes.iter().any(|n| n.calls > 0))
        .count();
    assert_eq!(
        workers, 9,
        "main and eight workers, each with a tree of its own"
    );
    for thread in &recorded.profile.threads {
        assert_consistent(&recorded.profile, thread);
    }
}

#[test]
fn counting_without_a_clock_gives_the_same_counts() {
    let program = Build::simple("recursion.c");
    let keep = program.functions();
    let timed = record(&["--no-report", "-q"], &program, &[])
        .profile
        .forest(&program);
    let counted = record(&["--no-report", "-q", "--no-clock"], &program, &[]).profile;
    assert!(
        counted
            .threads
            .iter()
            .flat_map(|t| &t.nodes)
            .all(|n| n.elapsed == 0),
        "no clock, no times"
    );
    assert_eq!(counted.forest(&program).paths(&keep), timed.paths(&keep));
}

/// Longest elapsed time of a context that ends in one of these functions.
fn elapsed(profile: &Profile, names: &[&str]) -> u64 {
    names
        .iter()
        .flat_map(|name| profile.nodes_named(name))
        .map(|(_, node)| node.elapsed)
        .max()
        .unwrap_or(0)
}

#[test]
fn waiting_counts_where_it_happens() {
    let program = Build::simple("waiting.c");
    let profile = record(&["--no-report", "-q"], &program, &["200"]).profile;
    for (ours, libc) in [
        (
            "wait_sleep",
            &["clock_nanosleep", "nanosleep", "__nanosleep"][..],
        ),
        ("wait_read", &["read", "__read"]),
        (
            "wait_condition",
            &["pthread_cond_timedwait", "__pthread_cond_timedwait"],
        ),
        ("wait_epoll", &["epoll_wait"]),
        ("busy", &["busy"]),
    ] {
        // One that works pays for the clocks that are read meanwhile, and they are in no figure.
        let least = if ours == "busy" { 190 } else { 199 };
        for names in [&[ours][..], libc] {
            let span = elapsed(&profile, names);
            assert!(
                (least * MS..10_000 * MS).contains(&span),
                "{names:?} waited 200 ms, the profile says {span} ns"
            );
        }
    }
}

/// The names that stand above the blocked call, whatever libc calls the call itself.
#[test]
fn threads_that_still_wait_are_shown_with_their_ancestors() {
    let program = Build::simple("waiting.c");
    let mut live = Live::ready(&program.path, &["forever"]);
    let scratch = Scratch::new();
    let (first, second) = (
        scratch.join("first.thalweg"),
        scratch.join("second.thalweg"),
    );
    std::thread::sleep(Duration::from_millis(100));
    succeed(&["attach", "--budget", "off", &live.id()]);
    std::thread::sleep(Duration::from_millis(300));
    succeed(&[
        "checkpoint",
        &live.id(),
        "-o",
        first.to_str().expect("UTF-8"),
    ]);
    std::thread::sleep(Duration::from_millis(500));
    succeed(&[
        "checkpoint",
        &live.id(),
        "-o",
        second.to_str().expect("UTF-8"),
    ]);
    succeed(&["detach", &live.id()]);
    live.assert_healthy();
    let (first, second) = (export(&first), export(&second));
    for (thread_function, wait) in [
        ("blocked_sleep", "wait_sleep"),
        ("blocked_read", "wait_read"),
        ("blocked_epoll", "wait_epoll"),
        ("blocked_condition", "wait_condition"),
    ] {
        let (thread, node) = first
            .nodes_named(wait)
            .next()
            .unwrap_or_else(|| panic!("{wait} was on a stack at the attach"));
        let path = first.path(thread, node);
        assert_eq!(path[path.len() - 2..], [thread_function, wait], "{path:?}");
        assert!(
            node.on_stack_at_attach,
            "{wait} is marked as there before us"
        );
        let (before, after) = (elapsed(&first, &[wait]), elapsed(&second, &[wait]));
        assert!(
            before >= 250 * MS,
            "{wait} waits since the attach: {before} ns"
        );
        assert!(
            after >= before + 400 * MS,
            "{wait} still waits: {before} then {after} ns"
        );
    }
}

#[test]
fn folding_keeps_totals_exact_and_memory_bounded() {
    let program = Build::simple("contexts.c");
    let options = ["--memory", "16M"];
    let recorded = record(&options, &program, &["3000000"]);
    let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let calls = recorded.profile.calls_by_name();
    let mut lines = 0;
    for line in stdout.lines() {
        let (name, count) = line.split_once(' ').expect("name count");
        assert_eq!(
            calls.get(name),
            Some(&count.parse().expect("a count")),
            "{name}"
        );
        lines += 1;
    }
    assert_eq!(lines, 26);
    assert!(
        recorded
            .profile
            .threads
            .iter()
            .flat_map(|t| &t.nodes)
            .any(|node| node.folded),
        "16 MB cannot hold these contexts: some must be folded"
    );
    assert!(
        recorded.stderr.contains("folded"),
        "the summary says what was folded: {}",
        recorded.stderr
    );
    let nodes: usize = recorded
        .profile
        .threads
        .iter()
        .map(|thread| thread.nodes.len())
        .sum();
    assert!(nodes < (16 << 20) / 32, "{nodes} nodes do not fit in 16 MB");
}
