//! Last touch to a profile: only the functions that were seen, with file and line where debug information has them.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::thread::JoinHandle;

use thalweg_model::Profile;
use thalweg_symbols::Lines;

use crate::proc::{self, Pid};

/// Line tables, each read once; those of a target's modules while it runs, so that nobody waits for them at the end.
#[derive(Default)]
pub struct Lookup {
    reading: Option<JoinHandle<HashMap<String, Lines>>>,
    known: HashMap<String, Lines>,
}

/// Modules beyond this are read at the end, when it is known that they are needed.
const EARLY_LIMIT: u64 = 64 << 20;

impl Lookup {
    /// Begins to read what the modules of a process have, with no more than what the machine has to spare.
    pub fn begin(pid: Pid) -> Lookup {
        let Ok(maps) = proc::maps(pid) else {
            return Lookup::default();
        };
        let paths: HashSet<String> = maps
            .iter()
            .filter(|mapping| mapping.perms.exec)
            .filter_map(|mapping| mapping.path.as_ref())
            .filter(|path| std::fs::metadata(path).is_ok_and(|m| m.len() < EARLY_LIMIT))
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        let read = move || {
            const NICENESS: i32 = 10;
            // SAFETY: changes this thread alone.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as u32, NICENESS) };
            paths
                .into_iter()
                .map(|path| {
                    let lines = Lines::load(Path::new(&path));
                    (path, lines)
                })
                .collect()
        };
        Lookup {
            reading: std::thread::Builder::new().spawn(read).ok(),
            known: HashMap::new(),
        }
    }

    fn of(&mut self, path: &str) -> &Lines {
        if let Some(reading) = self.reading.take() {
            self.known = reading.join().unwrap_or_default();
        }
        let load = || Lines::load(Path::new(path));
        self.known.entry(path.to_string()).or_insert_with(load)
    }
}

/// Drops functions that no context names, numbers the others anew, and looks up where they are defined.
pub fn complete(profile: &mut Profile, lookup: &mut Lookup) {
    let mut seen = vec![false; profile.functions.len()];
    for thread in profile.processes.iter().flat_map(|p| &p.threads) {
        for node in &thread.nodes {
            seen[node.function as usize] = true;
        }
        if let Some(function) = thread.created_by.and_then(|c| c.function) {
            seen[function as usize] = true;
        }
    }
    let mut numbers = vec![0u32; seen.len()];
    let mut next = 0;
    for (number, &seen) in numbers.iter_mut().zip(&seen) {
        *number = next;
        next += u32::from(seen);
    }
    let mut index = 0;
    profile.functions.retain(|_| {
        index += 1;
        seen[index - 1]
    });
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        for node in &mut thread.nodes {
            node.function = numbers[node.function as usize];
        }
        if let Some(function) = thread.created_by.as_mut().and_then(|c| c.function.as_mut()) {
            *function = numbers[*function as usize];
        }
    }
    look_up(profile, lookup);
}

fn look_up(profile: &mut Profile, lookup: &mut Lookup) {
    for (index, module) in profile.modules.iter().enumerate() {
        let mut wanted = profile
            .functions
            .iter_mut()
            .filter(|f| f.module == index as u32)
            .peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let lines = lookup.of(&module.path);
        for function in wanted {
            if let Some((file, line)) = lines.lookup(function.address) {
                function.file = Some(file);
                function.line = line;
            }
        }
    }
}
