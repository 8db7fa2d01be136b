//! Whom the probes cost what: all threads together, and each thread that matters by itself, so that a busy one does not hide among others
//! that call little.
//!
//! ```text
//! of each   calls of every function since the last look, the processor time since then (a thread's: its own clock, which its events move),
//!           the slow path
//! share     what the probes cost it, over what is left of its time
//! ```
//!
//! A thread's clock stands while it has no timed event: whatever it used until then comes with the next one.

use std::collections::{HashMap, HashSet};

use super::Costs;
use super::choose::Candidate;
use crate::snapshot::{ThreadSum, Whose};

/// A thread that has used less than this part of what all have is not judged by itself.
const MATTERS: f64 = 0.05;
/// Where one thread has used more than this part there is nobody else to hide among.
const NEARLY_ALL: f64 = 0.95;
/// Nor is one that has used less than this, in nanoseconds.
const LEAST_NS: f64 = 1e6;

/// Some threads since the last look.
pub(super) struct Group {
    /// Nanoseconds on a processor.
    pub used: f64,
    /// Of which no function's: the slow path; and, of all threads together, stops in the place of the work that they kept from being done.
    pub apart: f64,
    /// What looks at it took.
    pub looks: f64,
    /// Function and calls.
    pub calls: Vec<(u32, f64)>,
}

/// What a group's calls cost.
pub(super) struct Judged {
    /// Of the group's own time: all that probes and looks cost, and what of it stays whatever is switched: looks, and functions that must stay.
    pub share: f64,
    pub pinned: f64,
    pub apart: f64,
    /// What calls cost, in nanoseconds.
    pub calls: f64,
    pub candidates: Vec<Candidate>,
}

impl Group {
    /// `of` says what is known of a function.
    pub(super) fn judge(&self, costs: &Costs, of: &HashMap<u32, Candidate>) -> Judged {
        let mut cost = self.apart + self.looks;
        let mut pinned = self.looks;
        let mut candidates = Vec::new();
        for &(function, calls) in &self.calls {
            let Some(known) = of.get(&function) else {
                continue;
            };
            let of_it = calls * costs.cost(known.state);
            cost += of_it;
            if known.is_pinned() {
                pinned += of_it;
            }
            candidates.push(Candidate {
                rate: calls,
                ..*known
            });
        }
        // What is left of the time is the program's own; probes that take nearly all of it leave at least something.
        let plain = (self.used - cost).max(self.used * 0.05);
        for candidate in &mut candidates {
            candidate.rate /= plain;
        }
        Judged {
            share: cost / plain,
            pinned: pinned / plain,
            apart: self.apart / plain,
            calls: cost - self.apart - self.looks,
            candidates,
        }
    }
}

/// What is remembered of threads from look to look.
#[derive(Default)]
pub(super) struct Threads {
    seen: HashMap<Whose, ThreadSum>,
}

impl Threads {
    /// Those whose calls are worth adding up: who has used a good part since the last look, unless it is nearly all.
    pub(super) fn that_matter(&self, threads: &[ThreadSum]) -> HashSet<Whose> {
        let used = |thread: &ThreadSum| {
            let before = self.seen.get(&thread.whose);
            before.map_or(0.0, |before| thread.used_since(before))
        };
        let all: f64 = threads.iter().map(used).sum();
        let is_one_of_several = |share: f64| (MATTERS..NEARLY_ALL).contains(&share);
        let mattering = threads
            .iter()
            .filter(|thread| used(thread) >= LEAST_NS && is_one_of_several(used(thread) / all));
        mattering.map(|thread| thread.whose).collect()
    }

