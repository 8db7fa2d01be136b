//! The bytes of one patch, in place: a large program has hundreds of thousands of patches, and a
//! piece of memory of its own for each took a tenth of the time in which they are made.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// At most as many bytes as the longest instruction and a prefix have.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PatchBytes {
    len: u8,
    /// Zero behind the first `len`.
    bytes: [u8; PatchBytes::MOST],
}

impl PatchBytes {
    pub const MOST: usize = 16;

    /// `None` for more than fit.
    pub fn new(bytes: &[u8]) -> Option<PatchBytes> {
        let mut all = PatchBytes::default();
        all.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        all.len = bytes.len() as u8;
        Some(all)
    }
}

impl Deref for PatchBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl DerefMut for PatchBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..usize::from(self.len)]
    }
}

impl<const N: usize> From<[u8; N]> for PatchBytes {
    fn from(bytes: [u8; N]) -> PatchBytes {
        const { assert!(N <= PatchBytes::MOST) };
        let mut all = PatchBytes::default();
        all.bytes[..N].copy_from_slice(&bytes);
        all.len = N as u8;
        all
    }
}

impl<const N: usize> PartialEq<[u8; N]> for PatchBytes {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == other[..]
    }
}

impl fmt::Debug for PatchBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_as_fit_are_kept_and_no_more() {
        let all: Vec<u8> = (1..=16).collect();
        for len in 0..=16 {
            assert_eq!(*PatchBytes::new(&all[..len]).unwrap(), all[..len]);
        }
        assert_eq!(PatchBytes::new(&[0; 17]), None);
        assert_eq!(
            PatchBytes::from([0xe9, 1]),
            PatchBytes::new(&[0xe9, 1]).unwrap()
        );
    }
}
