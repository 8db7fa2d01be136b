//! `--time auto`: which functions are timed, given what their calls take and what probes cost. Nothing is ever off here, so every call is counted.
//!
//! ```text
//! timed      from the start; and where the probes cost little beside what a call takes, callees included
//! sampled    where they cost too much, and have cost something so far
//! counted    where a call takes less than the clock does: timing one tells nothing
//! ```
//!
//! A function whose calls get longer is timed again. One that is only counted is sampled for a while now and then to find that out, ever more rarely.

use std::time::{Duration, Instant};

use super::Costs;
use super::groups::Group;
use super::memory::{LONGEST_REST, RELAPSE, REST};
use super::tunables::TUNABLES;
use crate::snapshot::FunctionSum;
use crate::states::State;

/// So many timed calls say what a call takes, and after so many they are counted anew.
const ENOUGH_CALLS: u64 = 16;
const MANY_CALLS: u64 = 4096;

/// What is remembered of all functions.
#[derive(Default)]
pub(super) struct Auto {
    functions: Vec<Known>,
    /// How many modules have been loaded.
    loaded: u32,
    /// The part of the processor time that timing took lately, of the threads where that was most.
    pub timing: f64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// What it was switched to here. In another state it is somebody else's.
    state: State,
    since: Option<Instant>,
    /// It is back from less since then.
    is_back: bool,
    rest: Duration,
    /// From when on calls are judged.
    mark: FunctionSum,
    /// What a call takes, without probes, as far as it is known.
    total_ns: Option<f64>,
    has_no_mode: bool,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            state: State::Timed,
            since: None,
            is_back: false,
            rest: REST,
            mark: FunctionSum::default(),
            total_ns: None,
            has_no_mode: false,
        }
    }
}

impl Auto {
    /// What has to change. `groups`: all threads together, and those that matter; `loaded`: how many modules were loaded so far.
    pub(super) fn choose(
        &mut self,
        sums: &[FunctionSum],
        groups: &[&Group],
        state_of: impl Fn(u32) -> State,
        costs: &Costs,
        loaded: u32,
        now: Instant,
    ) -> Vec<(u32, State)> {
        let loaded_anew = std::mem::replace(&mut self.loaded, loaded) != loaded;
        self.functions
            .resize_with(sums.len().max(self.functions.len()), Known::default);
        let timing = |group: &Group| {
            let timed = |&&(function, _): &&(u32, f64)| state_of(function) == State::Timed;
            let calls: f64 = group
                .calls
                .iter()
                .filter(timed)
                .map(|(_, calls)| calls)
                .sum();
            calls * costs.timed_ns / group.used.max(1.0)
        };
        // What of the processor time it takes to time it, where that is most.
        let mut shares = vec![0.0f64; sums.len()];
        for group in groups {
            for &(function, calls) in &group.calls {
                if let Some(share) = shares.get_mut(function as usize) {
                    *share = share.max(calls * costs.timed_ns / group.used.max(1.0));
                }
            }
        }
        self.timing = groups.iter().map(|group| timing(group)).fold(0.0, f64::max);
        let scarce = (TUNABLES.plenty / self.timing).min(1.0);
        let (spent_ns, spent_share) = (TUNABLES.spent_ns * scarce, TUNABLES.spent_share * scarce);
        let mut wanted = Vec::new();
        // Functions that stay timed, and what that takes.
        let mut timed_still: Vec<(f64, u32)> = Vec::new();
        for (function, (sum, share)) in (0..).zip(sums.iter().zip(&shares)) {
            let known = &mut self.functions[function as usize];
            if sum.calls == known.mark.calls || known.has_no_mode {
                continue;
            }
            let state = state_of(function);
            if state != known.state {
                // By hand; or its module was unloaded and is back, as new.
                if loaded_anew && state == State::Timed {
                    *known = Known::default();
                }
                continue;
            }
            known.learn(sum, costs);
            let timed = sum.calls.saturating_sub(sum.untimed) as f64;
            let has_cost = timed * costs.timed_ns >= spent_ns || *share >= spent_share;
            match known
                .next(has_cost, costs, now)
                .filter(|next| *next != state)
            {
                Some(next) => wanted.push((function, next)),
                None if state == State::Timed && has_cost && known.total_ns.is_some() => {
                    timed_still.push((*share, function));
                }
                None => {}
            }
        }
        wanted.extend(too_many(timed_still).map(|function| (function, State::Sampled)));
        wanted
    }

