//! When each process is recorded next.
//!
//! A process is due at a random moment within its first period, and then once in each, a tenth of
//! it sooner or later: hosts that start together do not record together. So a process that lives
//! for half a period is recorded with probability 1/2, and no kind of process is favoured.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::processes::{Id, Process};

pub struct Schedule {
    every: Duration,
    /// Recordings of a group within `every`.
    at_most: usize,
    known: HashMap<Id, Known>,
}

struct Known {
    due: Instant,
    period: Duration,
    /// Why it was not recorded, as it was told.
    told: Option<String>,
}

impl Schedule {
    pub fn new(every: Duration, at_most: usize) -> Schedule {
        Schedule {
            every,
            at_most,
            known: HashMap::new(),
        }
    }

    /// New ones come in, those that have ended go.
    pub fn see(&mut self, chosen: &[Process]) {
        let mut sizes: HashMap<usize, usize> = HashMap::new();
        for process in chosen {
            *sizes.entry(process.group).or_default() += 1;
        }
        let mut before = std::mem::take(&mut self.known);
        for process in chosen {
            let size = sizes.get(&process.group).copied().unwrap_or(1);
            let period = self
                .every
                .mul_f64((size as f64 / self.at_most as f64).max(1.0));
            let known = before.remove(&process.id).unwrap_or_else(|| Known {
                due: Instant::now() + within(period),
                period,
                told: None,
            });
            self.known.insert(process.id, Known { period, ..known });
        }
    }

    /// The one that has waited longest.
    pub fn due<'a>(&self, chosen: &'a [Process]) -> Option<&'a Process> {
        let now = Instant::now();
        let due = |process: &&Process| self.known.get(&process.id).map(|known| known.due);
        chosen
            .iter()
            .filter(|process| due(process).is_some_and(|due| due <= now))
            .min_by_key(due)
    }

    pub fn recorded(&mut self, process: &Process) {
        if let Some(known) = self.known.get_mut(&process.id) {
            let next = known.due + known.period.mul_f64(0.9 + 0.2 * fastrand::f64());
            known.due = next.max(Instant::now());
        }
    }

    /// What is due goes to a random moment: else all would be recorded at once afterwards.
    pub fn put_off(&mut self) {
        let now = Instant::now();
        for known in self.known.values_mut().filter(|known| known.due <= now) {
            known.due = now + within(known.period);
        }
    }

    /// Whether this is to be told: the same of the same process is told once.
    pub fn is_news(&mut self, process: &Process, why: &str) -> bool {
        match self.known.get_mut(&process.id) {
            Some(known) => known.told.replace(why.to_owned()).as_deref() != Some(why),
            None => true,
        }
    }
}

fn within(period: Duration) -> Duration {
    period.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> Process {
        Process {
            id: Id { pid, start: 1 },
            pid,
            name: String::new(),
            group: 0,
        }
    }

    #[test]
    fn each_is_due_once_in_a_period_and_many_take_turns() {
        let minute = Duration::from_secs(60);
        let all: Vec<Process> = (0..20).map(process).collect();
        let mut schedule = Schedule::new(minute, 10);
        schedule.see(&all);
        let now = Instant::now();
        // Twice as many as may be: a period of two minutes.
        let late = schedule
            .known
            .values()
            .filter(|known| known.due > now + minute);
        assert!((1..20).contains(&late.count()));
        assert!(
            schedule
                .known
                .values()
                .all(|known| known.due <= now + 3 * minute)
        );
        let first = &all[0];
        let due = schedule.known[&first.id].due;
        schedule.recorded(first);
        let gap = schedule.known[&first.id].due - due;
        assert!(
            gap >= minute.mul_f64(1.8) && gap <= minute.mul_f64(2.2),
            "{gap:?}"
        );
        schedule.see(&all[1..]);
        assert_eq!(schedule.known.len(), 19);
    }

    #[test]
    fn the_same_refusal_is_told_once() {
        let mut schedule = Schedule::new(Duration::from_secs(60), 1);
        let one = process(1);
        schedule.see(std::slice::from_ref(&one));
        assert!(schedule.is_news(&one, "no right"));
        assert!(!schedule.is_news(&one, "no right"));
        assert!(schedule.is_news(&one, "full"));
    }
}
