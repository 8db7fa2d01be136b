//! What a program may do to itself that probes as they are would not survive, known right before it does.
//!
//! ```text
//! what                                             from then on, in this process
//! a filter, user dispatch, being traced   silent   no system calls from the agent; waiting counts as working
//! no time-stamp counter                   frozen   the timed probes become those without a clock
//! strict seccomp                                   both
//! its own GS base, no thread pointer      retired  every probe returns at once: nothing is counted any more
//! ```
//!
//! Nobody outside is needed for that: the thread changes the first instruction of each probe, in every copy of the agent. It is
//! one of five bytes in an aligned word, which becomes a jump by a single store; or a plain `ret` takes the place of
//! its first byte, which does nothing in a probe that is called and returns in one that ends with the `ret`. Leaves, which count by code in
//! their stubs, are found by a mark, and jump over it.
//! Code is private memory: a fork child that limits itself limits nobody else.

use crate::memory::{
    Slot, asked_readable, atomic32, atomic64, flags, gs_base, header, is_readable, raw, region,
    ticks,
};
use crate::prune;
use core::arch::asm;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use thalweg_abi as shm;
use thalweg_abi::calls;

const PR_SET_SECCOMP: u32 = 22;
const PR_SET_TSC: u32 = 26;
const PR_TSC_SIGSEGV: u64 = 2;
const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;
const SECCOMP_MODE_STRICT: u64 = 1;
const SECCOMP_SET_MODE_STRICT: u32 = 0;
const SECCOMP_SET_MODE_FILTER: u32 = 1;
pub const CLONE_SETTLS: u64 = 0x80000;

/// A system call is about to be made. `args` are its first five arguments.
pub fn before(call: u64, args: &[u64; 5]) {
    let limit = limit_of(call, args);
    if limit != 0 {
        set(limit);
    }
}

/// What a system call will make impossible, as `LIMIT_` bits.
fn limit_of(call: u64, args: &[u64; 5]) -> u32 {
    let first = args[0] as u32;
    match call {
        calls::PRCTL => match first {
            PR_SET_SECCOMP if args[1] == SECCOMP_MODE_STRICT => {
                shm::LIMIT_SILENT | shm::LIMIT_FROZEN
            }
            // Without a filter it is only a question whether there could be one.
            PR_SET_SECCOMP if args[2] != 0 => shm::LIMIT_SILENT,
            PR_SET_TSC if args[1] == PR_TSC_SIGSEGV => shm::LIMIT_FROZEN,
            PR_SET_SYSCALL_USER_DISPATCH if args[1] != 0 => shm::LIMIT_SILENT,
            _ => 0,
        },
        calls::SECCOMP => match first {
            SECCOMP_SET_MODE_STRICT => shm::LIMIT_SILENT | shm::LIMIT_FROZEN,
            SECCOMP_SET_MODE_FILTER if args[2] != 0 => shm::LIMIT_SILENT,
            _ => 0,
        },
        calls::ARCH_PRCTL => match u64::from(first) {
            calls::ARCH_SET_GS => shm::LIMIT_RETIRED,
            calls::ARCH_SET_FS if is_no_thread_pointer(args[1], true) => shm::LIMIT_RETIRED,
            _ => 0,
        },
        // Its parent sees every system call from then on, and takes it for the program's.
        calls::PTRACE if args[0] == calls::PTRACE_TRACEME => shm::LIMIT_SILENT,
        calls::CLONE if args[0] & CLONE_SETTLS != 0 => without_pointer(args[4]),
        calls::CLONE3 => {
            const FLAGS: usize = 0;
            const TLS: usize = 7;
            let fields = args[0] as *const u64;
            if args[1] < (TLS as u64 + 1) * 8 || !may_read(args[0]) {
                return 0;
            }
            // SAFETY: the kernel is about to read the same words.
            let (flags, tls) = unsafe { (*fields.add(FLAGS), *fields.add(TLS)) };
            match flags & CLONE_SETTLS {
                0 => 0,
                _ => without_pointer(tls),
            }
        }
        _ => 0,
    }
}

/// The limit that a thread has whose thread pointer is to be `tls`.
fn without_pointer(tls: u64) -> u32 {
    match is_no_thread_pointer(tls, false) {
        true => shm::LIMIT_RETIRED,
        false => 0,
    }
}

/// A thread is about to be made by the library's `clone` or `clone3`, with this thread pointer.
pub fn before_thread(tls: u64) {
    let limit = without_pointer(tls);
    if limit != 0 {
        set(limit);
    }
}

