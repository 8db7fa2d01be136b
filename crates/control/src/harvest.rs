//! From shared memory to a profile: the trees of all threads, with what is still running counted up to now.

use std::collections::{HashMap, HashSet};

use thalweg_model as model;
use thalweg_model::NodeFlags;
use thalweg_shm as shm;

use crate::accounts::{self, Account, ThreadClock};
use crate::alloc::{self, Allocations};
use crate::clock::{self, Moment};
use crate::error::{Error, Result};
use crate::handed_on;
use crate::kernel;
use crate::loaded;
use crate::memory::{Shared, zeroed};
use crate::proc::{self, Pid, Tid};
use crate::pruning;
use crate::record;
use crate::sites::Resolver;
use crate::states::{self, State};
use crate::waits::Waits;
pub use crate::witness::Witness;

/// What a status line shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// All that were seen, and how many of them have ended.
    pub threads: u64,
    pub ended: u64,
    pub calls: u64,
    pub contexts: u64,
    pub memory: u64,
    pub folded: u64,
    /// Contexts that were cut when memory got short, and their calls.
    pub pruned: model::Pruned,
    /// Events that the hot path handed to the slow path, and frames that were found left behind: how healthy the probes are.
    pub slow_events: u64,
    pub resyncs: u64,
}

impl Totals {
    pub fn plus(self, other: Totals) -> Totals {
        Totals {
            threads: self.threads + other.threads,
            calls: self.calls + other.calls,
            contexts: self.contexts + other.contexts,
            memory: self.memory + other.memory,
            folded: self.folded + other.folded,
            pruned: self.pruned.plus(other.pruned),
            slow_events: self.slow_events + other.slow_events,
            resyncs: self.resyncs + other.resyncs,
            ended: self.ended + other.ended,
        }
    }
}

/// Sums over all trees, read while they grow.
pub fn totals(shared: &Shared) -> Result<Totals> {
    pruning::undisturbed(shared, || read_totals(shared))
}

fn read_totals(shared: &Shared) -> Result<Totals> {
    let header = shared.header()?;
    let used = header.nodes_used.min(header.nodes_len);
    let nodes = Nodes::read(shared, &header)?;
    let mut totals = Totals {
        folded: header.folded_calls,
        pruned: pruned(&header),
        calls: header.folded_calls + header.prune.cut_calls,
        ..Totals::default()
    };
    let mut processes = HashSet::from([header.pid]);
    for account in accounts::all(shared)? {
        totals.threads += account.threads;
        if header.inner_pid == header.pid {
            processes.insert(account.pid);
        }
        nodes.walk(account.root, |_, node, _| {
            totals.calls += node.calls;
            totals.contexts += 1;
        })?;
    }
    for slot in accounts::slots(shared, &header) {
        let (_, slot) = slot?;
        totals.slow_events += slot.slow_entries + slot.slow_exits;
        totals.resyncs += slot.resyncs;
    }
    let living = |pid: &u32| proc::tasks(Pid(*pid as i32)).map_or(0, |tasks| tasks.len() as u64);
    totals.ended = totals
        .threads
        .saturating_sub(processes.iter().map(living).sum());
    totals.memory = used;
    Ok(totals)
}

/// What all contexts of one function have counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FunctionSum {
    pub calls: u64,
    pub untimed: u64,
    /// Of the calls that were timed.
    pub own_ns: f64,
    pub unwound: u64,
}

/// By function number, read while the trees grow; and what all threads have spent in the slow path, in nanoseconds.
pub(crate) fn by_function(shared: &Shared) -> Result<(Vec<FunctionSum>, f64)> {
    pruning::undisturbed(shared, || read_by_function(shared))
}

