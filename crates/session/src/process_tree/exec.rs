//! A process becomes another program: followed through its execve, instrumented before its first own instruction, and
//! looked after as a region of its own.

use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

use super::{Common, region};
use crate::attach::{self, Attached};
use crate::clock;
use crate::detach;
use crate::error::{Error, Result};
use crate::held;
use crate::launch::loader;
use crate::memory;
use crate::proc::{self, Pid, Tid};
use crate::tracee::Stopped;

/// `stands` is told when the gate may be opened, `left` when the process has left its old region.
pub(super) fn follow(
    common: &Arc<Common>,
    pid: Pid,
    tid: Tid,
    name: &str,
    stands: SyncSender<()>,
    left: Sender<(Pid, u64)>,
) {
    let since = clock::ticks();
    let through = Stopped::through_exec(pid, tid, || {
        let _ = stands.send(());
    });
    let replaced = clock::ticks();
    let mut stopped = match through {
        Ok(Some(stopped)) => stopped,
        // It failed, as it does for most directories of a PATH.
        Ok(None) => return,
        Err(error) => {
            if is_alive(pid) {
                common.refuse(format!("{name}: {error}"));
            }
            return;
        }
    };
    held::followed(pid, tid, since);
    let _ = left.send((pid, replaced));
    match begin(common, &mut stopped) {
        Ok(attached) => region::tend(common, attached, || {
            // It can only have been killed, which the region will see.
            let _ = stopped.release();
        }),
        Err(error) => {
            // Once it is let go it may end at any moment.
            let was_alive = is_alive(pid);
            drop(stopped);
            // What is left in it by then, its text being as it was, is taken out.
            if memory::mappings(pid).is_ok_and(|found| !found.is_empty()) {
                let _ = detach::detach(pid).and_then(|detached| detached.unmap());
            }
            // The filters leave nothing of it: as the user wants it.
            let wanted = !matches!(error, Error::NothingToProfile { .. });
            if wanted && was_alive {
                common.refuse(format!("{name}: {error}"));
            }
        }
    }
}

fn begin(common: &Common, stopped: &mut Stopped) -> Result<Attached> {
    let pid = stopped.pid();
    let status = proc::status(pid, pid.into())?;
    if status.seccomp != 0 {
        return Err(Error::Seccomp {
            pid,
            tid: pid.into(),
            mode: status.seccomp,
        });
    }
    loader::run_to_ready(stopped)?;
    if let Some(host) = proc::host_inside(pid) {
        let what = format!("process {pid}");
        return Err(Error::Host { what, host });
    }
    let command = proc::command(pid)?
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    attach::instrument_stopped(
        stopped,
        &common.options,
        command,
        common.began,
        &|_, _, _| {},
    )
}

fn is_alive(pid: Pid) -> bool {
    proc::stat(pid).is_ok_and(|stat| !stat.is_dead())
}
