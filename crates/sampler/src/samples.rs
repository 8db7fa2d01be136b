//! Looks: the stacks of all threads, seen on a timer of their processor time, beside the events that probes count; and at the
//! events that the kernel counts: page faults, switches, so many instructions (`counters.rs`).
//!
//! ```text
//! kernel     copies registers and the top of the stack into a ring, at every period of a thread's processor time     event, ring
//! drain      some twenty times a second, and before every switch, so that a look is judged by the states that held
//!            record -> frames -> functions (displaced code is its function's) -> a tree for each thread              records, space,
//!                                                                                                            stubs, tree, functions
//! snapshot   the trees go to the threads of the profile; functions that it does not have are added                    looks
//!            those of other events become figures of the contexts                                                     charge
//! others     whoever reads the target while this process looks finds them in the shared memory                        spool
//! ```
//!
//! The target pays for the kernel's copy and nothing else: it is never stopped, never signalled, and no memory of it is read but
//! its code, once. What is kept here grows with the number of different stacks, up to a bound.

mod arming;
mod charge;
mod cost;
pub mod event;
mod functions;
mod generated;
mod looks;
mod pump;
mod records;
mod ring;
mod space;
pub mod spool;
mod stubs;
mod tree;
mod waits;
mod wishes;
mod written;

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use thalweg_abi as shm;
use thalweg_model::Metric;

use self::arming::slower;
pub use self::cost::look_ns;
use self::event::{Events, Wanted};
use self::functions::{Function, FunctionId};
use self::looks::{Kind, Looks, Totals, Track};
pub use self::pump::{Sampler, Seen};
use self::records::{Look, Record};
use self::space::{Outcome, Space};
pub use self::spool::Looking;
use self::stubs::Stubs;
use self::tree::Tree;
use self::wishes::refused;
pub use self::wishes::{MOST_HZ, Samples, Wishes};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::memory::Shared;
use crate::proc::{self, Pid, Tid};
use crate::states::{self, State};

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
/// Samples whose time is kept, of all threads together: 16 bytes each. Beyond it each second one goes, and from then on each second
/// one is kept.
const MOST_TIMES: usize = 1 << 18;
/// What is said of processes that could not be looked at.
const MOST_NOTES: usize = 4;

/// One kind of events, and what was seen at them.
struct Stream {
    events: Events,
    /// Threads that are looked at because their creators are.
    inherited: HashSet<Tid>,
    /// Threads that are being opened, of which it may turn out that they are.
    opening: HashSet<Tid>,
    /// Of the looks with this size of stacks, those that were deeper.
    deeper: u64,
    looks_before: u64,
}

impl Stream {
    fn new(wanted: Wanted) -> Stream {
        Stream {
            events: Events::new(wanted),
            inherited: HashSet::new(),
            opening: HashSet::new(),
            deeper: 0,
            looks_before: 0,
        }
    }
}

/// Looks at the processes of one region.
struct Watch {
    filter: Filter,
    shared: Shared,
    stubs: Stubs,
    spaces: HashMap<Pid, Space>,
    /// As many as there are tracks in `looks`.
    streams: Vec<Stream>,
    looks: Looks,
    /// Of all trees.
    nodes: usize,
    drained: Instant,
    /// Of the samples whose time is kept.
    times: usize,
    /// When threads were last asked what they wait for.
    asked_ns: u64,
    path: Vec<FunctionId>,
    counted: HashMap<u32, bool>,
}

