//! Code that comes and goes while a target is attached.
//!
//! Whenever the loader's list changes, its thread waits at a gate, and `Modules::follow` compares the memory map with what is
//! known:
//!
//! ```text
//! gone        its functions and counts stay; its table entries go; its ledger is kept (see below)
//! new         analyse, number, place, emit     only the loading thread waits
//!             catalog, ledger, table           in the shared memory, before any text
//!             stop: regions, stubs, text       all new modules at once
//! back again  the same numbers; at the same address also the same stubs and the same ledger
//! ```
//!
//! A module is the same if its path, build id and planned functions are. Ledgers of closed modules stay in force, since a fork
//! child may still have the module: a patch is undone only where its file is mapped. Only when nobody else carries the
//! memory is the place of a closed module used again.
//!
//! Nothing here may cost the target more than counts: a module that cannot be instrumented is left alone.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;

use thalweg_model as model;
use thalweg_patch::Patch;
use thalweg_shm as shm;

use crate::agent;
use crate::attach::lookup;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::ledger::{Ledger, Text};
use crate::memory::{self, Shared, bytes_of, zeroed};
use crate::place;
use crate::prepare::{self, Build, page_up};
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::sigframe;
use crate::survey::{self, MappedFile, Surveyed};
use crate::table::Table;
use crate::text::Changes;
use crate::tracee::Stopped;

/// Stubs of loaded modules are put together in mappings of this size.
const REGION: u64 = 16 << 20;
/// Analysed files that are kept for when they are loaded again.
const KEPT: usize = 32;

/// All that a target has mapped, and what of it is instrumented.
pub struct Modules {
    filter: Filter,
    timed: bool,
    identity: memory::Identity,
    /// Where the region lies in the target.
    base: u64,
    numbers: HashMap<ModuleKey, Numbered>,
    instances: Vec<Instance>,
    /// Code that was looked at and has nothing to patch, by process.
    ignored: HashMap<Pid, HashSet<Text>>,
    table: Table,
    regions: Vec<Region>,
    /// Entries of `Header::code` in use.
    noted_regions: usize,
    functions: u32,
    functions_limit: u64,
    /// Entries of the table of loaded modules in use.
    entries: usize,
    growth: Growth,
    analysed: Vec<(FileKey, Surveyed)>,
}

/// Names one module, wherever and however often it is loaded.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ModuleKey {
    path: String,
    build_id: Option<Vec<u8>>,
    /// Of the addresses and names of its planned functions.
    functions: u64,
}

/// The numbers of a module's functions, which follow each other.
#[derive(Clone, Copy)]
struct Numbered {
    first: u32,
}

/// One file at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileKey {
    dev: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// A module at one place in one process.
struct Instance {
    pid: Pid,
    key: ModuleKey,
    texts: Vec<Text>,
    low: u64,
    high: u64,
    bias: u64,
    /// By its bytes one sees whether the text is patched.
    first_patch: Patch,
    open: bool,
    /// Not for modules that were there at attach.
    home: Option<Home>,
}

/// Where the target keeps what belongs to an instance.
#[derive(Clone, Copy)]
struct Home {
    /// Index in the table of loaded modules.
    entry: usize,
    stubs: u64,
    stub_bytes: u64,
    region: u64,
}

/// A mapping for stubs, in one process.
struct Region {
    pid: Pid,
    start: u64,
    len: u64,
    used: u64,
    /// In the header; before it is mapped.
    noted: bool,
    mapped: bool,
}

/// The part of the shared memory for catalogs and ledgers that come later.
struct Growth {
    offset: u64,
    len: u64,
    used: u64,
}

/// A module that is about to be instrumented.
struct Fresh {
    instance: Instance,
    home: Home,
    stubs: Vec<(u64, Vec<u8>)>,
    ledger: Ledger,
    changes: Changes,
}

