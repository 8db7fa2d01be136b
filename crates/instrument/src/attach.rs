//! Putting the instrumentation in: survey and build while the target runs, one short stop to map memory, one to patch.
//!
//! ```text
//! survey, plan, emit        target runs
//! stop: map regions         header says STATE_BUILDING, code regions are noted before they are mapped
//! write stubs and tables    target runs, nothing points to them
//! stop: arm                 GS bases, stacks, then text; header says STATE_ATTACHED
//! ```
//!
//! A program that was launched, or became another one, stands from its first instruction on: all of
//! this happens in one stop, and its text is compared with its file as it is written.
//!
//! A controller that dies at any point leaves a target that works: regions are complete before any thread state points
//! to them, thread states before any patch, each patch lies within one page, and the ledger is there before all of them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thalweg_abi as shm;
use thalweg_model as model;

use crate::clock::{self, Moment};
use crate::detach;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::goroutines;
use crate::held;
use crate::idle::at_idle_priority;
use crate::later::drop_later;
use crate::launch::Launched;
use crate::ledger::{Ledger, lookup};
use crate::loaded::Modules;
use crate::memory::{self, IntoBytes, Shared};
use crate::place;
use crate::prepare::{Build, Measure};
use crate::proc::{self, Pid, RemoteAddr, Tid};
use crate::pruning::Pruning;
use crate::python;
use crate::record::Recording;
use crate::room::Room;
use crate::rseq;
use crate::sigframe;
use crate::survey::{Progress, Survey};
use crate::text;
use crate::threads::{self, Stacks};
use crate::tracee::{self, StopOptions, Stopped, while_stopped};

/// What to measure and how.
#[derive(Clone, Debug)]
pub struct Options {
    pub filter: Filter,
    /// Count only these threads; empty: all.
    pub threads: Vec<Tid>,
    pub timed: bool,
    /// Tell contexts apart by call site.
    pub sites: bool,
    /// Count short functions that call nothing at their entry alone, and never time them. Not done where call sites are told apart, allocations
    /// counted or single calls recorded.
    pub leaves_counted: bool,
    /// Count allocations, charged to those who make them.
    pub alloc: bool,
    /// Count system calls; the filter has to want them too.
    pub system_calls: bool,
    /// Bytes for tree nodes.
    pub memory: u64,
    /// A budget is kept: functions will go off.
    pub has_budget: bool,
    pub pruning: Pruning,
    /// Count fork children too, and where a controller lives, the programs that they become.
    pub follow: bool,
    /// Programs of which nothing is counted are instrumented too, for the sake of those that they start.
    pub gates_suffice: bool,
    /// So are all others: no function is patched, and stacks on a timer are all that there is.
    pub samples_only: bool,
    /// Refuse programs that use restartable sequences themselves.
    pub refuse_rseq: bool,
    /// Single calls to record.
    pub recording: Option<Recording>,
}

/// Two events of a thread this far apart, in seconds, and it may have been off the processor in between: a switch to another
/// thread and back takes no less. Asking the kernel costs some 300 ns, so a thread that does not wait asks more rarely.
const GAP_LEAST: f64 = 2e-6;
const GAP_MOST: f64 = 16e-6;

/// The same where the probes have a budget: events are few then, so that most of them would come after a long gap.
const THRIFTY_GAP_LEAST: f64 = 10e-6;
const THRIFTY_GAP_MOST: f64 = 300e-6;

/// A target that carries the instrumentation.
pub struct Attached {
    pub pid: Pid,
    pub shared: Shared,
    pub identity: memory::Identity,
    /// What was done to its text.
    pub ledger: Arc<Ledger>,
    pub functions: u32,
    pub skipped: usize,
    /// For a controller that stays.
    pub modules: Modules,
    /// The longer of the two stops, in nanoseconds.
    pub longest_stop_ns: u64,
    /// What is to be told to whoever attached.
    pub notes: Vec<String>,
}

