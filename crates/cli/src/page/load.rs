//! What a live process did, reading by reading: calls a second, processors, threads that wait.

use std::collections::HashMap;

use serde::Serialize;
use thalweg_ptrace::proc::Tid;

/// Readings that are remembered: ten minutes of one a second.
const MAX_READINGS: usize = 600;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Load {
    /// Nanoseconds since the server began.
    at: Vec<u64>,
    /// A second.
    calls: Vec<f64>,
    /// As many as the process had on average.
    processors: Vec<f64>,
    /// Threads that had none, on average.
    waiting: Vec<f64>,
    #[serde(skip)]
    before: Option<(u64, HashMap<Tid, u64>)>,
}

impl Load {
    /// `calls`: a second since the reading before. `times`: how long each thread has been on a processor.
    pub fn add(&mut self, at_ns: u64, calls: f64, times: HashMap<Tid, u64>) {
        if let Some((before_ns, before)) = &self.before {
            let passed = at_ns.saturating_sub(*before_ns).max(1) as f64;
            let used = times.iter().map(|(tid, &time)| {
                let then = before.get(tid).copied().unwrap_or(0);
                time.saturating_sub(then) as f64 / passed
            });
            let processors: f64 = used.sum();
            self.at.push(at_ns);
            self.calls.push(calls);
            self.processors.push(processors);
            self.waiting
                .push((times.len() as f64 - processors).max(0.0));
            for all in [&mut self.calls, &mut self.processors, &mut self.waiting] {
                let excess = all.len().saturating_sub(MAX_READINGS);
                all.drain(..excess);
            }
            let excess = self.at.len().saturating_sub(MAX_READINGS);
            self.at.drain(..excess);
        }
        self.before = Some((at_ns, times));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_what_threads_used_between_two_readings_and_the_rest_waits() {
        let times = |one: u64, other: u64| HashMap::from([(Tid(1), one), (Tid(2), other)]);
        let mut load = Load::default();
        load.add(0, 5.0, times(100, 0));
        assert!(load.at.is_empty(), "one reading tells nothing");
        load.add(1_000, 7.0, times(1_100, 250));
        assert_eq!(load.processors, [1.25]);
        assert_eq!((load.calls[0], load.waiting[0]), (7.0, 0.75));
        for reading in 2..2_000 {
            load.add(reading * 1_000, 0.0, times(1_100, 250));
        }
        assert_eq!((load.at.len(), load.waiting.len()), (600, 600));
    }
}
