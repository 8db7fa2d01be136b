//! The budget: keeps what the probes cost below a share of the program's own time, by switching functions down and up again.
//!
//! ```text
//! every so often   calls of each function since the last look x what a call costs in its state   = what the probes cost
//!                  more where looks find probes more often than that (`found.rs`); and what looks themselves cost
//!                  divided by the processor time of the target less that                         = the share; the same for each thread
//!                                                                                                  that matters
//! too much         the functions that tell least for what they cost are sampled or switched off
//! room to spare    sampled ones are timed again; those that are off are tried again, ever more rarely if they turn out as hot as
//!                  they were
//! ```
//!
//! Which ones is in `choose.rs`, and whose share in `groups.rs`. Functions that rules need stay timed. Everything is judged by what was seen since the last look, so that a program that does something
//! else is measured anew. For processes that nobody records the sidecar does it.

mod auto;
mod choose;
mod families;
mod found;
mod groups;
mod memory;
mod tunables;

use std::collections::HashMap;
use std::mem::offset_of;
use std::time::{Duration, Instant};

use thalweg_abi as shm;

use self::auto::Auto;
use self::choose::{Candidate, Chosen};
use self::families::{Families, Remedy};
use self::found::Found;
use self::groups::{Group, Judged, Threads};
use self::memory::Memories;
use self::tunables::TUNABLES;
use crate::error::Result;
use crate::memory::{Identity, Shared};
use crate::proc::Pid;
use crate::samples::Seen;
use crate::snapshot::{FunctionSum, Tally};
use crate::states;
use crate::switch::{State, Switcher};
use thalweg_instrument::call_rules;
use thalweg_instrument::idle::BeforeOthers;

/// What is done to keep probes cheap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    pub goal: Goal,
    pub costs: Costs,
}

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The probes may take this share of what the program itself takes, 0.05: functions go off.
    Share(f64),
    /// Every call is counted; calls are timed that take long beside what probes cost.
    TrueTimes,
    /// Every call is counted, and every function goes from mode to mode at every look: for tests of whether counts stay exact.
    Restless,
}

/// What the probes cost here, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A timed call, and one that is only counted.
    pub timed_ns: f64,
    pub counted_ns: f64,
    /// Of the former, what is measured as the function's own time.
    pub own_ns: f64,
    /// A look at a thread's stack.
    pub look_ns: f64,
    /// What part of a call's cost may be wrong, as two standard deviations: 1 is all of it.
    pub error: f64,
}

impl Costs {
    /// The same where calls cost more.
    fn with_calls_at(self, factor: f64) -> Costs {
        Costs {
            timed_ns: self.timed_ns * factor,
            counted_ns: self.counted_ns * factor,
            ..self
        }
    }

    fn cost(&self, state: State) -> f64 {
        match state {
            State::Timed => self.timed_ns,
            State::Sampled => {
                self.counted_ns + self.timed_ns * 2.0 / thalweg_abi::SAMPLED_MOST as f64
            }
            State::Counted => self.counted_ns,
            State::Off => 0.0,
        }
    }
}

impl Policy {
    /// What is said where stacks cannot be sampled, for that reason.
    pub(crate) fn without_samples(policy: Option<Policy>, why: &str) -> String {
        match policy.map(|policy| policy.goal) {
            Some(Goal::TrueTimes | Goal::Restless) => {
                format!(
                    "{why}; own times of functions that were not timed are estimates from the calls that were, or part of their callers'"
                )
            }
            Some(Goal::Share(_)) | None => why.to_owned(),
        }
    }

    fn share(&self) -> f64 {
        match self.goal {
            Goal::Share(share) => share,
            Goal::TrueTimes | Goal::Restless => f64::INFINITY,
        }
    }

    fn first_look(&self) -> Duration {
        match self.goal {
            Goal::Share(_) => FIRST_LOOK,
            Goal::TrueTimes => FIRST_AUTO_LOOK,
            Goal::Restless => Duration::ZERO,
        }
    }

    fn least_pause(&self) -> Duration {
        match self.goal {
            Goal::Share(_) => LEAST,
            Goal::TrueTimes => LEAST_AUTO,
            Goal::Restless => Duration::ZERO,
        }
    }
}

