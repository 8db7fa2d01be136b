//! The way out of a deadlock that the kernel allows between a tracer and an execve.
//!
//! A thread that replaces the program ends all others, and waits, holding a lock, until their tracer has collected them.
//! If the tracer is at that moment about to seize one more thread, it waits in the kernel for the same lock, cannot
//! collect anything, and both wait for ever. Any thread of the tracer's process may collect, though: while threads are
//! being seized, this one looks after those that ended, should it take suspiciously long.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::sys;
use crate::proc::Tid;

/// Far longer than seizing takes, far shorter than anybody's patience.
const SUSPICIOUS: Duration = Duration::from_millis(50);

struct Watched {
    since: Instant,
    held: Arc<Mutex<Vec<Tid>>>,
}

#[derive(Default)]
struct Reaper {
    watched: Mutex<Vec<Watched>>,
    some: Condvar,
}

/// Threads that are being seized; looked after until it is dropped.
pub(super) struct Watch {
    held: Arc<Mutex<Vec<Tid>>>,
}

impl Watch {
    pub(super) fn begin() -> Watch {
        let held = Arc::new(Mutex::new(Vec::new()));
        lock(&reaper().watched).push(Watched {
            since: Instant::now(),
            held: Arc::clone(&held),
        });
        reaper().some.notify_one();
        Watch { held }
    }

    pub(super) fn add(&self, tid: Tid) {
        lock(&self.held).push(tid);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&reaper().watched).retain(|watched| !Arc::ptr_eq(&watched.held, &self.held));
    }
}

fn reaper() -> &'static Reaper {
    static REAPER: OnceLock<&'static Reaper> = OnceLock::new();
    REAPER.get_or_init(|| {
        let reaper: &'static Reaper = Box::leak(Box::default());
        // Without it, all that is missing is the way out of a rare deadlock.
        let _ = std::thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(|| look_after(reaper));
        reaper
    })
}

fn look_after(reaper: &Reaper) -> ! {
    let mut watched = lock(&reaper.watched);
    loop {
        watched = if watched.is_empty() {
            reaper
                .some
                .wait(watched)
                .unwrap_or_else(PoisonError::into_inner)
        } else {
            let waited = reaper.some.wait_timeout(watched, SUSPICIOUS);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        for one in watched
            .iter()
            .filter(|one| one.since.elapsed() >= SUSPICIOUS)
        {
            for tid in lock(&one.held).iter() {
                sys::collect_if_ended(*tid);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
