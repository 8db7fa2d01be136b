//! What /proc says about a process: read before it is stopped, and without touching it.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;

use crate::error::{Error, Result};

/// A process id (a thread group's).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub i32);

/// A thread id. The first thread of a process has its process's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub i32);

/// An address in the target, which must never be mistaken for one of ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RemoteAddr(pub u64);

/// `rwxp` of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Perms {
    pub read: bool,
    pub write: bool,
    pub exec: bool,
    pub shared: bool,
}

/// One line of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    pub start: RemoteAddr,
    pub end: RemoteAddr,
    pub perms: Perms,
    /// Offset of `start` in the file.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub dev: (u32, u32),
    pub inode: u64,
    /// `None` for anonymous memory; `[vdso]`, `[stack]` and the like are kept as they are written.
    pub path: Option<PathBuf>,
}

/// A process that passed every check, as it was then.
#[derive(Clone, Debug)]
pub struct Target {
    pub pid: Pid,
    pub name: String,
    pub command: Vec<std::ffi::OsString>,
    /// Where /proc/PID/exe points; display only.
    pub exe: PathBuf,
    pub uid: u32,
    /// In clock ticks since boot: together with the id it names the process for good.
    pub start_ticks: u64,
}

impl Target {
    /// Whether the id still names the same process.
    pub fn is_alive(&self) -> bool {
        todo!()
    }
}

/// All memory mappings, by address.
pub fn maps(pid: Pid) -> Result<Vec<Mapping>> {
    let _ = pid;
    todo!()
}

/// All threads, as /proc lists them now.
pub fn tasks(pid: Pid) -> Result<Vec<Tid>> {
    let _ = pid;
    todo!()
}

/// The auxiliary vector: (AT_ type, value), without AT_NULL.
pub fn auxv(pid: Pid) -> Result<Vec<(u64, u64)>> {
    let _ = pid;
    todo!()
}

/// The name of a thread.
pub fn thread_name(pid: Pid, tid: Tid) -> Result<String> {
    let _ = (pid, tid);
    todo!()
}

/// Every check that can be made without touching the process.
pub fn preflight(pid: Pid) -> Result<Target> {
    Err(Error::NoSuchProcess { pid })
}

/// Opens the very file that is mapped, never another one that has taken its name since.
pub fn file_of(pid: Pid, mapping: &Mapping) -> Result<File> {
    let _ = (pid, mapping);
    todo!()
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Debug for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Debug for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
