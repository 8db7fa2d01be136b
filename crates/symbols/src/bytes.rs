//! Bounds-checked little-endian reads: every byte of an ELF file comes from somebody else.

pub(crate) fn slice(data: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(len).ok()?)?;
    data.get(start..end)
}

pub(crate) fn u16_at(data: &[u8], offset: usize) -> Option<u16> {
    let end = offset.checked_add(2)?;
    Some(u16::from_le_bytes(data.get(offset..end)?.try_into().ok()?))
}

pub(crate) fn u32_at(data: &[u8], offset: usize) -> Option<u32> {
    let end = offset.checked_add(4)?;
    Some(u32::from_le_bytes(data.get(offset..end)?.try_into().ok()?))
}

pub(crate) fn u64_at(data: &[u8], offset: usize) -> Option<u64> {
    let end = offset.checked_add(8)?;
    Some(u64::from_le_bytes(data.get(offset..end)?.try_into().ok()?))
}

/// The NUL-terminated string at `offset`, at most `limit` bytes long; `None` where there is no terminator.
pub(crate) fn c_string(data: &[u8], offset: usize, limit: usize) -> Option<&[u8]> {
    let rest = data.get(offset..)?;
    let window = &rest[..rest.len().min(limit)];
    let len = window.iter().position(|&b| b == 0)?;
    Some(&window[..len])
}

/// Reads forward through a byte slice; every read past the end is `None`.
pub(crate) struct Cursor<'d> {
    data: &'d [u8],
    pub(crate) position: usize,
}

impl<'d> Cursor<'d> {
    pub(crate) fn new(data: &'d [u8]) -> Self {
        Cursor { data, position: 0 }
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let value = *self.data.get(self.position)?;
        self.position += 1;
        Some(value)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        let value = u16_at(self.data, self.position)?;
        self.position += 2;
        Some(value)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let value = u32_at(self.data, self.position)?;
        self.position += 4;
        Some(value)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let value = u64_at(self.data, self.position)?;
        self.position += 8;
        Some(value)
    }

    pub(crate) fn uleb128(&mut self) -> Option<u64> {
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    pub(crate) fn sleb128(&mut self) -> Option<i64> {
        let mut value = 0i64;
        let mut shift = 0u32;
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= i64::from(byte & 0x7f) << shift;
            }
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                if shift < 64 && byte & 0x40 != 0 {
                    value |= -1i64 << shift;
                }
                return Some(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leb128_reads_the_standard_examples() {
        assert_eq!(Cursor::new(&[0xe5, 0x8e, 0x26]).uleb128(), Some(624_485));
        assert_eq!(Cursor::new(&[0x9b, 0xf1, 0x59]).sleb128(), Some(-624_485));
        assert_eq!(Cursor::new(&[0x80]).uleb128(), None);
    }

    #[test]
    fn reads_past_the_end_are_none() {
        assert_eq!(u64_at(&[0; 7], 0), None);
        assert_eq!(u32_at(&[0; 7], usize::MAX), None);
        assert_eq!(slice(&[0; 7], 4, u64::MAX), None);
        assert_eq!(c_string(b"abc", 0, 100), None);
        assert_eq!(c_string(b"abc\0", 1, 100), Some(&b"bc"[..]));
    }
}
