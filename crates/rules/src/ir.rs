//! Between the typed expression and the bytes: what is to be computed, when each part of it is
//! known, and how it becomes the code of an entry and of an exit.

use thalweg_bytecode::{HEADER_SIZE, Header, ITEM_HEADER, SLOTS, STACK, flags, op};

/// Something to compute: a word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ir {
    Const(u64),
    /// An instruction without operands, or with one of a byte.
    Leaf(u8, Option<u8>),
    /// An instruction with an operand of two bytes.
    Wide(u8, u16),
    Load(Box<Ir>, u8),
    Extend(Box<Ir>, u8),
    Offset(Box<Ir>, i32),
    Unary(u8, Box<Ir>),
    Binary(u8, Box<Ir>, Box<Ir>),
    TextEq(TextSource, Vec<u8>),
    TextMatch(TextSource, u16, Vec<u8>),
    /// An argument: what it was at the entry, even if it is asked for at the exit.
    Held(Box<Ir>),
    /// Memory is read at the exit.
    AtExit(Box<Ir>),
    Slot(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TextSource {
    /// Address and length.
    Memory(Box<Ir>, Box<Ir>),
    /// One of `op::source`.
    Known(u8),
}

/// A value to write out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Emit {
    Word {
        id: u16,
        value: Ir,
        size: u8,
    },
    /// Neighbouring words, of which the first `size` bytes count.
    Words {
        id: u16,
        values: Vec<Ir>,
        size: u8,
    },
    Text {
        id: u16,
        at: Ir,
        len: Ir,
        limit: u16,
    },
    Status {
        id: u16,
        status: u8,
    },
    Thrown {
        id: u16,
        source: u8,
    },
    /// Only if a condition holds.
    If(Ir, Vec<Emit>),
}

impl Ir {
    pub(crate) fn int(n: u8) -> Ir {
        Ir::Leaf(op::INT, Some(n))
    }

    pub(crate) fn plus(self, by: u64) -> Ir {
        match i32::try_from(by) {
            Ok(0) => self,
            Ok(by) => Ir::Offset(Box::new(self), by),
            Err(_) => Ir::binary(op::ADD, self, Ir::Const(by)),
        }
    }

    pub(crate) fn load(self, width: u8) -> Ir {
        Ir::Load(Box::new(self), width)
    }

    pub(crate) fn unary(op: u8, a: Ir) -> Ir {
        match (op, &a) {
            // A constant below zero is one, too.
            (op::NEG, Ir::Const(value)) => Ir::Const(value.wrapping_neg()),
            (op::FNEG, Ir::Const(bits)) => Ir::Const((-f64::from_bits(*bits)).to_bits()),
            _ => Ir::Unary(op, Box::new(a)),
        }
    }

    pub(crate) fn binary(op: u8, a: Ir, b: Ir) -> Ir {
        Ir::Binary(op, Box::new(a), Box::new(b))
    }

    /// Without what is known to be true or false already.
    pub(crate) fn folded(self) -> Ir {
        let truth = |ir: &Ir| match ir {
            Ir::Const(value) => Some(*value != 0),
            _ => None,
        };
        match self {
            Ir::Binary(op @ (op::BOTH | op::EITHER), a, b) => {
                let (a, b) = (a.folded(), b.folded());
                let decides = op == op::EITHER;
                match (truth(&a), truth(&b)) {
                    (Some(value), _) | (_, Some(value)) if value == decides => {
                        Ir::Const(u64::from(decides))
                    }
                    (Some(_), Some(_)) => Ir::Const(u64::from(!decides)),
                    (Some(_), None) => b,
                    (None, Some(_)) => a,
                    (None, None) => Ir::binary(op, a, b),
                }
            }
            Ir::Unary(op::NOT, a) => match a.folded() {
                Ir::Const(value) => Ir::Const(u64::from(value == 0)),
                a => a.not(),
            },
            other => other,
        }
    }

    pub(crate) fn not(self) -> Ir {
        Ir::unary(op::NOT, self)
    }

    pub(crate) fn children(&self) -> Vec<&Ir> {
        match self {
            Ir::Const(_) | Ir::Leaf(..) | Ir::Wide(..) | Ir::Slot(_) => Vec::new(),
            Ir::Load(a, _)
            | Ir::Extend(a, _)
            | Ir::Offset(a, _)
            | Ir::Unary(_, a)
            | Ir::Held(a)
            | Ir::AtExit(a) => vec![a],
            Ir::Binary(_, a, b) => vec![a, b],
            Ir::TextEq(source, _) | Ir::TextMatch(source, ..) => source.children(),
        }
    }