impl Modules {
    /// What was there at attach.
    pub(crate) fn at_attach(
        build: &Build,
        header: &shm::Header,
        identity: memory::Identity,
        filter: &Filter,
    ) -> Modules {
        let pid = Pid(header.pid as i32);
        let mut modules = Modules {
            filter: filter.clone(),
            timed: header.flags & shm::HEADER_TIMED != 0,
            identity,
            base: header.base,
            numbers: HashMap::new(),
            instances: Vec::new(),
            ignored: HashMap::new(),
            table: Table::new(build.layout.table_entries, &build.survey.modules),
            regions: build
                .code
                .iter()
                .map(|region| Region {
                    pid,
                    start: region.start,
                    len: region.len,
                    used: region.used,
                    noted: true,
                    mapped: true,
                })
                .collect(),
            noted_regions: build.code.len(),
            functions: header.functions,
            functions_limit: header.functions_limit,
            entries: header.loaded as usize,
            growth: Growth {
                offset: header.growth_offset,
                len: header.growth_len,
                used: header.growth_used,
            },
            analysed: Vec::new(),
        };
        for (surveyed, numbers) in build.survey.modules.iter().zip(&build.numbers) {
            let patched = |patch: &&Patch| {
                surveyed
                    .text
                    .iter()
                    .any(|text| (text.start..text.end).contains(&patch.address))
            };
            let first_patch = build.ledger.patches.iter().find(patched);
            let first_function = surveyed.plan.functions.first();
            let (Some(first_patch), Some(first)) = (first_patch, first_function) else {
                let ignored = modules.ignored.entry(pid).or_default();
                ignored.extend(&surveyed.text);
                continue;
            };
            let key = ModuleKey::of(surveyed);
            let first = numbers[first.function];
            modules.numbers.insert(key.clone(), Numbered { first });
            modules.instances.push(Instance {
                pid,
                key,
                texts: surveyed.text.clone(),
                low: surveyed.low,
                high: surveyed.high,
                bias: surveyed.bias,
                first_patch: first_patch.clone(),
                open: true,
                home: None,
            });
        }
        modules
    }

    /// Brings the instrumentation of `pid` up to what it has mapped now. Errors are those of the target's shared memory or
    /// of stopping it; the target works in any case.
    pub fn follow(&mut self, shared: &Shared, pid: Pid) -> Result<()> {
        // A number from a PID namespace that we do not know may be that of anybody.
        if !self.is_carried_by(pid) {
            return Ok(());
        }
        let maps = proc::maps(pid)?;
        self.note_closed(shared, pid, &maps)?;
        let mut fresh = Vec::new();
        for file in survey::group_by_file(&maps) {
            let texts = file.texts();
            if texts.iter().any(|text| self.is_known(pid, text)) {
                continue;
            }
            // What fails here is left alone from now on.
            self.ignored.entry(pid).or_default().extend(&texts);
            if let Ok(Some(ready)) = self.prepare(shared, pid, &file, &maps) {
                fresh.push(ready);
            }
        }
        if fresh.is_empty() {
            return Ok(());
        }
        self.instrument(shared, pid, fresh)
    }

    fn is_carried_by(&self, pid: Pid) -> bool {
        let start = RemoteAddr(self.base + shm::PRIVATE_SIZE);
        memory::carries(pid, self.identity, start)
    }

    fn is_known(&self, pid: Pid, text: &Text) -> bool {
        self.ignored
            .get(&pid)
            .is_some_and(|ignored| ignored.contains(text))
            || self
                .instances
                .iter()
                .any(|i| i.open && i.texts.contains(text) && i.is_patched(pid))
    }

    fn note_closed(&mut self, shared: &Shared, pid: Pid, maps: &[Mapping]) -> Result<()> {
        // A fork child has what its parent had.
        let new = !self.ignored.contains_key(&pid);
        let inherited = self.ignored.values().flatten().filter(|_| new);
        let inherited: Vec<Text> = inherited.copied().collect();
        let ignored = self.ignored.entry(pid).or_default();
        ignored.extend(inherited);
        ignored.retain(|text| text.is_mapped_at(maps, text.start));
        for instance in &mut self.instances {
            let gone = |text: &Text| !text.is_mapped_at(maps, text.start);
            let closed = instance.pid == pid
                && instance.open
                && (instance.texts.iter().any(gone) || !instance.is_patched(pid));
            if !closed {
                continue;
            }
            instance.open = false;
            self.table.remove(shared, instance.low..instance.high)?;
            if let Some(home) = instance.home {
                set_state(shared, home.entry, shm::LOADED_CLOSED)?;
            }
        }
        // Those of the attach are in the first ledger for good and need no memory here.
        self.instances.retain(|i| i.open || i.home.is_some());
        Ok(())
    }

    /// Everything but the stop. `None`: nothing in it is to be counted.
    fn prepare(
        &mut self,
        shared: &Shared,
        pid: Pid,
        file: &MappedFile,
        maps: &[Mapping],
    ) -> Result<Option<Fresh>> {
        let Some((kept, surveyed)) = self.analyse(shared, pid, file)? else {
            return Ok(None);
        };
        let result = self.place(shared, pid, &surveyed, maps);
        if let Ok(Some(_)) = &result {
            self.table.insert(shared, &surveyed)?;
        }
        if let Some(kept) = kept {
            self.analysed.push((kept, surveyed));
            if self.analysed.len() > KEPT {
                self.analysed.remove(0);
            }
        }
        result
    }