    /// It is in that state from now on.
    pub(super) fn changed(
        &mut self,
        function: u32,
        state: State,
        sums: &[FunctionSum],
        now: Instant,
    ) {
        let (Some(known), Some(sum)) = (
            self.functions.get_mut(function as usize),
            sums.get(function as usize),
        ) else {
            return;
        };
        let is_lower = state > known.state;
        if is_lower && known.is_back && known.is_young(now, RELAPSE) {
            known.rest = (known.rest * 2).min(LONGEST_REST);
        }
        known.is_back = !is_lower;
        known.state = state;
        known.since = Some(now);
        known.mark = *sum;
    }

    /// It cannot be in another state than it is in.
    pub(super) fn refused(&mut self, function: u32) {
        if let Some(known) = self.functions.get_mut(function as usize) {
            known.has_no_mode = true;
        }
    }
}

/// Of functions that are timed, each with the share of the time that this takes, those that cost most and go so that the rest
/// stays within `TUNABLES.timing_most`.
fn too_many(mut timed: Vec<(f64, u32)>) -> impl Iterator<Item = u32> {
    timed.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let mut sum = 0.0;
    let kept = timed.iter().take_while(|(share, _)| {
        sum += share;
        sum <= TUNABLES.timing_most
    });
    let kept = kept.count();
    timed.into_iter().skip(kept).map(|(_, function)| function)
}

impl Known {
    fn is_young(&self, now: Instant, age: Duration) -> bool {
        self.since
            .is_some_and(|since| now.duration_since(since) < age)
    }

    /// What a call takes: its own time by calls that were timed, and what its callees took in all calls. Callees' probes are in it,
    /// until they are switched themselves.
    fn learn(&mut self, sum: &FunctionSum, costs: &Costs) {
        let calls = sum.calls.saturating_sub(self.mark.calls);
        let untimed = sum.untimed.saturating_sub(self.mark.untimed);
        let timed = calls.saturating_sub(untimed);
        if timed < ENOUGH_CALLS {
            return;
        }
        let own = (sum.own_ns - self.mark.own_ns) / timed as f64;
        let below = (sum.below_ns - self.mark.below_ns) / calls as f64;
        let total = own - costs.own_ns + below;
        self.total_ns = Some(total.max(0.0));
        if timed >= MANY_CALLS {
            self.mark = *sum;
        }
    }

