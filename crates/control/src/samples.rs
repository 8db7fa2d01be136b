//! Looks: the stacks of all threads, seen on a timer of their processor time, beside the events that probes count.
//!
//! ```text
//! kernel     copies registers and the top of the stack into a ring, at every period of a thread's processor time     event, ring
//! drain      some twenty times a second, and before every switch, so that a look is judged by the states that held
//!            record -> frames -> functions (displaced code is its function's) -> a tree for each thread              records, space,
//!                                                                                                            stubs, tree, functions
//! harvest    the trees go to the threads of the profile; functions that it does not have are added                    looks
//! others     whoever reads the target while this process looks finds them in the shared memory                        spool
//! ```
//!
//! The target pays for the kernel's copy and nothing else: it is never stopped, never signalled, and no memory of it is read but
//! its code, once. What is kept here grows with the number of different stacks, up to a bound.

mod cost;
mod event;
mod functions;
mod looks;
mod records;
mod ring;
mod space;
pub(crate) mod spool;
mod stubs;
mod tree;

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use thalweg_model::Sampling;
use thalweg_shm as shm;

pub use self::cost::look_ns;
use self::event::{Events, Wanted};
use self::functions::FunctionId;
pub(crate) use self::looks::Looks;
use self::records::{Look, Record};
use self::space::{Outcome, Space};
pub use self::spool::{Looking, looker};
use self::stubs::Stubs;
use self::tree::Tree;
use crate::budget::Seen;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::memory::Shared;
use crate::proc::{self, Pid, Tid};
use crate::states::{self, State};

/// How often threads are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Samples {
    /// Looks per second of a thread's processor time.
    pub hz: u32,
}

/// More than this is more than the kernel takes without being told, and more than anybody needs.
pub const MOST_HZ: u32 = 10_000;

/// What is copied of a stack at first ...
const STACK: u32 = 32 << 10;
/// ... and where that is too little for many: as much as the kernel copies.
const DEEP_STACK: u32 = (64 << 10) - 8;
/// Many are this share, of at least so many.
const MANY: f64 = 0.01;
const ENOUGH_LOOKS: u64 = 50;

/// Between two drains, unless a ring fills up.
const PAUSE: Duration = Duration::from_millis(45);
const FULL: f64 = 0.25;

/// Nodes of all trees together: some hundred megabytes at most.
const MOST_NODES: usize = 1 << 20;
/// Trees of threads that have ended; beyond it those of one process share one.
const MOST_ENDED: usize = 16_384;

/// What is said of processes that could not be looked at.
const MOST_NOTES: usize = 4;

impl Samples {
    /// A prime number of nanoseconds, which nothing that recurs keeps pace with.
    fn period_ns(self) -> u64 {
        let period = 1_000_000_000 / u64::from(self.hz.clamp(1, MOST_HZ));
        let is_prime = |n: &u64| {
            !n.is_multiple_of(2)
                && (3..)
                    .step_by(2)
                    .take_while(|d| d * d <= *n)
                    .all(|d| !n.is_multiple_of(d))
        };
        (period..).find(is_prime).unwrap_or(period)
    }

    fn wanted(self) -> Wanted {
        Wanted {
            period_ns: self.period_ns(),
            stack: STACK,
            kernel: true,
        }
    }

    /// Whether the kernel lets us, with threads that are in the kernel.
    pub fn sees_everything(self) -> bool {
        event::allowed(self.wanted()).is_ok_and(|wanted| wanted.kernel)
    }

    /// Whether the kernel lets us.
    pub fn check(self) -> Result<()> {
        event::allowed(self.wanted()).map(drop).map_err(refused)
    }
}

fn refused(source: io::Error) -> Error {
    let advice = match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "; set kernel.perf_event_paranoid to 2 or less, run as root or with CAP_PERFMON, and see that no seccomp filter of a container forbids perf_event_open"
        }
        Some(libc::ENOSYS) => {
            "; this kernel was built without performance events, or a container's seccomp filter hides them"
        }
        Some(libc::EINVAL | libc::E2BIG) => "; it needs Linux 5.13 or later",
        Some(libc::EMFILE) => "; raise the limit of open files (`ulimit -n`)",
        _ => "",
    };
    Error::Other(format!(
        "stacks cannot be looked at on a timer: the kernel refuses performance events ({source}){advice}"
    ))
}

/// Looks at the processes of one region.
pub(crate) struct Sampler {
    events: Events,
    filter: Filter,
    shared: Shared,
    stubs: Stubs,
    spaces: HashMap<Pid, Space>,
    /// Threads that are looked at because their creators are.
    inherited: HashSet<Tid>,
    pub(crate) looks: Looks,
    /// Of all trees.
    nodes: usize,
    /// Of the looks with this size of stacks, those that were deeper.
    deeper: u64,
    looks_before: u64,
    drained: Instant,
    path: Vec<FunctionId>,
    counted: HashMap<u32, bool>,
}

