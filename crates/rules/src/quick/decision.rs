//! What the hot path does with a call of a function when it begins, by comparisons of what it was
//! called with: nothing, ask, or look at its end.
//!
//! ```text
//! n > 100 or ret < 0; record n       n > 100 ?  yes: ask
//!                                               no:  save what it was called with, look whether ret < 0
//!
//! (n > 9 and ret < 0) or errno == 2  n > 9 ?    yes: look whether ret < 0 or errno == 2
//!                                               no:  look whether errno == 2
//! ```
//!
//! Where the end asks for a long call nothing has to be compared: long calls are looked at anyway.
//!
//! Each comparison of the beginning is answered either way and put into the conditions, until only
//! those of the end are left: what is the same then is decided in one place.

use std::collections::HashMap;
use std::rc::Rc;

use super::{Formula, Test};

/// One rule of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    pub condition: Formula,
    pub asked: AskedAt,
}

/// When its program is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AskedAt {
    /// When the call begins.
    Entry,
    /// When it ends, with what it was called with.
    Saved(Save),
    /// The same, but only if it took long, which is looked at anyway.
    SavedIfLong(Save),
    /// When it ends.
    Exit,
}

/// What of a call's arguments is saved for its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Save {
    Nothing,
    /// Those in integer registers.
    Integers,
    All,
}

/// Comparisons of what a call begins with, and where they lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Leaf(Leaf),
    Test {
        test: Test,
        passed: Rc<Decision>,
        other: Rc<Decision>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaf {
    Ask,
    /// What the call begins with is saved or not, and of calls that return those are asked about
    /// for which `exit` holds.
    Look {
        save: Save,
        exit: Formula,
    },
}

impl Leaf {
    /// Nobody wants to hear of it.
    pub const GO_ON: Leaf = Leaf::Look {
        save: Save::Nothing,
        exit: Formula::Never,
    };
}

/// What is done with calls of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub decision: Rc<Decision>,
    /// Calls that took as many nanoseconds have to be asked about when they end, whatever else is
    /// found.
    pub longer: Option<u64>,
}

/// What is done with calls of a function that has these rules. `None`: that would take more than
/// `most` comparisons.
pub fn decide(questions: &[Question], most: usize) -> Option<Decided> {
    let mut deciding = Deciding {
        known: HashMap::new(),
        left: most,
        longer: None,
    };
    let decision = deciding.decide(questions.to_vec())?;
    Some(Decided {
        decision,
        longer: deciding.longer,
    })
}

struct Deciding {
    known: HashMap<Vec<Question>, Rc<Decision>>,
    left: usize,
    longer: Option<u64>,
}

impl Deciding {
    fn decide(&mut self, mut questions: Vec<Question>) -> Option<Rc<Decision>> {
        questions.retain(|question| question.condition != Formula::Never);
        if let Some(known) = self.known.get(&questions) {
            return Some(known.clone());
        }
        let leaf = leaf(&questions);
        let mut conditions = questions.iter().map(|question| &question.condition);
        let first = conditions.find_map(Formula::first_of_entry);
        let decision = match first {
            Some(test) if leaf != Leaf::Ask => {
                self.left = self.left.checked_sub(1)?;
                let given = |passed| {
                    let questions = questions.iter().map(|question| Question {
                        condition: question.condition.given(test, passed),
                        asked: question.asked,
                    });
                    questions.collect()
                };
                let (passed, other) = (self.decide(given(true))?, self.decide(given(false))?);
                match passed == other {
                    true => passed,
                    false => Rc::new(Decision::Test {
                        test,
                        passed,
                        other,
                    }),
                }
            }
            _ => Rc::new(Decision::Leaf(self.without_long(leaf))),
        };
        self.known.insert(questions, decision.clone());
        Some(decision)
    }
}

impl Deciding {
    /// What is left to be compared of calls that do not take long.
    fn without_long(&mut self, leaf: Leaf) -> Leaf {
        let Leaf::Look { save, exit } = leaf else {
            return leaf;
        };
        let parts = match exit {
            Formula::Any(parts) => parts,
            other => vec![other],
        };
        let (long, rest): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| part.least_took() > 0);
        let least = long.iter().map(Formula::least_took);
        self.longer = least.chain(self.longer).min();
        Leaf::Look {
            save,
            exit: Formula::any(rest),
        }
    }
}

/// What is done if all comparisons that could be made are, or if one of the conditions needs none.
fn leaf(questions: &[Question]) -> Leaf {
    let mut save = Save::Nothing;
    let mut exit = Vec::new();
    for Question { condition, asked } in questions {
        let has_comparisons = condition.first_of_entry().is_some();
        match asked {
            AskedAt::Entry if !has_comparisons => return Leaf::Ask,
            // It is kept, whatever comes.
            AskedAt::Saved(_) if *condition == Formula::Always => return Leaf::Ask,
            AskedAt::Entry => {}
            AskedAt::SavedIfLong(what) => save = save.max(*what),
            AskedAt::Saved(what) => {
                save = save.max(*what);
                exit.push(condition.at_return());
            }
            AskedAt::Exit => exit.push(condition.at_return()),
        }
    }
    Leaf::Look {
        save,
        exit: Formula::any(exit),
    }
}
