//! All that was seen so far: a tree for each thread and kind of events. It goes into profiles, and as bytes (`written.rs`) to those who read
//! the target while another looks.

use std::collections::{BTreeSet, HashMap};

use thalweg_abi as shm;
use thalweg_model as model;
use thalweg_model::{Counting, FuncId, Metric, SampleNode, Sampling};

use super::charge::{Numbers, charge};
use super::event::Wanted;
use super::functions::{FunctionId, Functions};
use super::records::Look;
use super::tree::Tree;
use super::waits::Waits;
use crate::proc::{self, Pid, Tid};

#[derive(Default)]
pub struct Looks {
    pub(super) functions: Functions,
    /// One for each kind of events.
    pub(super) tracks: Vec<Track>,
    /// What is to be said of it.
    pub(super) notes: Vec<String>,
}

/// What makes the kernel look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Timer,
    Metric(Metric),
}

/// What was seen at one kind of events.
pub(super) struct Track {
    pub(super) kind: Kind,
    pub(super) period: u64,
    pub(super) in_kernel: bool,
    /// Of threads that live, as far as is known, by process and thread.
    pub(super) trees: HashMap<(u32, u32), Tree>,
    /// Whose tree, and what it was when the thread ended; 0 instead of a thread's number: of many.
    pub(super) ended: Vec<((u32, u32), Tree)>,
    pub(super) totals: Totals,
    /// How often each instruction was seen, by process and address, and whose it is.
    pub(super) instructions: HashMap<(u32, u64), (FunctionId, u64)>,
    /// Functions with an instruction at which threads wait, as somebody else has found.
    pub(super) known_to_wait: BTreeSet<FunctionId>,
    /// Of the timer's samples the time of each so-manieth is kept.
    pub(super) every: u64,
    /// What threads were found to wait for.
    pub(super) waits: Waits,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) looks: u64,
    pub(super) lost: u64,
    pub(super) cut_short: u64,
    pub(super) in_probes: u64,
    /// That the trees had no room for.
    pub(super) no_room: u64,
}

impl Totals {
    pub(super) fn lose(&mut self, looks: u64) {
        self.lost = self.lost.saturating_add(looks);
    }
}

/// An instruction at which a thread is more often than this waits for something. In eleven programs on an AMD EPYC guest of family 26: interpreters have
/// 2 to 6 % at their hottest instruction, jq 20, xz 54, chains of multiplications 46 and 72.
const PEAK_SHARE: f64 = 0.1;
/// Instructions that are remembered.
const MAX_INSTRUCTIONS: usize = 1 << 16;
/// Trees of threads that have ended; beyond it those of one process share one.
const MOST_ENDED: usize = 16_384;

impl Track {
    pub(super) fn new(kind: Kind, wanted: &Wanted) -> Track {
        Track {
            kind,
            period: wanted.period,
            in_kernel: wanted.kernel,
            trees: HashMap::new(),
            ended: Vec::new(),
            totals: Totals::default(),
            instructions: HashMap::new(),
            known_to_wait: BTreeSet::new(),
            every: 1,
            waits: Waits::default(),
        }
    }

    /// A thread was on a processor, in a probe or nobody knows where. Says whether the time is kept.
    pub(super) fn be_somewhere(&mut self, look: &Look<'_>) -> bool {
        let tree = self.trees.entry((look.pid, look.tid)).or_insert_with(|| {
            let name = proc::thread_name(Pid(look.pid as i32), Tid(look.tid as i32));
            Tree::new(look.time_ns, name.unwrap_or_default())
        });
        tree.first_ns = tree.first_ns.min(look.time_ns);
        tree.last_ns = tree.last_ns.max(look.time_ns);
        tree.add_time(look.time_ns, None, self.every)
    }

    /// A thread was seen at an instruction that is no probe's.
    pub(super) fn be_at(&mut self, pid: u32, instruction: u64, function: FunctionId) {
        let has_room = self.instructions.len() < MAX_INSTRUCTIONS;
        match self.instructions.get_mut(&(pid, instruction)) {
            Some((_, times)) => *times += 1,
            None if has_room => {
                self.instructions.insert((pid, instruction), (function, 1));
            }
            None => {}
        }
    }

