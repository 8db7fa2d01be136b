//! Where profiles wait for the store.
//!
//! ```text
//! lock                                    held by the agent that lives
//! 1763542800000-4242@web@1.4@a.thalweg    a profile: when, process, service, release, host
//! 1763542800000-4242@web@1.4@a.damaged    one that cannot be read
//! recording-4242-817                      process 4242, begun at 817, may be attached by us
//! store                                   the store that profiles were sent to
//! counters.json                           what became of all
//! ```
//!
//! The directory is opened once and everything in it goes through that descriptor; no link in it is
//! followed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::processes::Id;
use crate::labels::Label;

const WHOLE: &str = "thalweg";
const DAMAGED: &str = "damaged";
const MARK: &str = "recording-";
const STORE: &str = "store";
const COUNTERS: &str = "counters.json";
/// Larger files are no profiles of ours.
const MAX_PROFILE_BYTES: u64 = 2 << 30;
const MAX_SMALL_BYTES: u64 = 64 << 10;
/// What a recorder that was killed leaves on file systems without unnamed files.
const TEMPORARY_FOR: Duration = Duration::from_hours(24);

/// What may wait.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub bytes: u64,
    pub age: Duration,
    /// Of the disk.
    pub keep_free: u64,
}

/// Since the spool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub recorded: u64,
    pub refused: u64,
    pub sent: u64,
    pub dropped: u64,
    pub damaged: u64,
}

/// What a profile is of, as far as it was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    pub service: Option<Label>,
    pub release: Option<Label>,
    pub host: Option<Label>,
}

/// A profile in the spool.
#[derive(Clone, Debug)]
pub struct Entry {
    pub name: String,
    pub labels: Labels,
    unix_ms: u64,
    bytes: u64,
    is_damaged: bool,
}

pub struct Spool {
    path: PathBuf,
    folder: OwnedFd,
    /// Until this process ends, however it does.
    _lock: OwnedFd,
    /// A profile was added.
    pub added: Notify,
    counters: Mutex<Counters>,
    /// Names that were passed over, and told.
    told: Mutex<HashSet<String>>,
}