/// Where room for the slow path does not help, after so many looks, the aim is squeezed, ever again.
const PATIENCE: u32 = 3;
/// The first look, and how often from then on; the same where nobody has to be stopped.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LEAST: Duration = Duration::from_millis(10);
const FIRST_AUTO_LOOK: Duration = Duration::from_millis(4);
const LEAST_AUTO: Duration = Duration::from_millis(4);
const MOST: Duration = Duration::from_millis(500);
/// A look may take this part of the time between two of them, and this one as long as far too much is spent.
const LOOKING: u32 = 40;
const LOOKING_AUTO: u32 = 25;
const TIMING_TOO_MUCH: f64 = 0.25;
const LOOKING_HARD: u32 = 1;
const FAR_TOO_MUCH: f64 = 2.0;
/// For how long whoever looks goes before others.
const HASTE: Duration = Duration::from_secs(1);
/// How many functions that nobody calls are timed from now on, in one look.
const TIMED_AT_ONCE: usize = 512;
/// Not before so many looks, for what is hot goes first.
const FIRST_THE_HOT: u64 = 5;
/// With fewer, a process was too short for a budget.
const ENOUGH_LOOKS: u64 = 10;
/// From when on it is told that calls cost more.
const TOLD: f64 = 1.2;
/// How many functions go or come in one stop: each takes some microseconds.
const IN_ONE_STOP: usize = 32;
/// After a stop that did not come together nothing is tried for this long, and twice that after each further one.
const SETBACK: Duration = Duration::from_millis(500);
const LONGEST_SETBACK: Duration = Duration::from_secs(60);
/// Between two stops.
const BREATH: Duration = Duration::from_micros(500);

/// Keeps one target, and its fork children, within a budget.
pub struct Governor {
    policy: Policy,
    /// What calls cost here.
    here: Costs,
    found: Found,
    auto: Auto,
    families: Families,
    shared: Shared,
    switcher: Switcher,
    tally: Tally,
    seen: Vec<FunctionSum>,
    threads: Threads,
    looked: Instant,
    /// Processor time of each process, in nanoseconds.
    used: HashMap<Pid, u64>,
    memories: Memories,
    next: Instant,
    pause: Duration,
    /// For as long as switching fails.
    setback: Option<Duration>,
    /// What was last estimated.
    pub share: f64,
    pub longest_stop: Duration,
    /// How many stops, how long all of them were, and those since the last look.
    stops: u64,
    stopped: Duration,
    stopped_lately: Duration,
    looks: u64,
    /// In a row, with more than is allowed.
    over: u32,
    squeeze: f64,
    /// Why something could not be read or switched, the last time that happened.
    failed: Option<String>,
    /// Everything is counted at first, which costs much: until little of that is left the thread
    /// that looks goes before others. `None`: it need not any more.
    haste: Option<(Instant, BeforeOthers)>,
}

impl Governor {
    pub fn new(policy: Policy, shared: Shared, identity: Identity) -> Result<Governor> {
        let mut switcher = Switcher::new(shared.try_clone()?, identity)?;
        switcher.tries_once();
        let now = Instant::now();
        Ok(Governor {
            here: policy.costs,
            found: Found::new(policy.costs.error),
            auto: Auto::default(),
            families: Families::default(),
            policy,
            switcher,
            shared,
            tally: Tally::default(),
            seen: Vec::new(),
            threads: Threads::default(),
            looked: now,
            used: HashMap::new(),
            memories: Memories::default(),
            next: now + policy.first_look(),
            pause: policy.least_pause(),
            setback: None,
            share: 0.0,
            longest_stop: Duration::ZERO,
            stops: 0,
            stopped: Duration::ZERO,
            stopped_lately: Duration::ZERO,
            looks: 0,
            over: 0,
            squeeze: 1.0,
            failed: None,
            haste: None,
        })
    }

    /// Looks, if it is time to, and switches what has to be. `pids`: who carries the memory. `drain` is called first, and before each switch.
    pub fn tend(&mut self, pids: &[Pid], drain: &mut dyn FnMut() -> Seen) {
        let now = Instant::now();
        if self.looks == 0 && self.haste.is_none() && matches!(self.policy.goal, Goal::Share(_)) {
            self.haste = Some((now, BeforeOthers::begin()));
        }
        self.haste
            .take_if(|(since, _)| self.looks > 0 && since.elapsed() > HASTE);
        if now < self.next {
            return;
        }
        let began = thread_time();
        let looked = self.look(pids, now, drain);
        let took = thread_time().saturating_sub(began);
        self.looks += 1;
        self.pause = match looked {
            Ok(true) => {
                self.setback = None;
                self.policy.least_pause()
            }
            Ok(false) => (self.pause * 3 / 2).min(MOST),
            Err(error) => {
                self.failed = Some(error.to_string());
                let doubled = self.setback.map_or(SETBACK, |setback| setback * 2);
                *self.setback.insert(doubled.min(LONGEST_SETBACK))
            }
        };
        let looking = match self.policy.goal {
            Goal::TrueTimes if self.auto.timing > TIMING_TOO_MUCH => LOOKING_HARD,
            Goal::TrueTimes => LOOKING_AUTO,
            Goal::Restless => 0,
            Goal::Share(share) if self.share > share * FAR_TOO_MUCH => LOOKING_HARD,
            Goal::Share(_) => LOOKING,
        };
        self.pause = self.pause.max(took * looking);
        self.next = Instant::now() + self.pause;
    }

