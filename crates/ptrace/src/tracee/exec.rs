//! From one program to the next: a thread that waits at the gate of `execve` is followed through the system call, and the
//! process stands before the first instruction of its new program, just like one that we started ourselves.
//!
//! Only that one thread is touched. It may be a vfork child, in whose memory its parent sleeps; it may be one of many
//! threads, which the kernel ends and whose first one's id it takes over; and the call may fail, as it does for most
//! directories of a PATH: then the thread is let go, and has noticed nothing.

use std::time::{Duration, Instant};

use super::seize::{self, Seized, Wait};
use super::sys::{self, Event, Resume};
use super::{StopOptions, Stopped};
use crate::error::{Error, Result};
use crate::proc::{self, Pid, Tid};

/// System calls between the gate and execve: the end of the wait at the gate, and what signal handlers do. A thread that
/// makes more of them is not on its way to another program.
const MOST_OTHER_CALLS: usize = 400;

/// An execve reads the new program's first pages from disk, perhaps a slow one.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A ptrace link to one thread, let go on every path that does not hand it on.
struct Held {
    tid: Tid,
    stands: bool,
}

impl Held {
    fn next(&mut self, resume: Option<(Resume, i32)>, deadline: Instant) -> Result<Event> {
        if let Some((how, signal)) = resume {
            sys::resume(self.tid, how, signal)?;
            self.stands = false;
        }
        let event = sys::wait(self.tid, deadline);
        self.stands = matches!(event, Some(event) if !matches!(event, Event::Ended(_)));
        event.ok_or_else(|| Error::Lost(format!("thread {} does not answer", self.tid)))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.tid == Tid(0) || (self.stands && sys::detach(self.tid, 0).is_ok()) {
            return;
        }
        let _ = sys::interrupt(self.tid);
        seize::leave_behind(self.tid);
    }
}

impl Stopped {
    /// Follows a thread that waits at the gate before an execve; `go` lets it pass. `Ok(None)`: the call failed, or was
    /// never made, and the thread is on its own again.
    pub fn through_exec(pid: Pid, tid: Tid, go: impl FnOnce()) -> Result<Option<Stopped>> {
        let seized = sys::seize(tid);
        if let Err(error) = seized {
            go();
            return Err(match error {
                Error::Ptrace { source, .. } => proc::diagnose_refusal(pid, source),
                other => other,
            });
        }
        let mut held = Held { tid, stands: false };
        let stood = stand(&mut held);
        go();
        stood?;
        let deadline = Instant::now() + PATIENCE;
        let mut inside = false;
        let mut others = 0;
        let mut signal = 0;
        loop {
            let event = held.next(Some((Resume::ToSyscall, signal)), deadline)?;
            signal = 0;
            match event {
                Event::Exec => break,
                Event::Syscall => {
                    let number = sys::registers(held.tid)?.orig_rax as i64;
                    let exec = number == libc::SYS_execve || number == libc::SYS_execveat;
                    if exec && inside {
                        // The way out without an exec event in between: it has failed.
                        return Ok(None);
                    }
                    inside = exec;
                    others += 1;
                    if others > MOST_OTHER_CALLS {
                        return Ok(None);
                    }
                }
                Event::Signal(number) => signal = number,
                Event::Stop => {}
                // Another thread than the first: it goes on under the first one's id.
                Event::Ended(_) if inside && Tid::from(pid) != held.tid => {
                    held.tid = pid.into();
                    match held.next(None, deadline)? {
                        Event::Exec => break,
                        _ => return Ok(None),
                    }
                }
                Event::Ended(_) => return Ok(None),
            }
        }
        let mut seized = Seized::at_exec(pid);
        held.tid = Tid(0);
        let options = StopOptions::default();
        seized.collect(&Wait::new(options.patience, options.patience))?;
        Stopped::from_seized(seized, options).map(Some)
    }
}

/// Stops the thread where it waits. Signals that come first are delivered.
fn stand(held: &mut Held) -> Result<()> {
    let deadline = Instant::now() + StopOptions::default().patience;
    sys::interrupt(held.tid)?;
    let mut event = held.next(None, deadline)?;
    loop {
        let signal = match event {
            Event::Stop => return Ok(()),
            Event::Signal(signal) => signal,
            Event::Exec | Event::Syscall => 0,
            Event::Ended(_) => {
                return Err(Error::Lost(format!(
                    "thread {} ended before it became another program",
                    held.tid
                )));
            }
        };
        sys::interrupt(held.tid)?;
        event = held.next(Some((Resume::Run, signal)), deadline)?;
    }
}
