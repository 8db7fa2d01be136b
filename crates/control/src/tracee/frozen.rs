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
//! Only the state decides, never the time that a stop takes: on a busy machine threads wait long for a processor, in
//! state R, and get all the patience that there is.

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
            return Err(stuck(pid, first, patience));
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

/// One of these threads that is in state D.
pub(super) fn one_of(pid: Pid, tids: &[Tid]) -> Option<Tid> {
    let mut tids = tids.iter().copied();
    tids.find(|tid| proc::thread_stat(pid, *tid).is_ok_and(|stat| stat.state == 'D'))
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
