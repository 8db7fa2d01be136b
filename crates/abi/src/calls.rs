//! System calls that the agent makes. A process whose seccomp filters forbid one of `ALL` is left alone.

pub const RT_SIGPROCMASK: u64 = 14;
/// Only in Go code, whose runtime makes it as well.
pub const SCHED_YIELD: u64 = 24;
pub const SIG_SETMASK: u64 = 2;
/// As a first argument of `RT_SIGPROCMASK` refused, but only after the kernel has read the set: so a pruning pass asks whether memory can be
/// read. Can be done without: where a filter forbids it, contexts are not cut but folded.
pub const NO_SIG_PURPOSE: u64 = 99;
pub const GETPID: u64 = 39;
pub const GETPPID: u64 = 110;
pub const PRCTL: u64 = 157;
pub const PR_GET_NAME: u64 = 16;
/// Only where a program may not set its GS base by itself.
pub const ARCH_PRCTL: u64 = 158;
pub const ARCH_SET_GS: u64 = 0x1001;
pub const ARCH_SET_FS: u64 = 0x1002;
pub const ARCH_GET_GS: u64 = 0x1004;
pub const GETTID: u64 = 186;
pub const FUTEX: u64 = 202;
pub const TGKILL: u64 = 234;

/// Can be done without: where a filter forbids it, waiting counts as working.
pub const CLOCK_GETTIME: u64 = 228;
pub const CLOCK_THREAD_CPUTIME_ID: u64 = 3;

/// Once in a process's life, when it limits itself so that probes have to change (`Header::limits`). Can be done without.
pub const MPROTECT: u64 = 10;

/// Not made, but watched: see the agent's limits.rs.
pub const CLONE: u64 = 56;
pub const PTRACE: u64 = 101;
pub const PTRACE_TRACEME: u64 = 0;
pub const PTRACE_ATTACH: u64 = 16;
pub const PTRACE_SEIZE: u64 = 0x4206;
pub const SECCOMP: u64 = 317;
pub const CLONE3: u64 = 435;

/// Can be done without: where a filter forbids it, rules that follow pointers are refused.
pub const PROCESS_VM_READV: u64 = 310;

/// Number and first argument of those that cannot.
pub const ALL: [(u64, u64); 8] = [
    (RT_SIGPROCMASK, SIG_SETMASK),
    (GETPID, 0),
    (GETPPID, 0),
    (PRCTL, PR_GET_NAME),
    (ARCH_PRCTL, ARCH_SET_GS),
    (GETTID, 0),
    (FUTEX, 0),
    (TGKILL, 0),
];