/// An instruction that sets the GS base is about to run.
pub fn before_gs_base() {
    set(shm::LIMIT_RETIRED);
}

/// Whether no word can be read at `address`. The kernel is asked only if `asks`: threads are made often.
fn is_no_thread_pointer(address: u64, asks: bool) -> bool {
    address < shm::PAGE || asks && !may_read(address)
}

fn may_read(address: u64) -> bool {
    address >= shm::PAGE && (is_silent() || is_readable(address))
}

/// Whether no system call may be made from here.
pub fn is_silent() -> bool {
    let silent: u64;
    // SAFETY: reads a word of the image; the header is mapped as long as a probe can run.
    unsafe {
        asm!("mov {}, [rip + tw_silent]", out(reg) silent, options(nostack, readonly, preserves_flags));
        silent != 0 || (&raw const (*header()).limits).read_volatile() & shm::LIMIT_SILENT_ALL != 0
    }
}

/// The counter value at which the clock was stopped; 0: it runs.
pub fn frozen_at() -> u64 {
    let frozen: u64;
    // SAFETY: reads a word of the image.
    unsafe {
        asm!("mov {}, [rip + tw_frozen]", out(reg) frozen, options(nostack, readonly, preserves_flags))
    };
    frozen
}

pub fn is_frozen() -> bool {
    frozen_at() != 0
}

/// Makes `limit` hold for this process, before the thread goes on.
fn set(limit: u32) {
    let limit = match flags() & shm::HEADER_FSGSBASE {
        // The slow path would have to ask where its slot is.
        0 if limit & shm::LIMIT_SILENT != 0 => limit | shm::LIMIT_RETIRED,
        _ => limit,
    };
    let mut noted = limit;
    if is_silent() || flags() & shm::HEADER_REWRITES == 0 || !rewrite(limit) {
        // Nothing can be rewritten: what is left is to be silent, in all processes of this memory.
        noted = match limit & shm::LIMIT_SILENT {
            0 => 0,
            _ => shm::LIMIT_SILENT | shm::LIMIT_SILENT_ALL,
        };
    }
    // SAFETY: the header is mapped.
    unsafe { atomic32(&raw mut (*header()).limits).fetch_or(noted, AcqRel) };
    if noted & shm::LIMIT_SILENT != 0 {
        prune::stop(shm::PRUNING_CONFINED);
    }
    if noted & (shm::LIMIT_FROZEN | shm::LIMIT_RETIRED) != 0 {
        stop_clocks();
    }
}

/// Rewrites every copy of the agent in this process. `false`: one of them could not be.
fn rewrite(limit: u32) -> bool {
    let all = u64::MAX;
    let mut before = 0u64;
    // SAFETY: the kernel reads and writes 8 bytes each. No handler may come while code is writable, or find the lock taken.
    unsafe {
        let (new, old) = (&raw const all as u64, &raw mut before as u64);
        raw(calls::RT_SIGPROCMASK, [calls::SIG_SETMASK, new, old, 8]);
        let done = lock() && {
            let done = rewrite_all(limit);
            atomic32(&raw mut (*header()).rewriting).store(0, Release);
            done
        };
        raw(calls::RT_SIGPROCMASK, [calls::SIG_SETMASK, old, 0, 8]);
        done
    }
}

/// Two threads that change the protection of the same code would be in each other's way. One that was killed meanwhile is not
/// waited for forever.
///
/// # Safety
/// The region must be mapped.
unsafe fn lock() -> bool {
    const PATIENCE: u32 = 1 << 16;
    // SAFETY: the header is mapped; the calls have no effect.
    unsafe {
        let own = raw(calls::GETTID, [0; 4]) as u32;
        let lock = atomic32(&raw mut (*header()).rewriting);
        for _ in 0..PATIENCE {
            if lock.compare_exchange(0, own, AcqRel, Relaxed).is_ok() {
                return true;
            }
            raw(calls::SCHED_YIELD, [0; 4]);
        }
        false
    }
}