    fn look(
        &mut self,
        pids: &[Pid],
        now: Instant,
        drain: &mut dyn FnMut() -> Seen,
    ) -> Result<bool> {
        let (looks, in_probes) = self.found.since(drain());
        if !self.used.is_empty() {
            for &pid in pids.iter().filter(|pid| !self.used.contains_key(pid)) {
                self.switcher.renew_modes(pid)?;
            }
        }
        let used = self.processor_time(pids);
        let threads = &self.threads;
        let mut sums = self
            .tally
            .read(&self.shared, &|all| threads.that_matter(all))?;
        self.families.take_together(&self.shared, &mut sums)?;
        let off_cost = self.families.off_cost(&sums.threads);
        let stopped = std::mem::take(&mut self.stopped_lately);
        let (mut by_thread, slow) = self.threads.groups(std::mem::take(&mut sums.threads));
        for (function, calls) in by_thread.iter_mut().flat_map(|group| &mut group.calls) {
            *calls *= self.families.weight(*function, &self.policy.costs);
        }
        let earlier = std::mem::replace(&mut self.seen, sums.functions);
        // Of processes that have ended since, only the trees know what they took; an activation that ends brings more than its
        // part, but nobody has had more than all processors.
        let own = |sums: &[FunctionSum]| sums.iter().map(|sum| sum.own_ns).sum::<f64>();
        let wall = now.duration_since(std::mem::replace(&mut self.looked, now));
        let most = wall.as_nanos() as f64 * processors() as f64;
        let used = used.max((own(&self.seen) - own(&earlier)).min(most));
        let header = self.shared.header()?;
        let states = states::of_all(&self.shared, &header)?;
        let needed = call_rules::needed(&self.shared, &header)?;
        // Somebody else may have switched it too.
        let state_of = |function: u32| {
            let state = states.get(function as usize).map_or(0, |state| state.state);
            State::of(state)
        };
        let is_leaf = |function: u32| {
            let state = states.get(function as usize);
            state.is_some_and(states::is_never_timed)
        };
        let can_sample =
            header.flags & shm::HEADER_TIMED != 0 && header.flags & shm::HEADER_RECORDS == 0;
        // What is counted only because nothing was known of it costs nothing as long as nobody calls it.
        let rested: Vec<(u32, State)> = (0..)
            .zip(
                self.seen
                    .iter()
                    .zip(earlier.iter().map(Some).chain(std::iter::repeat(None))),
            )
            .filter(|(_, (sum, before))| before.map_or(0, |before| before.calls) == sum.calls)
            .map(|(function, _)| function)
            .filter(|&function| {
                state_of(function) == State::Counted
                    && can_sample
                    && !is_leaf(function)
                    && self.memories.may_be_sampled(function)
            })
            .map(|function| (function, State::Timed))
            .take(TIMED_AT_ONCE)
            .collect();
        if let Goal::Share(share) = self.policy.goal
            && self.share <= share
            && self.looks >= FIRST_THE_HOT
            && !rested.is_empty()
        {
            drain();
            self.apply_some(pids, &rested, now)?;
        }
        if used < 1e6 && self.policy.goal != Goal::Restless {
            // It waits: nothing costs anything.
            return Ok(false);
        }
        let mut known = HashMap::new();
        let mut all = Group {
            used,
            // Nobody works while the process stands.
            apart: slow + off_cost + stopped.as_nanos() as f64,
            looks: 0.0,
            calls: Vec::new(),
        };
        for (function, sum) in (0..).zip(&self.seen) {
            let old = earlier.get(function as usize).copied().unwrap_or_default();
            let calls = sum.calls.saturating_sub(old.calls) as f64;
            if calls == 0.0 {
                continue;
            }
            let timed = sum.calls.saturating_sub(sum.untimed);
            let own = match timed {
                0 => 0.0,
                _ => (sum.own_ns / timed as f64 - self.policy.costs.own_ns).max(0.0),
            };
            let weight = self.families.weight(function, &self.policy.costs);
            all.calls.push((function, calls * weight));
            known.insert(
                function,
                Candidate {
                    function,
                    state: state_of(function),
                    rate: 0.0,
                    own,
                    may_be_sampled: can_sample
                        && !is_leaf(function)
                        && !self.families.is_leader(function)
                        && self.memories.may_be_sampled(function),
                    may_be_off: self.memories.may_be_off(function)
                        && self.families.may_be_off(function)
                        && !needed.contains(&function),
                },
            );
        }
        if let Goal::Restless = self.policy.goal {
            let wanted: Vec<(u32, State)> = all
                .calls
                .iter()
                .filter_map(|&(function, _)| Some((function, state_of(function).turned()?)))
                .collect();
            self.apply_modes(pids, &wanted, now, drain)?;
            return Ok(true);
        }
        if let Goal::TrueTimes = self.policy.goal {
            let groups: Vec<&Group> = std::iter::once(&all).chain(&by_thread).collect();
            let costs = &self.policy.costs;
            let wanted = self
                .auto
                .choose(&self.seen, &groups, state_of, costs, header.loaded, now);
            return self.apply_modes(pids, &wanted, now, drain);
        }
        let usual = all.judge(&self.policy.costs, &known);
        if usual.share < self.policy.share() * FAR_TOO_MUCH {
            // What is hot goes first, and costs what is usual.
            let expected = looks * usual.calls / used;
            self.found.add(in_probes - looks * slow / used, expected);
        }
        self.here = self.policy.costs.with_calls_at(self.found.factor());
        for group in std::iter::once(&mut all).chain(&mut by_thread) {
            group.looks = looks * self.policy.costs.look_ns * group.used / used;
        }
        let groups = std::iter::once(&all).chain(&by_thread);
        let mut judged: Vec<Judged> = groups.map(|g| g.judge(&self.here, &known)).collect();
        judged.sort_by(|a, b| b.share.total_cmp(&a.share));
        self.share = judged.first().map_or(0.0, |worst| worst.share);
        self.memories.see(&judged);
        let off = needed.iter().filter(|f| state_of(**f) == State::Off);
        let mut wanted: Vec<(u32, State)> = off.map(|f| (*f, State::Timed)).collect();
        self.switcher.pin(needed);
        wanted.extend(self.choose(&judged, now));
        match self.families.remedy(off_cost, self.policy.share(), used) {
            Some(Remedy::Drop) => self.switcher.drop_compiled(pids)?,
            Some(Remedy::Leave(leader)) => wanted.push((leader, State::Off)),
            None => {}
        }
        if wanted.is_empty() {
            return Ok(false);
        }
        // Those that need a stop come last.
        let needs_stop = |&(function, state): &(u32, State)| {
            state == State::Off || state_of(function) == State::Off
        };
        let (stops, modes): (Vec<_>, Vec<_>) = wanted.into_iter().partition(needs_stop);
        if !modes.is_empty() {
            drain();
            self.apply_some(pids, &modes, now)?;
        }
        self.apply(pids, &stops, now, drain)?;
        Ok(true)
    }

