//! Stopping every thread of a process, and letting every one go.
//!
//! Order: seize all; interrupt those that sleep and collect their stops, while the others run on; then interrupt and collect
//! the others. So whoever works stands no longer because many sleep, nor at all where one of those does not stop. A thread
//! that was made meanwhile shows in the next listing; its creator cannot make more once it stands. It is over when all
//! known threads stand and a listing, as long as the kernel's own count of threads, shows no new one.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::frozen::{self, Known, stuck};
use super::reaper::Watch;
use super::sys::{self, Backoff, Event, Resume};
use super::urgency::Urgency;
use super::{Regs, StopOptions, Stopped, exec, own_thread, restart};
use crate::error::{Error, Result};
use crate::proc::{self, Pid, Tid};

/// Threads in our hand, some standing, some not yet. Dropping lets them go.
pub(super) struct Seized {
    pub(super) pid: Pid,
    standing: Vec<(Tid, Regs)>,
    /// Asked to stop.
    awaited: Vec<Tid>,
    /// Not asked yet.
    running: Vec<Tid>,
    first_stop: Option<Instant>,
    /// When the last ones were asked.
    all_asked: Option<Instant>,
    execed: bool,
    pub(super) known: Known,
    pub(super) urgency: Option<Urgency>,
}

/// After a stop that was given up everybody runs for this many times as long as they stood, and twice that the next time.
const PAUSE: u32 = 4;

/// As often as it takes, and there is time for, where a thread is in state D.
pub(super) fn seize_all(pid: Pid, options: StopOptions) -> Result<Seized> {
    let begin = Instant::now();
    let mut pause = options.hold * PAUSE;
    loop {
        tend_left_behind();
        let left = options.retry.saturating_sub(begin.elapsed());
        let known = frozen::wait_for_sleepers(pid, left.max(options.hold))?;
        match seize_once(pid, options, known) {
            Err(Error::Stuck { state: 'D', .. }) if pause < left => {
                let until = Instant::now() + pause;
                while Instant::now() < until {
                    std::thread::sleep(options.hold / 10);
                    tend_left_behind();
                }
                pause *= 2;
            }
            result => return result,
        }
    }
}

fn seize_once(pid: Pid, options: StopOptions, known: Known) -> Result<Seized> {
    let wait = Wait::new(options.patience, options.hold);
    let mut seized = Seized::new(pid, Vec::new());
    seized.known = known;
    seized.urgency = Some(Urgency::new());
    let watch = Watch::begin();
    let mut dead: HashSet<Tid> = HashSet::new();
    loop {
        let listed = proc::tasks(pid).map_err(|error| gone(pid, error))?;
        let standing: HashSet<Tid> = seized.standing.iter().map(|(tid, _)| *tid).collect();
        // Dead and still listed: the first thread, waiting for the others. Its id may be another's by now.
        dead.retain(|tid| {
            listed.contains(tid) && proc::thread_stat(pid, *tid).is_ok_and(|stat| stat.is_dead())
        });
        let new: Vec<Tid> = listed
            .iter()
            .copied()
            .filter(|tid| !standing.contains(tid) && !dead.contains(tid))
            .collect();
        if new.is_empty() {
            // A listing ends early when the thread it stands at ends: trust it only when it is complete.
            let count = proc::stat(pid).map_err(|error| gone(pid, error))?.threads;
            if listed.len() == count && !seized.recheck() {
                break;
            }
        }
        for tid in new {
            if seized.seize(tid)? {
                watch.add(tid);
                seized.running.push(tid);
            } else {
                dead.insert(tid);
            }
        }
        let sleeping = seized.take_sleeping();
        seized.ask(sleeping);
        dead.extend(seized.collect(&wait)?);
        let running = std::mem::take(&mut seized.running);
        seized.all_asked.get_or_insert_with(Instant::now);
        seized.ask(running);
        dead.extend(seized.collect(&wait)?);

        if Instant::now() >= wait.deadline {
            return Err(Error::ThreadsKeepComing {
                pid,
                millis: options.patience.as_millis() as u64,
            });
        }
    }
    if seized.standing.is_empty() {
        return Err(Error::TargetExited {
            pid,
            how: "all its threads are gone".to_owned(),
            doing: "it was being stopped",
        });
    }
    Ok(seized)
}

