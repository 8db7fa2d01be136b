//! Numbers of processes and threads: a target knows itself by those of its own PID namespace, and its fork children may be in
//! others. What stands in the shared memory is translated here, and nowhere else, before anything is done by it.
//!
//! ```text
//! the target says    process 7, thread 9                       its word; may be nobody's here, or a stranger's
//! the kernel says    who has this very memory mapped           carriers: only these are ever meant
//!                    what they are called inside (NSpid)       the one that calls itself 7
//!                    where they wait                           for a thread at a gate, if several call themselves 7
//! ```

use std::time::Duration;

use thalweg_abi as shm;

use crate::error::Result;
use crate::memory::{self, Identity, Shared};
use crate::proc::{self, Pid, RemoteAddr, Tid};

/// Who carries one region.
#[derive(Clone, Copy, Debug)]
pub struct Carriers {
    identity: Identity,
    /// Where it is mapped: the same in all of them, because they are fork children of one.
    start: RemoteAddr,
    /// Whether some of them are in PID namespaces of their own.
    divided: bool,
}

impl Carriers {
    pub fn of(shared: &Shared, header: &shm::Header) -> Result<Carriers> {
        Ok(Carriers {
            identity: Identity::of_shared(shared)?,
            start: RemoteAddr(header.base + shm::PRIVATE_SIZE),
            divided: header.inner_pid != header.pid || header.namespaces > 0,
        })
    }

    fn has(&self, pid: Pid) -> bool {
        memory::carries(pid, self.identity, self.start)
    }

    /// Those that call themselves what `inner` says: one at most, unless two namespaces have the number.
    pub fn called(&self, inner: u32) -> Vec<Pid> {
        let inner = shm::number(inner);
        let same = Pid(inner as i32);
        let is_it = |pid: Pid| proc::inner_number(pid, pid.into()) == Some(inner);
        // Nearly always they are where we are.
        if !self.divided && self.has(same) && is_it(same) {
            return vec![same];
        }
        let all = memory::carriers(self.identity).into_iter();
        all.filter(|&pid| is_it(pid)).collect()
    }

    /// The thread that waits at the futex word at `word`, by what it calls itself. None if there is none, which is not to be
    /// waited for, and not to be guessed.
    pub fn waiting(&self, inner_pid: u32, inner_tid: u32, word: u64) -> Option<(Pid, Tid)> {
        let candidates: Vec<(Pid, Tid)> = self
            .called(inner_pid)
            .into_iter()
            .filter_map(|pid| Some((pid, thread_called(pid, inner_tid)?)))
            .collect();
        if let [one] = candidates[..] {
            return Some(one);
        }
        // It has posted, and goes to sleep at this very moment.
        const TRIES: u32 = 100;
        for _ in 0..TRIES {
            let mut there = candidates
                .iter()
                .filter(|&&(pid, tid)| waits_at(pid, tid, word));
            if let Some(one) = there.next() {
                return Some(*one);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

/// The thread of a process that calls itself `inner`.
pub(crate) fn thread_called(pid: Pid, inner: u32) -> Option<Tid> {
    let is_it = |tid: &Tid| proc::inner_number(pid, *tid) == Some(inner);
    let same = Tid(inner as i32);
    let tasks = proc::tasks(pid).ok()?;
    if tasks.contains(&same) && is_it(&same) {
        return Some(same);
    }
    tasks.into_iter().find(is_it)
}

fn waits_at(pid: Pid, tid: Tid, word: u64) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall"));
    let line = line.unwrap_or_default();
    let mut words = line.split_whitespace();
    words.next() == Some(&libc::SYS_futex.to_string())
        && words.next() == Some(&format!("{word:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_found_by_its_own_number_and_by_where_it_waits() {
        let own = Pid(std::process::id() as i32);
        static WORD: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let address = WORD.as_ptr() as u64;
        let (say, said) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            // SAFETY: no arguments.
            say.send(unsafe { libc::gettid() }).unwrap();
            while WORD.load(std::sync::atomic::Ordering::SeqCst) == 0 {
                // SAFETY: the word is a static.
                unsafe {
                    libc::syscall(libc::SYS_futex, WORD.as_ptr(), libc::FUTEX_WAIT, 0, 0, 0, 0);
                }
            }
        });
        let tid = Tid(said.recv().unwrap());
        let inner = proc::inner_number(own, tid).unwrap();
        assert_eq!(thread_called(own, inner), Some(tid));
        assert_eq!(thread_called(own, u32::MAX), None);
        let waits = (0..10_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            waits_at(own, tid, address)
        });
        assert!(waits);
        assert!(!waits_at(own, tid, address + 4));
        WORD.store(1, std::sync::atomic::Ordering::SeqCst);
        // SAFETY: the word is a static.
        unsafe { libc::syscall(libc::SYS_futex, WORD.as_ptr(), libc::FUTEX_WAKE, 1, 0, 0, 0) };
        waiter.join().unwrap();
    }
}
