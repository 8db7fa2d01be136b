//! What a look costs whoever is looked at: measured on ourselves, by the holes that looks tear into a loop that does nothing but read
//! the clock.

use std::time::{Duration, Instant};

use perf_event_open_sys::bindings::PERF_RECORD_SAMPLE;

use super::Samples;
use super::event::{self, Events};
use crate::proc::{Pid, Tid};

/// Looks a second, and for how long: some hundred of them.
const HZ: u32 = 4_999;
const TIME: Duration = Duration::from_millis(60);
/// Reading the clock twice takes less, being interrupted takes longer.
const LEAST_HOLE: Duration = Duration::from_nanos(500);
const FEWEST: usize = 20;

/// Of one look, in nanoseconds: the median. `None`: nobody may look here, or nothing came of it.
pub fn look_ns() -> Option<f64> {
    let wanted = Samples { hz: HZ }.wanted();
    let mut events = Events::new(event::allowed(wanted).ok()?);
    events.add(Pid(std::process::id() as i32), Tid(0)).ok()?;
    let mut holes = Vec::new();
    let started = Instant::now();
    let mut last = started;
    while last - started < TIME {
        let now = Instant::now();
        let hole = now - last;
        last = now;
        if hole < LEAST_HOLE {
            continue;
        }
        let mut looks = 0;
        for (_, ring) in &mut events.rings {
            ring.read(|kind, _| looks += u32::from(kind == PERF_RECORD_SAMPLE));
        }
        if looks == 1 {
            holes.push(hole.as_nanos() as f64);
        }
        last = Instant::now();
    }
    events.stop();
    holes.sort_by(f64::total_cmp);
    (holes.len() >= FEWEST).then(|| holes[holes.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_takes_microseconds() {
        let ns = look_ns().expect("tests may look at themselves");
        assert!((500.0..1e6).contains(&ns), "{ns}");
    }
}
