//! One comparison of a number that lies in one word with a constant, as a range; and of two that
//! lie in a word each.
//!
//! All comparisons of some neighbouring bits of a word with a constant are one: shifted up to the
//! top of a word, `bits - low <= span` without a sign. Signed ones too, since their ranges are only
//! cut at another place of the circle; and those of floats, once their bits are turned so that they
//! are in order.

use thalweg_bytecode::op;

/// Where the hot path finds a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Of the integer arguments: rdi rsi rdx rcx r8 r9.
    Int(u8),
    /// Of the floating-point arguments: xmm0 to xmm7.
    Float(u8),
    /// Bytes behind the return address; a multiple of eight.
    Stack(u16),
    /// rax, rdx
    Ret(u8),
    /// xmm0, xmm1
    RetFloat(u8),
    Errno,
    /// What the call took, waits included, in nanoseconds. The hot path counts in other units: it
    /// may take a few more than pass.
    Took,
}

impl Source {
    /// Whether it is known when a call begins.
    pub fn is_of_entry(self) -> bool {
        matches!(self, Source::Int(_) | Source::Float(_) | Source::Stack(_))
    }
}

/// One comparison that the hot path makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    Range(Range),
    Pair(Pair),
}

impl Test {
    pub fn is_of_entry(&self) -> bool {
        match self {
            Test::Range(range) => range.source.is_of_entry(),
            Test::Pair(pair) => pair.left.is_of_entry(),
        }
    }

    pub fn passes(&self, word: &dyn Fn(Source) -> u64) -> bool {
        match self {
            Test::Range(range) => range.passes(word(range.source)),
            Test::Pair(pair) => pair.passes(word(pair.left), word(pair.right)),
        }
    }

    /// `None`: it is always passed.
    pub fn complement(self) -> Option<Test> {
        match self {
            Test::Range(range) => range.complement().map(Test::Range),
            Test::Pair(pair) => Some(Test::Pair(pair.complement())),
        }
    }
}

/// Two words compared with each other, or their low halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    pub left: Source,
    pub right: Source,
    pub relation: Relation,
    /// The low 32 bits only.
    pub narrow: bool,
    pub signed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    Equal,
    Unequal,
    /// At most.
    UpTo,
    /// The left one is above.
    Above,
}

impl Pair {
    pub fn passes(&self, left: u64, right: u64) -> bool {
        let key = |word: u64| {
            let word = if self.narrow { word << 32 } else { word };
            word ^ u64::from(self.signed) << 63
        };
        let (left, right) = (key(left), key(right));
        match self.relation {
            Relation::Equal => left == right,
            Relation::Unequal => left != right,
            Relation::UpTo => left <= right,
            Relation::Above => left > right,
        }
    }

    fn complement(self) -> Pair {
        let relation = match self.relation {
            Relation::Equal => Relation::Unequal,
            Relation::Unequal => Relation::Equal,
            Relation::UpTo => Relation::Above,
            Relation::Above => Relation::UpTo,
        };
        Pair { relation, ..self }
    }

    /// `left op right`, of two whole numbers of the same kind.
    pub(super) fn compared(compare: u8, left: Number, right: Number) -> Option<Pair> {
        let is_alike = left.bits == right.bits && left.signed == right.signed;
        let is_whole = |number: Number| number.first == 0 && number.only.is_none();
        let narrow = match left.bits {
            32 => true,
            64 => false,
            _ => return None,
        };
        // The hot path looks for the second one in a register.
        let in_register = matches!(right.source, Source::Int(_));
        if !is_alike || !is_whole(left) || !is_whole(right) || !in_register {
            return None;
        }
        let (relation, signed) = match compare {
            op::EQ => (Relation::Equal, false),
            op::NE => (Relation::Unequal, false),
            op::LE => (Relation::UpTo, left.signed),
            op::LE_UNSIGNED => (Relation::UpTo, false),
            _ => return None,
        };
        Some(Pair {
            left: left.source,
            right: right.source,
            relation,
            narrow,
            signed,
        })
    }
}

