//! Probes that are switched while the target runs: nothing is lost, nothing is invented, and nothing stays behind.

use crate::budget::wait_until;
use crate::support::build::Build;
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_patched, assert_restored};
use crate::support::thalweg::{command, export, record, refuse, succeed};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Functions that are switched off now and then; all others are counted all the time.
const SOMETIMES_OFF: [&str; 2] = ["sometimes", "sometimes_landed"];

/// Of a function that only the two threads' own code calls: handlers do not.
const AMID_AN_ENTRY: u64 = 2;

fn target() -> Live {
    let program = Build::new("switched")
        .compiler("g++")
        .source("switched.cpp")
        .flag("-O2")
        .finish();
    Live::ready(&program.path, &["2"])
}

/// What the program itself has counted: calls, and how often each function was left by an exception.
fn own_counts(live: &mut Live) -> BTreeMap<String, (u64, u64)> {
    live.tell("stop");
    let mut counts = BTreeMap::new();
    loop {
        let line = live.line();
        let words: Vec<&str> = line.split(' ').collect();
        let [name, calls, unwound] = words[..] else {
            assert_eq!(line, "end");
            return counts;
        };
        let number = |word: &str| word.parse().expect("a number");
        counts.insert(name.to_owned(), (number(calls), number(unwound)));
    }
}

fn recorded(file: &Path) -> BTreeMap<String, (u64, u64)> {
    let profile = export(file);
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for node in profile.threads.iter().flat_map(|thread| &thread.nodes) {
        let name = profile.functions[node.function].name.clone();
        let sum = counts.entry(name).or_default();
        sum.0 += node.calls;
        sum.1 += node.unwound;
    }
    counts
}

#[track_caller]
fn assert_exact(live: &mut Live, file: &Path) {
    let own = own_counts(live);
    succeed(&["detach", &live.id(), "-o", file.to_str().expect("UTF-8")]);
    let seen = recorded(file);
    for (name, counts) in &own {
        let got = seen.get(name).copied().unwrap_or_default();
        if SOMETIMES_OFF.contains(&name.as_str()) {
            assert!(got.0 <= counts.0, "{name}: {got:?} of {counts:?}");
        } else {
            assert_eq!(got, *counts, "calls and exceptions of {name}");
        }
    }
}

/// A simple generator: the same orders on every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

#[test]
fn counts_are_exact_through_hundreds_of_switches() {
    let mut live = target();
    let scratch = Scratch::new();
    let before = live.text();
    succeed(&["attach", "--time", "all", &live.id()]);
    live.tell("go");
    let all = [
        "leaf|middle",
        "short_one|jumper",
        "landed",
        "by_pointer",
        "fib",
        "thrower|between",
        "catcher|one_round",
        "on_tick",
        "^malloc$|free|cxa",
    ];
    let ways = ["--count", "--time-some", "--time"];
    let mut draw = Draw(7);
    for turn in 0..in_short_or_long(120, 1000) {
        let mut arguments = vec!["switch".to_owned(), live.id()];
        for name in SOMETIMES_OFF {
            let ways = ["--off", "--off", "--count", "--time-some", "--time"];
            let way = ways[draw.below(ways.len() as u64) as usize];
            arguments.extend([way.to_owned(), format!("^{name}$")]);
        }
        for names in all {
            if draw.below(2) == 0 {
                let way = ways[draw.below(ways.len() as u64) as usize];
                arguments.extend([way.to_owned(), names.to_owned()]);
            }
        }
        let said = succeed(&arguments);
        assert!(
            (said.contains("function switched") || said.contains("functions switched")),
            "turn {turn}: {said}"
        );
    }
    live.assert_healthy();
    assert_patched(&before, &live.text());
    assert_exact(&mut live, &scratch.join("out.thalweg"));
    assert_restored(&before, &live.text());
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}

/// Calls of the function are on the stack when it goes off, and nobody sees them return: from then on time is their caller's, though nothing is
/// called any more that could tell.
#[test]
fn what_runs_while_a_function_is_off_is_its_callers_time() {
    let program = Build::new("truth")
        .source("bench/truth.c")
        .flag("-O2")
        .flag("-pthread")
        .finish();
    let options = ["--budget", "5%", "--samples", "0"];
    let recorded = record(&options, &program, &["recursion", "3000000"]);
    let profile = &recorded.profile;
    let base = |name: &str| -> u64 {
        let nodes = profile.threads.iter().flat_map(|thread| &thread.nodes);
        let of = nodes.filter(|node| profile.functions[node.function].name == name);
        of.map(|node| node.base).sum()
    };
    assert!(
        base("work") > base("fibonacci"),
        "work {}, fibonacci {}",
        base("work"),
        base("fibonacci")
    );
}

