//! The recorded calls of a file, some at a time: there may be millions of them, and who lists them
//! needs one after the other.
//!
//! ```text
//! first   what calls refer to: functions, modules, threads, rules; it lies before and behind the calls, which are passed over
//! then    block after block of calls, unpacked as they are read
//! ```
//!
//! The file itself is read as a whole and its checksum compared before anything of it is believed:
//! packed it is a small part of what it holds.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::body::{self, tag};
use crate::calls::{self, Before, MIN_BYTES_PER_CALL};
use crate::codec::{Decoder, Encoder};
use crate::container::Packed;
use crate::error::{FileError, ReadError};
use crate::profile::Profile;

/// How many calls are there at once.
const BLOCK: usize = 4096;
/// How much is unpacked at once.
const WINDOW: usize = 64 << 10;

/// What calls refer to.
const NEEDED: [u64; 8] = [
    tag::META,
    tag::MODULES,
    tag::FUNCTIONS,
    tag::FUNCTIONS_THAT_WAIT,
    tag::FUNCTIONS_AT_LEAST,
    tag::LANGUAGES,
    tag::PROCESSES,
    tag::SIGNATURES,
];

/// A file with recorded calls.
pub struct CallFile {
    packed: Packed,
    profile: Profile,
}

/// Some calls of a file.
pub struct CallBlock<'a> {
    /// Without contexts; its recorded calls are those of this block.
    pub profile: &'a Profile,
    /// Of all calls up to the last one of the block: what [`crate::Call::parent`] is an index of.
    pub ids: &'a [u64],
}

impl CallFile {
    pub fn open(path: impl AsRef<Path>) -> Result<CallFile, FileError> {
        let path = path.as_ref();
        File::open(path)
            .map_err(ReadError::Io)
            .and_then(|mut file| CallFile::read(&mut file))
            .map_err(|source| FileError::Read {
                path: path.to_owned(),
                source,
            })
    }

    pub fn read(input: &mut impl Read) -> Result<CallFile, ReadError> {
        let packed = Packed::read(input)?;
        let mut needed = Vec::new();
        let mut head = None;
        sections(&packed, |tag, section| {
            if tag == tag::CALLS {
                head = Some(section.decode(calls::decode_head)?);
            } else if NEEDED.contains(&tag) {
                let bytes = section.rest()?;
                let mut out = Encoder::onto(std::mem::take(&mut needed));
                out.number(tag);
                out.number(bytes.len() as u64);
                out.raw(&bytes);
                needed = out.into_bytes();
            }
            Ok(true)
        })?;
        let mut profile = body::decode(&needed)?;
        profile.validate()?;
        for process in &mut profile.processes {
            for thread in &mut process.threads {
                thread.nodes = Vec::new();
            }
        }
        if let Some(head) = head {
            let signatures = std::mem::take(&mut profile.recorded.signatures);
            profile.recorded = calls::Recorded { signatures, ..head };
        }
        Ok(CallFile { packed, profile })
    }

    /// What calls refer to, without any.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Hands over all calls in their order, until `each` fails.
    pub fn for_each_block<E: From<ReadError>>(
        &mut self,
        mut each: impl FnMut(CallBlock) -> Result<(), E>,
    ) -> Result<(), E> {
        let CallFile { packed, profile } = self;
        let functions = profile.functions.len();
        let mut ids = Vec::new();
        let mut failed = None;
        sections(packed, |tag, section| {
            if tag != tag::CALLS {
                return Ok(true);
            }
            section.decode(calls::decode_head)?;
            let mut left = section.decode(|input| input.number())?;
            if left > section.length / MIN_BYTES_PER_CALL as u64 {
                return Err(ReadError::TooLarge("a list"));
            }
            let mut before = Before::default();
            while left > 0 {
                let first = ids.len();
                let recorded = &mut profile.recorded;
                recorded.calls.clear();
                recorded.values.clear();
                for _ in 0..left.min(BLOCK as u64) {
                    let values = &mut recorded.values;
                    let call =
                        section.decode(|input| calls::decode_call(input, &before, values))?;
                    before = Before::from_call(&call);
                    ids.push(call.id);
                    recorded.calls.push(call);
                }
                left -= recorded.calls.len() as u64;
                if !recorded.are_sound(first, functions) {
                    return Err(ReadError::Corrupt(
                        "a recorded call refers to something that is not there",
                    ));
                }
                let block = CallBlock {
                    profile: &*profile,
                    ids: &ids,
                };
                if let Err(error) = each(block) {
                    failed = Some(error);
                    return Ok(false);
                }
            }
            Ok(false)
        })?;
        failed.map_or(Ok(()), Err)
    }
}

