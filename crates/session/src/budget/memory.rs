//! What is remembered of functions from look to look: how hot those were that are off now, and how long they have to rest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::choose::Candidate;
use super::groups::Judged;
use crate::states::State;

/// How long a function that was found too hot stays off, at first and at most.
pub(super) const REST: Duration = Duration::from_secs(1);
pub(super) const LONGEST_REST: Duration = Duration::from_secs(120);
/// One that has to go again so soon after it came back was tried too early.
pub(super) const RELAPSE: Duration = Duration::from_secs(10);

/// Of all functions.
#[derive(Default)]
pub(super) struct Memories {
    switched: HashMap<u32, Memory>,
    /// What was called since the last look.
    lately: HashMap<u32, Figures>,
}

/// Of a function that was switched.
#[derive(Clone, Copy, Debug)]
struct Memory {
    state: State,
    since: Instant,
    /// When it was last on from one look to the next.
    figures: Figures,
    rest: Duration,
    has_been_off: bool,
    may_be_off: bool,
    may_be_sampled: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// Calls per nanosecond of processor time, of the threads in which that was most.
    rate: f64,
    /// Nanoseconds that a call takes by itself.
    own: f64,
}

impl Memories {
    pub(super) fn may_be_off(&self, function: u32) -> bool {
        let known = self.switched.get(&function);
        known.is_none_or(|memory| memory.may_be_off)
    }

    pub(super) fn may_be_sampled(&self, function: u32) -> bool {
        let known = self.switched.get(&function);
        known.is_none_or(|memory| memory.may_be_sampled)
    }

    /// What this look found.
    pub(super) fn see(&mut self, judged: &[Judged]) {
        self.lately.clear();
        for candidate in judged.iter().flat_map(|group| &group.candidates) {
            let figures = self.lately.entry(candidate.function).or_default();
            figures.rate = figures.rate.max(candidate.rate);
            figures.own = candidate.own;
        }
        for (function, figures) in &self.lately {
            // One that went off since the last look was counted for a part of the time only: it would seem to have cooled.
            if let Some(memory) = self.switched.get_mut(function)
                && memory.state != State::Off
            {
                memory.figures = *figures;
            }
        }
    }

    /// What may be switched up, at what it costs where it is hottest: all that are on, and those of the others that have rested. What
    /// went off since the last look is among those that were called since then, and has not.
    pub(super) fn to_raise(&self, judged: &[Judged], now: Instant) -> Vec<Candidate> {
        let all = judged.iter().flat_map(|group| &group.candidates);
        let on = all.filter(|candidate| candidate.state != State::Off);
        let each: HashMap<u32, Candidate> = on.map(|c| (c.function, *c)).collect();
        let on = each.into_values().map(|candidate| Candidate {
            rate: self.lately_of(candidate.function).rate,
            ..candidate
        });
        let rested = self.switched.iter().filter(|(_, known)| {
            known.state == State::Off && now.duration_since(known.since) >= known.rest
        });
        let rested = rested.map(|(&function, known)| Candidate {
            function,
            state: State::Off,
            rate: known.figures.rate,
            own: known.figures.own,
            may_be_sampled: known.may_be_sampled,
            may_be_off: true,
        });
        on.chain(rested).collect()
    }

    /// So long that it is worth a try whatever it was like.
    pub(super) fn has_rested_long(&self, function: u32) -> bool {
        let known = self.switched.get(&function);
        known.is_some_and(|known| known.rest >= LONGEST_REST / 4)
    }

    pub(super) fn changed(&mut self, function: u32, state: State, now: Instant) {
        let memory = self.of(function, now);
        if state == State::Off && memory.rest_was_too_short(now) {
            memory.rest = (memory.rest * 2).min(LONGEST_REST);
        }
        memory.has_been_off |= state == State::Off;
        memory.state = state;
        memory.since = now;
    }

    /// It cannot be in that state.
    pub(super) fn refused(&mut self, function: u32, state: Option<State>, now: Instant) {
        let memory = self.of(function, now);
        match state {
            Some(State::Off) => memory.may_be_off = false,
            _ => memory.may_be_sampled = false,
        }
    }

    fn of(&mut self, function: u32, now: Instant) -> &mut Memory {
        let figures = self.lately_of(function);
        self.switched.entry(function).or_insert(Memory {
            state: State::Timed,
            since: now,
            figures,
            rest: REST,
            has_been_off: false,
            may_be_off: true,
            may_be_sampled: true,
        })
    }

    fn lately_of(&self, function: u32) -> Figures {
        self.lately.get(&function).copied().unwrap_or_default()
    }
}

impl Memory {
    fn rest_was_too_short(&self, now: Instant) -> bool {
        let is_back = self.state != State::Off && self.has_been_off;
        is_back && now.duration_since(self.since) < RELAPSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look that saw function 7 called at such a rate.
    fn look(rate: f64, state: State) -> [Judged; 1] {
        let candidate = Candidate {
            function: 7,
            state,
            rate,
            own: 50.0,
            may_be_sampled: true,
            may_be_off: true,
        };
        [Judged {
            share: 0.0,
            pinned: 0.0,
            apart: 0.0,
            calls: 0.0,
            candidates: vec![candidate],
        }]
    }

    fn rates(memories: &Memories, judged: &[Judged], now: Instant) -> Vec<f64> {
        let all = memories.to_raise(judged, now);
        all.iter().map(|candidate| candidate.rate).collect()
    }

    #[test]
    fn what_has_gone_off_rests_and_is_as_hot_as_it_was() {
        let mut memories = Memories::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        memories.see(&look(0.02, State::Timed));
        memories.changed(7, State::Off, at(0));
        // The calls until it was off.
        let rest_of_it = look(0.0001, State::Off);
        memories.see(&rest_of_it);
        assert!(rates(&memories, &rest_of_it, at(20)).is_empty());
        memories.see(&[]);
        assert!(rates(&memories, &[], at(900)).is_empty());
        assert_eq!(rates(&memories, &[], at(1000)), [0.02]);
    }

    #[test]
    fn who_relapses_rests_longer() {
        let mut memories = Memories::default();
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        memories.see(&look(0.02, State::Timed));
        memories.changed(7, State::Off, at(0));
        memories.changed(7, State::Sampled, at(1000));
        memories.see(&look(0.03, State::Sampled));
        memories.changed(7, State::Off, at(1020));
        assert!(rates(&memories, &[], at(2100)).is_empty());
        assert_eq!(rates(&memories, &[], at(3100)), [0.03]);
    }
}
