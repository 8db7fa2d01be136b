//! Analysed files are kept: in memory for the next process that maps them (all those of a shell script need the same libc) and for
//! when they are loaded again, and on disk for the next run (`cache`).

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thalweg_symbols::store::{In, Out};

use super::Surveyed;
use crate::cache;
use crate::filter::Filter;

static ANALYSED: LazyLock<Mutex<HashMap<FileKey, Surveyed>>> = LazyLock::new(Mutex::default);
/// A libc takes some megabytes.
const KEPT: usize = 64;

/// What is known of a file.
pub fn find(key: &FileKey, file: &File) -> Option<Surveyed> {
    if let Some(surveyed) = kept().get(key) {
        return Some(surveyed.clone());
    }
    let surveyed = cache::find(key, file)?;
    keep(key.clone(), surveyed.clone());
    Some(surveyed)
}

pub fn keep(key: FileKey, surveyed: Surveyed) {
    let mut all = kept();
    if all.len() >= KEPT {
        all.clear();
    }
    all.insert(key, surveyed);
}

fn kept() -> MutexGuard<'static, HashMap<FileKey, Surveyed>> {
    ANALYSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One file at one moment: whatever is done to it changes this.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    dev: u64,
    inode: u64,
    size: u64,
    owner: u32,
    modified: (i64, i64),
    /// Set by the kernel alone.
    changed: (i64, i64),
}

/// A file that changed this lately may change again without another time stamp.
const SETTLED: Duration = Duration::from_secs(2);

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        Stamp {
            dev: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            owner: meta.uid(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    pub fn of_path(path: &Path) -> Option<Stamp> {
        std::fs::metadata(path).ok().map(|meta| Stamp::of(&meta))
    }

    fn age(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.modified.0.max(self.changed.0)).ok()?;
        let last = UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
        SystemTime::now().duration_since(last).ok()
    }

    pub fn store(&self, out: &mut Out) {
        for number in [self.dev, self.inode, self.size, self.owner.into()] {
            out.number(number);
        }
        for (seconds, nanoseconds) in [self.modified, self.changed] {
            out.number(seconds as u64);
            out.number(nanoseconds as u64);
        }
    }

    pub fn restore(stored: &mut In<'_>) -> Option<Stamp> {
        Some(Stamp {
            dev: stored.number()?,
            inode: stored.number()?,
            size: stored.number()?,
            owner: u32::try_from(stored.number()?).ok()?,
            modified: (stored.number()? as i64, stored.number()? as i64),
            changed: (stored.number()? as i64, stored.number()? as i64),
        })
    }
}

/// One file at one moment, as one filter sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    stamp: Stamp,
    path: PathBuf,
    filter: String,
}

/// File systems of this kernel's own: no user makes them say what was not so, as one can whose file system is a program of his
/// (FUSE) or another machine.
const OWN_FILE_SYSTEMS: [i64; 10] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
    0x794c_7630, // overlay
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // EROFS
    0x0102_1994, // tmpfs
];

impl FileKey {
    pub fn of(file: &File, path: &Path, filter: &Filter) -> Option<FileKey> {
        Some(FileKey {
            stamp: Stamp::of(&file.metadata().ok()?),
            path: path.to_path_buf(),
            filter: format!("{filter:?}"),
        })
    }

    /// Of where the functions of a file are defined, which no filter changes.
    pub fn of_lines(file: &File, path: &Path) -> Option<FileKey> {
        Some(FileKey {
            stamp: Stamp::of(&file.metadata().ok()?),
            path: path.to_path_buf(),
            filter: "lines".into(),
        })
    }

    /// Whether nobody can make another file that has the same key.
    pub fn is_unforgeable(&self, file: &File) -> bool {
        let kind = nix::sys::statfs::fstatfs(file).map(|s| s.filesystem_type().0);
        kind.is_ok_and(|kind| OWN_FILE_SYSTEMS.contains(&kind))
    }

    /// Whether `file` is still what it was, and will not change without another key.
    pub fn is_settled(&self, file: &File) -> bool {
        let now = file.metadata().map(|meta| Stamp::of(&meta));
        now.is_ok_and(|now| now == self.stamp) && self.stamp.age().is_some_and(|age| age > SETTLED)
    }

    pub fn store(&self, out: &mut Out) {
        use std::os::unix::ffi::OsStrExt;
        out.bytes(self.path.as_os_str().as_bytes());
        self.stamp.store(out);
        out.text(&self.filter);
    }

    /// The first part of what [`FileKey::store`] was given.
    pub fn stored_path(stored: &mut In<'_>) -> Option<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let path = stored.bytes()?.to_vec();
        Some(std::ffi::OsString::from_vec(path).into())
    }
}
