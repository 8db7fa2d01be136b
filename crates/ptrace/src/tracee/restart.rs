//! System calls that the stop itself interrupted: they must go on as if nothing had happened.
//!
//! A stop wakes a sleeping thread. Its system call then ends in one of two ways, seen in the registers as
//! `rax < 0`, `orig_rax` = the call's number, `rip` right behind the `syscall` instruction:
//!
//! 1. with one of the kernel's own restart codes (-512 ... -516, never seen by a program). The thread stands inside the
//!    kernel's signal code; when it goes on, the kernel finds no signal to handle and restarts the call. Nothing to do,
//!    as long as the registers stay so.
//! 2. with -EINTR: epoll_wait, semop, sigtimedwait, io_getevents, sockets with a time-out and a few more, which by
//!    signal(7) are never restarted. Their program would see an EINTR that no signal explains.
//!
//! For the second kind the code is exchanged for -ERESTARTNOHAND, whose meaning is exactly what is missing: *restart
//! unless a signal handler is about to run; then return EINTR*. So the kernel decides, at the moment when the thread
//! goes on, knowing every signal that is pending, blocked or ignored by then; a decision made here (rewinding `rip` by
//! two) would race with signals that arrive during the stop, and either lose an EINTR or add one.
//!
//! Why this cannot touch an EINTR that is the program's own: `orig_rax >= 0` in a thread that stands in a ptrace stop
//! means that the thread is still on its way out of that very system call. An interrupt or exception from user code
//! sets it to -1, and so does the return from a signal handler (sigreturn). A handler that the call's EINTR belongs to
//! either has not been entered yet (the signal is pending: the kernel will enter it and return EINTR), or has been:
//! then `rax` is 0 at its first instruction, and the EINTR lies in the signal frame, which is not touched.
//!
//! What it changes: a time-out that is given as a length begins anew, since the kernel forgot the time already waited;
//! such a wait may last longer by the time before the stop. (Without a profiler SIGSTOP and SIGCONT do worse to it.)
//!
//! Between a thread's stop and this exchange, some microseconds, a controller that is killed with SIGKILL leaves the second kind with the
//! EINTR that the kernel has given it: nobody can take that back then.
//!
//! After a stop by a job-control signal without handler, those calls return EINTR natively; here they go on waiting.

use super::Regs;

pub(crate) const ERESTARTSYS: i64 = 512;
pub(crate) const ERESTARTNOINTR: i64 = 513;
pub(crate) const ERESTARTNOHAND: i64 = 514;
pub(crate) const ERESTART_RESTARTBLOCK: i64 = 516;

/// Calls that end in a plain -EINTR when interrupted, having done nothing yet: made again, they do the same. Not in the
/// list, on purpose: close (the descriptor is gone already) and ioctl (anything).
const EINTR_WITHOUT_EFFECT: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_timedreceive,
    libc::SYS_fallocate,
    libc::SYS_flock,
];

/// The registers with which an interrupted call goes on as if nothing had happened; `None`: they are right as they are.
pub(crate) fn without_stray_eintr(regs: &Regs) -> Option<Regs> {
    let number = regs.orig_rax as i64;
    let eintr = regs.rax as i64 == -i64::from(libc::EINTR);
    if !eintr || number < 0 || !EINTR_WITHOUT_EFFECT.contains(&number) {
        return None;
    }
    let mut regs = *regs;
    regs.rax = -ERESTARTNOHAND as u64;
    Some(regs)
}

/// Where the thread goes on, and with which `rax`, once the kernel has seen to the restart: for whoever has to
/// continue the thread without the kernel's help.
pub fn resolved(regs: &Regs) -> Regs {
    let mut resolved = *regs;
    if (regs.orig_rax as i64) < 0 {
        return resolved;
    }
    match -(regs.rax as i64) {
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => {
            resolved.rax = regs.orig_rax;
            resolved.rip -= 2;
        }
        ERESTART_RESTARTBLOCK => {
            resolved.rax = libc::SYS_restart_syscall as u64;
            resolved.rip -= 2;
        }
        _ => {}
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs(rax: i64, orig_rax: i64) -> Regs {
        // SAFETY: a structure of plain integers.
        let mut regs: Regs = unsafe { std::mem::zeroed() };
        regs.rax = rax as u64;
        regs.orig_rax = orig_rax as u64;
        regs.rip = 0x1002;
        regs
    }

    #[test]
    fn an_epoll_wait_cut_short_by_the_stop_is_restarted_unless_a_handler_runs() {
        let fixed = without_stray_eintr(&regs(-4, libc::SYS_epoll_wait)).unwrap();
        assert_eq!(fixed.rax as i64, -514);
        assert_eq!(
            (fixed.rip, fixed.orig_rax as i64),
            (0x1002, libc::SYS_epoll_wait)
        );
    }

    #[test]
    fn an_eintr_that_the_program_already_owns_is_left_alone() {
        assert!(without_stray_eintr(&regs(-4, -1)).is_none());
        assert!(without_stray_eintr(&regs(-4, libc::SYS_close)).is_none());
        assert!(without_stray_eintr(&regs(0, libc::SYS_epoll_wait)).is_none());
        assert!(without_stray_eintr(&regs(-514, libc::SYS_pause)).is_none());
    }

    #[test]
    fn a_restart_is_resolved_to_the_syscall_instruction() {
        let again = resolved(&regs(-512, libc::SYS_read));
        assert_eq!((again.rip, again.rax as i64), (0x1000, libc::SYS_read));
        let block = resolved(&regs(-516, libc::SYS_nanosleep));
        assert_eq!(
            (block.rip, block.rax as i64),
            (0x1000, libc::SYS_restart_syscall)
        );
        let user = resolved(&regs(-512, -1));
        assert_eq!((user.rip, user.rax as i64), (0x1002, -512));
    }
}
