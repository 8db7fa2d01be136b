//! What a target has left: its profile, in the memory of a process of ours that waits for somebody who takes it.
//!
//! The profile is a sealed memfd, which is that process's standard input. It is found by its command line, `thalweg attach
//! --stay PID`: what the target could write is asked nothing. It must run this very program, as this very user.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use thalweg_abi as shm;
use thalweg_model::{self as model, Profile};

use crate::error::{Error, Result};
use crate::memory::{Shared, memfd};
use crate::proc::{self, Pid};

/// How long a profile is kept.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// How long one that has just lost its target may take to read what that has counted.
const READING: Duration = Duration::from_secs(20);
const NAP: Duration = Duration::from_millis(20);

const NAME: &std::ffi::CStr = c"thalweg-profile";

/// A profile that is kept.
pub struct Left {
    /// Who keeps it.
    pub sidecar: Pid,
    descriptor: OwnedFd,
    file: File,
}

impl Left {
    pub fn profile(&self) -> Result<Profile> {
        let damaged = |error: model::ReadError| {
            Error::Damaged(format!("what process {} keeps: {error}", self.sidecar))
        };
        let mut file = &self.file;
        file.rewind().map_err(|error| damaged(error.into()))?;
        model::read(&mut file).map_err(damaged)
    }

    /// Nobody needs it any more: its keeper ends.
    pub fn release(self) {
        signal(&self.descriptor, libc::SIGTERM);
    }
}

/// What a process with that number has left that is not attached any more, if anything.
pub fn left_by(target: Pid) -> Result<Option<Left>> {
    let deadline = Instant::now() + READING;
    loop {
        let mut sidecars = all_of(target);
        // The youngest has the last process that had the number.
        sidecars.sort_by_key(|&(_, _, since)| std::cmp::Reverse(since));
        let mut is_reading = false;
        for (sidecar, descriptor, _) in sidecars {
            let link = format!("/proc/{sidecar}/fd/0");
            // First whether it has yet to read: it may be done before the next question, and not the other way round.
            is_reading |= has_yet_to_read(Path::new(&link), target);
            if let Some(file) = memfd::open_profile(Path::new(&link), NAME) {
                return Ok(Some(Left {
                    sidecar,
                    descriptor,
                    file,
                }));
            }
        }
        if !is_reading {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Err(Error::Busy(format!(
                "process {target} has ended, but its sidecar has not read yet what it left, or waits for fork children that are counted with it: try again, or detach one of these"
            )));
        }
        std::thread::sleep(NAP);
    }
}

/// Whether that is the shared memory of a target that nobody has detached, or of one that has ended
/// and whose fork children the sidecar has just detached: it reads what was counted after that.
fn has_yet_to_read(link: &Path, target: Pid) -> bool {
    let header = Shared::opened_at(link).and_then(|shared| shared.header().ok());
    header.is_some_and(|header| {
        header.magic == shm::MAGIC
            && match header.state {
                shm::STATE_ATTACHED => true,
                shm::STATE_DETACHED => !proc::stat(target).is_ok_and(|stat| !stat.is_dead()),
                _ => false,
            }
    })
}

/// Whether this process was given a profile to keep.
pub fn has_profile() -> bool {
    memfd::open_profile(Path::new("/proc/self/fd/0"), NAME).is_some()
}

/// The sidecar of an attached process.
pub fn find(target: Pid) -> Option<Pid> {
    let sidecars = all_of(target).into_iter();
    sidecars
        .max_by_key(|&(_, _, since)| since)
        .map(|(pid, _, _)| pid)
}

/// All sidecars of ours that were left beside a process of that number: who they are for good, and since when.
fn all_of(target: Pid) -> Vec<(Pid, OwnedFd, u64)> {
    let wanted = target.to_string();
    let named = |pid: Pid| {
        let arguments = proc::command(pid).unwrap_or_default();
        let is_it =
            |(index, word): (usize, &str)| arguments.get(index).is_some_and(|a| *a == *word);
        [(1, "attach"), (2, "--stay"), (3, &*wanted)]
            .into_iter()
            .all(is_it)
    };
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let ours = |pid: Pid| std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|m| m.uid() == user);
    let found = proc::all().into_iter().filter_map(|pid| {
        if pid.0 as u32 == std::process::id() || !ours(pid) {
            return None;
        }
        // First the descriptor: what is found out then is true of the process that it names, if that still lives.
        let descriptor = descriptor_of(pid)?;
        let since = proc::stat(pid).ok()?.start_ticks;
        let is_it = proc::runs_this_program(pid) && named(pid);
        (is_it && signal(&descriptor, 0)).then_some((pid, descriptor, since))
    });
    found.collect()
}

fn descriptor_of(pid: Pid) -> Option<OwnedFd> {
    // SAFETY: numbers only; the result is a descriptor of ours alone, or -1.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid.0, 0) as i32;
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Whether that process lives.
fn signal(process: &OwnedFd, signal: i32) -> bool {
    let (fd, info, flags) = (process.as_raw_fd(), std::ptr::null::<libc::siginfo_t>(), 0);
    // SAFETY: without a structure the kernel fills in its own.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, signal, info, flags) == 0 }
}

/// A profile in memory that cannot be changed any more.
pub fn keep_profile(profile: &Profile) -> Result<File> {
    let failed = |error: std::io::Error| Error::System {
        doing: "the profile cannot be kept in memory".into(),
        source: error,
    };
    let bytes = model::write(profile).map_err(|error| Error::Damaged(error.to_string()))?;
    // SAFETY: a C string and flags; the descriptor is owned by nobody else.
    let mut file = unsafe {
        match libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) {
            fd if fd >= 0 => File::from_raw_fd(fd),
            _ => return Err(failed(std::io::Error::last_os_error())),
        }
    };
    file.write_all(&bytes).map_err(failed)?;
    memfd::seal_profile(&file).map_err(failed)?;
    Ok(file)
}

/// Puts the profile where it is found, in the place of the shared memory.
pub(super) fn show(profile: &Profile) -> Result<()> {
    let file = keep_profile(profile)?;
    // SAFETY: numbers; nobody here reads from the standard input.
    match unsafe { libc::dup2(file.as_raw_fd(), libc::STDIN_FILENO) } {
        0 => Ok(()),
        _ => Err(Error::Lost("the profile cannot be shown".into())),
    }
}

/// Until it is taken, which ends this process, or an hour has gone, or as many seconds as the environment says.
pub fn wait_for_takers() {
    let told = std::env::var("THALWEG_KEEP_SECONDS").ok();
    let told = told.and_then(|seconds| seconds.parse().ok());
    std::thread::sleep(told.map_or(KEPT_FOR, Duration::from_secs));
}
