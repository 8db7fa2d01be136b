//! What /proc says about a process: read before it is stopped, and without touching it.
//!
//! ```text
//! preflight  every refusal that needs no ptrace          proc/preflight.rs
//! status     status, stat, task, auxv, cmdline           proc/status.rs
//! maps       the memory map                              proc/maps.rs
//! file_of    the very file behind a mapping              proc/files.rs
//! patiently  while another process of ours is at it      proc/same_program.rs
//! memory_room  what is left of its cgroup's memory       proc/cgroup.rs
//! host_*     valgrind and other programs with guests     proc/hosts.rs
//! ```
//!
//! A process whose first thread has ended goes on with the others, but /proc/PID/{maps,exe,auxv,mem} are empty then:
//! all readers here go through a living thread ([`living_dir`]).

mod cgroup;
mod files;
mod hosts;
mod maps;
mod preflight;
mod same_program;
mod status;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

pub use cgroup::{MemoryRoom, memory_room};
pub use files::file_of;
pub use hosts::{host_inside, host_program};
pub use maps::{Mapping, Perms, maps};
pub use preflight::preflight;
pub use preflight::{diagnose_refusal, elf_check, traced_by};
pub use same_program::{patiently, runs_this_program};
pub use status::{KernelCounts, ProcessorTime, kernel_counts, living_dir, processor_time, wchan};
pub use status::{
    Stat, Status, all, auxv, children, command, inner_number, stat, status, tasks, thread_name,
    thread_stat, tracer,
};

/// A process id (a thread group's).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub i32);

/// A thread id. The first thread of a process has its process's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub i32);

/// An address in the target, which must never be mistaken for one of ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RemoteAddr(pub u64);

/// A process that passed every check, as it was then.
#[derive(Clone, Debug)]
pub struct Target {
    pub pid: Pid,
    pub name: String,
    pub command: Vec<OsString>,
    /// Where /proc/PID/exe points; for display only, another file may have that name by now.
    pub exe: PathBuf,
    pub uid: u32,
    /// In clock ticks since boot: together with the id it names the process for good.
    pub start_ticks: u64,
}

impl Target {
    /// Whether the id still names the same process, and that has not ended.
    pub fn is_alive(&self) -> bool {
        match stat(self.pid) {
            Ok(stat) => stat.start_ticks == self.start_ticks && living_dir(self.pid).is_ok(),
            Err(_) => false,
        }
    }
}

/// Reads a file of /proc; a process that is gone gets its own error.
fn slurp(pid: Pid, path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|source| gone_or_io(pid, path, source))
}

/// ENOENT and ESRCH from /proc mean that the process is gone.
fn gone_or_io(pid: Pid, path: &Path, source: io::Error) -> Error {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) if !Path::new(&format!("/proc/{pid}")).exists() => {
            Error::NoSuchProcess { pid }
        }
        _ => Error::Io {
            path: path.to_owned(),
            source,
        },
    }
}

impl From<Pid> for Tid {
    /// The first thread of a process.
    fn from(pid: Pid) -> Tid {
        Tid(pid.0)
    }
}

macro_rules! shown_as {
    ($type:ty, $format:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

shown_as!(Pid, "{}");
shown_as!(Tid, "{}");
shown_as!(RemoteAddr, "{:#x}");
