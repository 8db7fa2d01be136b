//! The ptrace requests and waitpid, one safe function each; no policy.

use std::io;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use super::seccomp::Instruction;
use super::{Regs, urgency};
use crate::error::{Error, Result};
use crate::proc::Tid;

/// What a thread reported to its tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// PTRACE_EVENT_STOP: our interrupt, or the stop of the whole process by a signal.
    Stop,
    /// The program was replaced.
    Exec,
    /// Entry to or exit from a system call.
    Syscall,
    /// A signal stands before its delivery: resuming with its number delivers it, with 0 suppresses it.
    Signal(i32),
    /// The thread has ended; the status as waitpid gave it.
    Ended(i32),
}

/// A resuming request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resume {
    Run,
    ToSyscall,
    Step,
}

/// Where a thread's restartable sequences are registered.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RseqConfiguration {
    pub abi: u64,
    size: u32,
    pub signature: u32,
    flags: u32,
    pad: u32,
}

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH: libc::c_uint = 0x4211;
const PTRACE_EVENT_STOP: i32 = 128;

/// # Safety
/// `addr` and `data` must be plain numbers, or point to live memory of the size that the request
/// reads or writes. The kernel checks the rest.
unsafe fn request(
    code: libc::c_uint,
    name: &'static str,
    tid: Tid,
    addr: usize,
    data: usize,
) -> Result<i64> {
    // SAFETY: by this function's own contract.
    let result = unsafe { libc::ptrace(code, tid.0, addr, data) };
    if result == -1 {
        return Err(Error::Ptrace {
            request: name,
            tid,
            source: io::Error::last_os_error(),
        });
    }
    Ok(result)
}

pub(crate) fn seize(tid: Tid) -> Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
    // SAFETY: numbers only.
    unsafe { request(libc::PTRACE_SEIZE, "seize", tid, 0, options as usize) }.map(drop)
}

/// Makes a running thread stop, and a stopped one stop again as soon as it is resumed.
pub(crate) fn interrupt(tid: Tid) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { request(libc::PTRACE_INTERRUPT, "interrupt", tid, 0, 0) }.map(drop)
}

pub(crate) fn resume(tid: Tid, how: Resume, signal: i32) -> Result<()> {
    let (code, name) = match how {
        Resume::Run => (libc::PTRACE_CONT, "continue"),
        Resume::ToSyscall => (libc::PTRACE_SYSCALL, "continue to system call"),
        Resume::Step => (libc::PTRACE_SINGLESTEP, "single step"),
    };
    // SAFETY: numbers only.
    unsafe { request(code, name, tid, 0, signal as usize) }.map(drop)
}

pub(crate) fn detach(tid: Tid, signal: i32) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { request(libc::PTRACE_DETACH, "detach", tid, 0, signal as usize) }.map(drop)
}

pub(crate) fn registers(tid: Tid) -> Result<Regs> {
    let mut regs = MaybeUninit::<Regs>::uninit();
    // SAFETY: GETREGS fills the whole structure; it is read only after success.
    unsafe {
        let to = regs.as_mut_ptr() as usize;
        request(libc::PTRACE_GETREGS, "read registers", tid, 0, to)?;
        Ok(regs.assume_init())
    }
}

pub(crate) fn set_registers(tid: Tid, regs: &Regs) -> Result<()> {
    let from = std::ptr::from_ref(regs) as usize;
    // SAFETY: SETREGS reads one whole structure.
    unsafe { request(libc::PTRACE_SETREGS, "write registers", tid, 0, from) }.map(drop)
}

/// The blocked signals, bit N-1 for signal N. Of a thread inside sigsuspend, ppoll and the like: its lasting mask.
pub(crate) fn signal_mask(tid: Tid) -> Result<u64> {
    let mut mask = 0u64;
    let to = std::ptr::from_mut(&mut mask) as usize;
    // SAFETY: the kernel's sigset_t has 8 bytes, and so says `addr`.
    unsafe { request(PTRACE_GETSIGMASK, "read signal mask", tid, 8, to)? };
    Ok(mask)
}

pub(crate) fn set_signal_mask(tid: Tid, mask: u64) -> Result<()> {
    let from = std::ptr::from_ref(&mask) as usize;
    // SAFETY: as above.
    unsafe { request(PTRACE_SETSIGMASK, "write signal mask", tid, 8, from) }.map(drop)
}

