//! A process that stays beside an attached one, keeps its budget and samples it: what it has seen is in all that is read, outlives it, and
//! was judged by the states that held.

use crate::budget::{functions_off, keeper, lives, own_counts, target, wait_until};
use crate::samples::{off, sampling, threads};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Stdio;
use std::time::Duration;
use thalweg_model::{Profile, SampleNode, read_file};

fn nodes(profile: &Profile) -> impl Iterator<Item = &SampleNode> {
    threads(profile).flat_map(|thread| &thread.samples)
}

fn name_of(profile: &Profile, node: &SampleNode) -> String {
    profile.functions[node.function].name.clone()
}

fn save(verb: &str, live: &Live) -> Profile {
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let path = file.to_str().expect("UTF-8");
    succeed(&[verb, &live.id(), "-q", "-o", path]);
    read_file(&file).expect("a profile")
}

fn end(mut live: Live) {
    live.tell("end");
    let (_, status) = live.wait(Duration::from_secs(60));
    assert!(status.success(), "{status}");
}

/// Samples of functions that are off are known as such, and those of a function that never was as counted.
fn sees_what_is_off(profile: &Profile) -> bool {
    let off = off(profile);
    let mut seen = nodes(profile).filter(|node| off.contains(&node.function) && !node.counted);
    let mut never_off = nodes(profile).filter(|node| !off.contains(&node.function));
    seen.next().is_some()
        && never_off.any(|node| node.counted && name_of(profile, node) == "worker")
}

#[track_caller]
fn assert_has_its_budget(profile: &Profile) {
    let mut notes = profile.notes.iter();
    assert!(notes.any(|note| note.contains("the budget of 5.0 % ")));
}

#[test]
fn what_is_read_of_a_process_with_a_budget_has_the_samples_of_its_keeper() {
    let mut live = target();
    succeed(&["attach", &live.id(), "--budget", "5%", "--samples", "1999"]);
    live.tell("go");
    wait_until("functions go off", || functions_off(&live) > 0);
    wait_until("it is seen", || {
        sees_what_is_off(&save("checkpoint", &live))
    });
    let first = save("checkpoint", &live);
    assert_has_its_budget(&first);
    wait_until("samples go on", || {
        sampling(&save("checkpoint", &live)).samples > sampling(&first).samples + 50
    });
    let shown = succeed(&["report", "-p", &live.id(), "--flat"]);
    assert!(shown.contains(" samples"), "{shown}");
    own_counts(&mut live);
    let last = save("detach", &live);
    assert!(sees_what_is_off(&last), "{:?}", last.meta.sampling);
    assert_has_its_budget(&last);
    let (first, last) = (sampling(&first), sampling(&last));
    assert!(last.samples > first.samples + 50, "{first:?} {last:?}");
    end(live);
}

#[test]
fn what_a_killed_keeper_has_seen_is_not_lost() {
    let mut live = target();
    succeed(&["attach", &live.id(), "--budget", "5%"]);
    let id = keeper(&live).expect("a keeper");
    live.tell("go");
    wait_until("functions go off", || functions_off(&live) > 0);
    let samples = || sampling(&save("checkpoint", &live)).samples;
    wait_until("there are samples", || samples() > 50);
    let seen = samples();
    kill(Pid::from_raw(id), Signal::SIGKILL).expect("ours");
    wait_until("the keeper is gone", || keeper(&live).is_none());
    own_counts(&mut live);
    let profile = save("detach", &live);
    let kept = sampling(&profile).samples;
    assert!(kept >= seen, "{kept} of {seen}");
    end(live);
}

/// The program does all its work before anything is switched.
fn work_then_switch(live: &mut Live) {
    live.tell("go");
    std::thread::sleep(Duration::from_millis(300));
    own_counts(live);
    succeed(&["switch", &live.id(), "--off", "^one_round$"]);
}