    /// Not known before the exit.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            Ir::AtExit(_) => true,
            Ir::Held(_) => false,
            Ir::Leaf(op, _) => matches!(
                *op,
                op::RET
                    | op::RET_FLOAT
                    | op::ERRNO
                    | op::TOTAL
                    | op::SELF
                    | op::WAITED
                    | op::UNWOUND
            ),
            Ir::TextEq(TextSource::Known(source), _)
            | Ir::TextMatch(TextSource::Known(source), ..) => *source != op::source::THREAD_NAME,
            _ => self.children().into_iter().any(Ir::is_late),
        }
    }

    /// Whether all of it that the entry computes comes from registers, so that it can be computed
    /// later.
    fn can_wait(&self) -> bool {
        match self {
            Ir::Load(..)
            | Ir::TextEq(TextSource::Memory(..), _)
            | Ir::TextMatch(TextSource::Memory(..), ..)
                if !self.is_late() =>
            {
                false
            }
            Ir::Leaf(op, _) => !matches!(*op, op::SP | op::NUMBER),
            Ir::Wide(op, _) => matches!(*op, op::CALLER | op::ABOVE),
            // What is read at the exit anyway may be read there; its address comes from the entry.
            Ir::AtExit(inner) => inner.addresses_can_wait(),
            _ => self.children().into_iter().all(Ir::can_wait),
        }
    }

    /// The same for what the exit reads.
    fn addresses_can_wait(&self) -> bool {
        match self {
            Ir::Held(inner) => inner.can_wait(),
            Ir::Leaf(op, _) => !matches!(*op, op::SP | op::NUMBER),
            Ir::Wide(..) => false,
            _ => self.children().into_iter().all(Ir::addresses_can_wait),
        }
    }

    fn flags(&self) -> u16 {
        let own = match self {
            Ir::Leaf(op::ERRNO, _) => flags::NEEDS_ERRNO,
            Ir::Leaf(op::FLOAT | op::RET_FLOAT, _) => flags::NEEDS_FLOATS,
            Ir::Leaf(op::WAITED | op::SELF, _) => flags::NEEDS_WAITED,
            Ir::TextEq(TextSource::Known(source), _)
            | Ir::TextMatch(TextSource::Known(source), ..)
                if *source != op::source::THREAD_NAME =>
            {
                flags::NEEDS_EXCEPTION
            }
            _ => 0,
        };
        self.children()
            .into_iter()
            .fold(own, |all, c| all | c.flags())
    }

    /// What a call must take at least for this to be true.
    fn least_total(&self) -> u64 {
        match self {
            Ir::Binary(op::BOTH, a, b) => a.least_total().max(b.least_total()),
            Ir::Binary(op::EITHER, a, b) => a.least_total().min(b.least_total()),
            Ir::Binary(op::LT_UNSIGNED, a, b) if b.is_part_of_total() => match **a {
                Ir::Const(limit) => limit.saturating_add(1),
                _ => 0,
            },
            Ir::Binary(op::LE_UNSIGNED | op::EQ, a, b) if b.is_part_of_total() => match **a {
                Ir::Const(limit) => limit,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// A time that is never longer than the whole call.
    pub(crate) fn is_part_of_total(&self) -> bool {
        let is_part = |ir: &Ir| matches!(ir, Ir::Leaf(op::SELF | op::WAITED, _));
        match self {
            Ir::Leaf(op::TOTAL, _) => true,
            Ir::Binary(op::SUB, a, b) => **a == Ir::Leaf(op::TOTAL, None) && is_part(b),
            other => is_part(other),
        }
    }
}

impl TextSource {
    fn children(&self) -> Vec<&Ir> {
        match self {
            TextSource::Memory(at, len) => vec![at, len],
            TextSource::Known(_) => Vec::new(),
        }
    }
}

impl Emit {
    fn irs(&self) -> Vec<&Ir> {
        match self {
            Emit::Word { value, .. } => vec![value],
            Emit::Words { values, .. } => values.iter().collect(),
            Emit::Text { at, len, .. } => vec![at, len],
            Emit::Status { .. } | Emit::Thrown { .. } => Vec::new(),
            Emit::If(condition, inside) => {
                let mut all = vec![condition];
                all.extend(inside.iter().flat_map(Emit::irs));
                all
            }
        }
    }

    /// See `Ir::can_wait`. A text that is not late is read at the entry.
    pub(crate) fn can_wait(&self) -> bool {
        let reads = match self {
            Emit::Text { .. } => !self.is_late(),
            Emit::If(_, inside) => !inside.iter().all(Emit::can_wait),
            _ => false,
        };
        !reads && self.irs().into_iter().all(Ir::can_wait)
    }

    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Emit::Thrown { .. }) || self.irs().into_iter().any(Ir::is_late)
    }

    fn room(&self) -> u32 {
        let own = match self {
            Emit::Word { size, .. } | Emit::Words { size, .. } => u32::from(*size),
            Emit::Text { limit, .. } => u32::from(*limit),
            Emit::Status { .. } => 0,
            Emit::Thrown { .. } => 512,
            Emit::If(_, inside) => return inside.iter().map(Emit::room).sum(),
        };
        own + ITEM_HEADER as u32
    }
}

