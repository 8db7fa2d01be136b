//! Switching the probes of single functions while the target runs.
//!
//! ```text
//! timed, sampled, counted   one byte in the function's stub, written while everything runs: see abi/states.rs
//! off, and on again         a short stop: the function's patches out of the text, or back in; nothing else changes
//! ```
//!
//! Off is the text as it was. The ledger goes on listing the patches: `detach` finds either the original bytes, which it leaves, or
//! ours, which it takes out, so that a controller killed at any point leaves what every later one understands. Stubs stay, for
//! threads may be in them: a stub ends with a jump back to the text, whatever that is by then.
//!
//! What else hangs on a function that goes off: others that have a springboard in bytes that its patch displaced, or that go on in
//! it, go with it; probes before jumps to it become exits; and it leaves the table of probed entries. Activations that
//! began before may end unseen: the agent finds them left behind, and does not count them as unwound.
//!
//! Nothing is changed but with the process stopped and not about to be detached, and a stop has one holder.

mod change;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use thalweg_abi as shm;

use self::change::Change;
use crate::attendants;
use crate::coroutines;
use crate::detach;
use crate::dynamic::{self, Family};
use crate::error::{Error, Result};
use crate::goroutines;
use crate::held;
use crate::java;
use crate::ledger::{Ledger, Switchable, lookup};
use crate::ledgers;
use crate::loaded;
use crate::memory::{self, Identity, Shared};
use crate::proc::{Mapping, Pid, RemoteAddr};
use crate::python;
use crate::record;
use crate::sigframe;
use crate::states;
pub use crate::states::State;
use crate::text;
use crate::tracee::{StopOptions, Stopped, while_stopped};

/// Who knows how to switch the functions of one target, and of its fork children.
pub struct Switcher {
    shared: Shared,
    identity: Identity,
    base: u64,
    ledgers: Vec<Arc<Ledger>>,
    /// Where each function is: ledger and index in its list. A module that was loaded again is in several.
    places: HashMap<u32, Vec<(usize, usize)>>,
    /// Functions that need others, by those others.
    dependents: HashMap<u32, Vec<u32>>,
    /// Functions that are not switched off.
    pinned: HashSet<u32>,
    /// Java methods that were seen so far.
    java: Family,
    /// What the ledgers were read for.
    loaded: (u32, u64),
    options: StopOptions,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// All that changed, those included that had to go along.
    pub changed: Vec<(u32, State)>,
    /// What stays as it is, and why.
    pub refused: Vec<(u32, Refusal)>,
    /// The longest that a process stood still.
    pub stop: Duration,
}

/// Why a function stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Because(&'static str),
    /// Rules need this one, which is the function itself or hangs on it: `record::Needs` tells more.
    Needed(u32),
}

const FIXED: &str =
    "it, or a function that hangs on it, has to stay probed: a gate, or a switch of stacks";
const NO_MODE: &str = "its calls are either timed or not counted at all";
const LEAF: &str =
    "it is short and calls nothing: in this recording such functions are only counted";
const NO_CLOCK: &str = "nothing is timed in this recording";
const RECORDS: &str = "where single calls are recorded, every call is timed";
const JAVA: &str = "a Java method that is off stays so: code was compiled without its probes";
const ALL_JAVA: &str = "Java methods can only be switched off all at once, and stay so";
const UNKNOWN: &str = "no such function";

impl Switcher {
    /// For a process that is attached.
    pub fn of(pid: Pid) -> Result<Switcher> {
        let (shared, header) = detach::attached(pid)?;
        let start = RemoteAddr(header.base + shm::PRIVATE_SIZE);
        let mapping = memory::mappings(pid)?
            .into_iter()
            .find(|mapping| mapping.start == start)
            .ok_or_else(|| Error::NoLongerAttached { pid })?;
        Switcher::new(shared, Identity::of(&mapping))
    }

