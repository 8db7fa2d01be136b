//! Analysed files on disk, so that the next run need not analyse them again.
//!
//! One entry per file and filter, made when a command ends, so that no target is disturbed:
//!
//! ```text
//! magic | who made it | whose it is (`survey::kept::FileKey`) | length | zstd with a checksum: debug files, module, plans
//! ```
//!
//! An entry is used only by the very program that made it, for the very file that it was made of. Both are known by
//! device, inode, size, owner and the two time stamps in nanoseconds; the second of those nobody can set. Nothing here is an
//! error: what is not trusted, damaged or cannot be written is as if it were not there.

mod directory;
mod stored;

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use thalweg_patch::HelperThread;
use thalweg_symbols::store::{In, Out};

use crate::survey::Surveyed;
use crate::survey::kept::{FileKey, Stamp};

pub use directory::{Directory, Entry, place};

const MAGIC: &[u8] = b"thalweg cache 1\n";
/// All entries together, on disk.
pub const LIMIT: u64 = 512 << 20;
/// One of them, packed and unpacked.
const MOST_PACKED: u64 = LIMIT / 2;
const MOST_UNPACKED: u64 = 2 << 30;
const LEVEL: i32 = 1;

static CACHE: OnceLock<Cache> = OnceLock::new();

struct Cache {
    place: PathBuf,
    /// This program.
    writer: Stamp,
    /// What was analysed since the start.
    fresh: Mutex<Vec<Fresh>>,
}

struct Fresh {
    key: FileKey,
    debug_files: Vec<(PathBuf, Option<Stamp>)>,
    content: Content,
}

enum Content {
    Surveyed(Box<Surveyed>),
    /// As bytes of whoever noted it.
    Bytes(Vec<u8>),
}

/// From now on this process uses and makes entries in the directory at `place`, which is made when there is something to keep.
pub fn enable(place: PathBuf) {
    let Some(writer) = Stamp::of_path("/proc/self/exe".as_ref()) else {
        return;
    };
    let _ = CACHE.set(Cache {
        place,
        writer,
        fresh: Mutex::default(),
    });
}

/// What is known of `file` from an earlier run.
pub fn find(key: &FileKey, file: &File) -> Option<Surveyed> {
    found(key, file, |bytes, writer| unpack(bytes, writer, key, file))
}

/// What was given to [`note_bytes`] in an earlier run.
pub fn find_bytes(key: &FileKey, file: &File) -> Option<Vec<u8>> {
    found(key, file, |bytes, writer| {
        let payload = payload(bytes, writer, key)?;
        Some(content(&payload)?.0.to_vec())
    })
}

fn found<T>(
    key: &FileKey,
    file: &File,
    unpack: impl FnOnce(&[u8], &Stamp) -> Option<T>,
) -> Option<T> {
    let cache = CACHE.get()?;
    if !key.is_unforgeable(file) {
        return None;
    }
    let directory = Directory::open(&cache.place)?;
    let name = name_of(key);
    let bytes = directory.read(&name, MOST_PACKED)?;
    let found = unpack(&bytes, &cache.writer)?;
    directory.touch(&name);
    Some(found)
}

/// Notes a file that was analysed, for [`finish`]. `debug_files`: the places of separate debug files that may belong to it.
pub fn note(key: &FileKey, file: &File, debug_files: Vec<PathBuf>, surveyed: &Surveyed) {
    if is_enabled() {
        let content = Content::Surveyed(Box::new(surveyed.clone()));
        note_content(key, file, debug_files, content);
    }
}

/// The same for what else was found out about a file, under a key of its own.
pub fn note_bytes(key: &FileKey, file: &File, debug_files: Vec<PathBuf>, bytes: Vec<u8>) {
    note_content(key, file, debug_files, Content::Bytes(bytes));
}

fn note_content(key: &FileKey, file: &File, debug_files: Vec<PathBuf>, content: Content) {
    let Some(cache) = CACHE.get() else { return };
    if !key.is_unforgeable(file) || !key.is_settled(file) {
        return;
    }
    let with_stamp = |path: PathBuf| {
        let stamp = Stamp::of_path(&path);
        (path, stamp)
    };
    let fresh = Fresh {
        key: key.clone(),
        debug_files: debug_files.into_iter().map(with_stamp).collect(),
        content,
    };
    lock(&cache.fresh).push(fresh);
}

