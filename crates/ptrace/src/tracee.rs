//! A process with all its threads stopped: the only state in which the controller changes it.
//!
//! ```text
//! seize.rs    stop every thread, let every thread go          Stopped::stop, release, Drop
//! restart.rs  system calls that the stop interrupted
//! remote.rs   system calls made by a thread of the target     Stopped::syscall, mmap, ...
//! seccomp.rs  whether a filter of the target allows them
//! cave.rs     the piece of code that runs them, and that heals the thread if we die meanwhile
//! exec.rs     one thread, followed through an execve         Stopped::through_exec
//! step.rs     single steps out of a range of code             Stopped::step_out
//! frozen.rs   threads that do not stop
//! own_thread.rs  let all threads go at the same moment           while_stopped, on_own_thread
//! urgency.rs  being scheduled before the target's threads meanwhile
//! sys.rs      the ptrace requests
//! ```
//!
//! Signals. None is ever held here: a signal that shows up while a thread is being stopped is passed on at once, and the
//! thread stops again before the first instruction of its handler. While a thread runs on our behalf (with registers
//! that are not its own) its signals are blocked and wait in the kernel. So none can be lost or doubled, not even by
//! the sudden death of this program.
//!
//! Death of this program. The kernel then detaches every thread and lets it run. Each step below leaves the target in
//! a state in which that is harmless; where registers or signal masks are borrowed, `cave.rs` says how.
//!
//! The kernel takes ptrace requests only from the thread that seized: hence everything here is `!Send`.

mod cave;
mod exec;
mod frozen;
mod limits;
mod own_thread;
mod reaper;
mod remote;
mod restart;
mod seccomp;
mod seize;
mod step;
pub mod sys;
mod urgency;

use std::collections::HashMap;
use std::fs::File;
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::proc::{self, Mapping, Pid, RemoteAddr, Tid};
use cave::Cave;
use urgency::Urgency;

pub use cave::has_abandoned_code;
pub use limits::check_counters;
pub use own_thread::{on_own_thread, while_stopped};
pub use seize::tend_left_behind;

/// A thread's general registers, as ptrace gives them.
pub type Regs = libc::user_regs_struct;

/// How a stop is made.
#[derive(Clone, Copy, Debug)]
pub struct StopOptions {
    /// How long threads may take to stop that can; also the longest that a single remote system call may take.
    pub patience: Duration,
    /// The longest that the others stand for a thread that sleeps uninterruptibly (state D).
    pub hold: Duration,
    /// How long such a thread is waited for in all, with the others running.
    pub retry: Duration,
}

impl StopOptions {
    /// For those who come back later by themselves, and have other things to do meanwhile.
    pub fn once() -> StopOptions {
        StopOptions {
            retry: Duration::ZERO,
            ..StopOptions::default()
        }
    }
}

impl Default for StopOptions {
    fn default() -> Self {
        StopOptions {
            patience: Duration::from_secs(2),
            hold: Duration::from_millis(HOLD_MILLIS.load(Ordering::Relaxed)),
            retry: Duration::from_secs(2),
        }
    }
}

/// The user's word on it, for all stops of this process.
static HOLD_MILLIS: AtomicU64 = AtomicU64::new(50);

/// How long all others may stand for a thread that sleeps uninterruptibly, from now on.
pub fn set_stop_timeout(timeout: Duration) {
    HOLD_MILLIS.store(timeout.as_millis() as u64, Ordering::Relaxed);
}

/// All threads of one process, stopped. Dropping it lets the process go on, on every path.
///
/// Bound to the OS thread that made it (`!Send`): the kernel accepts ptrace requests from no other.
pub struct Stopped {
    pid: Pid,
    /// The living ones, all in a ptrace stop.
    threads: Vec<Tid>,
    /// Registers read so far, as the program knows them (a thread that runs on our behalf has others meanwhile).
    regs: HashMap<Tid, CachedRegs>,
    /// What was known of each right before.
    known: frozen::Known,
    mem: File,
    options: StopOptions,
    began: seize::Began,
    at_end: Option<AtEnd>,
    /// Other threads of the process may run.
    partial: bool,
    remote: Option<remote::Remote>,
    cave: Option<Cave>,
    seccomp: seccomp::Seccomp,
    _urgency: Option<Urgency>,
    _not_send: PhantomData<*const ()>,
}

/// What notes a stop: of whom, and for how long it stood.
pub type AtEnd = Box<dyn FnOnce(Pid, Duration) -> Result<()>>;

