//! Other tools' data as a profile, so that it can be looked at, merged and compared like one of
//! ours.
//!
//! Beginning of the way for what thalweg did not measure: file -> importer -> `Trees` ->
//! [`Profile`]. Such a profile keeps to what its source knew, and its notes say what that was:
//! samples are not calls, costs that are no times are shown in the columns of times, one for one
//! nanosecond.
//!
//! Nothing in a file is believed: no importer panics, none recurses, none allocates by a number it
//! read, and all stop at the limits below.

mod callgrind;
mod chrome;
mod folded;
mod perf_script;
mod pprof;
mod trees;

use std::io::{BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use thalweg_model::Profile;

/// Of a file that is read as it is.
const MAX_BYTES: u64 = 4 << 30;
/// Of what a gzipped one unpacks to: a thousand times its size is easily had, so that its size says
/// nothing.
const MAX_UNPACKED: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Pprof,
    Callgrind,
    Folded,
    PerfScript,
    Chrome,
}

/// What one of a folded stack's counts is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Samples,
    Nanoseconds,
    Microseconds,
    Milliseconds,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    #[error("line {line}: {what}")]
    Line { line: usize, what: String },
    #[error("{0}")]
    Malformed(String),
    #[error("it has more than {0}, which thalweg does not import")]
    TooLarge(&'static str),
    #[error(
        "it unpacks to more than 1 GiB: if that is as it should be, import what gunzip makes of it"
    )]
    Bomb,
    #[error(
        "it looks like none of pprof, callgrind, folded stacks, perf script and Chrome's traces: name the format with --format"
    )]
    UnknownFormat,
    #[error("it contains no stacks and no costs")]
    Empty,
}

impl From<crate::protobuf::Malformed> for ImportError {
    fn from(error: crate::protobuf::Malformed) -> ImportError {
        ImportError::Malformed(error.to_string())
    }
}

/// Reads a whole file, gzipped or not. Without a format it is guessed from how the file begins.
pub fn read(
    input: impl Read,
    format: Option<Format>,
    unit: Unit,
) -> Result<(Format, Profile), ImportError> {
    let bytes = unpacked(input)?;
    let format = match format {
        Some(format) => format,
        None => guess(&bytes).ok_or(ImportError::UnknownFormat)?,
    };
    let text = || String::from_utf8_lossy(&bytes);
    let profile = match format {
        Format::Pprof => pprof::read(&bytes)?,
        Format::Callgrind => callgrind::read(&text())?,
        Format::Folded => folded::read(&text(), unit)?,
        Format::PerfScript => perf_script::read(&text())?,
        Format::Chrome => chrome::read(&text())?,
    };
    // What follows indexes without asking.
    profile
        .validate()
        .map_err(|invalid| ImportError::Malformed(invalid.to_string()))?;
    Ok((format, profile))
}

fn unpacked(input: impl Read) -> Result<Vec<u8>, ImportError> {
    let mut input = BufReader::new(input);
    let mut bytes = Vec::new();
    if input.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        let plain = MultiGzDecoder::new(input);
        plain.take(MAX_UNPACKED + 1).read_to_end(&mut bytes)?;
        return match bytes.len() as u64 > MAX_UNPACKED {
            true => Err(ImportError::Bomb),
            false => Ok(bytes),
        };
    }
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_BYTES {
        true => Err(ImportError::TooLarge("4 GiB")),
        false => Ok(bytes),
    }
}

fn guess(bytes: &[u8]) -> Option<Format> {
    let head = &bytes[..bytes.len().min(64 * 1024)];
    let text = String::from_utf8_lossy(head);
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    // Text has no control characters, a protocol buffer always has.
    let is_text = |byte: &u8| *byte >= 0x20 || b"\t\n\r".contains(byte);
    if !head.iter().all(is_text) {
        return pprof::looks_like_it(bytes).then_some(Format::Pprof);
    }
    if chrome::looks_like_it(&text) {
        return Some(Format::Chrome);
    }
    let first = lines().next()?;
    if first.starts_with("# callgrind format")
        || lines().take(40).any(|line| line.starts_with("events:"))
    {
        return Some(Format::Callgrind);
    }
    let content = || lines().filter(|line| !line.starts_with('#'));
    if content()
        .nth(1)
        .is_some_and(|line| line.starts_with(['\t', ' ']))
    {
        return Some(Format::PerfScript);
    }
    content()
        .next()
        .and_then(folded::split)
        .map(|_| Format::Folded)
}