/// Why something that is right in itself does not fit into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooMuch {
    /// More than the machine's stack or slots hold.
    Complex,
    /// More code than jumps and headers can span.
    Long,
}

/// A rule for one function, before it is bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub rule: u16,
    pub condition: Option<Ir>,
    pub emits: Vec<Emit>,
    pub first: u64,
    pub per_second: u32,
    /// Nobody asks whether a call of it is open.
    pub may_wait: bool,
}

impl Plan {
    pub(crate) fn assemble(&self) -> Result<Vec<u8>, TooMuch> {
        let mut slots = Slots::default();
        let late = self.condition.as_ref().is_some_and(Ir::is_late);
        let mut condition = self.condition.clone();
        if late {
            condition = condition.map(|c| slots.exit_form(&c, false)).transpose()?;
        }
        let (at_exit, at_entry): (Vec<&Emit>, Vec<&Emit>) =
            self.emits.iter().partition(|emit| emit.is_late());
        let at_exit: Vec<Emit> = at_exit
            .into_iter()
            .map(|emit| slots.exit_emit(emit))
            .collect::<Result<_, _>>()?;

        let mut entry = Code::new(true);
        for (slot, ir) in slots.list.iter().enumerate() {
            entry.word(ir)?;
            entry.put(&[op::SAVE, slot as u8]);
            entry.pop(1);
        }
        entry.condition(condition.as_ref())?;
        at_entry.iter().try_for_each(|emit| entry.emit(emit))?;

        let mut exit = Code::new(false);
        if late {
            exit.condition(condition.as_ref())?;
        }
        at_exit.iter().try_for_each(|emit| exit.emit(emit))?;

        let all = || {
            let emitted = self.emits.iter().flat_map(Emit::irs);
            self.condition.iter().chain(emitted)
        };
        let mut wanted = all().fold(0, |wanted, ir| wanted | ir.flags());
        if self.emits.iter().any(|e| matches!(e, Emit::Thrown { .. })) {
            wanted |= flags::NEEDS_EXCEPTION;
        }
        if !slots.list.is_empty() || !at_entry.is_empty() || !late && self.condition.is_some() {
            wanted |= flags::NEEDS_ENTRY;
        }
        if late || !at_exit.is_empty() {
            wanted |= flags::NEEDS_EXIT;
        }
        let can_wait = self.condition.iter().all(Ir::can_wait);
        if late && self.may_wait && can_wait && self.emits.iter().all(Emit::can_wait) {
            wanted |= flags::CAN_WAIT;
        }
        let state = if slots.list.is_empty() {
            0
        } else {
            ITEM_HEADER as u32 + 9 * slots.list.len() as u32
        };
        let header = Header {
            rule: self.rule,
            flags: wanted,
            min_total_ns: self.condition.as_ref().map_or(0, Ir::least_total),
            first: self.first,
            per_second: self.per_second,
            max_out: state + self.emits.iter().map(Emit::room).sum::<u32>(),
            entry_len: entry.bytes.len() as u32,
            exit_len: exit.bytes.len() as u32,
        };
        let mut program = header.write().to_vec();
        program.extend(entry.bytes);
        program.extend(exit.bytes);
        if program.len() > HEADER_SIZE + usize::from(u16::MAX) {
            return Err(TooMuch::Long);
        }
        Ok(program)
    }
}

/// What the entry leaves for the exit.
#[derive(Default)]
struct Slots {
    list: Vec<Ir>,
}

