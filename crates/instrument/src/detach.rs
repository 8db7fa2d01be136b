//! Taking the instrumentation out: the original bytes back, every thread out of the stubs, then the memory.
//!
//! ```text
//! read the ledger             target runs
//! stop: restore text, move threads out of the stubs or let them run out, give the GS bases back; STATE_DETACHED
//! snapshot                    target runs, nothing writes to the trees any more
//! stop: unmap                 unless a signal handler will return into a stub
//! ```
//!
//! Each step may be the last one of a controller that is killed: the next `detach` does the same again from the start.

use std::collections::HashMap;
use std::time::Duration;

use thalweg_abi as shm;

use crate::coroutines;
use crate::error::{Error, Result};
use crate::gate;
use crate::goroutines;
use crate::held;
use crate::java;
use crate::ledger::{Data, Ledger, lookup};
use crate::loaded;
use crate::memory::{self, Shared};
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::python;
use crate::sigframe;
use crate::text;
use crate::tracee::{self, StopOptions, Stopped, while_stopped};

/// How often threads are given a millisecond to leave their probes.
const MAX_ATTEMPTS: u32 = 500;
/// How often it is looked whether a signal handler above a probe has returned.
const HANDLER_ATTEMPTS: u32 = 15;

/// How often fork children are looked for until there are no new ones.
const MAX_SCANS: usize = 10;

/// A target whose code is as it was, but which still carries the data.
pub struct Detached {
    pub pid: Pid,
    pub shared: Shared,
    pub header: shm::Header,
    /// Processes with the same memory: the target and its fork children.
    members: Vec<(Pid, bool)>,
    /// The shared memory, and where it lies in each of them.
    identity: memory::Identity,
    /// Longest time that a process stood still, in nanoseconds.
    pub longest_stop_ns: u64,
    /// The text of a process is what it was.
    is_restored: bool,
    /// Patches whose bytes were neither ours nor the original ones.
    pub foreign: Vec<u64>,
}

/// Restores the text of `pid`, and of fork children that share its memory.
pub fn detach(pid: Pid) -> Result<Detached> {
    proc::preflight(pid)?;
    let Some((mapping, shared, header)) = memory::find(pid)? else {
        return Err(not_attached(pid));
    };
    check(&header, &mapping, pid)?;
    check_taken_out(&header, pid)?;
    if header.base == mapping.start.0 {
        // Killed while it mapped the memory: nothing else has happened yet.
        return Ok(Detached {
            pid,
            shared,
            header,
            members: vec![(pid, false)],
            identity: memory::Identity::of(&mapping),
            longest_stop_ns: 0,
            is_restored: false,
            foreign: vec![],
        });
    }
    gate::close(&shared)?;
    let leaving = std::mem::offset_of!(shm::Header, leaving) as u64;
    shared.write(leaving, &1u32.to_le_bytes())?;
    // While building, the ledger may not be there yet; then no text has been touched either.
    let bytes = shared.read_vec(header.ledger_offset, header.ledger_len)?;
    let ledger = match Ledger::decode(&bytes) {
        Ok(ledger) => ledger,
        Err(_) if header.state == shm::STATE_BUILDING => Ledger::default(),
        Err(error) => return Err(error),
    };
    let mut undo = Undo::new(&shared, ledger)?;
    let identity = memory::Identity::of(&mapping);
    let mut detached = Detached {
        pid,
        shared,
        header,
        members: vec![],
        identity,
        longest_stop_ns: 0,
        is_restored: false,
        foreign: vec![],
    };
    // The target first, so that its failure leaves its children as they are.
    let pinned = match restore(&mut detached, pid, &mut undo) {
        Ok(pinned) => pinned,
        Err(error) if detached.is_restored => return Err(error),
        Err(error) => {
            // Still attached: whoever served its gates and switched its functions goes on.
            let _ = detached.shared.write(leaving, &0u32.to_le_bytes());
            let _ = gate::reopen(&detached.shared, detached.header.gate_server);
            return Err(still_attached(pid, error));
        }
    };
    detached.members.push((pid, pinned));
    // Children may fork meanwhile, those of the target have been restored with it.
    let mut seen = vec![pid];
    for _ in 0..MAX_SCANS {
        let fresh: Vec<Pid> = memory::carriers(identity)
            .into_iter()
            .filter(|member| !seen.contains(member))
            .collect();
        if fresh.is_empty() {
            break;
        }
        for member in fresh {
            seen.push(member);
            match restore(&mut detached, member, &mut undo) {
                Ok(pinned) => detached.members.push((member, pinned)),
                // Ended, or another program by now.
                Err(_) if !memory::carries(member, identity, mapping.start) => {}
                // Will not stop. A fork child goes its own way, its probes count into memory of its own; but it may be
                // one that shares the target's (vfork), so that stays.
                Err(_) => detached
                    .members
                    .iter_mut()
                    .for_each(|member| member.1 = true),
            }
        }
    }
    detached.shared.set_state(shm::STATE_DETACHED)?;
    if undo.data().any(|data| matches!(data, Data::Flag { .. })) {
        java::ended(pid);
    }
    Ok(detached)
}

