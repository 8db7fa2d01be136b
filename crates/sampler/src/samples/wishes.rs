//! What stacks are looked at for, and how often; and what is said where the kernel does not allow it.

use std::io;

use super::STACK;
use super::event::{self, Event, Wanted};
use crate::counters::Counter;
use crate::error::{Error, Result};

/// How often threads are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Looks per second of a thread's processor time.
    pub hz: u32,
}

/// What stacks are looked at for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// On a timer.
    pub samples: Option<Samples>,
    /// What part of a process's time arming that timer may take; `None`: the user has said how often.
    pub samples_share: Option<f64>,
    /// At what the kernel counts.
    pub counters: Vec<Counter>,
}

impl Wishes {
    pub fn is_empty(&self) -> bool {
        self.samples.is_none() && self.counters.is_empty()
    }
}

/// More than this is more than the kernel takes without being told, and more than anybody needs.
pub const MOST_HZ: u32 = 10_000;

/// With so much room in a ring the kernel may be left alone for this long, in seconds.
const LEFT_ALONE: f64 = 0.12;
const MOST_ROOM: usize = 250;

impl Samples {
    /// A prime number of nanoseconds, which nothing that recurs keeps pace with.
    pub(super) fn period_ns(self) -> u64 {
        let period = 1_000_000_000 / u64::from(self.hz.clamp(1, MOST_HZ));
        let is_prime = |n: &u64| {
            !n.is_multiple_of(2)
                && (3..)
                    .step_by(2)
                    .take_while(|d| d * d <= *n)
                    .all(|d| !n.is_multiple_of(d))
        };
        (period..).find(is_prime).unwrap_or(period)
    }

    pub(super) fn wanted(self) -> Wanted {
        let period = self.period_ns();
        Wanted {
            event: Event::Time,
            period,
            stack: STACK,
            kernel: true,
            room: ((LEFT_ALONE * 1e9 / period as f64) as usize).min(MOST_ROOM),
        }
    }

    /// Whether the kernel lets us, with threads that are in the kernel.
    pub fn sees_everything(self) -> bool {
        event::allowed(self.wanted()).is_ok_and(|wanted| wanted.kernel)
    }

    /// Whether the kernel lets us.
    pub fn check(self) -> Result<()> {
        event::allowed(self.wanted()).map(drop).map_err(refused)
    }
}

pub(super) fn refused(source: io::Error) -> Error {
    let advice = match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "; set kernel.perf_event_paranoid to 2 or less, run as root or with CAP_PERFMON, and see that no seccomp filter of a container forbids perf_event_open"
        }
        Some(libc::ENOSYS) => {
            "; this kernel was built without performance events, or a container's seccomp filter hides them"
        }
        Some(libc::EINVAL | libc::E2BIG) => "; it needs Linux 5.13 or later",
        Some(libc::EMFILE) => "; raise the limit of open files (`ulimit -n`)",
        _ => "",
    };
    Error::Refused(format!(
        "stacks cannot be looked at on a timer: the kernel refuses performance events ({source}){advice}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_a_prime_close_to_what_was_asked_for() {
        for (hz, period) in [(499, 2_004_017), (1, 1_000_000_007), (10_000, 100_003)] {
            assert_eq!(Samples { hz }.period_ns(), period);
        }
    }
}
