//! What thalweg does to a target that is not the target's: how long its processes stood, and its threads waited, for us.
//!
//! The sums stand in the header of the region ([`shm::Held`]), so that they outlive the controller. A thread's own part
//! stands in its slot: the agent takes it out of the first wait that it finds afterwards. It is written before the process
//! goes on, so no wait can end before it is known.
//!
//! ```text
//!   cc1     |exec ------- stands, is analysed -------| runs ------| ends
//!   gcc     wait4 ................................................| goes on: its wait is longer by what cc1 stood
//! ```
//!
//! Others wait for a process that stands. Their waits are longer because of us where they can do nothing but wait for that
//! very process: `wait4` and `waitid` for it, or a `read` from a pipe that it writes to. And so on from there, if whoever
//! waits has no other thread. What cannot be known stays where it is: a wait for one of several children, `poll`, locks.

use std::collections::HashSet;
use std::mem::offset_of;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use thalweg_abi as shm;

use crate::clock;
use crate::error::Result;
use crate::memory::{IntoBytes, Shared};
use crate::proc::{self, Pid, Tid};
use crate::thread_table;
use crate::tracee::AtEnd;

/// A stop that is shorter keeps nobody waiting who would notice: asking takes some 20 us a thread.
const WORTH_ASKING: Duration = Duration::from_millis(1);
/// Processes that wait for one that waits for one that stands.
const LONGEST_CHAIN: usize = 16;
/// As many threads are asked what they wait for.
const MOST_WAITERS: usize = 64;
const MOST_DESCRIPTORS: usize = 64;

/// Notes a stop in the region when it ends. `clocks_run`: the threads have clocks there, which do not stand still.
pub fn account(shared: &Shared, clocks_run: bool) -> Result<AtEnd> {
    let account = Account {
        shared: shared.try_clone()?,
        clocks_run,
    };
    Ok(Box::new(move |pid, stood| account.stop_ends(pid, stood)))
}

/// Where a stop is noted when it ends.
struct Account {
    shared: Shared,
    /// Its threads have clocks, which have run on meanwhile.
    clocks_run: bool,
}

impl Account {
    /// Right before the process goes on.
    fn stop_ends(&self, pid: Pid, stood: Duration) -> Result<()> {
        let shared = &self.shared;
        let header = shared.header()?;
        let now = clock::ticks();
        let ticks = to_ticks(&header, stood);
        let since = now.saturating_sub(ticks);
        if self.clocks_run {
            let inner = match header.pid == pid.0 as u32 {
                true => header.inner_pid,
                false => pid.0 as u32,
            };
            for slot in thread_table::slots(shared, &header) {
                let (index, slot) = slot?;
                if slot.root != 0 && shm::number(slot.pid) == inner {
                    hold(shared, index, &slot, since, now)?;
                }
            }
        }
        let waited_for = match stood > WORTH_ASKING {
            true => hold_waiters(pid, since, now),
            false => 0,
        };
        change(shared, |held| {
            held.stops = held.stops.saturating_add(1);
            held.ticks = held.ticks.saturating_add(ticks);
            held.longest = held.longest.max(ticks);
            held.waited_for = held.waited_for.saturating_add(waited_for);
        })
    }
}

/// A stop of which the region could not be told when it ended.
pub fn note_stop(header: &mut shm::Header, stood: Duration) {
    let ticks = to_ticks(header, stood);
    header.held.stops += 1;
    header.held.ticks += ticks;
    header.held.longest = header.held.longest.max(ticks);
}