impl Watch {
    fn begin(wishes: &Wishes, filter: &Filter, shared: Shared, pid: Pid) -> Result<Watch> {
        let stubs = Stubs::read(&shared, &shared.header()?, pid)?;
        let mut watch = Watch {
            filter: filter.clone(),
            shared,
            stubs,
            spaces: HashMap::new(),
            streams: Vec::new(),
            looks: Looks::default(),
            nodes: 0,
            drained: Instant::now(),
            times: 0,
            asked_ns: waits::monotonic_ns(),
            path: Vec::new(),
            counted: HashMap::new(),
        };
        if let Some(mut samples) = wishes.samples {
            let slower = wishes
                .samples_share
                .and_then(|share| slower(pid, samples, share));
            if let Some(slower) = slower {
                watch.looks.notes.push(slower.note(samples));
                samples = slower.samples;
            }
            match event::allowed(samples.wanted()) {
                Ok(wanted) => watch.add(Kind::Timer, wanted),
                // What was asked for besides is not given up for it.
                Err(error) if !wishes.counters.is_empty() => {
                    watch.looks.notes.push(refused(error).to_string());
                }
                Err(error) => return Err(refused(error)),
            }
        }
        for counter in &wishes.counters {
            let metric = counter.metric();
            let wanted = counter.allowed();
            let wanted = wanted.map_err(|e| Error::Refused(format!("{}: {e}", metric.name())))?;
            watch.add(Kind::Metric(metric), wanted);
        }
        watch.join(pid)?;
        Ok(watch)
    }

    fn add(&mut self, kind: Kind, wanted: Wanted) {
        let unseen = match kind {
            _ if wanted.kernel => None,
            Kind::Timer => Some(
                "stacks were not looked at while threads were in the kernel, which kernel.perf_event_paranoid forbids: time of system calls is not in what comes from looks",
            ),
            Kind::Metric(Metric::Faults) => Some(
                "page faults in the kernel, in system calls that read or write the program's memory, were not counted, which kernel.perf_event_paranoid forbids",
            ),
            Kind::Metric(_) => None,
        };
        self.looks.notes.extend(unseen.map(String::from));
        self.looks.tracks.push(Track::new(kind, &wanted));
        self.streams.push(Stream::new(wanted));
    }

    /// Looks at all threads of a process from now on.
    fn join(&mut self, pid: Pid) -> Result<()> {
        if self.spaces.contains_key(&pid) {
            return Ok(());
        }
        let space = Space::of(pid, &self.filter, &self.stubs)?;
        self.spaces.insert(pid, space);
        for stream in 0..self.streams.len() {
            self.open(stream, pid).map_err(refused)?;
        }
        Ok(())
    }