    /// Functions with an instruction that has more than `PEAK_SHARE` of all samples, beyond what chance allows.
    pub(super) fn waiting(&self) -> BTreeSet<FunctionId> {
        let all: u64 = self.instructions.values().map(|(_, times)| times).sum();
        let is_peak = |times: u64| {
            let times = times as f64;
            times - 2.0 * times.sqrt() > PEAK_SHARE * all as f64
        };
        let peaks = self
            .instructions
            .values()
            .filter(|(_, times)| is_peak(*times));
        let found = peaks.map(|(function, _)| *function);
        found.chain(self.known_to_wait.iter().copied()).collect()
    }

    /// Every event is looked at.
    pub(super) fn is_exact(&self) -> bool {
        self.kind != Kind::Timer && self.period == 1
    }

    /// The thread's number may be another's from now on.
    pub(super) fn end(&mut self, pid: u32, tid: u32) {
        let Some(tree) = self.trees.remove(&(pid, tid)) else {
            return;
        };
        if self.ended.len() < MOST_ENDED {
            self.ended.push(((pid, tid), tree));
            return;
        }
        let of_many = self.ended.iter().position(|(whose, _)| *whose == (pid, 0));
        match of_many {
            Some(place) => self.ended[place].1.merge(&tree),
            None => self.ended.push(((pid, 0), tree)),
        }
    }

    /// In the order in which they were first looked at.
    pub(super) fn all(&self) -> Vec<((u32, u32), &Tree)> {
        let ended = self.ended.iter().map(|(whose, tree)| (*whose, tree));
        let living = self.trees.iter().map(|(whose, tree)| (*whose, tree));
        let mut all: Vec<((u32, u32), &Tree)> = ended.chain(living).collect();
        all.sort_by_key(|(whose, tree)| (tree.first_ns, *whose));
        all
    }

    pub(super) fn sampling(&self) -> Sampling {
        let totals = &self.totals;
        Sampling {
            period_ns: self.period,
            samples: totals.looks,
            lost: totals.lost,
            cut_short: totals.cut_short + totals.no_room,
            in_probes: totals.in_probes,
        }
    }

    pub(super) fn counting(&self, metric: Metric) -> Counting {
        let totals = &self.totals;
        Counting {
            metric,
            period: self.period,
            in_kernel: self.in_kernel,
            samples: totals.looks,
            lost: totals.lost,
            in_probes: totals.in_probes,
            nobodys: totals.no_room,
            cut_short: totals.cut_short,
        }
    }
}

impl Looks {
    pub(super) fn timer_mut(&mut self) -> Option<&mut Track> {
        let mut all = self.tracks.iter_mut();
        all.find(|track| track.kind == Kind::Timer)
    }

    pub(super) fn timer(&self) -> Option<&Track> {
        self.tracks.iter().find(|track| track.kind == Kind::Timer)
    }

    /// Adds what was seen so far.
    pub fn add_to(&self, profile: &mut model::Profile, header: &shm::Header) {
        let counted = self.functions.numbers(profile.functions.len());
        for track in &self.tracks {
            match track.kind {
                Kind::Timer => {
                    let numbers = self.functions.add_to(profile);
                    add_samples(track, &numbers, profile, header);
                    for function in track.waiting() {
                        if let Some(number) = numbers[function.0 as usize] {
                            profile.functions[number].waits = true;
                        }
                    }
                    profile.meta.sampling = Some(track.sampling());
                }
                Kind::Metric(metric) => {
                    let mut counting = track.counting(metric);
                    charge_all(track, &counted, profile, header, &mut counting);
                    profile.meta.metrics.push(metric);
                    profile.notes.extend(missed(&counting));
                    profile.meta.counting.push(counting);
                }
            }
        }
        profile.notes.extend(self.notes.iter().cloned());
    }
}

fn missed(counting: &Counting) -> Option<String> {
    (counting.lost > 0).then(|| {
        let events = counting.lost.saturating_mul(counting.period);
        format!(
            "{}: {events} came faster than they could be read, and are in nobody's figures",
            counting.metric.name()
        )
    })
}

