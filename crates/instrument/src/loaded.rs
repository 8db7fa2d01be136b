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

mod regions;
mod store;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::offset_of;

use thalweg_abi as shm;
use thalweg_patch::Patch;

use crate::blocks;
use crate::dynamic;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::held;
use crate::java;
use crate::ledger::{self, Ledger, Text, lookup};
use crate::memory::{self, Shared};
use crate::prepare::{self, Build, Probes};
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::python;
use crate::sigframe;
use crate::states;
use crate::survey::{self, MappedFile, Surveyed};
use crate::table::Table;
use crate::text::Changes;
use crate::tracee::{StopOptions, Stopped, while_stopped};

use regions::Regions;
use store::Store;
pub use store::uncounted;
pub use store::{add_catalogs, encoded_ledgers, ledgers};

/// All that a target has mapped, and what of it is instrumented.
pub struct Modules {
    filter: Filter,
    probes: Probes,
    identity: memory::Identity,
    /// Where the region lies in the target.
    base: u64,
    numbers: HashMap<ModuleKey, Numbered>,
    instances: Vec<Instance>,
    /// Code that was looked at and has nothing to patch, by process.
    ignored: HashMap<Pid, HashSet<Text>>,
    table: Table,
    regions: Regions,
    store: Store,
    functions_limit: u64,
    blocks: shm::Blocks,
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
    /// Of its first counter of blocks.
    counter: u32,
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

/// A module that is about to be instrumented.
struct Fresh {
    instance: Instance,
    home: Home,
    stubs: Vec<(u64, Vec<u8>)>,
    ledger: Ledger,
    changes: Changes,
    java: java::Plan,
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
            probes: Probes::of(header),
            identity,
            base: header.base,
            numbers: HashMap::new(),
            instances: Vec::new(),
            ignored: HashMap::new(),
            table: build.table.clone(),
            regions: Regions::at_attach(build, pid),
            store: Store::new(header),
            functions_limit: header.functions_limit,
            blocks: header.blocks,
        };
        for (surveyed, numbers) in build.survey.modules.iter().zip(&build.numbers) {
            let patched = |patch: &&Patch| {
                surveyed
                    .text
                    .iter()
                    .any(|text| (text.start..text.end).contains(&patch.address))
            };
            let first_patch = build.ledger.patches.iter().find(patched);
            let first_function = surveyed.numbered().next();
            let (Some(first_patch), Some(first)) = (first_patch, first_function) else {
                let ignored = modules.ignored.entry(pid).or_default();
                ignored.extend(&surveyed.text);
                continue;
            };
            let key = ModuleKey::of(surveyed);
            let first = numbers[first];
            let counter = surveyed.first_counter;
            modules
                .numbers
                .insert(key.clone(), Numbered { first, counter });
            modules.instances.push(Instance {
                pid,
                key,
                texts: surveyed.text.clone(),
                low: surveyed.low,
                high: surveyed.high,
                bias: surveyed.bias,
                first_patch: *first_patch,
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
                self.store.close(shared, home.entry)?;
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
        // Its probes would not be those that the others have become.
        if shared.header()?.limits & (shm::LIMIT_FROZEN | shm::LIMIT_RETIRED) != 0 {
            return Ok(None);
        }
        let Some(mut surveyed) = self.analyse(shared, pid, file)? else {
            return Ok(None);
        };
        python::keep_known(shared, &mut surveyed)?;
        let result = self.place(shared, pid, &mut surveyed, maps);
        if let Ok(Some(_)) = &result {
            self.table.insert(shared, &surveyed)?;
        }
        result
    }

    /// What cannot be read is entered among what was left alone.
    fn analyse(
        &mut self,
        shared: &Shared,
        pid: Pid,
        file: &MappedFile,
    ) -> Result<Option<Surveyed>> {
        match survey::survey_file(pid, file, &self.filter) {
            Ok(mut surveyed) => {
                if surveyed.wanted && has_text_relocations(&surveyed) {
                    surveyed.leave_alone(TEXT_RELOCATIONS);
                } else if surveyed.top_byte.is_some() {
                    surveyed.leave_alone(LOADED_GO);
                } else if surveyed.blocks.is_some()
                    && let Some(why) = blocks::refusal(&surveyed)
                {
                    surveyed.leave_alone(why);
                }
                Ok(Some(surveyed))
            }
            Err(reason) => {
                let catalog = survey::catalog([], &[reason]);
                let functions = shared.header()?.functions;
                self.store.add_catalog(shared, pid, &catalog, functions)?;
                Ok(None)
            }
        }
    }

    fn place(
        &mut self,
        shared: &Shared,
        pid: Pid,
        surveyed: &mut Surveyed,
        maps: &[Mapping],
    ) -> Result<Option<Fresh>> {
        let key = ModuleKey::of(surveyed);
        let numbered = match self.numbers.get(&key) {
            Some(numbered) => *numbered,
            None => self.number(shared, pid, &key, surveyed)?,
        };
        surveyed.first_counter = numbered.counter;
        if surveyed.numbered().next().is_none() {
            return Ok(None);
        }
        let old = self.old_home(pid, &key, surveyed, maps);
        let stub_bytes = prepare::stub_bytes(surveyed);
        let home = match old {
            Some(home) => home,
            None => {
                let (region, stubs) = self.regions.room(pid, surveyed, stub_bytes, maps)?;
                Home {
                    entry: self.store.new_entry()?,
                    stubs,
                    stub_bytes,
                    region,
                }
            }
        };
        let mut numbers = vec![u32::MAX; surveyed.module.functions.len()];
        for (number, function) in (numbered.first..).zip(surveyed.numbered()) {
            numbers[function] = number;
        }
        let mut ledger = Ledger::default();
        let mut stubs = Vec::new();
        let mut all = prepare::emit(surveyed, &numbers, self.probes, home.region, home.stubs)?;
        all.extend(prepare::emit_blocks(
            surveyed,
            &self.blocks,
            home.region,
            home.stubs,
        )?);
        for mut made in all {
            let rows = std::mem::take(&mut made.code.stubs);
            stubs.extend(rows.into_iter().map(|row| (row.address, row.bytes)));
            ledger.add(made.code, made.switches);
        }
        ledger.texts = surveyed.text.clone();
        ledger.homes.extend(ledger::Home::of(surveyed, &numbers));
        let java = match self.filter.wants_java() {
            true => java::Plan::of(pid, [&*surveyed], false),
            false => java::Plan::default(),
        };
        ledger.data.extend(python::data(surveyed));
        ledger.data.extend(java.data());
        ledger.sort();
        let changes = Changes::prepare(pid, &ledger)?;
        let Some(first_patch) = ledger.patches.first().cloned() else {
            return Ok(None);
        };
        python::tell(shared, surveyed, &numbers)?;
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
            java,
        }))
    }

    /// New numbers for a module that was never seen before, and its names in the target's shared memory.
    fn number(
        &mut self,
        shared: &Shared,
        pid: Pid,
        key: &ModuleKey,
        surveyed: &mut Surveyed,
    ) -> Result<Numbered> {
        let counter = self.take_counters(shared, surveyed)?;
        surveyed.first_counter = counter;
        let count = surveyed.numbered().count() as u32;
        let catalog = survey::catalog([&*surveyed], &[]);
        let first = dynamic::take_numbers(shared, count, self.functions_limit)?;
        self.store.add_catalog(shared, pid, &catalog, first)?;
        let numbered = Numbered { first, counter };
        self.numbers.insert(key.clone(), numbered);
        Ok(numbered)
    }

    /// The first of as many counters of blocks as the module needs.
    fn take_counters(&mut self, shared: &Shared, surveyed: &Surveyed) -> Result<u32> {
        let first = self.blocks.used;
        let used = u64::from(first) + surveyed.counters();
        if used > self.blocks.limit.into() {
            return Err(Error::NoRoom("no room for counters of more blocks".into()));
        }
        self.blocks.used = used as u32;
        let at = offset_of!(shm::Header, blocks) + offset_of!(shm::Blocks, used);
        shared.write(at as u64, &self.blocks.used.to_le_bytes())?;
        Ok(first)
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
            i.key == *key
                && (i.pid != pid || !i.open)
                && i.home.as_ref().is_some_and(|home| {
                    home.stub_bytes >= stub_bytes
                        && self.regions.serves(home.region, surveyed, maps)
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

    /// Ledgers and table, then one stop for all.
    fn instrument(&mut self, shared: &Shared, pid: Pid, fresh: Vec<Fresh>) -> Result<()> {
        for module in &fresh {
            self.store
                .put_ledger(shared, module.home.entry, pid, &module.ledger)?;
            module.java.write(shared)?;
        }
        self.regions.note(shared)?;
        // Should the stop fail, they are looked at again the next time.
        let texts: Vec<Text> = fresh
            .iter()
            .flat_map(|module| module.instance.texts.clone())
            .collect();
        let ignored = self.ignored.entry(pid).or_default();
        ignored.retain(|text| !texts.contains(text));
        // The thread that loads them waits meanwhile: not for long for one that does not stop.
        while_stopped(pid, StopOptions::once(), |stopped| {
            self.patch(shared, stopped, fresh)
        })
    }

    fn patch(&mut self, shared: &Shared, stopped: &mut Stopped, fresh: Vec<Fresh>) -> Result<()> {
        // Whoever detaches closes the gates first, then stops the process: what we patch before that he will find.
        let header = shared.header()?;
        let attached = header.state == shm::STATE_ATTACHED
            && header.gate_server == std::process::id()
            && self.is_carried_by(stopped.pid());
        if !attached {
            return Ok(());
        }
        stopped.account_to(held::account(shared, true)?);
        self.regions.map(stopped, self.base)?;
        let maps = stopped.maps()?;
        for module in fresh {
            let there = |text: &Text| text.is_mapped_at(&maps, text.start);
            if module.instance.texts.iter().all(there) && module.changes.still_fit(stopped)? {
                module.write(stopped, &maps)?;
                module.java.begin(stopped)?;
                states::begin_loaded(shared, &header, &module.ledger.switchable)?;
                self.instances.push(module.instance);
            }
        }
        python::begin(shared, stopped)?;
        Ok(())
    }
}

impl Fresh {
    /// Stubs, threads that are in the module already (it was loaded when nobody served), text.
    fn write(&self, stopped: &mut Stopped, maps: &[Mapping]) -> Result<()> {
        for (at, stubs) in &self.stubs {
            stopped.write(RemoteAddr(*at), stubs)?;
        }
        let mut frames = sigframe::Frames::of(maps.to_vec());
        for tid in stopped.threads().to_vec() {
            let mut regs = stopped.regs(tid)?;
            if let Some(moved) = lookup(&self.ledger.moves, regs.rip) {
                regs.rip = moved;
                stopped.set_regs(tid, regs)?;
            }
            frames.translate(stopped, regs.rsp, |pc| lookup(&self.ledger.moves, pc))?;
        }
        stopped.flush()?;
        self.changes.write(stopped)
    }
}

impl Instance {
    fn is_patched(&self, pid: Pid) -> bool {
        let mut now = vec![0; self.first_patch.replacement.len()];
        memory::read_remote(pid, RemoteAddr(self.first_patch.address), &mut now).is_ok()
            && now == *self.first_patch.replacement
    }
}

impl ModuleKey {
    fn of(surveyed: &Surveyed) -> ModuleKey {
        let mut hasher = DefaultHasher::new();
        for function in surveyed.numbered() {
            let function = &surveyed.module.functions[function];
            (function.start, &function.name).hash(&mut hasher);
        }
        ModuleKey {
            path: surveyed.path.display().to_string(),
            build_id: surveyed.module.build_id.clone(),
            functions: hasher.finish(),
        }
    }
}

const LOADED_GO: &str =
    "Go code that was loaded later: its stubs would have to be at a certain distance";
const TEXT_RELOCATIONS: &str = "text relocations: the loader changes its code after it was patched";

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
