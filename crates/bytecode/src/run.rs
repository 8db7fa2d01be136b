//! The machine that runs a program's code: a stack of words, each of them known, unknown or late.

use crate::header::{Header, flags, u16_at, u32_at, u64_at};
use crate::items::{Items, Out, STATE_ID, Status};
use crate::op;
use crate::text::{NUL_TERMINATED, Source};
use crate::{Call, Machine, Memory, Surroundings, Verdict};

/// How deep the stack is.
pub const STACK: usize = 16;

/// How many words the entry can leave for the exit.
pub const SLOTS: usize = 16;

const SLOT_BYTES: usize = 9;

/// What is readable or not as a whole.
const PAGE: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Known,
    Unknown,
    /// Known at the exit.
    Late,
}

#[derive(Clone, Copy)]
struct Word {
    value: u64,
    state: State,
}

const UNKNOWN: Word = Word {
    value: 0,
    state: State::Unknown,
};
const LATE: Word = Word {
    value: 0,
    state: State::Late,
};

fn known(value: u64) -> Word {
    Word {
        value,
        state: State::Known,
    }
}

fn truth(value: bool) -> Word {
    known(u64::from(value))
}

pub(crate) struct Run<'a, 'b, 'c, M: Memory, S: Surroundings> {
    machine: &'a Machine,
    memory: &'a mut M,
    around: &'a S,
    call: &'a Call<'c>,
    out: &'a mut Out<'b>,
    at_entry: bool,
    stack: [Word; STACK],
    depth: usize,
    slots: [Word; SLOTS],
    slots_used: usize,
}

impl<'a, 'b, 'c, M: Memory, S: Surroundings> Run<'a, 'b, 'c, M, S> {
    pub(crate) fn new(
        machine: &'a Machine,
        memory: &'a mut M,
        around: &'a S,
        call: &'a Call<'c>,
        out: &'a mut Out<'b>,
        at_entry: bool,
    ) -> Self {
        Run {
            machine,
            memory,
            around,
            call,
            out,
            at_entry,
            stack: [UNKNOWN; STACK],
            depth: 0,
            slots: [UNKNOWN; SLOTS],
            slots_used: 0,
        }
    }

    pub(crate) fn entry(&mut self, header: &Header, code: &[u8]) -> Option<Verdict> {
        let verdict = self.run(code, header.has(flags::NEEDS_EXIT))?;
        Some(match (verdict.state, verdict.value) {
            (State::Late, _) => Verdict::AtExit,
            (State::Known, 1..) => Verdict::Yes,
            _ => Verdict::No,
        })
    }

    pub(crate) fn exit(&mut self, code: &[u8], entry_values: &[u8]) -> Option<bool> {
        self.restore(entry_values);
        let verdict = self.run(code, false)?;
        Some(verdict.state == State::Known && verdict.value != 0)
    }

    /// What the condition came to. A program without one keeps every call.
    fn run(&mut self, code: &[u8], save: bool) -> Option<Word> {
        let mut verdict = known(1);
        let mut code = Code { bytes: code, at: 0 };
        while let Some(op) = code.u8() {
            match op {
                op::END => break,
                op::VERDICT => {
                    verdict = self.pop()?;
                    let fulfilled = verdict.state == State::Known && verdict.value != 0;
                    if !fulfilled && verdict.state != State::Late {
                        return Some(verdict);
                    }
                    if save {
                        self.save();
                    }
                }
                op::JUMP => {
                    let by = code.u16()?;
                    code.skip(by);
                }
                op::JUMP_UNLESS => {
                    let by = code.u16()?;
                    let condition = self.pop()?;
                    if condition.state != State::Known || condition.value == 0 {
                        code.skip(by);
                    }
                }
                op::CONST8..=op::LATE => self.leaf(op, &mut code)?,
                op::ADD..=op::EITHER => {
                    let b = self.pop()?;
                    let a = self.pop()?;
                    self.push(binary(op, a, b)?)?;
                }
                op::NEG..=op::TRUTH => {
                    let a = self.pop()?;
                    self.push(unary(op, a)?)?;
                }
                op::TEXT_EQ => {
                    let source = code.u8()?;
                    let len = code.u16()?;
                    let constant = code.bytes(len)?;
                    let result = self.text(source, |text| text.equals(constant))?;
                    self.push(result)?;
                }
                op::TEXT_MATCH => {
                    let source = code.u8()?;
                    let limit = code.u16()?;
                    let len = code.u16()?;
                    let table = code.bytes(len)?;
                    let result =
                        self.text(source, |text| text.matches(table, usize::from(limit)))?;
                    self.push(result)?;
                }
                op::EMIT..=op::EMIT_SOURCE => self.emit(op, &mut code)?,
                _ => return None,
            }
        }
        Some(verdict)
    }