fn add_samples(
    track: &Track,
    numbers: &[Option<FuncId>],
    profile: &mut model::Profile,
    header: &shm::Header,
) {
    for (whose, tree) in track.all() {
        if let Some(thread) = thread_for(profile, header, whose, tree) {
            let (nodes, places) = nodes(tree, numbers);
            let now = thread.add_samples(&nodes);
            if whose.1 != 0 && thread.others == 0 {
                let ns = |monotonic: u64| monotonic.saturating_sub(header.attach_monotonic_ns);
                let timeline = timeline(tree, &places, ns, |place| now[place as usize]);
                thread.timeline.add(model::Timeline {
                    period_ns: track.period.saturating_mul(track.every),
                    ..timeline
                });
            }
        }
    }
    for (&(pid, tid), waits) in &track.waits.of {
        let process = profile.processes.iter_mut().find(|p| p.pid == pid);
        let last = waits.last().map_or(0, |wait| wait.end_ns);
        let ns = |monotonic: u64| monotonic.saturating_sub(header.attach_monotonic_ns);
        if let Some(process) = process
            && let Some(index) = thread_of(&process.threads, tid, ns(last))
            && process.threads[index].others == 0
        {
            let waits = waits.iter().map(|wait| model::Wait {
                start_ns: ns(wait.start_ns),
                end_ns: ns(wait.end_ns),
                ..*wait
            });
            process.threads[index].timeline.add(model::Timeline {
                waits: waits.collect(),
                ..model::Timeline::default()
            });
        }
    }
}

/// When a thread was on a processor. `places`: where each node of the tree is among those of the profile, if it is.
pub(super) fn timeline(
    tree: &Tree,
    places: &[Option<u32>],
    ns: impl Fn(u64) -> u64,
    now: impl Fn(u32) -> u32,
) -> model::Timeline {
    let samples = tree.times.iter().map(|&(at_ns, place)| model::TimedSample {
        at_ns: ns(at_ns),
        sample: place.and_then(|place| places[place as usize]).map(&now),
    });
    let mut samples: Vec<model::TimedSample> = samples.collect();
    // Each processor has a ring of its own, and they are read one after the other.
    samples.sort_by_key(|one| one.at_ns);
    model::Timeline {
        samples,
        ..model::Timeline::default()
    }
}

fn charge_all(
    track: &Track,
    numbers: &Numbers,
    profile: &mut model::Profile,
    header: &shm::Header,
    counting: &mut Counting,
) {
    for (whose, tree) in track.all() {
        let looks: u64 = tree.nodes.iter().map(|seen| seen.own).sum();
        match thread_for(profile, header, whose, tree) {
            Some(thread) => counting.nobodys += charge(thread, tree, numbers, counting),
            None if is_choosy(header) => counting.samples = counting.samples.saturating_sub(looks),
            // Of a process that counts nothing.
            None => counting.nobodys += looks,
        }
    }
}

/// Only some threads are wanted.
fn is_choosy(header: &shm::Header) -> bool {
    header.flags & shm::HEADER_CHOSEN != 0
}

/// The profile's thread that a tree is of: one that never called a function that is counted is added. `None`: it is not wanted, or its process
/// counts nothing.
fn thread_for<'a>(
    profile: &'a mut model::Profile,
    header: &shm::Header,
    (pid, tid): (u32, u32),
    tree: &Tree,
) -> Option<&'a mut model::Thread> {
    let process = profile.processes.iter_mut().find(|p| p.pid == pid)?;
    let ns = |monotonic: u64| monotonic.saturating_sub(header.attach_monotonic_ns);
    let (first, last) = (ns(tree.first_ns), ns(tree.last_ns));
    match thread_of(&process.threads, tid, last) {
        Some(index) => Some(&mut process.threads[index]),
        None if is_choosy(header) => None,
        // No stack of it was ever whole, and nothing of it counted.
        None if tree.nodes.is_empty() => None,
        None => {
            process.threads.push(model::Thread {
                tid,
                name: tree.name.clone(),
                start_ns: first,
                end_ns: last,
                ..model::Thread::default()
            });
            process.threads.last_mut()
        }
    }
}

/// Of several threads that had the same number the last one that had begun by then; else one that stands for many.
fn thread_of(threads: &[model::Thread], tid: u32, last_ns: u64) -> Option<usize> {
    let with_number = || (0..).zip(threads).filter(|(_, thread)| thread.tid == tid);
    let had_begun = with_number().filter(|(_, thread)| thread.start_ns <= last_ns);
    had_begun
        .max_by_key(|(_, thread)| thread.start_ns)
        .or_else(|| with_number().next())
        .map(|(index, _)| index)
        .or_else(|| threads.iter().rposition(|thread| thread.others > 0))
}