    pub fn new(shared: Shared, identity: Identity) -> Result<Switcher> {
        let base = shared.header()?.base;
        let switcher = Switcher {
            shared,
            identity,
            base,
            ledgers: Vec::new(),
            places: HashMap::new(),
            dependents: HashMap::new(),
            pinned: HashSet::new(),
            java: Family::java(),
            loaded: (u32::MAX, 0),
            options: StopOptions::default(),
        };
        Ok(switcher)
    }

    /// Takes in what was loaded since.
    fn refresh(&mut self) -> Result<shm::Header> {
        let header = self.shared.header()?;
        let loaded = (header.loaded, header.growth_used);
        if loaded == self.loaded {
            return Ok(header);
        }
        self.loaded = loaded;
        let bytes = self
            .shared
            .read_vec(header.ledger_offset, header.ledger_len)?;
        self.ledgers = vec![ledgers::read(&bytes)?];
        let loaded = loaded::ledgers(&self.shared, &header)?;
        self.ledgers.extend(loaded.into_iter().map(Arc::new));
        self.places.clear();
        self.dependents.clear();
        for (number, ledger) in self.ledgers.iter().enumerate() {
            for (index, one) in ledger.switchable.iter().enumerate() {
                let places = self.places.entry(one.function).or_default();
                places.push((number, index));
                for &other in &one.needs {
                    let dependents = self.dependents.entry(other).or_default();
                    dependents.push(one.function);
                }
            }
        }
        Ok(header)
    }

    fn instances(&self, function: u32) -> impl Iterator<Item = &Switchable> {
        let places = self.places.get(&function).into_iter().flatten();
        places.map(|&(ledger, index)| &self.ledgers[ledger].switchable[index])
    }

    /// For one that comes back by itself where a thread does not stop.
    pub fn tries_once(&mut self) {
        self.options = StopOptions::once();
    }

    /// From now on these are not switched off, nor any that they cannot stay probed without.
    pub fn pin(&mut self, functions: HashSet<u32>) {
        self.pinned = functions;
    }

    /// Why a function cannot be switched off, if so.
    fn stays_on(&self, function: u32) -> Option<Refusal> {
        let all = self.with_dependents(function);
        if all.iter().any(|&f| self.instances(f).any(|one| one.fixed)) {
            return Some(Refusal::Because(FIXED));
        }
        let needed = all.into_iter().find(|f| self.pinned.contains(f));
        needed.map(Refusal::Needed)
    }

    /// The function and all that cannot stay probed without it.
    fn with_dependents(&self, function: u32) -> Vec<u32> {
        self.closure(function, |f| self.dependents.get(&f).cloned())
    }

    /// The function and all that it cannot be probed without.
    fn with_needs(&self, function: u32) -> Vec<u32> {
        self.closure(function, |f| {
            Some(
                self.instances(f)
                    .flat_map(|one| one.needs.clone())
                    .collect(),
            )
        })
    }

    fn closure(&self, function: u32, next: impl Fn(u32) -> Option<Vec<u32>>) -> Vec<u32> {
        let mut all = vec![function];
        let mut done = 0;
        while done < all.len() {
            let more = next(all[done]).unwrap_or_default();
            done += 1;
            for other in more {
                if !all.contains(&other) {
                    all.push(other);
                }
            }
        }
        all
    }

    /// Brings functions into the states that are wanted, in the target and in its fork children, but for what rules need. Whoever looks at stacks has judged what
    /// it saw until now by the states that held, as far as it answers.
    pub fn switch(&mut self, wanted: &[(u32, State)]) -> Result<Outcome> {
        attendants::ask(&self.shared)?;
        let header = self.refresh()?;
        self.pin(match record::needs_all(&self.shared, &header)? {
            true => self.places.keys().copied().collect(),
            false => record::needed(&self.shared, &header)?,
        });
        let carriers = memory::carriers(self.identity);
        self.switch_in(&carriers, wanted)
    }