/// Right before a thread that has waited at a gate since then goes on. It takes its own wait out by itself.
pub fn gate_ends(shared: &Shared, pid: Pid, since: Instant) -> Result<()> {
    let header = shared.header()?;
    let waited = since.elapsed();
    let ticks = to_ticks(&header, waited);
    let now = clock::ticks();
    let waited_for = match waited > WORTH_ASKING && is_alone(pid) {
        true => hold_waiters(pid, now.saturating_sub(ticks), now),
        false => 0,
    };
    change(shared, |held| {
        held.gates = held.gates.saturating_add(1);
        held.gate_ticks = held.gate_ticks.saturating_add(ticks);
        held.longest_gate = held.longest_gate.max(ticks);
        held.waited_for = held.waited_for.saturating_add(waited_for);
    })
}

fn to_ticks(header: &shm::Header, time: Duration) -> u64 {
    ((time.as_nanos() * u128::from(header.ticks_per_ns)) >> 32) as u64
}

fn change(shared: &Shared, change: impl FnOnce(&mut shm::Held)) -> Result<()> {
    let place = offset_of!(shm::Header, held) as u64;
    let mut held: shm::Held = shared.read(place)?;
    change(&mut held);
    shared.write(place, held.as_bytes())
}

/// The thread of this slot could not go on from `since` to `now`. Returns what was not known yet.
fn hold(shared: &Shared, index: u64, slot: &shm::SharedSlot, since: u64, now: u64) -> Result<u64> {
    let since = since.max(slot.held_until);
    let Some(ticks) = now.checked_sub(since) else {
        return Ok(0);
    };
    let at = shm::SLOTS_OFFSET + index * shm::PAGE;
    let held = slot.held.wrapping_add(ticks);
    let place = at + offset_of!(shm::SharedSlot, held) as u64;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&held.to_le_bytes());
    bytes[8..].copy_from_slice(&now.to_le_bytes());
    shared.write(place, &bytes)?;
    Ok(ticks)
}

/// The regions of the recording, in which somebody may wait for a process of another one.
static REGIONS: Mutex<Vec<(u64, Shared)>> = Mutex::new(Vec::new());

/// A region whose threads are looked at while this lives.
pub struct Listed(u64);

pub fn list(shared: &Shared) -> Result<Listed> {
    let shared = shared.try_clone()?;
    let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let number = regions.last().map_or(0, |(number, _)| number + 1);
    regions.push((number, shared));
    Ok(Listed(number))
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
        regions.retain(|(number, _)| *number != self.0);
    }
}

/// A thread was followed from the counter value `since` on, and stood now and then, until it became another program just now: what is
/// open in its old one has not waited for that.
pub fn followed(pid: Pid, tid: Tid, since: u64) {
    let regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = candidates(&regions)
        .into_iter()
        .find(|(_, _, slot)| slot.pid == pid.0 as u32 && slot.tid == tid.0 as u32);
    if let Some((shared, index, slot)) = found {
        // The process is another by now: what cannot be written is of no use any more.
        let _ = hold(shared, index, &slot, since, clock::ticks());
    }
}

/// The threads of all regions, as far as their numbers are ours, which they are only outside of namespaces.
fn candidates(regions: &[(u64, Shared)]) -> Vec<(&Shared, u64, shm::SharedSlot)> {
    let mut found = Vec::new();
    let mut known = HashSet::new();
    // A process that has become another program has a slot in its old region too: the younger one is meant.
    for (_, shared) in regions.iter().rev() {
        let Ok(header) = shared.header() else {
            continue;
        };
        for (index, slot) in thread_table::slots(shared, &header).flatten() {
            let ours = shm::namespace(slot.pid) == 0 && header.pid == header.inner_pid;
            if slot.root != 0 && ours && known.insert((slot.pid, slot.tid)) {
                found.push((shared, index, slot));
            }
            if found.len() >= MOST_WAITERS {
                return found;
            }
        }
    }
    found
}

