//! Which functions are switched, given what each costs and tells: the budget's choice, without a process.
//!
//! ```text
//! what a function costs   its calls, times what a probed call takes in its state; as a share of the program's own time, as all here
//! what it tells           the share of time that is its own, and a little for being known at all
//! too much                those that cost most for what they tell go off, until the others would fit were they sampled; of
//!                         these as many are sampled as have to be
//! room to spare           the other way round
//! ```
//!
//! So a few hot and short functions go, and the many that are called now and then stay as they are.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::Costs;
use super::tunables::TUNABLES;
use crate::states::State;

/// A function that was called since the last look, or that is off and was called before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub function: u32,
    pub state: State,
    /// Calls per nanosecond of the program's own time.
    pub rate: f64,
    /// Nanoseconds that a call takes by itself.
    pub own: f64,
    pub may_be_sampled: bool,
    pub may_be_off: bool,
}

/// How many functions go or come at once.
const AT_ONCE: usize = 256;

impl Candidate {
    /// It costs what it costs.
    pub(super) fn is_pinned(&self) -> bool {
        !self.may_be_off && !self.may_be_sampled
    }

    fn cost(&self, state: State, costs: &Costs) -> f64 {
        self.rate * costs.cost(state)
    }

    /// The least that it costs without being off.
    fn least(&self, costs: &Costs) -> f64 {
        let state = match self.may_be_sampled {
            true => self.state.max(State::Sampled),
            false => self.state,
        };
        self.cost(state, costs)
    }

    fn cost_for_what_it_tells(&self, costs: &Costs) -> f64 {
        let tells = self.rate * self.own + TUNABLES.being_known;
        self.cost(State::Timed, costs) / tells
    }
}

fn by_worth(candidates: &mut [Candidate], costs: &Costs) {
    candidates.sort_by(|a, b| {
        let (a, b) = (
            a.cost_for_what_it_tells(costs),
            b.cost_for_what_it_tells(costs),
        );
        b.partial_cmp(&a).unwrap_or(Ordering::Equal)
    });
}

/// What has to change so that all functions together cost no more than `aim`.
pub(super) fn lower(mut candidates: Vec<Candidate>, costs: &Costs, aim: f64) -> Vec<(u32, State)> {
    by_worth(&mut candidates, costs);
    let matters = |c: &Candidate| c.cost(State::Timed, costs) > aim * TUNABLES.too_small;
    let mut wanted = Vec::new();
    let mut least: f64 = candidates.iter().map(|c| c.least(costs)).sum();
    for candidate in candidates.iter_mut() {
        if least <= aim * TUNABLES.sampled_part || wanted.len() >= AT_ONCE {
            break;
        }
        if candidate.may_be_off && candidate.state != State::Off && matters(candidate) {
            least -= candidate.least(costs);
            candidate.state = State::Off;
            wanted.push((candidate.function, State::Off));
        }
    }
    let mut total: f64 = candidates.iter().map(|c| c.cost(c.state, costs)).sum();
    for candidate in &candidates {
        if total <= aim {
            break;
        }
        if candidate.may_be_sampled && candidate.state == State::Timed && matters(candidate) {
            let less = candidate.cost(State::Timed, costs) - candidate.least(costs);
            total -= less;
            wanted.push((candidate.function, State::Sampled));
        }
    }
    wanted
}

/// What fits into `room`: functions that are counted or sampled are timed, then some of those that are off are sampled; those first that tell most for
/// what they cost. `tried` is for functions that do not fit by what is known of them but have rested long.
pub(super) fn raise(
    mut candidates: Vec<Candidate>,
    costs: &Costs,
    mut room: f64,
    has_rested_long: impl Fn(u32) -> bool,
) -> Vec<(u32, State)> {
    by_worth(&mut candidates, costs);
    let mut wanted = Vec::new();
    let all = room;
    // One that is back and as hot as it was goes again at the next look: it may take what is not used.
    let (mut tried, mut came) = (all, 0);
    for candidate in candidates.iter().rev() {
        let back = match candidate.may_be_sampled {
            true => State::Sampled,
            false => State::Timed,
        };
        match candidate.state {
            State::Sampled => {
                let more = candidate.cost(State::Timed, costs) - candidate.least(costs);
                if more <= room {
                    room -= more;
                    wanted.push((candidate.function, State::Timed));
                }
            }
            State::Counted if candidate.may_be_sampled => {
                let more =
                    |state| candidate.cost(state, costs) - candidate.cost(State::Counted, costs);
                let fits = [State::Timed, State::Sampled]
                    .into_iter()
                    .find(|s| more(*s) <= room);
                if let Some(state) = fits {
                    room -= more(state);
                    wanted.push((candidate.function, state));
                }
            }
            State::Off if came < AT_ONCE && tried > 0.0 => {
                let cost = candidate.cost(back, costs);
                if cost <= tried || has_rested_long(candidate.function) {
                    tried -= cost;
                    came += 1;
                    wanted.push((candidate.function, back));
                }
            }
            _ => {}
        }
    }
    wanted
}

