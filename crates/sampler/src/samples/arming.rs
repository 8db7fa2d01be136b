//! How often a thread may be sampled that leaves its processor often, so that a budget holds.
//!
//! ```text
//!   a thread comes to a processor   its timer is armed      the processor's own timer is set anew if that one is the next
//!   it leaves                       it is disarmed          and again
//! ```
//!
//! In a virtual machine each of that is an exit to the host. What it takes is measured here, by a
//! timer of our own, and so is how often the process did it. A timer that is due later than the
//! kernel's own tick is rarely the next:
//!
//! ```text
//!   cost, as a share of processor time = switches / ns x arming x min(1, tick / (2 period))
//! ```

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::Samples;
use crate::proc::{self, Pid};

/// Of a process that has run for less it is not known how often it leaves its processors.
const LEAST_RUN_NS: u64 = 10_000_000;
/// Before any other timer of the processor, as a rule, and after all of them.
const SOON: Duration = Duration::from_micros(100);
const LATE: Duration = Duration::from_secs(10);
/// The median of so many rounds of so many timers each, since a busy machine takes the processor
/// away; and the most of so many of those, since another timer may be the next one for a while.
const GROUPS: u32 = 6;
const ROUNDS: usize = 16;
const TIMERS: u32 = 4;

/// What is sampled less often than was meant, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slower {
    pub samples: Samples,
    switches: f64,
    arming_ns: f64,
}

impl Slower {
    pub(super) fn note(self, meant: Samples) -> String {
        format!(
            "stacks are sampled {} times a second of processor time, not {}: a thread leaves its processor {:.0} times in a \
             millisecond of it, and arming a timer each time takes {:.1} us here. --samples {} does it all the same",
            self.samples.hz,
            meant.hz,
            self.switches * 1e6,
            self.arming_ns / 1e3,
            meant.hz
        )
    }
}

/// So that arming timers takes no more than `share` of the processor time of `pid`.
pub(super) fn slower(pid: Pid, samples: Samples, share: f64) -> Option<Slower> {
    let switches = switches_per_ns(pid)?;
    let slowest = |arming_ns: f64| affordable(samples, switches, arming_ns, tick_ns(), share);
    // Most programs need no measurement: no timer takes so long to arm.
    const MAX_ARMING_NS: f64 = 20_000.0;
    if slowest(MAX_ARMING_NS) == samples {
        return None;
    }
    let arming_ns = arming_ns()?;
    let slower = slowest(arming_ns);
    (slower != samples).then_some(Slower {
        samples: slower,
        switches,
        arming_ns,
    })
}

fn affordable(
    samples: Samples,
    switches: f64,
    arming_ns: f64,
    tick_ns: f64,
    share: f64,
) -> Samples {
    let always = switches * arming_ns;
    if always <= share {
        return samples;
    }
    let period_ns = always * tick_ns / (2.0 * share);
    let hz = (1e9 / period_ns).max(1.0) as u32;
    Samples {
        hz: hz.min(samples.hz),
    }
}

/// How often its threads came to a processor, for each nanosecond on one, since they began.
fn switches_per_ns(pid: Pid) -> Option<f64> {
    let (mut ran, mut times) = (0u64, 0u64);
    for tid in proc::tasks(pid).ok()? {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat"));
        let text = text.unwrap_or_default();
        let mut words = text
            .split_whitespace()
            .map(|word| word.parse().unwrap_or(0));
        ran = ran.saturating_add(words.next().unwrap_or(0));
        times = times.saturating_add(words.nth(1).unwrap_or(0));
    }
    (ran >= LEAST_RUN_NS).then(|| times as f64 / ran as f64)
}

/// Between two of the kernel's own timers.
fn tick_ns() -> f64 {
    let mut tick = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one structure of ours.
    let known = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut tick) };
    const USUAL_NS: f64 = 4e6;
    match known {
        0 if tick.tv_nsec > 0 => tick.tv_nsec as f64,
        _ => USUAL_NS,
    }
}

/// What it takes longer to arm a timer that is the next one of its processor, and to disarm it.
fn arming_ns() -> Option<f64> {
    // SAFETY: makes a descriptor, which is nobody else's.
    let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC) };
    if timer < 0 {
        return None;
    }
    // SAFETY: it was just made.
    let timer = unsafe { OwnedFd::from_raw_fd(timer) };
    let took = |due: Duration| {
        let began = Instant::now();
        for _ in 0..TIMERS {
            set(&timer, due);
            set(&timer, Duration::ZERO);
        }
        began.elapsed().as_nanos() as f64 / f64::from(TIMERS)
    };
    let median = |due: Duration| {
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| took(due)).collect();
        rounds.sort_by(f64::total_cmp);
        rounds[ROUNDS / 2]
    };
    let longer = (0..GROUPS).map(|_| median(SOON) - median(LATE));
    Some(longer.fold(0.0, f64::max))
}

/// Zero disarms it.
fn set(timer: &OwnedFd, due: Duration) {
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let setting = libc::itimerspec {
        it_interval: none,
        it_value: libc::timespec {
            tv_sec: due.as_secs() as libc::time_t,
            tv_nsec: due.subsec_nanos().into(),
        },
    };
    // SAFETY: reads one structure of ours, and nothing is asked back.
    unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &setting, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_his_processor_often_is_sampled_less_often() {
        let usual = Samples { hz: 499 };
        let hz = |switches_per_ms: f64, arming_ns: f64, share: f64| {
            affordable(usual, switches_per_ms / 1e6, arming_ns, 4e6, share).hz
        };
        // A twentieth of a switch in a millisecond; a timer that is for free.
        assert_eq!(hz(0.05, 9_000.0, 0.025), 499);
        assert_eq!(hz(100.0, 100.0, 0.025), 499);
        // Nine tenths of the time for arming each: one in 36 may be.
        assert_eq!(hz(100.0, 9_000.0, 0.025), 13);
        assert!(hz(10.0, 9_000.0, 0.025) < 499);
        assert_eq!(hz(1e6, 9_000.0, 0.025), 1);
    }

    #[test]
    fn what_is_measured_makes_sense() {
        assert!((1e5..=1e7).contains(&tick_ns()), "{}", tick_ns());
        let arming = arming_ns().expect("timers");
        assert!((0.0..1e6).contains(&arming), "{arming}");
    }

    /// A thread that waits for each byte of another one, and one that computes.
    #[test]
    fn switches_are_counted() {
        let own = Pid(std::process::id() as i32);
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            std::hint::black_box(began);
        }
        let before = switches_per_ns(own).map_or(0.0, |rate| rate * 1e6);
        assert!(before < 1e3, "{before} in a millisecond");
    }
}
