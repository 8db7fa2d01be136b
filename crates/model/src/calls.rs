//! Single calls that rules have chosen, with the calls that they were made by: trees of their own
//! beside the contexts.
//!
//! ```text
//! section: dropped, names, rules, calls; of a call each number as its difference from what it is likely to be
//! ```

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::ids::FuncId;
use crate::values::{CallValue, CallValues, ValuesAt};

/// What was recorded call by call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    /// Referred to by [`Call::rule`].
    pub rules: Vec<Rule>,
    /// Parents before children.
    pub calls: Vec<Call>,
    /// What [`Call::values`] refers to.
    pub values: CallValues,
    /// Referred to by [`CallValue::name`].
    pub names: Vec<String>,
    /// Calls that a rule had chosen and for which there was no room.
    pub dropped: u64,
    /// How functions are declared, where that is known; sorted by function.
    pub signatures: Vec<Signature>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Index into [`crate::Profile::functions`].
    pub function: FuncId,
    pub text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// As it was given.
    pub text: String,
    /// How many calls it has chosen, those that were dropped included.
    pub kept: u64,
}

/// One call. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Unique in the recording.
    pub id: u64,
    /// Index in the list, always smaller than this call's own.
    pub parent: Option<u32>,
    /// Index into [`crate::Profile::functions`].
    pub function: FuncId,
    /// The rule that has chosen it; `None`: it is there because it made one that was chosen.
    pub rule: Option<u32>,
    pub pid: u32,
    pub tid: u32,
    /// 0: none.
    pub request: u64,
    /// When it began and ended, relative to the start of the recording; waiting included.
    pub entry_ns: u64,
    pub exit_ns: u64,
    /// On a processor, in itself.
    pub self_ns: u64,
    /// Off the processor, its callees included.
    pub waited_ns: u64,
    pub end: CallEnd,
    /// In [`Recorded::values`].
    pub values: ValuesAt,
}

impl Call {
    /// From entry to exit.
    pub fn total_ns(&self) -> u64 {
        self.exit_ns.saturating_sub(self.entry_ns)
    }
}

/// How a call came to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallEnd {
    #[default]
    Returned,
    /// Left by an exception, a longjmp or a cancellation.
    Unwound,
    /// Of a coroutine that was left: it went on later, as a call of its own here.
    Suspended,
    /// Its thread ended in it.
    ThreadEnded,
    /// Still running when the recording ended.
    Open,
    /// Its end was among what was dropped.
    Lost,
}

impl CallEnd {
    const ALL: [CallEnd; 6] = [
        CallEnd::Returned,
        CallEnd::Unwound,
        CallEnd::Suspended,
        CallEnd::ThreadEnded,
        CallEnd::Open,
        CallEnd::Lost,
    ];

    /// A stable short word.
    pub fn word(self) -> &'static str {
        match self {
            CallEnd::Returned => "returned",
            CallEnd::Unwound => "unwound",
            CallEnd::Suspended => "suspended",
            CallEnd::ThreadEnded => "thread ended",
            CallEnd::Open => "open",
            CallEnd::Lost => "lost",
        }
    }
}

/// One byte at least in each field.
pub(crate) const MIN_BYTES_PER_CALL: usize = 12;

pub(crate) fn encode(recorded: &Recorded, out: &mut Encoder) {
    out.number(recorded.dropped);
    out.texts(&recorded.names);
    out.number(recorded.rules.len() as u64);
    for rule in &recorded.rules {
        out.text(&rule.text);
        out.number(rule.kept);
    }
    out.number(recorded.calls.len() as u64);
    let mut last = Call::default();
    for call in &recorded.calls {
        out.difference(call.id, last.id);
        out.optional(call.parent);
        out.number(call.function.into());
        out.optional(call.rule);
        out.number(call.pid.into());
        out.number(call.tid.into());
        out.number(call.request);
        out.difference(call.entry_ns, last.entry_ns);
        out.difference(call.exit_ns, call.entry_ns);
        out.number(call.self_ns);
        out.number(call.waited_ns);
        out.byte(call.end as u8);
        recorded.values.encode(call.values, out);
        last.id = call.id;
        last.entry_ns = call.entry_ns;
    }
}

pub(crate) fn decode(input: &mut Decoder) -> Result<Recorded, ReadError> {
    let mut recorded = decode_head(input)?;
    let mut before = Before::default();
    let Recorded { values, .. } = &mut recorded;
    let calls = input.list(MIN_BYTES_PER_CALL, |input| {
        let call = decode_call(input, &before, values)?;
        before = Before::from_call(&call);
        Ok(call)
    })?;
    Ok(Recorded { calls, ..recorded })
}

/// All that comes before the calls.
pub(crate) fn decode_head(input: &mut Decoder) -> Result<Recorded, ReadError> {
    let dropped = input.number()?;
    let names = input.texts()?;
    let rules = input.list(2, |input| {
        Ok(Rule {
            text: input.text()?,
            kept: input.number()?,
        })
    })?;
    Ok(Recorded {
        rules,
        names,
        dropped,
        ..Recorded::default()
    })
}

/// What a call is told by its difference from.
#[derive(Clone, Copy, Default)]
pub(crate) struct Before {
    id: u64,
    entry_ns: u64,
}

impl Before {
    pub(crate) fn from_call(call: &Call) -> Before {
        Before {
            id: call.id,
            entry_ns: call.entry_ns,
        }
    }
}

