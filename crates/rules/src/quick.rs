//! What of a condition a few comparisons decide: numbers in registers, on the stack, in the result. The hot path of the agent makes them
//! before anything else, so that a call that is not wanted costs next to nothing.
//!
//! ```text
//! n > 100 and ret < 0     at the entry: n > 100, or the call is refused whatever it returns
//! ret < 0 or errno == 2   at the exit: the same, or the call is refused
//! sql =~ /x/ or n > 100   any call may be kept: only the whole program can tell
//! ```
//!
//! They only ever refuse: a call that they let through is held against the whole condition.

use thalweg_bytecode::op;

use crate::ir::{Ir, TextSource};

mod range;
#[cfg(test)]
mod tests;

use range::{Answer, Number};
pub use range::{Source, Test};

/// What has to be true for a call to be kept, as far as comparisons tell. Each end of a call has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quick {
    pub entry: Formula,
    /// Of a call that returns, as opposed to one that is left by an exception.
    pub exit: Formula,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Formula {
    Always,
    Never,
    Test(Test),
    All(Vec<Formula>),
    Any(Vec<Formula>),
}

impl Quick {
    pub(crate) fn of(condition: Option<&Ir>) -> Quick {
        match condition {
            // Each call that a rule sees has a number, those that are refused too.
            Some(condition) if !has_number(condition) => Quick {
                entry: End::Entry.formula(condition, true),
                exit: End::Exit.formula(condition, true),
            },
            _ => Quick {
                entry: Formula::Always,
                exit: Formula::Always,
            },
        }
    }
}

impl Formula {
    pub fn all(parts: impl IntoIterator<Item = Formula>) -> Formula {
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
            Formula::Always | Formula::Never => 0,
            Formula::Test(_) => 1,
            Formula::All(parts) | Formula::Any(parts) => parts.iter().map(Formula::tests).sum(),
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

impl End {
    /// What has to be true for `ir` to be true, or not to be if it is not `wanted`. What cannot be read is neither.
    fn formula(self, ir: &Ir, wanted: bool) -> Formula {
        match ir {
            Ir::Unary(op::NOT, a) => self.formula(a, !wanted),
            Ir::Unary(op::TRUTH, a) if self.number(a).is_none() => self.formula(a, wanted),
            Ir::Binary(op @ (op::BOTH | op::EITHER), a, b) => {
                let parts = [self.formula(a, wanted), self.formula(b, wanted)];
                match (*op == op::BOTH) == wanted {
                    true => Formula::all(parts),
                    false => Formula::any(parts),
                }
            }
            Ir::Const(value) => match (*value != 0) == wanted {
                true => Formula::Always,
                false => Formula::Never,
            },
            Ir::Leaf(op::UNWOUND, _) if self == End::Exit => match wanted {
                true => Formula::Never,
                false => Formula::Always,
            },
            // Nothing was thrown, so nothing can be said of it, nor of its opposite.
            Ir::TextEq(TextSource::Known(source), _)
            | Ir::TextMatch(TextSource::Known(source), ..)
                if self == End::Exit && *source != op::source::THREAD_NAME =>
            {
                Formula::Never
            }
            _ => match self.comparison(ir).map(|answer| answer.unless(!wanted)) {
                Some(Answer::If(test)) => Formula::Test(test),
                Some(Answer::Never) => Formula::Never,
                Some(Answer::Always) | None => Formula::Always,
            },
        }
    }

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
