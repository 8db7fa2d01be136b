//! The part of a sidecar that looks at stacks, and writes down what it has seen for those who read the target.

use std::thread::JoinHandle;

use crate::budget::{Governor, Policy};
use crate::error::{Error, Result};
use crate::memory::Shared;
use crate::proc::Pid;
use crate::samples::spool::Spool;
use crate::samples::{Looking, Sampler, Seen};

/// The one that looks, once it has found out where all code is, which takes a while. The budget is kept meanwhile.
pub(super) struct Looker {
    shared: Shared,
    policy: Option<Policy>,
    beginning: Option<JoinHandle<Result<Sampler>>>,
    sampler: Option<Sampler>,
    /// From when on it is known whether stacks are looked at.
    spool: Option<Spool>,
    /// Why nobody looks.
    unseen: Option<String>,
}

impl Looker {
    pub(super) fn begin(
        pid: Pid,
        looking: Option<Looking>,
        policy: Option<Policy>,
        shared: &Shared,
    ) -> Result<Looker> {
        let mut looker = Looker {
            shared: shared.try_clone()?,
            policy,
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
            let begun = begun.map_err(Error::no_thread)?;
            looker.beginning = Some(begun);
        }
        Ok(looker)
    }

    pub(super) fn tend(&mut self, carriers: &[Pid], governor: Option<&Governor>) -> Result<()> {
        if self.beginning.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(thread) = self.beginning.take()
        {
            match thread.join() {
                Ok(Ok(sampler)) => self.sampler = Some(sampler),
                Ok(Err(error)) => {
                    let why = Policy::without_samples(self.policy, &error.to_string());
                    self.unseen = Some(why);
                }
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

    pub(super) fn drain(&mut self) -> Seen {
        match &mut self.sampler {
            Some(sampler) => sampler.drain(),
            None => Seen::default(),
        }
    }

    pub(super) fn end(mut self, governor: Option<&Governor>) -> Result<()> {
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
