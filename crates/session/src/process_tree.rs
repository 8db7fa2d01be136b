//! All processes of a recording: the first one, those it forks, and the programs that any of them becomes.
//!
//! ```text
//! region   one shared memory and the processes that carry it: a program that was started, and its fork children,
//!          which have slots and trees of their own in the same memory          process_tree/region.rs, one OS thread each
//! exec     a process leaves its region and, if it can be followed, begins another           process_tree/exec.rs
//! life     one process from the moment we know of it to its end                             process_tree/life.rs
//! program  what a process is about to become                                                process_tree/program.rs
//! unhooked_children   made without a gate that saw it                                              process_tree/unhooked_children.rs
//! ```
//!
//! The snapshot of a region is taken as soon as nobody carries it any more, and its trees join the one profile. Nobody is held: between
//! two gates every process runs untraced, and if we die they all run on.

mod exec;
pub mod life;
mod program;
mod region;
mod unhooked_children;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use thalweg_model::{End, Merger, Profile};

use crate::attach::{Attached, Options};
use crate::budget::Policy;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::memory::Shared;
use crate::proc::Pid;
use crate::samples::Wishes;
use crate::snapshot::{self, Totals};

/// The processes of one recording, each looked after by the thread of its region.
pub struct ProcessTree {
    common: Arc<Common>,
    first: Pid,
    status: Option<ExitStatus>,
}

/// How processes are measured that somebody looks after.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How they are instrumented.
    pub attach: Options,
    /// What is done to keep probes cheap; `None`: every call is timed, or none.
    pub policy: Option<Policy>,
    /// What their stacks are looked at for.
    pub looking: Wishes,
}

/// What all regions share.
struct Common {
    options: Options,
    policy: Option<Policy>,
    looking: Wishes,
    /// Some time ago, so that the clock's rate is known at once.
    began: Moment,
    /// When the first region was attached.
    origin_ns: u64,
    closing: AtomicBool,
    /// How often all regions were asked for what they have so far.
    asked: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    merger: Merger,
    threads: Vec<JoinHandle<()>>,
    /// Regions that somebody carries, and processes on their way from one to the next.
    busy: usize,
    /// Processes that are alive, by region.
    regions: BTreeMap<usize, (Shared, usize)>,
    next_region: usize,
    /// Programs that were not followed: why, and how often.
    refused: BTreeMap<String, u32>,
    /// Processes that came by a gate: followed, or left alone for a reason. And unhooked children, once they were checked.
    settled: HashSet<unhooked_children::ProcessKey>,
    /// What to say of unhooked children that were joined.
    late: Vec<String>,
    /// What regions that go on have given when they were asked, and at which asking.
    partial: BTreeMap<usize, (u64, Result<Partial>)>,
    /// Checkpoints that a thread has come to.
    reached: VecDeque<Reached>,
    failed: Vec<Error>,
    unfinished: Vec<Unfinished>,
}

/// A recording that has come to its end.
pub struct Closed {
    pub profile: Profile,
    /// Processes that could not be restored yet.
    pub unfinished: Vec<Unfinished>,
}

/// A process that is left with something of ours in it, because it did not stop.
pub struct Unfinished {
    pub pid: Pid,
    /// Why it still has its probes; `None`: its code is what it was, but memory stays mapped.
    pub probed: Option<String>,
}

impl Unfinished {
    /// What there is to be done, for people.
    pub fn note(&self) -> String {
        let pid = self.pid;
        match &self.probed {
            Some(why) => {
                format!("what process {pid} had counted was read without stopping it: {why}")
            }
            None => format!(
                "the code of process {pid} is what it was, but memory of its probes stays mapped until `thalweg detach {pid}` removes it"
            ),
        }
    }
}

/// What a region has counted so far, and how much later than the recording it began, in nanoseconds.
type Partial = (Profile, u64);

/// A thread of a region is at a function that makes a checkpoint.
struct Reached {
    region: usize,
    function: String,
    partial: Partial,
}

/// How long regions may take to say what they have.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(60);

impl ProcessTree {
    /// Looks after a process that was just instrumented and, if the options say so, after all that come from it. A launched
    /// one must not run before this has returned: it would pass its first gates unseen.
    pub fn begin(first: Attached, plan: &Plan) -> Result<ProcessTree> {
        let header = first.shared.header()?;
        let common = Arc::new(Common {
            options: Options {
                gates_suffice: true,
                ..plan.attach.clone()
            },
            policy: plan.policy,
            looking: plan.looking.clone(),
            began: Moment::now(),
            origin_ns: header.attach_monotonic_ns,
            closing: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            state: Mutex::default(),
        });
        let pid = first.pid;
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        common.spawn(move |common| {
            region::tend(common, first, || {
                let _ = ready.send(());
            });
        })?;
        let _ = is_ready.recv();
        Ok(ProcessTree {
            common,
            first: pid,
            status: None,
        })
    }

    /// Whether every process has ended.
    pub fn is_over(&self) -> bool {
        self.common.lock().busy == 0
    }

    /// How many processes are alive.
    pub fn living(&self) -> usize {
        let state = self.common.lock();
        state.regions.values().map(|(_, living)| living).sum()
    }

