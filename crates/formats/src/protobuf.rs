//! The wire form of protocol buffers, as much of it as pprof and OTLP need.
//!
//! ```text
//! field   = key value           key = number << 3 | wire type
//! type 0  = varint              type 1 = 8 bytes    type 2 = length, bytes    type 5 = 4 bytes
//! ```
//!
//! Written by hand, since two dozen fields in all do not pay for a code generator, and since a reader that keeps
//! nothing but slices of its input cannot be made to allocate.

/// A message in the making. Fields that have the default value are left out, as the format wants it.
#[derive(Clone, Debug, Default)]
pub struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub fn new() -> Message {
        Message::default()
    }

    pub fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, 0);
            self.varint(value);
        }
    }

    pub fn fixed64(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, 1);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// One of several alternatives, which is there even when it is 0.
    pub fn present_number(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    /// The same.
    pub fn boolean(&mut self, field: u32, value: bool) {
        self.present_number(field, value.into());
    }

    /// The same.
    pub fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn text(&mut self, field: u32, value: &str) {
        if !value.is_empty() {
            self.element(field, value.as_bytes());
        }
    }

    /// An element of a repeated field, or a message: there even when empty.
    pub fn element(&mut self, field: u32, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    pub fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::new();
        fill(&mut inner);
        self.element(field, &inner.bytes);
    }

    /// A repeated field of numbers, packed; zeros among them stay.
    pub fn numbers(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let mut inner = Message::new();
        for value in values {
            inner.varint(value);
        }
        if !inner.bytes.is_empty() {
            self.element(field, &inner.bytes);
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    fn key(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a valid protocol buffer, or it is cut off")]
pub struct Malformed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn number(self) -> Result<u64, Malformed> {
        match self {
            Value::Number(value) => Ok(value),
            Value::Bytes(_) => Err(Malformed),
        }
    }

    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) => Err(Malformed),
        }
    }

    /// A repeated field of numbers, which may come packed or one by one.
    pub fn append_to(self, numbers: &mut Vec<u64>) -> Result<(), Malformed> {
        match self {
            Value::Number(value) => numbers.push(value),
            Value::Bytes(mut bytes) => {
                while !bytes.is_empty() {
                    numbers.push(varint(&mut bytes)?);
                }
            }
        }
        Ok(())
    }
}

/// The fields of a message, in the order in which they stand there.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(&mut self.0);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Value<'a>), Malformed> {
    let key = varint(bytes)?;
    let number = u32::try_from(key >> 3).map_err(|_| Malformed)?;
    let value = match key & 7 {
        0 => Value::Number(varint(bytes)?),
        1 => Value::Number(fixed(take(bytes, 8)?)),
        2 => {
            let length = varint(bytes)?;
            Value::Bytes(take(
                bytes,
                usize::try_from(length).map_err(|_| Malformed)?,
            )?)
        }
        5 => Value::Number(fixed(take(bytes, 4)?)),
        _ => return Err(Malformed),
    };
    Ok((number, value))
}

fn fixed(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], Malformed> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or(Malformed)?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Malformed)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut message = Message::new();
        message.number(1, 300);
        message.number(2, 0);
        message.text(3, "name");
        message.numbers(4, [0, 1, u64::MAX]);
        message.fixed64(5, 7);
        let fields: Result<Vec<_>, _> = Fields(message.as_bytes()).collect();
        let fields = fields.unwrap();
        let numbers: Vec<u32> = fields.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 3, 4, 5], "defaults are left out");
        assert_eq!(fields[0].1, Value::Number(300));
        assert_eq!(fields[1].1, Value::Bytes(b"name"));
        let mut packed = Vec::new();
        fields[2].1.append_to(&mut packed).unwrap();
        assert_eq!(packed, [0, 1, u64::MAX]);
        assert_eq!(fields[3].1, Value::Number(7));
    }

    #[test]
    fn a_message_that_promises_more_than_it_has_is_refused() {
        for bytes in [&[0x0a][..], &[0x0a, 5, 1], &[0xff; 11], &[0x0b], &[9, 1]] {
            assert!(Fields(bytes).any(|field| field.is_err()), "{bytes:x?}");
        }
    }
}