/// Attaches to a running process.
pub fn attach(pid: Pid, options: &Options, progress: Progress) -> Result<Attached> {
    let started = Moment::now();
    let target = proc::preflight(pid)?;
    check_machine()?;
    check_threads(pid, &options.threads)?;
    if let Some((_, _, header)) = memory::find(pid)? {
        if header.magic == shm::MAGIC && header.state == shm::STATE_ATTACHED {
            return Err(Error::Refused(format!(
                "process {pid} is already attached: use `thalweg status {pid}`, or `thalweg detach {pid}` first"
            )));
        }
        // Left by a controller that was killed, or kept for a signal handler that was running.
        if !detach::detach(pid)?.unmap()? {
            return Err(Error::Busy(format!(
                "a signal handler of process {pid} still runs on top of a probe of the last attach: try again when it has returned"
            )));
        }
    }
    let mut command: Vec<String> = target
        .command
        .iter()
        .map(|s| s.to_string_lossy().into_owned())
        .collect();
    // A program that has set its own title leaves empty strings where its arguments were.
    while command.last().is_some_and(|part| part.is_empty()) {
        command.pop();
    }
    // Modules may come and go, and gaps fill, between the survey and the stop.
    let mut attempts = 0;
    loop {
        attempts += 1;
        // The target runs meanwhile, and the processors are its own.
        let build = at_idle_priority(|| build(pid, options, command.clone(), false, progress))?;
        let asked = tracee::check_counters(pid)?;
        let mapped = while_stopped(pid, StopOptions::default(), |stopped| {
            rseq::check(stopped, &build.survey, options.refuse_rseq)?;
            Ok((map(&build, stopped, asked), stopped.stop_time()))
        });
        match mapped? {
            (Err(Outdated), _) if attempts < 5 => continue,
            (Err(Outdated), _) => return Err(keeps_changing(pid)),
            (Ok(Err(error)), _) => return Err(error),
            (Ok(Ok((shared, header))), first_stop) => {
                let stops = (first_stop, started);
                let armed = fill_and_arm(&build, pid, &shared, header, options, stops);
                match armed {
                    Ok(second_stop) => {
                        let longest_stop_ns = first_stop.max(second_stop).as_nanos() as u64;
                        let mut attached = attached(pid, shared, &build, options, longest_stop_ns)?;
                        attached.notes.extend(build.java.drop_compiled());
                        return Ok(attached);
                    }
                    Err(error) => {
                        drop(shared);
                        return Err(taken_back(pid, error));
                    }
                }
            }
        }
    }
}

/// After an attach that failed half way, for this reason.
fn taken_back(pid: Pid, error: Error) -> Error {
    if proc::maps(pid).is_err() {
        return error;
    }
    match detach::detach(pid).and_then(|detached| detached.unmap()) {
        Ok(true) => error,
        Ok(false) | Err(_) => Error::StillMapped {
            pid,
            why: Box::new(error),
        },
    }
}

/// Instruments a program that was launched and stands before its first own instruction.
pub fn instrument(
    launched: &mut Launched,
    options: &Options,
    command: Vec<String>,
    progress: Progress,
) -> Result<Attached> {
    let pid = launched.pid();
    let stopped = launched.stopped().ok_or_else(|| gone(pid))?;
    instrument_stopped(stopped, options, command, clock::began(), progress)
}

/// The same for any process that stands there. `started`: some moment, the longer ago the better the clock is known.
pub fn instrument_stopped(
    stopped: &mut Stopped,
    options: &Options,
    command: Vec<String>,
    started: Moment,
    progress: Progress,
) -> Result<Attached> {
    check_machine()?;
    stopped.stands_since_now();
    let pid = stopped.pid();

    let build = build(pid, options, command, true, progress)?;
    rseq::check(stopped, &build.survey, options.refuse_rseq)?;
    let (shared, header) = match map(&build, stopped, false) {
        Err(Outdated) => return Err(keeps_changing(pid)),
        Ok(result) => result?,
    };
    let header = complete(header, started, options);
    build.write_code(pid, header.base)?;
    build.write_tables(&shared, &header)?;
    let mut stacks = Stacks::new(&build, pid)?;
    arm(&build, stopped, &shared, &header, options, &mut stacks)?;
    let attached = attached(pid, shared, &build, options, 0);
    drop_later(build);
    attached
}

