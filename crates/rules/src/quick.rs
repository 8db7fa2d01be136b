//! What of a condition a few comparisons decide: numbers in registers, on the stack, in the result,
//! and what the call took. The hot path of the agent makes them before anything else, so that a
//! call that is not wanted costs next to nothing.
//!
//! ```text
//! n > 100 and ret < 0     when it begins: n > 100, or the call is refused whatever it returns
//! ret < 0 or errno == 2   when it returns: the same, or the call is refused
//! n > 100 or ret < 0      n > 100 and it is kept; if not, what it returns decides alone
//! sql =~ /x/ or n > 100   any call may be kept: only the whole program can tell
//! ```
//!
//! They only ever refuse: a call that they let through is held against the whole condition.

use thalweg_bytecode::op;

use crate::ir::{Ir, TextSource};

mod decision;
mod range;
#[cfg(test)]
mod tests;

pub use decision::{AskedAt, Decided, Decision, Leaf, Question, Save, decide};
use range::{Answer, Number};
pub use range::{Pair, Range, Relation, Source, Test};

/// What has to be true for a call to be kept, as far as comparisons tell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Formula {
    Always,
    Never,
    Test(Test),
    /// Only of a call that is left by an exception.
    Thrown,
    /// What only the whole program can tell.
    Unknown,
    All(Vec<Formula>),
    Any(Vec<Formula>),
}

impl Formula {
    /// What has to be true for the condition of a rule to be.
    pub(crate) fn of(condition: Option<&Ir>) -> Formula {
        match condition {
            // Each call that a rule sees has a number, those that are refused too.
            Some(condition) if !has_number(condition) => formula(condition, true),
            _ => Formula::Always,
        }
    }

    pub fn all(parts: impl IntoIterator<Item = Formula>) -> Formula {
        let parts = parts.into_iter().flat_map(|part| match part {
            Formula::All(parts) => parts,
            part => vec![part],
        });
        let mut list = Vec::new();
        for part in parts {
            match part {
                Formula::Never => return Formula::Never,
                Formula::Always => {}
                part if list.contains(&part) => {}
                part => list.push(part),
            }
        }
        match list.len() {
            0 => Formula::Always,
            1 => list.remove(0),
            _ => Formula::All(list),
        }
    }

    pub fn any(parts: impl IntoIterator<Item = Formula>) -> Formula {
        let parts = parts.into_iter().flat_map(|part| match part {
            Formula::Any(parts) => parts,
            part => vec![part],
        });
        let mut list = Vec::new();
        for part in parts {
            match part {
                Formula::Always => return Formula::Always,
                Formula::Never => {}
                part if list.contains(&part) => {}
                part => list.push(part),
            }
        }
        match list.len() {
            0 => Formula::Never,
            1 => list.remove(0),
            _ => Formula::Any(list),
        }
    }

    /// How many comparisons it has.
    pub fn tests(&self) -> usize {
        match self {
            Formula::Test(_) => 1,
            Formula::All(parts) | Formula::Any(parts) => parts.iter().map(Formula::tests).sum(),
            Formula::Always | Formula::Never | Formula::Thrown | Formula::Unknown => 0,
        }
    }

    /// The same with others in place of those that have no parts.
    fn map(&self, leaf: &impl Fn(&Formula) -> Formula) -> Formula {
        match self {
            Formula::All(parts) => Formula::all(parts.iter().map(|part| part.map(leaf))),
            Formula::Any(parts) => Formula::any(parts.iter().map(|part| part.map(leaf))),
            other => leaf(other),
        }
    }

    /// As it is if `test` is passed, or is not.
    fn given(&self, test: Test, passed: bool) -> Formula {
        let known = |passed| match passed {
            true => Formula::Always,
            false => Formula::Never,
        };
        self.map(&|leaf| match leaf {
            Formula::Test(this) if *this == test => known(passed),
            Formula::Test(this) if this.complement() == Some(test) => known(!passed),
            other => other.clone(),
        })
    }

    /// What the end of a call that returns decides, whatever was asked when it began.
    pub fn at_return(&self) -> Formula {
        self.map(&|leaf| match leaf {
            Formula::Test(test) if test.is_of_entry() => Formula::Always,
            Formula::Unknown => Formula::Always,
            Formula::Thrown => Formula::Never,
            other => other.clone(),
        })
    }

    /// Whether no comparison spares a rule with this condition to be asked when a call begins.
    pub(crate) fn is_asked_of_each_call(&self) -> bool {
        let condition = self.clone();
        let asked = AskedAt::Entry;
        let decided = decide(&[Question { condition, asked }], 1);
        decided.is_some_and(|decided| *decided.decision == Decision::Leaf(Leaf::Ask))
    }