/// One thread, while the others go on. `None`: it has ended.
pub(super) fn seize_one(pid: Pid, tid: Tid, options: StopOptions) -> Result<Option<Seized>> {
    let status = proc::status(pid, tid)?;
    let mut seized = Seized::new(pid, Vec::new());
    seized.known.insert(tid, status);
    seized.urgency = Some(Urgency::new());
    let watch = Watch::begin();
    if !seized.seize(tid)? {
        return Ok(None);
    }
    watch.add(tid);
    seized.awaited.push(tid);
    let _ = sys::interrupt(tid);
    let ended = seized.collect(&Wait::new(options.patience, options.hold))?;
    Ok(ended.is_empty().then_some(seized))
}

impl Stopped {
    /// Seizes a child of ours that has not started its program yet.
    pub(crate) fn seize_child(pid: Pid) -> Result<()> {
        sys::seize(pid.into()).map_err(|error| match error {
            Error::Ptrace { source, .. } => proc::diagnose_refusal(pid, source),
            other => other,
        })
    }

    /// The seized child before the first instruction of its program.
    pub(crate) fn child_at_exec(pid: Pid, options: StopOptions) -> Result<Stopped> {
        // The loader may take its time, and there is nobody to compete with, nor to be held up.
        let mut seized = Seized::new(pid, vec![pid.into()]);
        loop {
            match seized.collect(&Wait::new(exec::PATIENCE, exec::PATIENCE)) {
                Err(Error::TargetExeced { .. }) => {
                    return Stopped::from_seized(seized, options);
                }
                Err(other) => return Err(other),
                Ok(ended) if !ended.is_empty() => {
                    return Err(Error::TargetExited {
                        pid,
                        how: "it did not start its program".to_owned(),
                        doing: "it was being started",
                    });
                }
                // Stopped from a terminal before it began: it goes on, and stays stopped once released.
                Ok(_) => {
                    for (tid, _) in std::mem::take(&mut seized.standing) {
                        sys::resume(tid, Resume::Run, 0)?;
                        seized.awaited.push(tid);
                    }
                }
            }
        }
    }
}

/// So few threads are asked again at once, more of them get some time for each.
const FEW: usize = 8;
const EACH: Duration = Duration::from_micros(1);

/// How long threads are waited for.
pub(super) struct Wait {
    begin: Instant,
    deadline: Instant,
    /// While one of them is in state D.
    hold: Duration,
}

impl Wait {
    pub(super) fn new(patience: Duration, hold: Duration) -> Wait {
        let begin = Instant::now();
        Wait {
            begin,
            deadline: begin + patience,
            hold,
        }
    }
}

impl Seized {
    fn new(pid: Pid, awaited: Vec<Tid>) -> Seized {
        Seized {
            pid,
            standing: Vec::new(),
            awaited,
            running: Vec::new(),
            first_stop: None,
            all_asked: None,
            execed: false,
            known: Known::new(),
            urgency: None,
        }
    }

    /// A process in our hand that is in the middle of its execve: it will stand before its first instruction.
    pub(super) fn at_exec(pid: Pid) -> Seized {
        let mut seized = Seized::new(pid, vec![pid.into()]);
        seized.stands(pid.into(), Event::Exec);
        seized
    }

    /// Of those that run, the ones that slept a moment ago.
    fn take_sleeping(&mut self) -> Vec<Tid> {
        let known = &self.known;
        let sleeps = |tid: &mut Tid| known.get(tid).is_some_and(|status| status.state == 'S');
        self.running.extract_if(.., sleeps).collect()
    }

    fn ask(&mut self, tids: Vec<Tid>) {
        for tid in &tids {
            // Fails only when the thread has ended, which the collecting will see.
            let _ = sys::interrupt(*tid);
        }
        self.awaited.extend(tids);
    }

    /// A thread that was not asked yet stops all the same where a signal is to be delivered: it gets that, and is asked.
    fn tend_running(&mut self) {
        let mut stopped = Vec::new();
        self.running.retain(|tid| {
            let event = sys::poll(*tid);
            stopped.extend(event.map(|event| (*tid, event)));
            event.is_none()
        });
        for (tid, event) in stopped {
            self.execed |= event == Event::Exec;
            if !matches!(event, Event::Ended(_)) && !self.stands(tid, event) {
                self.awaited.push(tid);
            }
        }
    }