    /// What has to change, or may; the worst group comes first.
    fn choose(&mut self, judged: &[Judged], now: Instant) -> Vec<(u32, State)> {
        // What must stay leaves less for the others, but something.
        let share = self.policy.share();
        let allowed = |group: &Judged| (share - group.pinned).max(share * TUNABLES.for_the_others);
        let used = |group: &Judged| (group.share - group.pinned) / allowed(group);
        let worst = judged.iter().map(used).fold(0.0, f64::max);
        if worst <= 1.0 {
            self.over = 0;
            self.squeeze = (self.squeeze / TUNABLES.squeeze.sqrt()).min(1.0);
            let mut candidates = self.memories.to_raise(judged, now);
            candidates.retain(|one| {
                self.families
                    .may_become(one.function, one.state, State::Timed)
            });
            let aim = self.found.aim();
            let room = (share * (aim * self.squeeze - worst)).max(0.0);
            return match worst < aim * aim {
                true => choose::raise(candidates, &self.here, room, |function| {
                    self.memories.has_rested_long(function)
                }),
                false => Vec::new(),
            };
        }
        self.over += 1;
        if self.over > PATIENCE {
            self.squeeze = (self.squeeze * TUNABLES.squeeze).max(TUNABLES.most_squeezed);
        }
        let mut chosen = Chosen::default();
        for group in judged.iter().filter(|group| used(group) > 1.0) {
            let aim = allowed(group) * self.found.aim() * self.squeeze;
            let aim = (aim - group.apart).max(aim * TUNABLES.for_the_slow_path);
            // Far from the aim, the plain time is known badly: several smaller steps come closer than one.
            let aim = ((group.share - group.pinned) / TUNABLES.step).max(aim);
            let others = group.candidates.iter().filter(|one| !one.is_pinned());
            let mut candidates: Vec<Candidate> = others.copied().collect();
            for candidate in &mut candidates {
                if let Some(state) = chosen.state(candidate.function) {
                    candidate.state = state;
                }
            }
            chosen.add(choose::lower(candidates, &self.here, aim));
        }
        chosen.in_order()
    }

