//! Five hundred threads that sleep, beside one that spins and one that calls every function and checks the results: all of
//! them go on, whatever is done to the process, and work when they are woken. How long they stand is in docs/benchmarks.md.

use crate::support::live::Live;
use crate::support::many::many_functions;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{export, succeed};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

const FUNCTIONS: u32 = 2000;
const SLEEPERS: &str = "500";

fn calls(live: &mut Live) -> u64 {
    live.ask("calls").parse().expect("a number")
}

#[test]
fn five_hundred_threads_are_attached_switched_and_detached_and_all_go_on() {
    let program = many_functions(FUNCTIONS);
    let mut live = Live::ready(&program.path, &[SLEEPERS]);
    let threads = live.threads();
    assert_eq!(threads.len(), 503);
    let before = live.text();
    let scratch = Scratch::new();
    let file = scratch.join("profile.thalweg");
    for _ in 0..2 {
        succeed(&["attach", "--budget", "off", &live.id()]);
        let earlier = calls(&mut live);
        let deadline = Instant::now() + Duration::from_secs(60);
        // Two rounds begin and end while everything is counted.
        while calls(&mut live) < earlier + 3 * u64::from(FUNCTIONS) {
            assert!(Instant::now() < deadline, "it does not go on");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(live.ask("wake"), SLEEPERS);
        succeed(&["switch", &live.id(), "--off", "^many_1[0-9]*$"]);
        succeed(&["switch", &live.id(), "--time", "^many_1[0-9]*$"]);
        let id = live.id();
        let words: [&OsStr; 4] = ["detach".as_ref(), id.as_ref(), "-o".as_ref(), file.as_ref()];
        succeed(&words);
        let counted = export(&file).calls_by_name();
        for number in [0, 7, 1024, FUNCTIONS - 1] {
            let calls = counted.get(&format!("many_{number}")).copied();
            assert!(calls.is_some_and(|calls| calls >= 2), "{number}: {calls:?}");
        }
        let woken = counted.get("wake_up").copied();
        assert_eq!(woken, Some(500), "each sleeper has a slot of its own");
        assert_restored(&before, &live.text());
        assert_eq!(live.ask("wake"), SLEEPERS);
        live.assert_healthy();
        assert_eq!(live.threads(), threads, "threads have gone or come");
        for tid in &threads {
            let status = std::fs::read_to_string(format!("/proc/{}/task/{tid}/status", live.pid()));
            let status = status.expect("the thread lives");
            assert!(
                status.contains("TracerPid:\t0\n"),
                "thread {tid} is held: {status}"
            );
            assert!(
                !status.contains("State:\tt"),
                "thread {tid} stands: {status}"
            );
        }
        let earlier = calls(&mut live);
        while calls(&mut live) == earlier {
            assert!(Instant::now() < deadline, "it does not go on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
