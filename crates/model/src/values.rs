//! What rules have read of recorded calls: of all calls together in one string of bytes, as it
//! stands in the file, since there may be millions of them with a few short values each.
//!
//! ```text
//! of a call: how many, then of each: name, 1 if it was read when the call began, length of its JSON, JSON
//! ```

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;

/// Something that a rule has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallValue<'a> {
    /// Index into [`crate::Recorded::names`].
    pub name: u32,
    /// When the call began, as opposed to when it ended.
    pub at_entry: bool,
    pub json: &'a str,
}

/// The values of all calls of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallValues {
    bytes: Vec<u8>,
}

/// Where those of one call are: 0 if it has none, and otherwise one more than where they begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValuesAt(u64);

/// A byte for each field of a value.
const MIN_BYTES_EACH: usize = 3;

impl CallValues {
    pub fn add<'a>(&mut self, values: impl IntoIterator<Item = CallValue<'a>>) -> ValuesAt {
        let values: Vec<CallValue> = values.into_iter().collect();
        if values.is_empty() {
            return ValuesAt::default();
        }
        let at = self.next();
        let mut out = Encoder::onto(std::mem::take(&mut self.bytes));
        encode(&values, &mut out);
        self.bytes = out.into_bytes();
        at
    }

    /// Forgets all of them; what refers to them is void.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    fn next(&self) -> ValuesAt {
        ValuesAt(self.bytes.len() as u64 + 1)
    }

    pub fn at(&self, at: ValuesAt) -> impl Iterator<Item = CallValue<'_>> {
        let mut input = self.decoder(at);
        let count = input.as_mut().and_then(|input| input.number().ok());
        (0..count.unwrap_or(0)).map_while(move |_| value(input.as_mut()?).ok())
    }

    fn decoder(&self, at: ValuesAt) -> Option<Decoder<'_>> {
        let start = usize::try_from(at.0.checked_sub(1)?).ok()?;
        self.bytes.get(start..).map(Decoder::new)
    }

    /// Those of one call, into a file.
    pub(crate) fn encode(&self, at: ValuesAt, out: &mut Encoder) {
        let values: Vec<CallValue> = self.at(at).collect();
        encode(&values, out);
    }

    /// Those of one call, out of a file.
    pub(crate) fn decode(&mut self, input: &mut Decoder) -> Result<ValuesAt, ReadError> {
        let before = input.rest();
        let count = input.count(MIN_BYTES_EACH)?;
        for _ in 0..count {
            value(input)?;
        }
        if count == 0 {
            return Ok(ValuesAt::default());
        }
        let at = self.next();
        let taken = before.len() - input.rest().len();
        self.bytes.extend_from_slice(&before[..taken]);
        Ok(at)
    }
}

fn encode(values: &[CallValue], out: &mut Encoder) {
    out.number(values.len() as u64);
    for value in values {
        out.number(value.name.into());
        out.byte(value.at_entry.into());
        out.text(value.json);
    }
}

fn value<'a>(input: &mut Decoder<'a>) -> Result<CallValue<'a>, ReadError> {
    Ok(CallValue {
        name: input.number32()?,
        at_entry: input.boolean()?,
        json: input.text_in_place()?,
    })
}
