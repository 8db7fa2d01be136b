//! Last touch to a profile: only the functions that were seen, with file and line where debug information has them,
//! those of recorded calls as they are declared, and call sites with what the code there does.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::path::Path;
use std::thread::JoinHandle;

use thalweg_model::{Profile, Signature, Site};
use thalweg_symbols::{DebugLookup, Lines};

use crate::proc::{self, Pid};
use crate::sites;

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
        // The very files: under their names there may be others, for one where the target has another root than we.
        let mut files = HashMap::new();
        for mapping in maps.iter().filter(|mapping| mapping.perms.exec) {
            let Some(path) = &mapping.path else { continue };
            let path = path.to_string_lossy().into_owned();
            if let Entry::Vacant(place) = files.entry(path)
                && let Ok(file) = proc::file_of(pid, mapping)
                && file.metadata().is_ok_and(|m| m.len() < EARLY_LIMIT)
            {
                place.insert(file);
            }
        }
        let read = move || {
            const NICENESS: i32 = 10;
            // SAFETY: changes this thread alone.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as u32, NICENESS) };
            files
                .into_iter()
                .map(|(path, mut file)| {
                    let mut data = Vec::new();
                    let lines = match file.read_to_end(&mut data) {
                        Ok(_) => Lines::parse(&data, &DebugLookup::for_path(Path::new(&path))),
                        Err(_) => Lines::default(),
                    };
                    (path, lines)
                })
                .collect()
        };
        Lookup {
            reading: std::thread::Builder::new().spawn(read).ok(),
            known: HashMap::new(),
        }
    }

    fn of(&mut self, path: &str, build_id: &str) -> &Lines {
        if let Some(reading) = self.reading.take() {
            self.known = reading.join().unwrap_or_default();
        }
        let load = || Lines::load(Path::new(path), build_id);
        self.known.entry(path.to_string()).or_insert_with(load)
    }
}

/// Drops functions that no context, no look and no recorded call names and that were never switched, numbers the others anew, and looks up where they are defined.
pub fn complete(profile: &mut Profile, lookup: &mut Lookup) {
    let mut seen = vec![false; profile.functions.len()];
    for thread in profile.processes.iter().flat_map(|p| &p.threads) {
        for node in &thread.nodes {
            seen[node.function as usize] = true;
        }
        for frame in &thread.samples {
            seen[frame.function as usize] = true;
        }
        if let Some(function) = thread.created_by.and_then(|c| c.function) {
            seen[function as usize] = true;
        }
    }
    for call in &profile.recorded.calls {
        seen[call.function as usize] = true;
    }
    for switched in &profile.switched {
        seen[switched.function as usize] = true;
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
        for frame in &mut thread.samples {
            frame.function = numbers[frame.function as usize];
        }
        if let Some(function) = thread.created_by.as_mut().and_then(|c| c.function.as_mut()) {
            *function = numbers[*function as usize];
        }
    }
    for call in &mut profile.recorded.calls {
        call.function = numbers[call.function as usize];
    }
    profile
        .enters_kernel
        .retain(|one| seen[one.function as usize]);
    for one in &mut profile.enters_kernel {
        one.function = numbers[one.function as usize];
    }
    for switched in &mut profile.switched {
        switched.function = numbers[switched.function as usize];
    }
    look_up(profile, lookup);
    look_up_sites(profile, lookup);
    look_up_signatures(profile);
}

/// How the functions of recorded calls are declared.
fn look_up_signatures(profile: &mut Profile) {
    let mut by_module: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for call in &profile.recorded.calls {
        let module = profile.functions[call.function as usize].module;
        by_module.entry(module).or_default().insert(call.function);
    }
    let mut all = Vec::new();
    for (module, numbers) in by_module {
        let module = &profile.modules[module as usize];
        let functions = numbers.iter().map(|number| {
            let function = &profile.functions[*number as usize];
            (function.address, function.name.as_str())
        });
        let functions: Vec<(u64, &str)> = functions.collect();
        let texts =
            thalweg_rules::signatures(Path::new(&module.path), &module.build_id, &functions);
        let texts = numbers.into_iter().zip(texts);
        all.extend(texts.filter_map(|(function, text)| {
            Some(Signature {
                function,
                text: text?,
            })
        }));
    }
    all.sort_by_key(|signature| signature.function);
    profile.recorded.signatures = all;
}

fn look_up_sites(profile: &mut Profile, lookup: &mut Lookup) {
    let mut by_module: BTreeMap<u32, Vec<&mut Site>> = BTreeMap::new();
    for site in &mut profile.sites {
        by_module.entry(site.module).or_default().push(site);
    }
    for (module, mut sites) in by_module {
        let module = &profile.modules[module as usize];
        let lines = lookup.of(&module.path, &module.build_id);
        sites::describe(module, &mut sites, lines);
    }
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
        let lines = lookup.of(&module.path, &module.build_id);
        for function in wanted {
            if let Some((file, line)) = lines.lookup(function.address) {
                function.file = Some(file);
                function.line = line;
            }
        }
    }
}
