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
