//! A budget for a process that was attached and left alone: a process of ours stays beside it, keeps the budget and ends when the
//! target does or is detached.
//!
//! Its number is in the shared memory, for those who ask. Killed, it leaves the functions as they are, which every later `switch`
//! and `detach` understands.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use thalweg_shm as shm;

use super::{Budget, Governor};
use crate::detach;
use crate::error::{Error, Result};
use crate::memory::{self, Identity, Shared};
use crate::proc::{self, Pid, RemoteAddr};

/// Between two looks whether somebody detaches.
const NAP: Duration = Duration::from_millis(5);
/// How often fork children are looked for.
const CENSUS: Duration = Duration::from_secs(1);

/// Keeps the budget of an attached process and of its fork children for as long as it is attached.
pub fn keep(pid: Pid, budget: Budget) -> Result<()> {
    let (shared, header) = detach::attached(pid)?;
    if let Some(other) = keeper(&header) {
        return Err(Error::Other(format!(
            "process {other} keeps the budget of process {pid} already"
        )));
    }
    let start = RemoteAddr(header.base + shm::PRIVATE_SIZE);
    let mapping = memory::mappings(pid)?
        .into_iter()
        .find(|mapping| mapping.start == start)
        .ok_or_else(|| Error::Other(format!("process {pid} is not attached any more")))?;
    let identity = Identity::of(&mapping);
    let mut governor = Governor::new(budget, shared.try_clone()?, identity)?;
    note(&shared, std::process::id())?;
    let mut carriers = memory::carriers(identity);
    let mut counted = Instant::now();
    while let Ok(header) = shared.header()
        && header.state == shm::STATE_ATTACHED
        && header.leaving == 0
    {
        let forks = header.flags & shm::HEADER_FOLLOW != 0;
        if forks && counted.elapsed() > CENSUS || !memory::carries(pid, identity, start) {
            carriers = memory::carriers(identity);
            counted = Instant::now();
        }
        if carriers.is_empty() {
            break;
        }
        governor.tend(&carriers, &mut || {});
        std::thread::sleep(NAP);
    }
    note(&shared, 0)
}

fn note(shared: &Shared, pid: u32) -> Result<()> {
    let at = offset_of!(shm::Header, keeper) as u64;
    shared.write(at, &pid.to_le_bytes())
}

/// Who keeps the budget of the target whose header this is. A number that is another program's by now is nobody's.
pub fn keeper(header: &shm::Header) -> Option<Pid> {
    let pid = Pid(i32::try_from(header.keeper).ok().filter(|pid| *pid > 0)?);
    proc::is_kin(pid).then_some(pid)
}
