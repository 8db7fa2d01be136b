//! The sidecar: a process of ours that `attach` leaves beside its target.
//!
//! It holds the shared memory, so that what was counted outlives the target. It keeps the budget and samples stacks, where
//! that is asked for. It sleeps otherwise: one wake in a second, or when the target ends.
//!
//! ```text
//! attached              keeps the budget, samples stacks
//! leaving               ends both; somebody detaches, which may fail
//! detached              the sidecar ends
//! the target has ended  reads the shared memory once, keeps the profile until it is taken, for an hour (`left.rs`)
//! ```
//!
//! The shared memory comes as its standard input: open from the start, whatever happens to the target meanwhile. Nothing that the
//! target may write says whom it waits for: that is a descriptor of the process. Killed, it leaves the functions as they
//! are, which every later `switch` and `detach` understands.

use std::time::{Duration, Instant};

use thalweg_abi as shm;
use thalweg_model::Profile;

use self::looker::Looker;
use crate::attendants;
use crate::budget::{self, Goal, Governor, Policy};
use crate::clock;
use crate::detach;
use crate::error::{Error, Result};
use crate::memory::{self, Identity, Shared};
use crate::proc::{Pid, RemoteAddr};
use crate::process_tree::life::Life;
use crate::samples::Looking;
use crate::snapshot::{self, ThreadRegistry};

mod left;
mod looker;

pub use left::{Left, find, has_profile, keep_profile, left_by, wait_for_takers};

/// Between two looks whether somebody detaches, with something to do and without.
const BUSY_NAP: Duration = Duration::from_millis(5);
const IDLE_NAP: Duration = Duration::from_secs(1);
/// How often fork children are looked for.
const CENSUS: Duration = Duration::from_secs(1);
/// Names and processor times of threads are read at most this part of the time.
const WITNESS_SHARE: u32 = 1000;

/// What is done for an attached process while nobody records it.
pub struct Kept {
    pub policy: Option<Policy>,
    pub looking: Option<Looking>,
}

/// Stays beside an attached process for as long as it is attached, and after its death until its profile is taken.
pub fn stay(pid: Pid, kept: Kept, shared: Shared) -> Result<()> {
    let mut beside = Beside::begin(pid, shared)?;
    if kept.policy.is_some() || kept.looking.is_some() {
        beside.work(kept)?;
    }
    while beside.is_attached() {
        if let Some(profile) = beside.ended()? {
            left::show(&profile)?;
            drop(profile);
            drop(beside);
            left::wait_for_takers();
            return Ok(());
        }
        beside.nap(IDLE_NAP);
    }
    Ok(())
}

