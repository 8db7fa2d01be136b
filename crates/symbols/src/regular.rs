//! Files that a target, its debug information or a profile names: regular ones only.
//!
//! Such a name may lead to a FIFO, on which an `open` waits for ever, or to a device, which does
//! something when it is opened; and it may come to lead there between a question and the `open`. So
//! the place is opened first (O_PATH: nothing is woken, nothing waits), judged, and then read
//! through that very place.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading. Anything else is an error of the kind `InvalidInput`.
pub fn open(path: &Path) -> io::Result<File> {
    let place = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)?;
    if !place.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

/// No honest one is longer.
const MAX_FILE_BYTES: u64 = 8 << 30;

/// All of it.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    if file.metadata()?.len() > MAX_FILE_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is too long",
        ));
    }
    let mut data = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut data)?;
    Ok(data)
}