/// The memory of a process that stands.
pub struct RemoteMemory<'a> {
    pub pid: Pid,
    mem: &'a File,
    cave: Option<&'a Cave>,
}

impl RemoteMemory<'_> {
    /// What lies in a file, as if it were a process's: for tests.
    pub fn of_file(mem: &File) -> RemoteMemory<'_> {
        RemoteMemory {
            pid: Pid(0),
            mem,
            cave: None,
        }
    }

    pub fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<()> {
        self.read_raw(addr, into)?;
        if let Some(cave) = self.cave {
            cave.hide_from(addr, into);
        }
        Ok(())
    }

    fn read_raw(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<()> {
        let read = self.mem.read_exact_at(into, addr.0);
        read.map_err(|source| self.error("read", addr, into.len(), source))
    }

    pub fn write(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
        let written = self.mem.write_all_at(bytes, addr.0);
        written.map_err(|source| self.error("write", addr, bytes.len(), source))
    }

    fn error(
        &self,
        verb: &'static str,
        addr: RemoteAddr,
        len: usize,
        source: std::io::Error,
    ) -> Error {
        Error::Memory {
            pid: self.pid,
            verb,
            addr,
            len,
            source,
        }
    }
}

#[derive(Clone, Copy)]
struct CachedRegs {
    regs: Regs,
    /// Changed here, not yet in the thread.
    dirty: bool,
}

impl Stopped {
    /// Seizes and stops every thread.
    pub fn stop(pid: Pid) -> Result<Stopped> {
        Stopped::stop_with(pid, StopOptions::default())
    }

    /// As [`Stopped::stop`], with a patience of one's own.
    pub fn stop_with(pid: Pid, options: StopOptions) -> Result<Stopped> {
        let seized = proc::patiently(|| seize::seize_all(pid, options))?;
        Stopped::from_seized(seized, options)
    }

    /// One thread, while the others run; `None`: it has ended. For questions that only a thread itself can answer: whatever
    /// changes what threads share needs a stop of all of them.
    fn stop_one(pid: Pid, tid: Tid, options: StopOptions) -> Result<Option<Stopped>> {
        let Some(seized) = seize::seize_one(pid, tid, options)? else {
            return Ok(None);
        };
        let mut stopped = Stopped::from_seized(seized, options)?;
        stopped.partial = true;
        Ok(Some(stopped))
    }

    fn from_seized(mut seized: seize::Seized, options: StopOptions) -> Result<Stopped> {
        let pid = seized.pid;
        // Not earlier: the program may have been replaced, and with it its memory, until everything stood.
        let mem = open_mem(pid)?;
        let known = std::mem::take(&mut seized.known);
        let (threads, regs, began) = seized.hand_over();
        let mut stopped = Stopped {
            pid,
            threads,
            regs: regs
                .into_iter()
                .map(|(tid, regs)| (tid, CachedRegs { regs, dirty: false }))
                .collect(),
            known,
            mem,
            options,
            began,
            at_end: None,
            partial: false,
            remote: None,
            cave: None,
            seccomp: seccomp::Seccomp::default(),
            _urgency: seized.urgency.take(),
            _not_send: PhantomData,
        };
        stopped.bring_home()?;
        Ok(stopped)
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The stopped threads.
    pub fn threads(&self) -> &[Tid] {
        &self.threads
    }

    /// What the kernel said of a thread right before the stop; of one that is younger, now.
    pub fn status(&self, tid: Tid) -> Result<proc::Status> {
        match self.known.get(&tid) {
            Some(status) => Ok(status.clone()),
            None => proc::status(self.pid, tid),
        }
    }

    /// How long the first thread has been stopped. One that did not sleep may have been for less.
    pub fn stop_time(&self) -> Duration {
        self.began.first_stop.elapsed()
    }

    /// Told of this stop right before the process goes on.
    pub fn account_to(&mut self, at_end: AtEnd) {
        self.at_end = Some(at_end);
    }

    /// What the process has run since it first stood was no stop.
    pub fn stands_since_now(&mut self) {
        self.began = seize::Began {
            first_stop: Instant::now(),
            all_asked: Instant::now(),
        };
    }

    /// The memory map, exact because nothing can change it now.
    pub fn maps(&self) -> Result<Vec<Mapping>> {
        proc::maps(self.pid)
    }

    /// The registers; read once and cached.
    pub fn regs(&mut self, tid: Tid) -> Result<Regs> {
        if let Some(cached) = self.regs.get(&tid) {
            return Ok(cached.regs);
        }
        self.check(tid)?;
        let regs = self.or_ended(sys::registers(tid), "its registers were read")?;
        self.regs.insert(tid, CachedRegs { regs, dirty: false });
        Ok(regs)
    }

    /// Changes registers; written back when the thread next runs.
    ///
    /// A thread that stands behind an interrupted system call (`orig_rax >= 0` and `rax` from -512 to -516) has its
    /// `rip` moved back by two when it goes on: do not move such a thread without also setting `orig_rax` to -1.
    pub fn set_regs(&mut self, tid: Tid, regs: Regs) -> Result<()> {
        self.check(tid)?;
        if self.remote.as_ref().is_some_and(|remote| remote.tid == tid) {
            self.end_remote()?;
        }
        self.regs.insert(tid, CachedRegs { regs, dirty: true });
        Ok(())
    }

    /// Writes all changed registers into their threads now, for what must be in place before something else is done.
    pub fn flush(&mut self) -> Result<()> {
        self.end_remote()?;
        for tid in self.threads.clone() {
            self.flush_regs(tid)?;
        }
        Ok(())
    }

    /// Writes changed registers of one thread into it.
    fn flush_regs(&mut self, tid: Tid) -> Result<()> {
        if let Some(cached) = self.regs.get_mut(&tid)
            && cached.dirty
        {
            sys::set_registers(tid, &cached.regs)?;
            cached.dirty = false;
        }
        Ok(())
    }

    /// Its memory, which several threads of ours may read and write.
    pub fn memory(&self) -> RemoteMemory<'_> {
        RemoteMemory {
            pid: self.pid,
            mem: &self.mem,
            cave: self.cave.as_ref(),
        }
    }