impl Spool {
    pub fn open(path: &Path) -> anyhow::Result<Spool> {
        let shown = path.display();
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the spool {shown}"));
            }
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty()).with_context(|| {
            format!("cannot open the spool {shown}: it must be a directory, and no link")
        })?;
        let found = rustix::fs::fstat(&folder).with_context(|| format!("cannot read {shown}"))?;
        if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o077 != 0 {
            bail!(
                "the spool {shown} must be yours alone: chown and chmod 700, or --spool DIRECTORY"
            );
        }
        let create = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&folder, "lock", create, Mode::RUSR | Mode::WUSR)
            .with_context(|| format!("cannot write in the spool {shown}"))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("another agent uses the spool {shown}"))?;
        let spool = Spool {
            path: path.to_owned(),
            folder,
            _lock: lock,
            added: Notify::new(),
            counters: Mutex::default(),
            told: Mutex::default(),
        };
        if let Some(text) = spool.read_small(COUNTERS)
            && let Ok(counters) = serde_json::from_slice(&text)
        {
            *spool
                .counters
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = counters;
        }
        Ok(spool)
    }

    /// The directory for a child of ours, by a name that leads there whatever has become of its
    /// path.
    pub fn folder(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.folder.as_raw_fd()).into()
    }

    /// For a profile of this process that begins now.
    pub fn name(pid: u32, labels: &Labels) -> String {
        let now = unix_ms(SystemTime::now());
        let text = |label: &Option<Label>| label.as_ref().map(Label::to_string).unwrap_or_default();
        let Labels {
            service,
            release,
            host,
        } = labels;
        format!(
            "{now:013}-{pid}@{}@{}@{}.{WHOLE}",
            text(service),
            text(release),
            text(host)
        )
    }

    /// Profiles that are whole, the oldest first.
    pub fn profiles(&self) -> anyhow::Result<Vec<Entry>> {
        let mut all = self.entries()?;
        all.retain(|entry| !entry.is_damaged);
        Ok(all)
    }

    fn entries(&self) -> anyhow::Result<Vec<Entry>> {
        let mut all: Vec<Entry> = self
            .names()?
            .iter()
            .filter_map(|name| self.entry(name))
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// `None`: it is none of the agent's. A link or a device with a profile's name is passed over.
    fn entry(&self, name: &str) -> Option<Entry> {
        let (stem, extension) = name.rsplit_once('.')?;
        if extension != WHOLE && extension != DAMAGED {
            return None;
        }
        let found = rustix::fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let (Some((unix_ms, labels)), true) = (
            parse(stem),
            FileType::from_raw_mode(found.st_mode).is_file(),
        ) else {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.insert(name.to_owned()) {
                let name = crate::output::printable_lines(name);
                tell!(
                    "thalweg agent: {name} in the spool is passed over: it is no profile of the agent's"
                );
            }
            return None;
        };
        Some(Entry {
            name: name.to_owned(),
            labels,
            unix_ms,
            bytes: u64::try_from(found.st_size).unwrap_or(0),
            is_damaged: extension == DAMAGED,
        })
    }

    fn names(&self) -> anyhow::Result<Vec<String>> {
        let problem = || format!("cannot read the spool {}", self.path.display());
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.folder).with_context(problem)? {
            let entry = entry.with_context(problem)?;
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Whether a recorder has left this profile.
    pub fn has(&self, name: &str) -> bool {
        let Some(entry) = self.entry(name) else {
            return false;
        };
        // After a power cut it is either there as a whole or not at all.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::openat(&self.folder, &*entry.name, flags, Mode::empty()) {
            let _ = rustix::fs::fsync(file);
        }
        true
    }

    /// `None`: it has gone meanwhile.
    pub fn read(&self, entry: &Entry) -> anyhow::Result<Option<Vec<u8>>> {
        let problem = || format!("cannot read {} in the spool", entry.name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.folder, &*entry.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error).with_context(problem),
        };
        let found = file.metadata().with_context(problem)?;
        if !found.is_file() || found.len() > MAX_PROFILE_BYTES {
            bail!("{} in the spool is no profile", entry.name);
        }
        let mut bytes = Vec::new();
        file.take(MAX_PROFILE_BYTES)
            .read_to_end(&mut bytes)
            .with_context(problem)?;
        Ok(Some(bytes))
    }

    pub fn remove(&self, name: &str) {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => tell!("thalweg agent: cannot remove {name} from the spool: {error}"),
        }
    }

    /// Kept, within the bounds, for somebody to look at.
    pub fn set_aside(&self, entry: &Entry) {
        let stem = entry.name.trim_end_matches(WHOLE);
        let to = format!("{stem}{DAMAGED}");
        if let Err(error) = rustix::fs::renameat(&self.folder, &*entry.name, &self.folder, &*to) {
            tell!("thalweg agent: {} cannot be set aside: {error}", entry.name);
            self.remove(&entry.name);
        }
        self.count(|counters| counters.damaged += 1);
    }

    /// Drops the oldest until what is left is within the bounds.
    pub fn bound(&self, bounds: &Bounds) -> anyhow::Result<()> {
        let all = self.entries()?;
        let mut bytes: u64 = all.iter().map(|entry| entry.bytes).sum();
        let oldest = unix_ms(SystemTime::now()).saturating_sub(bounds.age.as_millis() as u64);
        for entry in &all {
            let why = if bytes > bounds.bytes {
                format!("more than {} bytes wait", bounds.bytes)
            } else if entry.unix_ms < oldest {
                format!("it has waited for more than {:?}", bounds.age)
            } else {
                break;
            };
            bytes -= entry.bytes;
            self.remove(&entry.name);
            let dropped = self.count(|counters| counters.dropped += 1).dropped;
            tell!(
                "thalweg agent: {} is dropped from the spool: {why}; {dropped} dropped so far",
                entry.name
            );
        }
        Ok(())
    }

    /// Whether its disk has room for one more.
    pub fn room(&self, keep_free: u64) -> anyhow::Result<()> {
        let found = rustix::fs::fstatvfs(&self.folder).context("cannot read the spool's disk")?;
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        if free < keep_free {
            bail!("the spool's disk has less than {keep_free} bytes of room");
        }
        Ok(())
    }

    pub fn count(&self, change: impl FnOnce(&mut Counters)) -> Counters {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counters);
        if let Ok(text) = serde_json::to_vec(&*counters) {
            self.write_small(COUNTERS, &text);
        }
        *counters
    }

    /// Before a process is touched.
    pub fn mark(&self, target: Id) -> anyhow::Result<()> {
        let create = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.folder, mark(target), create, Mode::RUSR | Mode::WUSR)
            .map(drop)
            .with_context(|| format!("cannot write in the spool {}", self.path.display()))
    }

    /// When it is known to be as it was.
    pub fn unmark(&self, target: Id) {
        self.remove(&mark(target));
    }

    /// Processes that may still be attached by an agent.
    pub fn marked(&self) -> anyhow::Result<Vec<Id>> {
        let names = self.names()?;
        let ids = names.iter().filter_map(|name| {
            let (pid, start) = name.strip_prefix(MARK)?.split_once('-')?;
            Some(Id {
                pid: pid.parse().ok()?,
                start: start.parse().ok()?,
            })
        });
        Ok(ids.collect())
    }

    pub fn remove_temporary(&self) -> anyhow::Result<()> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        for name in self.names()? {
            let found = rustix::fs::statat(&self.folder, &*name, AtFlags::SYMLINK_NOFOLLOW);
            let is_old = found.is_ok_and(|found| {
                now.as_secs()
                    .saturating_sub(u64::try_from(found.st_mtime).unwrap_or(0))
                    > TEMPORARY_FOR.as_secs()
            });
            if name.starts_with('.') && name.ends_with(".tmp") && is_old {
                self.remove(&name);
            }
        }
        Ok(())
    }

    /// The store that profiles were sent to: it is there, and is not made again in an empty mount
    /// point.
    pub fn knows(&self, store: &str) -> bool {
        self.read_small(STORE)
            .is_some_and(|text| text == store.as_bytes())
    }

    pub fn remember(&self, store: &str) {
        if !self.knows(store) {
            self.write_small(STORE, store.as_bytes());
        }
    }

    fn read_small(&self, name: &str) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.folder, name, flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        File::from(file)
            .take(MAX_SMALL_BYTES)
            .read_to_end(&mut bytes)
            .ok()?;
        Some(bytes)
    }

    /// As a whole or not at all. Without room it is not written: nothing depends on it.
    fn write_small(&self, name: &str, bytes: &[u8]) {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let hidden = format!(".{name}.tmp");
        let Ok(file) = rustix::fs::openat(&self.folder, &*hidden, flags, Mode::RUSR | Mode::WUSR)
        else {
            return;
        };
        if File::from(file).write_all(bytes).is_ok() {
            let _ = rustix::fs::renameat(&self.folder, &*hidden, &self.folder, name);
        }
    }
}

fn mark(target: Id) -> String {
    format!("{MARK}{}-{}", target.pid, target.start)
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// `1763542800000-4242@web@1.4@a`
fn parse(stem: &str) -> Option<(u64, Labels)> {
    let mut parts = stem.split('@');
    let (time, pid) = parts.next()?.split_once('-')?;
    pid.parse::<u32>().ok()?;
    let mut label = || match parts.next()? {
        "" => Some(None),
        text => text.parse().ok().map(Some),
    };
    let labels = Labels {
        service: label()?,
        release: label()?,
        host: label()?,
    };
    let has_more = parts.next().is_some();
    (!has_more).then_some((time.parse().ok()?, labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_the_profile_is_of() {
        let labels = Labels {
            service: Some("web-1".parse().unwrap()),
            release: None,
            host: Some("a.b".parse().unwrap()),
        };
        let name = Spool::name(42, &labels);
        let (stem, _) = name.rsplit_once('.').unwrap();
        assert_eq!(parse(stem).unwrap().1, labels);
        for bad in [
            "",
            "1-2",
            "1-2@a@b",
            "1-2@a@b@c@d",
            "x-2@a@b@c",
            "1-x@@@",
            "1-2@../a@@",
        ] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
