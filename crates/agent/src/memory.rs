//! The one way to the region: raw addresses in, references to the shared structures out.

use crate::limits;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64};
use thalweg_abi as shm;
use thalweg_abi::calls;

/// A thread's slot: the address of its private page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u64);

pub fn region() -> u64 {
    let base: u64;
    // SAFETY: reads the word that heads the image.
    unsafe {
        asm!("mov {}, [rip + tw_base]", out(reg) base, options(nostack, readonly, preserves_flags))
    };
    base
}

pub fn header() -> *mut shm::Header {
    (region() + shm::PRIVATE_SIZE) as *mut shm::Header
}

pub fn thread_pointer() -> u64 {
    let owner: u64;
    // SAFETY: the hot path has read the same word just before.
    unsafe { asm!("mov {}, fs:[0]", out(reg) owner, options(nostack, readonly, preserves_flags)) };
    owner
}

pub fn ticks() -> u64 {
    match limits::frozen_at() {
        // SAFETY: has no requirement; the controller has checked that the counter may be read, and limits.rs sees to it that
        // nobody comes here once it may not.
        0 => unsafe { core::arch::x86_64::_rdtsc() },
        stopped => stopped,
    }
}

pub fn flags() -> u32 {
    // SAFETY: the header is mapped as long as a probe can run.
    unsafe { (*header()).flags }
}

/// # Safety
/// `address` must be that of an aligned u64 in the region.
pub unsafe fn atomic64(address: *mut u64) -> &'static AtomicU64 {
    // SAFETY: by the caller's promise; the region stays mapped while any probe runs.
    unsafe { AtomicU64::from_ptr(address) }
}

/// # Safety
/// `address` must be that of an aligned u32 in the region.
pub unsafe fn atomic32(address: *mut u32) -> &'static AtomicU32 {
    // SAFETY: as for atomic64.
    unsafe { AtomicU32::from_ptr(address) }
}

impl Slot {
    pub fn number(index: u64) -> Slot {
        Slot(region() + index * shm::PAGE)
    }

    pub fn index(self) -> u64 {
        (self.0 - region()) / shm::PAGE
    }

    /// Whether it is that of threads which are not counted (`shm::Blocks`).
    pub fn is_nobodys(self) -> bool {
        // SAFETY: the header is mapped.
        let nobodys = unsafe { (*header()).blocks.nobodys() };
        nobodys.is_some_and(|index| self == Slot::number(index))
    }

    pub fn private(self) -> *mut shm::PrivateSlot {
        self.0 as *mut shm::PrivateSlot
    }

    pub fn shared(self) -> *mut shm::SharedSlot {
        (self.0 + shm::SHARED_FROM_GS) as *mut shm::SharedSlot
    }

    /// The bottom frame, which stands for everything outside of the profile.
    pub fn sentinel(self) -> *mut shm::Frame {
        // SAFETY: header() is mapped.
        let frames = unsafe { (*header()).frames_offset };
        (region()
            + shm::PRIVATE_SIZE
            + frames
            + self.index() * shm::FRAMES_STRIDE
            + shm::FRAME_SIZE) as *mut shm::Frame
    }

    /// Where the stack ends on which the slow path of Go's probes runs.
    pub fn agent_stack(self) -> u64 {
        self.sentinel() as u64 - shm::FRAME_SIZE + shm::FRAMES_STRIDE
    }

    /// In a coroutine: the frame that stands for the outer end of its stack. Null on the thread's own stack.
    pub fn base(self) -> *mut shm::Frame {
        // SAFETY: the shared page is mapped. A base above the top is being made or dropped.
        unsafe {
            let base = (&raw const (*self.shared()).base).read_volatile() as *mut shm::Frame;
            if base <= self.top() {
                base
            } else {
                core::ptr::null_mut()
            }
        }
    }

    /// What lies below the first frame of the stack that the thread is on.
    pub fn bottom(self) -> *mut shm::Frame {
        let base = self.base();
        if base.is_null() {
            self.sentinel()
        } else {
            base
        }
    }

    pub fn top(self) -> *mut shm::Frame {
        // SAFETY: the private page is mapped.
        unsafe { (self.0 + (*self.private()).top) as *mut shm::Frame }
    }

    /// One store, so that a signal handler sees the stack before or after, never between.
    pub fn set_top(self, frame: *mut shm::Frame) {
        // SAFETY: the private page is mapped; volatile keeps the store where it is written.
        unsafe { (&raw mut (*self.private()).top).write_volatile(frame as u64 - self.0) }
    }
}