    /// The state that it should be in. `has_cost`: its probes have cost something.
    fn next(&self, has_cost: bool, costs: &Costs, now: Instant) -> Option<State> {
        let has_rested = !self.is_young(now, self.rest);
        if self.state == State::Counted {
            return has_rested.then_some(State::Sampled);
        }
        let total = self.total_ns?;
        let tells = total >= costs.timed_ns * TUNABLES.tells;
        match self.state {
            State::Timed if has_cost && costs.timed_ns > total * TUNABLES.timed_share => {
                Some(match tells {
                    true => State::Sampled,
                    false => State::Counted,
                })
            }
            State::Sampled if !tells => Some(State::Counted),
            State::Sampled if costs.timed_ns < total * TUNABLES.timed_again_share && has_rested => {
                Some(State::Timed)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        timed_ns: 20.0,
        counted_ns: 4.0,
        own_ns: 10.0,
        look_ns: 0.0,
        error: 1.0,
    };

    /// One function that the program calls and does nothing else beside.
    struct Program {
        auto: Auto,
        sum: FunctionSum,
        state: State,
        start: Instant,
        ms: u64,
    }

    impl Program {
        fn new() -> Program {
            Program {
                auto: Auto::default(),
                sum: FunctionSum::default(),
                state: State::Timed,
                start: Instant::now(),
                ms: 0,
            }
        }

        /// So many calls that take so long by themselves in 10 ms, with what the probe adds; then a look.
        fn run(&mut self, calls: u64, own_ns: f64) -> State {
            self.ms += 10;
            let timed = match self.state {
                State::Timed => calls,
                State::Sampled => calls / 64,
                State::Counted | State::Off => 0,
            };
            self.sum.calls += calls;
            self.sum.untimed += calls - timed;
            self.sum.own_ns += timed as f64 * (own_ns + COSTS.own_ns);
            let group = Group {
                used: 1e7,
                apart: 0.0,
                looks: 0.0,
                calls: vec![(0, calls as f64)],
            };
            let now = self.start + Duration::from_millis(self.ms);
            let state = self.state;
            let sums = [self.sum];
            let chosen = self
                .auto
                .choose(&sums, &[&group], |_| state, &COSTS, 0, now);
            for (function, state) in chosen {
                self.auto.changed(function, state, &sums, now);
                self.state = state;
            }
            self.state
        }
    }

    #[test]
    fn calls_that_take_long_beside_their_probes_are_timed() {
        let mut program = Program::new();
        (0..50).for_each(|_| assert_eq!(program.run(20_000, 450.0), State::Timed));
    }

    #[test]
    fn short_calls_are_timed_until_that_has_cost_something() {
        let mut program = Program::new();
        assert_eq!(program.run(4_000, 100.0), State::Timed, "0.8 % of the time");
        assert_eq!(program.run(30_000, 100.0), State::Sampled);
        let mut program = Program::new();
        assert_eq!(program.run(30_000, 3.0), State::Counted, "nothing to learn");
        // Rare ones go once they have cost a millisecond.
        let mut program = Program::new();
        let at = (1..).find(|_| program.run(1_000, 100.0) != State::Timed);
        assert_eq!(at, Some(50));
    }

    #[test]
    fn functions_that_are_worth_their_probes_go_where_all_of_them_take_too_much() {
        // A chain of 20, each the only callee of the one before, 10 us a call: 0.2 % of each call, 4 % of the time.
        let lasting = |calls: u64| {
            let (mut auto, start) = (Auto::default(), Instant::now());
            let mut sums = vec![FunctionSum::default(); 20];
            let group = |calls: u64| Group {
                used: 1e7,
                apart: 0.0,
                looks: 0.0,
                calls: (0..20).map(|function| (function, calls as f64)).collect(),
            };
            let mut states = vec![State::Timed; 20];
            for look in 1..100 {
                for (sum, depth) in sums.iter_mut().zip(1..) {
                    sum.calls += calls;
                    let own = 1e7 / 20.0;
                    sum.own_ns += own + calls as f64 * COSTS.own_ns;
                    sum.below_ns += own * f64::from(20 - depth) + 5000.0 * calls as f64;
                }
                let now = start + Duration::from_millis(look * 10);
                let known = states.clone();
                let state_of = |function: u32| known[function as usize];
                let group = group(calls);
                for (function, state) in auto.choose(&sums, &[&group], state_of, &COSTS, 0, now) {
                    auto.changed(function, state, &sums, now);
                    states[function as usize] = state;
                }
            }
            let timed = states.iter().filter(|state| **state == State::Timed);
            timed.count()
        };
        assert_eq!(lasting(1_000), 20, "0.2 % each, 4 % in all");
        assert_eq!(lasting(2_000), 12, "0.4 % each, 8 % in all");
    }

    #[test]
    fn what_gets_longer_is_timed_again_and_what_relapses_rests_longer() {
        let mut program = Program::new();
        program.run(30_000, 100.0);
        let mut until = |state, own| (1..20_000).find(|_| program.run(20_000, own) == state);
        // It rests for a second before it may come back, and what it did before counts no more by then.
        let first = until(State::Timed, 900.0).expect("it is back");
        assert!((100..=110).contains(&first), "{first}");
        assert_eq!(until(State::Sampled, 100.0), Some(1));
        let second = until(State::Timed, 900.0).expect("it is back");
        assert!((200..=210).contains(&second), "{second}");
    }

    #[test]
    fn what_is_only_counted_is_tried_now_and_then_ever_more_rarely() {
        let mut program = Program::new();
        program.run(30_000, 3.0);
        let mut sampled = Vec::new();
        for look in 0..2_000 {
            let before = program.state;
            if program.run(30_000, 3.0) == State::Sampled && before == State::Counted {
                sampled.push(look);
            }
        }
        assert!((3..=5).contains(&sampled.len()), "{sampled:?}");
        let gaps: Vec<i32> = sampled.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(gaps.is_sorted(), "{gaps:?}");
        // It turns out to take long now.
        assert!((0..13_000).any(|_| program.run(20_000, 900.0) == State::Timed));
    }

    #[test]
    fn what_somebody_else_switched_is_left_alone() {
        let mut program = Program::new();
        program.run(30_000, 3.0);
        program.state = State::Timed;
        (0..300).for_each(|_| assert_eq!(program.run(30_000, 3.0), State::Timed));
    }
}
