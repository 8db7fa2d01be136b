//! System calls made by a thread of the target on our behalf.
//!
//! The thread runs from one system-call stop to the next (PTRACE_SYSCALL), not by single steps: a step ends in a real
//! SIGTRAP, and the kernel resets that signal's action where the program ignores or blocks it.
//!
//! The thread stays borrowed from the first call until [`Stopped::end_remote`], since giving it back costs one more stop:
//! behind a system-call stop the kernel does not look for an interrupted call to restart, so the thread is first
//! brought to an ordinary stop, where it does, and gets its registers there.

use std::io;

use super::sys::{self, Event, Resume};
use super::{Cave, Regs, Stopped};
use crate::error::{Error, Result};
use crate::proc::{RemoteAddr, Tid};

/// A borrowed thread.
pub(super) struct Remote {
    pub(super) tid: Tid,
    /// Its own signal mask.
    mask: u64,
    /// The registers that it makes calls with.
    foreign: Regs,
    /// Not so after a system call that did not come back in time.
    standing: bool,
}

const RED_ZONE: u64 = 128;
/// Code segment selector of 64-bit user code.
const USER_CS: u64 = 0x33;

impl Stopped {
    /// Makes one stopped thread execute a system call. The thread gets its own state back at the latest when the
    /// process is released; [`Stopped::regs`] shows its own all the time.
    pub fn syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<u64> {
        self.borrow(None)?;
        let result = self.run_syscall(nr, args)?;
        if (-4095..0).contains(&(result as i64)) {
            return Err(Error::RemoteSyscall {
                pid: self.pid,
                name: name_of(nr),
                source: io::Error::from_raw_os_error(-(result as i64) as i32),
            });
        }
        Ok(result)
    }

    /// As [`Stopped::syscall`], by a thread of one's choice: for calls whose effect is a thread's own.
    pub fn syscall_by(&mut self, tid: Tid, nr: i64, args: [u64; 6]) -> Result<u64> {
        self.borrow(Some(tid))?;
        self.syscall(nr, args)
    }

    /// A system call by `tid` that writes a number to where its second argument points, and that number; `None` where the thread has
    /// no room for it. It is written below the thread's stack, where nothing lives, and what was there is put back.
    pub(super) fn ask_number(&mut self, tid: Tid, nr: i64, first: u64) -> Result<Option<i32>> {
        const BELOW: u64 = 64;
        self.borrow(Some(tid))?;
        let Some(remote) = &self.remote else {
            return Ok(None);
        };
        let place = RemoteAddr(remote.foreign.rsp.wrapping_sub(BELOW));
        let mut before = [0; 4];
        if self.read(place, &mut before).is_err() {
            return Ok(None);
        }
        let result = self.run_syscall(nr, [first, place.0, 0, 0, 0, 0])?;
        let mut answer = [0; 4];
        self.read(place, &mut answer)?;
        if result != 0 {
            return Ok(None);
        }
        self.write(place, &before)?;
        Ok(Some(i32::from_le_bytes(answer)))
    }

    /// Borrows a thread, unless one that will do is borrowed already.
    fn borrow(&mut self, wanted: Option<Tid>) -> Result<()> {
        match (&self.remote, wanted) {
            (Some(_), None) => return Ok(()),
            (Some(remote), Some(tid)) if remote.tid == tid => return Ok(()),
            _ => self.end_remote()?,
        }
        let (tid, regs) = match wanted {
            Some(tid) => (tid, self.regs(tid)?),
            None => self.choose_thread()?,
        };
        self.begin_remote(tid, regs)
    }

    fn begin_remote(&mut self, tid: Tid, mut regs: Regs) -> Result<()> {
        if let Some(abort) = self.leave_rseq(tid, &regs)? {
            regs.rip = abort.0;
            self.set_regs(tid, regs)?;
        }
        self.flush_regs(tid)?;
        let mask = self.or_ended(sys::signal_mask(tid), "its signal mask was read")?;
        self.fill_cave(&regs, mask)?;
        let start = self.find_cave()?;
        let mut foreign = regs;
        foreign.rip = start.0;
        foreign.rsp = (regs.rsp - RED_ZONE) & !15;
        foreign.eflags = 0x202;
        // No system call that the kernel could restart.
        foreign.orig_rax = u64::MAX;
        foreign.rax = 0;
        // From here on the thread is borrowed, whatever fails.
        self.remote = Some(Remote {
            tid,
            mask,
            foreign,
            standing: true,
        });
        // Registers first: should we die in between, the thread heals itself.
        let set =
            sys::set_registers(tid, &foreign).and_then(|()| sys::set_signal_mask(tid, u64::MAX));
        self.or_ended(set, "it was made to run a system call")
    }