pub fn gs_base() -> u64 {
    let base: u64;
    if flags() & shm::HEADER_FSGSBASE != 0 {
        // SAFETY: the controller has seen that the kernel allows it.
        unsafe { asm!("rdgsbase {}", out(reg) base, options(nostack, nomem, preserves_flags)) };
        return base;
    }
    let mut out = 0u64;
    // SAFETY: the kernel writes the base to `out`.
    unsafe {
        syscall(
            calls::ARCH_PRCTL,
            calls::ARCH_GET_GS,
            &raw mut out as u64,
            0,
            0,
        )
    };
    // SAFETY: `out` is a local.
    unsafe { (&raw const out).read_volatile() }
}

pub fn set_gs_base(base: u64) {
    if flags() & shm::HEADER_FSGSBASE != 0 {
        // SAFETY: GS is ours in this process: the controller has refused targets that use it.
        unsafe { asm!("wrgsbase {}", in(reg) base, options(nostack, preserves_flags)) };
        return;
    }
    // SAFETY: as above.
    unsafe { syscall(calls::ARCH_PRCTL, calls::ARCH_SET_GS, base, 0, 0) };
}

/// What a system call answers that was not made.
const NOT_MADE: u64 = (-38i64) as u64;

/// # Safety
/// As the system call has it.
pub unsafe fn syscall(number: u64, a: u64, b: u64, c: u64, d: u64) -> u64 {
    match limits::is_silent() {
        true => NOT_MADE,
        // SAFETY: by the caller's promise.
        false => unsafe { raw(number, [a, b, c, d]) },
    }
}

/// A system call that is made even if the agent is to be silent.
///
/// # Safety
/// As the system call has it; only before the program makes it impossible.
pub unsafe fn raw(number: u64, [a, b, c, d]: [u64; 4]) -> u64 {
    let result: u64;
    // SAFETY: by the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b,
             in("rdx") c, in("r10") d, lateout("rcx") _, lateout("r11") _, options(nostack))
    };
    result
}

/// # Safety
/// As the system call has it.
pub unsafe fn syscall6(number: u64, [a, b, c, d, e, f]: [u64; 6]) -> u64 {
    if limits::is_silent() {
        return NOT_MADE;
    }
    let result: u64;
    // SAFETY: by the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
             in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack))
    };
    result
}

pub fn getpid() -> u32 {
    // SAFETY: has no effect.
    unsafe { syscall(calls::GETPID, 0, 0, 0, 0) as u32 }
}

pub fn gettid() -> u32 {
    // SAFETY: has no effect.
    unsafe { syscall(calls::GETTID, 0, 0, 0, 0) as u32 }
}

pub fn getppid() -> u32 {
    // SAFETY: has no effect.
    unsafe { syscall(calls::GETPPID, 0, 0, 0, 0) as u32 }
}

/// Whether the word at `address` can be read: the kernel is given it as a set of signals, for a purpose that there is not.
/// Where the agent is silent nothing is known to be readable.
pub fn is_readable(address: u64) -> bool {
    // SAFETY: the call is made only where calls are.
    !limits::is_silent() && unsafe { asked_readable(address) }
}

/// The same, asked in any case.
///
/// # Safety
/// As for `raw`.
pub unsafe fn asked_readable(address: u64) -> bool {
    const EINVAL: i64 = 22;
    // SAFETY: nothing is changed.
    let result = unsafe {
        raw(
            calls::RT_SIGPROCMASK,
            [calls::NO_SIG_PURPOSE, address, 0, 8],
        )
    };
    result as i64 == -EINVAL
}

/// Whether there is no such thread any more. The numbers must be those of this process's PID namespace.
pub fn has_ended(pid: u32, tid: u32) -> bool {
    const ESRCH: i64 = 3;
    // A number that is made up tells nothing.
    // SAFETY: signal 0 is not sent.
    tid < shm::MADE_UP_TID
        && unsafe { syscall(calls::TGKILL, pid.into(), tid.into(), 0, 0) as i64 == -ESRCH }
}

/// The running thread's name, as the kernel has it.
pub fn thread_name(into: *mut [u8; 16]) {
    // SAFETY: the kernel writes 16 bytes.
    unsafe { syscall(calls::PRCTL, calls::PR_GET_NAME, into as u64, 0, 0) };
}

/// Runs `work` while no handler can run on this thread.
pub fn undisturbed<T>(work: impl FnOnce() -> T) -> T {
    let all = u64::MAX;
    let mut before = 0u64;
    // SAFETY: the kernel reads and writes 8 bytes each.
    unsafe {
        let (new, old) = (&raw const all as u64, &raw mut before as u64);
        syscall(calls::RT_SIGPROCMASK, calls::SIG_SETMASK, new, old, 8);
    }
    let result = work();
    // SAFETY: as above.
    unsafe {
        syscall(
            calls::RT_SIGPROCMASK,
            calls::SIG_SETMASK,
            &raw const before as u64,
            0,
            8,
        )
    };
    result
}