/// Removes what a controller left that was killed before it mapped anything: `false` if there is no such thing.
pub fn tidy(pid: Pid) -> Result<bool> {
    proc::preflight(pid)?;
    if memory::find(pid)?.is_some() {
        return Ok(false);
    }
    let descriptors = memory::descriptors(pid);
    if descriptors.is_empty() && !tracee::has_abandoned_code(pid)? {
        return Ok(false);
    }
    while_stopped(pid, StopOptions::default(), |stopped| {
        for fd in descriptors {
            stopped.close(fd)?;
        }
        stopped.empty_abandoned_code()
    })?;
    Ok(true)
}

/// Takes everything out of one fork child; the others that carry the same memory stay attached. `false`: something still
/// points into the stubs, which stay mapped.
pub fn detach_child(pid: Pid) -> Result<bool> {
    proc::preflight(pid)?;
    let Some((mapping, shared, header)) = memory::find(pid)? else {
        return Err(not_attached(pid));
    };
    check(&header, &mapping, pid)?;
    check_taken_out(&header, pid)?;
    let bytes = shared.read_vec(header.ledger_offset, header.ledger_len)?;
    let mut undo = Undo::new(&shared, Ledger::decode(&bytes)?)?;
    let mut detached = Detached {
        pid,
        shared,
        header,
        members: vec![],
        identity: memory::Identity::of(&mapping),
        longest_stop_ns: 0,
        is_restored: false,
        foreign: vec![],
    };
    let pinned = restore(&mut detached, pid, &mut undo)?;
    detached.members.push((pid, pinned));
    detached.unmap()
}

/// The shared memory of an attached process, for those who only read.
pub fn attached(pid: Pid) -> Result<(Shared, shm::Header)> {
    proc::preflight(pid)?;
    match memory::find(pid)? {
        Some((mapping, shared, header))
            if header.magic == shm::MAGIC && header.state == shm::STATE_ATTACHED =>
        {
            check(&header, &mapping, pid)?;
            Ok((shared, header))
        }
        _ => Err(not_attached(pid)),
    }
}

/// What a process carries that is not attached, if anything: `detach` takes it out.
pub fn left_over(pid: Pid) -> Result<Option<&'static str>> {
    proc::preflight(pid)?;
    let what = match memory::find(pid)? {
        Some((_, _, header)) if header.magic != shm::MAGIC => None,
        Some((_, _, header)) => match header.state {
            shm::STATE_ATTACHED => None,
            shm::STATE_BUILDING => Some("an attach that was not finished"),
            _ => Some("the memory of probes that have been taken out"),
        },
        None if !memory::descriptors(pid).is_empty() || tracee::has_abandoned_code(pid)? => {
            Some("what an interrupted attach has left")
        }
        None => None,
    };
    Ok(what)
}

