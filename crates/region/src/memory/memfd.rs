//! Opening a shared memory of ours that is reached through a target: by the number of a descriptor, or by a mapping.
//!
//! Neither is to be trusted. A process that shares the target's descriptors (`clone(CLONE_FILES)`) or its memory
//! (`CLONE_VM`) without being one of its threads runs while the target stands still, and can put any other file in the
//! same place; and what root opens through /proc is opened with root's rights. So:
//!
//! 1. the place is *pinned*: opened with O_PATH, which reads nothing, blocks nowhere, and stays with that one object;
//! 2. what was pinned must be an anonymous memfd by our name: a file of the kernel's own mount for such memory, which no
//!    path leads to, without links. Whatever else an attacker could make us take for ours is then a memfd of its own;
//! 3. the very same object is opened through the pin, and must be fresh (at attach) or sealed (later).
//!
//! Our memory is sealed against a change of its length before the target maps it: nobody can truncate it under a reader.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use thalweg_abi as shm;

use super::Identity;
use crate::error::{Error, Result};
use crate::proc::{Mapping, Pid};

/// What the length of a shared memory is protected by.
const FIXED_LENGTH: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
/// And what a finished profile is protected by.
const UNCHANGEABLE: i32 = FIXED_LENGTH | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
/// Set by the kernel itself where `vm.memfd_noexec` says so.
const F_SEAL_EXEC: i32 = 0x20;

/// Opens the memfd that a stopped target was just made to create as descriptor `fd`, gives it its length, and seals that.
pub fn take(pid: Pid, fd: i32, len: u64) -> Result<File> {
    let path = PathBuf::from(format!("/proc/{pid}/fd/{fd}"));
    let io = |source| Error::Io {
        path: path.clone(),
        source,
    };
    let pin = pin(&path).map_err(io)?;
    if !is_memfd_of_ours(&pin).map_err(io)? {
        return Err(swapped(pid));
    }
    let file = reopen(&pin).map_err(io)?;
    let is_fresh = file.metadata().map_err(io)?.len() == 0 && seals(&file) & !F_SEAL_EXEC == 0;
    if !is_fresh {
        return Err(swapped(pid));
    }
    file.set_len(len).map_err(io)?;
    add_seals(&file, FIXED_LENGTH).map_err(io)?;
    // Between these two steps its length could still be changed.
    if file.metadata().map_err(io)?.len() != len {
        return Err(swapped(pid));
    }
    Ok(file)
}

/// Opens what `mapping` shows, if that is beyond doubt a shared memory of ours, and if we may. With its length.
pub(super) fn open(pid: Pid, mapping: &Mapping) -> Option<(File, u64)> {
    // Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN.
    let (start, end) = (mapping.start.0, mapping.end.0);
    let link = format!("/proc/{pid}/map_files/{start:x}-{end:x}");
    let file = open_sealed(Path::new(&link))?;
    let meta = file.metadata().ok()?;
    (Identity::of_file(&meta) == Identity::of(mapping)).then_some((file, meta.len()))
}

/// Opens what a link of /proc leads to, if that is beyond doubt a shared memory of ours.
pub(crate) fn open_sealed(link: &Path) -> Option<File> {
    let pin = pin(link).ok()?;
    if !is_memfd_of_ours(&pin).ok()? {
        return None;
    }
    let file = reopen(&pin).ok()?;
    (seals(&file) & FIXED_LENGTH == FIXED_LENGTH).then_some(file)
}

/// Opens what a link of /proc leads to for reading, if that is a memfd by this name that nobody can change any more.
pub fn open_profile(link: &Path, name: &CStr) -> Option<File> {
    let pin = pin(link).ok()?;
    if !is_memfd(&pin, name.to_str().ok()?).ok()? {
        return None;
    }
    let file = File::open(through(&pin)).ok()?;
    (seals(&file) & UNCHANGEABLE == UNCHANGEABLE).then_some(file)
}