impl Slots {
    fn save(&mut self, ir: &Ir) -> Result<Ir, TooMuch> {
        let at = match self.list.iter().position(|saved| saved == ir) {
            Some(at) => at,
            None => {
                self.list.push(ir.clone());
                self.list.len() - 1
            }
        };
        if at >= SLOTS {
            return Err(TooMuch::Complex);
        }
        Ok(Ir::Slot(at as u8))
    }

    /// `ir` with everything that the entry knows in slots. With `reading`, memory is read at the
    /// exit, by addresses from the entry.
    fn exit_form(&mut self, ir: &Ir, reading: bool) -> Result<Ir, TooMuch> {
        let mut boxed = |ir: &Ir| Ok::<_, TooMuch>(Box::new(self.exit_form(ir, reading)?));
        Ok(match ir {
            Ir::Const(_) | Ir::Slot(_) => ir.clone(),
            Ir::Held(inner) => self.save(inner)?,
            Ir::AtExit(inner) => Ir::AtExit(Box::new(self.exit_form(inner, true)?)),
            _ if !ir.is_late() && !reading => self.save(ir)?,
            Ir::Leaf(..) | Ir::Wide(..) if !ir.is_late() => self.save(ir)?,
            Ir::Leaf(..) | Ir::Wide(..) => ir.clone(),
            Ir::Load(a, width) => Ir::Load(boxed(a)?, *width),
            Ir::Extend(a, width) => Ir::Extend(boxed(a)?, *width),
            Ir::Offset(a, by) => Ir::Offset(boxed(a)?, *by),
            Ir::Unary(op, a) => Ir::Unary(*op, boxed(a)?),
            Ir::Binary(op, a, b) => Ir::Binary(*op, boxed(a)?, boxed(b)?),
            Ir::TextEq(source, text) => Ir::TextEq(self.exit_text(source, reading)?, text.clone()),
            Ir::TextMatch(source, limit, table) => {
                Ir::TextMatch(self.exit_text(source, reading)?, *limit, table.clone())
            }
        })
    }

    fn exit_text(&mut self, source: &TextSource, reading: bool) -> Result<TextSource, TooMuch> {
        Ok(match source {
            TextSource::Known(source) => TextSource::Known(*source),
            TextSource::Memory(at, len) => TextSource::Memory(
                Box::new(self.exit_form(at, reading)?),
                Box::new(self.exit_form(len, reading)?),
            ),
        })
    }

    fn exit_emit(&mut self, emit: &Emit) -> Result<Emit, TooMuch> {
        // What an exit writes is read at the exit, whatever led there.
        Ok(match emit {
            Emit::Word { id, value, size } => Emit::Word {
                id: *id,
                value: self.exit_form(value, false)?,
                size: *size,
            },
            Emit::Words { id, values, size } => Emit::Words {
                id: *id,
                values: values
                    .iter()
                    .map(|value| self.exit_form(value, false))
                    .collect::<Result<_, _>>()?,
                size: *size,
            },
            Emit::Text { id, at, len, limit } => Emit::Text {
                id: *id,
                at: self.exit_form(at, false)?,
                len: self.exit_form(len, false)?,
                limit: *limit,
            },
            Emit::If(condition, inside) => Emit::If(
                self.exit_form(condition, false)?,
                inside
                    .iter()
                    .map(|emit| self.exit_emit(emit))
                    .collect::<Result<_, _>>()?,
            ),
            Emit::Status { .. } | Emit::Thrown { .. } => emit.clone(),
        })
    }
}

struct Code {
    bytes: Vec<u8>,
    depth: usize,
    at_entry: bool,
}