    /// Nothing is compared: it may be so, unless it is never so.
    pub fn without_tests(&self) -> Formula {
        self.map(&|leaf| match leaf {
            Formula::Test(_) => Formula::Unknown,
            other => other.clone(),
        })
    }

    /// What a call takes at least, in nanoseconds, if it is so.
    fn least_took(&self) -> u64 {
        match self {
            Formula::Test(Test::Range(range)) if range.source == Source::Took => {
                match range.low.checked_add(range.span) {
                    Some(_) => range.low,
                    None => 0,
                }
            }
            Formula::All(parts) => parts.iter().map(Formula::least_took).max().unwrap_or(0),
            Formula::Any(parts) => parts.iter().map(Formula::least_took).min().unwrap_or(0),
            _ => 0,
        }
    }

    /// The first comparison that can be made when a call begins.
    fn first_of_entry(&self) -> Option<Test> {
        match self {
            Formula::Test(test) => test.is_of_entry().then_some(*test),
            Formula::All(parts) | Formula::Any(parts) => {
                parts.iter().find_map(Formula::first_of_entry)
            }
            _ => None,
        }
    }
}

fn has_number(ir: &Ir) -> bool {
    matches!(ir, Ir::Leaf(op::NUMBER, _)) || ir.children().into_iter().any(has_number)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Entry,
    Exit,
}

/// What has to be true for `ir` to be true, or not to be if it is not `wanted`. What cannot be read
/// is neither.
fn formula(ir: &Ir, wanted: bool) -> Formula {
    match ir {
        Ir::Unary(op::NOT, a) => formula(a, !wanted),
        Ir::Unary(op::TRUTH, a) if End::BOTH.iter().all(|end| end.number(a).is_none()) => {
            formula(a, wanted)
        }
        Ir::Binary(op @ (op::BOTH | op::EITHER), a, b) => {
            let parts = [formula(a, wanted), formula(b, wanted)];
            match (*op == op::BOTH) == wanted {
                true => Formula::all(parts),
                false => Formula::any(parts),
            }
        }
        Ir::Const(value) => match (*value != 0) == wanted {
            true => Formula::Always,
            false => Formula::Never,
        },
        Ir::Leaf(op::UNWOUND, _) => match wanted {
            true => Formula::Thrown,
            false => Formula::Unknown,
        },
        // Where nothing was thrown nothing can be said of it, nor of its opposite.
        Ir::TextEq(TextSource::Known(source), _) | Ir::TextMatch(TextSource::Known(source), ..)
            if *source != op::source::THREAD_NAME =>
        {
            Formula::Thrown
        }
        _ => compared(ir, wanted).unwrap_or(Formula::Unknown),
    }
}

/// A comparison that one of the ends can make by itself.
fn compared(ir: &Ir, wanted: bool) -> Option<Formula> {
    if let Some(pair) = pair(ir) {
        return match wanted {
            true => Some(Formula::Test(pair)),
            false => pair.complement().map(Formula::Test),
        };
    }
    let mut answers = End::BOTH.iter().filter_map(|end| end.comparison(ir));
    if let Some(answer) = answers.next() {
        return Some(match answer.unless(!wanted) {
            Answer::If(range) => Formula::Test(Test::Range(range)),
            Answer::Never => Formula::Never,
            Answer::Always => Formula::Always,
        });
    }
    time(ir, wanted)
}

/// A comparison of two arguments.
fn pair(ir: &Ir) -> Option<Test> {
    let Ir::Binary(compare, a, b) = ir else {
        return None;
    };
    let (a, b) = (End::Entry.number(a)?, End::Entry.number(b)?);
    // `a < b` is not `b <= a`.
    let (opposite, compare) = match *compare {
        op::LT => (true, op::LE),
        op::LT_UNSIGNED => (true, op::LE_UNSIGNED),
        other => (false, other),
    };
    let pair = match opposite {
        true => Pair::compared(compare, b, a)?,
        false => Pair::compared(compare, a, b)?,
    };
    let test = Test::Pair(pair);
    match opposite {
        true => test.complement(),
        false => Some(test),
    }
}

