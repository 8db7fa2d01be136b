//! Samples of stacks on a timer: they agree with what programs know of themselves, whatever is switched, displaced, born or killed
//! meanwhile, and what cannot be followed is said to be so.

use crate::support::build::{Build, Program, run};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, refuse, succeed, through};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use thalweg_model::{FuncId, Profile, Sampling, Thread, read_file};

pub fn sampled() -> Program {
    Build::new("sampling")
        .source("sampling.c")
        .flag("-O2")
        .link_flag("-ldl")
        .finish()
}

/// What the program said, whatever came of it, and the profile.
pub fn record(options: &[&str], arguments: &[&str]) -> (String, Profile) {
    record_program(&sampled().path, options, arguments)
}

pub fn record_program(program: &Path, options: &[&str], arguments: &[&str]) -> (String, Profile) {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let mut record = command();
    record.args(["record", "-q", "-o"]).arg(&file).args(options);
    record.arg("--").arg(program).args(arguments);
    let output = record.output().expect("thalweg starts");
    let said = String::from_utf8(output.stdout).expect("text");
    (said, read_file(&file).expect("a profile"))
}

pub fn sampling(profile: &Profile) -> Sampling {
    profile.meta.sampling.expect("stacks were sampled")
}

pub fn threads(profile: &Profile) -> impl Iterator<Item = &Thread> {
    profile
        .processes
        .iter()
        .flat_map(|process| &process.threads)
}

/// Names, outermost first, with how often such a stack was seen.
pub fn stacks<'a>(profile: &'a Profile, thread: &'a Thread) -> BTreeMap<Vec<&'a str>, u64> {
    let mut paths: Vec<Vec<&str>> = Vec::new();
    let mut stacks = BTreeMap::new();
    for node in &thread.samples {
        let mut path = node
            .parent
            .map_or_else(Vec::new, |p| paths[p as usize].clone());
        path.push(profile.functions[node.function].name.as_str());
        if node.own > 0 {
            *stacks.entry(path.clone()).or_default() += node.own;
        }
        paths.push(path);
    }
    stacks
}

pub fn all_stacks(profile: &Profile) -> BTreeMap<Vec<&str>, u64> {
    let mut all = BTreeMap::new();
    for thread in threads(profile) {
        for (stack, samples) in stacks(profile, thread) {
            *all.entry(stack).or_default() += samples;
        }
    }
    all
}

/// Functions that were off for a while.
pub fn off(profile: &Profile) -> BTreeSet<FuncId> {
    let was_off = profile.switched.iter().filter(|one| one.off_ns > 0);
    was_off.map(|one| one.function).collect()
}

/// Samples that found the function at work itself or below it.
pub fn samples_of(profile: &Profile, name: &str) -> u64 {
    let all = all_stacks(profile);
    let with = all.iter().filter(|(stack, _)| stack.contains(&name));
    with.map(|(_, samples)| samples).sum()
}

/// What a program says of one thread under one name (`sampling.c`).
#[derive(Clone, Debug)]
pub struct Spell {
    pub name: String,
    pub tid: u32,
    pub ms: f64,
    /// In steps so long that a timer may have come once for several times that it was due.
    late_ms: f64,
    /// How often it was switched out or began anew.
    stretches: f64,
}

pub fn spells(said: &str) -> Vec<Spell> {
    let lines = said.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, tid, ms, late, switches, times] = words[..] else {
            return None;
        };
        let number = |word: &str| word.parse::<f64>().expect("a number");
        Some(Spell {
            name: name.into(),
            tid: number(tid) as u32,
            ms: number(ms),
            late_ms: number(late),
            stretches: number(switches) + number(times),
        })
    });
    lines.collect()
}

#[track_caller]
pub fn spell(said: &str, name: &str) -> Spell {
    let mut all = spells(said).into_iter();
    all.find(|spell| spell.name == name)
        .unwrap_or_else(|| panic!("{name} is not in {said}"))
}

