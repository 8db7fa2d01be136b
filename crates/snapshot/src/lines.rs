//! Last touch to a profile: only the functions that were seen, with file and line where debug information has them,
//! those of recorded calls as they are declared, and call sites with what the code there does.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use thalweg_model::{FuncId, Function, Module, Profile, Signature, Site};
use thalweg_symbols::store::{In, Out};
use thalweg_symbols::{DebugLookup, Lines};

use crate::cache;
use crate::proc::{self, Pid};
use crate::sites;
use crate::survey::kept::FileKey;

/// Line tables, each read once; those of a target's modules while it runs, so that nobody waits for them at the end.
#[derive(Default)]
pub struct Lookup {
    reading: Option<JoinHandle<HashMap<String, Lines>>>,
    known: HashMap<String, Lines>,
    /// Where functions are defined that were looked up in an earlier run or in this one, by the path of their module.
    places: HashMap<String, Places>,
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
        let mut places = HashMap::new();
        for mapping in maps.iter().filter(|mapping| mapping.perms.exec) {
            let Some(path) = &mapping.path else { continue };
            let path = path.to_string_lossy().into_owned();
            if let Entry::Vacant(place) = places.entry(path.clone())
                && let Ok(file) = proc::file_of(pid, mapping)
            {
                let early = file.metadata().is_ok_and(|m| m.len() < EARLY_LIMIT);
                let again = file.try_clone();
                let kept = place.insert(Places::of(file, Path::new(&path)));
                if let (true, true, Ok(file)) = (early, kept.known.is_empty(), again) {
                    files.insert(path, file);
                }
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
            places,
        }
    }

    /// File and line of functions of a module. Line tables are read only for those that nobody has looked up before.
    fn locate<'a>(&mut self, module: &Module, functions: impl Iterator<Item = &'a mut Function>) {
        let path = Path::new(&module.path);
        let mut places = self.places.remove(&module.path).unwrap_or_else(|| {
            let file = thalweg_symbols::open_regular(path);
            file.map_or_else(|_| Places::default(), |file| Places::of(file, path))
        });
        places.meant_for(&module.build_id);
        for function in functions {
            let place = match places.known.get(&function.address) {
                Some(place) => place.clone(),
                None => {
                    let lines = self.of(&module.path, &module.build_id);
                    let place = lines.lookup(function.address);
                    places.debug_files.clone_from(&lines.debug_files);
                    places.known.insert(function.address, place.clone());
                    places.is_changed = true;
                    place
                }
            };
            if let Some((file, line)) = place {
                function.file = Some(file);
                function.line = line;
            }
        }
        places.note();
    }

    fn of(&mut self, path: &str, build_id: &str) -> &Lines {
        if let Some(reading) = self.reading.take() {
            self.known = reading.join().unwrap_or_default();
        }
        let load = || Lines::load(Path::new(path), build_id);
        self.known.entry(path.to_string()).or_insert_with(load)
    }
}

/// Where functions of one module are defined, as far as that was asked for.
#[derive(Default)]
struct Places {
    /// By address; none where it is not known.
    known: HashMap<u64, Option<(String, u32)>>,
    build_id: String,
    debug_files: Vec<PathBuf>,
    /// The very file, and what it is called in the cache.
    file: Option<(FileKey, File)>,
    is_changed: bool,
}

impl Places {
    fn of(file: File, path: &Path) -> Places {
        let key = FileKey::of_lines(&file, path);
        let stored = key.as_ref().and_then(|key| cache::find_bytes(key, &file));
        let places = stored.and_then(|bytes| Places::restore(&mut In(&bytes)));
        Places {
            file: key.map(|key| (key, file)),
            ..places.unwrap_or_default()
        }
    }

    /// Under the same name there may be another build than the one that ran.
    fn meant_for(&mut self, build_id: &str) {
        if self.build_id != build_id {
            self.known.clear();
            self.build_id = build_id.to_owned();
        }
    }

    /// For the next run, if there is something new.
    fn note(self) {
        if self.is_changed
            && cache::is_enabled()
            && let Some((key, file)) = &self.file
        {
            let bytes = self.store();
            cache::note_bytes(key, file, self.debug_files, bytes);
        }
    }