/// Everything that is made before the target is touched, if it has room for that.
fn build(
    pid: Pid,
    options: &Options,
    command: Vec<String>,
    launched: bool,
    progress: Progress,
) -> Result<Build> {
    let room = Room::of(pid, options.memory);
    let within = Options {
        memory: room.trees,
        ..options.clone()
    };
    let mut survey = survey(pid, options, progress)?;
    survey.notes.extend(room.note(options.memory));
    let meta = meta(command, !launched, &within);
    let measure = measure(&within, launched);
    let build = Build::new(pid, survey, meta, measure, options.recording.as_ref())?;
    room.check(pid, &build)?;
    Ok(build)
}

fn survey(pid: Pid, options: &Options, progress: Progress) -> Result<Survey> {
    let survey = Survey::of_process(pid, &options.filter, progress)?;
    let missing = options.filter.has_checkpoints() && !survey.has_checkpoints();
    if missing && !options.gates_suffice {
        return Err(Error::NoCheckpoint { pid });
    }
    Ok(survey)
}

fn measure(options: &Options, launched: bool) -> Measure {
    Measure {
        timed: options.timed,
        sites: options.sites,
        leaves: options.leaves_counted
            && !(options.sites || options.alloc || options.recording.is_some()),
        // What a program begins with, its main function first of all, goes on for as long as it does, and its time is the whole.
        counted_first: !launched
            && options.timed
            && options.recording.is_none()
            && options.has_budget,
        alloc: options.alloc,
        memory: options.memory,
        pruning: options.pruning,
        launched,
        chosen: !options.threads.is_empty(),
        follow: options.follow,
        gates_suffice: options.gates_suffice,
        samples_only: options.samples_only,
        records: options.recording.is_some(),
    }
}

fn attached(
    pid: Pid,
    shared: Shared,
    build: &Build,
    options: &Options,
    longest_stop_ns: u64,
) -> Result<Attached> {
    let header = shared.header()?;
    let mapping = memory::mappings(pid)?
        .into_iter()
        .find(|m| m.start.0 == header.base + shm::PRIVATE_SIZE);
    let identity = mapping
        .as_ref()
        .map(memory::Identity::of)
        .ok_or_else(|| gone(pid))?;
    Ok(Attached {
        pid,
        shared,
        identity,
        ledger: build.ledger.clone(),
        functions: build.functions,
        skipped: build.skipped,
        modules: Modules::at_attach(build, &header, identity, &options.filter),
        longest_stop_ns,
        notes: build.java.note.iter().cloned().collect(),
    })
}

fn gone(pid: Pid) -> Error {
    Error::TargetExited {
        pid,
        how: "early".into(),
        doing: "it was being prepared",
    }
}

fn keeps_changing(pid: Pid) -> Error {
    Error::Busy(format!(
        "process {pid} keeps loading and unloading code: nothing was changed, try again"
    ))
}

fn meta(command: Vec<String>, attached: bool, options: &Options) -> model::Meta {
    model::Meta {
        version: env!("CARGO_PKG_VERSION").into(),
        timed: options.timed,
        attached,
        command,
        memory_limit: options.memory,
        metrics: measured(options),
        ..Default::default()
    }
}

fn measured(options: &Options) -> Vec<model::Metric> {
    let mut metrics = Vec::new();
    if options.alloc {
        metrics.extend(model::Metric::OF_ALLOCATION);
    }
    if options.system_calls {
        metrics.push(model::Metric::SyscallCalls);
        metrics.extend(options.timed.then_some(model::Metric::SyscallTime));
    }
    metrics
}