/// So many samples are as many as were due, whatever else the machine did. A timer of processor time comes once in a period. In a
/// stretch that begins anywhere within a period the number is one up or down, with a variance of a quarter at most; and
/// samples that were lost, or found a probe, are not among those seen. A timer that comes late because the host has taken the
/// processor away is not made up for: 2 % were seen to be missing at a load of fifty.
#[track_caller]
pub fn assert_due(seen: u64, spell: &Spell, all: &Sampling) {
    let due = |ms: f64| ms * 1e6 / all.period_ns as f64;
    let chance = 1.0 + 4.5 * 0.5 * spell.stretches.sqrt();
    let missing = (all.in_probes + all.lost + all.cut_short) as f64;
    const LATE: f64 = 0.05;
    let least = due(spell.ms - spell.late_ms) * (1.0 - LATE) - chance - missing;
    let most = due(spell.ms) + chance;
    let seen = seen as f64;
    assert!(
        least <= seen && seen <= most,
        "{seen} samples where {least} to {most} are due: {spell:?} {all:?}"
    );
}

/// Whether so many of `all` may be seen of something that has this share, but for one run in many thousands; the rest of the slack is for what
/// the program's own clock cannot see.
pub fn is_likely(seen: u64, all: u64, share: f64) -> bool {
    let (seen, all) = (seen as f64, all as f64);
    let deviation = (share * (1.0 - share) / all).sqrt();
    (seen / all - share).abs() < 4.5 * deviation + 0.015
}

/// Whether something is seen in one of several runs: what happens at all, but not before the sampler or the budget gets a processor.
pub fn once(mut is_seen: impl FnMut() -> bool) -> bool {
    const RUNS: u32 = 10;
    (0..RUNS).any(|_| is_seen())
}

fn assert_shares(options: &[&str]) -> Profile {
    let (said, profile) = record(options, &["shares", "3000"]);
    let took = spells(&said);
    assert_eq!(took.len(), 3, "{said}");
    let all_ms: f64 = took.iter().map(|spell| spell.ms).sum();
    let samples: u64 = took
        .iter()
        .map(|spell| samples_of(&profile, &spell.name))
        .sum();
    let all = sampling(&profile);
    assert_eq!(all.cut_short, 0);
    for spell in took {
        let seen = samples_of(&profile, &spell.name);
        assert!(
            is_likely(seen, samples, spell.ms / all_ms),
            "{spell:?} of {all_ms} ms was seen by {seen} of {samples} samples"
        );
        // As often as was asked for.
        assert_due(seen, &spell, &all);
    }
    profile
}

#[test]
fn time_is_seen_where_it_is_spent() {
    let profile = assert_shares(&["--samples", "2999"]);
    let all = threads(&profile).flat_map(|thread| &thread.samples);
    let counted: BTreeSet<&str> = all
        .filter(|node| node.counted)
        .map(|node| profile.functions[node.function].name.as_str())
        .collect();
    assert!(counted.is_superset(&BTreeSet::from(["main", "six", "three", "one"])));
    for stack in all_stacks(&profile).keys() {
        let is_whole = stack.starts_with(&["_start"]) || !stack.contains(&"main");
        assert!(is_whole, "from its beginning: {stack:?}");
    }
}

#[test]
fn what_is_not_counted_is_seen_as_well_and_stands_where_it_was_called() {
    let profile = assert_shares(&["--samples", "2999", "-N", "^(six|three|one)$"]);
    for name in ["six", "three", "one"] {
        let function = |number: u32| &profile.functions[number as usize];
        let mut nodes = threads(&profile).flat_map(|thread| &thread.nodes);
        assert!(!nodes.any(|node| function(node.function.0).name == name));
        let thread = threads(&profile).next().expect("a thread");
        let of_it = thread
            .samples
            .iter()
            .filter(|node| function(node.function.0).name == name);
        for node in of_it {
            assert!(!node.counted);
            let caller = node.parent.map(|parent| &thread.samples[parent as usize]);
            let caller = caller.expect("a caller");
            assert!(caller.counted && function(caller.function.0).name == "main");
        }
    }
}

