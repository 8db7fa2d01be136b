//! The outside of a profile file: signature, lengths, the body compressed, a checksum over all of it.
//!
//! ```text
//! offset  size
//!      0     8  "\x89thalweg"        the first byte keeps text tools from taking it for text
//!      8     2  format version, 1
//!     10     2  how the body is packed: 0 as it is, 1 zstd
//!     12     8  length of the body when unpacked
//!     20     8  length of the body in the file, n
//!     28     n  body
//!   28+n     8  XXH3-64 of the first 28+n bytes
//! ```
//!
//! Little-endian throughout. A body may unpack to at most [`FREE_BYTES`] + [`MAX_UNPACKED_RATIO`] x its length in the file: a
//! reader refuses more, so that a small hostile file cannot fill the memory, and the writer packs nothing so tightly.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::xxh3_64;

use crate::body;
use crate::error::ReadError;
use crate::profile::Profile;
use crate::validate::Invalid;

const SIGNATURE: [u8; 8] = *b"\x89thalweg";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 28;
const CHECKSUM_BYTES: usize = 8;

const STORED: u16 = 0;
const ZSTD: u16 = 1;

const FREE_BYTES: u64 = 32 << 20;
const MAX_UNPACKED_RATIO: u64 = 200;

/// Level 6 makes files 3.5 % smaller in two and a half times the time, for which whoever records a short command waits; higher
/// ones were under 2 % smaller again, and many times slower, on trees of a million nodes.
const LEVEL: i32 = 3;
/// Names of 130,000 functions took 0.25 s of processor time at the level above.
const QUICK_LEVEL: i32 = -3;

/// The bytes of a profile's file, or why this profile could not be read back from them.
pub fn write(profile: &Profile) -> Result<Vec<u8>, Invalid> {
    profile.validate()?;
    Ok(pack(&body::encode(profile), LEVEL))
}

/// The same for what is read again soon, and by us: larger, and far quicker to pack.
pub fn write_quickly(profile: &Profile) -> Result<Vec<u8>, Invalid> {
    profile.validate()?;
    Ok(pack(&body::encode(profile), QUICK_LEVEL))
}

/// Reads one profile, which must be all that `input` holds.
pub fn read(input: &mut impl Read) -> Result<Profile, ReadError> {
    let profile = body::decode(&unpack(input)?)?;
    profile.validate()?;
    Ok(profile)
}

/// A file whose checksum is right, still packed.
pub(crate) struct Packed {
    file: Vec<u8>,
    packing: u16,
    unpacked_length: u64,
}

fn pack(body: &[Vec<u8>], level: i32) -> Vec<u8> {
    let length = body.iter().map(|piece| piece.len() as u64).sum();
    let zstd = compress(body, length, level)
        .ok()
        .filter(|packed| length <= most_unpacked(packed.len() as u64));
    let (packing, packed) = match &zstd {
        Some(packed) => (ZSTD, std::slice::from_ref(packed)),
        None => (STORED, body),
    };
    let packed_length: usize = packed.iter().map(Vec::len).sum();
    let mut file = Vec::with_capacity(HEADER_BYTES + packed_length + CHECKSUM_BYTES);
    file.extend_from_slice(&SIGNATURE);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&packing.to_le_bytes());
    file.extend_from_slice(&length.to_le_bytes());
    file.extend_from_slice(&(packed_length as u64).to_le_bytes());
    packed
        .iter()
        .for_each(|piece| file.extend_from_slice(piece));
    file.extend_from_slice(&xxh3_64(&file).to_le_bytes());
    file
}

fn compress(body: &[Vec<u8>], length: u64, level: i32) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level)?;
    encoder.set_pledged_src_size(Some(length))?;
    for piece in body {
        encoder.write_all(piece)?;
    }
    encoder.finish()
}

fn unpack(input: &mut impl Read) -> Result<Vec<u8>, ReadError> {
    Packed::read(input)?.body()
}