    /// `Ok(false)`: the thread has ended.
    fn seize(&mut self, tid: Tid) -> Result<bool> {
        // A refusal may be about a thread that was ending, whose id another has by the time we look: the thread that
        // replaces the program takes over the first one's. So ask again before believing it.
        const TRIES: usize = 5;
        const NAP: Duration = Duration::from_micros(200);
        let mut refusal = None;
        for _ in 0..TRIES {
            let source = match sys::seize(tid) {
                Ok(()) => return Ok(true),
                Err(Error::Ptrace { source, .. }) => source,
                Err(other) => return Err(other),
            };
            if source.raw_os_error() == Some(libc::ESRCH) {
                return Ok(false);
            }
            match proc::status(self.pid, tid) {
                // Ours already, under this id now.
                Ok(status) if status.tracer == own_tid().0 => return Ok(true),
                Ok(status) if !matches!(status.state, 'Z' | 'X') => {
                    // Another of ours lets go of one thread after the other.
                    if let Some(traced) = proc::traced_by(self.pid, &status) {
                        return Err(traced);
                    }
                    refusal = Some(source);
                    std::thread::sleep(NAP);
                }
                _ => return Ok(false),
            }
        }
        match refusal {
            Some(source) => Err(proc::diagnose_refusal(self.pid, source)),
            None => Ok(false),
        }
    }

    /// Waits until every awaited thread stands; returns those that ended instead.
    pub(super) fn collect(&mut self, wait: &Wait) -> Result<Vec<Tid>> {
        let mut ended = Vec::new();
        let mut pause = Backoff::default();
        let mut sleeper = frozen::Sleeper::new(wait.hold / 2);
        while !self.awaited.is_empty() {
            self.tend_running();
            let before = self.awaited.len();
            for tid in std::mem::take(&mut self.awaited) {
                match sys::poll(tid) {
                    None => self.awaited.push(tid),
                    Some(Event::Ended(_)) => ended.push(tid),
                    Some(event) => {
                        self.execed |= event == Event::Exec;
                        if !self.stands(tid, event) {
                            self.awaited.push(tid);
                        }
                    }
                }
            }
            let left = self.awaited.len();
            if left < before {
                // They need a processor to come to their stops, and ours is one. Asked over and over, 500 threads on
                // two processors took 33 to 45 ms (busy machine).
                if left > FEW {
                    std::thread::sleep(EACH * left as u32);
                }
                continue;
            }
            let waited = wait.begin.elapsed();
            if Instant::now() >= wait.deadline {
                return Err(stuck(self.pid, self.awaited[0], waited));
            }
            if waited >= wait.hold / 2
                && let Some(tid) = sleeper.among(self.pid, &self.awaited)
            {
                return Err(frozen::frozen(self.pid, tid, waited));
            }
            if pause.is_long() {
                self.recheck();
                self.awaited.retain(|tid| {
                    // The first thread, when it ends before the others, tells nobody.
                    let dead = proc::thread_stat(self.pid, *tid).is_ok_and(|stat| stat.is_dead());
                    if dead && sys::poll(*tid).is_none() {
                        leave_behind(*tid);
                    }
                    if dead {
                        ended.push(*tid);
                    }
                    !dead
                });
            }
            pause.rest();
        }
        if self.execed {
            return Err(Error::TargetExeced { pid: self.pid });
        }
        Ok(ended)
    }

    /// Standing threads end when the process is killed, or when another thread replaces the program: the kernel ends all
    /// others for that, and waits until we have collected them. `true`: something has changed.
    fn recheck(&mut self) -> bool {
        let mut changed = false;
        for (tid, regs) in std::mem::take(&mut self.standing) {
            // Only a thread that stands shows them.
            if sys::registers(tid).is_ok() {
                self.standing.push((tid, regs));
                continue;
            }
            match sys::poll(tid) {
                // The thread that replaces the program takes the first one's id, and does not stand yet.
                None => {
                    changed = true;
                    self.awaited.push(tid);
                }
                Some(event) => {
                    changed = true;
                    self.execed |= event == Event::Exec;
                    if !matches!(event, Event::Ended(_)) && !self.stands(tid, event) {
                        self.awaited.push(tid);
                    }
                }
            }
        }
        changed
    }

    /// Takes note of a thread's stop. `false`: it had to be sent on and will stop again.
    fn stands(&mut self, tid: Tid, event: Event) -> bool {
        let signal = match event {
            Event::Stop => {
                self.first_stop.get_or_insert_with(Instant::now);
                if let Ok(mut regs) = sys::registers(tid) {
                    if let Some(fixed) = restart::without_stray_eintr(&regs)
                        && sys::set_registers(tid, &fixed).is_ok()
                    {
                        regs = fixed;
                    }
                    self.standing.push((tid, regs));
                    return true;
                }
                return false;
            }
            // Deliver it now: the thread enters its handler and, because of the second interrupt (the signal's
            // stop used up the first), stands before the handler's first instruction.
            Event::Signal(signal) => signal,
            Event::Exec | Event::Syscall | Event::Ended(_) => 0,
        };
        let _ = sys::interrupt(tid);
        let _ = sys::resume(tid, Resume::Run, signal);
        false
    }

