//! Whether a thread's seccomp filters let it make the system calls that we ask of it, and whether the kernel would get them.
//!
//! Containers and many services run under a filter that allows what any program does. The kernel shows a thread's filters to
//! a tracer with CAP_SYS_ADMIN that is under none itself; they are run here, call by call, and a call that one of them
//! would not plainly allow is never made. Where the filters cannot be seen, a thread is trusted only if it has as many as we
//! have and lives in the same PID namespace: then they are those of the container that we share.

use std::collections::HashMap;

use thalweg_abi as shm;

use super::{Stopped, sys};
use crate::error::{Error, Result};
use crate::proc::{self, RemoteAddr, Tid};

/// What attaching and detaching ask for in one thread, besides mappings.
const REMOTE_CALLS: &[i64] = &[
    libc::SYS_memfd_create,
    libc::SYS_close,
    libc::SYS_madvise,
    libc::SYS_munmap,
];

/// One instruction of a filter, as the kernel has it (struct sock_filter).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    k: u32,
}

/// What is known of a thread.
#[derive(Clone, Debug)]
enum Confinement {
    None,
    /// The same as ours.
    Shared,
    Filters(Vec<Vec<Instruction>>),
    Unknown(u32),
    /// Its own handler would get the call (syscall user dispatch).
    Dispatched,
}

#[derive(Default)]
pub(super) struct Seccomp {
    threads: HashMap<Tid, Confinement>,
}

impl Stopped {
    /// Refuses, before anything is changed, a process whose threads may not make the calls that profiling needs.
    pub fn check_system_calls(&mut self) -> Result<()> {
        for tid in self.threads.clone() {
            for (number, first) in shm::calls::ALL {
                self.check_system_call(tid, number as i64, [first, 0, 0, 0, 0, 0])?;
            }
            for &number in REMOTE_CALLS {
                self.check_system_call(tid, number, [0, 4096, 0, 0, 0, 0])?;
            }
            let (read, write, exec) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
            let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            for (protection, flags) in [
                (read | write, private),
                (read | write, libc::MAP_SHARED),
                (read | exec, private),
            ] {
                let args = [0, 4096, protection as u64, flags as u64, u64::MAX, 0];
                self.check_system_call(tid, libc::SYS_mmap, args)?;
            }
        }
        Ok(())
    }

    /// Whether all threads may ask which memory can be read, without which no contexts are cut.
    pub fn may_ask_what_is_readable(&mut self) -> bool {
        let ask = [shm::calls::NO_SIG_PURPOSE, 0, 0, 0, 0, 0];
        self.threads.clone().into_iter().all(|tid| {
            self.check_system_call(tid, shm::calls::RT_SIGPROCMASK as i64, ask)
                .is_ok()
        })
    }

    /// Whether all threads may ask for their processor time, without which waiting is not told from working.
    pub fn may_ask_processor_time(&mut self) -> bool {
        let clock = [shm::calls::CLOCK_THREAD_CPUTIME_ID, 0, 0, 0, 0, 0];
        self.threads.clone().into_iter().all(|tid| {
            self.check_system_call(tid, shm::calls::CLOCK_GETTIME as i64, clock)
                .is_ok()
        })
    }

    /// Whether all threads may make the agent's code writable for a moment, without which its probes cannot be changed before the
    /// program limits itself.
    pub fn may_rewrite_probes(&mut self) -> bool {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let open = [0, 4096, all as u64, 0, 0, 0];
        self.threads.clone().into_iter().all(|tid| {
            self.check_system_call(tid, shm::calls::MPROTECT as i64, open)
                .is_ok()
        })
    }

    /// Whether all threads may read their own memory through the kernel, without which no rule may follow a pointer.
    pub fn may_read_own_memory(&mut self) -> bool {
        let itself = [self.pid.0 as u64, 0, 1, 0, 1, 0];
        self.threads.clone().into_iter().all(|tid| {
            self.check_system_call(tid, shm::calls::PROCESS_VM_READV as i64, itself)
                .is_ok()
        })
    }