/// Nothing is added to `values` unless all of the call is there.
pub(crate) fn decode_call(
    input: &mut Decoder,
    before: &Before,
    values: &mut CallValues,
) -> Result<Call, ReadError> {
    let id = input.difference(before.id)?;
    let (parent, function, rule) = (input.optional()?, FuncId::decode(input)?, input.optional()?);
    let (pid, tid, request) = (input.number32()?, input.number32()?, input.number()?);
    let entry_ns = input.difference(before.entry_ns)?;
    let exit_ns = input.difference(entry_ns)?;
    Ok(Call {
        id,
        parent,
        function,
        rule,
        pid,
        tid,
        request,
        entry_ns,
        exit_ns,
        self_ns: input.number()?,
        waited_ns: input.number()?,
        end: *CallEnd::ALL
            .get(usize::from(input.byte()?))
            .ok_or(ReadError::Corrupt("a call ended in an unknown way"))?,
        values: values.decode(input)?,
    })
}

/// In a section of its own, which older readers pass over.
pub(crate) fn encode_signatures(recorded: &Recorded, out: &mut Encoder) {
    out.number(recorded.signatures.len() as u64);
    for signature in &recorded.signatures {
        out.number(signature.function.into());
        out.text(&signature.text);
    }
}

pub(crate) fn decode_signatures(input: &mut Decoder) -> Result<Vec<Signature>, ReadError> {
    input.list(2, |input| {
        Ok(Signature {
            function: FuncId::decode(input)?,
            text: input.text()?,
        })
    })
}

impl Recorded {
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.calls.is_empty() && self.dropped == 0
    }

    /// Whether every reference leads somewhere; `functions`: how many there are.
    pub(crate) fn is_sound(&self, functions: usize) -> bool {
        let known = |signature: &Signature| signature.function.index() < functions;
        self.signatures.iter().all(known) && self.are_sound(0, functions)
    }

    /// The same for these calls alone, of which the first is the one with this number.
    pub(crate) fn are_sound(&self, first: usize, functions: usize) -> bool {
        let mut calls = (first..).zip(&self.calls);
        calls.all(|(index, call)| {
            call.parent.is_none_or(|parent| (parent as usize) < index)
                && call.function.index() < functions
                && call
                    .rule
                    .is_none_or(|rule| (rule as usize) < self.rules.len())
                && (self.values.at(call.values))
                    .all(|value| (value.name as usize) < self.names.len())
        })
    }

    /// How a function is declared.
    pub fn signature(&self, function: FuncId) -> Option<&str> {
        let found = self
            .signatures
            .binary_search_by_key(&function, |s| s.function);
        Some(&self.signatures.get(found.ok()?)?.text)
    }

    /// The same for the first one, which may be large: nothing is copied.
    fn take_over(&mut self, other: Recorded, later_ns: u64, function: impl Fn(FuncId) -> FuncId) {
        *self = other;
        for call in &mut self.calls {
            call.function = function(call.function);
            call.entry_ns = call.entry_ns.saturating_add(later_ns);
            call.exit_ns = call.exit_ns.saturating_add(later_ns);
        }
        for signature in &mut self.signatures {
            signature.function = function(signature.function);
        }
        self.signatures.sort_by_key(|signature| signature.function);
    }

    /// Takes over what another recording has, which began `later_ns` after this one; `function`
    /// gives its functions' numbers here.
    pub(crate) fn add(
        &mut self,
        other: Recorded,
        later_ns: u64,
        function: impl Fn(FuncId) -> FuncId,
    ) {
        if self.is_empty() && self.names.is_empty() {
            return self.take_over(other, later_ns, function);
        }
        let first = self.calls.len() as u32;
        let beyond = self.calls.iter().map(|call| call.id).max().unwrap_or(0);
        let place = |all: &mut Vec<String>, name: String| {
            let known = all.iter().position(|one| *one == name);
            known.unwrap_or_else(|| {
                all.push(name);
                all.len() - 1
            }) as u32
        };
        let names: Vec<u32> = other
            .names
            .into_iter()
            .map(|name| place(&mut self.names, name))
            .collect();
        let rules: Vec<u32> = other
            .rules
            .into_iter()
            .map(|rule| {
                let known = self.rules.iter().position(|one| one.text == rule.text);
                let index = known.unwrap_or_else(|| {
                    self.rules.push(Rule {
                        kept: 0,
                        ..rule.clone()
                    });
                    self.rules.len() - 1
                });
                self.rules[index].kept += rule.kept;
                index as u32
            })
            .collect();
        for mut call in other.calls {
            call.id = call.id.wrapping_add(beyond);
            call.parent = call.parent.map(|parent| parent + first);
            call.function = function(call.function);
            call.rule = call.rule.and_then(|rule| rules.get(rule as usize).copied());
            call.entry_ns = call.entry_ns.saturating_add(later_ns);
            call.exit_ns = call.exit_ns.saturating_add(later_ns);
            let values = other.values.at(call.values).map(|value| CallValue {
                name: names.get(value.name as usize).copied().unwrap_or(u32::MAX),
                ..value
            });
            call.values = self.values.add(values);
            self.calls.push(call);
        }
        self.dropped += other.dropped;
        for signature in other.signatures {
            let function = function(signature.function);
            let found = self
                .signatures
                .binary_search_by_key(&function, |s| s.function);
            if let Err(place) = found {
                let text = signature.text;
                self.signatures.insert(place, Signature { function, text });
            }
        }
    }
}
