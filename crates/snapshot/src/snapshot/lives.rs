//! Who the threads and processes of a profile are, and from when to when they lived.

use thalweg_abi as shm;
use thalweg_model as model;

use super::Reader;
use crate::proc::{self, Pid};
use crate::thread_table::ThreadEntry;

/// Whoever looks at a thread later than this has missed what the kernel counted for it from the attach on.
const FIRST_LOOK_NS: u64 = 500_000_000;

impl Reader<'_> {
    fn is_alive(&mut self, pid: u32, tid: u32) -> bool {
        let tasks = self.alive.entry(pid).or_insert_with(|| {
            let tasks = proc::tasks(Pid(pid as i32)).unwrap_or_default();
            tasks.into_iter().map(|tid| tid.0 as u32).collect()
        });
        self.registry.is_ours(pid) && tasks.contains(&tid)
    }

    /// As far as its threads tell: whoever saw its end knows better.
    pub(super) fn add_life(&mut self, process: &mut model::Process) {
        let starts = process.threads.iter().map(|thread| thread.start_ns);
        process.start_ns = starts.min().unwrap_or(0);
        let ends = process.threads.iter().map(|thread| thread.end_ns);
        process.end_ns = ends.max().unwrap_or(0);
        if self.registry.end(process.pid).is_none() && self.is_alive(process.pid, process.pid) {
            process.end = model::End::Running;
        }
    }

    /// A thread that is alive counts up to the end of the recording, one that is dead up to when it was last known.
    pub(super) fn end_of(&mut self, entry: &ThreadEntry, pid: u32, tid: u32) -> u64 {
        if entry.slot.is_none() {
            return entry.last;
        }
        let process_end = self.registry.end(pid);
        if process_end.is_none() && self.is_alive(pid, tid) {
            return self.end_ticks;
        }
        // A process that has become another program lives on under its number.
        let seen = self.registry.last_seen(pid, tid, entry.start).unwrap_or(0);
        let seen = seen.min(process_end.unwrap_or(u64::MAX));
        // A first thread ends with its process, whose end the controller waits for.
        let with_process = match process_end {
            Some(end) if tid == pid => end,
            None if tid == self.header.pid => self.end_ticks,
            _ => 0,
        };
        entry
            .last
            .max(seen)
            .max(with_process)
            .min(self.end_ticks.max(entry.last))
    }

    /// As the thread was last seen, or as it called itself, or as its process, whose name it began with.
    pub(super) fn name(&self, entry: &ThreadEntry, pid: u32, tid: u32) -> String {
        let seen = match entry.slot {
            Some(_) => self.registry.name(pid, tid, entry.named.max(entry.start)),
            // Its number may be another thread's by now.
            None => None,
        };
        match seen {
            Some(name) => name.to_owned(),
            None if !entry.name.is_empty() => entry.name.clone(),
            None => match self.registry.name(pid, pid, 0) {
                Some(name) => name.to_owned(),
                None => self.command_name.clone(),
            },
        }
    }

    /// Of entries that stand for a single thread.
    pub(super) fn kernel_counts(
        &self,
        entry: &ThreadEntry,
        pid: u32,
        tid: u32,
    ) -> Option<model::KernelCounts> {
        let launched = self.header.flags & shm::HEADER_LAUNCHED != 0;
        let was_there = entry.flags & shm::SLOT_AT_ATTACH != 0 && !launched;
        let attached = self.header.attach_ticks;
        let soon = attached.saturating_add(self.clock.ticks(FIRST_LOOK_NS));
        let since = was_there.then_some(attached..soon);
        match (entry.threads, entry.slot) {
            (1, Some(_)) => self.registry.kernel_counts(pid, tid, since),
            _ => None,
        }
    }

    pub(super) fn creator(
        &self,
        profile: &model::Profile,
        entry: &ThreadEntry,
    ) -> Option<model::Creator> {
        let (pid, tid) = entry.creator?;
        Some(model::Creator {
            pid: self.registry.process(pid),
            tid: self.registry.thread(pid, tid),
            function: creator_function(profile, &entry.creators),
        })
    }

    pub(super) fn process(
        &self,
        pid: u32,
        first: &ThreadEntry,
        command: &[String],
    ) -> (Option<u32>, Vec<String>) {
        if pid == self.header.pid {
            return (None, command.to_vec());
        }
        let parent = first.creator.map(|(pid, _)| self.registry.process(pid));
        (
            parent,
            self.registry.command(pid).unwrap_or(command).to_vec(),
        )
    }
}

/// Of the functions that a creator was in, innermost first: the one that wanted a thread, as opposed to those of the
/// language's libraries that made it. If all of them are such, the outermost.
fn creator_function(profile: &model::Profile, creators: &[u32]) -> Option<model::FuncId> {
    let makes_threads = |function: &model::FuncId| {
        let function = &profile.functions[*function];
        let module = &profile.modules[function.module as usize].name;
        let in_c_library = ["libc.so", "libc-2", "libpthread", "ld-musl", "libc.musl"]
            .iter()
            .any(|name| module.starts_with(name));
        let name = function.name.trim_start_matches('_');
        in_c_library
            || ["pthread_create", "thrd_create", "clone", "create_thread"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            || ["std::thread::", "std::sys::"]
                .iter()
                .any(|prefix| name.trim_start_matches('<').starts_with(prefix))
    };
    let known = || {
        let all = creators.iter().copied().map(model::FuncId);
        all.filter(|function| function.index() < profile.functions.len())
    };
    known()
        .find(|function| !makes_threads(function))
        .or(known().next_back())
}