/// A time against a constant. What is a part of the whole call tells that the whole is no shorter,
/// and no more.
fn time(ir: &Ir, wanted: bool) -> Option<Formula> {
    let Ir::Binary(compare, a, b) = ir else {
        return None;
    };
    let (time, constant, turned) = match (&**a, &**b) {
        (time, Ir::Const(constant)) => (time, *constant, false),
        (Ir::Const(constant), time) => (time, *constant, true),
        _ => return None,
    };
    if !time.is_part_of_total() {
        return None;
    }
    let took = Number::whole(Source::Took);
    let answer = took.compared(*compare, constant, turned)?.unless(!wanted);
    let Answer::If(range) = answer else {
        return None;
    };
    if *time == Ir::Leaf(op::TOTAL, None) {
        return Some(Formula::Test(Test::Range(range)));
    }
    let is_bound = range.low > 0 && range.low.checked_add(range.span).is_some();
    is_bound.then_some(Formula::Test(Test::Range(Range {
        span: u64::MAX - range.low,
        ..range
    })))
}

impl End {
    const BOTH: [End; 2] = [End::Entry, End::Exit];

    fn comparison(self, ir: &Ir) -> Option<Answer> {
        match ir {
            Ir::Unary(op::TRUTH, a) => self.number(a)?.compared(op::NE, 0, false),
            Ir::Binary(compare, a, b) => {
                let (value, constant, turned) = match (&**a, &**b) {
                    (value, Ir::Const(constant)) => (value, *constant, false),
                    (Ir::Const(constant), value) => (value, *constant, true),
                    _ => return None,
                };
                match *compare {
                    op::FEQ..=op::FLE => {
                        let constant = f64::from_bits(constant);
                        self.float(value)?
                            .compared_float(*compare, constant, turned)
                    }
                    op::EQ..=op::LE_UNSIGNED => {
                        self.number(value)?.compared(*compare, constant, turned)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn float(self, ir: &Ir) -> Option<Number> {
        let (inner, bits) = match ir {
            Ir::Unary(op::WIDEN, inner) => (&**inner, 32),
            _ => (ir, 64),
        };
        let number = self.number(inner)?.extended(bits / 8)?;
        (number.bits == u32::from(bits)).then_some(number)
    }

    /// The integer that `ir` is, if it lies in one word that this end has at hand.
    fn number(self, ir: &Ir) -> Option<Number> {
        match ir {
            Ir::Held(inner) if self == End::Entry => self.number(inner),
            Ir::AtExit(inner) if self == End::Exit => self.number(inner),
            // An `int`, whatever lies beside it.
            Ir::Leaf(op::ERRNO, _) => Number::whole(self.source(op::ERRNO, None)?).extended(0x84),
            Ir::Leaf(op, register) => Some(Number::whole(self.source(*op, *register)?)),
            Ir::Extend(inner, width) => self.number(inner)?.extended(*width),
            Ir::Load(at, width) if self == End::Entry => on_stack(at, *width),
            Ir::Binary(op @ (op::SHR | op::SAR), a, down) => {
                let Ir::Const(down) = **down else { return None };
                let signed = *op == op::SAR;
                match &**a {
                    Ir::Binary(op::SHL, a, up) => {
                        let Ir::Const(up) = **up else { return None };
                        self.number(a)?.shifted(up, down, signed)
                    }
                    a => self.number(a)?.shifted(0, down, signed),
                }
            }
            Ir::Binary(op::AND, a, b) => match (&**a, &**b) {
                (a, Ir::Const(only)) | (Ir::Const(only), a) => self.number(a)?.masked(*only),
                _ => None,
            },
            _ => None,
        }
    }

    fn source(self, op: u8, register: Option<u8>) -> Option<Source> {
        let register = register.unwrap_or(0);
        match (self, op) {
            (End::Entry, op::INT) if register < 6 => Some(Source::Int(register)),
            (End::Entry, op::FLOAT) if register < 8 => Some(Source::Float(register)),
            (End::Exit, op::RET) if register < 2 => Some(Source::Ret(register)),
            (End::Exit, op::RET_FLOAT) if register < 2 => Some(Source::RetFloat(register)),
            (End::Exit, op::ERRNO) => Some(Source::Errno),
            _ => None,
        }
    }
}

/// How far behind the return address the hot path looks for arguments.
const FARTHEST: u16 = 4096;

/// An argument that the caller has put on the stack, or a part of one.
fn on_stack(at: &Ir, width: u8) -> Option<Number> {
    let mut offset = 0i64;
    let mut base = at;
    while let Ir::Offset(inner, by) = base {
        offset += i64::from(*by);
        base = inner;
    }
    if *base != Ir::Leaf(op::SP, None) {
        return None;
    }
    let offset = u16::try_from(offset)
        .ok()
        .filter(|offset| *offset < FARTHEST)?;
    let first = u32::from(offset % 8) * 8;
    let number = Number::whole(Source::Stack(offset - offset % 8)).extended(width)?;
    // The return address itself is no argument.
    (offset >= 8 && first + number.bits <= 64).then_some(Number { first, ..number })
}