pub fn seal_profile(file: &File) -> io::Result<()> {
    add_seals(file, UNCHANGEABLE)
}

fn add_seals(file: &File, seals: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub fn swapped(pid: Pid) -> Error {
    Error::Busy(format!(
        "process {pid} shares its descriptors or its memory with another process that changes them under our hands: nothing was changed"
    ))
}

fn pin(link: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
        .open(link)
}

fn through(pin: &File) -> String {
    format!("/proc/self/fd/{}", pin.as_raw_fd())
}

fn reopen(pin: &File) -> io::Result<File> {
    File::options().read(true).write(true).open(through(pin))
}

fn is_memfd_of_ours(pin: &File) -> io::Result<bool> {
    is_memfd(pin, shm::MEMFD_NAME)
}

fn is_memfd(pin: &File, called: &str) -> io::Result<bool> {
    let meta = pin.metadata()?;
    let name = std::fs::read_link(through(pin))?;
    Ok(meta.is_file()
        && meta.nlink() == 0
        && Some(meta.dev()) == memfd_device()
        && name.to_str() == Some(&format!("/memfd:{called} (deleted)")))
}

/// The device of the kernel's mount on which all memfds live, known by one of our own.
fn memfd_device() -> Option<u64> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        // SAFETY: a C string and a number; the descriptor is checked before it is owned, by nobody else.
        let own = unsafe {
            match libc::memfd_create(c"thalweg-device".as_ptr(), libc::MFD_CLOEXEC) {
                fd if fd >= 0 => File::from_raw_fd(fd),
                _ => return None,
            }
        };
        Some(own.metadata().ok()?.dev())
    })
}

/// 0 where there are none, or none can be asked for.
fn seals(file: &File) -> i32 {
    // SAFETY: numbers only.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) }.max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(name: &CStr) -> File {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string and flags; the descriptor is new.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        assert!(fd >= 0);
        // SAFETY: it is nobody else's.
        unsafe { File::from_raw_fd(fd) }
    }

    fn ourselves() -> Pid {
        Pid(std::process::id() as i32)
    }

    #[test]
    fn a_fresh_memfd_is_taken_and_cannot_be_truncated_afterwards() {
        let made = memfd(c"thalweg");
        let taken = take(ourselves(), made.as_raw_fd(), 1 << 20).unwrap();
        assert_eq!(
            taken.metadata().unwrap().ino(),
            made.metadata().unwrap().ino()
        );
        assert!(made.set_len(0).is_err());
        assert!(made.set_len(2 << 20).is_err());
        let again = open_sealed(Path::new(&through(&made))).expect("it is ours");
        assert_eq!(again.metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn what_is_no_fresh_memfd_of_ours_is_refused_and_stays_as_it_is() {
        let folder = std::env::temp_dir().join(format!("thalweg-own-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let victim = folder.join("memfd:thalweg (deleted)");
        std::fs::write(&victim, "precious").unwrap();
        let refused = |file: &File| {
            assert!(take(ourselves(), file.as_raw_fd(), 1 << 20).is_err());
            assert!(open_sealed(Path::new(&through(file))).is_none());
        };
        refused(&pin(&victim).unwrap());
        refused(&File::open(&victim).unwrap());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        // The same without a name.
        let unnamed = File::options()
            .read(true)
            .write(true)
            .open(&victim)
            .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        refused(&unnamed);
        assert_eq!(unnamed.metadata().unwrap().len(), 8);
        let other = memfd(c"other");
        refused(&other);
        let used = memfd(c"thalweg");
        used.set_len(4096).unwrap();
        refused(&used);
        assert_eq!(used.metadata().unwrap().len(), 4096);
        let (end, _other_end) = std::os::unix::net::UnixStream::pair().unwrap();
        refused(&File::from(std::os::fd::OwnedFd::from(end)));
    }
}
