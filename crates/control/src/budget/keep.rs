//! A budget, and looks, for a process that was attached and left alone: a process of ours stays beside it, keeps the budget, looks at stacks
//! and ends when the target does or is detached. What it has seen goes into the shared memory, to those who read the target.
//!
//! Its number is in the shared memory, for those who ask. Killed, it leaves the functions as they are, which every later `switch`
//! and `detach` understands.

use std::mem::offset_of;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thalweg_shm as shm;

use super::{Budget, Governor, Seen};
use crate::detach;
use crate::error::{Error, Result};
use crate::memory::{self, Identity, Shared};
use crate::proc::{self, Pid, RemoteAddr};
use crate::samples::spool::Spool;
use crate::samples::{self, Looking, Sampler};

/// Between two looks whether somebody detaches.
const NAP: Duration = Duration::from_millis(5);
/// How often fork children are looked for.
const CENSUS: Duration = Duration::from_secs(1);

/// What is done for an attached process while nobody records it.
pub struct Kept {
    pub budget: Option<Budget>,
    pub looking: Option<Looking>,
}

/// Keeps the budget of an attached process and of its fork children, and looks at their stacks, for as long as it is attached.
pub fn keep(pid: Pid, kept: Kept) -> Result<()> {
    let (shared, header) = detach::attached(pid)?;
    if let Some(other) = keeper(&header).or(samples::looker(&header)) {
        return Err(Error::Other(format!(
            "process {other} keeps the budget of process {pid}, or looks at it, already"
        )));
    }
    let start = RemoteAddr(header.base + shm::PRIVATE_SIZE);
    let mapping = memory::mappings(pid)?
        .into_iter()
        .find(|mapping| mapping.start == start)
        .ok_or_else(|| Error::Other(format!("process {pid} is not attached any more")))?;
    let identity = Identity::of(&mapping);
    let mut governor = match kept.budget {
        Some(budget) => Some(Governor::new(budget, shared.try_clone()?, identity)?),
        None => None,
    };
    let mut looks = Looker::begin(pid, kept.looking, &shared)?;
    if governor.is_some() {
        note(&shared, std::process::id())?;
    }
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
        // What cannot be written down this time is the next time.
        let _ = looks.tend(&carriers, governor.as_ref());
        if let Some(governor) = &mut governor {
            // What was seen is judged by the states that held then.
            governor.tend(&carriers, &mut || looks.drain());
        }
        std::thread::sleep(NAP);
    }
    // A target that has ended takes no more notes.
    let _ = looks.end(governor.as_ref());
    note(&shared, 0)
}

/// The one that looks, once it has found out where all code is, which takes a while. The budget is kept meanwhile.
struct Looker {
    shared: Shared,
    beginning: Option<JoinHandle<Result<Sampler>>>,
    sampler: Option<Sampler>,
    /// From when on it is known whether stacks are looked at.
    spool: Option<Spool>,
    /// Why nobody looks.
    unseen: Option<String>,
}

impl Looker {
    fn begin(pid: Pid, looking: Option<Looking>, shared: &Shared) -> Result<Looker> {
        let mut looker = Looker {
            shared: shared.try_clone()?,
            beginning: None,
            sampler: None,
            spool: None,
            unseen: None,
        };
        if let Some(looking) = looking {
            let shared = shared.try_clone()?;
            let begin = move || Sampler::begin(&looking.wishes, &looking.filter, shared, pid);
            let thread = std::thread::Builder::new().name("looks".into());
            let begun = thread.spawn(begin);
            let begun = begun.map_err(|e| Error::Other(format!("cannot start a thread: {e}")))?;
            looker.beginning = Some(begun);
        }
        Ok(looker)
    }

    fn tend(&mut self, carriers: &[Pid], governor: Option<&Governor>) -> Result<()> {
        if self.beginning.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(thread) = self.beginning.take()
        {
            match thread.join() {
                Ok(Ok(sampler)) => self.sampler = Some(sampler),
                Ok(Err(error)) => self.unseen = Some(error.to_string()),
                Err(_) => self.unseen = Some("stacks are not looked at: that failed".into()),
            }
        }
        if self.beginning.is_some() {
            return Ok(());
        }
        if let Some(sampler) = &mut self.sampler {
            sampler.follow(carriers);
            sampler.tend();
        }
        let note = || said(self.unseen.as_ref(), governor);
        let spool = match &mut self.spool {
            Some(spool) => spool,
            None => {
                let shared = self.shared.try_clone()?;
                self.spool
                    .insert(Spool::begin(shared, self.sampler.as_ref())?)
            }
        };
        spool.tend(self.sampler.as_mut(), true, note)
    }

    fn drain(&mut self) -> Seen {
        match &mut self.sampler {
            Some(sampler) => sampler.drain(),
            None => Seen::default(),
        }
    }

    fn end(mut self, governor: Option<&Governor>) -> Result<()> {
        if let Some(sampler) = &mut self.sampler {
            sampler.stop();
        }
        let spool = match self.spool {
            Some(spool) => spool,
            None => Spool::begin(self.shared, self.sampler.as_ref())?,
        };
        spool.end(self.sampler.as_mut(), said(self.unseen.as_ref(), governor))
    }
}

fn said(unseen: Option<&String>, governor: Option<&Governor>) -> Vec<String> {
    let kept = governor.and_then(Governor::report);
    unseen.cloned().into_iter().chain(kept).collect()
}

/// Says who keeps the budget; 0: nobody.
pub(crate) fn note(shared: &Shared, pid: u32) -> Result<()> {
    let at = offset_of!(shm::Header, keeper) as u64;
    shared.write(at, &pid.to_le_bytes())
}

/// Who keeps the budget of the target whose header this is: the process that records it, or one that stays beside it. A number that is another program's by now is nobody's.
pub fn keeper(header: &shm::Header) -> Option<Pid> {
    let pid = Pid(i32::try_from(header.keeper).ok().filter(|pid| *pid > 0)?);
    proc::is_kin(pid).then_some(pid)
}