    /// Each of those that mattered at this look and at the one before; and what all have spent in the slow path since then, in nanoseconds.
    pub(super) fn groups(&mut self, threads: Vec<ThreadSum>) -> (Vec<Group>, f64) {
        let mut groups = Vec::new();
        let mut seen = HashMap::new();
        let mut slow_in_all = 0.0;
        for thread in threads {
            let before = self.seen.get(&thread.whose);
            let slow = thread.slow_since(before);
            slow_in_all += slow;
            if let Some(before) = before
                && !thread.calls.is_empty()
                && !before.calls.is_empty()
            {
                let earlier = |function: usize| before.calls.get(function).copied().unwrap_or(0);
                let all = thread.calls.iter().enumerate();
                let calls = all.filter_map(|(function, calls)| {
                    let more = calls.saturating_sub(earlier(function));
                    (more > 0).then_some((function as u32, more as f64))
                });
                groups.push(Group {
                    used: thread.used_since(before),
                    apart: slow,
                    looks: 0.0,
                    calls: calls.collect(),
                });
            }
            seen.insert(thread.whose, thread);
        }
        self.seen = seen;
        (groups, slow_in_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::states::State;

    const COSTS: Costs = Costs {
        timed_ns: 20.0,
        counted_ns: 6.0,
        own_ns: 0.0,
        look_ns: 0.0,
        error: 1.0,
    };

    fn thread(root: u64, clock_ns: f64, calls: Vec<u64>) -> ThreadSum {
        ThreadSum {
            whose: (root, 0),
            clock_ns,
            slow_ns: 0.0,
            slow_events: 0,
            off_calls: 0,
            calls,
        }
    }

    #[test]
    fn threads_matter_that_have_a_part_but_not_nearly_all() {
        let mut threads = Threads::default();
        let at = |times: [f64; 3]| (1..).zip(times).map(|(n, t)| thread(n, t, Vec::new()));
        assert!(
            threads
                .that_matter(&at([0.0; 3]).collect::<Vec<_>>())
                .is_empty()
        );
        threads.groups(at([0.0; 3]).collect());
        let several: Vec<ThreadSum> = at([20e6, 10e6, 0.5e6]).collect();
        assert_eq!(
            threads.that_matter(&several),
            HashSet::from([(1, 0), (2, 0)])
        );
        let alone: Vec<ThreadSum> = at([20e6, 0.1e6, 0.0]).collect();
        assert!(threads.that_matter(&alone).is_empty());
    }

    /// 80,000 calls of 20 ns and 0.4 ms in the slow path cost 2 of 10 ms: a quarter of the 8 that are left, whatever others do.
    #[test]
    fn a_thread_is_judged_by_its_own_time() {
        let mut threads = Threads::default();
        let calls = |calls: u64| vec![0, calls];
        threads.groups(vec![thread(7, 1e6, calls(5))]);
        let now = ThreadSum {
            slow_ns: 3e6,
            slow_events: 200,
            ..thread(7, 8e6, calls(80_005))
        };
        let (groups, slow) = threads.groups(vec![now]);
        assert_eq!(slow, 0.4e6, "200 times 2 us at most");
        let known = |may_be_off| {
            let candidate = Candidate {
                function: 1,
                state: State::Timed,
                rate: 0.0,
                own: 100.0,
                may_be_sampled: false,
                may_be_off,
            };
            HashMap::from([(1, candidate)])
        };
        let [group] = &groups[..] else {
            panic!("one thread");
        };
        let judged = group.judge(&COSTS, &known(true));
        assert!((judged.share - 2.0 / 8.0).abs() < 1e-9, "{}", judged.share);
        assert!((judged.apart - 0.05).abs() < 1e-9 && judged.pinned == 0.0);
        assert!((judged.candidates[0].rate - 0.01).abs() < 1e-9);
        let judged = group.judge(&COSTS, &known(false));
        assert!((judged.pinned - 0.2).abs() < 1e-9, "{}", judged.pinned);
        let looked = Group {
            used: group.used,
            apart: group.apart,
            looks: 1e6,
            calls: group.calls.clone(),
        };
        let judged = looked.judge(&COSTS, &known(true));
        assert!((judged.share - 3.0 / 7.0).abs() < 1e-9, "{}", judged.share);
        assert!((judged.pinned - 1.0 / 7.0).abs() < 1e-9, "looks go on");
        assert!((judged.calls - 1.6e6).abs() < 1e-3, "{}", judged.calls);
    }
}