    /// From what is known of the file, or afresh. What cannot be read is entered among what was left alone.
    fn analyse(
        &mut self,
        shared: &Shared,
        pid: Pid,
        file: &MappedFile,
    ) -> Result<Option<(Option<FileKey>, Surveyed)>> {
        let key = FileKey::of(pid, file.code());
        let known = self.analysed.iter().position(|(k, _)| Some(*k) == key);
        if let Some(index) = known {
            let (_, mut surveyed) = self.analysed.remove(index);
            return Ok(surveyed.settle(file).map(|()| (key, surveyed)));
        }
        match survey::survey_file(pid, file, &self.filter) {
            Ok(surveyed) => Ok(Some((key, surveyed))),
            Err(reason) => {
                self.add_catalog(shared, pid, &survey::catalog([], &[reason]), 0)?;
                Ok(None)
            }
        }
    }

    fn place(
        &mut self,
        shared: &Shared,
        pid: Pid,
        surveyed: &Surveyed,
        maps: &[Mapping],
    ) -> Result<Option<Fresh>> {
        let key = ModuleKey::of(surveyed);
        let numbered = match self.numbers.get(&key) {
            Some(numbered) => *numbered,
            None => self.number(shared, pid, &key, surveyed)?,
        };
        if surveyed.plan.functions.is_empty() || has_text_relocations(surveyed) {
            return Ok(None);
        }
        let old = self.old_home(pid, &key, surveyed, maps);
        let stub_bytes = prepare::stub_bytes(surveyed);
        let home = match old {
            Some(home) => home,
            None => {
                let (region, stubs) = self.room(pid, surveyed, stub_bytes, maps)?;
                Home {
                    entry: self.new_entry()?,
                    stubs,
                    stub_bytes,
                    region,
                }
            }
        };
        let mut numbers = vec![u32::MAX; surveyed.module.functions.len()];
        for (number, plan) in (numbered.first..).zip(&surveyed.plan.functions) {
            numbers[plan.function] = number;
        }
        let mut ledger = Ledger::default();
        let mut stubs = Vec::new();
        for mut made in prepare::emit(surveyed, &numbers, self.timed, home.region, home.stubs)? {
            stubs.push((made.at, std::mem::take(&mut made.code.stubs)));
            ledger.add(made.code);
        }
        ledger.texts = surveyed.text.clone();
        ledger.sort();
        let changes = Changes::prepare(pid, &ledger)?;
        let Some(first_patch) = ledger.patches.first().cloned() else {
            return Ok(None);
        };
        Ok(Some(Fresh {
            instance: Instance {
                pid,
                key,
                texts: surveyed.text.clone(),
                low: surveyed.low,
                high: surveyed.high,
                bias: surveyed.bias,
                first_patch,
                open: true,
                home: Some(home),
            },
            home,
            stubs,
            ledger,
            changes,
        }))
    }

    /// New numbers for a module that was never seen before, and its names in the target's shared memory.
    fn number(
        &mut self,
        shared: &Shared,
        pid: Pid,
        key: &ModuleKey,
        surveyed: &Surveyed,
    ) -> Result<Numbered> {
        let count = surveyed.plan.functions.len() as u32;
        let first = self.functions;
        if u64::from(first) + u64::from(count) > self.functions_limit {
            return Err(Error::Other("no numbers left for functions".into()));
        }
        self.add_catalog(shared, pid, &survey::catalog([surveyed], &[]), count)?;
        self.functions += count;
        let functions = offset_of!(shm::Header, functions) as u64;
        shared.write(functions, &self.functions.to_le_bytes())?;
        self.numbers.insert(key.clone(), Numbered { first });
        Ok(Numbered { first })
    }

    fn add_catalog(
        &mut self,
        shared: &Shared,
        pid: Pid,
        catalog: &model::Profile,
        functions: u32,
    ) -> Result<()> {
        let bytes = model::write(catalog)
            .map_err(|e| Error::Other(format!("cannot describe a module: {e}")))?;
        let entry = self.new_entry()?;
        let offset = self.growth.take(shared, bytes.len() as u64)?;
        shared.write(offset, &bytes)?;
        let mut loaded: shm::Loaded = zeroed();
        loaded.state = shm::LOADED_CLOSED;
        loaded.pid = pid.0 as u32;
        loaded.catalog_offset = offset;
        loaded.catalog_len = bytes.len() as u64;
        loaded.first_function = self.functions;
        loaded.functions = functions;
        self.write_entry(shared, entry, &loaded)
    }