impl Packed {
    pub(crate) fn read(input: &mut impl Read) -> Result<Packed, ReadError> {
        let mut file = read_at_most(input, HEADER_BYTES as u64)?;
        if !file.starts_with(&SIGNATURE[..file.len().min(SIGNATURE.len())]) || file.is_empty() {
            return Err(ReadError::NotAProfile);
        }
        if file.len() < HEADER_BYTES {
            return Err(ReadError::Truncated);
        }
        let version = u16::from_le_bytes([file[8], file[9]]);
        if version != VERSION {
            return Err(ReadError::Version {
                found: version,
                known: VERSION,
            });
        }
        let packing = u16::from_le_bytes([file[10], file[11]]);
        let unpacked_length = long(&file[12..20]);
        let packed_length = long(&file[20..28]);
        if unpacked_length > most_unpacked(packed_length) {
            return Err(ReadError::TooLarge("the body"));
        }

        let rest = packed_length.saturating_add(CHECKSUM_BYTES as u64);
        file.append(&mut read_at_most(input, rest)?);
        if ((file.len() - HEADER_BYTES) as u64) < rest {
            return Err(ReadError::Truncated);
        }
        if !read_at_most(input, 1)?.is_empty() {
            return Err(ReadError::TrailingBytes);
        }
        let (checked, checksum) = file.split_at(file.len() - CHECKSUM_BYTES);
        if xxh3_64(checked) != long(checksum) {
            return Err(ReadError::Checksum);
        }

        file.truncate(file.len() - CHECKSUM_BYTES);
        Ok(Packed {
            file,
            packing,
            unpacked_length,
        })
    }

    fn body(self) -> Result<Vec<u8>, ReadError> {
        let packed = &self.file[HEADER_BYTES..];
        let body = match self.packing {
            STORED => packed.to_vec(),
            ZSTD => unpack_zstd(packed, self.unpacked_length)?,
            _ => return Err(UNKNOWN_PACKING),
        };
        if body.len() as u64 != self.unpacked_length {
            return Err(ReadError::Corrupt(
                "the body has another length than stated",
            ));
        }
        Ok(body)
    }

    /// The body from its beginning on, unpacked as it is read; and how long it is at most.
    pub(crate) fn reader(&self) -> Result<(Box<dyn Read + '_>, u64), ReadError> {
        let packed = &self.file[HEADER_BYTES..];
        let reader: Box<dyn Read> = match self.packing {
            STORED => Box::new(packed),
            ZSTD => Box::new(zstd::stream::read::Decoder::with_buffer(packed)?),
            _ => return Err(UNKNOWN_PACKING),
        };
        Ok((
            Box::new(reader.take(self.unpacked_length)),
            self.unpacked_length,
        ))
    }
}

const UNKNOWN_PACKING: ReadError = ReadError::Corrupt("it is packed in an unknown way");

/// Grows with what is really there, whatever the lengths claim.
fn read_at_most(input: &mut impl Read, limit: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    input.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unpack_zstd(packed: &[u8], unpacked_length: u64) -> Result<Vec<u8>, ReadError> {
    let decoder = zstd::stream::read::Decoder::with_buffer(packed)?;
    let mut body = Vec::new();
    decoder
        .take(unpacked_length.saturating_add(1))
        .read_to_end(&mut body)
        .map_err(|_| ReadError::Corrupt("the body cannot be unpacked"))?;
    Ok(body)
}

fn most_unpacked(packed_length: u64) -> u64 {
    packed_length
        .saturating_mul(MAX_UNPACKED_RATIO)
        .saturating_add(FREE_BYTES)
}

fn long(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

/// For callers that have a stream rather than a name.
impl Profile {
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let bytes =
            write(self).map_err(|invalid| io::Error::new(io::ErrorKind::InvalidData, invalid))?;
        out.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_packs_too_tightly_is_stored_and_comes_back() {
        let body = vec![0; FREE_BYTES as usize + (1 << 20)];
        let file = pack(std::slice::from_ref(&body), LEVEL);
        assert_eq!(file[10], STORED as u8);
        assert_eq!(unpack(&mut file.as_slice()).unwrap(), body);
    }

    #[test]
    fn a_small_file_that_would_unpack_to_very_much_is_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], LEVEL).unwrap();
        for claimed in [64 << 20, 100] {
            let mut file = Vec::new();
            file.extend_from_slice(&SIGNATURE);
            file.extend_from_slice(&VERSION.to_le_bytes());
            file.extend_from_slice(&ZSTD.to_le_bytes());
            file.extend_from_slice(&u64::to_le_bytes(claimed));
            file.extend_from_slice(&(bomb.len() as u64).to_le_bytes());
            file.extend_from_slice(&bomb);
            file.extend_from_slice(&xxh3_64(&file).to_le_bytes());
            assert!(unpack(&mut file.as_slice()).is_err());
        }
    }

    #[test]
    fn a_header_that_claims_a_huge_body_costs_nothing() {
        let mut file = pack(&[], LEVEL);
        file[12..20].copy_from_slice(&u64::MAX.to_le_bytes());
        file[20..28].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(
            unpack(&mut file.as_slice()),
            Err(ReadError::Truncated)
        ));
    }
}