impl Sampler {
    pub(crate) fn begin(
        samples: Samples,
        filter: &Filter,
        shared: Shared,
        pid: Pid,
    ) -> Result<Sampler> {
        let wanted = event::allowed(samples.wanted()).map_err(refused)?;
        let stubs = Stubs::read(&shared, &shared.header()?, pid)?;
        let mut notes = Vec::new();
        if !wanted.kernel {
            notes.push("stacks were not looked at while threads were in the kernel, which kernel.perf_event_paranoid forbids: time of system calls is not in what comes from looks".into());
        }
        let mut sampler = Sampler {
            events: Events::new(wanted),
            filter: filter.clone(),
            shared,
            stubs,
            spaces: HashMap::new(),
            inherited: HashSet::new(),
            looks: Looks {
                totals: Sampling {
                    period_ns: wanted.period_ns,
                    ..Sampling::default()
                },
                notes,
                ..Looks::default()
            },
            nodes: 0,
            deeper: 0,
            looks_before: 0,
            drained: Instant::now(),
            path: Vec::new(),
            counted: HashMap::new(),
        };
        sampler.join(pid)?;
        Ok(sampler)
    }

    /// Looks at all threads of a process from now on.
    pub(crate) fn join(&mut self, pid: Pid) -> Result<()> {
        if self.spaces.contains_key(&pid) {
            return Ok(());
        }
        let space = Space::of(pid, &self.filter, &self.stubs)?;
        self.spaces.insert(pid, space);
        self.open(pid).map_err(refused)
    }

    /// Looks at these processes from now on, and at no others.
    pub(crate) fn follow(&mut self, pids: &[Pid]) {
        let gone: Vec<Pid> = self.spaces.keys().copied().collect();
        for pid in gone.into_iter().filter(|pid| !pids.contains(pid)) {
            self.leave(pid);
        }
        for &pid in pids {
            // It may have ended this moment.
            if let Err(error) = self.join(pid)
                && self.looks.notes.len() < MOST_NOTES
            {
                self.looks.notes.push(error.to_string());
            }
        }
    }

