//! Functions that enter the kernel by themselves: with them the calls of a function are a count of
//! system calls.

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::ids::FuncId;

/// A function with system calls of its own, as opposed to those of the functions that it calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntersKernel {
    /// Index into the profile's functions.
    pub function: FuncId,
    pub made: Made,
}

/// How often one call of a function enters the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Made {
    /// Each call makes exactly these.
    Each(Vec<SystemCall>),
    /// It depends on the way that a call takes through the function: least and most, `None` where
    /// there is no end. Not counted.
    Between(u32, Option<u32>),
    /// Its code could not be followed: not counted.
    #[default]
    Unknown,
    /// It depends, and each was counted when it was made: numbers and how many, in all contexts of
    /// the profile together.
    Counted(Vec<(u32, u64)>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SystemCall {
    /// By x86-64's table; `None` where it is no constant.
    pub number: Option<u32>,
    pub times: u32,
}

impl EntersKernel {
    /// System calls that one call makes; 0 where that is not known.
    pub fn times(&self) -> u64 {
        match &self.made {
            Made::Each(calls) => calls.iter().map(|call| u64::from(call.times)).sum(),
            Made::Between(..) | Made::Unknown | Made::Counted(_) => 0,
        }
    }
}

impl Made {
    /// Adds what was counted for the same function elsewhere.
    pub(crate) fn add(&mut self, other: &Made) {
        if let (Made::Counted(ours), Made::Counted(theirs)) = (self, other) {
            for &(number, calls) in theirs {
                match ours.iter_mut().find(|known| known.0 == number) {
                    Some(known) => known.1 = known.1.saturating_add(calls),
                    None => ours.push((number, calls)),
                }
            }
        }
    }
}

impl SystemCall {
    pub fn name(&self) -> String {
        match self.number {
            None => "(not a constant)".to_string(),
            Some(number) => match system_call_name(number) {
                Some(name) => name.to_string(),
                None => format!("system call {number}"),
            },
        }
    }
}

/// What x86-64 Linux calls a system call.
pub fn system_call_name(number: u32) -> Option<&'static str> {
    let later = number.checked_sub(FIRST_LATER);
    let name = match later {
        None => NAMES.get(number as usize),
        Some(later) => LATER_NAMES.get(later as usize),
    };
    name.copied()
}

pub(crate) fn encode(all: &[EntersKernel], out: &mut Encoder) {
    out.number(all.len() as u64);
    for one in all {
        out.number(one.function.into());
        match &one.made {
            Made::Between(least, most) => {
                out.byte(0);
                out.number((*least).into());
                out.number(most.map_or(0, |most| u64::from(most) + 1));
            }
            // Readers that do not know the section of those that were counted take them for
            // uncertain.
            Made::Counted(_) => out.raw(&[0, 0, 0]),
            Made::Unknown => out.byte(1),
            Made::Each(calls) => {
                out.byte(2);
                out.number(calls.len() as u64);
                for call in calls {
                    out.number(call.number.map_or(0, |number| u64::from(number) + 1));
                    out.number(call.times.into());
                }
            }
        }
    }
}

pub(crate) fn decode(input: &mut Decoder) -> Result<Vec<EntersKernel>, ReadError> {
    input.list(2, |input| {
        Ok(EntersKernel {
            function: FuncId::decode(input)?,
            made: match input.byte()? {
                0 => Made::Between(input.number32()?, decode_optional(input)?),
                1 => Made::Unknown,
                2 => Made::Each(input.list(2, decode_call)?),
                _ => {
                    return Err(ReadError::Corrupt(
                        "a function enters the kernel in an unknown way",
                    ));
                }
            },
        })
    })
}

/// Those that were counted when they were made.
pub(crate) fn encode_counted(all: &[EntersKernel], out: &mut Encoder) {
    for one in all {
        if let Made::Counted(calls) = &one.made {
            out.number(one.function.into());
            out.number(calls.len() as u64);
            for &(number, calls) in calls {
                out.number(number.into());
                out.number(calls);
            }
        }
    }
}

