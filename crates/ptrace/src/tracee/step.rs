//! Single steps and breakpoints: a thread that stands in code which is about to go walks out of it; a program that is
//! being started walks to where its libraries are in place.
//!
//! A step ends in a real SIGTRAP, with effects that must not stay behind:
//! - the kernel resets the action of SIGTRAP if the program ignores it: its action is saved and restored;
//! - it unblocks SIGTRAP, and resets its action, if the thread blocks it: it is unblocked meanwhile;
//! - `pushf` stores the processor's trap flag, and a later `popf` would set it for good: it is cleared on the stack;
//! - behind a `popf` the kernel takes the trap flag of the next step for the program's own, and leaves it set for ever:
//!   single-step mode is left before that.
//!
//! A signal that wants to be delivered in the middle is put back: blocked first, then resumed with, the kernel queues it
//! again. It is delivered when the process goes on, with the thread outside.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::sys::{self, Event, Resume};
use super::{Regs, Stopped, restart};
use crate::error::{Error, Result};
use crate::proc::{self, RemoteAddr, Tid};

const INT3: u8 = 0xcc;
const TRAP_FLAG: u64 = 0x100;
const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

/// How an instruction uses the flags, as far as the trap flag is concerned.
#[derive(Clone, Copy)]
enum FlagUse {
    None,
    Pushed,
    Popped,
}

impl Stopped {
    /// Steps a thread until `inside(pc)` is false. `Ok(false)`: still inside after `max_steps`, or in a system call
    /// that did not return within the patience.
    pub fn step_out(
        &mut self,
        tid: Tid,
        inside: &dyn Fn(RemoteAddr) -> bool,
        max_steps: usize,
    ) -> Result<bool> {
        if !inside(RemoteAddr(self.regs(tid)?.rip)) {
            return Ok(true);
        }
        self.with_traps(tid, |stopped, masked| {
            stopped.walk(tid, inside, max_steps, masked)
        })
    }

    /// Runs the only thread of a program that is being started until it is about to execute the instruction at `at`.
    /// Signals that arrive meanwhile are delivered.
    pub(crate) fn run_to_breakpoint(&mut self, at: RemoteAddr) -> Result<()> {
        let tid = self.threads[0];
        self.step_out(tid, &|pc| pc == at, 1)?;
        self.with_traps(tid, |stopped, _| {
            let mut kept = [0];
            stopped.read(at, &mut kept)?;
            stopped.write(at, &[INT3])?;
            let hit = stopped.run_to_trap(tid, RemoteAddr(at.0 + 1));
            let restored = stopped.write(at, &kept);
            hit?;
            restored?;
            let mut regs = stopped.regs(tid)?;
            regs.rip = at.0;
            stopped.set_regs(tid, regs)
        })
    }

    fn run_to_trap(&mut self, tid: Tid, behind: RemoteAddr) -> Result<()> {
        const DOING: &str = "its libraries were being loaded";
        let mut signal = 0;
        loop {
            self.regs.remove(&tid);
            self.or_ended(sys::resume(tid, Resume::Run, signal), DOING)?;
            // As long as it takes: a loader may wait for a slow disk, and the user can interrupt it.
            let Some(event) = sys::wait(tid, Instant::now() + Duration::from_secs(86_400)) else {
                continue;
            };
            signal = match event {
                Event::Signal(libc::SIGTRAP) if self.regs(tid)?.rip == behind.0 => return Ok(()),
                Event::Signal(signal) => signal,
                Event::Stop | Event::Syscall | Event::Exec => 0,
                Event::Ended(status) => {
                    self.threads.retain(|known| *known != tid);
                    return Err(Error::TargetExited {
                        pid: self.pid,
                        how: ExitStatus::from_raw(status).to_string(),
                        doing: DOING,
                    });
                }
            };
        }
    }

    /// Does something that ends in SIGTRAPs, and leaves the thread's mask and the action of SIGTRAP as they were. The
    /// work says if it changed the mask.
    fn with_traps<T>(
        &mut self,
        tid: Tid,
        work: impl FnOnce(&mut Stopped, &mut bool) -> Result<T>,
    ) -> Result<T> {
        const DOING: &str = "it was single-stepped";
        self.end_remote()?;
        let ignores = proc::status(self.pid, tid).is_ok_and(|s| s.ignored & SIGTRAP_BIT != 0);
        let action = if ignores {
            Some(self.trap_action(None)?)
        } else {
            None
        };
        self.end_remote()?;
        self.flush_regs(tid)?;
        let mask = self.or_ended(sys::signal_mask(tid), DOING)?;
        let mut masked = mask & SIGTRAP_BIT != 0;
        if masked {
            self.or_ended(sys::set_signal_mask(tid, mask & !SIGTRAP_BIT), DOING)?;
        }
        let result = work(self, &mut masked);
        if !self.threads.contains(&tid) {
            return result;
        }
        if masked {
            self.or_ended(sys::set_signal_mask(tid, mask), DOING)?;
        }
        // Out of the stop for the SIGTRAP, which would be delivered should we die now, and out of single-step mode.
        self.flush_regs(tid)?;
        self.settle(tid)?;
        if let Some(action) = action {
            self.trap_action(Some(action))?;
            self.end_remote()?;
        }
        result
    }