/// And where each of the tree's nodes is among them.
pub(super) fn nodes(
    tree: &Tree,
    numbers: &[Option<FuncId>],
) -> (Vec<SampleNode>, Vec<Option<u32>>) {
    let mut places: Vec<Option<u32>> = Vec::with_capacity(tree.nodes.len());
    let mut nodes: Vec<SampleNode> = Vec::with_capacity(tree.nodes.len());
    for seen in &tree.nodes {
        let parent = seen.parent.map(|parent| places[parent as usize]);
        // What the catalog that the target carries does not name any more is left out, with all that is below.
        let (Some(function), false) = (numbers[seen.function.0 as usize], parent == Some(None))
        else {
            places.push(None);
            continue;
        };
        let parent = parent.flatten();
        places.push(Some(nodes.len() as u32));
        nodes.push(SampleNode {
            parent,
            function,
            counted: seen.counted,
            own: seen.own,
        });
    }
    (nodes, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::functions::{Function, ModuleName};
    use std::sync::Arc;

    fn looks() -> Looks {
        let mut looks = Looks {
            notes: vec!["a note".into()],
            ..Looks::default()
        };
        let module = Arc::new(ModuleName {
            name: "libx.so".into(),
            path: "/lib/libx.so".into(),
            build_id: "ab".into(),
            functions: 3,
        });
        let counted = looks.functions.id(Function::Probed(1));
        let not = looks.functions.id(Function::Unprobed {
            module,
            address: 0x40,
            name: "small".into(),
        });
        let mut tree = Tree::new(1_000, "worker".into());
        tree.last_ns = 2_000;
        for (stack, times) in [
            (vec![(counted, true)], 2),
            (vec![(counted, true), (not, false)], 5),
        ] {
            for _ in 0..times {
                tree.add(stack.iter().copied(), 100);
            }
        }
        for (kind, period) in [(Kind::Timer, 2_004_017), (Kind::Metric(Metric::Faults), 1)] {
            let totals = Totals {
                looks: 14,
                lost: 1,
                ..Totals::default()
            };
            looks.tracks.push(Track {
                kind,
                period,
                in_kernel: true,
                trees: HashMap::from([((10, 11), tree.clone())]),
                ended: vec![((10, 0), tree.clone())],
                totals,
                instructions: HashMap::from([((10, 64), (not, 9)), ((10, 65), (counted, 1))]),
                known_to_wait: BTreeSet::new(),
                every: 1,
                waits: Waits::default(),
            });
        }
        looks
    }

    /// A process that counts two functions, 500 ns before the first look.
    fn profile() -> (model::Profile, shm::Header) {
        let mut header: shm::Header = crate::memory::FromZeros::new_zeroed();
        header.attach_monotonic_ns = 500;
        let mut profile = model::Profile {
            modules: vec![model::Module::default()],
            functions: vec![model::Function::default(); 2],
            ..model::Profile::default()
        };
        profile.processes.push(model::Process {
            pid: 10,
            ..model::Process::default()
        });
        (profile, header)
    }

    #[test]
    fn what_another_process_reads_is_what_was_seen() {
        let (mut own, header) = profile();
        looks().add_to(&mut own, &header);
        let bytes = looks().encode(Vec::new()).expect("bytes");
        let (mut read, _) = profile();
        Looks::decode(&bytes)
            .expect("looks")
            .add_to(&mut read, &header);
        assert_eq!(own, read);
        assert_eq!(own.functions[2].name, "small");
        let waits: Vec<bool> = own.functions.iter().map(|f| f.waits).collect();
        assert_eq!(waits, [false, false, true]);
        let threads = &own.processes[0].threads;
        assert_eq!((threads.len(), threads[1].samples.len()), (2, 2));
        assert_eq!((threads[1].start_ns, threads[1].end_ns), (500, 1500));
    }

    #[test]
    fn a_peak_is_an_instruction_that_has_more_than_a_tenth_for_sure() {
        let (work, wait) = (FunctionId(0), FunctionId(1));
        let mut track = Track::new(Kind::Timer, &crate::samples::Samples { hz: 999 }.wanted());
        (0..900).for_each(|instruction| track.be_at(1, instruction, work));
        (0..100).for_each(|_| track.be_at(1, 1000, wait));
        assert!(track.waiting().is_empty(), "a tenth, and chance");
        (0..60).for_each(|_| track.be_at(1, 1000, wait));
        assert_eq!(track.waiting(), BTreeSet::from([wait]));
        (0..900).for_each(|instruction| track.be_at(2, instruction, work));
        assert!(track.waiting().is_empty(), "others run as well");
    }

    #[test]
    fn scribbled_bytes_are_no_looks() {
        let mut bytes = looks().encode(Vec::new()).expect("bytes");
        bytes.truncate(bytes.len() - 3);
        assert!(Looks::decode(&bytes).is_err());
        assert!(Looks::decode(&[]).is_err());
    }
}
