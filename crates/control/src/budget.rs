//! The budget: keeps what the probes cost below a share of the program's own time, by switching functions down and up again.
//!
//! ```text
//! every so often   calls of each function since the last look x what a call costs in its state   = what the probes cost
//!                  divided by the processor time of the target less that                         = the share
//! too much         the functions that tell least for what they cost, the shortest ones, are sampled; if that does not
//!                  suffice, they are switched off
//! room to spare    sampled ones are timed again; those that are off are tried again, one by one, ever more rarely if they turn
//!                  out as hot as they were
//! ```
//!
//! Everything is judged by what was seen since the last look, so that a program that does something else is measured anew.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::harvest::{self, FunctionSum};
use crate::memory::{Identity, Shared};
use crate::proc::Pid;
use crate::states;
use crate::switch::{State, Switcher};

/// What the user allows, and what the probes cost here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// 0.05: the probes may take a twentieth of what the program itself takes.
    pub share: f64,
    /// A timed call, in nanoseconds, and one that is only counted.
    pub timed_ns: f64,
    pub counted_ns: f64,
}

impl Budget {
    fn cost(&self, state: State) -> f64 {
        match state {
            State::Timed => self.timed_ns,
            State::Sampled => {
                self.counted_ns + self.timed_ns * 2.0 / thalweg_shm::SAMPLED_MOST as f64
            }
            State::Counted => self.counted_ns,
            State::Off => 0.0,
        }
    }
}

/// Aimed at, of the share that is allowed: calls in real programs cost more than calibrated ones, and rates change.
const AIM: f64 = 0.7;
/// One look brings the share down to no less than this part of it.
const STEP: f64 = 5.0;
/// With less than this of it used, functions come back.
const SPARE: f64 = 0.45;
/// A function that takes less than this part of what is allowed is left as it is.
const TOO_SMALL: f64 = 0.002;
/// The first look, and how often from then on.
const FIRST_LOOK: Duration = Duration::from_millis(15);
const LEAST: Duration = Duration::from_millis(20);
const MOST: Duration = Duration::from_millis(500);
/// A look may take this part of the time between two of them.
const LOOKING: u32 = 20;
/// How long a function that was found too hot stays off, at first and at most.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(120);
/// One that has to go again so soon after it came back was tried too early.
const RELAPSE: Duration = Duration::from_secs(10);
/// How many functions go or come in one stop: it takes some microseconds for each.
const AT_ONCE: usize = 256;

/// Keeps one target, and its fork children, within a budget.
pub struct Governor {
    budget: Budget,
    shared: Shared,
    switcher: Switcher,
    seen: Vec<FunctionSum>,
    /// Nanoseconds in the slow path, as far as it measures itself.
    slow: f64,
    /// Processor time of each process, in nanoseconds.
    used: HashMap<Pid, u64>,
    memory: HashMap<u32, Memory>,
    next: Instant,
    pause: Duration,
    /// What was last estimated.
    pub share: f64,
    pub longest_stop: Duration,
    looks: u64,
    /// Why something could not be read or switched, the last time that happened.
    failed: Option<String>,
}

/// What is remembered of a function that was switched.
#[derive(Clone, Copy, Debug)]
struct Memory {
    state: State,
    since: Instant,
    /// Calls per nanosecond of processor time, when it was last counted.
    rate: f64,
    /// Nanoseconds that a call takes by itself.
    own: f64,
    rest: Duration,
    /// It cannot be switched off.
    stays: bool,
}

/// A function that was called since the last look.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    function: u32,
    state: State,
    rate: f64,
    own: f64,
}

impl Governor {
    pub fn new(budget: Budget, shared: Shared, identity: Identity) -> Result<Governor> {
        let switcher = Switcher::new(shared.try_clone()?, identity)?;
        let now = Instant::now();
        Ok(Governor {
            budget,
            switcher,
            shared,
            seen: Vec::new(),
            slow: 0.0,
            used: HashMap::new(),
            memory: HashMap::new(),
            next: now + FIRST_LOOK,
            pause: LEAST,
            share: 0.0,
            longest_stop: Duration::ZERO,
            looks: 0,
            failed: None,
        })
    }

