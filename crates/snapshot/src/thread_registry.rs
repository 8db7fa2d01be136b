//! What /proc says about threads and processes while they live, kept for when they are gone: who was there when, and
//! under what name. The trees come from shared memory (`snapshot`); this gives them faces.
//!
//! Inside a PID namespace of its own a target, or a fork child, knows its threads by other numbers than we do. The shared memory has
//! the target's; everything that leaves here has ours (`numbers.rs`), and who was never seen from outside is read no further.

use std::collections::{HashMap, HashSet};

use thalweg_abi as shm;
use thalweg_model as model;

use crate::clock;
use crate::error::Result;
use crate::memory::Shared;
use crate::numbers::Carriers;
use crate::proc::{self, KernelCounts, Pid, Tid};
use crate::terminal::Terminals;
use crate::thread_table;

/// A process that is found nowhere so often has ended unseen.
const MOST_SEARCHES: u32 = 5;

/// How many names are read in one update: it is meant to be cheap also where there are thousands of threads.
const NAMES_AT_ONCE: usize = 256;

/// When threads were last seen alive, in ticks; and how they and their processes were called.
#[derive(Default)]
pub struct ThreadRegistry {
    threads: HashMap<(u32, u32), Seen>,
    processes: HashMap<u32, (Option<u32>, Vec<String>)>,
    /// The target's numbers for processes -> ours, of all that carry its memory or did; and for threads, where they differ.
    processes_outside: HashMap<u32, u32>,
    threads_outside: HashMap<(u32, u32), u32>,
    /// How often a process was not found.
    searches: HashMap<u32, u32>,
    /// Processes whose end was seen, when that was, and the processor time of their first threads.
    ends: HashMap<u32, (u64, Option<u64>)>,
    terminals: Terminals,
}

#[derive(Default)]
struct Seen {
    at: u64,
    name: String,
    /// When its name was read, and with it how long it had been on a processor.
    named: u64,
    cpu: u64,
    /// What the kernel had counted for it, when that was first seen and when last.
    first: Option<(u64, KernelCounts)>,
    counts: Option<KernelCounts>,
}

impl ThreadRegistry {
    /// Looks at the threads of every process that has a slot. Cheap enough to be done ten times a second.
    pub fn update(&mut self, shared: &Shared) -> Result<()> {
        let header = shared.header()?;
        let mut inside: Vec<u32> = vec![header.inner_pid];
        inside.extend(thread_table::pids(shared, &header)?);
        inside.sort_unstable();
        inside.dedup();
        self.translate(shared, &header, &inside)?;
        let now = clock::ticks();
        for inner in inside {
            if let Some(pid) = self.known(inner) {
                self.update_threads(pid, now);
            }
        }
        let mut terminals = std::mem::take(&mut self.terminals);
        let updated = terminals.update(shared, &header, |pid, tid| {
            Some((self.known(pid)?, Tid(self.thread(pid, tid) as i32)))
        });
        self.terminals = terminals;
        updated
    }

    /// A process has ended, or has become another program.
    pub fn ended(&mut self, pid: Pid, ticks: u64, processor_time: Option<u64>) {
        self.ends.insert(pid.0 as u32, (ticks, processor_time));
    }

    /// When a process ended, in ticks, if somebody saw it.
    pub fn end(&self, pid: u32) -> Option<u64> {
        self.ends.get(&pid).map(|(ticks, _)| *ticks)
    }

    fn update_threads(&mut self, process: Pid, now: u64) {
        let pid = process.0 as u32;
        let tasks = proc::tasks(process).unwrap_or_default();
        // All of them in turn: those whose name was read longest ago come first.
        let mut order = Vec::with_capacity(tasks.len());
        for tid in tasks {
            let seen = self.threads.entry((pid, tid.0 as u32)).or_default();
            seen.at = now;
            order.push((seen.named, tid));
        }
        if order.len() > NAMES_AT_ONCE {
            order.select_nth_unstable(NAMES_AT_ONCE);
            order.truncate(NAMES_AT_ONCE);
        }
        for (_, tid) in order {
            if let Ok(name) = proc::thread_name(process, tid)
                && let Some(seen) = self.threads.get_mut(&(pid, tid.0 as u32))
            {
                seen.name = name;
                seen.named = now;
                seen.cpu = proc::processor_time(process, tid).unwrap_or(seen.cpu);
                if let Some(counts) = proc::kernel_counts(process, tid) {
                    seen.first.get_or_insert((now, counts));
                    seen.counts = Some(counts);
                }
            }
        }
        if let Some(seen) = read_process(process) {
            self.processes.insert(pid, seen);
        }
    }

    /// When a thread that began at `start` was last seen alive, in ticks.
    pub(crate) fn last_seen(&self, pid: u32, tid: u32, start: u64) -> Option<u64> {
        let seen = self.threads.get(&(pid, tid))?;
        (seen.at >= start).then_some(seen.at)
    }