/// What several groups of threads want, in the order in which they do: those that cost most for what they tell come first.
#[derive(Default)]
pub(super) struct Chosen {
    order: Vec<u32>,
    states: HashMap<u32, State>,
}

impl Chosen {
    pub(super) fn add(&mut self, wanted: Vec<(u32, State)>) {
        for (function, state) in wanted {
            if self.states.insert(function, state).is_none() {
                self.order.push(function);
            }
        }
    }

    pub(super) fn state(&self, function: u32) -> Option<State> {
        self.states.get(&function).copied()
    }

    pub(super) fn in_order(self) -> Vec<(u32, State)> {
        let Chosen { order, states } = self;
        let state = |function: u32| (function, states[&function]);
        order.into_iter().map(state).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        timed_ns: 20.0,
        counted_ns: 6.0,
        own_ns: 0.0,
        look_ns: 0.0,
        error: 1.0,
    };

    fn candidate(function: u32, rate: f64, own: f64) -> Candidate {
        Candidate {
            function,
            state: State::Timed,
            rate,
            own,
            may_be_sampled: true,
            may_be_off: true,
        }
    }

    /// A program like many: one hot leaf, some functions in between, and a hundred that are called now and then.
    fn program() -> Vec<Candidate> {
        let mut all = vec![
            candidate(0, 0.05, 4.0),
            candidate(1, 0.002, 50.0),
            candidate(2, 0.0004, 900.0),
        ];
        all.extend((3..103).map(|function| candidate(function, 1e-6, 30.0)));
        all
    }

    fn cost_after(wanted: &[(u32, State)]) -> f64 {
        let state = |function: u32| {
            let wanted = wanted.iter().find(|(f, _)| *f == function);
            wanted.map_or(State::Timed, |(_, state)| *state)
        };
        let all = program();
        all.iter().map(|c| c.cost(state(c.function), &COSTS)).sum()
    }

    #[test]
    fn what_costs_most_for_least_goes_and_the_rest_fits() {
        let wanted = lower(program(), &COSTS, 0.035);
        assert!(cost_after(&wanted) <= 0.035, "{wanted:?}");
        assert!(wanted.contains(&(0, State::Off)));
        assert!(wanted.contains(&(1, State::Sampled)), "{wanted:?}");
        assert!(
            wanted.iter().all(|(function, _)| *function < 3),
            "functions that cost next to nothing stay: {wanted:?}"
        );
    }

    #[test]
    fn what_costs_most_goes_first_and_what_is_wanted_twice_stays_in_its_place() {
        let mut all = program();
        all[1].rate = 0.04;
        let first = lower(all, &COSTS, 0.035);
        let mut chosen = Chosen::default();
        chosen.add(first.clone());
        let costliest = first[0].0;
        chosen.add(
            (0..60)
                .rev()
                .map(|function| (function, State::Off))
                .collect(),
        );
        assert_eq!(chosen.state(costliest), Some(State::Off));
        let order: Vec<u32> = chosen
            .in_order()
            .iter()
            .map(|(function, _)| *function)
            .collect();
        let expected = first.iter().map(|(function, _)| *function);
        assert!(
            order.iter().copied().take(first.len()).eq(expected),
            "{order:?}"
        );
        assert_eq!(order.len(), 60);
        assert!(order[first.len()..].is_sorted_by(|a, b| a > b), "{order:?}");
    }

    #[test]
    fn a_function_that_must_stay_is_sampled_and_others_make_room() {
        let mut all = program();
        all[0].rate = 0.003;
        all[0].may_be_off = false;
        let wanted = lower(all, &COSTS, 0.035);
        assert!(wanted.contains(&(0, State::Sampled)), "{wanted:?}");
    }

    #[test]
    fn what_is_within_the_aim_stays_as_it_is() {
        assert_eq!(lower(program(), &COSTS, 2.0), []);
    }

    #[test]
    fn with_room_the_most_telling_ones_come_back() {
        let mut all = program();
        all[0].state = State::Off;
        all[1].state = State::Off;
        all[2].state = State::Sampled;
        let wanted = raise(all.clone(), &COSTS, 0.02, |_| false);
        assert_eq!(wanted, [(2, State::Timed), (1, State::Sampled)]);
        let wanted = raise(all, &COSTS, 0.02, |function| function == 0);
        assert!(wanted.contains(&(0, State::Sampled)), "it may have cooled");
    }
}
