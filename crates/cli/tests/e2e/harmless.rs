//! Torture: many attaches and detaches, and controllers that are killed at any moment.

use crate::support::build::{Build, Program};
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::text::{assert_restored, compare};
use crate::support::thalweg::{command, succeed, text, thalweg};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A small generator, so that a failing run can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn torture() -> Program {
    Build::simple("torture.c")
}

#[test]
fn attach_and_detach_again_and_again_on_a_busy_program() {
    let mut live = Live::ready(&torture().path, &[]);
    let before = live.text();
    let mut random = Random(0x9e3779b97f4a7c15);
    for cycle in 0..in_short_or_long(50, 500) {
        let mut arguments = vec!["attach".to_owned(), live.id()];
        if cycle % 3 == 1 {
            arguments.extend(["--no-lib", "^libm"].map(str::to_owned));
        }
        // With a budget it would be stopped for each switch.
        match cycle % 5 == 2 {
            true => arguments.push("--no-clock".to_owned()),
            false => arguments.extend(["--budget", "off"].map(str::to_owned)),
        }
        succeed(&arguments);
        live.assert_healthy();
        std::thread::sleep(Duration::from_millis(random.below(30)));
        succeed(&["detach", &live.id()]);
        live.assert_healthy();
        let after = live.text();
        let (changed, added) = compare(&before, &after);
        assert!(
            changed.is_empty() && added.is_empty(),
            "cycle {cycle}: changed {changed:#?}, left behind {added:#?}"
        );
    }
    let (words, status) = live.terminate();
    assert!(
        status.success() && words.starts_with("OK "),
        "{status}: {words}"
    );
}

#[test]
fn controllers_killed_at_random_moments() {
    let mut live = Live::ready(&torture().path, &["forgiving"]);
    let before = live.text();
    let mut random = Random(0x853c49e6748fea9b);
    let mut patched = 0;
    // How long an attach takes here, so that kills fall into every part of it.
    let started = Instant::now();
    succeed(&["attach", "--budget", "off", &live.id()]);
    let span = started.elapsed().as_millis() as u64;
    succeed(&["detach", &live.id()]);
    for round in 0..in_short_or_long(30, 100) {
        let mut child = command()
            .args([
                "record",
                "--budget",
                "off",
                "-p",
                &live.id(),
                "-d",
                "10s",
                "--no-report",
                "-o",
                "/dev/null",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("thalweg starts");
        std::thread::sleep(Duration::from_millis(random.below(span * 2 + 20)));
        child.kill().expect("thalweg can be killed");
        child.wait().expect("thalweg ends");
        std::thread::sleep(Duration::from_millis(20));
        live.assert_healthy();
        let (changed, added) = compare(&before, &live.text());
        let output = thalweg(&["detach", &live.id()]);
        if !changed.is_empty() || !added.is_empty() {
            patched += 1;
            assert!(
                output.status.success(),
                "round {round}: a later detach cleans up: {}",
                text(&output)
            );
        } else {
            assert!(
                matches!(output.status.code(), Some(0 | 2)),
                "round {round}: {}",
                text(&output)
            );
        }
        assert_restored(&before, &live.text());
        live.assert_healthy();
    }
    assert!(patched > 0, "no kill came while the target was patched");
    let (words, status) = live.terminate();
    assert!(
        status.success() && words.starts_with("OK "),
        "{status}: {words}"
    );
    // A kill in the microseconds between a stop and its mending: see control's restart.rs.
    let strays = words.split_whitespace().last().and_then(|n| n.parse().ok());
    assert!(strays.is_some_and(|strays: u64| strays <= 2), "{words}");
}
