//! Profiles that are saved while a recording goes on: by hand, at a time, every so often, on a signal, and when a function is
//! entered. Each has what was counted until then, and the recording loses nothing.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::profile::Profile;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{export, refuse};
use crate::support::watched::Recording;
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn started() -> Live {
    Live::ready(&Build::simple("commands.c").path, &[])
}

fn saved(scratch: &Scratch, number: u32) -> PathBuf {
    scratch.join(&format!("p.{number}.thalweg"))
}

/// Waits until the file is there, which is whole then.
#[track_caller]
fn wait_for(path: &Path) -> Profile {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !path.exists() {
        assert!(
            Instant::now() < deadline,
            "no {} after 30 s",
            path.display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    export(path)
}

#[track_caller]
fn assert_counts(profile: &Profile, work: u64, flush: u64) {
    let calls = profile.calls_by_name();
    let of = |name: &str| calls.get(name).copied().unwrap_or(0);
    assert_eq!((of("work"), of("flush")), (work, flush));
}

#[test]
fn entering_a_function_saves_what_was_counted_before_it() {
    let mut live = started();
    let scratch = Scratch::new();
    let file = scratch.join("p.thalweg");
    let before = live.text();
    let recording = Recording::of(&live, &file, &["--checkpoint-on", "^flush$"]);
    assert_eq!(live.ask("work 1000"), "work 1000");
    assert_eq!(live.ask("flush 1"), "flush 1");
    assert_counts(&wait_for(&saved(&scratch, 1)), 1000, 0);
    // At most one a second: the target waits for none of the others.
    let began = Instant::now();
    assert_eq!(live.ask("flush 200000"), "flush 200000");
    assert_eq!(live.ask("work 234"), "work 234");
    let made = || {
        let there = (1..).take_while(|&number| saved(&scratch, number).exists());
        there.count() as u32
    };
    assert!(
        u64::from(made()) <= 2 + began.elapsed().as_secs(),
        "{} in {:?}",
        made(),
        began.elapsed()
    );
    // Entered again and again until that makes a checkpoint: those of before may still be on their way.
    let (mut entered, mut looked_at) = (200_001, 1);
    let flushed = loop {
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(live.ask("flush 1"), "flush 1");
        entered += 1;
        let newer = (looked_at + 1..=made()).map(|number| export(&saved(&scratch, number)));
        let calls: Vec<_> = newer.map(|profile| profile.calls_by_name()).collect();
        looked_at += calls.len() as u32;
        if let Some(last) = calls.iter().find(|calls| calls.get("work") == Some(&1234)) {
            break last["flush"];
        }
        assert!(began.elapsed() < Duration::from_secs(100), "{entered}");
    };
    // Without the call that made it.
    assert!((200_001..entered).contains(&flushed), "{flushed}");
    let stderr = recording.interrupt();
    assert!(stderr.contains("(flush was entered)"), "{stderr}");
    assert_counts(&export(&file), 1234, entered);
    assert_eq!(before, live.text());
    assert_eq!(live.ask("work 5"), "work 5");
}

#[test]
fn a_signal_to_thalweg_saves() {
    let mut live = started();
    let scratch = Scratch::new();
    let file = scratch.join("p.thalweg");
    let recording = Recording::of(&live, &file, &[]);
    assert_eq!(live.ask("work 70"), "work 70");
    recording.send(Signal::SIGUSR1);
    assert_counts(&wait_for(&saved(&scratch, 1)), 70, 0);
    assert_eq!(live.ask("work 7"), "work 7");
    recording.send(Signal::SIGUSR1);
    assert_counts(&wait_for(&saved(&scratch, 2)), 77, 0);
    let stderr = recording.interrupt();
    assert!(stderr.contains("(signal USR1)"), "{stderr}");
    assert_counts(&export(&file), 77, 0);
}

#[test]
fn the_clock_saves_every_so_often_and_old_ones_go() {
    let mut live = started();
    let scratch = Scratch::new();
    let file = scratch.join("p.thalweg");
    let options = ["--checkpoint-every", "700ms", "--checkpoint-keep", "2"];
    let recording = Recording::of(&live, &file, &options);
    assert_eq!(live.ask("work 70"), "work 70");
    let numbers = || -> Vec<u32> {
        let mut all: Vec<u32> = scratch
            .list()
            .iter()
            .filter_map(|name| {
                name.strip_prefix("p.")?
                    .strip_suffix(".thalweg")?
                    .parse()
                    .ok()
            })
            .collect();
        all.sort();
        all
    };
    let first = numbers().last().copied().unwrap_or(0);
    // One may have been begun before the work was done, not two.
    let deadline = Instant::now() + Duration::from_secs(60);
    while numbers().last().is_none_or(|&last| last < first + 3) {
        assert!(
            Instant::now() < deadline,
            "only {:?} after a minute",
            numbers()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let stderr = recording.interrupt();
    assert!(stderr.contains("(every 700ms)"), "{stderr}");
    let kept = numbers();
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(kept[0] >= first + 2 && kept[1] == kept[0] + 1, "{kept:?}");
    for number in kept {
        assert_counts(&export(&saved(&scratch, number)), 70, 0);
    }
    assert_counts(&export(&file), 70, 0);
}

#[test]
fn a_time_of_day_saves_and_another_ends_the_recording() {
    // Where the machine was so busy that the time had passed before the recording began, once more and later.
    for seconds in [4, 8, 16, 32] {
        if is_saved_and_ended_by_the_clock(seconds) {
            return;
        }
    }
    panic!("half a minute is not enough to begin");
}

/// Whether the work was done in time.
fn is_saved_and_ended_by_the_clock(seconds: u64) -> bool {
    let mut live = started();
    let scratch = Scratch::new();
    let file = scratch.join("p.thalweg");
    let began = Instant::now();
    let clock = |seconds: u64| {
        let later = jiff::SignedDuration::from_secs(seconds as i64);
        let time = jiff::Zoned::now().saturating_add(later);
        time.strftime("%H:%M:%S").to_string()
    };
    let before = live.text();
    let (save, end) = (clock(seconds), clock(seconds + 2));
    let options = ["--checkpoint-at", &save, "--until", &end];
    let recording = Recording::of(&live, &file, &options);
    assert_eq!(live.ask("work 70"), "work 70");
    // The clock's seconds are whole ones.
    if began.elapsed() > Duration::from_secs(seconds - 1) {
        return false;
    }
    let stderr = recording.end();
    assert!(stderr.contains(&format!("(it is {save})")), "{stderr}");
    assert_counts(&export(&saved(&scratch, 1)), 70, 0);
    assert_counts(&export(&file), 70, 0);
    assert_eq!(before, live.text());
    live.assert_healthy();
    true
}

#[test]
fn what_has_ended_and_what_runs_are_both_in_a_checkpoint() {
    let mut live = started();
    let scratch = Scratch::new();
    let file = scratch.join("p.thalweg");
    let recording = Recording::of(&live, &file, &["--follow"]);
    assert_eq!(live.ask("run /bin/true"), "run 0");
    assert!(live.ask("start /bin/sleep").starts_with("start"));
    assert_eq!(live.ask("work 12"), "work 12");
    // Until the other program runs: it is followed before its first instruction, whenever that is.
    let has_both = |number: u32| {
        recording.send(Signal::SIGUSR1);
        let profile = wait_for(&saved(&scratch, number));
        assert_counts(&profile, 12, 0);
        let has = |name: &str| profile.functions.iter().any(|f| f.module == name);
        has("true") && has("sleep")
    };
    assert!((1..=60).any(has_both), "sleep was never followed");
    assert_eq!(live.ask("wait"), "wait 0");
    recording.interrupt();
    assert_counts(&export(&file), 12, 0);
}

#[test]
fn checkpoints_that_cannot_be_are_refused_before_anything_is_touched() {
    let live = started();
    let before = live.text();
    let refused = |options: &[&str]| {
        let message = refuse(&[&["record", "--budget", "off", "-p", &live.id()], options].concat());
        assert_eq!(before, live.text());
        message
    };
    assert!(refused(&["--checkpoint-on", "no_such_function"]).contains("--checkpoint-on"));
    assert!(refused(&["--checkpoint-on", "("]).contains("--checkpoint-on"));
    let message = refused(&["--checkpoint-every", "1s", "-o", "/dev/null"]);
    assert!(message.contains("not a file"), "{message}");
    assert!(refused(&["--checkpoint-at", "25:00"]).contains("17:30"));
    assert!(refused(&["--until", "2001-01-01T00:00"]).contains("past"));
}