    fn new_entry(&mut self) -> Result<usize> {
        if self.entries >= shm::MAX_LOADED {
            return Err(Error::Other("no room for more modules".into()));
        }
        self.entries += 1;
        Ok(self.entries - 1)
    }

    fn write_entry(&self, shared: &Shared, entry: usize, loaded: &shm::Loaded) -> Result<()> {
        shared.write(entry_offset(entry), bytes_of(loaded))?;
        let count = offset_of!(shm::Header, loaded) as u64;
        shared.write(count, &(self.entries as u32).to_le_bytes())
    }

    /// The place of an instance that was closed, or that another process has: at the same address it will do as it is,
    /// elsewhere if nobody else may need it.
    fn old_home(
        &mut self,
        pid: Pid,
        key: &ModuleKey,
        surveyed: &Surveyed,
        maps: &[Mapping],
    ) -> Option<Home> {
        let stub_bytes = prepare::stub_bytes(surveyed);
        let usable = |i: &Instance| {
            let region = |home: &Home| self.regions.iter().find(|r| r.start == home.region);
            i.key == *key
                && (i.pid != pid || !i.open)
                && i.home.as_ref().is_some_and(|home| {
                    home.stub_bytes >= stub_bytes
                        && region(home).is_some_and(|r| r.is_in(maps) && r.reaches(surveyed))
                })
        };
        let instances = || self.instances.iter().enumerate().filter(|(_, i)| usable(i));
        let same = instances().find(|(_, i)| i.bias == surveyed.bias);
        let (index, instance) = match same {
            Some(found) => found,
            None => {
                let found = instances().find(|(_, i)| i.pid == pid)?;
                if memory::carriers(self.identity) != [pid] {
                    return None;
                }
                found
            }
        };
        let home = instance.home;
        if instance.pid == pid {
            self.instances.remove(index);
        }
        home
    }

    /// A region in reach of the module and an address in it.
    fn room(
        &mut self,
        pid: Pid,
        surveyed: &Surveyed,
        bytes: u64,
        maps: &[Mapping],
    ) -> Result<(u64, u64)> {
        let fits = |r: &&mut Region| {
            let there = r.is_in(maps) || (r.pid == pid && !r.mapped);
            there && r.len - r.used >= bytes && r.reaches(surveyed)
        };
        if let Some(region) = self.regions.iter_mut().find(fits) {
            let at = region.start + region.used;
            region.used += bytes;
            return Ok((region.start, at));
        }
        let unnoted = self.regions.iter().filter(|r| !r.noted).count();
        if self.noted_regions + unnoted >= shm::MAX_CODE_REGIONS {
            return Err(Error::Other("no room for more stubs".into()));
        }
        let head = page_up(agent::IMAGE.len() as u64);
        let len = REGION.max(head + bytes);
        let mut taken = maps.to_vec();
        let planned = self.regions.iter().filter(|r| r.pid == pid);
        taken.extend(planned.map(|r| prepare::reserved(r.start, r.len)));
        taken.sort_by_key(|m| m.start);
        let start = place::find_gap(&taken, surveyed.low, surveyed.high, len)
            .ok_or_else(|| Error::Other("no room for stubs within reach".into()))?;
        self.regions.push(Region {
            pid,
            start,
            len,
            used: head + bytes,
            noted: false,
            mapped: false,
        });
        Ok((start, start + head))
    }

    /// Ledgers and table, then one stop for all.
    fn instrument(&mut self, shared: &Shared, pid: Pid, fresh: Vec<Fresh>) -> Result<()> {
        for module in &fresh {
            self.write_ledger(shared, module)?;
        }
        for index in 0..self.regions.len() {
            if !self.regions[index].noted {
                self.note_region(shared, index)?;
            }
        }
        // Should the stop fail, they are looked at again the next time.
        let texts: Vec<Text> = fresh
            .iter()
            .flat_map(|module| module.instance.texts.clone())
            .collect();
        let ignored = self.ignored.entry(pid).or_default();
        ignored.retain(|text| !texts.contains(text));
        let mut stopped = Stopped::stop(pid)?;
        // Whoever detaches closes the gates first, then stops the process: what we patch before that he will find.
        let header = shared.header()?;
        let attached = header.state == shm::STATE_ATTACHED
            && header.gate_server == std::process::id()
            && self.is_carried_by(pid);
        if !attached {
            return Ok(());
        }
        self.map_regions(&mut stopped)?;
        let maps = stopped.maps()?;
        for module in fresh {
            let there = |text: &Text| text.is_mapped_at(&maps, text.start);
            if module.instance.texts.iter().all(there) && module.changes.still_fit(&stopped)? {
                module.write(&mut stopped)?;
                self.instances.push(module.instance);
            }
        }
        stopped.release()
    }