/// Whether anybody would want to know what was analysed.
pub fn is_enabled() -> bool {
    CACHE.get().is_some()
}

/// Writes what was analysed, and takes out what was not used for longest where there is too much.
pub fn finish() {
    let Some(cache) = CACHE.get() else { return };
    let fresh = std::mem::take(&mut *lock(&cache.fresh));
    if fresh.is_empty() {
        return;
    }
    let Some(directory) = Directory::open_or_make(&cache.place) else {
        return;
    };
    let next = Mutex::new(fresh.iter());
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers.min(fresh.len()).min(8) {
            HelperThread::spawn(scope, || {
                loop {
                    let Some(one) = lock(&next).next() else {
                        return;
                    };
                    if let Some(bytes) = pack(one, &cache.writer) {
                        directory.write(&name_of(&one.key), &bytes);
                    }
                }
            });
        }
    });
    directory.prune(LIMIT);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The path of the file that an entry is about.
pub fn path_of(entry: &[u8]) -> Option<PathBuf> {
    let mut input = In(entry.strip_prefix(MAGIC)?);
    Stamp::restore(&mut input)?;
    FileKey::stored_path(&mut input)
}

/// Any name would do: the key is in the entry, and compared.
fn name_of(key: &FileKey) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, key).hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

fn head(writer: &Stamp, key: &FileKey) -> Vec<u8> {
    let mut out = Out(MAGIC.to_vec());
    writer.store(&mut out);
    key.store(&mut out);
    out.0
}

fn pack(fresh: &Fresh, writer: &Stamp) -> Option<Vec<u8>> {
    let mut payload = Out::default();
    payload.list(&fresh.debug_files, |out, (path, stamp)| {
        stored::store_path(out, path);
        out.optional(stamp.as_ref(), |out, stamp| stamp.store(out));
    });
    match &fresh.content {
        Content::Surveyed(surveyed) => stored::store(&mut payload, surveyed)?,
        Content::Bytes(bytes) => payload.0.extend_from_slice(bytes),
    }
    let mut packer = zstd::bulk::Compressor::new(LEVEL).ok()?;
    packer
        .set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))
        .ok()?;
    let mut bytes = head(writer, &fresh.key);
    bytes.extend_from_slice(&(payload.0.len() as u64).to_le_bytes());
    bytes.append(&mut packer.compress(&payload.0).ok()?);
    (bytes.len() as u64 <= MOST_PACKED && payload.0.len() as u64 <= MOST_UNPACKED).then_some(bytes)
}

fn unpack(bytes: &[u8], writer: &Stamp, key: &FileKey, file: &File) -> Option<Surveyed> {
    let payload = payload(bytes, writer, key)?;
    let mut input = content(&payload)?;
    let surveyed = stored::restore(&mut input, file)?;
    input.0.is_empty().then_some(surveyed)
}

/// What is in an entry, if it is this file's and whole.
fn payload(bytes: &[u8], writer: &Stamp, key: &FileKey) -> Option<Vec<u8>> {
    let rest = bytes.strip_prefix(&head(writer, key)[..])?;
    let (len, packed) = rest.split_first_chunk::<8>()?;
    let len = u64::from_le_bytes(*len);
    if len > MOST_UNPACKED {
        return None;
    }
    let payload = zstd::bulk::decompress(packed, usize::try_from(len).ok()?).ok()?;
    (payload.len() as u64 == len).then_some(payload)
}

/// What follows after the debug files, if those are what they were.
fn content(payload: &[u8]) -> Option<In<'_>> {
    let mut input = In(payload);
    let debug_files = input.list(|i| {
        let path = stored::restore_path(i)?;
        Some((path, i.optional(Stamp::restore)?))
    })?;
    let is_same = |(path, stamp): &(PathBuf, Option<Stamp>)| Stamp::of_path(path) == *stamp;
    debug_files.iter().all(is_same).then_some(input)
}

#[cfg(test)]
mod tests;