/// How the thread registered its restartable sequences; `None` where it did not or the kernel cannot tell.
pub fn rseq(tid: Tid) -> Option<RseqConfiguration> {
    let mut configuration = RseqConfiguration::default();
    let size = size_of::<RseqConfiguration>();
    let to = std::ptr::from_mut(&mut configuration) as usize;
    // SAFETY: the kernel writes at most `size` bytes.
    unsafe { request(PTRACE_GET_RSEQ_CONFIGURATION, "read rseq", tid, size, to) }.ok()?;
    (configuration.abi != 0).then_some(configuration)
}

/// Whether system calls of a stopped thread are handed back to its program (syscall user dispatch); kernels before 6.4 do not tell.
pub(crate) fn dispatches_system_calls(tid: Tid) -> bool {
    // struct ptrace_sud_config: mode, selector, offset, length.
    let mut configuration = [0u64; 4];
    let size = size_of_val(&configuration);
    let to = configuration.as_mut_ptr() as usize;
    // SAFETY: the kernel writes `size` bytes.
    let read = unsafe {
        request(
            PTRACE_GET_SYSCALL_USER_DISPATCH,
            "read dispatch",
            tid,
            size,
            to,
        )
    };
    read.is_ok() && configuration[0] != 0
}

/// The `index`-th seccomp filter of a stopped thread, or the error number.
pub(crate) fn seccomp_filter(tid: Tid, index: usize) -> std::result::Result<Vec<Instruction>, i32> {
    let read = |to: usize| {
        // SAFETY: `to` is 0, to ask for the length, or points to room for a filter of that length, which never changes.
        unsafe {
            request(
                PTRACE_SECCOMP_GET_FILTER,
                "read seccomp filter",
                tid,
                index,
                to,
            )
        }
        .map_err(|error| match error {
            Error::Ptrace { source, .. } => source.raw_os_error().unwrap_or(0),
            _ => 0,
        })
    };
    let mut filter = vec![Instruction::default(); read(0)? as usize];
    if !filter.is_empty() {
        read(filter.as_mut_ptr() as usize)?;
    }
    Ok(filter)
}

/// What the thread has to report, if anything. A thread that is not ours (any more) counts as ended.
pub(crate) fn poll(tid: Tid) -> Option<Event> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is writable.
        let got = unsafe { libc::waitpid(tid.0, &mut status, libc::WNOHANG | libc::__WALL) };
        match got {
            0 => return None,
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => continue,
            -1 => return Some(Event::Ended(0)),
            _ => {}
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            super::note_ended(tid, status);
            return Some(Event::Ended(status));
        }
        if libc::WIFSTOPPED(status) {
            let signal = libc::WSTOPSIG(status);
            return Some(match status >> 16 {
                PTRACE_EVENT_STOP => Event::Stop,
                libc::PTRACE_EVENT_EXEC => Event::Exec,
                _ if signal == libc::SIGTRAP | 0x80 => Event::Syscall,
                _ => Event::Signal(signal),
            });
        }
    }
}

/// Collects a thread that has ended, and leaves every other report where it is. Any thread of ours may do so.
pub(crate) fn collect_if_ended(tid: Tid) {
    let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: a structure of plain integers, filled by the call.
    let ended = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_PID, tid.0 as libc::id_t, &mut info, look) == 0
            && matches!(
                info.si_code,
                libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
            )
            && info.si_pid() == tid.0
    };
    if ended {
        poll(tid);
    }
}

/// Waits for the thread's next report. `None`: the deadline has passed.
pub(crate) fn wait(tid: Tid, deadline: Instant) -> Option<Event> {
    let mut pause = Backoff::default();
    loop {
        if let Some(event) = poll(tid) {
            return Some(event);
        }
        if Instant::now() >= deadline {
            return None;
        }
        pause.rest();
    }
}

/// How long one rests who has a real-time priority, so that threads come to their stops on the same processor. With 5
/// microseconds they came to nothing: each was interrupted before it was a few instructions farther. Eleven threads took
/// 2.2 ms at least, often 10 to 60; with 20 to 50 microseconds they take 0.1 ms.
const SHORT_REST: Duration = Duration::from_micros(30);

/// Waiting for a stop: a moment on the spot, since a thread that has another processor stops within 10 microseconds; then
/// give way, since the thread may need this one; then sleep, ever longer.
#[derive(Default)]
pub(crate) struct Backoff {
    rests: u32,
}

impl Backoff {
    pub fn rest(&mut self) {
        self.rests += 1;
        match self.rests {
            0..=30 => std::hint::spin_loop(),
            31..=130 if urgency::is_raised() => std::thread::sleep(SHORT_REST),
            31..=130 => std::thread::yield_now(),
            131..=230 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    pub(crate) fn is_long(&self) -> bool {
        self.rests > 140
    }
}