    /// Refuses a call that a filter of the thread would not allow.
    pub(super) fn check_system_call(
        &mut self,
        tid: Tid,
        number: i64,
        args: [u64; 6],
    ) -> Result<()> {
        let pid = self.pid;
        let ip = self.cave.as_ref().map_or(RemoteAddr(0), |cave| cave.start);
        if !self.seccomp.threads.contains_key(&tid) {
            let confinement = confinement(pid, tid, &self.status(tid)?)?;
            self.seccomp.threads.insert(tid, confinement);
        }
        match &self.seccomp.threads[&tid] {
            Confinement::None | Confinement::Shared => Ok(()),
            Confinement::Dispatched => Err(Error::Dispatched { pid, tid }),
            Confinement::Unknown(mode) => Err(Error::Seccomp {
                pid,
                tid,
                mode: *mode,
            }),
            Confinement::Filters(filters) => {
                let call = SystemCall { number, args, ip };
                if filters.iter().all(|filter| allows(filter, &call)) {
                    return Ok(());
                }
                Err(Error::SeccompForbids {
                    pid,
                    tid,
                    call: super::remote::name_of(number),
                })
            }
        }
    }
}

fn confinement(pid: proc::Pid, tid: Tid, status: &proc::Status) -> Result<Confinement> {
    if sys::dispatches_system_calls(tid) {
        return Ok(Confinement::Dispatched);
    }
    if status.seccomp == 0 {
        return Ok(Confinement::None);
    }
    const FILTER_MODE: u32 = 2;
    if status.seccomp == FILTER_MODE {
        if let Some(filters) = read_filters(tid) {
            return Ok(Confinement::Filters(filters));
        }
        let own = proc::Pid(std::process::id() as i32);
        let namespace = |pid| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let ours = proc::status(own, own.into())?;
        if ours.seccomp == FILTER_MODE
            && ours.seccomp_filters == status.seccomp_filters
            && namespace(own).is_some()
            && namespace(own) == namespace(pid)
        {
            return Ok(Confinement::Shared);
        }
    }
    Ok(Confinement::Unknown(status.seccomp))
}

fn read_filters(tid: Tid) -> Option<Vec<Vec<Instruction>>> {
    // The kernel's own bounds: 32768 instructions in all filters of a thread together.
    const MOST: usize = 32768;
    let mut filters = Vec::new();
    loop {
        match sys::seccomp_filter(tid, filters.len()) {
            Ok(filter) => filters.push(filter),
            Err(error) if error == libc::ENOENT && !filters.is_empty() => return Some(filters),
            Err(_) => return None,
        }
        if filters.len() > MOST {
            return None;
        }
    }
}

/// What a filter decides on (struct seccomp_data).
struct SystemCall {
    number: i64,
    args: [u64; 6],
    ip: RemoteAddr,
}

impl SystemCall {
    fn word(&self, offset: u32) -> Option<u32> {
        const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
        let half = |value: u64| (value >> (offset % 8 * 8)) as u32;
        match offset {
            0 => Some(self.number as u32),
            4 => Some(AUDIT_ARCH_X86_64),
            8 | 12 => Some(half(self.ip.0)),
            16..64 if offset.is_multiple_of(4) => Some(half(self.args[(offset as usize - 16) / 8])),
            _ => None,
        }
    }
}

/// Runs a filter. Anything but a plain permission, or an instruction that is not known, is none.
fn allows(filter: &[Instruction], call: &SystemCall) -> bool {
    const ACTION: u32 = 0xffff_0000;
    const ALLOW: u32 = 0x7fff_0000;
    const LOG: u32 = 0x7ffc_0000;
    run(filter, call).is_some_and(|verdict| [ALLOW, LOG].contains(&(verdict & ACTION)))
}