    /// Looks at these processes from now on, and at no others.
    fn follow(&mut self, pids: &[Pid]) {
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

    fn open(&mut self, stream: usize, pid: Pid) -> io::Result<()> {
        let mut known: HashSet<Tid> = HashSet::new();
        // Twice: threads may begin while the first ones are being opened, to those that are and to those that are not.
        for _ in 0..2 {
            let Ok(tasks) = proc::tasks(pid) else { break };
            // Who of them has it from its creator.
            self.read_rings();
            for tid in tasks {
                let stream = &mut self.streams[stream];
                if stream.inherited.contains(&tid) || !known.insert(tid) {
                    continue;
                }
                match stream.events.add(pid, tid) {
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                    _ => drop(stream.opening.insert(tid)),
                }
            }
        }
        self.read_rings();
        self.streams[stream].opening.clear();
        Ok(())
    }

    /// The process has ended or become another program.
    fn leave(&mut self, pid: Pid) {
        if self.spaces.contains_key(&pid) {
            for stream in &mut self.streams {
                stream.events.forget(pid);
            }
            self.drain();
            self.spaces.remove(&pid);
        }
    }

    /// Takes what the kernel has seen, if it is time to.
    fn tend(&mut self) {
        if self.drained.elapsed() > PAUSE || self.is_filling(FULL) {
            let now_ns = waits::monotonic_ns();
            self.drain();
            self.look_deeper();
            self.ask_who_waits(now_ns);
        }
    }

    /// `now_ns`: until when all samples are known.
    fn ask_who_waits(&mut self, now_ns: u64) {
        let Some(track) = self.looks.timer_mut() else {
            return;
        };
        if now_ns.saturating_sub(self.asked_ns) < PAUSE.as_nanos() as u64 {
            return;
        }
        let mut threads: Vec<(Pid, Tid)> = Vec::new();
        for &pid in self.spaces.keys() {
            let tasks = proc::tasks(pid).unwrap_or_default();
            threads.extend(tasks.into_iter().map(|tid| (pid, tid)));
        }
        threads.sort_unstable_by_key(|(pid, tid)| (pid.0, tid.0));
        let trees = &track.trees;
        let seen = |whose| trees.get(&whose).map(|tree| tree.last_ns);
        let period_ns = track.period;
        track
            .waits
            .ask(&threads, self.asked_ns, now_ns, period_ns, seen);
        self.asked_ns = now_ns;
    }

    /// One stack's time: where there are too many, each stands for more.
    fn make_room_for_times(&mut self) {
        if self.times < MOST_TIMES {
            return;
        }
        if let Some(track) = self.looks.timer_mut() {
            track.every *= 2;
            let living = track.trees.values_mut();
            let all = living.chain(track.ended.iter_mut().map(|(_, tree)| tree));
            self.times = all.map(Tree::thin_times).sum();
        }
    }

    /// Whether more than this part of a ring waits to be read.
    fn is_filling(&self, part: f64) -> bool {
        let mut rings = self.streams.iter().flat_map(|stream| &stream.events.rings);
        rings.any(|(_, ring)| ring.fullness() > part)
    }

    /// Nobody is looked at any more; all that was seen is here.
    fn stop(&mut self) {
        for stream in &mut self.streams {
            stream.events.stop();
        }
        self.drain();
    }

    /// Takes what the kernel has seen.
    fn drain(&mut self) {
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
    }

    /// The same for those who want to know how many events were missed.
    fn settle(&mut self) {
        let counted: Vec<u64> = self.streams.iter().map(|s| s.events.counted()).collect();
        self.drain();
        for (track, counted) in self.looks.tracks.iter_mut().zip(counted) {
            if track.is_exact() {
                // The kernel tells of those that it had no room for when there is room again, which may be never.
                let missed = counted.saturating_sub(track.totals.looks);
                track.totals.lost = track.totals.lost.max(missed);
            }
        }
    }

    fn read_rings(&mut self) {
        let header = self.shared.header().ok();
        for stream in 0..self.streams.len() {
            let mut rings = std::mem::take(&mut self.streams[stream].events.rings);
            for (_, ring) in &mut rings {
                let in_order = ring.read(|kind, bytes| match records::parse(kind, bytes) {
                    Some(Record::Look(look)) => self.look(stream, &look, header.as_ref()),
                    Some(Record::Lost(lost)) => self.totals(stream).lose(lost),
                    Some(Record::Began { pid, tid }) => self.begin_thread(stream, pid, tid),
                    Some(Record::Ended { pid, tid }) => self.end(stream, pid, tid),
                    Some(Record::Mapped { pid }) => {
                        if let Some(space) = self.spaces.get_mut(&Pid(pid as i32)) {
                            space.outdated = true;
                        }
                    }
                    None => {}
                });
                if !in_order {
                    self.totals(stream).lose(1);
                }
            }
            self.streams[stream].events.rings = rings;
        }
    }

    fn totals(&mut self, stream: usize) -> &mut Totals {
        &mut self.looks.tracks[stream].totals
    }

    fn look(&mut self, stream: usize, look: &Look<'_>, header: Option<&shm::Header>) {
        let pid = Pid(look.pid as i32);
        let Some(space) = self.spaces.get_mut(&pid) else {
            return;
        };
        if std::mem::take(&mut space.outdated)
            && let Ok(fresh) = Space::of(pid, &self.filter, &self.stubs)
            && fresh.has_code()
        {
            *space = fresh;
        }
        let Looks {
            functions, tracks, ..
        } = &mut self.looks;
        let track = &mut tracks[stream];
        track.totals.looks += 1;
        let (shared, known) = (&self.shared, &mut self.counted);
        let mut is_on = |function: u32| {
            *known
                .entry(function)
                .or_insert_with(|| is_counted(shared, header, function))
        };
        let path = &mut self.path;
        let outcome = space.follow(look, &self.stubs, &mut is_on, functions, path);
        let cut = match outcome {
            Outcome::Whole => None,
            Outcome::InProbe => {
                track.totals.in_probes += 1;
                self.times += usize::from(track.be_somewhere(look));
                return;
            }
            Outcome::Deeper | Outcome::Lost => {
                self.streams[stream].deeper += u64::from(outcome == Outcome::Deeper);
                track.totals.cut_short += 1;
                if track.kind == Kind::Timer {
                    self.times += usize::from(track.be_somewhere(look));
                    return;
                }
                Some((functions.id(Function::UNKNOWN), false))
            }
        };
        if let (Kind::Timer, Some(registers), Some(function)) =
            (track.kind, &look.registers, path.last())
        {
            track.be_at(look.pid, registers[space::RIP], *function);
        }
        let stack = path.iter().map(|&id| {
            let number = functions.number(id);
            (id, number.is_some_and(&mut is_on))
        });
        let tree = track.trees.entry((look.pid, look.tid)).or_insert_with(|| {
            let name = proc::thread_name(pid, Tid(look.tid as i32));
            Tree::new(look.time_ns, name.unwrap_or_default())
        });
        tree.first_ns = tree.first_ns.min(look.time_ns);
        tree.last_ns = tree.last_ns.max(look.time_ns);
        let room = MOST_NODES.saturating_sub(self.nodes);
        let place = match tree.add(cut.into_iter().chain(stack), room) {
            Some((more, place)) => {
                self.nodes += more;
                place
            }
            None => {
                track.totals.no_room += 1;
                None
            }
        };
        if track.kind == Kind::Timer {
            self.times += usize::from(tree.add_time(look.time_ns, place, track.every));
            self.make_room_for_times();
        }
    }

    fn begin_thread(&mut self, stream: usize, pid: u32, tid: u32) {
        // A process has nothing from the one that made it.
        if tid != pid && self.spaces.contains_key(&Pid(pid as i32)) {
            let (tid, stream) = (Tid(tid as i32), &mut self.streams[stream]);
            stream.inherited.insert(tid);
            // It was in the list of threads before this was written; it would count twice.
            if stream.opening.remove(&tid) {
                stream.events.forget_thread(tid);
            }
        }
    }

    /// A thread's number may be another's from now on.
    fn end(&mut self, stream: usize, pid: u32, tid: u32) {
        self.streams[stream].inherited.remove(&Tid(tid as i32));
        self.looks.tracks[stream].end(pid, tid);
    }

    /// Where many stacks are deeper than what is copied, more is. Not where every event counts: some would be missed.
    fn look_deeper(&mut self) {
        for number in 0..self.streams.len() {
            let track = &self.looks.tracks[number];
            let stream = &self.streams[number];
            let wanted = stream.events.wanted;
            let looks = track.totals.looks - stream.looks_before;
            let many = looks >= ENOUGH_LOOKS && stream.deeper as f64 > looks as f64 * MANY;
            if !many || track.is_exact() || wanted.stack >= DEEP_STACK {
                continue;
            }
            self.streams[number].events.stop();
            self.drain();
            self.streams[number] = Stream {
                looks_before: self.looks.tracks[number].totals.looks,
                ..Stream::new(Wanted {
                    stack: DEEP_STACK,
                    ..wanted
                })
            };
            let pids: Vec<Pid> = self.spaces.keys().copied().collect();
            for pid in pids {
                if let Err(error) = self.open(number, pid) {
                    self.looks.notes.push(refused(error).to_string());
                }
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