/// Threads that wait for `pid`, which stood from `since` to `now`, and those that wait for them.
fn hold_waiters(pid: Pid, since: u64, now: u64) -> u64 {
    let regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let candidates = candidates(&regions);
    let mut sum = 0u64;
    let mut chain = vec![(pid, since)];
    let mut step = 0;
    while let Some(&(pid, since)) = chain.get(step) {
        step += 1;
        if step > LONGEST_CHAIN {
            break;
        }
        for (shared, index, slot) in &candidates {
            let waiter = Pid(slot.pid as i32);
            if chain.iter().any(|(known, _)| *known == waiter) {
                continue;
            }
            if !waits_for(waiter, Tid(slot.tid as i32), pid) {
                continue;
            }
            // Since its last event it has done nothing else.
            let since = since.max(slot.last.wrapping_add(slot.off));
            if let Ok(ticks) = hold(shared, *index, slot, since, now) {
                sum = sum.saturating_add(ticks);
            }
            if is_alone(waiter) {
                chain.push((waiter, since));
            }
        }
    }
    sum
}

fn is_alone(pid: Pid) -> bool {
    proc::tasks(pid).is_ok_and(|tasks| tasks.len() == 1)
}

/// Whether a thread can do nothing before `other` does something.
fn waits_for(pid: Pid, tid: Tid, other: Pid) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")) else {
        return false;
    };
    let mut words = text.split_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<i64>().ok()) else {
        return false;
    };
    let mut arg = || {
        let word = words.next().unwrap_or_default();
        u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(u64::MAX)
    };
    match number {
        libc::SYS_wait4 => match arg() as i32 {
            child @ 1.. => child == other.0,
            _ => is_only_child(pid, other),
        },
        libc::SYS_waitid => match (arg() as libc::idtype_t, arg() as i32) {
            (libc::P_PID, child) => child == other.0,
            _ => is_only_child(pid, other),
        },
        libc::SYS_read => is_fed_by(pid, arg() as i32, other),
        _ => false,
    }
}

fn is_only_child(pid: Pid, other: Pid) -> bool {
    proc::children(pid) == [other]
}

/// Whether what this descriptor reads from is a pipe that the other process may write to.
fn is_fed_by(pid: Pid, descriptor: i32, other: Pid) -> bool {
    let Ok(pipe) = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")) else {
        return false;
    };
    if !pipe.to_string_lossy().starts_with("pipe:") {
        return false;
    }
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{other}/fd")) else {
        return false;
    };
    let mut paths = descriptors.flatten().take(MOST_DESCRIPTORS);
    paths.any(|entry| {
        let path = entry.path();
        // The link's own mode says what it was opened for.
        let writes = std::fs::symlink_metadata(&path).is_ok_and(|meta| {
            use std::os::unix::fs::PermissionsExt;
            meta.permissions().mode() & 0o200 != 0
        });
        writes && std::fs::read_link(&path).is_ok_and(|file| file == pipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn own() -> (Pid, Tid) {
        // SAFETY: no preconditions.
        let tid = unsafe { libc::gettid() };
        (Pid(std::process::id() as i32), Tid(tid))
    }

    /// Until a thread of this process waits for `other`, or ten seconds have passed.
    fn is_waited_for(tid: Tid, other: Pid) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if waits_for(own().0, tid, other) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    #[test]
    fn whom_a_thread_waits_for_is_known_by_its_system_call() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid(child.id() as i32);
        let (tell, told) = std::sync::mpsc::channel();
        let input = child.stdin.take().unwrap();
        let mut output = child.stdout.take().unwrap();
        let waiter = std::thread::spawn(move || {
            tell.send(own().1).unwrap();
            std::io::Read::read_to_end(&mut output, &mut Vec::new()).unwrap();
            child.wait().unwrap();
        });
        let tid = told.recv().unwrap();
        assert!(is_waited_for(tid, pid), "it reads what the child writes");
        let stranger = Pid(1);
        assert!(!waits_for(own().0, tid, stranger));
        assert!(!waits_for(own().0, own().1, pid), "this thread runs");
        // What is written is not read from there.
        assert!(!is_fed_by(own().0, 0, pid));
        drop(input);
        waiter.join().unwrap();
    }
}