    fn open(&mut self, pid: Pid) -> io::Result<()> {
        let mut known: HashSet<Tid> = HashSet::new();
        // Twice: threads may be born while the first ones are being opened, to those that are and to those that are not.
        for _ in 0..2 {
            let Ok(tasks) = proc::tasks(pid) else { break };
            for tid in tasks {
                if self.inherited.contains(&tid) || !known.insert(tid) {
                    continue;
                }
                match self.events.add(pid, tid) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                    _ => {}
                }
            }
            self.read_rings();
        }
        Ok(())
    }

    /// The process has ended or become another program.
    pub(crate) fn leave(&mut self, pid: Pid) {
        if self.spaces.contains_key(&pid) {
            self.drain();
            self.spaces.remove(&pid);
            self.events.forget(pid);
        }
    }

    /// Takes what the kernel has seen, if it is time to.
    pub(crate) fn tend(&mut self) {
        let is_full = |(_, ring): &(i32, ring::Ring)| ring.fullness() > FULL;
        if self.drained.elapsed() > PAUSE || self.events.rings.iter().any(is_full) {
            self.drain();
            self.look_deeper();
        }
    }

    /// Nobody is looked at any more; all that was seen is here.
    pub(crate) fn stop(&mut self) {
        self.events.stop();
        self.drain();
    }

    /// Takes what the kernel has seen, and says how much that is so far.
    pub(crate) fn drain(&mut self) -> Seen {
        self.counted.clear();
        if let Ok(header) = self.shared.header()
            && !self.stubs.is_current(&header)
            && let Some(&pid) = self.spaces.keys().next()
            && let Ok(stubs) = Stubs::read(&self.shared, &header, pid)
        {
            // Modules were loaded, and are counted now.
            self.stubs = stubs;
            self.spaces.values_mut().for_each(|s| s.outdated = true);
        }
        self.read_rings();
        self.drained = Instant::now();
        let totals = &self.looks.totals;
        Seen {
            looks: totals.looks,
            in_probes: totals.in_probes,
        }
    }

    fn read_rings(&mut self) {
        let header = self.shared.header().ok();
        let mut rings = std::mem::take(&mut self.events.rings);
        for (_, ring) in &mut rings {
            let in_order = ring.read(|kind, bytes| match records::parse(kind, bytes) {
                Some(Record::Look(look)) => self.look(&look, header.as_ref()),
                Some(Record::Lost(lost)) => {
                    self.looks.totals.lost = self.looks.totals.lost.saturating_add(lost);
                }
                Some(Record::Began { pid, tid }) => self.begin_thread(pid, tid),
                Some(Record::Ended { pid, tid }) => self.end(pid, tid),
                Some(Record::Mapped { pid }) => {
                    if let Some(space) = self.spaces.get_mut(&Pid(pid as i32)) {
                        space.outdated = true;
                    }
                }
                None => {}
            });
            if !in_order {
                self.looks.totals.lost += 1;
            }
        }
        self.events.rings = rings;
    }

    fn look(&mut self, look: &Look<'_>, header: Option<&shm::Header>) {
        let pid = Pid(look.pid as i32);
        let Some(space) = self.spaces.get_mut(&pid) else {
            return;
        };
        if std::mem::take(&mut space.outdated)
            && let Ok(fresh) = Space::of(pid, &self.filter, &self.stubs)
        {
            *space = fresh;
        }
        self.looks.totals.looks += 1;
        let (shared, known) = (&self.shared, &mut self.counted);
        let mut is_on = |function: u32| {
            *known
                .entry(function)
                .or_insert_with(|| is_counted(shared, header, function))
        };
        let (functions, path) = (&mut self.looks.functions, &mut self.path);
        let outcome = space.follow(look, &self.stubs, &mut is_on, functions, path);
        match outcome {
            Outcome::Whole => {}
            Outcome::InProbe => {
                self.looks.totals.in_probes += 1;
                return;
            }
            Outcome::Deeper | Outcome::Lost => {
                self.deeper += u64::from(outcome == Outcome::Deeper);
                self.looks.totals.cut_short += 1;
                return;
            }
        }
        let stack = self.path.iter().map(|&id| {
            let number = self.looks.functions.number(id);
            (id, number.is_some_and(&mut is_on))
        });
        let tree = self
            .looks
            .trees
            .entry((look.pid, look.tid))
            .or_insert_with(|| {
                let name = proc::thread_name(pid, Tid(look.tid as i32));
                Tree::new(look.time_ns, name.unwrap_or_default())
            });
        tree.first_ns = tree.first_ns.min(look.time_ns);
        tree.last_ns = tree.last_ns.max(look.time_ns);
        match tree.add(stack, MOST_NODES.saturating_sub(self.nodes)) {
            Some(more) => self.nodes += more,
            None => self.looks.totals.cut_short += 1,
        }
    }

    fn begin_thread(&mut self, pid: u32, tid: u32) {
        if self.spaces.contains_key(&Pid(pid as i32)) {
            self.inherited.insert(Tid(tid as i32));
        }
    }

    /// A thread's number may be another's from now on.
    fn end(&mut self, pid: u32, tid: u32) {
        self.inherited.remove(&Tid(tid as i32));
        let Some(tree) = self.looks.trees.remove(&(pid, tid)) else {
            return;
        };
        if self.looks.ended.len() < MOST_ENDED {
            self.looks.ended.push(((pid, tid), tree));
            return;
        }
        let of_many = self
            .looks
            .ended
            .iter()
            .position(|(whose, _)| *whose == (pid, 0));
        match of_many {
            Some(place) => self.looks.ended[place].1.merge(&tree),
            None => self.looks.ended.push(((pid, 0), tree)),
        }
    }

    /// Where many stacks are deeper than what is copied, more is.
    fn look_deeper(&mut self) {
        let looks = self.looks.totals.looks - self.looks_before;
        let many = looks >= ENOUGH_LOOKS && self.deeper as f64 > looks as f64 * MANY;
        if !many || self.events.wanted.stack >= DEEP_STACK {
            return;
        }
        self.stop();
        self.events = Events::new(Wanted {
            stack: DEEP_STACK,
            ..self.events.wanted
        });
        self.inherited.clear();
        (self.deeper, self.looks_before) = (0, self.looks.totals.looks);
        let pids: Vec<Pid> = self.spaces.keys().copied().collect();
        for pid in pids {
            if let Err(error) = self.open(pid) {
                self.looks.notes.push(refused(error).to_string());
            }
        }
    }
}

fn is_counted(shared: &Shared, header: Option<&shm::Header>, function: u32) -> bool {
    let state = header.and_then(|header| states::read(shared, header, function, 1).ok());
    state
        .and_then(|states| states.first().map(|one| State::of(one.state)))
        .is_some_and(|state| state != State::Off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_a_prime_close_to_what_was_asked_for() {
        for (hz, period) in [(499, 2_004_017), (1, 1_000_000_007), (10_000, 100_003)] {
            assert_eq!(Samples { hz }.period_ns(), period);
        }
    }
}