    /// `masked`: set when the thread's signal mask was changed.
    fn walk(
        &mut self,
        tid: Tid,
        inside: &dyn Fn(RemoteAddr) -> bool,
        max_steps: usize,
        masked: &mut bool,
    ) -> Result<bool> {
        const DOING: &str = "it was single-stepped";
        let mut steps = 0;
        let mut signal = 0;
        let mut flags = self.flag_use(tid)?;
        while steps < max_steps {
            self.regs.remove(&tid);
            self.or_ended(sys::resume(tid, Resume::Step, signal), DOING)?;
            signal = 0;
            match sys::wait(tid, self.deadline()) {
                Some(Event::Signal(libc::SIGTRAP)) => steps += 1,
                Some(Event::Signal(other)) => {
                    let all_but_trap = !SIGTRAP_BIT;
                    self.or_ended(sys::set_signal_mask(tid, all_but_trap), DOING)?;
                    *masked = true;
                    signal = other;
                    continue;
                }
                Some(Event::Stop | Event::Syscall | Event::Exec) => continue,
                Some(Event::Ended(_)) => {
                    self.threads.retain(|known| *known != tid);
                    return Err(Error::TargetExited {
                        pid: self.pid,
                        how: "it was killed".to_owned(),
                        doing: DOING,
                    });
                }
                None => {
                    self.or_ended(sys::interrupt(tid), DOING)?;
                    if sys::wait(tid, self.deadline()).is_none() {
                        self.threads.retain(|known| *known != tid);
                        super::seize::leave_behind(tid);
                    } else {
                        self.settle_interrupted(tid)?;
                    }
                    return Ok(false);
                }
            }
            match flags {
                FlagUse::None => {}
                FlagUse::Pushed => self.clear_pushed_trap_flag(tid)?,
                FlagUse::Popped => self.settle(tid)?,
            }
            let pc = RemoteAddr(self.regs(tid)?.rip);
            if !inside(pc) {
                return Ok(true);
            }
            flags = self.flag_use(tid)?;
        }
        Ok(false)
    }

    /// What the instruction at which the thread stands does to the flags.
    fn flag_use(&mut self, tid: Tid) -> Result<FlagUse> {
        let rip = self.regs(tid)?.rip;
        let mut code = [0; 4];
        // At the end of a mapping there may be less; such an instruction is a short one.
        if self.read(RemoteAddr(rip), &mut code).is_err() {
            self.read(RemoteAddr(rip), &mut code[..1])?;
        }
        let prefix = |byte: &u8| matches!(byte, 0x66 | 0x67 | 0x40..=0x4f);
        Ok(match code.iter().find(|byte| !prefix(byte)) {
            Some(0x9c) => FlagUse::Pushed,
            Some(0x9d | 0xcf) => FlagUse::Popped,
            _ => FlagUse::None,
        })
    }

    /// From any stop to the ordinary one, out of single-step mode, without running an instruction.
    fn settle(&mut self, tid: Tid) -> Result<()> {
        self.or_ended(sys::interrupt(tid), "it was single-stepped")?;
        self.run_to(tid, Resume::Run, Event::Stop)
    }

    /// A thread that was interrupted in a system call while it was single-stepped stands before its last SIGTRAP, which
    /// would be delivered when it goes on; and the system call may have come back with an EINTR of our making.
    fn settle_interrupted(&mut self, tid: Tid) -> Result<()> {
        const DOING: &str = "it was single-stepped";
        self.settle(tid)?;
        if proc::status(self.pid, tid).is_ok_and(|status| status.pending & SIGTRAP_BIT != 0) {
            self.run_to(tid, Resume::Run, Event::Signal(libc::SIGTRAP))?;
            self.settle(tid)?;
        }
        self.regs.remove(&tid);
        let regs = self.regs(tid)?;
        if let Some(fixed) = restart::without_stray_eintr(&regs) {
            self.or_ended(sys::set_registers(tid, &fixed), DOING)?;
            self.regs.remove(&tid);
        }
        Ok(())
    }

    fn clear_pushed_trap_flag(&mut self, tid: Tid) -> Result<()> {
        let rsp = RemoteAddr(self.regs(tid)?.rsp);
        let mut word = [0; 2];
        self.read(rsp, &mut word)?;
        let flags = u16::from_le_bytes(word) & !(TRAP_FLAG as u16);
        self.write(rsp, &flags.to_le_bytes())
    }

    /// Reads the action of SIGTRAP, or sets it.
    fn trap_action(&mut self, set: Option<[u8; 32]>) -> Result<[u8; 32]> {
        // The kernel's structure: handler, flags, restorer, mask, 8 bytes each. It needs memory that the call can
        // write: below the red zone and the frame of the borrowed thread, put back afterwards.
        const BELOW: u64 = 1024;
        let tid = self.threads[0];
        let regs: Regs = self.regs(tid)?;
        let place = RemoteAddr((regs.rsp - BELOW) & !15);
        let mut kept = [0; 32];
        self.read(place, &mut kept)?;
        let mut action = set.unwrap_or_default();
        let (new, old) = if set.is_some() {
            (place.0, 0)
        } else {
            (0, place.0)
        };
        self.write(place, &action)?;
        let args = [libc::SIGTRAP as u64, new, old, 8, 0, 0];
        let called = self.syscall_by(tid, libc::SYS_rt_sigaction, args);
        if called.is_ok() {
            self.read(place, &mut action)?;
        }
        self.write(place, &kept)?;
        called.map(|_| action)
    }
}
