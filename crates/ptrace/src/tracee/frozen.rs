//! Threads that do not stop: those in uninterruptible sleep (state D). A frozen file system, a disk or a file server
//! that does not answer, a `vfork` whose child has yet to start its program.
//!
//! Such a thread stops when its sleep is over, which may be never, and nobody else may stand still for it meanwhile:
//!
//! ```text
//! before a stop    a thread in state D is waited for with everybody running; as long as it does not move, nothing is
//!                  stopped at all
//! during a stop    a thread that goes into state D then (FUSE does, when it is interrupted) holds up the others for
//!                  `StopOptions::hold`, 50 ms; then everybody runs on, and it is tried again ever more rarely
//! ```
//!
//! The time that a stop takes decides nothing: on a busy machine threads wait long for a processor, in state R, and get
//! all the patience that there is. State D alone does not either: the thread must not have been switched to meanwhile.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::seize::tend_left_behind;
use crate::error::{Error, Result};
use crate::proc::{self, Pid, Status, Tid};

/// Between two questions whether it still sleeps.
const NAP: Duration = Duration::from_millis(1);

/// What the kernel said of each thread right before a stop.
pub(super) type Known = HashMap<Tid, Status>;

/// Reads what is known of all threads, and waits until each that is in state D has moved.
pub(super) fn wait_for_sleepers(pid: Pid, patience: Duration) -> Result<Known> {
    let deadline = Instant::now() + patience;
    let mut known = Known::new();
    for tid in proc::tasks(pid)? {
        // One that has ended meanwhile is none to wait for.
        if let Ok(status) = proc::status(pid, tid) {
            known.insert(tid, status);
        }
    }
    let sleeping = known.iter().filter(|(_, status)| status.state == 'D');
    let mut sleeping: Vec<(Tid, u64)> = sleeping.map(|(t, s)| (*t, s.switches)).collect();
    while let Some(&(first, _)) = sleeping.first() {
        if Instant::now() >= deadline {
            return Err(frozen(pid, first, patience));
        }
        std::thread::sleep(NAP);
        // One of ours, from an earlier try: it stands as soon as it wakes.
        tend_left_behind();
        sleeping.retain(|&(tid, switches)| {
            proc::status(pid, tid).is_ok_and(|now| now.state == 'D' && now.switches == switches)
        });
    }
    Ok(known)
}

/// Threads that are waited for while others stand: whether one of them sleeps on. State D alone says little: a thread that
/// replaces the program, or reads from a disk, has it for a moment, which on a busy machine may be long.
pub(super) struct Sleeper {
    /// In state D without having been switched to since then.
    seen: Option<(Tid, u64, Instant)>,
    /// How long it has to sleep.
    least: Duration,
}

impl Sleeper {
    pub(super) fn new(least: Duration) -> Sleeper {
        Sleeper { seen: None, least }
    }

    /// One of these threads that has been asleep all the time, where this is asked again and again.
    pub(super) fn among(&mut self, pid: Pid, tids: &[Tid]) -> Option<Tid> {
        let asleep = |tid: &Tid| {
            let status = proc::status(pid, *tid).ok()?;
            (status.state == 'D').then_some((*tid, status.switches))
        };
        let now = tids.iter().find_map(asleep);
        self.seen = match (now, self.seen) {
            (Some((tid, switches)), Some(seen)) if (tid, switches) == (seen.0, seen.1) => {
                Some(seen)
            }
            (now, _) => now.map(|(tid, switches)| (tid, switches, Instant::now())),
        };
        let (tid, _, since) = self.seen?;
        (since.elapsed() >= self.least).then_some(tid)
    }
}

pub(super) fn frozen(pid: Pid, tid: Tid, waited: Duration) -> Error {
    Error::Stuck {
        pid,
        tid,
        state: 'D',
        wchan: proc::wchan(pid, tid),
        millis: waited.as_millis() as u64,
    }
}

pub(super) fn stuck(pid: Pid, tid: Tid, waited: Duration) -> Error {
    Error::Stuck {
        pid,
        tid,
        state: proc::thread_stat(pid, tid).map_or('?', |stat| stat.state),
        wchan: proc::wchan(pid, tid),
        millis: waited.as_millis() as u64,
    }
}
