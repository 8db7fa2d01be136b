//! From shared memory to a profile: the trees of all threads, with what is still running counted up to now.

use std::collections::{HashMap, HashSet};

use thalweg_abi as shm;
use thalweg_model as model;

use self::clock::Clock;
use self::nodes::{Nodes, pruned};
use self::tree::{Above, Places};
use crate::allocations::{self, Allocations};
use crate::blocks;
use crate::call_rules;
use crate::call_trace;
use crate::catalogs;
use crate::clock::{Moment, probe_cost_ns};
use crate::error::Result;
use crate::kernel;
use crate::loaded;
use crate::memory::Shared;
use crate::merge_recycled::MergeRecycled;
use crate::pruning;
use crate::samples::spool;
use crate::sites::Resolver;
use crate::states::{self, State};
pub use crate::thread_registry::ThreadRegistry;
use crate::thread_table;
use crate::waits::Waits;
use thalweg_instrument::dynamic::Family;
use thalweg_instrument::python::EVALUATOR;

mod clock;
mod lives;
mod nodes;
mod open;
mod tally;
mod totals;
mod tree;

pub use tally::{FunctionSum, Sums, Tally, ThreadSum, Whose};
pub use totals::{Totals, totals};

/// Names and places of everything that is counted, with no figures.
pub fn catalog(shared: &Shared) -> Result<model::Profile> {
    let header = shared.header()?;
    let catalog = shared.read_vec(header.catalog_offset, header.catalog_len)?;
    named(catalogs::read(&catalog)?, shared, &header)
}

fn named(
    mut profile: model::Profile,
    shared: &Shared,
    header: &shm::Header,
) -> Result<model::Profile> {
    loaded::add_catalogs(&mut profile, shared, header)?;
    Ok(profile)
}

/// Makes the profile, with what another process has seen of stacks. `ended`: the target is gone or detached since that moment, as
/// opposed to running now.
pub fn take(
    shared: &Shared,
    registry: &ThreadRegistry,
    ended: Option<u64>,
) -> Result<model::Profile> {
    let looks = spool::read(shared);
    let mut profile = take_without_samples(shared, registry, ended, false)?;
    match looks {
        Ok(Some(looks)) => looks.add_to(&mut profile, &shared.header()?),
        Ok(None) => {}
        Err(error) => profile.notes.push(error.to_string()),
    }
    Ok(profile)
}

/// The same for the process that looks itself. `is_last`: it reads the target for the last time.
pub fn take_without_samples(
    shared: &Shared,
    registry: &ThreadRegistry,
    ended: Option<u64>,
    is_last: bool,
) -> Result<model::Profile> {
    pruning::undisturbed(shared, || read_profile(shared, registry, ended, is_last))
}

fn read_profile(
    shared: &Shared,
    registry: &ThreadRegistry,
    ended: Option<u64>,
    is_last: bool,
) -> Result<model::Profile> {
    let mut header = shared.header()?;
    let now = Moment::now();
    let catalog = shared.read_vec(header.catalog_offset, header.catalog_len)?;
    let catalog = match is_last {
        true => catalogs::read_last(&catalog)?,
        false => catalogs::read(&catalog)?,
    };
    let mut profile = named(catalog, shared, &header)?;
    blocks::fill(&mut profile, shared, &header)?;
    if header.flags & shm::HEADER_AHEAD != 0 {
        profile.meta.command = command(shared, &header)?;
    }
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
    profile.meta.overhead_ns_per_call = probe_cost_ns(profile.meta.timed);
    profile.meta.memory_bytes = header.nodes_used;
    profile.meta.pruned = pruned(&header);
    profile.meta.held = model::Held {
        stops: header.held.stops,
        stopped_ns: clock.ns(header.held.ticks),
        longest_stop_ns: clock.ns(header.held.longest),
        gates: header.held.gates,
        gated_ns: clock.ns(header.held.gate_ticks),
        longest_gate_ns: clock.ns(header.held.longest_gate),
        waited_for_ns: clock.ns(header.held.waited_for),
    };

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
        registry,
        end_ticks,
        command_name,
        alive: HashMap::new(),
        half_pruned: pruning::half_pruned(shared, &header)?,
        places: Places::of(&nodes),
        above: Above::of(header.functions),
        states: &states,
        stray_system_calls: header.lost_system_calls,
        sites: match nodes.sites {
            true => Some(Resolver::new(shared, &header)?),
            false => None,
        },
    };
    let mut unseen = 0;
    let mut recycled = MergeRecycled::default();
    for entry in thread_table::read(shared)? {
        if !entry.is_chosen(&header) {
            continue;
        }
        unseen += u64::from(!registry.knows_thread(entry.pid, entry.tid));
        let thread = reader.thread(&mut profile, &entry)?;
        let pid = registry.process(entry.pid);
        let process = match profile.processes.iter_mut().find(|p| p.pid == pid) {
            Some(process) => process,
            None => {
                let (parent, command) = reader.process(pid, &entry, &profile.meta.command);
                profile.processes.push(model::Process {
                    pid,
                    parent,
                    command,
                    ..model::Process::default()
                });
                profile.processes.last_mut().expect("just pushed")
            }
        };
        if entry.flags & shm::SLOT_RECYCLED == 0 {
            process.threads.push(thread);
        } else {
            recycled.add(process, thread);
        }
    }
    for process in &mut profile.processes {
        reader.add_life(process);
    }
    reader.add_folded(&mut profile)?;
    let mut stray_system_calls = reader.stray_system_calls;
    profile.sites = reader.sites.map(Resolver::finish).unwrap_or_default();
    if header.flags & shm::HEADER_RECORDS != 0 {
        profile.recorded = call_trace::recorded(shared, &header, registry, clock.hz, end_ticks)?;
        profile.notes.extend(call_rules::notes(shared, &header)?);
    }
    add_notes(&mut profile, &header);
    if nodes.is_tangled() {
        profile.notes.push(
            "the trees that the target carries are damaged: contexts that were met twice are told once".into(),
        );
    }
    let per_ns = clock.hz / 1e9;
    profile.notes.extend(pruning::notes(&header, per_ns));
    allocations::add_notes(&mut profile, shared, &header)?;
    let cut = kernel::charge_cut(&mut profile, &kernel::cut(shared)?);
    stray_system_calls = stray_system_calls.saturating_add(cut);
    kernel::charge(&mut profile);
    profile.notes.extend(kernel::stray(stray_system_calls));
    profile.switched = switched(&states, end_ticks, &clock);
    let notes = runtime_notes(&profile, shared)?;
    profile.notes.extend(notes);
    if registry.is_divided() && unseen > 0 {
        profile.notes.push(format!(
            "{unseen} threads ended before they were seen from outside: their numbers are those of the target's PID namespace"
        ));
    }
    Ok(profile)
}