fn check_machine() -> Result<()> {
    if clock::is_invariant() {
        return Ok(());
    }
    Err(Error::Refused(
        "this processor's time-stamp counter does not run at a constant rate: only --no-clock could be exact here".into(),
    ))
}

fn check_threads(pid: Pid, wanted: &[Tid]) -> Result<()> {
    let tasks = proc::tasks(pid)?;
    match wanted.iter().find(|tid| !tasks.contains(tid)) {
        None => Ok(()),
        Some(tid) => {
            let list: Vec<String> = tasks.iter().map(|t| t.to_string()).collect();
            Err(Error::Refused(format!(
                "process {pid} has no thread {tid}; its threads are {}",
                list.join(", ")
            )))
        }
    }
}

/// The address space is not what the build was made for.
struct Outdated;

/// Maps the data region and the code regions. The header is in place before the code regions are.
/// `asked`: the threads' limits are known.
fn map(
    build: &Build,
    stopped: &mut Stopped,
    asked: bool,
) -> Result<Result<(Shared, shm::Header)>, Outdated> {
    let pid = stopped.pid();
    let now = match stopped.maps() {
        Ok(maps) => maps,
        Err(error) => return Ok(Err(error)),
    };
    let free = |start: u64, len: u64| {
        !now.iter()
            .any(|m| m.start.0 < start + len && start < m.end.0)
    };
    let there = |start: u64, end: u64| {
        now.iter()
            .any(|m| m.start.0 == start && m.end.0 == end && m.perms.exec)
    };
    let room = build
        .code
        .iter()
        .all(|region| free(region.start, region.len));
    // One that was unloaded meanwhile is no obstacle; if most are gone, it is another program.
    let modules = &build.survey.modules;
    let still_there = modules
        .iter()
        .filter(|m| m.text.iter().all(|text| there(text.start, text.end)))
        .count();
    if !room || still_there * 2 < modules.len() {
        return Err(Outdated);
    }
    if !asked && let Err(error) = stopped.check_limits() {
        return Ok(Err(error));
    }
    Ok(map_regions(build, stopped, pid))
}

fn map_regions(build: &Build, stopped: &mut Stopped, pid: Pid) -> Result<(Shared, shm::Header)> {
    stopped.check_system_calls()?;
    for tid in stopped.threads() {
        if stopped.status(*tid)?.shadow_stack {
            return Err(Error::ShadowStack { pid });
        }
    }
    if build.rules.is_some() && !stopped.may_read_own_memory() {
        return Err(Error::Refused(format!(
            "a seccomp filter of process {pid} forbids process_vm_readv, by which rules read what pointers point to: record without --rule; nothing was changed"
        )));
    }
    if locks_future_memory(pid, stopped)? {
        return Err(Error::Refused(format!(
            "process {pid} locks all its future memory (mlockall): the trees' address space would be filled at once; nothing was changed"
        )));
    }
    let total = shm::PRIVATE_SIZE + build.layout.shared_size;
    // The kernel would take the highest room there is, which may be where the stubs are to go.
    let wanted = place::find_space(&stopped.maps()?, total).ok_or_else(|| no_space(total))?;
    let base = RemoteAddr(wanted);
    let mut header = build.header(pid, base.0);
    if !stopped.may_ask_processor_time() {
        header.gap_least = shm::NO_GAP;
    }
    if !stopped.may_ask_what_is_readable() {
        header.prune.off |= shm::PRUNING_CONFINED;
    }
    if stopped.may_rewrite_probes() {
        header.flags |= shm::HEADER_REWRITES;
    }
    let shared = map_memory(build, stopped, &header)?;
    Ok((shared, header))
}