    /// Gives the standing threads away; the drop then has nothing to do.
    pub(super) fn hand_over(&mut self) -> (Vec<Tid>, Vec<(Tid, Regs)>, Began) {
        let regs = std::mem::take(&mut self.standing);
        let tids = regs.iter().map(|(tid, _)| *tid).collect();
        let first_stop = self.first_stop.unwrap_or_else(Instant::now);
        let all_asked = self.all_asked.unwrap_or(first_stop);
        let began = Began {
            first_stop,
            all_asked,
        };
        (tids, regs, began)
    }
}

/// When a stop began.
#[derive(Clone, Copy)]
pub(super) struct Began {
    /// For the first thread, which may have slept.
    pub(super) first_stop: Instant,
    /// For those that did not sleep.
    pub(super) all_asked: Instant,
}

impl Drop for Seized {
    fn drop(&mut self) {
        if own_thread::ends_soon() {
            return;
        }
        for (tid, _) in &self.standing {
            detach_or_collect(*tid);
        }
        let running = std::mem::take(&mut self.running);
        // Whoever was not asked would never stand, and so never be let go.
        self.ask(running);
        for tid in &self.awaited {
            leave_behind(*tid);
        }
        tend_left_behind();
    }
}

impl Stopped {
    /// Restores, writes back and detaches; every thread, whatever happens to another.
    pub(super) fn let_go(&mut self) -> Result<()> {
        let mut result = self.end_remote();
        if let Some(at_end) = self.at_end.take() {
            // The stop is over all the same if it cannot be noted.
            let _ = at_end(self.pid, self.began.all_asked.elapsed());
        }
        for tid in std::mem::take(&mut self.threads) {
            if let Err(error) = self.flush_regs(tid) {
                result = result.and(self.or_ended(Err(error), "its registers were restored"));
            }
            if own_thread::ends_soon() {
                continue;
            }
            if !detach_or_collect(tid) {
                result = result.and(Err(Error::TargetExited {
                    pid: self.pid,
                    how: "it was killed".to_owned(),
                    doing: "it was being released",
                }));
            }
        }
        tend_left_behind();
        result
    }
}

/// `false`: the thread has ended.
fn detach_or_collect(tid: Tid) -> bool {
    if sys::detach(tid, 0).is_ok() {
        return true;
    }
    // Killed. It stays in the table of processes until we have collected it.
    let deadline = Instant::now() + Duration::from_millis(20);
    if !matches!(sys::wait(tid, deadline), Some(Event::Ended(_))) {
        leave_behind(tid);
    }
    false
}

thread_local! {
    /// Threads that we seized and that do not stand: the kernel refuses to detach those. They are let go when they do
    /// stand, at the next occasion, or by the kernel when this OS thread ends.
    static LEFT_BEHIND: RefCell<Vec<Tid>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn leave_behind(tid: Tid) {
    // During the destruction of this OS thread's own variables the list may be gone: the kernel detaches right after.
    let _ = LEFT_BEHIND.try_with(|left| left.borrow_mut().push(tid));
}

/// Lets go of threads that could not be released before because they did not stand (uninterruptible sleep). Returns how
/// many are still held: such a thread would stop, for want of a release, as soon as it wakes. Call it now and then
/// after an [`Error::Stuck`] if this OS thread goes on living; its end releases them all.
pub fn tend_left_behind() -> usize {
    LEFT_BEHIND
        .try_with(|left| {
            let mut left = left.borrow_mut();
            left.retain(|tid| match sys::poll(*tid) {
                None => true,
                Some(Event::Ended(_)) => false,
                Some(Event::Signal(signal)) => sys::detach(*tid, signal).is_err(),
                Some(Event::Stop) => {
                    if let Ok(regs) = sys::registers(*tid)
                        && let Some(fixed) = restart::without_stray_eintr(&regs)
                    {
                        let _ = sys::set_registers(*tid, &fixed);
                    }
                    sys::detach(*tid, 0).is_err()
                }
                Some(Event::Exec | Event::Syscall) => sys::detach(*tid, 0).is_err(),
            });
            left.len()
        })
        .unwrap_or(0)
}

fn own_tid() -> Tid {
    // SAFETY: no preconditions.
    Tid(unsafe { libc::gettid() })
}

/// A process that is gone in the middle of the work has ended: it was there when we began.
fn gone(pid: Pid, error: Error) -> Error {
    match error {
        Error::NoSuchProcess { .. } => Error::TargetExited {
            pid,
            how: "it is gone".to_owned(),
            doing: "it was being stopped",
        },
        other => other,
    }
}