    /// The same where it is known who carries the memory.
    pub fn switch_in(&mut self, pids: &[Pid], wanted: &[(u32, State)]) -> Result<Outcome> {
        let header = self.refresh()?;
        let known = states::of_all(&self.shared, &header)?;
        let mut outcome = Outcome::default();
        let mut next: HashMap<u32, State> = HashMap::new();
        let java = dynamic::java_leader(&self.shared)?;
        self.java.update(&self.shared)?;
        let methods: HashSet<u32> = self.java.numbers.iter().copied().collect();
        let now = |f: u32| State::of(known.get(f as usize).map_or(0, |state| state.state));
        let leaf = |f: u32| self.instances(f).any(|one| one.leaf);
        let first = |f: u32| states::first(&header, leaf(f));
        for &(function, state) in wanted {
            // What is only ever counted comes back as that.
            let state = match state {
                State::Timed | State::Sampled if now(function) == State::Off => {
                    state.max(first(function))
                }
                _ => state,
            };
            if java == Some(function) {
                match state {
                    State::Off if now(function) != State::Off => {
                        self.leave_java(&header, function, pids)?;
                        outcome.changed.push((function, State::Off));
                    }
                    _ => outcome.refused.push((function, Refusal::Because(ALL_JAVA))),
                }
                continue;
            }
            if methods.contains(&function) {
                match self.refused_of_method(&header, now(function), state) {
                    Some(why) => outcome.refused.push((function, why)),
                    None => _ = next.insert(function, state),
                }
                continue;
            }
            if !self.places.contains_key(&function) {
                outcome.refused.push((function, Refusal::Because(UNKNOWN)));
                continue;
            }
            let refusal = match state {
                State::Off => self.stays_on(function),
                State::Sampled | State::Counted if header.flags & shm::HEADER_TIMED == 0 => {
                    Some(Refusal::Because(NO_CLOCK))
                }
                State::Sampled | State::Counted if header.flags & shm::HEADER_RECORDS != 0 => {
                    Some(Refusal::Because(RECORDS))
                }
                State::Timed | State::Sampled if first(function) == State::Counted => {
                    Some(Refusal::Because(LEAF))
                }
                State::Counted if first(function) == State::Counted => None,
                State::Sampled | State::Counted
                    if self.instances(function).any(|one| one.mode_at == 0) =>
                {
                    Some(Refusal::Because(NO_MODE))
                }
                _ => None,
            };
            if let Some(why) = refusal {
                outcome.refused.push((function, why));
                continue;
            }
            match state {
                State::Off => {
                    for other in self.with_dependents(function) {
                        next.insert(other, State::Off);
                    }
                }
                _ => {
                    for other in self.with_needs(function) {
                        if next.get(&other).copied().unwrap_or(now(other)) == State::Off {
                            next.insert(other, first(other));
                        }
                    }
                    next.insert(function, state);
                }
            }
        }
        next.retain(|&function, state| now(function) != *state);
        let is_off = |f: &u32| now(*f) == State::Off;
        let is_method = |f: &u32| methods.contains(f);
        if next
            .iter()
            .any(|(f, state)| is_method(f) && *state == State::Off)
        {
            dynamic::note_java_off(&self.shared, false)?;
        }
        let off: HashSet<u32> = next
            .iter()
            .filter(|(f, state)| **state == State::Off && !is_method(f))
            .map(|(f, _)| *f)
            .collect();
        let on: HashSet<u32> = next
            .iter()
            .filter(|(f, state)| is_off(f) && **state != State::Off)
            .map(|(f, _)| *f)
            .collect();
        // A function that comes back is in its mode before its first event.
        let mut modes = next.clone();
        modes.retain(|_, state| *state != State::Off);
        for &pid in pids {
            self.write_modes(pid, &modes)?;
        }
        for (&function, &state) in &next {
            if !off.contains(&function) && !on.contains(&function) {
                states::set(&self.shared, &header, function, state)?;
            }
        }
        if !off.is_empty() || !on.is_empty() {
            let change = Change::new(&self.ledgers, off, on);
            let mut stuck = None;
            for &pid in pids {
                let stop = self.change(pid, &change, &next);
                match stop {
                    Ok(time) => outcome.stop = outcome.stop.max(time),
                    // Ended, or another program by now.
                    Err(_) if !self.carries(pid) => {}
                    // The others need not wait for one that does not stop.
                    Err(error @ Error::Stuck { .. }) => stuck = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if let Some(error) = stuck {
                return Err(error);
            }
        }
        outcome.changed.extend(next);
        outcome
            .changed
            .sort_unstable_by_key(|(function, _)| *function);
        Ok(outcome)
    }

    /// Writes the modes of all functions that are not timed into a process that may not have them: one that was forked while they changed.
    pub fn renew_modes(&mut self, pid: Pid) -> Result<()> {
        let header = self.refresh()?;
        let states = states::of_all(&self.shared, &header)?;
        let switched = (0..).zip(&states).filter(|(_, state)| state.changes > 0);
        let modes = switched.map(|(function, state)| (function, State::of(state.state)));
        self.write_modes(
            pid,
            &modes.filter(|(_, state)| *state != State::Off).collect(),
        )
    }

    /// Why a Java method cannot come from one state into another. The agent asks for a method's state at each event.
    fn refused_of_method(&self, header: &shm::Header, now: State, state: State) -> Option<Refusal> {
        let between = matches!(state, State::Sampled | State::Counted);
        let why = if now == State::Off && state != State::Off {
            JAVA
        } else if between && header.flags & shm::HEADER_TIMED == 0 {
            NO_CLOCK
        } else if between && header.flags & shm::HEADER_RECORDS != 0 {
            RECORDS
        } else {
            return None;
        };
        Some(Refusal::Because(why))
    }

    /// No Java method is counted any more: nobody stands still for the flag, and what the machine has compiled it drops by itself. A
    /// thread waits for that, because the machine loads a library for it, before which it may wait for us.
    fn leave_java(&self, header: &shm::Header, leader: u32, pids: &[Pid]) -> Result<()> {
        states::set(&self.shared, header, leader, State::Off)?;
        dynamic::note_java_off(&self.shared, true)?;
        for &pid in pids {
            if let Some(machine) = java::leave(&self.shared, pid)? {
                // What cannot be dropped goes on being counted, which is no harm.
                std::thread::spawn(move || java::drop_compiled(&machine));
            }
        }
        Ok(())
    }

    /// Has the machines of these processes drop what they have compiled, so that methods that are off lose their probes. Not waited for.
    pub fn drop_compiled(&self, pids: &[Pid]) -> Result<()> {
        for &pid in pids {
            if let Some(machine) = java::Machine::of_process(pid)? {
                std::thread::spawn(move || java::drop_compiled(&machine));
            }
        }
        Ok(())
    }

    /// Whether this is the GS base of a thread that has a slot.
    fn is_ours(&self, gs: u64) -> bool {
        gs.wrapping_sub(self.base) < shm::PRIVATE_SIZE
    }

    fn carries(&self, pid: Pid) -> bool {
        let start = RemoteAddr(self.base + shm::PRIVATE_SIZE);
        memory::carries(pid, self.identity, start)
    }

    /// The probes read the byte as data, and as a part of an instruction it means nothing: no thread need stand still.
    fn write_modes(&self, pid: Pid, next: &HashMap<u32, State>) -> Result<()> {
        let Ok(memory) = File::options().write(true).open(format!("/proc/{pid}/mem")) else {
            return Ok(());
        };
        for (&function, state) in next {
            for one in self.instances(function) {
                if one.mode_at != 0 {
                    let word = function & shm::MODE_FUNCTION | state.mode();
                    let byte = word.to_le_bytes()[shm::MODE_BYTE as usize];
                    // Where the stubs are not mapped there is nothing to switch.
                    let _ = memory.write_all_at(&[byte], one.mode_at);
                }
            }
        }
        Ok(())
    }

    fn change(&self, pid: Pid, change: &Change, next: &HashMap<u32, State>) -> Result<Duration> {
        if !self.carries(pid) {
            return Ok(Duration::ZERO);
        }
        while_stopped(pid, self.options, |stopped| {
            self.change_stopped(stopped, change, next)
        })
    }

    fn change_stopped(
        &self,
        stopped: &mut Stopped,
        change: &Change,
        next: &HashMap<u32, State>,
    ) -> Result<Duration> {
        let pid = stopped.pid();
        let header = self.shared.header()?;
        if header.state != shm::STATE_ATTACHED || header.leaving != 0 || !self.carries(pid) {
            return Err(Error::Busy(format!(
                "process {pid} is being detached: nothing was switched"
            )));
        }
        stopped.account_to(held::account(&self.shared, true)?);
        let mut threads = Vec::new();
        for tid in stopped.threads().to_vec() {
            threads.push((tid, stopped.regs(tid)?));
        }
        if !threads.iter().any(|(_, regs)| self.is_ours(regs.gs_base)) {
            // A child from which everything has been taken out, but for the memory.
            return Ok(Duration::ZERO);
        }
        for &function in change.off.iter().chain(&change.on) {
            states::set(&self.shared, &header, function, next[&function])?;
            for one in self.instances(function) {
                self.note_entry(&header, one.low, change.on.contains(&function))?;
            }
        }
        change.write_tails(stopped, |f| change.off.contains(&f), false)?;
        let maps = stopped.maps()?;
        for taken in &change.taken {
            let there = taken.ledger.texts_in(&maps);
            text::put_back(stopped, &taken.patches, &there)?;
        }
        self.move_threads(stopped, &header, &maps, &change.boards)?;
        self.move_threads(stopped, &header, &maps, &change.moves)?;
        for put in &change.put {
            let there = put.ledger.texts_in(&maps);
            text::put_in(stopped, &put.patches, &there)?;
        }
        change.write_tails(stopped, |f| change.on.contains(&f), true)?;
        python::switch(&self.shared, stopped, &change.off, &change.on)?;
        Ok(stopped.stop_time())
    }

    /// Threads, and handlers that will return, that stand where `pairs` says that they cannot stay.
    fn move_threads(
        &self,
        stopped: &mut Stopped,
        header: &shm::Header,
        maps: &[Mapping],
        pairs: &[(u64, u64)],
    ) -> Result<()> {
        if pairs.is_empty() {
            return Ok(());
        }
        let mut frames = sigframe::Frames::of(maps.to_vec());
        let mut stacks = Vec::new();
        let ours = |gs: u64| self.is_ours(gs);
        for tid in stopped.threads().to_vec() {
            let mut regs = stopped.regs(tid)?;
            if let Some(moved) = lookup(pairs, regs.rip) {
                regs.rip = moved;
                stopped.set_regs(tid, regs)?;
            }
            stacks.push(regs.rsp);
            if let Some(running) = coroutines::running(&self.shared, header, regs.gs_base) {
                frames.add_end(running.end);
                stacks.push(running.own);
            }
            for end in goroutines::stack_ends(stopped, &regs) {
                frames.add_end(end);
            }
            if let Some((end, left)) = goroutines::slow_stack(stopped, &regs, ours) {
                frames.add_end(end);
                stacks.extend(left);
            }
        }
        for stack in coroutines::suspended(&self.shared, header) {
            frames.add_end(stack.end);
            stacks.push(stack.start);
        }
        for rsp in stacks {
            frames.translate(stopped, rsp, |pc| lookup(pairs, pc))?;
        }
        stopped.flush()
    }

    /// Takes a function's entry out of the table of probed ones, or puts it back to its place there.
    fn note_entry(&self, header: &shm::Header, address: u64, probed: bool) -> Result<()> {
        const AWAY: u64 = 1 << 63;
        let mask = header.table_mask;
        let mut index = shm::table_index(address, mask);
        for _ in 0..=mask {
            let at = shm::TABLE_OFFSET + index * 8;
            let mut word = [0; 8];
            self.shared.read_bytes(at, &mut word)?;
            let word = u64::from_le_bytes(word);
            if word == 0 {
                break;
            }
            if word & !AWAY == address {
                let word = if probed { address } else { address | AWAY };
                return self.shared.write(at, &word.to_le_bytes());
            }
            index = (index + 1) & mask;
        }
        Ok(())
    }
}