impl Code {
    fn new(at_entry: bool) -> Code {
        Code {
            bytes: Vec::new(),
            depth: 0,
            at_entry,
        }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn put16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    fn push(&mut self) -> Result<(), TooMuch> {
        self.depth += 1;
        if self.depth > STACK {
            return Err(TooMuch::Complex);
        }
        Ok(())
    }

    fn pop(&mut self, count: usize) {
        self.depth -= count;
    }

    fn constant(&mut self, value: u64) {
        match i8::try_from(value as i64) {
            Ok(small) => self.put(&[op::CONST8, small as u8]),
            Err(_) => {
                self.put(&[op::CONST64]);
                self.put(&value.to_le_bytes());
            }
        }
    }

    fn word(&mut self, ir: &Ir) -> Result<(), TooMuch> {
        match ir {
            Ir::Const(value) => {
                self.push()?;
                self.constant(*value);
            }
            Ir::Leaf(op, operand) => {
                self.push()?;
                self.put(&[*op]);
                self.bytes.extend(operand);
            }
            Ir::Wide(op, operand) => {
                self.push()?;
                self.put(&[*op]);
                self.put16(*operand);
            }
            Ir::Slot(slot) => {
                self.push()?;
                self.put(&[op::SLOT, *slot]);
            }
            Ir::Load(a, width) => {
                self.word(a)?;
                self.put(&[op::LOAD, *width]);
            }
            Ir::Extend(a, width) => {
                self.word(a)?;
                self.put(&[op::EXTEND, *width]);
            }
            Ir::Offset(a, by) => {
                self.word(a)?;
                self.put(&[op::ADD_CONST]);
                self.put(&by.to_le_bytes());
            }
            Ir::Unary(op, a) => {
                self.word(a)?;
                self.put(&[*op]);
            }
            Ir::Binary(op, a, b) => {
                self.word(a)?;
                self.word(b)?;
                self.put(&[*op]);
                self.pop(1);
            }
            Ir::Held(inner) => self.word(inner)?,
            // At the entry there is nothing to read yet.
            Ir::AtExit(_) if self.at_entry => {
                self.push()?;
                self.put(&[op::CONST8, 0, op::LATE]);
            }
            Ir::AtExit(inner) => self.word(inner)?,
            Ir::TextEq(source, text) => {
                let source = self.source(source)?;
                self.put(&[op::TEXT_EQ, source]);
                self.put16(u16::try_from(text.len()).map_err(|_| TooMuch::Long)?);
                self.put(text);
            }
            Ir::TextMatch(source, limit, table) => {
                let source = self.source(source)?;
                self.put(&[op::TEXT_MATCH, source]);
                self.put16(*limit);
                self.put16(u16::try_from(table.len()).map_err(|_| TooMuch::Long)?);
                self.put(table);
            }
        }
        Ok(())
    }

    /// Leaves the depth as it is after the text's result was put on the stack.
    fn source(&mut self, source: &TextSource) -> Result<u8, TooMuch> {
        match source {
            TextSource::Memory(at, len) => {
                self.word(at)?;
                self.word(len)?;
                self.pop(1);
                Ok(op::source::STACK)
            }
            TextSource::Known(source) => {
                self.push()?;
                Ok(*source)
            }
        }
    }

    fn condition(&mut self, condition: Option<&Ir>) -> Result<(), TooMuch> {
        if let Some(condition) = condition {
            self.word(condition)?;
            self.put(&[op::VERDICT]);
            self.pop(1);
        }
        Ok(())
    }

    fn emit(&mut self, emit: &Emit) -> Result<(), TooMuch> {
        match emit {
            Emit::Word { id, value, size } => {
                self.word(value)?;
                self.put(&[op::EMIT]);
                self.put16(*id);
                self.put(&[*size]);
                self.pop(1);
            }
            Emit::Words { id, values, size } => {
                values.iter().try_for_each(|value| self.word(value))?;
                self.put(&[op::EMIT_WORDS]);
                self.put16(*id);
                self.put(&[values.len() as u8, *size]);
                self.pop(values.len());
            }
            Emit::Text { id, at, len, limit } => {
                self.word(at)?;
                self.word(len)?;
                self.put(&[op::EMIT_TEXT]);
                self.put16(*id);
                self.put16(*limit);
                self.pop(2);
            }
            Emit::Status { id, status } => {
                self.put(&[op::EMIT_STATUS]);
                self.put16(*id);
                self.put(&[*status]);
            }
            Emit::Thrown { id, source } => {
                self.put(&[op::EMIT_SOURCE]);
                self.put16(*id);
                self.put(&[*source]);
            }
            Emit::If(condition, inside) => {
                self.word(condition)?;
                self.pop(1);
                self.put(&[op::JUMP_UNLESS]);
                let hole = self.bytes.len();
                self.put16(0);
                inside.iter().try_for_each(|emit| self.emit(emit))?;
                let by = self.bytes.len() - hole - 2;
                let by = u16::try_from(by).map_err(|_| TooMuch::Long)?;
                self.bytes[hole..hole + 2].copy_from_slice(&by.to_le_bytes());
            }
        }
        Ok(())
    }
}