    fn store(&self) -> Vec<u8> {
        let mut sorted: Vec<_> = self.known.iter().collect();
        sorted.sort_unstable();
        let mut names: Vec<&str> = Vec::new();
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        for (file, _) in sorted.iter().filter_map(|(_, place)| place.as_ref()) {
            numbers.entry(file).or_insert_with(|| {
                names.push(file);
                names.len() - 1
            });
        }
        let mut out = Out::default();
        out.text(&self.build_id);
        out.list(&names, |out, name| out.text(name));
        out.list(&sorted, |out, (address, place)| {
            out.number(**address);
            out.optional(place.as_ref(), |out, (file, line)| {
                out.size(numbers[file.as_str()]);
                out.number((*line).into());
            });
        });
        out.0
    }

    fn restore(stored: &mut In<'_>) -> Option<Places> {
        let build_id = stored.text()?.to_owned();
        let names = stored.list(|i| Some(i.text()?.to_owned()))?;
        let known = stored.list(|i| {
            let address = i.number()?;
            let place = i.optional(|i| {
                let file = names.get(i.size()?)?.clone();
                Some((file, u32::try_from(i.number()?).ok()?))
            })?;
            Some((address, place))
        })?;
        stored.0.is_empty().then(|| Places {
            known: known.into_iter().collect(),
            build_id,
            ..Places::default()
        })
    }
}

/// Drops functions that no context, no look, no block and no recorded call names and that were never switched, numbers the others anew, and looks up where they are defined.
pub fn complete(profile: &mut Profile, lookup: &mut Lookup) {
    let mut seen = vec![false; profile.functions.len()];
    for thread in profile.processes.iter().flat_map(|p| &p.threads) {
        for node in &thread.nodes {
            seen[node.function.index()] = true;
        }
        for frame in &thread.samples {
            seen[frame.function.index()] = true;
        }
        if let Some(function) = thread.created_by.and_then(|c| c.function) {
            seen[function.index()] = true;
        }
    }
    for call in &profile.recorded.calls {
        seen[call.function.index()] = true;
    }
    for block in profile.blocks.iter().flat_map(|module| &module.blocks) {
        seen[block.function.index()] = true;
    }
    for switched in &profile.switched {
        seen[switched.function.index()] = true;
    }
    let mut numbers = vec![FuncId(0); seen.len()];
    let mut next = 0;
    for (number, &seen) in numbers.iter_mut().zip(&seen) {
        *number = FuncId(next);
        next += u32::from(seen);
    }
    let mut index = 0;
    profile.functions.retain(|_| {
        index += 1;
        seen[index - 1]
    });
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        for node in &mut thread.nodes {
            node.function = numbers[node.function.index()];
        }
        for frame in &mut thread.samples {
            frame.function = numbers[frame.function.index()];
        }
        if let Some(function) = thread.created_by.as_mut().and_then(|c| c.function.as_mut()) {
            *function = numbers[function.index()];
        }
    }
    for call in &mut profile.recorded.calls {
        call.function = numbers[call.function.index()];
    }
    profile
        .enters_kernel
        .retain(|one| seen[one.function.index()]);
    for one in &mut profile.enters_kernel {
        one.function = numbers[one.function.index()];
    }
    for block in profile.blocks.iter_mut().flat_map(|m| &mut m.blocks) {
        block.function = numbers[block.function.index()];
    }
    for switched in &mut profile.switched {
        switched.function = numbers[switched.function.index()];
    }
    look_up(profile, lookup);
    look_up_sites(profile, lookup);
    look_up_signatures(profile);
}

/// How the functions of recorded calls are declared.
fn look_up_signatures(profile: &mut Profile) {
    let mut by_module: BTreeMap<u32, BTreeSet<FuncId>> = BTreeMap::new();
    for call in &profile.recorded.calls {
        let module = profile.functions[call.function].module;
        by_module.entry(module).or_default().insert(call.function);
    }
    let mut all = Vec::new();
    for (module, numbers) in by_module {
        let module = &profile.modules[module as usize];
        let functions = numbers.iter().map(|number| {
            let function = &profile.functions[*number];
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
        lookup.locate(module, wanted);
    }
}