    fn leaf(&mut self, op: u8, code: &mut Code<'_>) -> Option<()> {
        let late = |word: Word| if self.at_entry { LATE } else { word };
        let word = match op {
            op::CONST8 => known(code.u8()? as i8 as i64 as u64),
            op::CONST64 => known(code.u64()?),
            op::INT => known(*self.machine.int.get(usize::from(code.u8()?))?),
            op::FLOAT => known(*self.machine.float.get(usize::from(code.u8()?))?),
            op::SP => known(self.machine.sp),
            op::RET => {
                let n = usize::from(code.u8()?);
                let machine = self.machine;
                let value = *machine.ret.get(n).or_else(|| machine.int.get(n))?;
                late(self.unless_unwound(value))
            }
            op::RET_FLOAT => {
                let n = usize::from(code.u8()?);
                let machine = self.machine;
                let value = *machine.ret_float.get(n).or_else(|| machine.float.get(n))?;
                late(self.unless_unwound(value))
            }
            op::ERRNO => late(known(self.machine.errno as u64)),
            op::TOTAL => late(known(self.call.total_ns)),
            op::SELF => late(known(self.call.self_ns)),
            op::WAITED => late(known(self.call.waited_ns)),
            op::UNWOUND => late(truth(self.call.unwound)),
            op::THREAD => known(u64::from(self.call.thread)),
            op::NUMBER => known(self.call.number),
            op::CALLER => truth(self.around.caller_in(code.u16()?)),
            op::ABOVE => truth(self.around.above_in(code.u16()?)),
            op::ACTIVE => truth(self.around.active(code.u16()?)),
            op::FIRED => truth(self.around.fired(code.u16()?)),
            op::SAVE => {
                let slot = usize::from(code.u8()?);
                let word = self.pop()?;
                *self.slots.get_mut(slot)? = word;
                self.slots_used = self.slots_used.max(slot + 1);
                return Some(());
            }
            op::SLOT => *self.slots.get(usize::from(code.u8()?))?,
            op::LOAD => {
                let width = code.u8()?;
                let address = self.pop()?;
                self.load(address, width)?
            }
            op::EXTEND => {
                let width = code.u8()?;
                let word = self.pop()?;
                Word {
                    value: extend(word.value, width)?,
                    ..word
                }
            }
            op::ADD_CONST => {
                let by = code.u32()? as i32 as i64 as u64;
                let word = self.pop()?;
                Word {
                    value: word.value.wrapping_add(by),
                    ..word
                }
            }
            op::LATE => {
                let word = self.pop()?;
                if self.at_entry { LATE } else { word }
            }
            _ => return None,
        };
        self.push(word)
    }

    fn unless_unwound(&self, value: u64) -> Word {
        if self.call.unwound {
            UNKNOWN
        } else {
            known(value)
        }
    }

    fn load(&mut self, address: Word, width: u8) -> Option<Word> {
        let size = usize::from(width & !op::width::SIGNED);
        let mut bytes = [0; 8];
        let part = bytes.get_mut(..size)?;
        if address.state != State::Known {
            return Some(address);
        }
        if address.value == 0 || self.memory.read(address.value, part) < size {
            return Some(UNKNOWN);
        }
        Some(known(extend(u64::from_le_bytes(bytes), width)?))
    }

