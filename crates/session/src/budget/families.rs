//! Functions of runtimes under a budget.
//!
//! All Python functions are one: what they cost goes only with their evaluator's probes and with the word that has every call go
//! through it. Java methods go off one by one: the agent asks for a method's state at each event, and the compiler leaves the
//! probes of one that is off out (docs/design/managed.md). Where many calls of such methods are in code that keeps its probes,
//! that code is dropped once, and if it does not help, no method is counted any more. Each call weighs more than that of a probe in
//! C: it takes the runtime longer by itself.

use std::collections::HashSet;

use thalweg_instrument::dynamic::{self, Family};

use super::Costs;
use super::tunables::TUNABLES;
use crate::error::Result;
use crate::memory::Shared;
use crate::snapshot::{Sums, ThreadSum};
use crate::states::State;

/// For how many nanoseconds of the program's processor time calls of Java methods that are off may cost more than the budget until
/// something is done: what is hot is compiled anew by then, however busy the machine is.
const JAVA_PATIENCE: f64 = 4e9;

pub(super) struct Families {
    python: Family,
    java: Family,
    methods: HashSet<u32>,
    /// How many of `java.numbers` are in `methods`.
    taken: usize,
    off_calls: u64,
    /// Processor time in which such calls have cost too much, in a row, and what was done about it.
    over: f64,
    has_dropped: bool,
}

/// What is to be done about calls of Java methods that are off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Have the machine drop what it has compiled.
    Drop,
    /// Count no method any more.
    Leave(u32),
}

impl Default for Families {
    fn default() -> Families {
        Families {
            python: Family::python(),
            java: Family::java(),
            methods: HashSet::new(),
            taken: 0,
            off_calls: 0,
            over: 0.0,
            has_dropped: false,
        }
    }
}

impl Families {
    /// What the functions of Python have is their evaluator's from here on.
    pub(super) fn take_together(&mut self, shared: &Shared, sums: &mut Sums) -> Result<()> {
        // Somebody has to stand for them.
        dynamic::java_leader(shared)?;
        self.java.update(shared)?;
        self.methods.extend(&self.java.numbers[self.taken..]);
        self.taken = self.java.numbers.len();
        self.python.update(shared)?;
        let Some(leader) = self.python.leader.map(|number| number as usize) else {
            return Ok(());
        };
        let others = self.python.numbers.iter().map(|number| *number as usize);
        for number in others.filter(|number| *number != leader) {
            if let Some(sum) = sums.functions.get_mut(number) {
                let sum = std::mem::take(sum);
                if let Some(whole) = sums.functions.get_mut(leader) {
                    whole.calls = whole.calls.saturating_add(sum.calls);
                    whole.untimed = whole.untimed.saturating_add(sum.untimed);
                    whole.own_ns += sum.own_ns;
                    whole.below_ns += sum.below_ns;
                }
            }
            for thread in &mut sums.threads {
                let calls = thread.calls.get_mut(number).map_or(0, std::mem::take);
                if let Some(whole) = thread.calls.get_mut(leader) {
                    *whole = whole.saturating_add(calls);
                }
            }
        }
        Ok(())
    }

    /// What calls of Java methods that are off have cost since the last look, in nanoseconds.
    pub(super) fn off_cost(&mut self, threads: &[ThreadSum]) -> f64 {
        let calls = threads.iter().map(|thread| thread.off_calls);
        let calls = calls.fold(0, u64::saturating_add);
        let before = std::mem::replace(&mut self.off_calls, calls);
        calls.saturating_sub(before) as f64 * TUNABLES.java_off_ns
    }

    /// What is to be done where these calls cost `cost` of the program's processor time `used`.
    pub(super) fn remedy(&mut self, cost: f64, allowed: f64, used: f64) -> Option<Remedy> {
        if cost <= allowed * used {
            self.over = 0.0;
            return None;
        }
        self.over += used;
        if self.over < JAVA_PATIENCE {
            return None;
        }
        self.over = 0.0;
        if !std::mem::replace(&mut self.has_dropped, true) {
            return Some(Remedy::Drop);
        }
        self.java.leader.map(Remedy::Leave)
    }

    /// Whether all of a runtime's functions go with it.
    pub(super) fn is_leader(&self, function: u32) -> bool {
        [self.python.leader, self.java.leader].contains(&Some(function))
    }

    /// The one that stands for all Java methods goes only where nothing else helps.
    pub(super) fn may_be_off(&self, function: u32) -> bool {
        self.java.leader != Some(function)
    }

    /// Whether a function may be brought into that state: Java methods that are off stay so, because code was compiled without their
    /// probes.
    pub(super) fn may_become(&self, function: u32, now: State, state: State) -> bool {
        !self.methods.contains(&function) || now != State::Off || state == State::Off
    }

    /// What a call costs, in terms of a timed call.
    pub(super) fn weight(&self, function: u32, costs: &Costs) -> f64 {
        let longer = if self.python.leader == Some(function) {
            TUNABLES.python_call_ns
        } else if self.methods.contains(&function) {
            TUNABLES.java_call_ns
        } else {
            0.0
        };
        1.0 + longer / costs.timed_ns.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_methods_that_are_off_are_dropped_once_and_then_left() {
        let mut families = Families::default();
        families.java.leader = Some(9);
        let mut after = |seconds: f64, share: f64| {
            let used = seconds * 1e9;
            families.remedy(share * used, 0.05, used)
        };
        assert_eq!(after(3.0, 0.2), None);
        assert_eq!(after(0.5, 0.01), None);
        assert_eq!(after(3.0, 0.2), None, "begins anew");
        assert_eq!(after(1.0, 0.2), Some(Remedy::Drop));
        assert_eq!(after(3.0, 0.2), None);
        assert_eq!(after(1.0, 0.2), Some(Remedy::Leave(9)));
    }
}