    /// What came of it, in a sentence: the same one of all processes of which not much is known yet, and none where nothing was switched.
    pub fn report(&self) -> Option<String> {
        let Goal::Share(share) = self.policy.goal else {
            return None;
        };
        let allowed = share * 100.0;
        if self.looks < ENOUGH_LOOKS {
            let short = || {
                format!(
                    "the budget of {allowed:.1} % had not found out yet what is hot in a process or more, which had more than their share of probes"
                )
            };
            return (!self.stopped.is_zero()).then(short);
        }
        let factor = self.found.factor();
        let colder = match self.found.is_known() && factor >= TOLD {
            true => format!(", with calls that cost {factor:.1} times what is usual here"),
            false => String::new(),
        };
        let failed = self.failed.as_ref();
        let failed =
            failed.map_or_else(String::new, |why| format!("; once it could not be: {why}"));
        let kept = match self.share <= self.policy.share() {
            true => "kept by",
            false => "not kept at the end, in spite of",
        };
        Some(format!(
            "the budget of {allowed:.1} % was {kept} {} looks, with {} stops of {:.1} ms at most and {:.1} ms in all; the last estimate of what probes and looks cost is {:.1} %{colder}{failed}",
            self.looks,
            self.stops,
            self.longest_stop.as_secs_f64() * 1e3,
            self.stopped.as_secs_f64() * 1e3,
            self.share * 100.0
        ))
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

    /// All at once: nobody stands still for it.
    fn apply_modes(
        &mut self,
        pids: &[Pid],
        wanted: &[(u32, State)],
        now: Instant,
        drain: &mut dyn FnMut() -> Seen,
    ) -> Result<bool> {
        if wanted.is_empty() {
            return Ok(false);
        }
        drain();
        let outcome = self.switcher.switch_in(pids, wanted)?;
        for &(function, state) in &outcome.changed {
            self.auto.changed(function, state, &self.seen, now);
        }
        for (function, _) in outcome.refused {
            self.auto.refused(function);
        }
        Ok(!outcome.changed.is_empty())
    }

    /// In groups, so that no stop is long. Those that cost most go first.
    fn apply(
        &mut self,
        pids: &[Pid],
        wanted: &[(u32, State)],
        now: Instant,
        drain: &mut dyn FnMut() -> Seen,
    ) -> Result<()> {
        for (number, some) in wanted.chunks(IN_ONE_STOP).enumerate() {
            if number > 0 {
                std::thread::sleep(BREATH);
            }
            drain();
            self.apply_some(pids, some, now)?;
        }
        Ok(())
    }

    fn apply_some(&mut self, pids: &[Pid], wanted: &[(u32, State)], now: Instant) -> Result<()> {
        let outcome = self.switcher.switch_in(pids, wanted)?;
        self.longest_stop = self.longest_stop.max(outcome.stop);
        self.stops += u64::from(!outcome.stop.is_zero());
        self.stopped += outcome.stop;
        self.stopped_lately += outcome.stop;
        for (function, state) in outcome.changed {
            self.memories.changed(function, state, now);
        }
        for (function, _) in outcome.refused {
            let wish = wanted.iter().find(|(wanted, _)| *wanted == function);
            let wish = wish.map(|(_, state)| *state);
            self.memories.refused(function, wish, now);
        }
        Ok(())
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
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

/// Says who keeps the budget; 0: nobody.
pub fn note(shared: &Shared, pid: u32) -> Result<()> {
    let at = offset_of!(shm::Header, keeper) as u64;
    shared.write(at, &pid.to_le_bytes())
}