/// `((word & mask) << cut) - low <= span`, modulo 2^64 and without a sign. With `float` the bits
/// are put in order before `low` is taken off: see `in_order`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Range {
    pub source: Source,
    pub mask: u64,
    pub cut: u8,
    pub float: bool,
    pub low: u64,
    pub span: u64,
}

impl Range {
    pub fn passes(&self, word: u64) -> bool {
        let bits = (word & self.mask) << self.cut;
        let bits = if self.float { in_order(bits) } else { bits };
        bits.wrapping_sub(self.low) <= self.span
    }

    /// `None`: it is always passed.
    fn complement(self) -> Option<Range> {
        Some(Range {
            low: self.low.wrapping_add(self.span).wrapping_add(1),
            span: (u64::MAX - 1).checked_sub(self.span)?,
            ..self
        })
    }
}

/// The bits of floats in the order of the floats: those below zero turned around, zero in the
/// middle. What is not a number lies at both ends.
fn in_order(bits: u64) -> u64 {
    bits ^ ((bits as i64 >> 63) as u64 | 1 << 63)
}

/// An integer that lies in one word: the bits from `first` on, extended to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub source: Source,
    pub first: u32,
    pub bits: u32,
    pub signed: bool,
    /// Of the bits only these; they mean no sign then.
    pub only: Option<u64>,
}

/// What a comparison with a constant comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Never,
    Always,
    If(Range),
}

impl Number {
    pub(super) fn whole(source: Source) -> Number {
        Number {
            source,
            first: 0,
            bits: 64,
            signed: true,
            only: None,
        }
    }

    /// Cut to its low bytes and extended again, by the operand of `op::EXTEND`.
    pub(super) fn extended(self, width: u8) -> Option<Number> {
        let bytes = width & !op::width::SIGNED;
        let bits = u32::from(bytes) * 8;
        let signed = width & op::width::SIGNED != 0 || bytes == 8;
        if self.only.is_some() {
            let keeps = bits > self.bits || bits == self.bits && !signed;
            return keeps.then_some(self);
        }
        match bytes {
            1 | 2 | 4 | 8 if bits <= self.bits => Some(Number {
                bits,
                signed,
                ..self
            }),
            // What was extended already stays what it is, unless its sign is cut off again.
            2 | 4 | 8 if signed || !self.signed => Some(self),
            _ => None,
        }
    }

    /// Shifted up by `up`, and down by `down` with a sign or without.
    pub(super) fn shifted(self, up: u64, down: u64, signed: bool) -> Option<Number> {
        let (up, down) = (u32::try_from(up).ok()?, u32::try_from(down).ok()?);
        if down < up || down > 63 || self.only.is_some() {
            return None;
        }
        let highest = 64 - up;
        // Above its own bits are those of its sign.
        if highest > self.bits && (self.signed || signed) {
            return None;
        }
        let first = down - up;
        let bits = highest.min(self.bits).checked_sub(first)?;
        (bits > 0).then_some(Number {
            first: self.first + first,
            bits,
            signed: signed || bits == 64,
            ..self
        })
    }

    pub(super) fn masked(self, only: u64) -> Option<Number> {
        let fits = self.bits == 64 || only >> self.bits == 0;
        (fits && only != 0 && self.only.is_none()).then_some(Number {
            signed: false,
            only: Some(only),
            ..self
        })
    }

    /// Those of its values for which `value op constant` is true, or `constant op value` if that is
    /// `turned`.
    pub(super) fn compared(self, compare: u8, constant: u64, turned: bool) -> Option<Answer> {
        let without_sign = matches!(compare, op::LT_UNSIGNED | op::LE_UNSIGNED);
        let bits = self.bits;
        // All values that there are, in the order of the comparison.
        let (least, most) = match (without_sign, self.signed) {
            (true, _) if bits == 64 => (0, i128::from(u64::MAX)),
            (true, true) => return None,
            (false, false) if self.only.is_some_and(|only| only >> 63 != 0) => return None,
            (_, false) => (0, (1i128 << bits) - 1),
            (false, true) => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
        };
        let constant = match without_sign {
            true => i128::from(constant),
            false => i128::from(constant as i64),
        };
        let (low, high) = match (compare, turned) {
            (op::EQ | op::NE, _) => (constant, constant),
            (op::LT | op::LT_UNSIGNED, false) => (least, constant - 1),
            (op::LT | op::LT_UNSIGNED, true) => (constant + 1, most),
            (op::LE | op::LE_UNSIGNED, false) => (least, constant),
            (op::LE | op::LE_UNSIGNED, true) => (constant, most),
            _ => return None,
        };
        let (low, high) = (low.max(least), high.min(most));
        let answer = if low > high {
            Answer::Never
        } else {
            let up = 64 - bits;
            // The bits below are none of it, and all of them belong to the highest value.
            let rest = (1u64 << up).wrapping_sub(1);
            Answer::If(self.test(
                (low as u64) << up,
                ((high - low) as u64) << up | rest,
                false,
            ))
        };
        Some(answer.unless(compare == op::NE))
    }