    /// Looks, if it is time to, and switches what has to be. `pids`: who carries the memory.
    pub fn tend(&mut self, pids: &[Pid]) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let before = thread_time();
        let looked = self.look(pids, now);
        if let Err(error) = &looked {
            self.failed = Some(error.to_string());
        }
        let changed = looked.unwrap_or(true);
        let took = thread_time().saturating_sub(before);
        self.looks += 1;
        self.pause = match changed {
            true => LEAST,
            false => (self.pause * 3 / 2).min(MOST),
        };
        self.pause = self.pause.max(took * LOOKING);
        self.next = Instant::now() + self.pause;
    }

    fn look(&mut self, pids: &[Pid], now: Instant) -> Result<bool> {
        let used = self.processor_time(pids);
        let (sums, slow) = harvest::by_function(&self.shared)?;
        let before = std::mem::replace(&mut self.seen, sums);
        // Less than before where a thread's slot has become another's.
        let slow = (slow - std::mem::replace(&mut self.slow, slow)).max(0.0);
        if used < 1e6 {
            // It waits: nothing costs anything.
            return Ok(false);
        }
        let states = states::of_all(&self.shared, &self.shared.header()?)?;
        let mut candidates = Vec::new();
        let mut cost = slow;
        for (function, sum) in (0..).zip(&self.seen) {
            let old = before.get(function as usize).copied().unwrap_or_default();
            let calls = sum.calls.saturating_sub(old.calls) as f64;
            if calls == 0.0 {
                continue;
            }
            // Somebody else may have switched it too.
            let state = states.get(function as usize).map_or(0, |state| state.state);
            let state = State::of(state);
            let timed = sum.calls.saturating_sub(sum.untimed);
            let own = match timed {
                0 => 0.0,
                _ => sum.own_ns / timed as f64,
            };
            cost += calls * self.budget.cost(state);
            candidates.push(Candidate {
                function,
                state,
                rate: calls,
                own,
            });
        }
        // What is left of the target's time is its own; probes that take nearly all of it leave at least something.
        let plain = (used - cost).max(used * 0.05);
        self.share = cost / plain;
        for candidate in &mut candidates {
            candidate.rate /= plain;
            if let Some(known) = self.memory.get_mut(&candidate.function) {
                known.rate = candidate.rate;
                known.own = candidate.own;
            }
        }
        let wanted = if self.share > self.budget.share {
            // Far from the aim, the plain time is known badly: several smaller steps come closer than one. The slow path is
            // not any one function's; most of it goes with the functions that are switched.
            let aim = (self.share / STEP).max(self.budget.share * AIM);
            self.lower(candidates, (aim - slow / plain).max(0.0))
        } else if self.share < self.budget.share * SPARE {
            self.raise(&candidates, now)
        } else {
            Vec::new()
        };
        if wanted.is_empty() {
            return Ok(false);
        }
        self.apply(pids, &wanted, now)?;
        Ok(true)
    }

    /// What came of it, in a sentence.
    pub fn report(&self) -> String {
        let failed = self.failed.as_ref();
        let failed =
            failed.map_or_else(String::new, |why| format!("; once it could not be: {why}"));
        format!(
            "the budget of {:.1} % was kept by {} looks, with stops of {:.1} ms at most; the last estimate of what the probes cost is {:.1} %{failed}",
            self.budget.share * 100.0,
            self.looks,
            self.longest_stop.as_secs_f64() * 1e3,
            self.share * 100.0
        )
    }

    /// Nanoseconds since the last look.
    fn processor_time(&mut self, pids: &[Pid]) -> f64 {
        let mut sum = 0;
        for &pid in pids {
            if let Some(time) = process_time(pid) {
                let before = self.used.insert(pid, time).unwrap_or(time);
                sum += time.saturating_sub(before);
            }
        }
        self.used.retain(|pid, _| pids.contains(pid));
        sum as f64
    }

    /// The shortest functions first: timing a call that takes no time tells little and costs as much as any.
    fn lower(&self, mut candidates: Vec<Candidate>, aim: f64) -> Vec<(u32, State)> {
        let cost = |c: &Candidate, state: State| c.rate * self.budget.cost(state);
        let mut total: f64 = candidates.iter().map(|c| cost(c, c.state)).sum();
        let worth_it = |c: &Candidate| cost(c, State::Timed) > aim * TOO_SMALL;
        candidates.sort_by(|a, b| a.own.partial_cmp(&b.own).unwrap_or(Ordering::Equal));
        let mut next: HashMap<u32, State> = HashMap::new();
        let mut gone = 0;
        for step in [State::Sampled, State::Off] {
            for candidate in candidates.iter_mut().filter(|c| worth_it(c)) {
                if total <= aim || gone >= AT_ONCE {
                    break;
                }
                let stays = self
                    .memory
                    .get(&candidate.function)
                    .is_some_and(|m| m.stays);
                if candidate.state >= step || step == State::Off && stays {
                    continue;
                }
                total += cost(candidate, step) - cost(candidate, candidate.state);
                candidate.state = step;
                gone += usize::from(step == State::Off);
                next.insert(candidate.function, step);
            }
        }
        next.into_iter().collect()
    }

    /// What fits: sampled functions to be timed, those that are off to be sampled. The longest first.
    fn raise(&self, candidates: &[Candidate], now: Instant) -> Vec<(u32, State)> {
        let mut room = (self.budget.share * AIM - self.share).max(0.0);
        let mut wanted = Vec::new();
        let mut sampled: Vec<&Candidate> = candidates
            .iter()
            .filter(|c| c.state == State::Sampled)
            .collect();
        sampled.sort_by(|a, b| b.own.partial_cmp(&a.own).unwrap_or(Ordering::Equal));
        for candidate in sampled {
            let more = self.budget.cost(State::Timed) - self.budget.cost(State::Sampled);
            let cost = candidate.rate * more;
            if cost <= room {
                room -= cost;
                wanted.push((candidate.function, State::Timed));
            }
        }
        let mut off: Vec<(u32, &Memory)> = self
            .memory
            .iter()
            .filter(|(_, m)| m.state == State::Off && now.duration_since(m.since) >= m.rest)
            .map(|(function, memory)| (*function, memory))
            .collect();
        off.sort_by(|a, b| a.1.rate.partial_cmp(&b.1.rate).unwrap_or(Ordering::Equal));
        // Even one that does not fit is tried when it has rested long: it may have cooled.
        let mut tried = self.budget.share;
        let mut came = 0;
        for (function, memory) in off {
            let cost = memory.rate * self.budget.cost(State::Sampled);
            if cost <= tried || memory.rest >= LONGEST_REST / 4 {
                tried -= cost;
                wanted.push((function, State::Sampled));
            }
            came += 1;
            if tried <= 0.0 || came >= AT_ONCE {
                break;
            }
        }
        wanted
    }

    fn apply(&mut self, pids: &[Pid], wanted: &[(u32, State)], now: Instant) -> Result<()> {
        let outcome = self.switcher.switch_in(pids, wanted)?;
        self.longest_stop = self.longest_stop.max(outcome.stop);
        let fresh = Memory {
            state: State::Timed,
            since: now,
            rate: 0.0,
            own: 0.0,
            rest: REST,
            stays: false,
        };
        for (function, state) in outcome.changed {
            let memory = self.memory.entry(function).or_insert(fresh);
            if state == State::Off && memory.rest_was_too_short(now) {
                memory.rest = (memory.rest * 2).min(LONGEST_REST);
            }
            memory.state = state;
            memory.since = now;
        }
        for (function, _) in outcome.refused {
            self.memory.entry(function).or_insert(fresh).stays = true;
        }
        Ok(())
    }
}

impl Memory {
    fn rest_was_too_short(&self, now: Instant) -> bool {
        self.state != State::Off && now.duration_since(self.since) < RELAPSE && self.rate > 0.0
    }
}

/// What this thread has used of a processor.
fn thread_time() -> Duration {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
}

fn clock_time(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a local.
    let known = unsafe { libc::clock_gettime(clock, &mut time) == 0 };
    known.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// What a process has used of all processors, in nanoseconds.
fn process_time(pid: Pid) -> Option<u64> {
    let mut clock = 0;
    // SAFETY: writes to a local.
    let known = unsafe { libc::clock_getcpuclockid(pid.0, &mut clock) == 0 };
    let time = clock_time(clock).filter(|_| known)?;
    Some(time.as_nanos() as u64)
}