    /// The first thread of 64-bit code; one outside of system calls if there is one.
    fn choose_thread(&mut self) -> Result<(Tid, Regs)> {
        let mut chosen = None;
        for tid in self.threads.clone() {
            let regs = self.regs(tid)?;
            if regs.cs != USER_CS {
                continue;
            }
            if (regs.orig_rax as i64) < 0 {
                return Ok((tid, regs));
            }
            chosen.get_or_insert((tid, regs));
        }
        chosen.ok_or_else(|| {
            Error::Refused(format!(
                "no thread of process {} runs 64-bit code: it cannot be made to map memory",
                self.pid
            ))
        })
    }

    /// A thread inside a restartable sequence must leave it by its abort handler, as after any interruption: the kernel
    /// would see to that, but not once it has seen the thread elsewhere. Returns the handler's address.
    fn leave_rseq(&mut self, tid: Tid, regs: &Regs) -> Result<Option<RemoteAddr>> {
        const RSEQ_CS: u64 = 8;
        let Some(registered) = sys::rseq(tid) else {
            return Ok(None);
        };
        let slot = RemoteAddr(registered.abi.wrapping_add(RSEQ_CS));
        let mut word = [0; 8];
        if self.read(slot, &mut word).is_err() || word == [0; 8] {
            return Ok(None);
        }
        // struct rseq_cs { u32 version, flags; u64 start_ip, post_commit_offset, abort_ip; }
        let mut section = [0; 32];
        if self
            .read(RemoteAddr(u64::from_le_bytes(word)), &mut section)
            .is_err()
        {
            return Ok(None);
        }
        let field = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&section[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (start, len, abort) = (field(8), field(16), field(24));
        if regs.rip.wrapping_sub(start) >= len {
            return Ok(None);
        }
        self.write(slot, &[0; 8])?;
        Ok(Some(RemoteAddr(abort)))
    }

    /// One call by the borrowed thread.
    fn run_syscall(&mut self, nr: i64, args: [u64; 6]) -> Result<u64> {
        let Some(Remote { tid, foreign, .. }) = &self.remote else {
            return Err(Error::Lost("no thread is borrowed".to_owned()));
        };
        let tid = *tid;
        let mut regs = *foreign;
        self.check_system_call(tid, nr, args)?;
        regs.rax = nr as u64;
        regs.rdi = args[0];
        regs.rsi = args[1];
        regs.rdx = args[2];
        regs.r10 = args[3];
        regs.r8 = args[4];
        regs.r9 = args[5];
        const DOING: &str = "it was made to run a system call";
        self.or_ended(sys::set_registers(tid, &regs), DOING)?;
        self.run_to(tid, Resume::ToSyscall, Event::Syscall)?;
        self.run_to(tid, Resume::ToSyscall, Event::Syscall)?;
        let after = self.or_ended(sys::registers(tid), DOING)?;
        Ok(after.rax)
    }

    /// Resumes a borrowed thread until it reports `wanted`. All signals but SIGSTOP and SIGKILL are blocked: a SIGSTOP
    /// is passed on (it runs no handler, and the process stays stopped after its release), stops are passed over.
    pub(super) fn run_to(&mut self, tid: Tid, how: Resume, wanted: Event) -> Result<()> {
        let deadline = self.deadline();
        let mut signal = 0;
        loop {
            if self.remote.as_ref().is_none_or(|remote| remote.standing) {
                self.or_ended(
                    sys::resume(tid, how, signal),
                    "it was made to run a system call",
                )?;
            }
            self.standing(false);
            let event = sys::wait(tid, deadline);
            self.standing(event.is_some());
            signal = match event {
                Some(event) if event == wanted => return Ok(()),
                Some(Event::Signal(signal)) => signal,
                Some(Event::Stop | Event::Syscall | Event::Exec) => 0,
                Some(Event::Ended(_)) => {
                    self.threads.retain(|known| *known != tid);
                    self.remote = None;
                    return Err(Error::TargetExited {
                        pid: self.pid,
                        how: "it was killed".to_owned(),
                        doing: "it was made to run a system call",
                    });
                }
                None => {
                    return Err(Error::Stuck {
                        pid: self.pid,
                        tid,
                        state: crate::proc::thread_stat(self.pid, tid)
                            .map_or('?', |stat| stat.state),
                        wchan: crate::proc::wchan(self.pid, tid),
                        millis: self.options.patience.as_millis() as u64,
                    });
                }
            };
        }
    }

    fn standing(&mut self, standing: bool) {
        if let Some(remote) = &mut self.remote {
            remote.standing = standing;
        }
    }

    /// Gives the borrowed thread its own state back.
    pub(super) fn end_remote(&mut self) -> Result<()> {
        let Some(Remote { tid, mask, .. }) = self.remote else {
            return Ok(());
        };
        const DOING: &str = "its registers were restored";
        let own = self.regs(tid)?;
        let stopped = self
            .or_ended(sys::interrupt(tid), DOING)
            .and_then(|()| self.run_to(tid, Resume::Run, Event::Stop));
        let standing = self.remote.take().is_none_or(|remote| remote.standing);
        if !standing {
            // It will come back to its own state through the cave, which therefore must stay.
            self.threads.retain(|known| *known != tid);
            super::seize::leave_behind(tid);
            self.cave = None;
        }
        stopped?;
        // The mask first: should we die in between, the thread heals itself.
        let set = sys::set_signal_mask(tid, mask).and_then(|()| sys::set_registers(tid, &own));
        self.or_ended(set, DOING)?;
        self.empty_cave()
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
        let args = [
            hint.0,
            len,
            prot as u64,
            flags as u64,
            i64::from(fd) as u64,
            offset,
        ];
        self.syscall(libc::SYS_mmap, args).map(RemoteAddr)
    }

    pub fn munmap(&mut self, addr: RemoteAddr, len: u64) -> Result<()> {
        self.syscall(libc::SYS_munmap, [addr.0, len, 0, 0, 0, 0])
            .map(drop)
    }

    pub fn mprotect(&mut self, addr: RemoteAddr, len: u64, prot: i32) -> Result<()> {
        self.syscall(libc::SYS_mprotect, [addr.0, len, prot as u64, 0, 0, 0])
            .map(drop)
    }

    pub fn madvise(&mut self, addr: RemoteAddr, len: u64, advice: i32) -> Result<()> {
        self.syscall(libc::SYS_madvise, [addr.0, len, advice as u64, 0, 0, 0])
            .map(drop)
    }

    /// Makes an anonymous file in the target; the number is the target's. Open it here as /proc/PID/fd/N.
    pub fn memfd_create(&mut self, name: &str, flags: u32) -> Result<i32> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.truncate(Cave::SCRATCH_LEN - 1);
        bytes.push(0);
        self.borrow(None)?;
        let scratch = match &self.cave {
            Some(cave) => cave.scratch(),
            None => return Err(Error::NoSyscallInstruction { pid: self.pid }),
        };
        self.write(scratch, &bytes)?;
        self.syscall(
            libc::SYS_memfd_create,
            [scratch.0, u64::from(flags), 0, 0, 0, 0],
        )
        .map(|fd| fd as i32)
    }

