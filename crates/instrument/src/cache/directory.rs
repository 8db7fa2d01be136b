//! The directory of the cache: where it is, whether it is to be trusted, and its files.
//!
//! thalweg often runs as root. So the directory is opened once, without following a link, has to be the effective user's own and
//! nobody else's to write, and everything in it is reached through that descriptor, whatever its name leads to later.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Names of files that are being written.
const UNFINISHED: &str = "tmp-";
/// Nobody writes for so long.
const ABANDONED: Duration = Duration::from_secs(3600);

pub struct Directory {
    handle: File,
}

/// One file in it.
pub struct Entry {
    pub name: String,
    pub bytes: u64,
    pub used: SystemTime,
}

/// `$XDG_CACHE_HOME/thalweg`, or `~/.cache/thalweg`. `None` where neither variable is an absolute path.
pub fn place() -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("thalweg"))
}

impl Directory {
    /// The directory at `path`, if it is to be trusted.
    pub fn open(path: &Path) -> Option<Directory> {
        let handle = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .ok()?;
        let meta = handle.metadata().ok()?;
        (is_ours(&meta) && meta.mode() & 0o022 == 0).then_some(Directory { handle })
    }

    /// The same, made if need be. In somebody else's directory (root with a user's home) nothing is made.
    pub fn open_or_make(path: &Path) -> Option<Directory> {
        if std::fs::symlink_metadata(path).is_err() {
            let mut parents = path.ancestors().skip(1);
            let there = parents.find_map(|parent| parent.metadata().ok())?;
            if !is_ours(&there) {
                return None;
            }
            let mut builder = DirBuilder::new();
            // An error is seen when it is opened: somebody else may have been quicker.
            let _ = builder.recursive(true).mode(0o700).create(path);
        }
        Directory::open(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        let fd = self.handle.as_raw_fd();
        PathBuf::from(format!("/proc/self/fd/{fd}/{name}"))
    }

    fn open_file(&self, name: &str) -> Option<File> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(self.path(name))
            .ok()?;
        let meta = file.metadata().ok()?;
        (meta.is_file() && is_ours(&meta)).then_some(file)
    }

    /// The contents of a file, up to `limit` bytes.
    pub fn read(&self, name: &str, limit: u64) -> Option<Vec<u8>> {
        let file = self.open_file(name)?;
        let size = file.metadata().ok()?.len();
        if size > limit {
            return None;
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).ok()?);
        file.take(limit).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The first bytes of a file.
    pub fn read_head(&self, name: &str, len: u64) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.open_file(name)?;
        file.take(len).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Notes that a file was used.
    pub fn touch(&self, name: &str) {
        if let Some(file) = self.open_file(name) {
            let _ = file.set_modified(SystemTime::now());
        }
    }

    /// Puts a file there as a whole or not at all.
    pub fn write(&self, name: &str, bytes: &[u8]) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.path(&format!("{UNFINISHED}{}-{number}", std::process::id()));
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&unfinished);
        let Ok(mut file) = made else { return };
        let written = file
            .write_all(bytes)
            .and_then(|()| std::fs::rename(&unfinished, self.path(name)));
        if written.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
    }

    /// Its files, those that are being written left out; the one that was used last comes first.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = self.list();
        entries.retain(|entry| !entry.name.starts_with(UNFINISHED));
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        entries
    }

    fn list(&self) -> Vec<Entry> {
        let Ok(files) = std::fs::read_dir(self.path("")) else {
            return Vec::new();
        };
        let entry = |name: OsString| {
            let name = name.into_string().ok()?;
            let meta = std::fs::symlink_metadata(self.path(&name)).ok()?;
            let used = meta.modified().ok()?;
            let bytes = meta.len();
            meta.is_file().then_some(Entry { name, bytes, used })
        };
        files
            .filter_map(|file| entry(file.ok()?.file_name()))
            .collect()
    }

    /// Removes the files that were not used for longest, until the rest is no more than `limit`, and what was left unfinished.
    pub fn prune(&self, limit: u64) {
        let mut total = 0;
        for entry in self.entries() {
            total += entry.bytes;
            if total > limit {
                self.remove(&entry.name);
            }
        }
        let is_abandoned = |entry: &Entry| {
            let age = entry.used.elapsed().unwrap_or_default();
            entry.name.starts_with(UNFINISHED) && age > ABANDONED
        };
        for entry in self.list().iter().filter(|entry| is_abandoned(entry)) {
            self.remove(&entry.name);
        }
    }

    /// Removes all files; gives how many and how many bytes.
    pub fn clear(&self) -> (usize, u64) {
        let all = self.list();
        all.iter().for_each(|entry| self.remove(&entry.name));
        (all.len(), all.iter().map(|entry| entry.bytes).sum())
    }

    fn remove(&self, name: &str) {
        let _ = std::fs::remove_file(self.path(name));
    }
}

fn is_ours(meta: &std::fs::Metadata) -> bool {
    meta.uid() == nix::unistd::geteuid().as_raw()
}