    /// Reads exactly `into.len()` bytes.
    pub fn read(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<()> {
        self.memory().read(addr, into)
    }

    /// Reads as much of `into` as there is memory from `addr` on, and returns how much that is.
    pub fn read_up_to(&self, addr: RemoteAddr, into: &mut [u8]) -> usize {
        // The kernel ends a read where a page is missing.
        let read = self.mem.read_at(into, addr.0).unwrap_or(0);
        if let Some(cave) = &self.cave {
            cave.hide_from(addr, &mut into[..read]);
        }
        read
    }

    fn read_raw(&self, addr: RemoteAddr, into: &mut [u8]) -> Result<()> {
        self.memory().read_raw(addr, into)
    }

    /// Writes all of `bytes`, also into read-only and executable memory.
    pub fn write(&mut self, addr: RemoteAddr, bytes: &[u8]) -> Result<()> {
        self.memory().write(addr, bytes)
    }

    /// Lets the process go on. The same as dropping it, but tells of failures.
    pub fn release(mut self) -> Result<()> {
        self.let_go()
    }

    fn check(&self, tid: Tid) -> Result<()> {
        if self.threads.contains(&tid) {
            return Ok(());
        }
        Err(Error::NotStopped { pid: self.pid, tid })
    }

    /// A stopped thread vanishes only by a SIGKILL, which ends the whole process.
    fn or_ended<T>(&self, result: Result<T>, doing: &'static str) -> Result<T> {
        match result {
            Err(Error::Ptrace { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => {
                Err(Error::TargetExited {
                    pid: self.pid,
                    how: "it was killed".to_owned(),
                    doing,
                })
            }
            other => other,
        }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.options.patience
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A failure here means that the target has ended, and then there is nothing left to restore.
        let _ = self.let_go();
    }
}

fn open_mem(pid: Pid) -> Result<File> {
    let path = proc::living_dir(pid)?.join("mem");
    File::options()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(|source| Error::Io { path, source })
}

/// Children of ours whose end a wait for a thread may have swallowed: id -> status, once it has ended.
static OUR_CHILDREN: Mutex<Option<HashMap<i32, Option<i32>>>> = Mutex::new(None);

fn with_children<T>(work: impl FnOnce(&mut HashMap<i32, Option<i32>>) -> T) -> T {
    let mut children = OUR_CHILDREN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    work(children.get_or_insert_default())
}

/// From now on the end of this child is remembered, whoever collects it.
pub(crate) fn adopt_child(pid: Pid) {
    with_children(|children| children.insert(pid.0, None));
}

/// The status with which a child of ours ended, if it was collected here.
pub(crate) fn child_status(pid: Pid) -> Option<i32> {
    with_children(|children| children.get(&pid.0).copied().flatten())
}

pub(crate) fn note_ended(tid: Tid, status: i32) {
    with_children(|children| {
        if let Some(slot) = children.get_mut(&tid.0) {
            *slot = Some(status);
        }
    });
}