fn still_attached(pid: Pid, error: Error) -> Error {
    match error {
        Error::Stuck { .. } => Error::StillAttached {
            pid,
            why: Box::new(error),
        },
        other => other,
    }
}

fn not_attached(pid: Pid) -> Error {
    Error::NotAttached { pid }
}

fn check(header: &shm::Header, mapping: &Mapping, pid: Pid) -> Result<()> {
    if header.magic == shm::MAGIC && header.version != shm::VERSION {
        return Err(Error::Refused(format!(
            "process {pid} was attached by another version of thalweg (layout {}, this one has {}): detach it with that version",
            header.version,
            shm::VERSION
        )));
    }
    let shared_start = header.base.checked_add(shm::PRIVATE_SIZE);
    let end = shared_start.and_then(|start| start.checked_add(header.shared_size));
    let unfinished = header.state == shm::STATE_BUILDING && header.base == mapping.start.0;
    if header.magic != shm::MAGIC
        || end.is_none()
        || !(unfinished || shared_start == Some(mapping.start.0))
    {
        return Err(Error::Damaged(format!(
            "the data that process {pid} carries is damaged: nothing was changed"
        )));
    }
    Ok(())
}

/// Its probes can be taken out.
fn check_taken_out(header: &shm::Header, pid: Pid) -> Result<()> {
    match header.flags & shm::HEADER_AHEAD {
        0 => Ok(()),
        _ => Err(Error::Refused(format!(
            "process {pid} runs a file that `thalweg instrument` has made: its probes are a part of it, and stay; nothing was changed"
        ))),
    }
}

/// Restores processes that still carry the memory of a target that is gone: fork children that outlived it.
pub fn detach_orphans(identity: memory::Identity) {
    for pid in memory::carriers(identity) {
        // Each is detached as any attached process would be; one that ends meanwhile needs nothing any more.
        let _ = detach(pid).and_then(|detached| detached.unmap());
    }
}

/// The ledger of the attach and those of modules that were loaded later.
struct Undo {
    first: Ledger,
    later: Vec<Ledger>,
    /// Of all of them, sorted.
    back: Vec<(u64, u64)>,
    /// What the later ones were made of.
    encoded: Option<Vec<Vec<u8>>>,
}

impl Undo {
    fn new(shared: &Shared, first: Ledger) -> Result<Undo> {
        let mut undo = Undo {
            first,
            later: Vec::new(),
            back: Vec::new(),
            encoded: None,
        };
        undo.read(shared)?;
        Ok(undo)
    }

    /// Costs little if nobody has loaded anything since the last time.
    fn read(&mut self, shared: &Shared) -> Result<()> {
        let encoded = loaded::encoded_ledgers(shared, &shared.header()?)?;
        if self.encoded.as_ref() == Some(&encoded) {
            return Ok(());
        }
        let later = encoded.iter().map(|bytes| Ledger::decode(bytes));
        self.later = later.collect::<Result<_>>()?;
        self.encoded = Some(encoded);
        self.back = self.first.back.clone();
        for ledger in &self.later {
            self.back.extend(&ledger.back);
        }
        self.back.sort_unstable();
        Ok(())
    }

    fn data(&self) -> impl Iterator<Item = &Data> {
        let ledgers = [&self.first].into_iter().chain(&self.later);
        ledgers.flat_map(|ledger| &ledger.data)
    }