fn read_by_function(shared: &Shared) -> Result<(Vec<FunctionSum>, f64)> {
    let header = shared.header()?;
    let nodes = Nodes::read(shared, &header)?;
    let waits = Waits::read(shared, &header)?;
    let clock = Clock::new(&header, Moment::now());
    let mut sums = vec![FunctionSum::default(); header.functions.min(MOST_FUNCTIONS) as usize];
    let mut add = |function: u32, node: &shm::Node, waits: shm::Waits| {
        if let Some(sum) = sums.get_mut(function as usize) {
            sum.calls = sum.calls.saturating_add(node.calls);
            sum.untimed = sum.untimed.saturating_add(waits.untimed);
            sum.own_ns += clock.signed_ns(node.base as i64) as f64;
            sum.unwound += u64::from(node.unwound);
        }
    };
    for account in accounts::all(shared)? {
        nodes.walk(account.root, |number, node, _| {
            add(node.function, node, waits.of(number));
        })?;
    }
    if has_folded(&header) {
        for function in 0..header.functions.min(MOST_FUNCTIONS) {
            add(function, &nodes.folded(function)?, waits.folded(function));
        }
    }
    let mut slow = 0;
    for slot in accounts::slots(shared, &header) {
        slow += clock.ns(slot?.1.slow_ticks);
    }
    Ok((sums, slow as f64))
}

/// No target has more functions: one that says so has scribbled over its memory.
const MOST_FUNCTIONS: u32 = 1 << 24;

/// A copy of the node arena.
struct Nodes {
    start: u64,
    bytes: Vec<u8>,
    /// Those of contexts that found no room or were cut, by function; empty where there are none.
    folded: Vec<u8>,
    functions: u32,
    sites: bool,
}

impl Nodes {
    fn read(shared: &Shared, header: &shm::Header) -> Result<Nodes> {
        let used = header.nodes_used.min(header.nodes_len);
        let folded = match has_folded(header) {
            true => u64::from(header.functions) * shm::NODE_SIZE,
            false => 0,
        };
        Ok(Nodes {
            start: header
                .base
                .wrapping_add(shm::PRIVATE_SIZE)
                .wrapping_add(header.nodes_offset),
            bytes: shared.read_vec(header.nodes_offset, used)?,
            folded: shared.read_vec(header.folded_offset, folded)?,
            functions: header.functions,
            sites: header.flags & shm::HEADER_SITES != 0,
        })
    }

    fn at(&self, number: u64) -> Result<shm::Node> {
        self.decode(&self.bytes, number)
    }

    fn folded(&self, function: u32) -> Result<shm::Node> {
        self.decode(&self.folded, function.into())
    }

    fn decode(&self, bytes: &[u8], number: u64) -> Result<shm::Node> {
        let from = (number * shm::NODE_SIZE) as usize;
        let bytes = bytes
            .get(from..from + shm::NODE_SIZE as usize)
            .ok_or_else(damaged)?;
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let mut node: shm::Node = zeroed();
        node.calls = word(0);
        node.cum = word(8);
        node.base = word(16);
        node.min = word(24) as i64;
        node.max = word(32) as i64;
        node.function = half(40);
        node.flags = half(44);
        node.unwound = half(48);
        node.first_child = half(52);
        node.sibling = half(56);
        if self.sites {
            node.children[shm::SITE_SLOT] = word(shm::NODE_SITE);
        }
        Ok(node)
    }

    fn number_of(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.start)?;
        (offset % shm::NODE_SIZE == 0 && offset < self.bytes.len() as u64)
            .then_some(offset / shm::NODE_SIZE)
    }

    /// Visits every context below the root at `root`, parents first: number, node, parent's number (none for the
    /// outermost). Links that lead nowhere, as a reader may see while the tree grows, end the branch.
    fn walk(&self, root: u64, mut visit: impl FnMut(u64, &shm::Node, Option<u64>)) -> Result<()> {
        self.walk_all(root, |number, node, parent| {
            if node.function < self.functions {
                visit(number, node, parent);
            }
        })
    }

    /// The same with the system calls among the children of contexts.
    fn walk_all(
        &self,
        root: u64,
        mut visit: impl FnMut(u64, &shm::Node, Option<u64>),
    ) -> Result<()> {
        // Claimed after the copy was made, or by a thread that found the arena full and has a root outside of it.
        let Some(root) = self.number_of(root) else {
            return Ok(());
        };
        let limit = self.bytes.len() as u64 / shm::NODE_SIZE;
        let mut visited = 0;
        let mut pending = vec![(u64::from(self.at(root)?.first_child), None)];
        while let Some((link, parent)) = pending.pop() {
            if link == 0 || link > limit {
                continue;
            }
            visited += 1;
            if visited > limit {
                return Err(damaged());
            }
            let number = link - 1;
            let node = self.at(number)?;
            pending.push((u64::from(node.sibling), parent));
            if node.function >= self.functions && shm::kernel::number(node.function).is_none() {
                continue;
            }
            visit(number, &node, parent);
            pending.push((u64::from(node.first_child), Some(number)));
        }
        Ok(())
    }
}

