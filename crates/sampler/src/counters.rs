//! What the kernel and the processor count for threads: whether this machine and this user's rights allow it, and how often stacks are
//! looked at for it.
//!
//! Page faults and switches are looked at one by one: the figures are exact. Instructions, cycles and cache misses are so many that one in a
//! million or so is, and each look stands for all of them: estimates.

use thalweg_model::Metric;

use crate::samples::event::{self, Event, Wanted};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Faults,
    Switches,
    Instructions,
    Cycles,
    CacheMisses,
}

#[derive(Debug, thiserror::Error)]
pub enum NoCounter {
    #[error(
        "this machine has no such counter, or its hypervisor does not pass it on (perf_event_open: {0})"
    )]
    Absent(std::io::Error),
    #[error(
        "the kernel does not let this user count (perf_event_open: {0}): set kernel.perf_event_paranoid to 2 or less, run as root or with CAP_PERFMON, and see that no seccomp filter of a container forbids perf_event_open"
    )]
    Forbidden(std::io::Error),
    #[error(
        "a thread leaves its processor in the kernel, where the kernel does not let this user look: set kernel.perf_event_paranoid to 1 or less, or run as root or with CAP_PERFMON"
    )]
    NotInTheKernel,
    #[error("this kernel does not know how (perf_event_open: {0}): it needs Linux 5.13 or later")]
    TooOld(std::io::Error),
}

/// What is copied of a stack where every event is looked at: many stacks are no deeper, and there may be hundreds of thousands in a second.
const STACK: u32 = 16 << 10;
/// And where few are.
const DEEP_STACK: u32 = 32 << 10;

/// Looks that find room on one processor while nobody reads them: as many as there is memory for.
const MANY: usize = 4096;
const FEW: usize = 256;

/// Some hundred looks a second, or some thousand; primes, which nothing that recurs keeps pace with.
const INSTRUCTIONS: u64 = 2_000_003;
const CYCLES: u64 = 2_000_003;
const MISSES: u64 = 10_007;

impl Counter {
    pub fn metric(self) -> Metric {
        match self {
            Counter::Faults => Metric::Faults,
            Counter::Switches => Metric::Switches,
            Counter::Instructions => Metric::Instructions,
            Counter::Cycles => Metric::Cycles,
            Counter::CacheMisses => Metric::CacheMisses,
        }
    }

    pub fn wanted(self) -> Wanted {
        let each = |event: Event| Wanted {
            event,
            period: 1,
            stack: STACK,
            kernel: true,
            room: MANY,
        };
        // The program's own: what the kernel does for it is the same with and without probes, and mostly not its doing.
        let some = |event: Event, period: u64| Wanted {
            event,
            period,
            stack: DEEP_STACK,
            kernel: false,
            room: FEW,
        };
        match self {
            Counter::Faults => each(Event::Faults),
            Counter::Switches => each(Event::Switches),
            Counter::Instructions => some(Event::Instructions, INSTRUCTIONS),
            Counter::Cycles => some(Event::Cycles, CYCLES),
            Counter::CacheMisses => some(Event::CacheMisses, MISSES),
        }
    }

    /// What the kernel allows of it, tried on ourselves.
    pub fn allowed(self) -> Result<Wanted, NoCounter> {
        let allowed = event::allowed(self.wanted());
        let wanted = allowed.map_err(|error| match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => NoCounter::Forbidden(error),
            Some(libc::EINVAL | libc::E2BIG) => NoCounter::TooOld(error),
            _ => NoCounter::Absent(error),
        })?;
        match self {
            Counter::Switches if !wanted.kernel => Err(NoCounter::NotInTheKernel),
            _ => Ok(wanted),
        }
    }

    pub fn check(self) -> Result<(), NoCounter> {
        self.allowed().map(drop)
    }
}