/// So whatever was seen of it was counted.
#[track_caller]
fn assert_judged_before_the_switch(profile: &Profile) {
    let of_it = nodes(profile).filter(|node| name_of(profile, node) == "one_round");
    let (counted, not): (Vec<&SampleNode>, Vec<&SampleNode>) = of_it.partition(|node| node.counted);
    assert!(!counted.is_empty(), "{:?}", profile.meta.sampling);
    assert!(not.is_empty(), "seen as off before it was: {not:?}");
}

fn looker(live: &Live) -> Option<i32> {
    let status = command().args(["status", &live.id(), "--json"]).output();
    let status: serde_json::Value = serde_json::from_slice(&status.ok()?.stdout).ok()?;
    status["looked_at_by"].as_i64().map(|pid| pid as i32)
}

/// Whoever samples is held while the program works on, so that some samples are yet to be taken in when somebody switches.
#[test]
fn samples_are_judged_by_the_states_before_a_switch_from_outside() {
    let mut live = target();
    succeed(&["attach", "--time", "all", &live.id(), "--samples", "4999"]);
    let who = Pid::from_raw(looker(&live).expect("somebody samples"));
    live.tell("go");
    std::thread::sleep(Duration::from_millis(300));
    kill(who, Signal::SIGSTOP).expect("ours");
    std::thread::sleep(Duration::from_millis(100));
    own_counts(&mut live);
    let mut switch = command();
    switch.args(["switch", &live.id(), "--off", "^one_round$"]);
    let mut switch = switch
        .stdout(Stdio::null())
        .spawn()
        .expect("thalweg starts");
    // It asks, and would be done by then if it did not wait for an answer.
    std::thread::sleep(Duration::from_millis(500));
    kill(who, Signal::SIGCONT).expect("ours");
    assert!(switch.wait().expect("it ends").success());
    assert_judged_before_the_switch(&save("detach", &live));
    end(live);
}

#[test]
fn so_they_are_while_it_is_recorded() {
    let mut live = target();
    let scratch = Scratch::new();
    let file = scratch.join("out.thalweg");
    let mut record = command();
    record.args([
        "record",
        "--time",
        "all",
        "-q",
        "--samples",
        "4999",
        "-p",
        &live.id(),
        "-o",
    ]);
    let mut record = record.arg(&file).spawn().expect("thalweg starts");
    wait_until("it is recorded", || looker(&live).is_some());
    work_then_switch(&mut live);
    // Somebody else reads while it goes on.
    let meanwhile = save("checkpoint", &live);
    assert_judged_before_the_switch(&meanwhile);
    kill(Pid::from_raw(record.id() as i32), Signal::SIGINT).expect("ours");
    assert!(record.wait().expect("it ends").success());
    let profile = read_file(&file).expect("a profile");
    assert_judged_before_the_switch(&profile);
    assert!(sampling(&profile).samples >= sampling(&meanwhile).samples);
    assert!(!lives(record.id() as i32));
    end(live);
}

/// A rule that comes later, for a function that is off by then.
#[test]
fn a_rule_that_comes_later_hears_of_every_call() {
    let mut live = target();
    succeed(&["attach", &live.id(), "--budget", "5%", "--recordable"]);
    live.tell("go");
    wait_until("functions go off", || functions_off(&live) > 0);
    let off = |name: &str| {
        let listed = succeed(&["switch", &live.id()]);
        listed
            .lines()
            .any(|line| line.contains(&format!("off      {name} ")))
    };
    wait_until("leaf goes off", || off("leaf"));
    succeed(&["rules", "-p", &live.id(), "--add", "leaf: every 1000; as l"]);
    assert!(!off("leaf"));
    let refused = refuse(&["rules", "-p", &live.id(), "--add", "leaf: caller middle"]);
    assert!(refused.contains("--budget"), "{refused}");
    std::thread::sleep(Duration::from_millis(700));
    assert!(!off("leaf"));
    own_counts(&mut live);
    let profile = save("detach", &live);
    assert!(profile.recorded.rules[0].kept > 10);
    end(live);
}