/// Hands over the sections of a body, one after the other, until `each` has seen enough.
fn sections(
    packed: &Packed,
    mut each: impl FnMut(u64, &mut Section) -> Result<bool, ReadError>,
) -> Result<(), ReadError> {
    let (mut reader, mut left) = packed.reader()?;
    while left > 0 {
        let tag = number(&mut reader, &mut left)?;
        let length = number(&mut reader, &mut left)?;
        left = left
            .checked_sub(length)
            .ok_or(ReadError::TooLarge("a list"))?;
        let mut section = Section {
            reader: (&mut *reader as &mut dyn Read).take(length),
            length,
            window: Vec::new(),
            at: 0,
        };
        if !each(tag, &mut section)? {
            return Ok(());
        }
        let passed = io::copy(&mut section.reader, &mut io::sink());
        passed.map_err(|_| CANNOT_UNPACK)?;
        if section.reader.limit() > 0 {
            return Err(ReadError::Corrupt("a part of it is missing"));
        }
    }
    Ok(())
}

const CANNOT_UNPACK: ReadError = ReadError::Corrupt("the body cannot be unpacked");

fn number(reader: &mut impl Read, left: &mut u64) -> Result<u64, ReadError> {
    let mut bytes = Vec::new();
    loop {
        let mut byte = [0];
        reader.read_exact(&mut byte).map_err(|_| CANNOT_UNPACK)?;
        *left = left.saturating_sub(1);
        bytes.push(byte[0]);
        if byte[0] < 0x80 || bytes.len() > 10 {
            return Decoder::new(&bytes).number();
        }
    }
}

/// One section of a body, of which a part is unpacked.
struct Section<'a> {
    reader: io::Take<&'a mut dyn Read>,
    length: u64,
    window: Vec<u8>,
    /// What of it has been decoded.
    at: usize,
}

impl Section<'_> {
    /// Decodes what comes next. What is cut off by the end of the window is decoded again with more
    /// of it.
    fn decode<T>(
        &mut self,
        mut element: impl FnMut(&mut Decoder) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        loop {
            let mut input = Decoder::new(&self.window[self.at..]);
            match element(&mut input) {
                Ok(value) => {
                    self.at = self.window.len() - input.rest().len();
                    return Ok(value);
                }
                Err(error) if self.reader.limit() == 0 => return Err(error),
                Err(_) => self.widen()?,
            }
        }
    }

    fn widen(&mut self) -> Result<(), ReadError> {
        self.window.drain(..self.at);
        self.at = 0;
        let more = self.window.len().max(WINDOW) as u64;
        let mut part = self.reader.by_ref().take(more);
        let read = part.read_to_end(&mut self.window);
        match read.map_err(|_| CANNOT_UNPACK)? {
            0 => Err(ReadError::Corrupt("a part of it is missing")),
            _ => Ok(()),
        }
    }

    /// All of it that has not been decoded.
    fn rest(&mut self) -> Result<Vec<u8>, ReadError> {
        let mut bytes = self.window.split_off(self.at);
        let read = self.reader.read_to_end(&mut bytes);
        read.map_err(|_| CANNOT_UNPACK)?;
        Ok(bytes)
    }
}