    /// The youngest first. A module may be in several ledgers, if it was loaded more than once: what one of them has
    /// restored is foreign to none.
    fn texts(&self, stopped: &mut Stopped, maps: &[Mapping], foreign: &mut Vec<u64>) -> Result<()> {
        let all = || self.later.iter().rev().chain([&self.first]);
        let mut doubtful = Vec::new();
        for ledger in all() {
            text::undo(stopped, maps, ledger, &mut doubtful)?;
        }
        if doubtful.is_empty() {
            return Ok(());
        }
        let originals: HashMap<u64, &[u8]> = all()
            .flat_map(|ledger| &ledger.patches)
            .map(|patch| (patch.address, &*patch.original))
            .collect();
        doubtful.retain(|address| {
            let original = originals[address];
            let mut now = vec![0; original.len()];
            stopped.read(RemoteAddr(*address), &mut now).is_ok() && now != original
        });
        foreign.extend(doubtful);
        Ok(())
    }
}

/// One process. Returns whether something of it still points into the stubs.
fn restore(detached: &mut Detached, pid: Pid, undo: &mut Undo) -> Result<bool> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let outcome = while_stopped(pid, StopOptions::default(), |stopped| {
            let base = detached.header.base;
            let maps = stopped.maps()?;
            let there = RemoteAddr(base + shm::PRIVATE_SIZE);
            let carried =
                |m: &Mapping| m.start == there && memory::Identity::of(m) == detached.identity;
            if !maps.iter().any(carried) {
                return Err(not_attached(pid));
            }
            stopped.account_to(held::account(&detached.shared, true)?);
            if attempts == 1 {
                // What a controller has loaded since we looked is there now: it patches only what it can stop.
                undo.read(&detached.shared)?;
                detached.header.code = detached.shared.header()?.code;
                undo.texts(stopped, &maps, &mut detached.foreign)?;
                for data in undo.data() {
                    java::end(stopped, &maps, data)?;
                }
                detached.is_restored = true;
            }
            let outcome = evacuate(detached, stopped, maps, &undo.back)?;
            // As often as threads are let out: one of them may have been about to write it.
            for data in undo.data() {
                python::end(stopped, data)?;
            }
            let time = stopped.stop_time().as_nanos() as u64;
            detached.longest_stop_ns = detached.longest_stop_ns.max(time);
            Ok(outcome)
        })?;
        match outcome {
            Outcome::Out => return Ok(false),
            // Most handlers are short, but on a busy machine one may stand still for some milliseconds.
            Outcome::Pinned if attempts < HANDLER_ATTEMPTS => {
                std::thread::sleep(Duration::from_millis(u64::from(attempts)));
            }
            Outcome::Pinned => return Ok(true),
            // With the text restored every thread that runs leaves the stubs by itself. Stepping it out would be deadly if
            // we were killed meanwhile: the kernel leaves the trap flag set.
            Outcome::StillInside if attempts < MAX_ATTEMPTS => {
                std::thread::sleep(Duration::from_millis(u64::from(attempts.min(10))));
            }
            Outcome::StillInside => {
                return Err(Error::Busy(format!(
                    "a thread of process {pid} does not leave its probe; the code is restored, but run `thalweg detach {pid}` again"
                )));
            }
        }
    }
}

enum Outcome {
    /// No thread has anything to do with the stubs any more.
    Out,
    /// A signal handler will return into one.
    Pinned,
    StillInside,
}