/// What this process was started with beyond its three standard streams is not passed on to those
/// that it starts. A sidecar lives for long: a lock or the end of a pipe that a script left open
/// would be held as long as the sidecar lives.
pub fn pass_nothing_on() -> std::io::Result<()> {
    let standard = libc::STDERR_FILENO as libc::c_uint;
    let flag = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: sets a flag of descriptors; none is closed, and no memory is touched.
    match unsafe { libc::close_range(standard + 1, libc::c_uint::MAX, flag) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// One target and its memory.
struct Beside {
    pid: Pid,
    shared: Shared,
    identity: Identity,
    start: RemoteAddr,
    follow: bool,
    life: Life,
    registry: ThreadRegistry,
    next_look: Instant,
}

impl Beside {
    fn begin(pid: Pid, shared: Shared) -> Result<Beside> {
        let header = shared.header()?;
        let unreadable = || Error::Refused("the shared memory is not a file".into());
        let identity = shared.identity().ok_or_else(unreadable)?;
        let start = RemoteAddr(header.base.saturating_add(shm::PRIVATE_SIZE));
        let mut life = Life::new(pid);
        // The number may be another process's by now.
        life.look();
        if !memory::carries(pid, identity, start) {
            life.replaced(clock::ticks());
        }
        Ok(Beside {
            pid,
            shared,
            identity,
            start,
            follow: header.flags & shm::HEADER_FOLLOW != 0,
            life,
            registry: ThreadRegistry::default(),
            next_look: Instant::now(),
        })
    }

    fn is_attached(&self) -> bool {
        self.shared
            .header()
            .is_ok_and(|header| header.magic == shm::MAGIC && header.state == shm::STATE_ATTACHED)
    }

    /// Keeps the budget of the process and of its fork children, and looks at their stacks, until somebody detaches it or they
    /// have ended.
    fn work(&mut self, kept: Kept) -> Result<()> {
        let header = self.shared.header()?;
        if let Some(other) = attendants::keeper(&header).or(attendants::looker(&header)) {
            return Err(Error::Refused(format!(
                "process {other} keeps the budget of process {}, or looks at it, already",
                self.pid
            )));
        }
        let shared = &self.shared;
        let mut governor = match kept.policy {
            Some(policy) => Some(Governor::new(policy, shared.try_clone()?, self.identity)?),
            None => None,
        };
        let mut looks = Looker::begin(self.pid, kept.looking, kept.policy, shared)?;
        if kept
            .policy
            .is_some_and(|policy| matches!(policy.goal, Goal::Share(_)))
        {
            budget::note(shared, std::process::id())?;
        }
        let mut carriers = memory::carriers(self.identity);
        let mut counted = Instant::now();
        while let Ok(header) = self.shared.header()
            && header.state == shm::STATE_ATTACHED
        {
            let is_due = self.follow && counted.elapsed() > CENSUS;
            if is_due || !memory::carries(self.pid, self.identity, self.start) {
                carriers = memory::carriers(self.identity);
                counted = Instant::now();
            }
            // Fork children that are not counted are restored at once, however long they live.
            let is_over = !self.follow && self.life.end.is_some();
            if is_over || carriers.is_empty() {
                break;
            }
            // What cannot be written down this time is the next time.
            let _ = looks.tend(&carriers, governor.as_ref());
            // While somebody detaches nothing is switched; that may not come to an end.
            if let Some(governor) = &mut governor
                && header.leaving == 0
            {
                // What was seen is judged by the states that held then.
                governor.tend(&carriers, &mut || looks.drain());
            }
            self.nap(BUSY_NAP);
        }
        // Memory that nobody maps any more may be sealed: it takes no more notes then.
        let _ = looks.end(governor.as_ref());
        let _ = budget::note(&self.shared, 0);
        Ok(())
    }

    /// Sleeps for so long, or until the target ends; reads names now and then.
    fn nap(&mut self, pause: Duration) {
        if Instant::now() >= self.next_look {
            let began = Instant::now();
            // It may have ended; what was seen before stays.
            let _ = self.registry.update(&self.shared);
            self.next_look = Instant::now() + IDLE_NAP.max(began.elapsed() * WITNESS_SHARE);
        }
        self.life.wait(pause);
        self.life.look();
    }

    /// What it has left, if it has ended: with its fork children where these are counted.
    fn ended(&mut self) -> Result<Option<Profile>> {
        self.life.look();
        let is_over = !self.follow && self.life.end.is_some();
        if !is_over && self.shared.seal() != Some(true) {
            return Ok(None);
        }
        let last = self.life.end.map_or_else(clock::ticks, |(ticks, _)| ticks);
        // Fork children that are not counted have nobody else who would restore them.
        detach::detach_orphans(self.identity);
        let ended = match self.follow {
            true => clock::ticks(),
            false => last,
        };
        self.registry
            .ended(self.pid, last, self.life.processor_time);
        let mut profile = snapshot::take(&self.shared, &self.registry, Some(ended))?;
        if let Some((_, end)) = self.life.end {
            let target = self.pid.0 as u32;
            let process = profile.processes.iter_mut().find(|p| p.pid == target);
            process.into_iter().for_each(|process| process.end = end);
        }
        Ok(Some(profile))
    }
}