/// How a program that counts itself was called, as it has noted it.
fn command(shared: &Shared, header: &shm::Header) -> Result<Vec<String>> {
    const MOST: u64 = 1 << 20;
    let bytes = shared.read_vec(header.command_offset, header.command_len.min(MOST))?;
    let parts = bytes.split(|byte| *byte == 0);
    let mut parts: Vec<String> = parts
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect();
    // Behind the last zero byte there is nothing.
    parts.pop();
    Ok(parts)
}

/// The counter value at the last event of all threads: a program that counts itself, and is gone, was seen no longer.
pub fn last_event(shared: &Shared) -> Result<u64> {
    let entries = thread_table::read(shared)?;
    Ok(entries.iter().map(|entry| entry.last).max().unwrap_or(0))
}

/// Functions of runtimes that were not told apart all along.
fn runtime_notes(profile: &model::Profile, shared: &Shared) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    for (family, what) in [
        (
            Family::python(),
            format!("Python functions were not told apart for {{}} s, because {EVALUATOR} was switched off: it has their time there"),
        ),
        (
            Family::java(),
            "Java methods were not counted for {} s, because that cost more than the budget: their callers in C++ have their time there".into(),
        ),
    ] {
        let leader = family.read(shared)?.leader;
        let mut switched = profile.switched.iter();
        let off = switched.find(|one| Some(one.function.0) == leader && one.off_ns > 0);
        notes.extend(off.map(|one| {
            let seconds = format!("{:.1}", one.off_ns as f64 / 1e9);
            format!(
                "{}, and their calls are lower bounds. --budget off counts them all along",
                what.replace("{}", &seconds)
            )
        }));
    }
    Ok(notes)
}

/// Functions that were not timed all along.
fn switched(states: &[shm::ProbeState], end: u64, clock: &Clock) -> Vec<model::Switched> {
    let changed = (0..)
        .zip(states)
        .filter(|(_, state)| state.changes > 0 || state.state != shm::PROBE_TIMED);
    changed
        .map(|(function, state)| model::Switched {
            function: model::FuncId(function),
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
    let timed = header.flags & shm::HEADER_TIMED != 0;
    let has = |limit: u32| header.limits & limit != 0;
    if timed && (header.gap_least == shm::NO_GAP || has(shm::LIMIT_SILENT)) {
        profile.notes.push(
            "the target filters its system calls (seccomp, syscall user dispatch): its threads did not ask for their processor \
             time, so that from then on waiting counts as working"
                .into(),
        );
    }
    if timed && has(shm::LIMIT_FROZEN) {
        profile.notes.push(
            "the target has forbidden itself to read the time-stamp counter (PR_SET_TSC or strict seccomp): from then on its \
             calls were counted, not timed, and no single call was recorded"
                .into(),
        );
    }
    if has(shm::LIMIT_RETIRED) {
        profile.notes.push(
            "the target has set its GS segment base or made a thread without a thread pointer: from then on nothing was \
             counted in that process"
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
    if header.unslotted > 0 && header.blocks.is_empty() {
        profile.notes.push(format!(
            "{} calls and returns of threads beyond {} at a time were not counted",
            header.unslotted,
            shm::SLOTS
        ));
    }
}

struct Reader<'a> {
    shared: &'a Shared,
    header: &'a shm::Header,
    nodes: &'a Nodes<'a>,
    waits: &'a Waits,
    allocations: &'a Allocations,
    clock: &'a Clock,
    registry: &'a ThreadRegistry,
    end_ticks: u64,
    command_name: String,
    /// Threads that live now, by process.
    alive: HashMap<u32, HashSet<u32>>,
    /// Nodes that a killed thread was cutting: whether they were met in a tree all the same.
    half_pruned: HashMap<u64, bool>,
    places: Places,
    above: Above,
    /// How the probes of each function stand.
    states: &'a [shm::ProbeState],
    /// Where call sites are told apart.
    sites: Option<Resolver>,
    /// System calls of which nobody knows who made them.
    stray_system_calls: u64,
}