    fn write_ledger(&mut self, shared: &Shared, module: &Fresh) -> Result<()> {
        let offset = entry_offset(module.home.entry);
        let mut loaded: shm::Loaded = shared.read(offset)?;
        let bytes = module.ledger.encode();
        // Closed while it is rewritten; nothing is patched by it now.
        if loaded.ledger_room < bytes.len() as u64 {
            loaded.ledger_len = 0;
            loaded.ledger_room = page_up(bytes.len() as u64 * 5 / 4);
            loaded.ledger_offset = self.growth.take(shared, loaded.ledger_room)?;
        }
        shared.write(loaded.ledger_offset, &bytes)?;
        loaded.state = shm::LOADED_LIVE;
        loaded.pid = module.instance.pid.0 as u32;
        loaded.ledger_len = bytes.len() as u64;
        self.write_entry(shared, module.home.entry, &loaded)
    }

    fn note_region(&mut self, shared: &Shared, index: usize) -> Result<()> {
        let region = &self.regions[index];
        let mut bytes = region.start.to_le_bytes().to_vec();
        bytes.extend(region.len.to_le_bytes());
        let place = offset_of!(shm::Header, code) + self.noted_regions * 16;
        shared.write(place as u64, &bytes)?;
        self.noted_regions += 1;
        self.regions[index].noted = true;
        Ok(())
    }

    fn map_regions(&mut self, stopped: &mut Stopped) -> Result<()> {
        let pid = stopped.pid();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let waiting = |r: &&mut Region| r.pid == pid && !r.mapped;
        for region in self.regions.iter_mut().filter(waiting) {
            let at = RemoteAddr(region.start);
            stopped.mmap(at, region.len, protection, flags, -1, 0)?;
            stopped.madvise(at, region.len, libc::MADV_DONTDUMP)?;
            stopped.write(at, &agent::image_for(self.base))?;
            region.mapped = true;
        }
        Ok(())
    }
}

impl Fresh {
    /// Stubs, threads that are in the module already (it was loaded when nobody served), text.
    fn write(&self, stopped: &mut Stopped) -> Result<()> {
        for (at, stubs) in &self.stubs {
            stopped.write(RemoteAddr(*at), stubs)?;
        }
        let mut frames = sigframe::Frames::of(stopped)?;
        for tid in stopped.threads().to_vec() {
            let mut regs = stopped.regs(tid)?;
            if let Some(moved) = lookup(&self.ledger.moves, regs.rip) {
                regs.rip = moved;
                stopped.set_regs(tid, regs)?;
            }
            frames.translate(stopped, regs.rsp, &self.ledger.moves)?;
        }
        stopped.flush()?;
        self.changes.write(stopped)
    }
}

impl Instance {
    fn is_patched(&self, pid: Pid) -> bool {
        let mut now = vec![0; self.first_patch.replacement.len()];
        memory::read_remote(pid, RemoteAddr(self.first_patch.address), &mut now).is_ok()
            && now == self.first_patch.replacement
    }
}

impl Region {
    /// Fork children have those that were mapped before.
    fn is_in(&self, maps: &[Mapping]) -> bool {
        self.mapped
            && maps.iter().any(|m| {
                m.start.0 == self.start
                    && m.end.0 == self.start + self.len
                    && m.perms.exec
                    && m.path.is_none()
            })
    }

    fn reaches(&self, surveyed: &Surveyed) -> bool {
        place::reaches(self.start, self.len, surveyed.low, surveyed.high)
    }
}

impl Growth {
    fn take(&mut self, shared: &Shared, bytes: u64) -> Result<u64> {
        let bytes = page_up(bytes);
        if self.used + bytes > self.len {
            return Err(Error::Other(
                "no room for what more modules need to be described".into(),
            ));
        }
        let offset = self.offset + self.used;
        self.used += bytes;
        let used = offset_of!(shm::Header, growth_used) as u64;
        shared.write(used, &self.used.to_le_bytes())?;
        Ok(offset)
    }
}

