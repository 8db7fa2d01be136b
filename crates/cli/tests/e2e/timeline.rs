//! When threads ran and what they waited for: samples with their times, and where threads were found asleep.

use crate::samples::{record_program, sampling, threads};
use std::path::Path;
use thalweg_model::{Thread, WaitsOf, system_call_name};

/// One thread sleeps, one reads from a pipe that says nothing meanwhile, one works before and after.
const SCRIPT: &str = "
import os, threading, time
ends = os.pipe()
def sleeper(): time.sleep(1.5)
def reader(): os.read(ends[0], 1)
def spin():
    began = time.thread_time()
    while time.thread_time() - began < 0.2: sum(range(1000))
pool = [threading.Thread(target=sleeper), threading.Thread(target=reader)]
for t in pool: t.start()
spin()
pool[0].join()
spin()
os.write(ends[1], b'x')
pool[1].join()
";

fn longest_wait(thread: &Thread) -> Option<(&'static str, WaitsOf, u64)> {
    let waits = thread.timeline.waits.iter();
    let named = waits.filter_map(|wait| {
        let name = system_call_name(wait.system_call?)?;
        Some((name, wait.of, wait.end_ns - wait.start_ns))
    });
    named.max_by_key(|(_, _, length)| *length)
}

#[test]
fn every_sample_has_its_time_and_threads_that_sleep_say_in_what() {
    let python = Path::new("/usr/bin/python3.11");
    let (_, profile) = record_program(python, &["--samples", "997"], &["-c", SCRIPT]);
    let sampling = sampling(&profile);
    let (mut timed, mut placed) = (0, 0);
    for thread in threads(&profile) {
        let line = &thread.timeline;
        timed += line.samples.len() as u64;
        placed += line.samples.iter().filter(|s| s.sample.is_some()).count() as u64;
        assert!(line.samples.is_sorted_by_key(|sample| sample.at_ns));
        // By one clock with all other times, which are told to microseconds.
        let near = 5_000_000;
        for sample in &line.samples {
            let lived = thread.start_ns..=thread.end_ns + 2 * near;
            assert!(
                lived.contains(&(sample.at_ns + near)),
                "{sample:?} {lived:?}"
            );
        }
        let inside = |at: u64| {
            let mut waits = line.waits.iter();
            waits.any(|wait| wait.start_ns < at && at < wait.end_ns)
        };
        let caught = line.samples.iter().filter(|sample| inside(sample.at_ns));
        assert_eq!(caught.count(), 0, "thread {} ran asleep", thread.tid);
        if !line.samples.is_empty() {
            assert_eq!(line.period_ns, sampling.period_ns);
        }
        // As often as the tree says, by stack.
        for (node, stack) in (0..).zip(&thread.samples) {
            let seen = line.samples.iter().filter(|s| s.sample == Some(node));
            assert_eq!(seen.count() as u64, stack.own);
        }
    }
    let known = sampling.samples - sampling.in_probes - sampling.cut_short;
    assert_eq!(placed, known, "each that has a place has a time");
    assert!(timed <= sampling.samples && timed >= placed);
    let waits: Vec<_> = threads(&profile).filter_map(longest_wait).collect();
    let asleep = |name: &str, of: WaitsOf| {
        let all = waits.iter().filter(|wait| (wait.0, wait.1) == (name, of));
        all.map(|wait| wait.2).max().unwrap_or(0)
    };
    let second = 1_000_000_000;
    assert!(
        asleep("clock_nanosleep", WaitsOf::None) > second,
        "{waits:?}"
    );
    assert!(asleep("read", WaitsOf::Pipe) > second, "{waits:?}");
}
