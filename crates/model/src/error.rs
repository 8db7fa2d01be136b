//! What can go wrong between a profile and its file.

use std::io;
use std::path::PathBuf;

use crate::validate::Invalid;

/// A file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: ReadError },

    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },

    /// Ours, not the user's: the profile contradicts itself, and a file of it could not be read
    /// back.
    #[error("cannot write {}: the profile is inconsistent", path.display())]
    Inconsistent { path: PathBuf, source: Invalid },
}

/// Bytes that are not a profile, or not a whole one.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),

    #[error("this is not a thalweg profile (it does not begin with the profile's signature)")]
    NotAProfile,

    #[error(
        "the profile has format {found}, this thalweg reads format {known}; use the version that wrote it"
    )]
    Version { found: u16, known: u16 },

    #[error("the file ends too early: it was cut off, record again or copy it again")]
    Truncated,

    #[error("the file goes on behind the end of the profile: it was damaged")]
    TrailingBytes,

    #[error("the checksum does not match: the file was damaged, record again or copy it again")]
    Checksum,

    #[error("{0} claims an impossible size: the file was damaged")]
    TooLarge(&'static str),

    #[error("the file is damaged: {0}")]
    Corrupt(&'static str),

    #[error("the file is damaged: {0}")]
    Invalid(#[from] Invalid),
}
