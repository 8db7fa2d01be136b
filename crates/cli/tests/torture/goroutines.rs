//! Go functions that are switched in groups drawn by chance, while goroutines wait in them, grow their stacks, panic, are preempted by signals and
//! collected all the time. The program checks every answer.

use crate::support::build::{run, targets};
use crate::support::in_short_or_long;
use crate::support::live::Live;
use crate::support::scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::succeed;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

fn program(compiler: &str, name: &str) -> PathBuf {
    let program = scratch::root().join(format!("torture-go-{name}"));
    run(Command::new(compiler)
        .args(["build", "-o"])
        .arg(&program)
        .arg("goroutines.go")
        .env("GOCACHE", scratch::root().join("go-cache"))
        .env("GO111MODULE", "off")
        .env("GOTOOLCHAIN", "local")
        .current_dir(targets()));
    program
}

/// Of the letters about one in `part`, as a regular expression for names that end with one of them. The same orders on every run.
fn some_letters(draw: &mut u64, part: u64) -> String {
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9');
    let chosen = letters.filter(|_| {
        *draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*draw >> 33).is_multiple_of(part)
    });
    format!("[{}]$", chosen.chain(['.']).collect::<String>())
}

fn switch_in_groups(program: &Path, mut draw: u64) {
    let mut live = Live::ready(program, &["-", "wait"]);
    let before = live.text();
    live.tell("go");
    let turns = in_short_or_long(40, 2000);
    for turn in 0..turns {
        if turn % 10 == 0 {
            succeed(&["attach", "--budget", "off", &live.id()]);
        }
        let [off, sampled, timed] = [2, 3, 3].map(|part| some_letters(&mut draw, part));
        let switch = ["switch", &live.id(), "--off", &off, "--time-some", &sampled];
        succeed(&[&switch[..], &["--time", &timed]].concat());
        live.assert_healthy();
        if turn % 10 == 9 {
            succeed(&["detach", &live.id()]);
            assert_restored(&before, &live.text());
            live.assert_healthy();
        }
    }
    let answers = live.ask("stop");
    assert!(answers.starts_with("answers"), "{answers}");
    live.tell("end");
    let (rest, status) = live.wait(Duration::from_secs(120));
    assert!(status.success(), "{status}: {rest}");
    println!("goroutines: {turns} times switched");
}

#[test]
fn go_switched_in_groups() {
    switch_in_groups(&program("go", "switched"), 3);
}

#[test]
fn newer_go_switched_in_groups() {
    let newer = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../.ci/consumers/venv/bin/go"
    );
    switch_in_groups(&program(newer, "switched-newer"), 5);
}