    pub fn ftruncate(&mut self, fd: i32, len: u64) -> Result<()> {
        self.syscall(libc::SYS_ftruncate, [fd as u64, len, 0, 0, 0, 0])
            .map(drop)
    }

    pub fn close(&mut self, fd: i32) -> Result<()> {
        self.syscall(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0])
            .map(drop)
    }

    /// Of the thread that is borrowed, hence of use only for what the whole process shares.
    pub fn arch_prctl(&mut self, code: i32, addr: u64) -> Result<u64> {
        self.syscall(libc::SYS_arch_prctl, [code as u64, addr, 0, 0, 0, 0])
    }
}

pub(super) fn name_of(nr: i64) -> String {
    let name = match nr {
        libc::SYS_mmap => "mmap",
        libc::SYS_munmap => "munmap",
        libc::SYS_mprotect => "mprotect",
        libc::SYS_madvise => "madvise",
        libc::SYS_memfd_create => "memfd_create",
        libc::SYS_ftruncate => "ftruncate",
        libc::SYS_close => "close",
        libc::SYS_arch_prctl => "arch_prctl",
        libc::SYS_gettid => "gettid",
        libc::SYS_getpid => "getpid",
        libc::SYS_futex => "futex",
        libc::SYS_tgkill => "tgkill",
        libc::SYS_getppid => "getppid",
        libc::SYS_rt_sigprocmask => "rt_sigprocmask",
        libc::SYS_membarrier => "membarrier",
        libc::SYS_rt_sigaction => "rt_sigaction",
        libc::SYS_perf_event_open => "perf_event_open",
        libc::SYS_prctl => "prctl",
        libc::SYS_fcntl => "fcntl",
        _ => return format!("number {nr}"),
    };
    name.to_owned()
}