    /// Looks at a text; unknown if it cannot be read.
    fn text(
        &mut self,
        source: u8,
        look: impl FnOnce(Source<'_, M>) -> Option<bool>,
    ) -> Option<Word> {
        let name;
        let text = match source {
            op::source::STACK => {
                let len = self.pop()?;
                let at = self.pop()?;
                if len.state != State::Known {
                    return Some(len);
                }
                if at.state != State::Known || at.value == 0 && len.value != 0 {
                    return Some(if at.state == State::Known {
                        UNKNOWN
                    } else {
                        at
                    });
                }
                Source::Target {
                    memory: self.memory,
                    at: at.value,
                    len: len.value,
                }
            }
            op::source::THREAD_NAME => {
                name = self.around.thread_name();
                Source::Here(until_nul(&name))
            }
            _ if self.at_entry => return Some(LATE),
            _ => match thrown(self.call.exception, source)? {
                Some(bytes) => Source::Here(bytes),
                None => return Some(UNKNOWN),
            },
        };
        Some(look(text).map_or(UNKNOWN, truth))
    }

    fn emit(&mut self, op: u8, code: &mut Code<'_>) -> Option<()> {
        let id = code.u16()?;
        match op {
            op::EMIT => {
                let size = usize::from(code.u8()?);
                let word = self.pop()?;
                if word.state == State::Known {
                    let bytes = word.value.to_le_bytes();
                    self.out.push(id, Status::Ok, bytes.get(..size)?);
                } else {
                    self.out.push(id, Status::Unreadable, &[]);
                }
            }
            op::EMIT_WORDS => {
                let count = usize::from(code.u8()?);
                let size = usize::from(code.u8()?);
                self.emit_words(id, count, size)?;
            }
            op::EMIT_TEXT => {
                let limit = usize::from(code.u16()?);
                let len = self.pop()?;
                let at = self.pop()?;
                if len.state != State::Known || at.state != State::Known {
                    self.out.push(id, Status::Unreadable, &[]);
                } else if at.value == 0 {
                    self.out.push(id, Status::Null, &[]);
                } else {
                    self.emit_text(id, at.value, len.value, limit)?;
                }
            }
            op::EMIT_STATUS => {
                let status = Status::from_byte(code.u8()?);
                self.out.push(id, status, &[]);
            }
            _ => {
                let source = code.u8()?;
                match thrown(self.call.exception, source)? {
                    Some(bytes) => self.out.push(id, Status::Ok, bytes),
                    None => self.out.push(id, Status::Unreadable, &[]),
                }
            }
        }
        Some(())
    }

    fn emit_words(&mut self, id: u16, count: usize, size: usize) -> Option<()> {
        let first = self.depth.checked_sub(count)?;
        let words = self.stack.get(first..self.depth)?;
        self.depth = first;
        if size > count.checked_mul(8)? {
            return None;
        }
        if words.iter().any(|word| word.state != State::Known) {
            self.out.push(id, Status::Unreadable, &[]);
            return Some(());
        }
        let Some(room) = self.out.room(size) else {
            return Some(());
        };
        let len = room.len();
        let bytes = words.iter().flat_map(|word| word.value.to_le_bytes());
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = from;
        }
        let status = if len < size { Status::Cut } else { Status::Ok };
        self.out.finish(id, status, len);
        Some(())
    }