    /// How long a thread that is gone had been on a processor, in nanoseconds, when that was last seen, if it was after
    /// the counter value `since`.
    pub fn processor_time(&self, pid: u32, tid: u32, since: u64) -> Option<u64> {
        if let Some((_, Some(at_end))) = self.ends.get(&pid)
            && pid == tid
        {
            return Some(*at_end);
        }
        let seen = self.threads.get(&(pid, tid))?;
        (seen.named > since).then_some(seen.cpu)
    }

    /// The name that a thread was last seen with, if that was at `since` or later.
    pub fn name(&self, pid: u32, tid: u32, since: u64) -> Option<&str> {
        let seen = self.threads.get(&(pid, tid))?;
        (seen.named >= since && !seen.name.is_empty()).then_some(seen.name.as_str())
    }

    /// What the kernel counted for a thread, as last seen. `since`: only from then on, for a thread that was there before; not
    /// known if there was no update until a while later.
    pub fn kernel_counts(
        &self,
        pid: u32,
        tid: u32,
        since: Option<std::ops::Range<u64>>,
    ) -> Option<model::KernelCounts> {
        let seen = self.threads.get(&(pid, tid))?;
        let last = seen.counts?;
        let before = match since {
            None => KernelCounts::default(),
            Some(moment) => {
                let (at, counts) = seen.first?;
                if !moment.contains(&at) {
                    return None;
                }
                counts
            }
        };
        Some(model::KernelCounts {
            minor_faults: last.minor_faults.saturating_sub(before.minor_faults),
            major_faults: last.major_faults.saturating_sub(before.major_faults),
            voluntary_switches: last
                .voluntary_switches
                .saturating_sub(before.voluntary_switches),
            involuntary_switches: last
                .involuntary_switches
                .saturating_sub(before.involuntary_switches),
        })
    }

    pub fn command(&self, pid: u32) -> Option<&[String]> {
        self.processes.get(&pid).map(|(_, command)| &**command)
    }

    /// Our number for a process that calls itself `inner`; its own where it was never seen from outside.
    pub fn process(&self, inner: u32) -> u32 {
        let ours = self.processes_outside.get(&inner).copied();
        ours.unwrap_or(shm::number(inner))
    }

    /// The same for those who act by it.
    pub fn known(&self, inner: u32) -> Option<Pid> {
        let ours = self.processes_outside.get(&inner)?;
        Some(Pid(*ours as i32))
    }

    /// A process that carries the memory, and what it calls itself.
    pub fn met(&mut self, inner: u32, pid: Pid) {
        self.processes_outside.insert(inner, pid.0 as u32);
    }

    /// Whether this is a process that carries the memory, or did.
    pub fn is_ours(&self, pid: u32) -> bool {
        self.processes_outside.values().any(|ours| *ours == pid)
    }

    /// Whether some are in a PID namespace of their own.
    pub(crate) fn is_divided(&self) -> bool {
        self.processes_outside
            .iter()
            .any(|(inner, ours)| inner != ours)
    }

    /// Our number for a thread; its own where it was never seen from outside.
    pub fn thread(&self, inner_pid: u32, inner_tid: u32) -> u32 {
        self.threads_outside
            .get(&(inner_pid, inner_tid))
            .copied()
            .unwrap_or(inner_tid)
    }

    pub(crate) fn knows_thread(&self, inner_pid: u32, inner_tid: u32) -> bool {
        self.processes_outside.get(&inner_pid) == Some(&inner_pid)
            || self.threads_outside.contains_key(&(inner_pid, inner_tid))
    }

    /// Finds our numbers for the target's processes and threads.
    fn translate(&mut self, shared: &Shared, header: &shm::Header, inside: &[u32]) -> Result<()> {
        let carriers = Carriers::of(shared, header)?;
        for &inner in inside {
            if self.known(inner).is_some() {
                continue;
            }
            let searches = self.searches.entry(inner).or_default();
            *searches += 1;
            if *searches > MOST_SEARCHES {
                continue;
            }
            // Of several the one that nobody is known to be.
            let mut called = carriers.called(inner).into_iter();
            if let Some(pid) = called.find(|pid| !self.is_ours(pid.0 as u32)) {
                self.met(inner, pid);
            }
        }
        for &inner_pid in inside {
            match self.known(inner_pid) {
                Some(pid) if pid.0 as u32 != inner_pid => self.translate_threads(inner_pid, pid),
                _ => {}
            }
        }
        Ok(())
    }

    fn translate_threads(&mut self, inner_pid: u32, process: Pid) {
        let known: HashSet<u32> = self
            .threads_outside
            .iter()
            .filter(|((pid, _), _)| *pid == inner_pid)
            .map(|(_, tid)| *tid)
            .collect();
        for tid in proc::tasks(process).unwrap_or_default() {
            if !known.contains(&(tid.0 as u32))
                && let Some(inner) = proc::inner_number(process, tid)
            {
                self.threads_outside
                    .insert((inner_pid, inner), tid.0 as u32);
            }
        }
    }
}

fn read_process(pid: Pid) -> Option<(Option<u32>, Vec<String>)> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command: Vec<String> = command
        .split(|&b| b == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok();
    (!command.is_empty()).then_some((parent, command))
}
