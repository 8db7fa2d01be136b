//! Trees that grow past their limit: small contexts are cut, whatever else the program does, and no call and no time is lost.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{Recorded, export, record, succeed};
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Room for 8,192 contexts before any is cut.
const LIMIT: u64 = 1 << 20;
const LIMITS: [&str; 4] = ["--memory", "4M", "--prune-at", "1M"];
/// Contexts are cut by their time.
const TIMED: [&str; 2] = ["--time", "all"];
/// Calls that one round of the program makes of its chain functions.
const DEPTH: u64 = 12;

fn churn() -> Program {
    Build::simple("churn.c")
}

fn recorded(options: &[&str], arguments: &[&str]) -> Recorded {
    let timed = match options.contains(&"--no-clock") {
        true => &[][..],
        false => &TIMED,
    };
    record(&[&LIMITS, timed, options].concat(), &churn(), arguments)
}

/// What the program says that it has called, beginning with the first line of numbers.
fn own_counts<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    lines
        .filter_map(|line| line.split_once(' '))
        .map(|(name, count)| (name.to_owned(), count.parse().expect("a count")))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// Every count is the program's own, in the tree or out of it; what is out of it is what was cut.
#[track_caller]
fn assert_exact(profile: &Profile, own: &BTreeMap<String, u64>) {
    assert!(own.len() >= 44, "{own:?}");
    let calls = profile.calls_by_name();
    for (name, count) in own {
        assert_eq!(calls.get(name), Some(count), "{name}");
    }
    assert!(profile.pruned_contexts > 1000, "contexts were cut");
}

fn folded_calls(profile: &Profile) -> u64 {
    let nodes = profile.threads.iter().flat_map(|t| &t.nodes);
    nodes.filter(|n| n.folded).map(|n| n.calls).sum()
}

/// The hot path is whole in each of `threads` trees.
#[track_caller]
fn assert_hot_path(profile: &Profile, own: &BTreeMap<String, u64>, threads: usize) {
    let hot: Vec<_> = profile.nodes_named("hot_inner").collect();
    assert_eq!(hot.len(), threads, "one context in each tree, none cut");
    let mut calls = 0;
    for (thread, node) in hot {
        assert!(!node.folded);
        let path = profile.path(thread, node);
        assert!(
            path.ends_with(&["work", "hot_outer", "hot_middle", "hot_inner"].map(String::from)),
            "{path:?}"
        );
        calls += node.calls;
    }
    assert_eq!(calls, own["hot_inner"]);
}

#[test]
fn pruning_keeps_totals_exact_hot_paths_whole_and_memory_bounded() {
    let recorded = recorded(&[], &["20000"]);
    let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let own = own_counts(stdout.lines());
    let profile = &recorded.profile;
    assert_exact(profile, &own);
    assert_hot_path(profile, &own, 1);
    assert_eq!(
        folded_calls(profile),
        profile.pruned_calls,
        "what is in no tree was cut"
    );
    assert!(
        profile.memory_bytes <= LIMIT + LIMIT / 4,
        "{} bytes of trees",
        profile.memory_bytes
    );
    let nodes = || profile.threads.iter().flat_map(|t| &t.nodes);
    let base: u64 = nodes().map(|n| n.base).sum();
    let roots = nodes().filter(|n| n.parent.is_none() && !n.folded);
    let cum: u64 = roots.map(|n| n.cum).sum();
    assert!(
        base.abs_diff(cum) * 100 < cum,
        "no time is lost: {base} ns in all functions, {cum} ns from the roots"
    );
    for node in nodes().filter(|n| n.folded) {
        assert!(node.min <= node.max && node.base <= node.cum, "{node:?}");
    }
    assert!(
        recorded.stderr.contains("pruned"),
        "the summary says so: {}",
        recorded.stderr
    );
}

#[test]
fn each_thread_prunes_its_own_tree() {
    let recorded = recorded(&[], &["12000", "4"]);
    let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let own = own_counts(stdout.lines());
    assert_exact(&recorded.profile, &own);
    assert_hot_path(&recorded.profile, &own, 4);
}

#[test]
fn a_handler_that_interrupts_probes_all_the_time_loses_no_call_to_pruning() {
    for options in [&[][..], &["--no-clock"], &["--call-sites"]] {
        let recorded = recorded(options, &["20000", "2", "2000"]);
        let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
        assert_exact(&recorded.profile, &own_counts(stdout.lines()));
    }
}

#[test]
fn fork_children_prune_their_own_trees_too() {
    let recorded = recorded(&["--follow"], &["6000", "1", "0", "3"]);
    let stdout = String::from_utf8_lossy(&recorded.stdout).into_owned();
    let own = own_counts(stdout.lines());
    assert_exact(&recorded.profile, &own);
    assert_hot_path(&recorded.profile, &own, 4);
}

#[test]
fn who_reads_while_contexts_are_cut_sees_every_call_once() {
    let program = churn();
    let mut live = Live::ready(&program.path, &["0", "2"]);
    let id = live.id();
    succeed(&[&["attach", "-q", &id], &TIMED[..], &LIMITS[..]].concat());
    live.tell("begin");
    let scratch = Scratch::new();
    let read = || Profile::parse(&succeed(&["export", "-p", &id, "--format", "json"]));
    let mut pruned = 0;
    let mut rounds = 0;
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        // While it runs a reader sees no single moment; it must find trees all the same.
        read();
        live.send(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(20));
        let profile = read();
        live.send(Signal::SIGCONT);
        let calls = profile.calls_by_name();
        let chains: u64 = calls
            .iter()
            .filter(|(name, _)| name.starts_with("chain_"))
            .map(|(_, count)| count)
            .sum();
        let hot = calls.get("hot_outer").copied().unwrap_or(0);
        // Each of the two threads is in one round.
        assert!(
            chains.abs_diff(hot * DEPTH) <= 2 * DEPTH,
            "{chains} calls in {hot} rounds"
        );
        assert!(hot >= rounds, "{hot} rounds after {rounds}");
        assert!(profile.pruned_contexts >= pruned);
        (rounds, pruned) = (hot, profile.pruned_contexts);
    }
    live.send(Signal::SIGTERM);
    let mut lines = Vec::new();
    loop {
        match live.line() {
            line if line == "end" => break,
            line => lines.push(line),
        }
    }
    let file = scratch.join("all.thalweg");
    succeed(&["detach", &id, "-o", file.to_str().expect("UTF-8")]);
    assert_exact(
        &export(&file),
        &own_counts(lines.iter().map(String::as_str)),
    );
    live.assert_healthy();
}
