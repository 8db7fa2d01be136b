//! The file behind a mapping: the very one, never another that has taken its name since.
//!
//! The path in the memory map is the target's word, in the target's file-system view. So:
//! 1. /proc/PID/map_files/START-END leads to the mapped file itself, whatever happened to its name (needs privilege);
//! 2. /proc/PID/exe does the same for the program, for everybody who may trace it;
//! 3. else the path under /proc/PID/root, which must have the mapping's device and inode.
//!
//! Whatever the way, the file is first opened as a mere place (O_PATH: nothing is read, no FIFO blocks, no device is
//! woken), checked, and only then opened for reading through that place.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Mapping, Pid, living_dir};
use crate::error::{Error, Result};

const BTRFS: i64 = 0x9123_683e;
const OVERLAY: i64 = 0x794c_7630;

/// Opens the very file that is mapped, for reading.
pub fn file_of(pid: Pid, mapping: &Mapping) -> Result<File> {
    let not_a_file = |name: String| Error::NotAFile {
        pid,
        start: mapping.start,
        name,
    };
    let Some(path) = mapping.path.as_deref() else {
        return Err(not_a_file("anonymous memory".into()));
    };
    if mapping.inode == 0 || !path.as_os_str().as_bytes().starts_with(b"/") {
        return Err(not_a_file(path.display().to_string()));
    }
    let dir = living_dir(pid)?;

    let itself = dir.join(format!(
        "map_files/{:x}-{:x}",
        mapping.start.0, mapping.end.0
    ));
    if let Ok(place) = open_place(&itself, true) {
        return open_checked(pid, path, &place);
    }

    if let Ok(place) = open_place(&dir.join("exe"), true)
        && is_same(&place, mapping)
    {
        return open_checked(pid, path, &place);
    }

    let mut under_root = dir.join("root").into_os_string();
    under_root.push(path.as_os_str());
    let under_root = PathBuf::from(under_root);
    let place = open_place(&under_root, false).map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => Error::FileReplaced {
            pid,
            path: path.to_owned(),
        },
        _ => Error::Io {
            path: path.to_owned(),
            source,
        },
    })?;
    if !is_same(&place, mapping) {
        return Err(Error::FileReplaced {
            pid,
            path: path.to_owned(),
        });
    }
    open_checked(pid, path, &place)
}

/// `magic`: a link of /proc that leads to a file without a path walk.
fn open_place(path: &Path, magic: bool) -> io::Result<File> {
    let nofollow = if magic { 0 } else { libc::O_NOFOLLOW };
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_CLOEXEC | nofollow)
        .open(path)
}

/// Device and inode as the map shows them. The map shows a super block's device, which btrfs (subvolumes) and
/// overlayfs (layers) do not tell in `stat`: there the inode alone must do.
fn is_same(place: &File, mapping: &Mapping) -> bool {
    let Ok(meta) = place.metadata() else {
        return false;
    };
    if meta.ino() != mapping.inode {
        return false;
    }
    let dev = (libc::major(meta.dev()), libc::minor(meta.dev()));
    dev == mapping.dev || matches!(file_system(place), Some(BTRFS | OVERLAY))
}

fn file_system(place: &File) -> Option<i64> {
    let mut info = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `info` is writable memory of the size that fstatfs fills; it is read only after success.
    unsafe {
        if libc::fstatfs(place.as_raw_fd(), info.as_mut_ptr()) != 0 {
            return None;
        }
        Some(info.assume_init().f_type)
    }
}

fn open_checked(pid: Pid, path: &Path, place: &File) -> Result<File> {
    let io_error = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    if !place.metadata().map_err(io_error)?.is_file() {
        return Err(Error::NotRegular {
            pid,
            path: path.to_owned(),
        });
    }
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).map_err(io_error)
}

#[cfg(test)]
mod tests {
    use super::super::{RemoteAddr, maps};
    use super::*;

    fn ourselves() -> (Pid, Mapping) {
        let pid = Pid(std::process::id() as i32);
        let here = RemoteAddr(ourselves as *const () as u64);
        let mapping = maps(pid)
            .unwrap()
            .into_iter()
            .find(|m| m.contains(here))
            .unwrap();
        (pid, mapping)
    }

    #[test]
    fn our_own_program_is_found_by_its_mapping() {
        let (pid, mapping) = ourselves();
        let file = file_of(pid, &mapping).unwrap();
        assert_eq!(file.metadata().unwrap().ino(), mapping.inode);
    }

    #[test]
    fn a_file_of_another_inode_under_the_same_name_is_refused() {
        let (pid, mut mapping) = ourselves();
        mapping.end = RemoteAddr(mapping.end.0 + 1); // no such entry in map_files
        mapping.inode += 1;
        assert!(matches!(
            file_of(pid, &mapping),
            Err(Error::FileReplaced { .. })
        ));
    }

    #[test]
    fn a_path_that_leads_to_a_fifo_is_refused_without_blocking() {
        use std::os::unix::fs::MetadataExt;
        let (pid, mut mapping) = ourselves();
        let path = std::env::temp_dir().join(format!("thalweg-fifo-{pid}"));
        let c_path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a valid C string.
        assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
        let meta = std::fs::metadata(&path).unwrap();
        mapping.end = RemoteAddr(mapping.end.0 + 1);
        mapping.inode = meta.ino();
        mapping.dev = (libc::major(meta.dev()), libc::minor(meta.dev()));
        mapping.path = Some(path.clone());
        let result = file_of(pid, &mapping);
        std::fs::remove_file(&path).unwrap();
        assert!(
            matches!(result, Err(Error::NotRegular { .. })),
            "{result:?}"
        );
    }

    #[test]
    fn memory_without_a_file_says_so() {
        let (pid, _) = ourselves();
        let vdso = maps(pid)
            .unwrap()
            .into_iter()
            .find(|m| !m.is_file())
            .unwrap();
        assert!(matches!(file_of(pid, &vdso), Err(Error::NotAFile { .. })));
    }
}
