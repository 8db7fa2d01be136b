//! Whose trees there are: the slots of threads that live or ended lately, and the table of those that ended before.
//!
//! The target goes on meanwhile. An entry that is moved from its slot to the table while we read is met in both places
//! or, if the slots were read after the table, in neither: hence slots first, and one that is met twice is known by its
//! root and its start.

use std::collections::HashSet;

use thalweg_abi as shm;

use crate::error::Result;
use crate::memory::Shared;

/// A tree and the thread it belongs to, by the target's own numbers.
pub struct ThreadEntry {
    /// The slot that has the thread's stack; `None` when it has ended and all its activations with it.
    pub slot: Option<u64>,
    /// Address of the root node.
    pub root: u64,
    /// Counter values: when its (first) thread began, and when it was last known to do something.
    pub start: u64,
    pub last: u64,
    /// `None` when it has ended and its slot is another's.
    pub clock: Option<ThreadClock>,
    /// See `shm::process`.
    pub pid: u32,
    pub tid: u32,
    pub creator: Option<(u32, u32)>,
    /// The creator's functions at that moment, innermost first.
    pub creators: Vec<u32>,
    pub flags: u32,
    /// How many threads the tree has had one after the other.
    pub threads: u64,
    /// As the thread itself knew it, and when that was.
    pub name: String,
    pub named: u64,
}

/// Where a thread's own clock stands against the counter, and what its processor time was when it last asked.
#[derive(Clone, Copy)]
pub struct ThreadClock {
    pub last: u64,
    pub off: u64,
    pub read_ticks: u64,
    pub read_cpu: u64,
    pub uncharged: i64,
    pub terminal_wait: u64,
    /// Ticks for which a controller kept it from running, and which no wait is without yet.
    pub held: u64,
}

impl ThreadClock {
    fn from_slot(slot: &shm::SharedSlot) -> ThreadClock {
        ThreadClock {
            last: slot.last,
            off: slot.off,
            read_ticks: slot.read_ticks,
            read_cpu: slot.read_cpu,
            uncharged: slot.uncharged,
            terminal_wait: slot.terminal_wait,
            held: slot.held.wrapping_sub(slot.held_out),
        }
    }
}

impl ThreadEntry {
    /// Whether the user wants to see it.
    pub fn is_chosen(&self, header: &shm::Header) -> bool {
        let chosen = self.flags & (shm::SLOT_IGNORED | shm::SLOT_AT_ATTACH) == shm::SLOT_AT_ATTACH;
        header.flags & shm::HEADER_CHOSEN == 0 || chosen
    }
}

pub fn slots(
    shared: &Shared,
    header: &shm::Header,
) -> impl Iterator<Item = Result<(u64, shm::SharedSlot)>> {
    (0..u64::from(header.next_slot)).map(|index| {
        let slot = shared.read(shm::SLOTS_OFFSET + index * shm::PAGE)?;
        Ok((index, slot))
    })
}

/// The processes that have slots.
pub fn pids(shared: &Shared, header: &shm::Header) -> Result<HashSet<u32>> {
    let mut pids = HashSet::new();
    for slot in slots(shared, header) {
        let (_, slot) = slot?;
        if slot.root != 0 {
            pids.insert(slot.pid);
        }
    }
    Ok(pids)
}

/// All entries, in the order in which their threads began.
pub fn read(shared: &Shared) -> Result<Vec<ThreadEntry>> {
    let header = shared.header()?;
    let mut entries = Vec::new();
    for slot in slots(shared, &header) {
        let (index, slot) = slot?;
        if slot.root != 0 {
            entries.push(from_slot(index, &slot));
        }
    }
    let known: HashSet<(u64, u64)> = entries.iter().map(|e| (e.root, e.start)).collect();
    let ended = u64::from(shared.header()?.ended);
    for entry in shared.read_all::<shm::Ended>(shm::ENDED_OFFSET, ended)? {
        if entry.root != 0 && !known.contains(&(entry.root, entry.start)) {
            entries.push(from_ended(&entry));
        }
    }
    entries.sort_by_key(|entry| entry.start);
    Ok(entries)
}

fn from_slot(index: u64, slot: &shm::SharedSlot) -> ThreadEntry {
    ThreadEntry {
        slot: Some(index),
        root: slot.root,
        start: slot.first_start,
        last: slot.last.wrapping_add(slot.off).max(slot.start),
        clock: Some(ThreadClock::from_slot(slot)),
        pid: slot.pid,
        tid: slot.tid,
        creator: (slot.creator_tid != 0).then_some((slot.creator_pid, slot.creator_tid)),
        creators: known_functions(&slot.creators),
        flags: slot.flags,
        threads: slot.threads.max(1),
        name: text(&slot.name),
        named: slot.named,
    }
}

fn from_ended(entry: &shm::Ended) -> ThreadEntry {
    ThreadEntry {
        slot: None,
        root: entry.root,
        start: entry.start,
        last: entry.end,
        clock: None,
        pid: entry.pid,
        tid: entry.tid,
        creator: (entry.creator_tid != 0).then_some((entry.creator_pid, entry.creator_tid)),
        creators: known_functions(&entry.creators),
        flags: entry.flags,
        threads: entry.threads.max(1),
        name: text(&entry.name),
        named: entry.end,
    }
}

fn known_functions(functions: &[u32]) -> Vec<u32> {
    let known = functions.iter().take_while(|f| **f != shm::NO_FUNCTION);
    known.copied().collect()
}

fn text(name: &[u8; 16]) -> String {
    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..len]).into_owned()
}
