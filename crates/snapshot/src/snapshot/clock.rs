//! The target's ticks as nanoseconds.

use thalweg_abi as shm;

use crate::clock::Moment;

/// Ticks to nanoseconds.
pub(super) struct Clock {
    pub hz: f64,
}

impl Clock {
    pub(super) fn new(header: &shm::Header, now: Moment) -> Clock {
        let recorded = f64::from_bits(header.ticks_hz);
        let passed = now.monotonic_ns.saturating_sub(header.attach_monotonic_ns);
        // The longer the baseline the better the rate.
        let hz = if passed > 100_000_000 && now.ticks > header.attach_ticks {
            (now.ticks - header.attach_ticks) as f64 * 1e9 / passed as f64
        } else {
            recorded
        };
        // A file may be from another machine, or from before this one was started.
        const SAME_MACHINE: f64 = 1e-3;
        let agrees = (hz / recorded - 1.0).abs() < SAME_MACHINE;
        let is_elsewhere = header.flags & shm::HEADER_AHEAD != 0 && !agrees;
        let hz = if is_elsewhere { recorded } else { hz };
        Clock {
            hz: if hz.is_finite() && hz > 1e6 { hz } else { 1e9 },
        }
    }

    pub(super) fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * 1e9 / self.hz).round() as u64
    }

    pub(super) fn ticks(&self, ns: u64) -> u64 {
        (ns as f64 * self.hz / 1e9).round() as u64
    }

    /// Self times may be a little below zero.
    pub(super) fn signed_ns(&self, ticks: i64) -> u64 {
        self.ns(ticks.max(0) as u64)
    }
}