fn has_folded(header: &shm::Header) -> bool {
    header.folded_calls > 0 || header.prune.cut_contexts > 0
}

fn damaged() -> Error {
    Error::Other("the trees that the target carries are damaged".into())
}

fn pruned(header: &shm::Header) -> model::Pruned {
    model::Pruned {
        contexts: header.prune.cut_contexts,
        calls: header.prune.cut_calls,
    }
}

/// Names and places of everything that is counted, with no figures.
pub fn catalog(shared: &Shared) -> Result<model::Profile> {
    let header = shared.header()?;
    let catalog = shared.read_vec(header.catalog_offset, header.catalog_len)?;
    let mut profile = model::read(&mut &*catalog)
        .map_err(|e| Error::Other(format!("the target's catalog: {e}")))?;
    loaded::add_catalogs(&mut profile, shared, &header)?;
    Ok(profile)
}

/// Makes the profile. `ended`: the target is gone or detached since that moment, as opposed to running now.
pub fn harvest(shared: &Shared, witness: &Witness, ended: Option<u64>) -> Result<model::Profile> {
    pruning::undisturbed(shared, || read_profile(shared, witness, ended))
}

fn read_profile(shared: &Shared, witness: &Witness, ended: Option<u64>) -> Result<model::Profile> {
    let mut header = shared.header()?;
    let now = Moment::now();
    let mut profile = catalog(shared)?;
    // The target may have scribbled over the header: no function without a name.
    header.functions = header.functions.min(profile.functions.len() as u32);
    let end_ticks = ended.unwrap_or(now.ticks);
    let clock = Clock::new(&header, now);
    let nodes = Nodes::read(shared, &header)?;
    let waits = Waits::read(shared, &header)?;
    let allocations = Allocations::read(shared, &header)?;
    profile.meta.created_unix_ns = header.attach_unix_ns;
    profile.meta.duration_ns = clock.ns(end_ticks.saturating_sub(header.attach_ticks));
    profile.meta.clock_hz = clock.hz;
    profile.meta.overhead_ns_per_call = clock::probe_cost_ns(profile.meta.timed);
    profile.meta.memory_bytes = header.nodes_used.min(header.nodes_len);
    profile.meta.pruned = pruned(&header);

    // As the kernel names a process: the file's name, cut to 15 bytes.
    let program = profile
        .meta
        .command
        .first()
        .map(String::as_str)
        .unwrap_or_default();
    let command_name: String = program
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .chars()
        .take(15)
        .collect();
    let states = states::of_all(shared, &header)?;
    let mut reader = Reader {
        shared,
        header: &header,
        nodes: &nodes,
        waits: &waits,
        allocations: &allocations,
        clock: &clock,
        witness,
        end_ticks,
        command_name,
        alive: HashMap::new(),
        half_cut: pruning::half_cut(shared, &header)?,
        states: &states,
        stray_system_calls: header.lost_system_calls,
        sites: match nodes.sites {
            true => Some(Resolver::new(shared, &header)?),
            false => None,
        },
    };
    let mut unseen = 0;
    for account in accounts::all(shared)? {
        if !account.is_chosen(&header) {
            continue;
        }
        unseen += u64::from(!witness.knows_thread(account.pid, account.tid));
        let thread = reader.thread(&mut profile, &account)?;
        let pid = witness.process(account.pid);
        let process = match profile.processes.iter_mut().find(|p| p.pid == pid) {
            Some(process) => process,
            None => {
                let (parent, command) = reader.process(pid, &account, &profile.meta.command);
                profile.processes.push(model::Process {
                    pid,
                    parent,
                    command,
                    ..model::Process::default()
                });
                profile.processes.last_mut().expect("just pushed")
            }
        };
        if account.flags & shm::SLOT_HANDED_ON == 0 {
            process.threads.push(thread);
        } else {
            handed_on::add(&mut process.threads, thread);
        }
    }
    for process in &mut profile.processes {
        reader.add_life(process);
    }
    reader.add_folded(&mut profile)?;
    let stray_system_calls = reader.stray_system_calls;
    profile.sites = reader.sites.map(Resolver::finish).unwrap_or_default();
    if header.flags & shm::HEADER_RECORDS != 0 {
        profile.recorded = record::recorded(shared, &header, witness, clock.hz, end_ticks)?;
        profile.notes.extend(record::notes(shared, &header)?);
    }
    add_notes(&mut profile, &header);
    let per_ns = clock.hz / 1e9;
    profile.notes.extend(pruning::notes(&header, per_ns));
    alloc::add_notes(&mut profile, shared, &header)?;
    kernel::charge(&mut profile);
    profile.notes.extend(kernel::stray(stray_system_calls));
    profile.switched = switched(&states, end_ticks, &clock);
    if header.inner_pid != header.pid && unseen > 0 {
        profile.notes.push(format!(
            "{unseen} threads ended before they were seen from outside: their numbers are those of the target's PID namespace"
        ));
    }
    Ok(profile)
}

