//! One process's life, seen from outside: a descriptor that names it for good, and how it ended.
//!
//! Most followed processes are no children of ours, so nobody tells us their status: it is read from the zombie while
//! there is one, and from the descriptor afterwards (Linux 6.15 and later keep it there).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use thalweg_model::End;

use crate::clock;
use crate::proc::{self, Pid};

/// A process that runs one of our programs.
pub(crate) struct Life {
    pub(super) pid: Pid,
    /// Where nobody has a descriptor for us, the id must do.
    descriptor: Option<OwnedFd>,
    start_ticks: Option<u64>,
    /// Who made it, if it is one of ours too; of a later program of the same process: the same.
    pub(super) parent: Option<u32>,
    /// When, in ticks of the time-stamp counter, and how.
    pub end: Option<(u64, End)>,
    /// How long its first thread had been on a processor then, in nanoseconds, if anybody knows.
    pub processor_time: Option<u64>,
}

impl Life {
    pub fn new(pid: Pid) -> Life {
        // SAFETY: numbers only; the result is a descriptor of ours alone, or -1.
        let descriptor = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid.0, 0) as i32;
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        let stat = proc::stat(pid).ok();
        Life {
            pid,
            descriptor,
            start_ticks: stat.as_ref().map(|stat| stat.start_ticks),
            parent: stat.map(|stat| stat.parent as u32),
            end: None,
            processor_time: None,
        }
    }

    /// Takes note of its end, if it has come.
    pub fn look(&mut self) {
        if self.end.is_none() && self.has_ended() {
            let ticks = clock::ticks();
            self.processor_time = self
                .zombie_status()
                .and_then(|_| proc::processor_time(self.pid, self.pid.into()));
            self.end = Some((ticks, self.status()));
        }
    }

    /// It has become another program.
    pub fn replaced(&mut self, ticks: u64) {
        self.end.get_or_insert((ticks, End::Replaced));
    }

    fn has_ended(&self) -> bool {
        if self.descriptor.is_some() {
            return self.ends_within(Duration::ZERO);
        }
        !proc::stat(self.pid)
            .is_ok_and(|stat| Some(stat.start_ticks) == self.start_ticks && !stat.is_dead())
    }

    /// Sleeps for so long, or until it ends.
    pub fn wait(&self, pause: Duration) {
        if self.end.is_some() || self.descriptor.is_none() {
            std::thread::sleep(pause);
        } else {
            self.ends_within(pause);
        }
    }

    fn ends_within(&self, pause: Duration) -> bool {
        let Some(descriptor) = &self.descriptor else {
            return false;
        };
        let mut poll = libc::pollfd {
            fd: descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which the call fills.
        unsafe { libc::poll(&mut poll, 1, pause.as_millis() as i32) == 1 }
    }

    fn status(&self) -> End {
        // First the zombie: its parent may collect it between the two looks, but not the other way round.
        let status = self
            .zombie_status()
            .or_else(|| exit_status(self.descriptor.as_ref()?).ok());
        status.map_or(End::Unknown, end_of)
    }

    /// The last field of /proc/PID/stat, which only a zombie has.
    fn zombie_status(&self) -> Option<i32> {
        let stat = proc::stat(self.pid).ok()?;
        if !stat.is_dead() || Some(stat.start_ticks) != self.start_ticks {
            return None;
        }
        let line = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        line.split_whitespace().next_back()?.parse().ok()
    }
}

pub(super) fn end_of(status: i32) -> End {
    if libc::WIFEXITED(status) {
        End::Exited(libc::WEXITSTATUS(status) as u8)
    } else if libc::WIFSIGNALED(status) {
        End::Killed(libc::WTERMSIG(status) as u8)
    } else {
        End::Unknown
    }
}

/// The kernel's `struct pidfd_info`, first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;

fn exit_status(descriptor: &OwnedFd) -> io::Result<i32> {
    // _IOWR(0xff, 11, struct pidfd_info)
    const PIDFD_GET_INFO: u64 = 3 << 30 | (size_of::<PidfdInfo>() as u64) << 16 | 0xff << 8 | 11;
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the request carries the structure's size, which is what the kernel fills.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    match result {
        0 if info.mask & PIDFD_INFO_EXIT != 0 => Ok(info.exit_code),
        0 => Err(io::ErrorKind::NotFound.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn life_of(script: &str) -> (std::process::Child, Life) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let life = Life::new(Pid(child.id() as i32));
        (child, life)
    }

    fn ended(life: &mut Life) -> End {
        for _ in 0..1000 {
            life.look();
            if let Some((_, end)) = life.end {
                return end;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("it has not ended");
    }

    #[test]
    fn a_zombie_tells_how_it_ended() {
        let (mut child, mut life) = life_of("sleep 0.05; exit 7");
        life.look();
        assert!(life.end.is_none());
        assert_eq!(ended(&mut life), End::Exited(7));
        child.wait().unwrap();
        let (mut child, mut life) = life_of("kill -9 $$");
        assert_eq!(ended(&mut life), End::Killed(9));
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_its_parent_has_collected_still_tells_or_says_that_it_is_unknown() {
        let (mut child, mut life) = life_of("exit 5");
        child.wait().unwrap();
        assert!(matches!(ended(&mut life), End::Exited(5) | End::Unknown));
    }
}