/// # Safety
/// With signals blocked, under the lock.
unsafe fn rewrite_all(limit: u32) -> bool {
    const READ_EXECUTE: u64 = 5;
    const READ_WRITE_EXECUTE: u64 = 7;
    let mut done = true;
    // SAFETY: what begins with the address of this region is a copy of the agent, of the same image as this one; the mapping is as
    // long as is noted.
    unsafe {
        let regions: *const shm::CodeRegion = (&raw const (*header()).code).cast();
        for index in 0..shm::MAX_CODE_REGIONS {
            let code = regions.add(index).read_volatile();
            // A fork child may lack what its parent mapped later, and have something else there.
            let ours = code.len != 0
                && asked_readable(code.start)
                && (code.start as *const u64).read_volatile() == region();
            if !ours {
                continue;
            }
            let open = raw(
                calls::MPROTECT,
                [code.start, code.len, READ_WRITE_EXECUTE, 0],
            );
            if open != 0 {
                done = false;
                continue;
            }
            change(code.start, limit);
            if limit & shm::LIMIT_RETIRED != 0 {
                // The stubs lie behind the image, whose own code has the mark as a constant.
                retire_leaves(code.start + image_size(), code.start + code.len);
            }
            raw(calls::MPROTECT, [code.start, code.len, READ_EXECUTE, 0]);
        }
    }
    done
}

/// # Safety
/// A writable copy of the image must be at `image`.
unsafe fn change(image: u64, limit: u32) {
    const RET: u8 = 0xc3;
    const JMP: u64 = 0xe9;
    let (silent, frozen, mut probe) = places();
    // SAFETY: by the caller's promise. The offsets are those of the same image. Each store is of one aligned word or byte.
    unsafe {
        if limit & shm::LIMIT_FROZEN != 0 {
            atomic64((image + frozen) as *mut u64).store(ticks().max(1), Release);
        }
        loop {
            let [own, stopped] = probe.read();
            if own == 0 {
                break;
            }
            let at = image + u64::from(own);
            if limit & shm::LIMIT_RETIRED != 0 {
                (at as *mut u8).write_volatile(RET);
            } else if limit & shm::LIMIT_FROZEN != 0 && stopped != 0 {
                let first = atomic64(at as *mut u64);
                let distance = u64::from(stopped.wrapping_sub(own).wrapping_sub(5));
                let behind = first.load(Relaxed) & !0xff_ffff_ffff;
                first.store(behind | distance << 8 | JMP, Release);
            }
            probe = probe.add(1);
        }
        if limit & shm::LIMIT_SILENT != 0 {
            atomic64((image + silent) as *mut u64).store(1, Release);
        }
    }
}

/// The leaves in the stubs between the two addresses count no more.
///
/// # Safety
/// Writable code of ours must be there.
unsafe fn retire_leaves(mut at: u64, end: u64) {
    const JMP: u64 = 0xe9;
    const JUMP: u64 = 5;
    // SAFETY: by the caller's promise. Behind a mark there is a leaf's code, whose first instruction is one of five bytes.
    unsafe {
        while at + 16 <= end {
            if (at as *const u64).read_volatile() == shm::LEAF_MARK {
                let first = atomic64((at + 8) as *mut u64);
                let behind = first.load(Relaxed) & !0xff_ffff_ffff;
                first.store(behind | (shm::LEAF_CODE - JUMP) << 8 | JMP, Release);
            }
            at += 8;
        }
    }
}

fn image_size() -> u64 {
    let (base, end): (u64, u64);
    // SAFETY: computes addresses.
    unsafe {
        asm!("lea {}, [rip + tw_base]", "lea {}, [rip + tw_end]", out(reg) base, out(reg) end,
             options(nostack, nomem, preserves_flags))
    };
    end - base
}

/// The offsets of the image's two words, and its table of probes: the place of each, and that of the one without a clock.
fn places() -> (u64, u64, *const [u32; 2]) {
    let (base, silent, frozen, probes): (u64, u64, u64, u64);
    // SAFETY: computes addresses.
    unsafe {
        asm!("lea {}, [rip + tw_base]", "lea {}, [rip + tw_silent]", "lea {}, [rip + tw_frozen]",
             "lea {}, [rip + tw_probes]", out(reg) base, out(reg) silent, out(reg) frozen,
             out(reg) probes, options(nostack, nomem, preserves_flags))
    };
    (silent - base, frozen - base, probes as *const [u32; 2])
}

/// What is open now has had its time.
fn stop_clocks() {
    // SAFETY: slots below `next_slot` are in use or were; flags are only ever set here, and by the one who opens a slot.
    unsafe {
        let pid = (*Slot(gs_base()).shared()).pid;
        let used = atomic32(&raw mut (*header()).next_slot).load(Acquire);
        for index in 0..u64::from(used).min(shm::SLOTS) {
            let shared = Slot::number(index).shared();
            if (*shared).pid == pid {
                atomic32(&raw mut (*shared).flags).fetch_or(shm::SLOT_FROZEN, Relaxed);
            }
        }
    }
}