/// Refers to what the section before it has.
pub(crate) fn decode_counted(
    all: &mut [EntersKernel],
    input: &mut Decoder,
) -> Result<(), ReadError> {
    let mut rest = all.iter_mut();
    while !input.is_at_end() {
        let function = FuncId::decode(input)?;
        let calls = input.list(2, |input| Ok((input.number32()?, input.number()?)))?;
        let found = rest.find(|one| one.function == function);
        let one = found.ok_or(ReadError::Corrupt(
            "system calls were counted in a function that makes none",
        ))?;
        one.made = Made::Counted(calls);
    }
    Ok(())
}

fn decode_call(input: &mut Decoder) -> Result<SystemCall, ReadError> {
    Ok(SystemCall {
        number: decode_optional(input)?,
        times: input.number32()?,
    })
}

fn decode_optional(input: &mut Decoder) -> Result<Option<u32>, ReadError> {
    let number = input.number()?.checked_sub(1);
    let number = number.map(u32::try_from).transpose();
    number.map_err(|_| ReadError::Corrupt("a number of system calls has more than 32 bits"))
}

const FIRST_LATER: u32 = 424;

#[rustfmt::skip]
const NAMES: [&str; 335] = [
    "read", "write", "open", "close", "stat", "fstat", "lstat", "poll", "lseek", "mmap", "mprotect", "munmap", "brk",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "ioctl", "pread64", "pwrite64", "readv", "writev", "access",
    "pipe", "select", "sched_yield", "mremap", "msync", "mincore", "madvise", "shmget", "shmat", "shmctl", "dup",
    "dup2", "pause", "nanosleep", "getitimer", "alarm", "setitimer", "getpid", "sendfile", "socket", "connect",
    "accept", "sendto", "recvfrom", "sendmsg", "recvmsg", "shutdown", "bind", "listen", "getsockname", "getpeername",
    "socketpair", "setsockopt", "getsockopt", "clone", "fork", "vfork", "execve", "exit", "wait4", "kill", "uname",
    "semget", "semop", "semctl", "shmdt", "msgget", "msgsnd", "msgrcv", "msgctl", "fcntl", "flock", "fsync",
    "fdatasync", "truncate", "ftruncate", "getdents", "getcwd", "chdir", "fchdir", "rename", "mkdir", "rmdir",
    "creat", "link", "unlink", "symlink", "readlink", "chmod", "fchmod", "chown", "fchown", "lchown", "umask",
    "gettimeofday", "getrlimit", "getrusage", "sysinfo", "times", "ptrace", "getuid", "syslog", "getgid", "setuid",
    "setgid", "geteuid", "getegid", "setpgid", "getppid", "getpgrp", "setsid", "setreuid", "setregid", "getgroups",
    "setgroups", "setresuid", "getresuid", "setresgid", "getresgid", "getpgid", "setfsuid", "setfsgid", "getsid",
    "capget", "capset", "rt_sigpending", "rt_sigtimedwait", "rt_sigqueueinfo", "rt_sigsuspend", "sigaltstack",
    "utime", "mknod", "uselib", "personality", "ustat", "statfs", "fstatfs", "sysfs", "getpriority", "setpriority",
    "sched_setparam", "sched_getparam", "sched_setscheduler", "sched_getscheduler", "sched_get_priority_max",
    "sched_get_priority_min", "sched_rr_get_interval", "mlock", "munlock", "mlockall", "munlockall", "vhangup",
    "modify_ldt", "pivot_root", "_sysctl", "prctl", "arch_prctl", "adjtimex", "setrlimit", "chroot", "sync", "acct",
    "settimeofday", "mount", "umount2", "swapon", "swapoff", "reboot", "sethostname", "setdomainname", "iopl",
    "ioperm", "create_module", "init_module", "delete_module", "get_kernel_syms", "query_module", "quotactl",
    "nfsservctl", "getpmsg", "putpmsg", "afs_syscall", "tuxcall", "security", "gettid", "readahead", "setxattr",
    "lsetxattr", "fsetxattr", "getxattr", "lgetxattr", "fgetxattr", "listxattr", "llistxattr", "flistxattr",
    "removexattr", "lremovexattr", "fremovexattr", "tkill", "time", "futex", "sched_setaffinity", "sched_getaffinity",
    "set_thread_area", "io_setup", "io_destroy", "io_getevents", "io_submit", "io_cancel", "get_thread_area",
    "lookup_dcookie", "epoll_create", "epoll_ctl_old", "epoll_wait_old", "remap_file_pages", "getdents64",
    "set_tid_address", "restart_syscall", "semtimedop", "fadvise64", "timer_create", "timer_settime", "timer_gettime",
    "timer_getoverrun", "timer_delete", "clock_settime", "clock_gettime", "clock_getres", "clock_nanosleep",
    "exit_group", "epoll_wait", "epoll_ctl", "tgkill", "utimes", "vserver", "mbind", "set_mempolicy", "get_mempolicy",
    "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr", "kexec_load", "waitid",
    "add_key", "request_key", "keyctl", "ioprio_set", "ioprio_get", "inotify_init", "inotify_add_watch",
    "inotify_rm_watch", "migrate_pages", "openat", "mkdirat", "mknodat", "fchownat", "futimesat", "newfstatat",
    "unlinkat", "renameat", "linkat", "symlinkat", "readlinkat", "fchmodat", "faccessat", "pselect6", "ppoll",
    "unshare", "set_robust_list", "get_robust_list", "splice", "tee", "sync_file_range", "vmsplice", "move_pages",
    "utimensat", "epoll_pwait", "signalfd", "timerfd_create", "eventfd", "fallocate", "timerfd_settime",
    "timerfd_gettime", "accept4", "signalfd4", "eventfd2", "epoll_create1", "dup3", "pipe2", "inotify_init1",
    "preadv", "pwritev", "rt_tgsigqueueinfo", "perf_event_open", "recvmmsg", "fanotify_init", "fanotify_mark",
    "prlimit64", "name_to_handle_at", "open_by_handle_at", "clock_adjtime", "syncfs", "sendmmsg", "setns", "getcpu",
    "process_vm_readv", "process_vm_writev", "kcmp", "finit_module", "sched_setattr", "sched_getattr", "renameat2",
    "seccomp", "getrandom", "memfd_create", "kexec_file_load", "bpf", "execveat", "userfaultfd", "membarrier",
    "mlock2", "copy_file_range", "preadv2", "pwritev2", "pkey_mprotect", "pkey_alloc", "pkey_free", "statx",
    "io_pgetevents", "rseq",
];

#[rustfmt::skip]
const LATER_NAMES: [&str; 39] = [
    "pidfd_send_signal", "io_uring_setup", "io_uring_enter", "io_uring_register", "open_tree", "move_mount", "fsopen",
    "fsconfig", "fsmount", "fspick", "pidfd_open", "clone3", "close_range", "openat2", "pidfd_getfd", "faccessat2",
    "process_madvise", "epoll_pwait2", "mount_setattr", "quotactl_fd", "landlock_create_ruleset", "landlock_add_rule",
    "landlock_restrict_self", "memfd_secret", "process_mrelease", "futex_waitv", "set_mempolicy_home_node",
    "cachestat", "fchmodat2", "map_shadow_stack", "futex_wake", "futex_wait", "futex_requeue", "statmount",
    "listmount", "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules", "mseal",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_have_the_kernels_names() {
        for (number, name) in [
            (0, "read"),
            (231, "exit_group"),
            (334, "rseq"),
            (435, "clone3"),
        ] {
            assert_eq!(system_call_name(number), Some(name));
        }
        assert_eq!([335, 423, 9999].map(system_call_name), [None; 3]);
    }
}
