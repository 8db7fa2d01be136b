//! How long a target stands still. These run with nothing beside them (`./test` sees to it): every other load on the
//! machine would be measured too. The goal is held against the figures in the long form only, which asks for a quiet
//! machine; the short form finds out what goes wrong by orders of magnitude.

use crate::support::live::Live;
use crate::support::many::many_functions;
use crate::support::text::assert_restored;
use crate::support::thalweg::succeed;
use crate::support::{in_short_or_long, long};
use std::time::{Duration, Instant};

/// The longest gap a spinning thread saw, over the best of several attaches: other load on the machine only adds.
fn gaps(functions: u32, sleepers: &str, rounds: u32) -> (u64, u64, Duration) {
    let program = many_functions(functions);
    let mut live = Live::ready(&program.path, &[sleepers]);
    std::thread::sleep(Duration::from_millis(100));
    let (mut attach, mut detach, mut whole) = (u64::MAX, u64::MAX, Duration::MAX);
    let before = live.text();
    for _ in 0..rounds {
        live.ask("reset");
        let started = Instant::now();
        succeed(&["attach", "--budget", "off", &live.id()]);
        whole = whole.min(started.elapsed());
        attach = attach.min(live.ask("gap").parse().expect("nanoseconds"));
        live.ask("reset");
        succeed(&["detach", &live.id()]);
        detach = detach.min(live.ask("gap").parse().expect("nanoseconds"));
        live.assert_healthy();
    }
    assert_restored(&before, &live.text());
    (attach, detach, whole)
}

#[test]
fn the_stop_is_short_with_ten_thousand_functions() {
    assert_short(10_000, "7", 5);
}

#[test]
fn five_hundred_threads_that_sleep_make_no_long_stop() {
    assert_short(30_000, "500", 20);
}

/// The goal in milliseconds.
#[track_caller]
fn assert_short(functions: u32, sleepers: &str, goal: u64) {
    let (attach, detach, _) = gaps(functions, sleepers, if long() { 7 } else { 3 });
    println!(
        "longest gaps: attach {} us, detach {} us; goal: {goal} ms",
        attach / 1000,
        detach / 1000
    );
    let limit = in_short_or_long(1_000, goal) * 1_000_000;
    assert!(attach < limit, "attach stops a thread for {attach} ns");
    assert!(detach < limit, "detach stops a thread for {detach} ns");
}

/// Four threads on two processors wait for each other far longer than they stand, attach or none, and longer still beside
/// others. So what is looked at is how long one is held, neither on a processor nor waiting for one; and how much of that is
/// ours: a thread that waits for a processor has to get it before it stands, and all others stand meanwhile. What is left is
/// nobody's turn, so it has the goal for its bound on a busy machine too, which only takes whole processors away ("steal").
#[test]
fn threads_that_work_are_held_for_a_short_time() {
    const GOAL_MS: u64 = 10;
    let program = many_functions(10_000);
    let mut live = Live::ready(&program.path, &["1", "4"]);
    std::thread::sleep(Duration::from_millis(100));
    let before = live.text();
    let id = live.id();
    let rounds = if long() { 7 } else { 3 };
    for first in ["attach", "detach"] {
        let (mut held, mut stood): (Vec<u64>, Vec<u64>) = (0..rounds)
            .map(|_| {
                let arguments: &[&str] = match first {
                    "attach" => &["attach", "--budget", "off", &id],
                    _ => &["detach", &id],
                };
                if first == "detach" {
                    succeed(&["attach", "--budget", "off", &id]);
                }
                let stolen = stolen_ns();
                live.ask("reset");
                succeed(arguments);
                let [held, stood]: [i64; 2] = ["held", "stood"]
                    .map(|question| live.ask(question).parse().expect("nanoseconds"));
                let stolen = stolen_ns() - stolen;
                if first == "attach" {
                    succeed(&["detach", &id]);
                }
                (
                    held.max(0) as u64,
                    (stood.max(0) as u64).saturating_sub(stolen),
                )
            })
            .unzip();
        held.sort_unstable();
        stood.sort_unstable();
        println!(
            "{first}: held for {held:?} ns, of which nobody waited for a processor {stood:?}; goal: {GOAL_MS} ms"
        );
        let limit = GOAL_MS * 1_000_000;
        assert!(stood[rounds / 2] < limit, "in {first}: {stood:?}");
        assert!(!long() || held[rounds / 2] < limit, "in {first}: {held:?}");
    }
    live.assert_healthy();
    assert_restored(&before, &live.text());
}

/// What a host has taken of this machine's processors so far.
fn stolen_ns() -> u64 {
    const TICK_NS: u64 = 10_000_000;
    let stat = std::fs::read_to_string("/proc/stat").expect("Linux");
    let all = stat.lines().next().expect("all processors");
    let stolen = all.split_whitespace().nth(8).expect("eight figures");
    stolen.parse::<u64>().expect("ticks") * TICK_NS
}

#[test]
fn a_hundred_thousand_functions_take_seconds() {
    let (attach, detach, whole) = gaps(100_000, "0", if long() { 3 } else { 1 });
    println!(
        "attach takes {whole:?}; longest gaps {} us, {} us",
        attach / 1000,
        detach / 1000
    );
    let limit = Duration::from_secs(in_short_or_long(60, 8));
    assert!(whole < limit, "attach takes {whole:?}");
}