impl ModuleKey {
    fn of(surveyed: &Surveyed) -> ModuleKey {
        let mut hasher = DefaultHasher::new();
        for plan in &surveyed.plan.functions {
            let function = &surveyed.module.functions[plan.function];
            (function.start, &function.name).hash(&mut hasher);
        }
        ModuleKey {
            path: surveyed.path.display().to_string(),
            build_id: surveyed.module.build_id.clone(),
            functions: hasher.finish(),
        }
    }
}

impl FileKey {
    fn of(pid: Pid, mapping: &Mapping) -> Option<FileKey> {
        let file = proc::file_of(pid, mapping).ok()?.metadata().ok()?;
        Some(FileKey {
            dev: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

/// The loader will change the text of such a module itself, after we have.
fn has_text_relocations(surveyed: &Surveyed) -> bool {
    const DT_TEXTREL: u64 = 22;
    const DT_FLAGS: u64 = 30;
    const DF_TEXTREL: u64 = 4;
    let mut sections = surveyed.module.sections.iter();
    let Some(dynamic) = sections.find(|section| section.name == ".dynamic") else {
        return false;
    };
    dynamic.bytes.chunks_exact(16).any(|entry| {
        let word =
            |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        word(0) == DT_TEXTREL || (word(0) == DT_FLAGS && word(8) & DF_TEXTREL != 0)
    })
}

fn entry_offset(entry: usize) -> u64 {
    shm::LOADED_OFFSET + entry as u64 * shm::LOADED_SIZE
}

fn set_state(shared: &Shared, entry: usize, state: u32) -> Result<()> {
    let place = entry_offset(entry) + offset_of!(shm::Loaded, state) as u64;
    shared.write(place, &state.to_le_bytes())
}

/// The entries of the table of loaded modules that a target carries.
pub(crate) fn entries(shared: &Shared, header: &shm::Header) -> Result<Vec<shm::Loaded>> {
    let count = (header.loaded as usize).min(shm::MAX_LOADED);
    (0..count)
        .map(|entry| shared.read(entry_offset(entry)))
        .collect()
}

/// Adds the names of modules that were loaded later to those that were there at attach.
pub(crate) fn add_catalogs(
    profile: &mut model::Profile,
    shared: &Shared,
    header: &shm::Header,
) -> Result<()> {
    for loaded in entries(shared, header)? {
        if loaded.catalog_len == 0 || loaded.state == shm::LOADED_NONE {
            continue;
        }
        let bytes = shared.read_vec(loaded.catalog_offset, loaded.catalog_len)?;
        let more = model::read(&mut &*bytes)
            .map_err(|e| Error::Other(format!("the target's catalog: {e}")))?;
        let modules = profile.modules.len() as u32;
        profile.modules.extend(more.modules);
        profile.skipped.extend(more.skipped);
        // Numbers are given in the order of the entries.
        for mut function in more.functions {
            function.module += modules;
            profile.functions.push(function);
        }
    }
    Ok(())
}

/// The ledgers of all modules that were ever loaded. They are for places where their files are mapped, no others.
pub(crate) fn ledgers(shared: &Shared, header: &shm::Header) -> Result<Vec<Ledger>> {
    let mut ledgers = Vec::new();
    for loaded in entries(shared, header)? {
        if loaded.ledger_len > 0 && loaded.state != shm::LOADED_NONE {
            let bytes = shared.read_vec(loaded.ledger_offset, loaded.ledger_len)?;
            ledgers.push(Ledger::decode(&bytes)?);
        }
    }
    Ok(ledgers)
}

/// Files whose code a process has mapped since it was attached and which nobody was there to instrument.
pub fn uncounted(pid: Pid, shared: &Shared, header: &shm::Header) -> Result<Vec<String>> {
    let bytes = shared.read_vec(header.ledger_offset, header.ledger_len)?;
    let mut ledgers = ledgers(shared, header)?;
    ledgers.push(Ledger::decode(&bytes)?);
    let known: HashSet<Text> = ledgers.iter().flat_map(|l| l.texts.clone()).collect();
    let maps = proc::maps(pid)?;
    let mut names: Vec<String> = survey::group_by_file(&maps)
        .iter()
        .filter(|file| !file.texts().iter().any(|text| known.contains(text)))
        .map(|file| file.name.clone())
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}