/// Takes the threads out of the stubs and gives their GS bases back.
fn evacuate(
    detached: &Detached,
    stopped: &mut Stopped,
    maps: Vec<Mapping>,
    back: &[(u64, u64)],
) -> Result<Outcome> {
    let code = detached.header.code;
    let in_stubs = move |pc: u64| {
        code.iter()
            .any(|region| pc.wrapping_sub(region.start) < region.len)
    };
    let mut frames = sigframe::Frames::of(maps);
    let mut pinned = false;
    let mut inside = false;
    let mut own_stacks = HashMap::new();
    for tid in stopped.threads().to_vec() {
        let regs = stopped.regs(tid)?;
        let known = coroutines::running(&detached.shared, &detached.header, regs.gs_base);
        // Nothing follows the thread any more once the text is restored: it may have left the coroutine since.
        if let Some(running) = known
            && running.end.wrapping_sub(regs.rsp) <= shm::WINDOW
        {
            frames.add_end(running.end);
            own_stacks.insert(tid, running.own);
        }
        for end in goroutines::stack_ends(stopped, &regs) {
            frames.add_end(end);
        }
    }
    // A coroutine that was left in the middle of a handler may go on there on any thread.
    let mut suspended_inside = false;
    for stack in coroutines::suspended(&detached.shared, &detached.header) {
        frames.add_end(stack.end);
        let saved = frames.translate(stopped, stack.start, |pc| lookup(back, pc))?;
        suspended_inside |= saved.into_iter().any(in_stubs);
    }
    pinned |= suspended_inside;
    for tid in stopped.threads().to_vec() {
        let mut regs = stopped.regs(tid)?;
        if let Some(home) = lookup(back, regs.rip) {
            regs.rip = home;
            stopped.set_regs(tid, regs)?;
        } else if in_stubs(regs.rip) {
            inside = true;
            continue;
        }
        let mut returns_into_stub = false;
        for rsp in [Some(regs.rsp), own_stacks.get(&tid).copied()]
            .into_iter()
            .flatten()
        {
            let saved = frames.translate(stopped, rsp, |pc| lookup(back, pc))?;
            returns_into_stub |= saved.into_iter().any(in_stubs);
        }
        pinned |= returns_into_stub;
        let ours = regs.gs_base.wrapping_sub(detached.header.base) < shm::PRIVATE_SIZE;
        if ours && !returns_into_stub && !suspended_inside {
            regs.gs_base = 0;
            if regs.fs_base.wrapping_sub(detached.header.base) < shm::PRIVATE_SIZE {
                regs.fs_base = 0;
            }
            stopped.set_regs(tid, regs)?;
        }
    }
    Ok(match (inside, pinned) {
        (true, _) => Outcome::StillInside,
        (false, true) => Outcome::Pinned,
        (false, false) => Outcome::Out,
    })
}

impl Detached {
    /// Gives the memory back. `false`: it has to stay, because something still points into the stubs, or because the
    /// process may not unmap any more.
    pub fn unmap(&self) -> Result<bool> {
        let mut clean = true;
        for &(pid, pinned) in &self.members {
            if pinned {
                clean = false;
                continue;
            }
            let unmapped = while_stopped(pid, StopOptions::default(), |s| self.unmap_in(s));
            match unmapped {
                Ok(unmapped) => clean &= unmapped,
                // Ended meanwhile: so has its memory.
                Err(_) if proc::maps(pid).map_or(true, |maps| maps.is_empty()) => {}
                // A thread that does not stop: nothing points there, and a later `detach` finds it.
                Err(Error::Stuck { .. }) => clean = false,
                Err(error) => return Err(error),
            }
        }
        Ok(clean)
    }

    fn unmap_in(&self, stopped: &mut Stopped) -> Result<bool> {
        // Since it was restored it may have become another program, with other things at those addresses.
        let maps = stopped.maps()?;
        let base = self.header.base;
        let len = shm::PRIVATE_SIZE + self.header.shared_size;
        let carried = |m: &Mapping| {
            memory::Identity::of(m) == self.identity
                && [base, base + shm::PRIVATE_SIZE].contains(&m.start.0)
        };
        if !maps.iter().any(carried) {
            return Ok(true);
        }
        // Under a filter that came after the attach the memory has to stay.
        if stopped.check_system_calls().is_err() {
            return Ok(false);
        }
        // A controller that was killed may have noted a region that it never mapped.
        for region in self.header.code.iter().filter(|region| region.len > 0) {
            let ours = |m: &Mapping| {
                m.start.0 == region.start
                    && m.end.0 == region.start + region.len
                    && m.perms.exec
                    && !m.perms.write
                    && m.path.is_none()
            };
            if maps.iter().any(ours) {
                stopped.munmap(RemoteAddr(region.start), region.len)?;
            }
        }
        stopped.munmap(RemoteAddr(base), len)?;
        Ok(true)
    }
}
