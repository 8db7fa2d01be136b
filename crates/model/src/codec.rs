//! Innermost layer of the file format: numbers and strings as bytes, and back without trusting them.
//!
//! varint: seven bits a byte, low bits first, top bit = another byte follows (LEB128).
//! signed: zigzag(d) = (d << 1) ^ (d >> 63), then varint, so that small differences of either sign are short.

use crate::error::ReadError;

#[derive(Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// Goes on behind what is there.
    pub fn onto(bytes: Vec<u8>) -> Encoder {
        Encoder { bytes }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// `value - predicted`, wrapping, so that any pair of numbers has a difference.
    pub fn difference(&mut self, value: u64, predicted: u64) {
        let difference = value.wrapping_sub(predicted) as i64;
        self.number(((difference << 1) ^ (difference >> 63)) as u64);
    }

    pub fn float(&mut self, value: f64) {
        self.raw(&value.to_le_bytes());
    }

    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.raw(text.as_bytes());
    }

    pub fn texts(&mut self, texts: &[String]) {
        self.number(texts.len() as u64);
        texts.iter().for_each(|text| self.text(text));
    }

    /// `None` is 0, `Some(n)` is n + 1.
    pub fn optional(&mut self, value: Option<u32>) {
        self.number(value.map_or(0, |value| u64::from(value) + 1));
    }
}

pub struct Decoder<'a> {
    bytes: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { bytes }
    }

    pub fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is still to be read.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn raw(&mut self, length: usize) -> Result<&'a [u8], ReadError> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(length)
            .ok_or(ReadError::Corrupt("a part of it is missing"))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, ReadError> {
        Ok(self.raw(1)?[0])
    }

    /// Most numbers are small, and a large profile has a hundred million: one byte is read without ado.
    #[inline]
    pub fn number(&mut self) -> Result<u64, ReadError> {
        match self.bytes {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.bytes = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_number(),
        }
    }

    fn long_number(&mut self) -> Result<u64, ReadError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(ReadError::Corrupt("a number has more than 64 bits"))
    }

    /// Of the node `index` of a tree in which parents come first: how far before it its parent is, 0 for none.
    pub fn parent(&mut self, index: usize) -> Result<Option<u32>, ReadError> {
        match self.number()? {
            0 => Ok(None),
            up => (index as u64)
                .checked_sub(up)
                .and_then(|parent| u32::try_from(parent).ok())
                .map(Some)
                .ok_or(ReadError::Corrupt("a parent does not precede its child")),
        }
    }

    pub fn number32(&mut self) -> Result<u32, ReadError> {
        let value = self.number()?;
        u32::try_from(value).map_err(|_| ReadError::Corrupt("a number has more than 32 bits"))
    }

    pub fn difference(&mut self, predicted: u64) -> Result<u64, ReadError> {
        let zigzag = self.number()?;
        let difference = (zigzag >> 1) ^ (zigzag & 1).wrapping_neg();
        Ok(predicted.wrapping_add(difference))
    }

    pub fn float(&mut self) -> Result<f64, ReadError> {
        let bytes = self.raw(8)?.try_into().expect("raw(8) gives eight bytes");
        Ok(f64::from_le_bytes(bytes))
    }

    pub fn boolean(&mut self) -> Result<bool, ReadError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ReadError::Corrupt("a yes or no is neither")),
        }
    }

    pub fn text(&mut self) -> Result<String, ReadError> {
        self.text_in_place().map(str::to_owned)
    }

    pub fn text_in_place(&mut self) -> Result<&'a str, ReadError> {
        let length = self.count(1)?;
        std::str::from_utf8(self.raw(length)?)
            .map_err(|_| ReadError::Corrupt("a text is not UTF-8"))
    }

    pub fn texts(&mut self) -> Result<Vec<String>, ReadError> {
        self.list(1, Decoder::text)
    }

    pub fn optional(&mut self) -> Result<Option<u32>, ReadError> {
        match self.number()? {
            0 => Ok(None),
            more => u32::try_from(more - 1)
                .map(Some)
                .map_err(|_| ReadError::Corrupt("a number has more than 32 bits")),
        }
    }

    /// How many elements follow. No more are believed than the bytes that are left can hold, so that what
    /// is allocated for them stays in proportion to the file.
    pub fn count(&mut self, least_bytes_each: usize) -> Result<usize, ReadError> {
        let claimed = self.number()?;
        let possible = self.bytes.len() / least_bytes_each;
        match usize::try_from(claimed) {
            Ok(count) if count <= possible => Ok(count),
            _ => Err(ReadError::TooLarge("a list")),
        }
    }

    pub fn list<T>(
        &mut self,
        least_bytes_each: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, ReadError>,
    ) -> Result<Vec<T>, ReadError> {
        let count = self.count(least_bytes_each)?;
        (0..count).map(|_| element(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [u64; 8] = [0, 1, 127, 128, 16383, 1 << 32, u64::MAX - 1, u64::MAX];

    #[test]
    fn every_number_and_difference_comes_back() {
        let mut encoder = Encoder::default();
        for a in EDGES {
            encoder.number(a);
            EDGES.iter().for_each(|&b| encoder.difference(a, b));
        }
        let bytes = encoder.into_bytes();
        let mut decoder = Decoder::new(&bytes);
        for a in EDGES {
            assert_eq!(decoder.number().unwrap(), a);
            for b in EDGES {
                assert_eq!(decoder.difference(b).unwrap(), a);
            }
        }
        assert!(decoder.is_at_end());
    }

    #[test]
    fn a_difference_of_a_few_takes_one_byte_in_either_direction() {
        for predicted in [100, 163, 37] {
            let mut encoder = Encoder::default();
            encoder.difference(100, predicted);
            assert_eq!(encoder.into_bytes().len(), 1);
        }
    }

    #[test]
    fn a_number_of_more_than_64_bits_is_refused() {
        let too_long = [0xff; 11];
        assert!(Decoder::new(&too_long).number().is_err());
        let too_big = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert!(Decoder::new(&too_big).number().is_err());
    }

    #[test]
    fn a_list_longer_than_the_bytes_that_are_left_is_refused_before_it_is_allocated() {
        let mut encoder = Encoder::default();
        encoder.number(1 << 60);
        encoder.raw(&[0; 100]);
        let bytes = encoder.into_bytes();
        assert!(matches!(
            Decoder::new(&bytes).texts(),
            Err(ReadError::TooLarge(_))
        ));
    }
}