    /// The same for the float that these bits are, a number of 32 or 64 bits.
    pub(super) fn compared_float(self, compare: u8, constant: f64, turned: bool) -> Option<Answer> {
        if !matches!(self.bits, 32 | 64) || self.only.is_some() {
            return None;
        }
        let equality = matches!(compare, op::FEQ | op::FNE);
        if !equality && !matches!(compare, op::FLT | op::FLE) {
            return None;
        }
        if constant.is_nan() {
            return Some(Answer::Never.unless(compare == op::FNE));
        }
        let near = match self.bits {
            32 => f64::from(constant as f32),
            _ => constant,
        };
        let (low, high) = self.keys_of(near);
        let (least, most) = (
            self.keys_of(f64::NEG_INFINITY).0,
            self.keys_of(f64::INFINITY).1,
        );
        // The keys below, of and above the constant; where no float is equal to it, it lies beside
        // its nearest.
        let (below, above) = if near < constant {
            (Some(high), high.checked_add(1))
        } else if near > constant {
            (low.checked_sub(1), Some(low))
        } else {
            (low.checked_sub(1), high.checked_add(1))
        };
        let exact = near == constant;
        let up_to = |end: Option<u64>| (Some(least), end);
        let (from, to) = match (compare, turned) {
            (op::FEQ | op::FNE, _) if exact => (Some(low), Some(high)),
            (op::FEQ | op::FNE, _) => (None, None),
            (op::FLE, false) if exact => up_to(Some(high)),
            (op::FLE, true) if exact => (Some(low), Some(most)),
            (_, false) => up_to(below),
            (_, true) => (above, Some(most)),
        };
        let answer = match (from, to) {
            (Some(from), Some(to)) if from <= to => Answer::If(self.test(from, to - from, true)),
            _ => Answer::Never,
        };
        Some(answer.unless(compare == op::FNE))
    }

    /// The least and the most of what the bits of floats that are equal to `value` come to in
    /// order.
    fn keys_of(&self, value: f64) -> (u64, u64) {
        let key = |value: f64| match self.bits {
            32 => in_order(u64::from((value as f32).to_bits()) << 32),
            _ => in_order(value.to_bits()),
        };
        let (low, high) = match value == 0.0 {
            true => (key(-0.0), key(0.0)),
            false => (key(value), key(value)),
        };
        // Of a short one the low half is nothing, turned around or not.
        match self.bits {
            32 => (low & !0xffff_ffff, high | 0xffff_ffff),
            _ => (low, high),
        }
    }

    fn test(&self, low: u64, span: u64, float: bool) -> Range {
        let only = self.only.unwrap_or(u64::MAX >> (64 - self.bits));
        Range {
            source: self.source,
            mask: only << self.first,
            cut: (64 - self.first - self.bits) as u8,
            float,
            low,
            span,
        }
    }
}

impl Answer {
    /// The opposite, if it is wanted.
    pub(super) fn unless(self, opposite: bool) -> Answer {
        match self {
            _ if !opposite => self.simple(),
            Answer::Never => Answer::Always,
            Answer::Always => Answer::Never,
            Answer::If(range) => match range.complement() {
                Some(range) => Answer::If(range).simple(),
                None => Answer::Never,
            },
        }
    }

    fn simple(self) -> Answer {
        match self {
            Answer::If(range) if range.span == u64::MAX => Answer::Always,
            other => other,
        }
    }
}