#[test]
fn a_function_that_is_off_is_as_it_was_and_comes_back() {
    let mut live = target();
    let scratch = Scratch::new();
    let file = |name: &str| scratch.join(name).to_str().expect("UTF-8").to_owned();
    let before = live.text();
    succeed(&[
        "attach",
        "--time",
        "all",
        &live.id(),
        "-F",
        "^(sometimes|leaf|middle)$",
    ]);
    live.tell("go");
    let id = live.id();
    let calls = |name: &str| {
        succeed(&["checkpoint", &id, "-o", &file(name), "-q"]);
        recorded(&scratch.join(name))
            .get("sometimes")
            .map_or(0, |c| c.0)
    };
    let said = succeed(&["switch", &live.id(), "--off", "^sometimes$"]);
    assert!(said.contains("1 function switched, with a stop"), "{said}");
    // Each of the two threads may have been amid the entry, and counts that call when it gets a processor.
    let first = calls("a.thalweg");
    std::thread::sleep(Duration::from_millis(100));
    let second = calls("b.thalweg");
    assert!(
        second - first <= AMID_AN_ENTRY,
        "{first}, then {second}: nothing counts what is off"
    );
    let listed = succeed(&["switch", &live.id()]);
    assert!(listed.contains("off      sometimes"), "{listed}");
    succeed(&["switch", &live.id(), "--time-some", "^sometimes$"]);
    assert_patched(&before, &live.text());
    wait_until("it counts again", || {
        calls("c.thalweg") > second + AMID_AN_ENTRY
    });
    // The same by module: nothing of the C library has that name, and nothing else was meant.
    let (id, here) = (live.id(), "^switched");
    let elsewhere = refuse(&["switch", &id, "--off", "^sometimes$", "--lib", "^libc"]);
    assert!(
        elsewhere.contains("that --lib and --no-lib leave"),
        "{elsewhere}"
    );
    refuse(&["switch", &id, "--off", "^sometimes$", "--no-lib", here]);
    refuse(&["switch", &id, "--lib", here]);
    let said = succeed(&["switch", &id, "--count", "^sometimes$", "--lib", here]);
    assert!(said.contains("sometimes"), "{said}");
    succeed(&["switch", &id, "--time-some", "^sometimes$"]);
    let message = refuse(&["switch", &live.id(), "--off", "no_such_function"]);
    assert!(message.contains("no_such_function"), "{message}");
    succeed(&["switch", &live.id(), "--off", "^sometimes$"]);
    succeed(&["detach", &live.id(), "-o", &file("d.thalweg")]);
    assert_restored(&before, &live.text());
    own_counts(&mut live);
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}

#[test]
fn what_rules_need_is_not_switched_off_and_it_is_said_which_rule_that_is() {
    let mut live = target();
    let id = live.id();
    let rule = "leaf: above one_round and every 1000";
    succeed(&["attach", "--time", "all", &id, "--rule", rule]);
    let refused = |name: &str| refuse(&["switch", &id, "--off", name]);
    let rules = |change: &str, what: &str| succeed(&["rules", "-p", &id, change, what]);
    let chosen = refused("^leaf$");
    assert!(chosen.contains(rule), "{chosen}");
    assert!(chosen.contains("--remove 1"), "{chosen}");
    let above = refused("^one_round$");
    assert!(above.contains("rule 1, "), "{above}");
    let some = succeed(&["switch", &id, "--off", "^(leaf|sometimes)$"]);
    assert!(some.contains("1 function switched"), "{some}");
    assert!(some.contains("stays as it is: leaf: rule 1"), "{some}");

    // Whoever called it is known only where everybody is counted.
    let caller = "middle: caller one_round";
    let late = refuse(&["rules", "-p", &id, "--add", caller]);
    assert!(late.contains("switch on what is off"), "{late}");
    succeed(&["switch", &id, "--time", "^sometimes$"]);
    rules("--add", caller);
    let all = refused("^sometimes$");
    assert!(all.contains("rule 2, "), "{all}");
    rules("--remove", "2");
    succeed(&["switch", &id, "--off", "^sometimes$"]);
    rules("--remove", "1");
    let free = succeed(&["switch", &id, "--off", "^(leaf|one_round)$"]);
    assert!(free.contains("2 functions switched"), "{free}");

    live.tell("go");
    succeed(&["detach", &id]);
    own_counts(&mut live);
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}

#[test]
fn whoever_is_killed_between_two_switches_leaves_what_a_detach_undoes() {
    let mut live = target();
    let before = live.text();
    let scratch = Scratch::new();
    succeed(&["attach", "--time", "all", &live.id()]);
    live.tell("go");
    for turn in 0..in_short_or_long(30, 300) {
        let way = ["--off", "--time"][turn as usize % 2];
        let mut child = command()
            .args(["switch", &live.id(), way, "^[f-s]"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("thalweg starts");
        std::thread::sleep(Duration::from_micros(turn * 1700 % 40_000));
        let _ = child.kill();
        child.wait().expect("it ends");
        live.assert_healthy();
    }
    let file = scratch.join("out.thalweg");
    succeed(&["detach", &live.id(), "-o", file.to_str().expect("UTF-8")]);
    assert_restored(&before, &live.text());
    let own = own_counts(&mut live);
    assert!(own["leaf"].0 > 0);
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}