/// Milliseconds of a function, with what it called, as reports show it.
fn shown_ms(profile: &Profile, name: &str) -> f64 {
    let rows = thalweg_analysis::flat(profile);
    let row = rows
        .iter()
        .find(|row| profile.functions[row.function].name == name);
    row.map_or(0.0, |row| row.total_ns as f64 / 1e6)
}

#[test]
fn what_is_not_counted_has_the_time_that_it_took() {
    let options = ["--samples", "2999", "-N", "^(six|three|one)$"];
    let (said, mut profile) = record(&options, &["shares", "3000"]);
    assert_eq!(shown_ms(&profile, "six"), 0.0);
    let whole = shown_ms(&profile, "main");
    let samples = samples_of(&profile, "main");
    assert!(thalweg_analysis::attribute_samples(&mut profile));
    assert!((shown_ms(&profile, "main") - whole).abs() < 0.001);
    for Spell { name, ms, .. } in spells(&said) {
        let shown = shown_ms(&profile, &name);
        let seen = (shown / whole * samples as f64) as u64;
        assert!(
            is_likely(seen, samples, ms / whole),
            "{name} took {ms} ms and is shown with {shown} of {whole}, by {samples} samples"
        );
    }
}

/// Functions of a few instructions, of which a clock would tell nothing true.
#[test]
fn what_a_budget_switched_off_has_its_time_back() {
    let (_, mut profile) = record(&["--budget", "5%"], &["tiny", "150000000"]);
    thalweg_analysis::compensate(&mut profile);
    thalweg_analysis::estimate(&mut profile);
    let samples: u64 = threads(&profile)
        .flat_map(|t| &t.samples)
        .map(|n| n.own)
        .sum();
    let names = ["tiny_leaf", "tiny_caller", "tiny_pushes", "tiny_jumps"];
    let seen: Vec<f64> = names
        .iter()
        .map(|name| samples_of(&profile, name) as f64 / samples as f64)
        .collect();
    let whole = shown_ms(&profile, "main");
    assert!(thalweg_analysis::attribute_samples(&mut profile));
    for (name, seen) in names.iter().zip(seen) {
        let shown = shown_ms(&profile, name) / whole;
        assert!(
            (shown - seen).abs() < 0.1,
            "{name} was seen by {seen} of the samples and is shown with {shown} of the time"
        );
    }
    let rows = thalweg_analysis::flat(&profile);
    let all: u64 = rows.iter().map(|row| row.self_ns).sum();
    assert!(all as f64 / 1e6 <= whole * 1.05, "nothing is added");
}

#[test]
fn a_budget_has_samples_unless_the_user_says_no() {
    let mut profile = Profile::default();
    // What was switched off is seen as such.
    let seen_off = once(|| {
        profile = record(&["--budget", "5%"], &["tiny", "60000000"]).1;
        let off = off(&profile);
        let mut nodes = threads(&profile).flat_map(|thread| &thread.samples);
        nodes.any(|node| off.contains(&node.function) && !node.counted)
    });
    assert!(seen_off, "{:?}", profile.meta.sampling);
    assert_eq!(1_000_000_000 / sampling(&profile).period_ns, 498);
    // What is counted was so when it was seen.
    let off = off(&profile);
    let nodes = || threads(&profile).flat_map(|thread| &thread.samples);
    let called: BTreeSet<FuncId> = threads(&profile)
        .flat_map(|t| &t.nodes)
        .map(|node| node.function)
        .collect();
    for node in
        nodes().filter(|node| called.contains(&node.function) && !off.contains(&node.function))
    {
        assert!(
            node.counted,
            "{} was never off",
            profile.functions[node.function].name
        );
    }
    let (_, profile) = record(&["--budget", "5%", "--samples", "0"], &["tiny", "300000"]);
    assert_eq!(profile.meta.sampling, None);
    // By default too.
    let (_, profile) = record(&[], &["tiny", "1000"]);
    assert_eq!(1_000_000_000 / sampling(&profile).period_ns, 996);
    let (_, profile) = record(&["--samples", "0"], &["tiny", "1000"]);
    assert_eq!(profile.meta.sampling, None);
}

