//! A budget: what stays switched on is counted to the unit, nothing else changes, and whoever keeps it can be killed.

use crate::support::build::{Build, run, targets};
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::{assert_patched, assert_restored};
use crate::support::thalweg::{command, refuse, succeed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use thalweg_model::{FuncId, Profile, read_file};

/// Module and address.
type Place = (String, u64);

pub fn place(profile: &Profile, function: FuncId) -> Place {
    let function = &profile.functions[function];
    let module = &profile.modules[function.module as usize];
    (module.name.clone(), function.address)
}

pub fn calls(profile: &Profile) -> BTreeMap<Place, u64> {
    let mut calls = BTreeMap::new();
    let threads = profile.processes.iter().flat_map(|p| &p.threads);
    for node in threads.flat_map(|thread| &thread.nodes) {
        *calls.entry(place(profile, node.function)).or_default() += node.calls;
    }
    calls
}

/// Functions that were off for a while.
pub fn off(profile: &Profile) -> BTreeSet<Place> {
    let was_off = profile.switched.iter().filter(|one| one.off_ns > 0);
    was_off.map(|one| place(profile, one.function)).collect()
}

/// A program, its arguments, and the file that it reads.
pub struct Run {
    pub program: PathBuf,
    arguments: Vec<String>,
    input: PathBuf,
}

impl Run {
    pub fn new(program: &str, arguments: &[&str]) -> Run {
        Run {
            program: Path::new("/usr/bin").join(program),
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            input: "/dev/null".into(),
        }
    }

    pub fn plain(&self) -> String {
        run(Command::new(&self.program)
            .args(&self.arguments)
            .stdin(File::open(&self.input).expect("input")))
    }

    pub fn record(&self, options: &[&str]) -> (String, Profile) {
        let scratch = Scratch::new();
        let file = scratch.join("profile.thalweg");
        let mut record = command();
        record
            .args(["record", "-q", "--no-report", "-o"])
            .arg(&file)
            .args(options)
            .arg("--")
            .arg(&self.program)
            .args(&self.arguments)
            .stdin(File::open(&self.input).expect("input"));
        let said = run(&mut record);
        (said, read_file(&file).expect("a profile"))
    }

    /// With a budget the program says the same, and all functions that were never off are called as often as without, of those that
    /// are called as often in every run.
    #[track_caller]
    fn check(&self, options: &[&str]) {
        let profile = self.check_in(&["--budget", "5%"], options);
        let off = off(&profile);
        assert!(off.len() >= 10, "only {} functions went off", off.len());
    }

    /// The same where every function goes from mode to mode all the time, and none is ever off.
    #[track_caller]
    fn check_restless(&self, options: &[&str]) {
        let profile = self.check_in(&["--restless"], options);
        assert_eq!(off(&profile), BTreeSet::new());
        let changes: u64 = profile.switched.iter().map(|one| one.changes).sum();
        assert!(changes >= 2_000, "only {changes} changes");
    }

    #[track_caller]
    fn check_in(&self, mode: &[&str], options: &[&str]) -> Profile {
        let exact: Vec<&str> = options.iter().copied().chain(["--no-clock"]).collect();
        let (said, profile) = self.record(&[mode, options].concat());
        assert_eq!(said, self.plain());
        let (seen, off) = (calls(&profile), off(&profile));
        let (once, again) = (self.record(&exact).1, self.record(&exact).1);
        let (once, again) = (calls(&once), calls(&again));
        let mut compared = 0;
        for (place, calls) in &once {
            if off.contains(place) || again.get(place) != Some(calls) {
                continue;
            }
            compared += 1;
            let seen = seen.get(place);
            assert!(
                seen == Some(calls) || self.may_be(&exact, place, seen),
                "{seen:?} calls of {place:?} instead of {calls}"
            );
        }
        assert!(compared >= 100, "only {compared} functions were compared");
        profile
    }

    /// Whether a function is called so often in some run without a budget: Lua's hashes have a seed from clock and addresses, and one
    /// run in sixty compares two strings more.
    fn may_be(&self, exact: &[&str], place: &Place, seen: Option<&u64>) -> bool {
        (0..300).any(|_| calls(&self.record(exact).1).get(place) == seen)
    }
}

fn lua() -> Run {
    let script = targets().join("real/work.lua");
    Run::new("lua5.4", &[script.to_str().expect("UTF-8"), "250"])
}

#[test]
fn sqlite_counts_stay_exact_under_a_budget() {
    let (_scratch, sqlite) = sqlite();
    sqlite.check(&[]);
}

#[test]
fn coroutines_and_jumps_out_of_functions_are_counted_exactly_under_a_budget() {
    lua().check(&[]);
}

#[test]
fn a_budget_goes_with_call_sites_and_pruning() {
    lua().check(&["--call-sites"]);
    lua().check(&["--prune-at", "64K"]);
}

#[test]
fn fork_children_are_counted_exactly_under_a_budget() {
    let script = "f() { for ((i = 0; i < 6000; i++)); do x=$((i * 7)); done; echo \"$1 $x\"; }; \
                  (f 1); (f 2); (f 3)";
    Run::new("bash", &["-c", script]).check(&[]);
}

#[test]
fn what_is_allocated_is_exact_under_a_budget() {
    let run = lua();
    let allocated = |options: &[&str]| {
        let (_, profile) = run.record(options);
        let seen = calls(&profile);
        let named = |name: &str| {
            let function = profile.functions.iter().position(|f| f.name == name);
            let place = place(&profile, FuncId(function.expect("an allocator") as u32));
            seen.get(&place).copied()
        };
        (named("malloc"), named("realloc"), named("free"))
    };
    let plain = allocated(&["--metric", "alloc"]);
    assert!(plain.1.is_some_and(|calls| calls > 1000), "{plain:?}");
    assert_eq!(allocated(&["--metric", "alloc", "--budget", "5%"]), plain);
}

fn sqlite() -> (Scratch, Run) {
    let scratch = Scratch::new();
    let input = scratch.join("work.sql");
    let work = std::fs::read_to_string(targets().join("real/work.sql")).expect("script");
    std::fs::write(&input, work.repeat(20)).expect("input");
    let mut sqlite = Run::new("sqlite3", &[":memory:"]);
    sqlite.input = input;
    (scratch, sqlite)
}

/// Hot functions, which a budget would switch off first, and one that is found by who is above it.
#[test]
fn counts_are_exact_while_every_function_changes_its_mode_all_the_time() {
    let (_scratch, run) = sqlite();
    run.check_restless(&["--lib", "sqlite"]);
    lua().check_restless(&["--lib", "lua"]);
}

#[test]
fn fork_children_are_counted_exactly_while_modes_change() {
    let script = "for i in 1 2 3 4; do lua5.4 \"$0\" 60 & done; wait";
    let work = targets().join("real/work.lua");
    let run = Run::new("bash", &["-c", script, work.to_str().expect("UTF-8")]);
    let exact = ["--no-clock", "--lib", "lua", "--follow"];
    let (once, again) = (calls(&run.record(&exact).1), calls(&run.record(&exact).1));
    let profile = run.record(&["--restless", "--lib", "lua", "--follow"]).1;
    let seen = calls(&profile);
    let same = once
        .iter()
        .filter(|(place, calls)| again.get(*place) == Some(*calls));
    let mut compared = 0;
    for (place, calls) in same {
        compared += 1;
        let seen = seen.get(place);
        assert!(
            seen == Some(calls) || run.may_be(&exact, place, seen),
            "{seen:?} calls of {place:?} instead of {calls}"
        );
    }
    assert!(compared >= 50, "only {compared} functions were compared");
}

#[test]
fn by_default_every_call_is_counted_and_nothing_is_off() {
    let (_scratch, run) = sqlite();
    let profile = run.check_in(&[], &["--lib", "sqlite"]);
    assert_eq!(off(&profile), BTreeSet::new());
    let counted = profile.switched.iter().filter(|one| one.changes > 0);
    assert!(counted.count() >= 20, "hot and short functions are counted");
    let (_, timed) = run.record(&["--time", "all", "--lib", "sqlite"]);
    assert!(timed.switched.is_empty());
    let nodes = timed
        .processes
        .iter()
        .flat_map(|p| &p.threads)
        .flat_map(|t| &t.nodes);
    assert!(nodes.clone().all(|node| node.untimed == 0));
}

#[test]
fn a_process_that_runs_has_a_budget_unless_told_otherwise() {
    for (options, budget) in [
        (&[][..], true),
        (&["--budget", "off"], false),
        (&["--time", "auto"], false),
        (&["--time", "all"], false),
        (&["--no-clock"], false),
        (&["--budget", "20"], true),
    ] {
        let live = target();
        succeed(&[&["attach", "-q", &live.id()], options].concat());
        assert_eq!(keeper(&live).is_some(), budget, "{options:?}");
        succeed(&["detach", "-q", "-o", "/dev/null", &live.id()]);
    }
    let refused = refuse(&["record", "--time", "all", "--budget", "5%", "--", "true"]);
    assert!(refused.contains("--time all"), "{refused}");
}

#[test]
fn rules_keep_the_same_calls_under_a_budget() {
    let rules = [
        "sqlite3_step",
        "sqlite3_free: arg1:ptr != null",
        "malloc: arg1:size > 2000",
        "malloc: above sqlite3_prepare_v2",
        "sqlite3_column_text: every 7",
    ];
    let (_scratch, sqlite) = sqlite();
    let mut options = vec!["--record-memory", "16M"];
    options.extend(rules.iter().flat_map(|rule| ["--rule", rule]));
    let kept = |profile: &Profile| -> Vec<u64> {
        profile
            .recorded
            .rules
            .iter()
            .map(|rule| rule.kept)
            .collect()
    };
    let (_, every) = sqlite.record(&options);
    options.extend(["--budget", "5%"]);
    let (said, some) = sqlite.record(&options);
    assert_eq!(said, sqlite.plain());
    assert_eq!(kept(&some), kept(&every));
    assert!(
        kept(&some).iter().all(|kept| *kept > 10),
        "{:?}",
        kept(&some)
    );
    let off = off(&some);
    assert!(off.len() >= 10, "only {} functions went off", off.len());
    for name in [
        "sqlite3_step",
        "sqlite3_free",
        "malloc",
        "sqlite3_prepare_v2",
    ] {
        let function = some.functions.iter().position(|f| f.name == name);
        let place = place(&some, FuncId(function.expect(name) as u32));
        assert!(!off.contains(&place), "{name} was off");
    }
    // What was not off is who they are called by; nobody was left by an exception.
    let calls = &some.recorded.calls;
    let with_parents = calls.iter().filter(|call| call.parent.is_some()).count();
    assert!(with_parents > calls.len() / 2, "{with_parents}");
    let ends = calls
        .iter()
        .filter(|c| c.end == thalweg_model::CallEnd::Unwound);
    assert_eq!(ends.count(), 0);
}

#[test]
fn rules_that_need_every_function_are_refused_with_a_budget() {
    for rule in ["f: caller main", "f: n > 3 and self > 1ms"] {
        let message = refuse(&["record", "--budget", "5%", "--rule", rule, "ls"]);
        assert!(
            message.contains("--budget") && message.contains(rule),
            "{message}"
        );
    }
}

/// Threads, exceptions and signals; it says how often its functions were called.
pub fn target() -> Live {
    let program = Build::new("switched")
        .compiler("g++")
        .source("switched.cpp")
        .flag("-O2")
        .finish();
    Live::ready(&program.path, &["2"])
}

pub fn own_counts(live: &mut Live) -> BTreeMap<String, u64> {
    live.tell("stop");
    let mut counts = BTreeMap::new();
    loop {
        let line = live.line();
        let words: Vec<&str> = line.split(' ').collect();
        let [name, calls, _] = words[..] else {
            return counts;
        };
        counts.insert(name.to_owned(), calls.parse().expect("a number"));
    }
}

pub fn keeper(live: &Live) -> Option<i32> {
    let status = succeed(&["status", &live.id(), "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    status["budget_kept_by"].as_i64().map(|pid| pid as i32)
}

pub fn functions_off(live: &Live) -> usize {
    let listed = succeed(&["switch", &live.id()]);
    let lines = listed.lines().filter(|line| line.contains("off "));
    lines.count()
}

#[track_caller]
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within 30 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn lives(pid: i32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn an_attached_process_has_a_keeper_until_it_is_detached() {
    let mut live = target();
    let scratch = Scratch::new();
    let before = live.text();
    succeed(&["attach", &live.id(), "--budget", "5%"]);
    let keeper = keeper(&live).expect("a keeper");
    live.tell("go");
    wait_until("functions go off", || functions_off(&live) > 0);
    assert_patched(&before, &live.text());
    let own = own_counts(&mut live);
    let file = scratch.join("out.thalweg");
    succeed(&["detach", &live.id(), "-o", file.to_str().expect("UTF-8")]);
    assert_restored(&before, &live.text());
    wait_until("the keeper ends", || !lives(keeper));
    let profile = read_file(&file).expect("a profile");
    let (seen, off) = (calls(&profile), off(&profile));
    for (index, function) in profile.functions.iter().enumerate() {
        let place = place(&profile, FuncId(index as u32));
        if let Some(calls) = own.get(&function.name)
            && !off.contains(&place)
        {
            let got = seen.get(&place).copied().unwrap_or(0);
            assert_eq!(got, *calls, "calls of {}", function.name);
        }
    }
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}

#[test]
fn a_keeper_that_is_killed_leaves_what_a_detach_undoes() {
    let mut live = target();
    let before = live.text();
    succeed(&["attach", &live.id(), "--budget", "5%"]);
    let id = keeper(&live).expect("a keeper");
    live.tell("go");
    wait_until("functions go off", || functions_off(&live) > 0);
    kill(Pid::from_raw(id), Signal::SIGKILL).expect("ours");
    wait_until("the keeper is gone", || keeper(&live).is_none());
    live.assert_healthy();
    assert!(functions_off(&live) > 0);
    succeed(&["detach", &live.id()]);
    assert_restored(&before, &live.text());
    assert!(own_counts(&mut live)["leaf"] > 0);
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}

#[test]
fn a_detach_in_the_middle_of_switching_restores_everything() {
    let mut live = target();
    let before = live.text();
    live.tell("go");
    for turn in 0..in_short_or_long(8, 80) {
        succeed(&["attach", &live.id(), "--budget", "5%"]);
        std::thread::sleep(Duration::from_millis(turn * 7 % 60));
        succeed(&["detach", &live.id()]);
        assert_restored(&before, &live.text());
        live.assert_healthy();
    }
    own_counts(&mut live);
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}

/// Nanoseconds for a unit of work, by function: as estimated, and how far off that may be by what reports print.
fn per_unit(options: &[&str]) -> BTreeMap<String, (f64, f64)> {
    let program = Build::new("sampled").source("sampled.c").flag("-O2");
    let mut live = Live::ready(&program.finish().path, &[]);
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    succeed(&["attach", "--time", "all", &live.id()]);
    if !options.is_empty() {
        let id = live.id();
        let all: Vec<&str> = ["switch", &id]
            .into_iter()
            .chain(options.iter().copied())
            .collect();
        succeed(&all);
    }
    live.tell("60000");
    let mut units = BTreeMap::new();
    loop {
        let line = live.line();
        let Some((name, number)) = line.split_once(' ') else {
            break;
        };
        units.insert(name.to_owned(), number.parse::<f64>().expect("a number"));
    }
    succeed(&["detach", &live.id(), "-o", file.to_str().expect("UTF-8")]);
    live.tell("end");
    let mut profile = read_file(&file).expect("a profile");
    thalweg_analysis::estimate(&mut profile);
    let rows = thalweg_analysis::flat(&profile);
    let row = |(name, units): (String, f64)| {
        let is_it = |function: FuncId| profile.functions[function].name == name;
        let row = rows
            .iter()
            .find(|row| is_it(row.function))
            .expect("it was called");
        (name, (row.self_ns as f64 / units, row.error as f64 / units))
    };
    units.into_iter().map(row).collect()
}

#[test]
fn what_is_estimated_from_some_calls_is_what_all_of_them_take() {
    let timed = per_unit(&[]);
    let sampled = per_unit(&["--time-some", "^(even|periodic|growing|tailed)$"]);
    // By what a unit takes in the same recording: another may have run at another clock rate. One in 64 counted off would have the periodic ones
    // 23 % too short or many times too long; what chance does is three times less.
    let (scale, _) = sampled["even"];
    let (timed_scale, _) = timed["even"];
    for (name, most) in [("periodic", 0.2), ("growing", 0.06)] {
        let (took, error) = sampled[name];
        let off = took / scale / (timed[name].0 / timed_scale) - 1.0;
        assert!(
            off.abs() < most,
            "{name} is {off:.3} off: {sampled:?} {timed:?}"
        );
        assert!(error > 0.0, "{name} has no error: {sampled:?}");
    }
    let (took, error) = sampled["tailed"];
    let right = timed["tailed"].0 * scale / timed_scale;
    assert!(
        (took - right).abs() < error.max(right * 0.05),
        "the error covers a long tail: {sampled:?} {timed:?}"
    );
}