fn run(filter: &[Instruction], call: &SystemCall) -> Option<u32> {
    let (mut a, mut x) = (0u32, 0u32);
    let mut memory = [0u32; 16];
    let mut at = 0usize;
    loop {
        let Instruction {
            code,
            jump_true,
            jump_false,
            k,
        } = *filter.get(at)?;
        at += 1;
        let operand = if code & 0x08 != 0 { x } else { k };
        match code {
            0x20 => a = call.word(k)?,
            0x00 => a = k,
            0x01 => x = k,
            // The length of what is looked at.
            0x80 => a = 64,
            0x81 => x = 64,
            0x60 => a = *memory.get(k as usize)?,
            0x61 => x = *memory.get(k as usize)?,
            0x02 => *memory.get_mut(k as usize)? = a,
            0x03 => *memory.get_mut(k as usize)? = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.checked_shl(operand).unwrap_or(0),
            0x74 | 0x7c => a = a.checked_shr(operand).unwrap_or(0),
            0x84 => a = a.wrapping_neg(),
            0xa4 | 0xac => a ^= operand,
            0x05 => at = at.checked_add(k as usize)?,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { jump_true } else { jump_false });
            }
            0x06 => return Some(k),
            0x16 => return Some(a),
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u16, jump_true: u8, jump_false: u8, k: u32) -> Instruction {
        Instruction {
            code,
            jump_true,
            jump_false,
            k,
        }
    }

    fn call(number: i64, third: u64) -> SystemCall {
        SystemCall {
            number,
            args: [0, 0, third, 0, 0, 0],
            ip: RemoteAddr(0x1234_5678_9abc),
        }
    }

    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0001;

    #[test]
    fn a_filter_decides_by_number_and_argument() {
        // mmap with PROT_EXEC is refused, everything else allowed.
        let filter = [
            instruction(0x20, 0, 0, 4),
            instruction(0x15, 0, 5, 0xc000_003e),
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 0, 4, libc::SYS_mmap as u32),
            instruction(0x20, 0, 0, 16 + 2 * 8),
            instruction(0x45, 0, 2, libc::PROT_EXEC as u32),
            instruction(0x06, 0, 0, ERRNO),
            instruction(0x06, 0, 0, 0),
            instruction(0x06, 0, 0, ALLOW),
        ];
        assert!(allows(&filter, &call(libc::SYS_close, 4)));
        assert!(allows(
            &filter,
            &call(libc::SYS_mmap, libc::PROT_READ as u64)
        ));
        assert!(!allows(
            &filter,
            &call(libc::SYS_mmap, libc::PROT_EXEC as u64)
        ));
    }

    #[test]
    fn both_halves_of_an_argument_are_seen() {
        let load = |offset| {
            run(
                &[instruction(0x20, 0, 0, offset), instruction(0x16, 0, 0, 0)],
                &call(7, 0x1111_2222_3333_4444),
            )
        };
        assert_eq!((load(32), load(36)), (Some(0x3333_4444), Some(0x1111_2222)));
        assert_eq!((load(8), load(12)), (Some(0x5678_9abc), Some(0x1234)));
        assert_eq!((load(0), load(33), load(64)), (Some(7), None, None));
    }

    #[test]
    fn what_is_not_understood_is_not_allowed() {
        let any = call(libc::SYS_mmap, 0);
        assert!(!allows(&[], &any));
        assert!(!allows(&[instruction(0xffff, 0, 0, 0)], &any));
        assert!(!allows(&[instruction(0x05, 0, 0, u32::MAX)], &any));
        assert!(!allows(
            &[instruction(0x02, 0, 0, 16), instruction(0x06, 0, 0, ALLOW)],
            &any
        ));
        assert!(!allows(
            &[instruction(0x34, 0, 0, 0), instruction(0x06, 0, 0, ALLOW)],
            &any
        ));
        // SECCOMP_RET_TRACE, RET_TRAP and RET_USER_NOTIF go through somebody's hands.
        for verdict in [0x7ff0_0000, 0x0003_0000, 0x7fc0_0000, 0, 0x8000_0000] {
            assert!(!allows(&[instruction(0x06, 0, 0, verdict)], &any));
        }
    }
}
