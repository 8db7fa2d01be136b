//! What a thread may have done to itself before we came: given up the time-stamp counter. For its system calls see seccomp.rs.

use super::Stopped;
use crate::error::{Error, Result};
use crate::proc::Tid;

/// So many threads are asked whether they may read the counter: each has to make a system call for that while all of them stand
/// still. A thread has it from its creator, so that of many threads a few tell.
const MOST_ASKED: usize = 32;

impl Stopped {
    /// Refuses, before anything is changed, a process whose threads could not run a probe.
    pub fn check_limits(&mut self) -> Result<()> {
        let pid = self.pid;
        let asked: Vec<Tid> = self.threads.iter().copied().take(MOST_ASKED).collect();
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