/// What goes off was on when it began, and is off for most of the time.
#[test]
fn samples_are_judged_by_what_held_when_they_were_made() {
    let options = ["--budget", "5%", "--samples", "10000"];
    // On a busy machine they may be off before anybody samples them.
    let seen_on = once(|| {
        let (_, profile) = record(&options, &["tiny", "60000000"]);
        let went_off: BTreeSet<FuncId> = profile
            .switched
            .iter()
            .filter(|one| one.off_ns > 0)
            .map(|one| one.function)
            .filter(|f| profile.functions[f.index()].name.starts_with("tiny"))
            .collect();
        let samples = |counted: bool| -> u64 {
            let nodes = threads(&profile).flat_map(|thread| &thread.samples);
            let of_these = nodes.filter(|n| n.counted == counted && went_off.contains(&n.function));
            of_these.map(|node| node.own).sum()
        };
        let (on, off) = (samples(true), samples(false));
        assert!(off > on, "{on} samples while on, {off} while off");
        on > 0
    });
    assert!(seen_on, "nothing was ever seen while it was on");
}

/// Short functions run in stubs for the most part: their entries, their exits, and calls that push an address of the text.
#[test]
fn displaced_code_is_its_functions() {
    let (_, profile) = record(&["--samples", "10000"], &["tiny", "8000000"]);
    let Sampling {
        samples,
        cut_short,
        in_probes,
        ..
    } = sampling(&profile);
    assert_eq!(cut_short, 0, "of {samples} samples");
    assert!(in_probes > samples / 2, "{in_probes} of {samples}");
    let known: BTreeSet<Vec<&str>> = [
        vec!["main"],
        vec!["main", "tiny_pushes"],
        vec!["main", "tiny_pushes", "tiny_leaf"],
        vec!["main", "tiny_caller"],
        vec!["main", "tiny_caller", "tiny_leaf"],
        vec!["main", "tiny_jumps"],
    ]
    .into();
    let mut seen = BTreeSet::new();
    for (stack, samples) in all_stacks(&profile) {
        if let Some(main) = stack.iter().position(|name| *name == "main") {
            let tail = &stack[main..];
            assert!(
                known.contains(tail) || !tail.iter().any(|name| name.starts_with("tiny")),
                "{samples} samples: {stack:?}"
            );
            seen.insert(tail.to_vec());
        }
    }
    assert!(seen.len() > 3, "{seen:?}");
}

#[test]
fn a_stack_that_is_too_deep_is_cut_short_and_nobodys() {
    let (said, profile) = record(&["--samples", "999"], &["deep", "1000000"]);
    let all = sampling(&profile);
    let (samples, cut_short) = (all.samples, all.cut_short);
    assert!(cut_short > samples * 9 / 10, "{cut_short} of {samples}");
    assert_eq!(samples_of(&profile, "bottom"), 0);
    let none = Sampling {
        cut_short: 0,
        ..all
    };
    assert_due(cut_short, &spell(&said, "bottom"), &none);
    // More is copied where that helps, as soon as enough were too deep.
    let seen_whole = once(|| {
        let (_, profile) = record(&["--samples", "999"], &["deep", "30000"]);
        let seen = all_stacks(&profile);
        for stack in seen.keys().filter(|stack| stack.contains(&"bottom")) {
            let down = stack.iter().filter(|name| **name == "sink_down").count();
            assert_eq!(down, 9, "30,000 bytes by steps of 4096: {stack:?}");
        }
        samples_of(&profile, "bottom") > 0
    });
    assert!(seen_whole, "no more of a stack was ever copied");
}

#[test]
fn threads_that_come_and_go_are_seen_from_beginning_to_end() {
    let (said, profile) = record(&["--samples", "1999"], &["threads", "12"]);
    let all = sampling(&profile);
    let spells = spells(&said);
    assert_eq!(spells.len(), 13, "{said}");
    // Each thread has samples of its own, and nobody else's.
    for spell in &spells {
        let mut all_threads = threads(&profile);
        let thread = all_threads.find(|thread| thread.tid == spell.tid);
        let own = stacks(&profile, thread.expect("the thread"));
        let with = own
            .iter()
            .filter(|(stack, _)| stack.contains(&spell.name.as_str()));
        let seen = with.map(|(_, samples)| samples).sum();
        assert_due(seen, spell, &all);
    }
}