/// Functions that were not timed all along.
fn switched(states: &[shm::ProbeState], end: u64, clock: &Clock) -> Vec<model::Switched> {
    let changed = (0..).zip(states).filter(|(_, state)| state.changes > 0);
    changed
        .map(|(function, state)| model::Switched {
            function,
            state: match State::of(state.state) {
                State::Timed => model::ProbeState::Timed,
                State::Sampled => model::ProbeState::Sampled,
                State::Counted => model::ProbeState::Counted,
                State::Off => model::ProbeState::Off,
            },
            off_ns: clock.ns(states::off_until(state, end)),
            changes: state.changes.into(),
        })
        .collect()
}

fn add_notes(profile: &mut model::Profile, header: &shm::Header) {
    if header.flags & shm::HEADER_TIMED != 0 && header.gap_least == shm::NO_GAP {
        profile.notes.push(
            "the target filters its system calls (seccomp): its threads did not ask for their processor time, so that from \
             then on waiting counts as working"
                .into(),
        );
    }
    if header.deep_calls > 0 {
        profile.notes.push(format!(
            "{} calls were deeper than {} frames: counted, their time is in their callers'",
            header.deep_calls,
            shm::MAX_FRAMES
        ));
    }
    if header.unslotted > 0 {
        profile.notes.push(format!(
            "{} calls and returns of threads beyond {} at a time were not counted",
            header.unslotted,
            shm::SLOTS
        ));
    }
}

/// That a process has ended is noticed a little later, which is not to look like a wait.
const UNSEEN_END_NS: u64 = 200_000_000;

/// Whoever looks at a thread later than this has missed what the kernel counted for it from the attach on.
const FIRST_LOOK_NS: u64 = 500_000_000;

/// Ticks to nanoseconds.
struct Clock {
    hz: f64,
}

impl Clock {
    fn new(header: &shm::Header, now: Moment) -> Clock {
        let recorded = f64::from_bits(header.ticks_hz);
        let passed = now.monotonic_ns.saturating_sub(header.attach_monotonic_ns);
        // The longer the baseline the better the rate.
        let hz = if passed > 100_000_000 && now.ticks > header.attach_ticks {
            (now.ticks - header.attach_ticks) as f64 * 1e9 / passed as f64
        } else {
            recorded
        };
        Clock {
            hz: if hz.is_finite() && hz > 1e6 { hz } else { 1e9 },
        }
    }

    fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * 1e9 / self.hz).round() as u64
    }

    fn ticks(&self, ns: u64) -> u64 {
        (ns as f64 * self.hz / 1e9).round() as u64
    }

    /// Self times may be a little below zero.
    fn signed_ns(&self, ticks: i64) -> u64 {
        self.ns(ticks.max(0) as u64)
    }
}

struct Reader<'a> {
    shared: &'a Shared,
    header: &'a shm::Header,
    nodes: &'a Nodes,
    waits: &'a Waits,
    allocations: &'a Allocations,
    clock: &'a Clock,
    witness: &'a Witness,
    end_ticks: u64,
    command_name: String,
    /// Threads that live now, by process.
    alive: HashMap<u32, HashSet<u32>>,
    /// Nodes that a killed thread was cutting: whether they were met in a tree all the same.
    half_cut: HashMap<u64, bool>,
    /// How the probes of each function stand.
    states: &'a [shm::ProbeState],
    /// Where call sites are told apart.
    sites: Option<Resolver>,
    /// System calls of which nobody knows who made them.
    stray_system_calls: u64,
}