/// In this order, each step leaves what a later controller recognises and knows how to take back: first the file, then
/// its header, then one mapping of the file over the whole room.
fn map_memory(build: &Build, stopped: &mut Stopped, header: &shm::Header) -> Result<Shared> {
    use libc::{
        MADV_DONTDUMP, MADV_WIPEONFORK, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE,
        MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_EXEC, PROT_READ, PROT_WRITE,
    };
    let pid = stopped.pid();
    let len = build.layout.shared_size;
    let total = shm::PRIVATE_SIZE + len;
    let base = RemoteAddr(header.base);
    let place = RemoteAddr(header.base + shm::PRIVATE_SIZE);
    let flags = MAP_SHARED | MAP_NORESERVE;
    let fd = stopped
        .memfd_create(shm::MEMFD_NAME, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        .map_err(|error| no_descriptor(pid, error))?;
    let taken = (|| {
        let file = memory::memfd::take(pid, fd, len)?;
        let shared = Shared::File { file, len };
        shared.write(0, header.as_bytes())?;
        let whole = flags | MAP_FIXED_NOREPLACE;
        stopped
            .mmap(base, total, PROT_READ | PROT_WRITE, whole, fd, 0)
            .map_err(|error| no_memory(error, total))?;
        Ok(shared)
    })();
    let shared = match taken {
        Ok(shared) => shared,
        Err(error) => {
            stopped.close(fd)?;
            return Err(error);
        }
    };
    // From here on the room is ours alone: whatever fails, all of it is given back.
    let mut code = Vec::new();
    let result = (|| {
        let mapped = stopped.mmap(place, len, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
        stopped.close(fd)?;
        mapped?;
        stopped.mmap(
            base,
            shm::PRIVATE_SIZE,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
            -1,
            0,
        )?;
        stopped.madvise(base, shm::PRIVATE_SIZE, MADV_WIPEONFORK)?;
        stopped.madvise(base, total, MADV_DONTDUMP)?;
        // The number may have meant another file by the time of the mapping.
        if !shared
            .identity()
            .is_some_and(|own| memory::carries(pid, own, place))
        {
            return Err(memory::memfd::swapped(pid));
        }
        for region in &build.code {
            let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            let start = RemoteAddr(region.start);
            stopped.mmap(start, region.len, PROT_READ | PROT_EXEC, flags, -1, 0)?;
            code.push((start, region.len));
        }
        Ok(())
    })();
    if let Err(error) = result {
        for (start, len) in code {
            let _ = stopped.munmap(start, len);
        }
        let _ = stopped.munmap(base, total);
        return Err(error);
    }
    Ok(shared)
}

/// Whether a new mapping would be locked, and so filled, at once. Tried with one page, and only where anything is locked.
fn locks_future_memory(pid: Pid, stopped: &mut Stopped) -> Result<bool> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let status = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kilobytes = |text: &str| {
        text.split_whitespace()
            .next()
            .and_then(|n| n.parse::<u64>().ok())
    };
    let before = locked.and_then(kilobytes).unwrap_or(0);
    if before == 0 {
        return Ok(false);
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let page = stopped.mmap(RemoteAddr(0), shm::PAGE, libc::PROT_READ, flags, -1, 0)?;
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let status = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let after = status
        .lines()
        .find_map(|line| line.strip_prefix("VmLck:"))
        .and_then(kilobytes)
        .unwrap_or(0);
    stopped.munmap(page, shm::PAGE)?;
    Ok(after > before)
}

fn no_space(total: u64) -> Error {
    Error::NoRoom(format!(
        "the target has no {} GiB of address space left in one piece",
        total >> 30
    ))
}

fn no_descriptor(pid: Pid, error: Error) -> Error {
    match &error {
        Error::RemoteSyscall { source, .. } if source.raw_os_error() == Some(libc::EMFILE) => {
            Error::NoRoom(format!(
                "process {pid} has as many files open as its limit allows (ulimit -n), and needs one more for a moment: raise \
                 the limit with `prlimit --pid {pid} --nofile=NUMBER`, or try again; nothing was changed"
            ))
        }
        _ => error,
    }
}

fn no_memory(error: Error, total: u64) -> Error {
    Error::NoRoom(format!(
        "the target cannot map {} GiB of address space (it is touched only as needed): {error}; is its address space limited (ulimit -v)?",
        total >> 30
    ))
}

fn complete(mut header: shm::Header, started: Moment, options: &Options) -> shm::Header {
    let (least, most) = match options.has_budget {
        true => (THRIFTY_GAP_LEAST, THRIFTY_GAP_MOST),
        false => (GAP_LEAST, GAP_MOST),
    };
    let rate = Moment::rate_since(started);
    let now = Moment::now();
    header.ticks_hz = rate.to_bits();
    header.ticks_per_ns = (rate / 1e9 * 2f64.powi(32)) as u64;
    if header.gap_least != shm::NO_GAP {
        header.gap_least = (rate * least) as i64;
        header.gap_most = (rate * most) as i64;
    }
    header.attach_ticks = now.ticks;
    header.attach_monotonic_ns = now.monotonic_ns;
    header.attach_unix_ns = clock::unix_ns();
    header
}

fn fill_and_arm(
    build: &Build,
    pid: Pid,
    shared: &Shared,
    header: shm::Header,
    options: &Options,
    (first_stop, started): (Duration, Moment),
) -> Result<Duration> {
    let mut header = complete(header, started, options);
    held::note_stop(&mut header, first_stop);
    build.write_code(pid, header.base)?;
    build.write_tables(shared, &header)?;
    let mut stacks = Stacks::new(build, pid)?;
    threads::make_room(shared, &header, proc::tasks(pid)?.len() as u64)?;
    while_stopped(pid, StopOptions::default(), |stopped| {
        let now = Moment::now();
        header.attach_ticks = now.ticks;
        header.attach_monotonic_ns = now.monotonic_ns;
        header.attach_unix_ns = clock::unix_ns();
        arm(build, stopped, shared, &header, options, &mut stacks)?;
        Ok(stopped.stop_time())
    })
}

/// With everything in place: give each thread its slot, then patch the text.
fn arm(
    build: &Build,
    stopped: &mut Stopped,
    shared: &Shared,
    header: &shm::Header,
    options: &Options,
    stacks: &mut Stacks,
) -> Result<()> {
    let pid = stopped.pid();
    stopped.account_to(held::account(shared, false)?);
    let maps = stopped.maps()?;
    let texts = build.ledger.texts.iter();
    let gone: Vec<_> = texts
        .filter(|text| !text.is_mapped_at(&maps, text.start))
        .collect();
    let changes = build.changes.as_ref().map(|all| all.without(&gone));
    if let Some(changes) = &changes
        && !changes.still_fit(stopped)?
    {
        return Err(Error::Busy(format!(
            "the code of process {pid} changed while it was being analysed: try again"
        )));
    }
    let clocks = threads::open_slots(stopped, shared, header, stacks, &options.threads)?;
    let mut frames = sigframe::Frames::of(maps);
    for tid in stopped.threads().to_vec() {
        let regs = stopped.regs(tid)?;
        for end in goroutines::stack_ends(stopped, &regs) {
            frames.add_end(end);
        }
    }
    for tid in stopped.threads().to_vec() {
        let mut regs = stopped.regs(tid)?;
        if let Some(moved) = lookup(&build.ledger.moves, regs.rip) {
            regs.rip = moved;
            stopped.set_regs(tid, regs)?;
        }
        frames.translate(stopped, regs.rsp, |pc| lookup(&build.ledger.moves, pc))?;
    }
    stopped.flush()?;
    match changes {
        Some(changes) => changes.write(stopped)?,
        None => make_or_take_back(stopped, &build.ledger)?,
    }
    python::begin(shared, stopped)?;
    build.java.begin(stopped)?;
    clocks.start(shared, header)?;
    shared.set_state(shm::STATE_ATTACHED)
}

/// All patches, or none: what is wrong is found out half way, and nobody runs before the rest is out again.
fn make_or_take_back(stopped: &mut Stopped, ledger: &Ledger) -> Result<()> {
    let made = text::make(stopped, ledger);
    if made.is_err() {
        let maps = stopped.maps()?;
        text::undo(stopped, &maps, ledger, &mut Vec::new())?;
    }
    made
}
