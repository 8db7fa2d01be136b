//! The time-stamp counter and what it is worth in nanoseconds.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The counter and the raw monotonic clock read at the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub ticks: u64,
    pub monotonic_ns: u64,
}

impl Moment {
    pub fn now() -> Moment {
        // Of a few tries the one with the narrowest bracket: the thread may be preempted between the readings.
        (0..5)
            .map(|_| {
                let before = ticks();
                let monotonic_ns = monotonic_ns();
                let after = ticks();
                (
                    after - before,
                    Moment {
                        ticks: before + (after - before) / 2,
                        monotonic_ns,
                    },
                )
            })
            .min_by_key(|(width, _)| *width)
            .map(|(_, moment)| moment)
            .expect("five tries")
    }

    /// Ticks per second between two moments; waits if they are too close for five digits.
    pub fn rate_since(earlier: Moment) -> f64 {
        const ENOUGH: u64 = 20_000_000;
        let passed = monotonic_ns().saturating_sub(earlier.monotonic_ns);
        if passed < ENOUGH {
            std::thread::sleep(Duration::from_nanos(ENOUGH - passed));
        }
        let now = Moment::now();
        (now.ticks - earlier.ticks) as f64 * 1e9 / (now.monotonic_ns - earlier.monotonic_ns) as f64
    }
}

static BEGAN: OnceLock<Moment> = OnceLock::new();

/// When this was first called: the longer ago a moment is, the better it tells the rate, and the less has to be waited for.
pub fn began() -> Moment {
    *BEGAN.get_or_init(Moment::now)
}

pub fn ticks() -> u64 {
    // SAFETY: reading the counter has no requirement where it is not forbidden, and preflight has used it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

pub fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_nanos() as u64)
}

fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC_RAW)
        .expect("this clock always exists");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// Whether the counter runs at one rate on all processors, whatever they do.
pub fn is_invariant() -> bool {
    // SAFETY: cpuid exists on every x86-64 processor.
    #[allow(unused_unsafe)]
    let leaf = unsafe { core::arch::x86_64::__cpuid(0x8000_0007) };
    leaf.edx & (1 << 8) != 0
}

/// Whether programs may set their GS base themselves (AT_HWCAP2 bit 1).
pub fn has_fsgsbase() -> bool {
    // SAFETY: getauxval reads a table of this process.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & 2 != 0 }
}

/// About what a probed call costs on this machine, entry and exit together: an estimate for status lines.
pub fn probe_cost_ns(timed: bool) -> f64 {
    const COUNTING_NS: f64 = 4.0;
    if !timed {
        return COUNTING_NS;
    }
    const PAIRS: u32 = 2000;
    let start = std::time::Instant::now();
    for _ in 0..PAIRS {
        std::hint::black_box(ticks());
        std::hint::black_box(ticks());
    }
    start.elapsed().as_nanos() as f64 / f64::from(PAIRS) + COUNTING_NS
}