/// Figures of one context, in ticks.
#[derive(Clone, Copy, Default)]
struct Figures {
    calls: u64,
    cum: u64,
    base: u64,
    /// Off the processor, in itself.
    waited: u64,
    terminal: u64,
    min: i64,
    max: i64,
    unwound: u32,
    untimed: u64,
    flags: NodeFlags,
}

impl Reader<'_> {
    fn thread(&mut self, profile: &mut model::Profile, account: &Account) -> Result<model::Thread> {
        let timed = self.header.flags & shm::HEADER_TIMED != 0;
        let (pid, tid) = (
            self.witness.process(account.pid),
            self.witness.thread(account.pid, account.tid),
        );
        let end = self.end_of(account, pid, tid);
        let open = match (account.slot, &account.clock) {
            (Some(index), Some(clock)) => {
                let pending = self.pending_wait(clock, pid, tid, end);
                let charged = match self.witness.end(pid) {
                    // When exactly it ended nobody saw.
                    Some(_) if self.clock.ns(pending) < UNSEEN_END_NS => 0,
                    _ => pending,
                };
                self.open_frames(index, end, clock, (pending, charged))?
            }
            _ => HashMap::new(),
        };
        let mut places: HashMap<u64, u32> = HashMap::new();
        let since_attach = |ticks: u64| {
            self.clock
                .ns(ticks.saturating_sub(self.header.attach_ticks))
        };
        let mut thread = model::Thread {
            tid,
            name: self.name(account, pid, tid),
            created_by: self.creator(profile, account),
            start_ns: since_attach(account.start),
            end_ns: since_attach(end),
            nodes: Vec::new(),
            metrics: model::NodeMetrics::default(),
            samples: Vec::new(),
            folded_calls: 0,
            others: account.threads - 1,
            kernel: self.kernel_counts(account, pid, tid),
        };
        let clock = self.clock;
        let mut sites = Vec::new();
        let mut waits: Vec<u64> = Vec::new();
        let half_cut = &mut self.half_cut;
        let mut counted = kernel::Counted::default();
        self.nodes.walk_all(account.root, |number, node, parent| {
            if let Some(call) = shm::kernel::number(node.function) {
                let caller = parent.and_then(|parent| places.get(&parent).copied());
                return counted.add(caller, call, node.calls);
            }
            let waited = self.waits.of(number);
            let mut figures = Figures {
                calls: node.calls,
                cum: node.cum,
                base: node.base,
                waited: waited.ticks,
                terminal: waited.terminal,
                min: node.min,
                max: node.max,
                unwound: node.unwound,
                untimed: waited.untimed,
                flags: NodeFlags::empty(),
            };
            if let Some(met) = half_cut.get_mut(&number) {
                *met = true;
            }
            sites.push(node.children[shm::SITE_SLOT]);
            if node.flags & shm::NODE_AT_ATTACH != 0 {
                figures.flags |= NodeFlags::ON_STACK_AT_ATTACH;
            }
            if node.flags & shm::NODE_OPEN_AT_END != 0 {
                figures.flags |= NodeFlags::OPEN;
            }
            if let Some(running) = open.get(&number) {
                figures.flags |= NodeFlags::OPEN;
                figures.cum = figures.cum.wrapping_add(running.took);
                figures.base = figures.base.wrapping_add(running.own as u64);
                if running.timed {
                    figures.min = figures.min.min(running.own);
                    figures.max = figures.max.max(running.own);
                }
                figures.waited = figures.waited.wrapping_add(running.waited);
                figures.terminal = figures.terminal.wrapping_add(running.terminal);
            }
            waits.push(clock.ns(figures.waited));
            let parent = parent.and_then(|p| places.get(&p).copied());
            let place = thread.nodes.len() as u32;
            places.insert(number, place);
            thread.metrics.add(place, &self.allocations.of(number));
            thread.nodes.push(convert(
                &figures,
                node.function,
                parent,
                &thread.nodes,
                clock,
                timed,
            ));
        })?;
        if let Some(resolver) = &mut self.sites {
            for (index, address) in sites.into_iter().enumerate() {
                let caller = thread.nodes[index].parent;
                let caller = caller.map(|parent| thread.nodes[parent as usize].function);
                thread.nodes[index].site = resolver.site(profile, address, caller);
            }
        }
        if !has_folded(self.header) {
            add_up(&mut thread.nodes);
        }
        add_waits(&mut thread.nodes, waits);
        self.stray_system_calls += counted.charge(&mut thread, &mut profile.enters_kernel);
        Ok(thread)
    }

    fn is_alive(&mut self, pid: u32, tid: u32) -> bool {
        let tasks = self.alive.entry(pid).or_insert_with(|| {
            let tasks = proc::tasks(Pid(pid as i32)).unwrap_or_default();
            tasks.into_iter().map(|tid| tid.0 as u32).collect()
        });
        tasks.contains(&tid)
    }

    /// As far as its threads tell: whoever saw its end knows better.
    fn add_life(&mut self, process: &mut model::Process) {
        let starts = process.threads.iter().map(|thread| thread.start_ns);
        process.start_ns = starts.min().unwrap_or(0);
        let ends = process.threads.iter().map(|thread| thread.end_ns);
        process.end_ns = ends.max().unwrap_or(0);
        if self.witness.end(process.pid).is_none() && self.is_alive(process.pid, process.pid) {
            process.end = model::End::Running;
        }
    }

    /// A thread that is alive counts up to the end of the recording, one that is dead up to when it was last known.
    fn end_of(&mut self, account: &Account, pid: u32, tid: u32) -> u64 {
        if account.slot.is_none() {
            return account.last;
        }
        let process_end = self.witness.end(pid);
        if process_end.is_none() && self.is_alive(pid, tid) {
            return self.end_ticks;
        }
        let seen = self.witness.last_seen(pid, tid, account.start).unwrap_or(0);
        // A first thread ends with its process, whose end the controller waits for.
        let with_process = match process_end {
            Some(end) if tid == pid => end,
            None if tid == self.header.pid => self.end_ticks,
            _ => 0,
        };
        account
            .last
            .max(seen)
            .max(with_process)
            .min(self.end_ticks.max(account.last))
    }

    /// As the thread was last seen, or as it called itself, or as its process, whose name it began with.
    fn name(&self, account: &Account, pid: u32, tid: u32) -> String {
        let seen = match account.slot {
            Some(_) => self
                .witness
                .name(pid, tid, account.named.max(account.start)),
            // Its number may be another thread's by now.
            None => None,
        };
        match seen {
            Some(name) => name.to_owned(),
            None if !account.name.is_empty() => account.name.clone(),
            None => match self.witness.name(pid, pid, 0) {
                Some(name) => name.to_owned(),
                None => self.command_name.clone(),
            },
        }
    }

    /// Of accounts of a single thread.
    fn kernel_counts(&self, account: &Account, pid: u32, tid: u32) -> Option<model::KernelCounts> {
        let launched = self.header.flags & shm::HEADER_LAUNCHED != 0;
        let was_there = account.flags & shm::SLOT_AT_ATTACH != 0 && !launched;
        let attached = self.header.attach_ticks;
        let soon = attached.saturating_add(self.clock.ticks(FIRST_LOOK_NS));
        let since = was_there.then_some(attached..soon);
        match (account.threads, account.slot) {
            (1, Some(_)) => self.witness.kernel_counts(pid, tid, since),
            _ => None,
        }
    }

    fn creator(&self, profile: &model::Profile, account: &Account) -> Option<model::Creator> {
        let (pid, tid) = account.creator?;
        Some(model::Creator {
            pid: self.witness.process(pid),
            tid: self.witness.thread(pid, tid),
            function: accounts::creator_function(profile, &account.creators),
        })
    }

    /// Ticks that a thread has been off the processor since it last asked: it may be waiting now.
    fn pending_wait(&self, clock: &ThreadClock, pid: u32, tid: u32, end: u64) -> u64 {
        if self.header.gap_least == shm::NO_GAP {
            return 0;
        }
        // Where nobody knows how long a thread that is gone ran after its last event, it did not.
        let cpu = match self.witness.end(pid) {
            None => proc::processor_time(Pid(pid as i32), Tid(tid as i32)),
            Some(_) => None,
        };
        let cpu = cpu
            .or_else(|| self.witness.processor_time(pid, tid, clock.read_ticks))
            .unwrap_or(clock.read_cpu);
        let ran = self.clock.ticks(cpu.saturating_sub(clock.read_cpu));
        let passed = end.saturating_sub(clock.read_ticks);
        let off = clock.uncharged.saturating_add_unsigned(passed);
        let off = off.saturating_sub_unsigned(ran);
        if off < self.header.gap_least {
            return 0;
        }
        let since_last = end.saturating_sub(clock.off.saturating_add(clock.last));
        (off as u64).min(since_last)
    }

    /// What runs right now, by node: time since entry, and the part of it that is the function's own. The innermost is
    /// charged with what the thread has waited since its last event.
    fn open_frames(
        &self,
        index: u64,
        end: u64,
        clock: &ThreadClock,
        (pending, charged): (u64, u64),
    ) -> Result<HashMap<u64, Running>> {
        let end = end.saturating_sub(clock.off.saturating_add(pending));
        let bottom = self.header.frames_offset + index * shm::FRAMES_STRIDE + shm::FRAME_SIZE;
        let mut frames = Vec::new();
        let mut offset = bottom + shm::FRAME_SIZE;
        const BATCH: u64 = 64;
        let mut bytes = [0; (BATCH * shm::FRAME_SIZE) as usize];
        'all: while frames.len() as u64 + BATCH <= shm::MAX_FRAMES {
            self.shared.read_bytes(offset, &mut bytes)?;
            for frame in bytes.chunks_exact(shm::FRAME_SIZE as usize) {
                let word = |at: usize| {
                    u64::from_le_bytes(frame[at..at + 8].try_into().expect("eight bytes"))
                };
                let key = word(shm::FRAME_KEY);
                if key == 0 {
                    break 'all;
                }
                frames.push(shm::Frame {
                    key,
                    node: word(shm::FRAME_NODE),
                    start: word(shm::FRAME_START),
                    child: word(shm::FRAME_CHILD),
                });
            }
            offset += BATCH * shm::FRAME_SIZE;
        }
        let mut running: HashMap<u64, Running> = HashMap::new();
        let timed = self.header.flags & shm::HEADER_TIMED != 0;
        let mut above = 0u64;
        let mut waited = false;
        let mut returns_with = None;
        for frame in frames.iter().rev() {
            let inside = frame.child.wrapping_add(above);
            let number = self.nodes.number_of(frame.node);
            // One that has made a tail jump returns with whom it jumped to.
            let off_since = returns_with.or_else(|| {
                let since = self.off_since(number?)?.saturating_sub(clock.off);
                let lasts = shm::lasts(frame.start, since, self.header.ticks_per_ns);
                (!lasts).then_some(since)
            });
            returns_with = off_since.filter(|_| frame.key & shm::KEY_TAIL != 0);
            let took = match (frame.start, off_since) {
                // Not timed: its own time is its caller's.
                (0, _) if timed => inside,
                // Since it was switched off, too.
                (start, Some(since)) => inside.max(since.min(end).saturating_sub(start)),
                (start, None) => end.saturating_sub(start),
            };
            let own = took.wrapping_sub(inside) as i64;
            above = took;
            if let Some(number) = number {
                let entry = running.entry(number).or_default();
                entry.took = entry.took.wrapping_add(took);
                entry.own = entry.own.wrapping_add(own);
                entry.timed |= frame.start != 0;
                // Since one was switched off its waits are its callers'.
                if !waited && off_since.is_none() {
                    waited = true;
                    entry.waited = charged;
                    if clock.terminal_wait == clock.last {
                        entry.terminal = charged;
                    }
                }
            }
        }
        Ok(running)
    }

    /// When the function of a context was switched off, if it is.
    fn off_since(&self, number: u64) -> Option<u64> {
        let function = self.nodes.at(number).ok()?.function;
        let state = self.states.get(function as usize)?;
        (state.state == shm::PROBE_OFF).then_some(state.since)
    }

    fn process(&self, pid: u32, first: &Account, command: &[String]) -> (Option<u32>, Vec<String>) {
        if pid == self.header.pid {
            return (None, command.to_vec());
        }
        let parent = first.creator.map(|(pid, _)| self.witness.process(pid));
        (
            parent,
            self.witness.command(pid).unwrap_or(command).to_vec(),
        )
    }

    /// Contexts that found no room or were cut: one node per function, kept with the process's first thread.
    fn add_folded(&self, profile: &mut model::Profile) -> Result<()> {
        if !has_folded(self.header) {
            return Ok(());
        }
        let Some(thread) = profile
            .processes
            .first_mut()
            .and_then(|p| p.threads.first_mut())
        else {
            return Ok(());
        };
        let timed = self.header.flags & shm::HEADER_TIMED != 0;
        for function in 0..self.header.functions {
            let mut node = self.nodes.folded(function)?;
            self.add_half_cut(function, &mut node)?;
            if node.calls == 0 && node.base == 0 && node.cum == 0 {
                continue;
            }
            let figures = Figures {
                calls: node.calls,
                cum: node.cum,
                base: node.base,
                waited: self.waits.folded(function).ticks,
                terminal: self.waits.folded(function).terminal,
                // Kept inverted, so that the zeros it starts with mean "none yet".
                min: i64::MAX - node.min,
                max: node.max,
                unwound: node.unwound,
                untimed: self.waits.folded(function).untimed,
                flags: NodeFlags::FOLDED,
            };
            thread.folded_calls += node.calls;
            let mut node = convert(&figures, function, None, &[], self.clock, timed);
            node.elapsed = node.cum.saturating_add(self.clock.ns(figures.waited));
            let place = thread.nodes.len() as u32;
            thread
                .metrics
                .add(place, &self.allocations.folded(function));
            thread.nodes.push(node);
        }
        Ok(())
    }

    /// What a thread that was killed while it cut a context of `function` had not yet moved to `folded`.
    fn add_half_cut(&self, function: u32, folded: &mut shm::Node) -> Result<()> {
        for number in self.half_cut.iter().filter(|(_, met)| !**met) {
            let node = self.nodes.at(*number.0)?;
            if node.function == function {
                folded.calls = folded.calls.wrapping_add(node.calls);
                folded.cum = folded.cum.wrapping_add(node.cum);
                folded.base = folded.base.wrapping_add(node.base);
            }
        }
        Ok(())
    }
}