    fn emit_text(&mut self, id: u16, at: u64, len: u64, limit: usize) -> Option<()> {
        let ends_at_nul = len == NUL_TERMINATED;
        let wanted = limit.min(usize::try_from(len).unwrap_or(limit));
        let Some(room) = self.out.room(wanted) else {
            return Some(());
        };
        let wanted = room.len();
        let mut done = 0;
        let mut status = if ends_at_nul || (wanted as u64) < len {
            Status::Cut
        } else {
            Status::Ok
        };
        while done < wanted {
            // C strings are read up to the end of the page, so that nothing is read from one that
            // the string does not reach.
            let from = at.wrapping_add(done as u64);
            let most = if ends_at_nul {
                PAGE - (from as usize & (PAGE - 1))
            } else {
                wanted - done
            };
            let piece = room.get_mut(done..wanted.min(done + most))?;
            let asked = piece.len();
            let read = self.memory.read(from, piece).min(asked);
            if ends_at_nul && let Some(nul) = piece.get(..read)?.iter().position(|byte| *byte == 0)
            {
                done += nul;
                status = Status::Ok;
                break;
            }
            done += read;
            if read < asked {
                status = Status::Unreadable;
                break;
            }
        }
        self.out.finish(id, status, done);
        Some(())
    }

    fn save(&mut self) {
        let used = self.slots_used.min(SLOTS);
        if used == 0 {
            return;
        }
        let mut bytes = [0; SLOTS * SLOT_BYTES];
        let cells = bytes.chunks_exact_mut(SLOT_BYTES);
        for (cell, slot) in cells.zip(self.slots.iter().take(used)) {
            if let Some((state, value)) = cell.split_first_mut() {
                *state = u8::from(slot.state == State::Known);
                for (to, from) in value.iter_mut().zip(slot.value.to_le_bytes()) {
                    *to = from;
                }
            }
        }
        if let Some(state) = bytes.get(..used * SLOT_BYTES) {
            self.out.push(STATE_ID, Status::Ok, state);
        }
    }

    fn restore(&mut self, entry_values: &[u8]) {
        let Some(item) = Items::new(entry_values).find(|item| item.id == STATE_ID) else {
            return;
        };
        for (slot, cell) in self
            .slots
            .iter_mut()
            .zip(item.bytes.chunks_exact(SLOT_BYTES))
        {
            if let (Some(1), Some(value)) = (cell.first(), u64_at(cell, 1)) {
                *slot = known(value);
            }
        }
    }

    fn push(&mut self, word: Word) -> Option<()> {
        *self.stack.get_mut(self.depth)? = word;
        self.depth += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<Word> {
        self.depth = self.depth.checked_sub(1)?;
        self.stack.get(self.depth).copied()
    }
}

/// The text that the program on a throwing function left under `source`; the outer `None`: there is
/// no such source.
fn thrown(exception: &[u8], source: u8) -> Option<Option<&[u8]>> {
    let id = match source {
        op::source::EXCEPTION_TYPE => op::thrown::TYPE,
        op::source::EXCEPTION_MESSAGE => op::thrown::MESSAGE,
        _ => return None,
    };
    let found = Items::new(exception).find(|item| item.id == id);
    Some(
        found
            .filter(|item| matches!(item.status, Status::Ok | Status::Cut))
            .map(|item| item.bytes),
    )
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|byte| *byte == 0);
    bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default()
}

fn extend(value: u64, width: u8) -> Option<u64> {
    Some(match width {
        1 => value as u8 as u64,
        2 => value as u16 as u64,
        4 => value as u32 as u64,
        0x81 => value as i8 as i64 as u64,
        0x82 => value as i16 as i64 as u64,
        0x84 => value as i32 as i64 as u64,
        8 | 0x88 => value,
        _ => return None,
    })
}

fn unary(op: u8, a: Word) -> Option<Word> {
    if a.state != State::Known {
        return Some(a);
    }
    let value = a.value;
    Some(match op {
        op::NEG => known(value.wrapping_neg()),
        op::INVERT => known(!value),
        op::FNEG => known((-f64::from_bits(value)).to_bits()),
        op::FROM_SIGNED => known((value as i64 as f64).to_bits()),
        op::FROM_UNSIGNED => known((value as f64).to_bits()),
        op::WIDEN => known(f64::from(f32::from_bits(value as u32)).to_bits()),
        op::NOT => truth(value == 0),
        op::TRUTH => truth(value != 0),
        _ => return None,
    })
}