/// Numbers come again soon in a namespace of a program's own.
#[test]
fn a_later_thread_with_the_same_number_has_samples_of_its_own() {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let mut record = through("unshare");
    record.args(["--pid", "--fork", "--mount-proc", "--kill-child"]);
    record.arg(command().get_program());
    record.args(["record", "-q", "--samples", "1999", "-o"]);
    record
        .arg(&file)
        .arg("--")
        .args([&sampled().path, Path::new("same")]);
    let output = record.output().expect("unshare starts");
    assert!(output.status.success(), "{output:?}");
    let profile = read_file(&file).expect("a profile");
    let with = |name: &str| -> Vec<&Thread> {
        let has = |thread: &&Thread| {
            let all = stacks(&profile, thread);
            all.keys().any(|stack| stack.contains(&name))
        };
        threads(&profile).filter(has).collect()
    };
    let (earlier, later) = (with("earlier"), with("later"));
    assert_eq!((earlier.len(), later.len()), (1, 1));
    assert_eq!(earlier[0].tid, later[0].tid, "the same number");
    assert!(
        earlier[0].start_ns < later[0].start_ns,
        "not the same thread"
    );
}

#[test]
fn fork_children_are_seen_and_a_killed_program_leaves_what_was() {
    let (said, profile) = record(&["--samples", "999"], &["forks"]);
    let child = profile.processes.iter().find(|process| {
        let mut all = process
            .threads
            .iter()
            .flat_map(|thread| stacks(&profile, thread));
        all.any(|(stack, _)| stack.contains(&"in_the_child"))
    });
    assert!(child.expect("the child").parent.is_some());
    let seen = samples_of(&profile, "in_the_child");
    assert_due(seen, &spell(&said, "in_the_child"), &sampling(&profile));
    let (said, profile) = record(&["--samples", "999"], &["killed"]);
    let seen = samples_of(&profile, "bottom");
    assert_due(seen, &spell(&said, "bottom"), &sampling(&profile));
}

#[test]
fn the_program_says_the_same_with_and_without() {
    let plain = run(Command::new(sampled().path).args(["tiny", "100000"]));
    let (said, _) = record(&["--samples", "10000"], &["tiny", "100000"]);
    assert_eq!(said, plain);
}

