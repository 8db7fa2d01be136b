//! Processes of ours that look after a target: who keeps its budget, who samples it. The shared memory says so, for whoever
//! comes to it.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use thalweg_abi as shm;

use crate::error::Result;
use crate::memory::Shared;
use crate::proc::{self, Pid};

/// How long one that looks may take to answer: it may be about to switch something.
const PATIENCE: Duration = Duration::from_secs(2);
const NAP: Duration = Duration::from_millis(1);

/// Who keeps the budget of the target whose header this is: the process that records it, or one that stays beside it. A number that is another program's by now is nobody's.
pub fn keeper(header: &shm::Header) -> Option<Pid> {
    let pid = Pid(i32::try_from(header.keeper).ok().filter(|pid| *pid > 0)?);
    proc::runs_this_program(pid).then_some(pid)
}

/// Who looks at the target whose header this is, or writes down what is said of it. A number that is another program's by now is nobody's.
pub fn looker(header: &shm::Header) -> Option<Pid> {
    let pid = Pid(i32::try_from(header.looks.looker).ok()?);
    (pid.0 > 0 && proc::runs_this_program(pid)).then_some(pid)
}

/// Has whoever looks take what the kernel has seen until now, and waits for it. Says whether that was done, or nobody looks.
pub fn ask(shared: &Shared) -> Result<bool> {
    let header = shared.header()?;
    let Some(who) = looker(&header).filter(|who| who.0 as u32 != std::process::id()) else {
        return Ok(true);
    };
    let asked = header.looks.asked.wrapping_add(1);
    let at = offset_of!(shm::Header, looks) + offset_of!(shm::Looks, asked);
    shared.write(at as u64, &asked.to_le_bytes())?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let now = shared.header()?;
        // Others may have asked since.
        let is_answered = now.looks.answered.wrapping_sub(asked) as i32 >= 0;
        if is_answered || now.looks.looker == 0 || !proc::runs_this_program(who) {
            return Ok(true);
        }
        std::thread::sleep(NAP);
    }
    Ok(false)
}