    /// What the first process's parent, who is its only sure source, knows about its end.
    pub fn first_ended(&mut self, status: ExitStatus) {
        self.status = Some(status);
    }

    /// Sums over all that lives.
    pub fn totals(&self) -> Totals {
        let state = self.common.lock();
        let each = state.regions.values();
        each.filter_map(|(shared, _)| snapshot::totals(shared).ok())
            .fold(Totals::default(), Totals::plus)
    }

    /// All that was counted so far; everybody goes on.
    pub fn snapshot(&self) -> Result<Profile> {
        self.gather(None)
    }

    /// A checkpoint that a thread came to meanwhile: the function's name, and all that had been counted then. (By other
    /// programs of the recording: a moment later.)
    pub fn checkpoint(&self) -> Option<Result<(String, Profile)>> {
        let reached = self.common.lock().reached.pop_front()?;
        let function = reached.function;
        let gathered = self.gather(Some((reached.region, reached.partial)));
        Some(gathered.map(|profile| (function, profile)))
    }

    fn gather(&self, known: Option<(usize, Partial)>) -> Result<Profile> {
        let asked = self.common.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let deadline = Instant::now() + SNAPSHOT_PATIENCE;
        loop {
            let mut state = self.common.lock();
            let mut missing = state.regions.keys().filter(|number| {
                let given = state.partial.get(number);
                known.as_ref().is_none_or(|(region, _)| region != *number)
                    && given.is_none_or(|(asking, _)| *asking < asked)
            });
            if missing.next().is_none() {
                // Those that have ended meanwhile have said it all.
                let mut merger = state.merger.clone();
                let mut partial = std::mem::take(&mut state.partial);
                partial.extend(known.map(|(region, partial)| (region, (asked, Ok(partial)))));
                for (number, (_, given)) in partial {
                    if state.regions.contains_key(&number) {
                        let (profile, later) = given?;
                        merger.add(profile, later);
                    }
                }
                return Ok(self.assemble(merger, &state));
            }
            drop(state);
            if Instant::now() > deadline {
                return Err(Error::Lost(
                    "a process could not be read within a minute".into(),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Detaches from every process that still lives, and gives all that was counted.
    pub fn close(self) -> Result<Closed> {
        self.common.closing.store(true, Ordering::SeqCst);
        // A thread that is joined may have begun another one.
        loop {
            let thread = self.common.lock().threads.pop();
            let Some(thread) = thread else { break };
            if thread.join().is_err() {
                return Err(Error::Lost(
                    "a thread that looked after a process has failed".into(),
                ));
            }
        }
        let mut state = std::mem::take(&mut *self.common.lock());
        if let Some(error) = state.failed.pop() {
            return Err(error);
        }
        let merger = std::mem::take(&mut state.merger);
        let mut profile = self.assemble(merger, &state);
        let unfinished = state.unfinished;
        profile
            .notes
            .extend(unfinished.iter().map(|one| one.note()));
        Ok(Closed {
            profile,
            unfinished,
        })
    }

    fn assemble(&self, merger: Merger, state: &State) -> Profile {
        use std::os::unix::process::ExitStatusExt;
        let mut profile = merger.finish();
        profile.processes.sort_by_key(|process| process.start_ns);
        let ours: HashSet<u32> = profile.processes.iter().map(|p| p.pid).collect();
        for process in &mut profile.processes {
            process.parent = process.parent.filter(|parent| ours.contains(parent));
        }
        if let Some(status) = self.status {
            let last = profile
                .processes
                .iter_mut()
                .rfind(|process| process.pid == self.first.0 as u32);
            if let Some(process) = last
                && process.end == End::Unknown
            {
                process.end = life::end_of(status.into_raw());
            }
        }
        profile.notes.extend(state.late.iter().cloned());
        for (reason, times) in &state.refused {
            let often = match times {
                1 => String::new(),
                _ => format!(" ({times} times)"),
            };
            profile.notes.push(format!("not followed: {reason}{often}"));
        }
        profile
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        // The regions see it and leave.
        self.common.closing.store(true, Ordering::SeqCst);
    }
}

impl Common {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Runs `work` on a thread of its own, until whose end the process tree is not over.
    fn spawn(self: &Arc<Self>, work: impl FnOnce(&Arc<Common>) + Send + 'static) -> Result<()> {
        self.lock().busy += 1;
        let common = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("process".into())
            .spawn(move || {
                /// Also when `work` panics.
                struct Busy(Arc<Common>);
                impl Drop for Busy {
                    fn drop(&mut self) {
                        self.0.lock().busy -= 1;
                    }
                }
                let busy = Busy(common);
                work(&busy.0);
            });
        let mut state = self.lock();
        // Those that are through need not be kept: a long recording may see very many.
        state.threads.retain(|thread| !thread.is_finished());
        match thread {
            Ok(thread) => {
                state.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                state.busy -= 1;
                Err(Error::no_thread(error))
            }
        }
    }

    /// A gate has seen this process: it is no unhooked child.
    fn settle(&self, pid: Pid) {
        if let Some(key) = unhooked_children::ProcessKey::read(pid) {
            self.lock().settled.insert(key);
        }
    }

    fn refuse(&self, reason: String) {
        *self.lock().refused.entry(reason).or_default() += 1;
    }
}
