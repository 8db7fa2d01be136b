//! Who waits for a person: threads that are in a system call which reads from a terminal and nothing else.
//!
//! The agent measures waits, but not what for. Here the controller checks, ten times a second, threads that have had no
//! event since the last update, and notes in their slots that the wait which began at their last event is of this kind. A
//! person takes longer than that; input that comes faster is another program's.

use std::collections::HashMap;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use thalweg_abi as shm;

use crate::error::Result;
use crate::memory::Shared;
use crate::proc::{Pid, Tid};
use crate::thread_table;

/// Of so many threads in one update: a process that talks to a person has few.
const THREADS_AT_ONCE: usize = 64;
/// Calls that wait for more descriptors than this are some server's.
const MOST_DESCRIPTORS: u64 = 16;

/// The last event of each thread at the last update, by slot.
#[derive(Default)]
pub struct Terminals {
    last_events: HashMap<u64, u64>,
}

impl Terminals {
    /// `ours`: our numbers for a process and a thread of the target's.
    pub fn update(
        &mut self,
        shared: &Shared,
        header: &shm::Header,
        ours: impl Fn(u32, u32) -> Option<(Pid, Tid)>,
    ) -> Result<()> {
        let mut asked = 0;
        for slot in thread_table::slots(shared, header) {
            let (index, slot) = slot?;
            let before = self.last_events.insert(index, slot.last);
            if slot.root == 0 || before != Some(slot.last) || slot.terminal_wait == slot.last {
                continue;
            }
            asked += 1;
            if asked > THREADS_AT_ONCE {
                break;
            }
            let Some((pid, tid)) = ours(slot.pid, slot.tid) else {
                continue;
            };
            if waits_for_terminal(pid, tid) {
                let at = shm::SLOTS_OFFSET + index * shm::PAGE;
                // The thread may have gone on meanwhile: then it has another last event, and this means nothing.
                let field = at + offset_of!(shm::SharedSlot, terminal_wait) as u64;
                shared.write(field, &slot.last.to_le_bytes())?;
            }
        }
        Ok(())
    }
}

fn waits_for_terminal(pid: Pid, tid: Tid) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")) else {
        return false;
    };
    let mut words = text.split_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<i64>().ok()) else {
        return false;
    };
    let mut args = [0u64; 2];
    for (arg, word) in args.iter_mut().zip(words) {
        let Ok(value) = u64::from_str_radix(word.trim_start_matches("0x"), 16) else {
            return false;
        };
        *arg = value;
    }
    let descriptors = match number {
        libc::SYS_read | libc::SYS_readv => Some(vec![args[0] as i32]),
        libc::SYS_poll | libc::SYS_ppoll => polled(pid, args),
        libc::SYS_select | libc::SYS_pselect6 => selected(pid, args),
        _ => None,
    };
    descriptors.is_some_and(|all| !all.is_empty() && all.iter().all(|&fd| is_terminal(pid, fd)))
}

fn is_terminal(pid: Pid, descriptor: i32) -> bool {
    let Ok(file) = std::fs::read_link(format!("/proc/{pid}/fd/{descriptor}")) else {
        return false;
    };
    let name = file.to_string_lossy();
    name.starts_with("/dev/pts/")
        || name.starts_with("/dev/tty")
        || name == "/dev/console"
        || name == "/dev/ptmx"
}

fn read_memory(pid: Pid, address: u64, bytes: &mut [u8]) -> Option<()> {
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    memory.read_exact_at(bytes, address).ok()
}

/// `poll(fds, count)`: those that are looked at for input.
fn polled(pid: Pid, [fds, count]: [u64; 2]) -> Option<Vec<i32>> {
    if count > MOST_DESCRIPTORS {
        return None;
    }
    let mut bytes = vec![0; count as usize * 8];
    read_memory(pid, fds, &mut bytes)?;
    let fds = bytes.chunks_exact(8).map(|entry| {
        let fd = i32::from_le_bytes(entry[..4].try_into().expect("four bytes"));
        let events = i16::from_le_bytes(entry[4..6].try_into().expect("two bytes"));
        (fd, events)
    });
    Some(
        fds.filter(|(fd, events)| *fd >= 0 && *events != 0)
            .map(|(fd, _)| fd)
            .collect(),
    )
}

/// `select(count, readable)`: the descriptors in the set.
fn selected(pid: Pid, [count, readable]: [u64; 2]) -> Option<Vec<i32>> {
    const BITS: u64 = 1024;
    if count > BITS || readable == 0 {
        return None;
    }
    let mut bytes = vec![0; count.div_ceil(64) as usize * 8];
    read_memory(pid, readable, &mut bytes)?;
    let is_in = |fd: &i32| bytes[*fd as usize / 8] >> (fd % 8) & 1 != 0;
    Some((0..count as i32).filter(is_in).collect())
}