#[test]
fn where_the_kernel_refuses_what_was_asked_for_is_an_error_and_a_budget_goes_on_without() {
    let forbid = Build::simple("forbid.c");
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let record = |options: &[&str]| {
        let mut record = through(&forbid.path);
        record.arg(command().get_program());
        record.args(["record", "-q", "-d", "200ms", "-p", &live.id(), "-o"]);
        record.arg(&file).args(options);
        record.output().expect("it starts")
    };
    let refused = record(&["--samples", "99"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("kernel.perf_event_paranoid"), "{message}");
    assert!(!file.exists());
    assert_restored(&before, &live.text());
    let goes_on = record(&["--budget", "5%"]);
    assert!(goes_on.status.success(), "{goes_on:?}");
    let profile = read_file(&file).expect("a profile");
    assert_eq!(profile.meta.sampling, None);
    let mut notes = profile.notes.iter();
    assert!(notes.any(|note| note.contains("performance events")));
    assert!(calls(&profile) > 0);
}

fn calls(profile: &Profile) -> u64 {
    let nodes = threads(profile).flat_map(|thread| &thread.nodes);
    nodes.map(|node| node.calls).sum()
}

#[test]
fn a_rate_that_makes_no_sense_is_refused() {
    for rate in ["10001", "-1", "many"] {
        let option = format!("--samples={rate}");
        let message = refuse(&["record", &option, "--", "true"]);
        assert!(message.contains("0 to 10000"), "{message}");
    }
    let message = refuse(&["record", "--samples", "99", "--no-clock", "--", "true"]);
    assert!(message.contains("--no-clock"), "{message}");
}

/// How often each stack was newly seen and for how long it stayed: as the samples themselves say, of a program that is always below
/// `main` and comes back to three functions again and again.
#[test]
fn stacks_are_newly_seen_as_often_as_they_began_between_two_samples() {
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    let mut record = command();
    record.args(["record", "-q", "--samples", "1999", "-o"]);
    record.arg(&file).arg("--").arg(sampled().path);
    assert!(
        record
            .args(["shares", "8000"])
            .output()
            .expect("it starts")
            .status
            .success()
    );
    let path = file.to_str().expect("UTF-8");
    let said = succeed(&["report", "--samples", "--json", path]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let profile = read_file(&file).expect("a profile");
    let thread = threads(&profile).next().expect("a thread");
    let found = &said["threads"][0];
    let known: Vec<Vec<&str>> = thread
        .timeline
        .samples
        .iter()
        .filter_map(|one| one.sample)
        .map(|node| path_of(&profile, thread, node))
        .collect();
    assert!(known.len() > 20, "{}", known.len());
    assert_eq!(found["samples"].as_u64(), Some(known.len() as u64));
    for name in ["main", "six", "three", "one"] {
        let rows = found["stacks"].as_array().expect("rows");
        let rows: Vec<_> = rows.iter().filter(|row| row["name"] == name).collect();
        assert_eq!(rows.len(), 1, "{name} stands at one place: {said}");
        let has = |stack: &Vec<&str>| stack.contains(&name);
        let samples = known.iter().filter(|stack| has(stack)).count();
        let first = usize::from(known.first().is_some_and(has));
        let began = known
            .windows(2)
            .filter(|two| !has(&two[0]) && has(&two[1]))
            .count();
        assert_eq!(rows[0]["samples"], samples, "{name}");
        assert_eq!(rows[0]["newly_seen"], first + began, "{name}");
        assert!(rows[0]["longest_ns"].as_u64() >= rows[0]["mean_ns"].as_u64());
    }
    let rows = found["stacks"].as_array().expect("rows");
    let main = rows
        .iter()
        .find(|row| row["name"] == "main")
        .expect("it is there");
    assert_eq!(main["newly_seen"], 1, "it never ends");
    let refused = refuse(&["report", "--samples", "--focus", "six", path]);
    assert!(refused.contains("do not go with it"), "{refused}");
}

fn path_of<'a>(profile: &'a Profile, thread: &Thread, node: u32) -> Vec<&'a str> {
    let mut path = Vec::new();
    let mut next = Some(node);
    while let Some(node) = next {
        let node = &thread.samples[node as usize];
        path.push(profile.functions[node.function].name.as_str());
        next = node.parent;
    }
    path
}

/// As other samplers do it: no function is patched, of the processes that it starts neither, and shares of time are right.
#[test]
fn samples_alone_tell_shares_of_time_and_patch_no_function() {
    let profile = assert_shares(&["--samples", "2999", "--samples-only"]);
    let nodes = || threads(&profile).flat_map(|thread| &thread.nodes);
    assert!(nodes().all(|node| node.calls == 0), "nothing is counted");
    assert!(
        threads(&profile)
            .flat_map(|one| &one.samples)
            .all(|one| !one.counted)
    );

    let mut live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let scratch = Scratch::new();
    let file = scratch.join("live.thalweg");
    let path = file.to_str().expect("UTF-8");
    // Said how often: its threads leave their processors so often that timers would be rare.
    let id = live.id();
    let recording = [
        "record",
        "-q",
        "--samples-only",
        "--samples",
        "499",
        "-d",
        "1s",
        "-p",
        &id,
        "-o",
        path,
    ];
    succeed(&recording);
    assert_restored(&before, &live.text());
    let profile = read_file(&file).expect("a profile");
    assert!(all_stacks(&profile).values().sum::<u64>() > 10);
    assert!(
        threads(&profile)
            .flat_map(|one| &one.nodes)
            .all(|node| node.calls == 0)
    );
    live.assert_healthy();

    let refused = refuse(&["record", "--samples-only", "--samples", "0", "--", "true"]);
    assert!(refused.contains("nothing to go by"), "{refused}");
}
