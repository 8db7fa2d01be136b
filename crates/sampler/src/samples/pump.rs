//! Whoever looks, with a thread of its own where every event counts: a burst of page faults fills a ring within milliseconds, and whoever
//! serves the target may be busy for longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use thalweg_abi as shm;
use thalweg_model as model;

use super::looks::Track;
use super::{Watch, Wishes};
use crate::error::Result;
use crate::filter::Filter;
use crate::memory::Shared;
use crate::proc::Pid;

/// How often the thread asks whether a ring fills up.
const NAP: Duration = Duration::from_millis(2);
const BREATH: Duration = Duration::from_micros(50);
/// Of a ring: more is read at once.
const LITTLE: f64 = 0.03;

/// How many looks there were so far, and how many of them found a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub looks: u64,
    pub in_probes: u64,
}

/// Looks at the processes of one region.
pub struct Sampler {
    watch: Arc<Mutex<Watch>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    pub fn begin(wishes: &Wishes, filter: &Filter, shared: Shared, pid: Pid) -> Result<Sampler> {
        let watch = Watch::begin(wishes, filter, shared, pid)?;
        let counts = watch.looks.tracks.iter().any(Track::is_exact);
        let mut sampler = Sampler {
            watch: Arc::new(Mutex::new(watch)),
            ends: Arc::new(AtomicBool::new(false)),
            thread: None,
        };
        if counts {
            let (watch, ends) = (sampler.watch.clone(), sampler.ends.clone());
            let thread = std::thread::Builder::new().name("looks".into());
            // Without it the rings are read more rarely, and what is lost is told.
            let pump = thread.spawn(move || {
                be_quick();
                while !ends.load(Ordering::Relaxed) {
                    let is_filling = {
                        let mut watch = lock(&watch);
                        let is_filling = watch.is_filling(LITTLE);
                        if is_filling {
                            watch.drain();
                        }
                        is_filling
                    };
                    // Others want to have it, too.
                    std::thread::sleep(if is_filling { BREATH } else { NAP });
                }
            });
            sampler.thread = pump.ok();
        }
        Ok(sampler)
    }

    /// Looks at all threads of a process from now on.
    pub fn join(&mut self, pid: Pid) -> Result<()> {
        lock(&self.watch).join(pid)
    }

    /// Looks at these processes from now on, and at no others.
    pub fn follow(&mut self, pids: &[Pid]) {
        lock(&self.watch).follow(pids);
    }

    /// The process has ended or become another program.
    pub fn leave(&mut self, pid: Pid) {
        lock(&self.watch).leave(pid);
    }

    /// Takes what the kernel has seen, if it is time to.
    pub fn tend(&mut self) {
        lock(&self.watch).tend();
    }

    /// Takes what the kernel has seen, and says how much that is so far on the timer.
    pub fn drain(&mut self) -> Seen {
        let mut watch = lock(&self.watch);
        watch.drain();
        let timer = watch.looks.timer();
        timer.map_or_else(Seen::default, |timer| Seen {
            looks: timer.totals.looks,
            in_probes: timer.totals.in_probes,
        })
    }

    /// Nobody is looked at any more; all that was seen is here.
    pub fn stop(&mut self) {
        lock(&self.watch).stop();
    }

    /// Between two looks on a timer; 0: there is none.
    pub(super) fn timer_ns(&self) -> u64 {
        let watch = lock(&self.watch);
        watch.looks.timer().map_or(0, |timer| timer.period)
    }

    /// Adds what was seen until now.
    pub fn add_to(&mut self, profile: &mut model::Profile, header: &shm::Header) {
        let mut watch = lock(&self.watch);
        watch.settle();
        watch.looks.add_to(profile, header);
    }

    /// The same for another process; `more` is said as well.
    pub(super) fn encode(&mut self, more: Vec<String>) -> Result<Vec<u8>> {
        let mut watch = lock(&self.watch);
        watch.settle();
        watch.looks.encode(more)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where that is allowed, before others that want the processor: what is not read in time is lost.
fn be_quick() {
    // SAFETY: is about this very thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

/// What one that panicked has seen is as good as before.
fn lock(watch: &Mutex<Watch>) -> MutexGuard<'_, Watch> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}
