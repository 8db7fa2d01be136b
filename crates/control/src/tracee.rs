//! A process with all its threads stopped: the only state in which the controller changes it.

use std::time::Duration;

use crate::error::Result;
use crate::proc::{Mapping, Pid, RemoteAddr, Tid};

/// A thread's general registers, as ptrace gives them.
pub type Regs = libc::user_regs_struct;

/// How a stop is made.
#[derive(Clone, Copy, Debug)]
pub struct StopOptions {
    /// The longest time from the first request to the last thread's stop.
    pub patience: Duration,
}

impl Default for StopOptions {
    fn default() -> Self {
        StopOptions {
            patience: Duration::from_secs(2),
        }
    }
}

/// All threads of one process, stopped. Dropping it lets the process go on, on every path.
///
/// Bound to the OS thread that made it (`!Send`): the kernel accepts ptrace requests from no other.
pub struct Stopped {
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Stopped {
    /// Seizes and stops every thread.
    pub fn stop(pid: Pid) -> Result<Stopped> {
        Stopped::stop_with(pid, StopOptions::default())
    }

    /// As [`Stopped::stop`], with a patience of one's own.
    pub fn stop_with(pid: Pid, options: StopOptions) -> Result<Stopped> {
        let _ = (pid, options);
        todo!()
    }

    pub fn pid(&self) -> Pid {
        todo!()
    }

    /// The stopped threads.
    pub fn threads(&self) -> &[Tid] {
        todo!()
    }

    /// How long the first thread has been stopped.
    pub fn stop_time(&self) -> Duration {
        todo!()
    }

    /// The memory map, exact because nothing can change it now.
    pub fn maps(&self) -> Result<Vec<Mapping>> {
        todo!()
    }

    /// The registers; read once and cached.
    pub fn regs(&mut self, tid: Tid) -> Result<Regs> {
        let _ = tid;
        todo!()
    }

    /// Changes registers; written back when the thread next runs.
    pub fn set_regs(&mut self, tid: Tid, regs: Regs) -> Result<()> {
        let _ = (tid, regs);
        todo!()
    }

    /// Reads exactly `into.len()` bytes.
    pub fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<()> {
        let _ = (addr, into);
        todo!()
    }

    /// Writes all of `bytes`, also into read-only and executable memory.
    pub fn write(&mut self, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let _ = (addr, bytes);
        todo!()
    }

    /// Makes one stopped thread execute a system call, and puts everything back as it was.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<u64> {
        let _ = (nr, args);
        todo!()
    }

    /// Anonymous or file memory; `hint` 0 lets the kernel choose. `fd` is the target's, or -1.
    pub fn mmap(
        &mut self,
        hint: RemoteAddr,
        len: u64,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: u64,
    ) -> Result<RemoteAddr> {
        let _ = (hint, len, prot, flags, fd, offset);
        todo!()
    }

    pub fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<()> {
        let _ = (addr, len);
        todo!()
    }

    pub fn mprotect(&mut self, addr: RemoteAddr, len: u64, prot: i32) -> Result<()> {
        let _ = (addr, len, prot);
        todo!()
    }

    pub fn madvise(&mut self, addr: RemoteAddr, len: u64, advice: i32) -> Result<()> {
        let _ = (addr, len, advice);
        todo!()
    }

    /// Makes an anonymous file in the target; the number is the target's. Open it here as /proc/PID/fd/N.
    pub fn memfd_create(&mut self, name: &str, flags: u32) -> Result<i32> {
        let _ = (name, flags);
        todo!()
    }

    pub fn ftruncate(&mut self, fd: i32, len: u64) -> Result<()> {
        let _ = (fd, len);
        todo!()
    }

    pub fn close(&mut self, fd: i32) -> Result<()> {
        let _ = fd;
        todo!()
    }

    /// Steps a thread until `inside(pc)` is false. `Ok(false)`: still inside after `max_steps`.
    pub fn step_out(
        &mut self,
        tid: Tid,
        inside: &dyn Fn(RemoteAddr) -> bool,
        max_steps: usize,
    ) -> Result<bool> {
        let _ = (tid, inside, max_steps);
        todo!()
    }

    /// Lets the process go on. The same as dropping it, but tells of failures.
    pub fn release(self) -> Result<()> {
        todo!()
    }
}