fn binary(op: u8, a: Word, b: Word) -> Option<Word> {
    if op == op::BOTH || op == op::EITHER {
        return Some(logic(op == op::EITHER, a, b));
    }
    if a.state != State::Known || b.state != State::Known {
        // What is unknown now stays so.
        let unknown = a.state == State::Unknown || b.state == State::Unknown;
        return Some(if unknown { UNKNOWN } else { LATE });
    }
    let (a, b) = (a.value, b.value);
    let (signed_a, signed_b) = (a as i64, b as i64);
    let (float_a, float_b) = (f64::from_bits(a), f64::from_bits(b));
    let division = |result: Option<u64>| result.map_or(UNKNOWN, known);
    let shift = |by: u64| u32::try_from(by).ok().filter(|by| *by < 64);
    Some(match op {
        op::ADD => known(a.wrapping_add(b)),
        op::SUB => known(a.wrapping_sub(b)),
        op::MUL => known(a.wrapping_mul(b)),
        op::DIV => division(signed_a.checked_div(signed_b).map(|q| q as u64)),
        op::DIV_UNSIGNED => division(a.checked_div(b)),
        op::REM => division(signed_a.checked_rem(signed_b).map(|r| r as u64)),
        op::REM_UNSIGNED => division(a.checked_rem(b)),
        op::AND => known(a & b),
        op::OR => known(a | b),
        op::XOR => known(a ^ b),
        op::SHL => known(shift(b).map_or(0, |by| a << by)),
        op::SHR => known(shift(b).map_or(0, |by| a >> by)),
        op::SAR => known((signed_a >> shift(b).unwrap_or(63)) as u64),
        op::FADD => known((float_a + float_b).to_bits()),
        op::FSUB => known((float_a - float_b).to_bits()),
        op::FMUL => known((float_a * float_b).to_bits()),
        op::FDIV => known((float_a / float_b).to_bits()),
        op::EQ => truth(a == b),
        op::NE => truth(a != b),
        op::LT => truth(signed_a < signed_b),
        op::LE => truth(signed_a <= signed_b),
        op::LT_UNSIGNED => truth(a < b),
        op::LE_UNSIGNED => truth(a <= b),
        op::FEQ => truth(float_a == float_b),
        op::FNE => truth(float_a != float_b),
        op::FLT => truth(float_a < float_b),
        op::FLE => truth(float_a <= float_b),
        _ => return None,
    })
}

/// `deciding` is the value that one operand alone decides with: true for "or", false for "and".
fn logic(deciding: bool, a: Word, b: Word) -> Word {
    let decides = |word: Word| word.state == State::Known && (word.value != 0) == deciding;
    if decides(a) || decides(b) {
        truth(deciding)
    } else if a.state == State::Late || b.state == State::Late {
        LATE
    } else if a.state == State::Unknown || b.state == State::Unknown {
        UNKNOWN
    } else {
        truth(!deciding)
    }
}

struct Code<'p> {
    bytes: &'p [u8],
    at: usize,
}

impl<'p> Code<'p> {
    fn u8(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn u16(&mut self) -> Option<u16> {
        let value = u16_at(self.bytes, self.at)?;
        self.at += 2;
        Some(value)
    }

    fn u32(&mut self) -> Option<u32> {
        let value = u32_at(self.bytes, self.at)?;
        self.at += 4;
        Some(value)
    }

    fn u64(&mut self) -> Option<u64> {
        let value = u64_at(self.bytes, self.at)?;
        self.at += 8;
        Some(value)
    }

    fn bytes(&mut self, len: u16) -> Option<&'p [u8]> {
        let end = self.at.checked_add(usize::from(len))?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    /// Jumps have no sign: they lead forward.
    fn skip(&mut self, by: u16) {
        self.at = self.at.saturating_add(usize::from(by));
    }
}
