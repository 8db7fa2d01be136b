//! Whose trees there are: the slots of threads that live or ended lately, and the table of those that ended before.
//!
//! The target goes on meanwhile. An account that is moved from its slot to the table while we read is met in both places
//! or, if the slots were read after the table, in neither: hence slots first, and one that is met twice is known by its
//! root and its start.

use std::collections::HashSet;

use thalweg_abi as shm;

use crate::error::Result;
use crate::memory::{Shared, zeroed};

/// A tree and the thread it belongs to, by the target's own numbers.
pub struct Account {
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
    fn of(slot: &shm::SharedSlot) -> ThreadClock {
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

impl Account {
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

/// All accounts, in the order in which their threads began.
pub fn all(shared: &Shared) -> Result<Vec<Account>> {
    let header = shared.header()?;
    let mut accounts = Vec::new();
    for slot in slots(shared, &header) {
        let (index, slot) = slot?;
        if slot.root != 0 {
            accounts.push(of_slot(index, &slot));
        }
    }
    let known: HashSet<(u64, u64)> = accounts.iter().map(|a| (a.root, a.start)).collect();
    let ended = u64::from(shared.header()?.ended);
    let bytes = shared.read_vec(shm::ENDED_OFFSET, ended * shm::ENDED_SIZE)?;
    for entry in bytes.chunks_exact(shm::ENDED_SIZE as usize) {
        let entry = ended_entry(entry);
        if entry.root != 0 && !known.contains(&(entry.root, entry.start)) {
            accounts.push(of_ended(&entry));
        }
    }
    accounts.sort_by_key(|account| account.start);
    Ok(accounts)
}

fn ended_entry(bytes: &[u8]) -> shm::Ended {
    use std::mem::offset_of;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut entry: shm::Ended = zeroed();
    entry.root = word(offset_of!(shm::Ended, root));
    entry.start = word(offset_of!(shm::Ended, start));
    entry.end = word(offset_of!(shm::Ended, end));
    entry.pid = half(offset_of!(shm::Ended, pid));
    entry.tid = half(offset_of!(shm::Ended, tid));
    entry.creator_pid = half(offset_of!(shm::Ended, creator_pid));
    entry.creator_tid = half(offset_of!(shm::Ended, creator_tid));
    for (index, function) in entry.creators.iter_mut().enumerate() {
        *function = half(offset_of!(shm::Ended, creators) + index * 4);
    }
    entry.flags = half(offset_of!(shm::Ended, flags));
    entry.threads = word(offset_of!(shm::Ended, threads));
    let name = offset_of!(shm::Ended, name);
    entry.name.copy_from_slice(&bytes[name..name + 16]);
    entry
}

fn of_slot(index: u64, slot: &shm::SharedSlot) -> Account {
    Account {
        slot: Some(index),
        root: slot.root,
        start: slot.first_start,
        last: slot.last.wrapping_add(slot.off).max(slot.start),
        clock: Some(ThreadClock::of(slot)),
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

fn of_ended(entry: &shm::Ended) -> Account {
    Account {
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
