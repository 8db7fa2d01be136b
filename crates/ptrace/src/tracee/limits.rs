//! What a thread may have done to itself before we came: given up the time-stamp counter. For its system calls see seccomp.rs.

use std::time::{Duration, Instant};

use super::{StopOptions, Stopped, on_own_thread};
use crate::error::{Error, Result};
use crate::proc::{self, Pid, Tid};

/// So many threads are always asked whether they may read the counter, the others for as long as this takes no longer. A
/// thread has it from its creator, so that of many threads a few tell.
const LEAST_ASKED: usize = 32;
const LONGEST: Duration = Duration::from_millis(200);

/// Asks threads one by one whether they may read the counter: nobody stands still but the one that is asked. `false`: not all
/// of them could be asked that way.
///
/// Asked during one stop of all threads, 32 of them were most of it: each has to run three times, and on a busy machine waits
/// for a processor each time. 500 threads stood for 100 to 900 ms that way.
pub fn check_counters(pid: Pid) -> Result<bool> {
    let options = StopOptions::once();
    let begin = Instant::now();
    for (asked, tid) in proc::tasks(pid)?.into_iter().enumerate() {
        if asked >= LEAST_ASKED && begin.elapsed() >= LONGEST {
            break;
        }
        let may = on_own_thread(|| {
            let Some(mut stopped) = Stopped::stop_one(pid, tid, options)? else {
                return Ok(Some(true));
            };
            match stopped.has_lasting_cave()? {
                true => stopped.may_read_counter(tid).map(Some),
                false => Ok(None),
            }
        });
        match may {
            Ok(Some(true)) => {}
            Ok(Some(false)) => return Err(Error::NoCounter { pid, tid }),
            // It does not stop now, or has become another program: the stop of all will tell.
            Ok(None) | Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

impl Stopped {
    /// Refuses, before anything is changed, a process whose threads could not run a probe.
    pub fn check_limits(&mut self) -> Result<()> {
        let pid = self.pid;
        let asked: Vec<Tid> = self.threads.iter().copied().take(LEAST_ASKED).collect();
        for tid in asked {
            if !self.may_read_counter(tid)? {
                return Err(Error::NoCounter { pid, tid });
            }
        }
        Ok(())
    }

    fn may_read_counter(&mut self, tid: Tid) -> Result<bool> {
        const PR_GET_TSC: u64 = 25;
        const PR_TSC_SIGSEGV: i32 = 2;
        let question = [PR_GET_TSC, 0, 0, 0, 0, 0];
        // Under a filter that forbids the question it is as unlikely as elsewhere.
        if self
            .check_system_call(tid, libc::SYS_prctl, question)
            .is_err()
        {
            return Ok(true);
        }
        let answer = self.ask_number(tid, libc::SYS_prctl, PR_GET_TSC)?;
        Ok(answer != Some(PR_TSC_SIGSEGV))
    }
}