/// Makes cum the sum of a context's own time and its children's to the nanosecond: ticks were rounded one by one, and
/// a tree that is read while it grows is not of one moment. (Not where contexts were folded: their time is in the
/// cum of their callers only.)
fn add_up(nodes: &mut [model::Node]) {
    for node in nodes.iter_mut() {
        node.cum = node.base;
    }
    for index in (0..nodes.len()).rev() {
        let cum = nodes[index].cum;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].cum = nodes[parent as usize].cum.saturating_add(cum);
        }
    }
}

/// Elapsed is what was worked and what was waited, here and in all callees.
fn add_waits(nodes: &mut [model::Node], mut waits: Vec<u64>) {
    for index in (0..nodes.len()).rev() {
        let node = &mut nodes[index];
        node.elapsed = node.cum.saturating_add(waits[index]);
        if let Some(parent) = node.parent {
            waits[parent as usize] = waits[parent as usize].saturating_add(waits[index]);
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Running {
    took: u64,
    own: i64,
    timed: bool,
    waited: u64,
    terminal: u64,
}

fn convert(
    figures: &Figures,
    function: u32,
    parent: Option<u32>,
    nodes: &[model::Node],
    clock: &Clock,
    timed: bool,
) -> model::Node {
    let mut recursion = 0;
    let mut ancestor = parent;
    while let Some(index) = ancestor {
        let node = &nodes[index as usize];
        if node.function == function {
            recursion = node.recursion + 1;
            break;
        }
        ancestor = node.parent;
    }
    let never_left = figures.min == i64::MAX;
    let ns = |ticks: u64| if timed { clock.ns(ticks) } else { 0 };
    let signed = |ticks: i64| {
        if timed && !never_left {
            clock.signed_ns(ticks)
        } else {
            0
        }
    };
    model::Node {
        parent,
        function,
        calls: figures.calls,
        base: if timed {
            clock.signed_ns(figures.base as i64)
        } else {
            0
        },
        cum: ns(figures.cum),
        elapsed: ns(figures.cum),
        terminal: ns(figures.terminal),
        min: signed(figures.min),
        max: signed(figures.max),
        recursion,
        unwound: figures.unwound.into(),
        // Counted right after the call is, so that a reader may meet one more.
        untimed: figures.untimed.min(figures.calls),
        flags: figures.flags,
        site: None,
    }
}
