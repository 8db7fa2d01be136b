//! The target's code before it is touched: which files it has mapped, what functions they hold, what would be patched.

pub mod kept;

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use thalweg_blocks::BlockPlan;
use thalweg_model as model;
use thalweg_patch::{EntersKernel, GoPlan, HelperThread, ModulePlan, Watched};
use thalweg_symbols::{DebugLookup, FunctionKind, Module};

use crate::ahead;
use crate::alloc;
use crate::blocks;
use crate::cache;
use crate::enters_kernel;
use crate::error::{Error, Result};
use crate::filter::{Filter, Python};
use crate::gate;
use crate::java;
use crate::ledger::Text;
use crate::limits;
use crate::proc::{self, Mapping, Pid};
use crate::python;
use crate::survey::kept::FileKey;

/// One module of the target, analysed and planned.
#[derive(Clone)]
pub struct Surveyed {
    pub module: Arc<Module>,
    pub plan: Arc<ModulePlan>,
    /// Functions at which threads wait for the controller; those that the plan does not count are planned here.
    pub gates: Vec<(usize, gate::Kind)>,
    pub gate_plan: Arc<ModulePlan>,
    /// Functions whose blocks are counted, if those are, instead of their calls; and the number of the module's first counter.
    pub blocks: Option<Arc<BlockPlan>>,
    pub first_counter: u32,
    /// Functions that allocate or free, if that is counted, and how; and those by which the program asks for its figures.
    pub allocators: Vec<(usize, u32)>,
    /// Functions that make system calls themselves, if those are counted; in the order of the functions.
    pub enters_kernel: Vec<EntersKernel>,
    /// Functions with system calls by which the program may limit itself.
    pub watched: Vec<Watched>,
    pub path: PathBuf,
    /// What the loader added to the module's addresses.
    pub bias: u64,
    /// From the first to the last mapped byte.
    pub low: u64,
    pub high: u64,
    /// Its executable mappings.
    pub text: Vec<Text>,
    /// The filter keeps the module.
    pub wanted: bool,
    /// Why the whole module is left alone, if it is, or its Go code.
    pub left_alone: Option<&'static str>,
    /// The byte that has to be the highest one of every distance from the text to the stubs.
    pub top_byte: Option<u8>,
    /// Stubs stand as far apart as the Go functions that they belong to.
    pub paced: bool,
    /// Whether it is a CPython whose functions are told apart.
    pub python: python::Found,
}

/// All modules, in address order.
#[derive(Default)]
pub struct Survey {
    pub modules: Vec<Surveyed>,
    /// Executable mappings that could not be looked into: name and reason.
    pub unreadable: Vec<(String, String)>,
    /// Java's methods are to be counted.
    pub wants_java: bool,
    /// What the reader of the profile must know.
    pub notes: Vec<String>,
}

/// Told as the survey goes on: modules done, modules in all, name of the one at hand.
pub type Progress<'a> = &'a (dyn Fn(usize, usize, &str) + Sync);

impl Survey {
    /// Whether functions of Python or Java are told apart in a process that runs.
    pub(crate) fn has_runtime(&self) -> bool {
        let java = |one: &Surveyed| self.wants_java && one.module.name == java::LIBRARY;
        let python = |one: &Surveyed| one.python.function().is_some();
        self.modules.iter().any(|one| java(one) || python(one))
    }

    /// Reads and plans everything that `pid` has mapped. The process runs on.
    pub fn of_process(pid: Pid, filter: &Filter, progress: Progress) -> Result<Survey> {
        let maps = proc::maps(pid)?;
        let files = group_by_file(&maps);
        // The longest first, so that no thread is left with it at the end.
        let mut order: Vec<usize> = (0..files.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(files[index].mapped_bytes()));
        let done = AtomicUsize::new(0);
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<(usize, FileResult)>> = Mutex::default();
        let workers = std::thread::available_parallelism()
            .map_or(1, |n| n.get())
            .min(8)
            .min(files.len().max(1));
        std::thread::scope(|scope| {
            for _ in 0..workers {
                HelperThread::spawn(scope, || {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(&index) = order.get(index) else {
                            return;
                        };
                        let file = &files[index];
                        let result = survey_file(pid, file, filter);
                        progress(
                            done.fetch_add(1, Ordering::Relaxed) + 1,
                            files.len(),
                            &file.name,
                        );
                        results
                            .lock()
                            .expect("no worker panics")
                            .push((index, result));
                    }
                });
            }
        });
        let mut results = results.into_inner().expect("no worker panics");
        results.sort_by_key(|(index, _)| *index);
        let mut survey = Survey {
            wants_java: filter.wants_java(),
            ..Survey::default()
        };
        for (_, result) in results {
            match result {
                Ok(module) => survey.modules.push(module),
                Err(reason) => survey.unreadable.push(reason),
            }
        }
        for mapping in maps.iter().filter(|m| m.perms.exec && m.inode == 0) {
            let name = mapping
                .path
                .as_ref()
                .map_or("anonymous".into(), |p| p.display().to_string());
            if name != "[vsyscall]" {
                survey
                    .unreadable
                    .push((name, "code with no file behind it is left alone".into()));
            }
        }
        Ok(survey)
    }

    /// One file, as if it were mapped at its own addresses.
    pub fn of_file(path: &Path, filter: &Filter) -> Result<Survey> {
        let io = |source| Error::Io {
            path: path.to_path_buf(),
            source,
        };
        let name = path.file_name().unwrap_or(path.as_os_str());
        let file = thalweg_symbols::open_regular(path).map_err(io)?;
        let surveyed = analysed(&name.to_string_lossy(), &file, path.to_path_buf(), filter)
            .map_err(|e| Error::Refused(format!("{}: {e}", path.display())))?;
        Ok(Survey {
            modules: vec![surveyed],
            unreadable: Vec::new(),
            wants_java: filter.wants_java(),
            notes: Vec::new(),
        })
    }

    pub fn planned(&self) -> usize {
        self.modules.iter().map(|m| m.numbered().count()).sum()
    }

    /// Gives each module's counters of blocks their numbers; how many there are.
    pub fn number_counters(&mut self) -> u64 {
        let mut next = 0;
        for surveyed in &mut self.modules {
            surveyed.first_counter = next as u32;
            next += surveyed.counters();
        }
        next
    }

    /// Whether there is a function at which the controller hears of another program.
    pub fn has_gates(&self) -> bool {
        let gates = self.modules.iter().flat_map(|m| &m.gates);
        gates.into_iter().any(|(_, kind)| *kind == gate::Kind::Exec)
    }

    /// Whether there is a function at which a checkpoint can be made.
    pub fn has_checkpoints(&self) -> bool {
        let planned =
            |m: &Surveyed, function| m.plan.functions.iter().any(|p| p.function == function);
        self.modules.iter().any(|m| {
            let mut gates = m.gates.iter();
            gates.any(|&(f, kind)| kind == gate::Kind::Checkpoint && planned(m, f))
        })
    }

    /// Function numbers by module and index in the module; `u32::MAX` where none is given.
    pub fn numbers(&self) -> Vec<Vec<u32>> {
        let mut next = 0;
        self.modules
            .iter()
            .map(|surveyed| {
                let mut numbers = vec![u32::MAX; surveyed.module.functions.len()];
                for function in surveyed.numbered() {
                    numbers[function] = next;
                    next += 1;
                }
                numbers
            })
            .collect()
    }

    /// Everything the profile will say about functions, in the order of their numbers.
    pub fn catalog(&self) -> model::Profile {
        let mut profile = catalog(&self.modules, &self.unreadable);
        profile.notes.extend(self.notes.clone());
        profile
    }
}

/// What the profile will say about these modules, and about those that could not be looked into.
pub fn catalog<'a>(
    modules: impl IntoIterator<Item = &'a Surveyed>,
    unreadable: &[(String, String)],
) -> model::Profile {
    let mut profile = model::Profile::default();
    for (index, surveyed) in modules.into_iter().enumerate() {
        let module = &surveyed.module;
        let whole = |f: &&thalweg_symbols::Function| {
            !matches!(f.kind, FunctionKind::Fragment | FunctionKind::Plt)
        };
        profile.modules.push(model::Module {
            name: module.name.clone(),
            path: surveyed.path.display().to_string(),
            build_id: module.build_id.as_deref().map(hex).unwrap_or_default(),
            functions_total: module.functions.iter().filter(whole).count() as u32,
            functions_patched: surveyed.numbered().count() as u32,
        });
        let first = profile.functions.len() as u32;
        profile
            .enters_kernel
            .extend(enters_kernel::of_module(surveyed, first));
        profile.notes.extend(enters_kernel::unseen(surveyed));
        for function in surveyed.numbered() {
            let function = &module.functions[function];
            profile.functions.push(model::Function {
                name: function.name.clone(),
                module: index as u32,
                address: function.start,
                language: match is_go(module, function) {
                    true => model::Language::Go,
                    false => model::Language::Native,
                },
                ..model::Function::default()
            });
        }
        profile.notes.extend(alloc::unfollowed(surveyed));
        profile.notes.extend(surveyed.python.note());
        profile.notes.extend(java::uncounted(surveyed));
        if let Some(plan) = &surveyed.blocks {
            let first = first + surveyed.plan.functions.len() as u32;
            let (own, counters) = blocks::describe(surveyed, plan, index as u32, first);
            if !own.blocks.is_empty() {
                profile.blocks.push(own);
                profile.block_counters.push(counters);
            }
        }
        let moved = surveyed.blocks.iter().flat_map(|plan| &plan.skipped);
        for skipped in surveyed.plan.skipped.iter().chain(moved) {
            let function = &module.functions[skipped.function];
            profile.skipped.push(model::Skipped {
                name: function.name.clone(),
                module: module.name.clone(),
                address: function.start,
                reason: skipped.reason.to_string(),
            });
        }
        if let Some(reason) = surveyed.left_alone {
            profile.skipped.extend(
                module
                    .functions
                    .iter()
                    .filter(whole)
                    .map(|f| model::Skipped {
                        name: f.name.clone(),
                        module: module.name.clone(),
                        address: f.start,
                        reason: reason.into(),
                    }),
            );
        }
        let gaps: &[(u64, u64)] = if surveyed.wanted { &module.gaps } else { &[] };
        profile
            .skipped
            .extend(gaps.iter().map(|&(start, end)| model::Skipped {
                name: format!("code_{start:x}"),
                module: module.name.clone(),
                address: start,
                reason: format!(
                    "{} bytes of code that no symbol and no unwind information describe",
                    end - start
                ),
            }));
    }
    profile
        .skipped
        .extend(unreadable.iter().map(|(name, reason)| model::Skipped {
            name: name.clone(),
            module: name.clone(),
            address: 0,
            reason: reason.clone(),
        }));
    profile
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A module, or the name of its file and why it could not be looked into.
pub(crate) type FileResult = Result<Surveyed, (String, String)>;

/// The mappings of one file.
pub struct MappedFile<'a> {
    pub name: String,
    mappings: Vec<&'a Mapping>,
}

impl MappedFile<'_> {
    fn mapped_bytes(&self) -> u64 {
        let mappings = self.mappings.iter();
        mappings.map(|m| m.end.0.saturating_sub(m.start.0)).sum()
    }

    /// The first of its executable ones.
    pub fn code(&self) -> &Mapping {
        self.mappings
            .iter()
            .find(|m| m.perms.exec)
            .expect("grouped for having one")
    }

    pub fn texts(&self) -> Vec<Text> {
        let code = self.mappings.iter().filter(|m| m.perms.exec);
        code.map(|m| Text::of(m)).collect()
    }
}

/// Files with at least one executable mapping. One file mapped twice (dlmopen) is two modules.
pub fn group_by_file(maps: &[Mapping]) -> Vec<MappedFile<'_>> {
    let mut files: Vec<MappedFile> = Vec::new();
    for mapping in maps.iter().filter(|m| m.inode != 0) {
        let Some(path) = &mapping.path else { continue };
        let same = |file: &&mut MappedFile| {
            let first = file.mappings[0];
            first.inode == mapping.inode && first.dev == mapping.dev && mapping.offset != 0
        };
        match files.iter_mut().rev().find(same) {
            Some(file) => file.mappings.push(mapping),
            None => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let name = name.strip_suffix(" (deleted)").unwrap_or(&name).to_string();
                files.push(MappedFile {
                    name,
                    mappings: vec![mapping],
                });
            }
        }
    }
    let ours = format!("memfd:{}", thalweg_abi::MEMFD_NAME);
    files.retain(|file| file.mappings.iter().any(|m| m.perms.exec) && file.name != ours);
    files
}

/// Whether it is a function of the module's Go code.
fn is_go(module: &Module, function: &thalweg_symbols::Function) -> bool {
    let table = module.go.as_ref();
    table.is_some_and(|table| table.contains(function.start))
}

pub fn survey_file(pid: Pid, file: &MappedFile, filter: &Filter) -> FileResult {
    let fail = |reason: String| (file.name.clone(), reason);
    let text = file.code();
    let path = text.path.clone().unwrap_or_default();
    let handle = proc::file_of(pid, text).map_err(|e| fail(e.to_string()))?;
    let mut surveyed =
        analysed(&file.name, &handle, path, filter).map_err(|e| fail(e.to_string()))?;
    surveyed
        .settle(file)
        .ok_or_else(|| fail("only a part of the file is mapped here, and is left alone".into()))?;
    if filter.python() != Python::Off && python::is_candidate(&surveyed.module) {
        let mut data = Vec::new();
        let io = |source: std::io::Error| fail(source.to_string());
        (&handle).rewind().map_err(io)?;
        read_all(&handle, &surveyed.path, &mut data).map_err(|e| fail(e.to_string()))?;
        let found = python::find(&surveyed.module, &data);
        let is_asked = filter.python() == Python::On;
        surveyed.python = python::as_planned(found, &surveyed.module, &surveyed.plan, is_asked);
    }
    Ok(surveyed)
}

impl Surveyed {
    /// The functions that have numbers, in the order of these.
    pub fn numbered(&self) -> impl Iterator<Item = usize> + '_ {
        let probed = self.plan.functions.iter().map(|plan| plan.function);
        let moved = self.blocks.iter().flat_map(|plan| &plan.functions);
        probed.chain(moved.copied())
    }

    /// How many counters of blocks it needs.
    pub fn counters(&self) -> u64 {
        self.blocks.as_ref().map_or(0, |plan| plan.counters.into())
    }

    /// From the first to the last byte of its Go code, as loaded.
    pub(crate) fn go_text(&self) -> Option<(u64, u64)> {
        let table = self.module.go.as_ref()?;
        let place = |address: u64| address.wrapping_add(self.bias);
        Some((place(table.start), place(table.end)))
    }

    /// Where a function of its Go code is, as loaded.
    pub(crate) fn go_function(&self, name: &str) -> Option<u64> {
        let function = self.module.go.as_ref()?.named(name)?;
        Some(function.start.wrapping_add(self.bias))
    }

    /// The functions that a Java virtual machine calls for each method have their probes.
    pub(crate) fn has_method_probes(&self) -> bool {
        let plans = [&self.plan, &self.gate_plan];
        let is_planned = |function: usize| {
            let mut functions = plans.iter().flat_map(|plan| &plan.functions);
            functions.any(|planned| planned.function == function)
        };
        let has = |kind: gate::Kind| {
            let mut gates = self.gates.iter();
            gates.any(|gate| gate.1 == kind && is_planned(gate.0))
        };
        [
            gate::Kind::JavaEntry,
            gate::Kind::JavaExit,
            gate::Kind::JavaFree,
        ]
        .into_iter()
        .all(has)
    }

    /// Takes everything back that was planned.
    pub(crate) fn leave_alone(&mut self, reason: &'static str) {
        self.plan = Arc::default();
        self.blocks = None;
        self.top_byte = None;
        self.left_alone = Some(reason);
    }

    /// Notes where the file is mapped; `None` if no segment fits.
    pub fn settle(&mut self, file: &MappedFile) -> Option<()> {
        let (bias, mappings) = as_loaded(&self.module, &file.mappings)?;
        self.bias = bias;
        self.low = mappings.iter().map(|m| m.start.0).min().unwrap_or(0);
        self.high = mappings.iter().map(|m| m.end.0).max().unwrap_or(0);
        let code = mappings.iter().filter(|m| m.perms.exec);
        self.text = code.map(|m| Text::of(m)).collect();
        Some(())
    }
}

/// What is in a file and what is done to it, found out once.
fn analysed(name: &str, file: &File, path: PathBuf, filter: &Filter) -> Result<Surveyed> {
    let key = FileKey::of(file, &path, filter);
    if let Some(surveyed) = key.as_ref().and_then(|key| kept::find(key, file)) {
        return Ok(surveyed);
    }
    let mut data = Vec::new();
    read_all(file, &path, &mut data)?;
    let lookup = DebugLookup::for_path(&path);
    let module =
        Module::parse(name, &data, &lookup).map_err(|error| Error::Refused(error.to_string()))?;
    let surveyed = plan_module(module, path, 0, filter);
    if let Some(key) = key {
        if cache::is_enabled() {
            let debug_files = thalweg_symbols::debug_candidates(&data, &lookup);
            cache::note(&key, file, debug_files, &surveyed);
        }
        kept::keep(key, surveyed.clone());
    }
    Ok(surveyed)
}

fn read_all(mut handle: &File, path: &Path, data: &mut Vec<u8>) -> Result<()> {
    handle
        .read_to_end(data)
        .map(drop)
        .map_err(|source| Error::Io {
            path: path.to_path_buf(),
            source,
        })
}

fn plan_module(module: Module, path: PathBuf, bias: u64, filter: &Filter) -> Surveyed {
    let wanted = filter.keeps_module(&module.name);
    let mut left_alone = match (wanted, module.is_loader, module.is_go) {
        (true, true, _) => Some("the dynamic loader: runs before and beneath everything else"),
        (true, _, _) if ahead::is_copy(&module) => {
            Some("made by `thalweg instrument`: it counts by itself where nobody else does")
        }
        (true, _, true) if module.go.is_none() => {
            Some("Go code of a version whose tables are not known")
        }
        _ => None,
    };
    let enters_kernel = match filter.wants_system_calls() {
        true => thalweg_patch::enters_kernel(&module),
        false => Vec::new(),
    };
    let mut selected: Vec<bool> = module
        .functions
        .iter()
        .map(|f| {
            wanted
                && left_alone.is_none()
                && filter.keeps_function(&f.name, f.linkage_name.as_deref())
                || left_alone.is_none() && filter.is_checkpoint(&f.name, f.linkage_name.as_deref())
                || left_alone.is_none() && filter.wants_allocators() && alloc::kind_of(f).is_some()
                || left_alone.is_none() && alloc::question(f).is_some()
        })
        .collect();
    if left_alone.is_none() {
        let entering = enters_kernel.iter().map(|one| one.function);
        entering.for_each(|function| selected[function] = true);
    }
    let moved = match filter.wants_blocks() {
        true => std::mem::replace(&mut selected, vec![false; module.functions.len()]),
        false => Vec::new(),
    };
    let mut go_plan = GoPlan::default();
    if (0..selected.len()).any(|i| selected[i] && is_go(&module, &module.functions[i])) {
        match thalweg_patch::plan_go(&module, &selected) {
            Ok(plan) => go_plan = plan,
            Err(reason) => {
                left_alone = Some(reason);
                selected.fill(false);
            }
        }
    }
    for (selected, function) in selected.iter_mut().zip(&module.functions) {
        *selected &= !is_go(&module, function);
    }
    let gates = gate::gated(&module, filter);
    let watched = limits::watched(&module, left_alone, &gates);
    let plan_all = |selected: &[bool]| {
        thalweg_patch::plan_watching(&module, selected, &enters_kernel, &watched)
    };
    let mut plan = if selected.contains(&true) {
        plan_all(&selected)
    } else {
        ModulePlan::default()
    };
    if filter.wants_allocators() && !module.is_loader {
        let mut chain: HashSet<usize> = alloc::allocators(&module).iter().map(|a| a.0).collect();
        while alloc::select_jumps(&module, &plan, &mut chain, &mut selected) {
            plan = plan_all(&selected);
        }
    }
    let paced = go_plan.is_paced();
    plan.add(go_plan.plan);
    let mut gates = gates;
    gates.retain(|(function, _)| !is_go(&module, &module.functions[*function]));
    let mut uncounted = vec![false; module.functions.len()];
    let mut clone_sites = Vec::new();
    for &(function, kind) in &gates {
        match kind {
            gate::Kind::NewThread(_) => clone_sites.push(function),
            _ => uncounted[function] = !plan.functions.iter().any(|p| p.function == function),
        }
    }
    let mut gate_plan = if uncounted.contains(&true) {
        thalweg_patch::plan_watching(&module, &uncounted, &[], &watched)
    } else {
        ModulePlan::default()
    };
    gate_plan.add(thalweg_patch::plan_clone_sites(&module, &clone_sites));
    gate_plan.add(limits::plan_unwatched(
        &module,
        &watched,
        [&plan, &gate_plan],
    ));
    let blocks = filter.wants_blocks().then(|| {
        Arc::new(blocks::plan(
            &module,
            &moved,
            &gates,
            &gate_plan,
            filter.is_empty(),
        ))
    });
    let mut allocators = alloc::asking(&module);
    if filter.wants_allocators() && alloc::serves_programs(&module) {
        allocators.extend(alloc::allocators(&module));
    }
    let low = module.segments.first().map_or(0, |s| s.vaddr);
    let high = module.segments.last().map_or(0, |s| s.vaddr + s.mem_size);
    Surveyed {
        module: Arc::new(module),
        plan: Arc::new(plan),
        gates,
        gate_plan: Arc::new(gate_plan),
        blocks,
        first_counter: 0,
        allocators,
        enters_kernel,
        watched,
        path,
        bias,
        low,
        high,
        text: Vec::new(),
        wanted,
        left_alone,
        top_byte: go_plan.top_byte,
        paced,
        python: python::Found::Nothing,
    }
}

/// The bias of a file's mappings, and those of them that lie where the loader put them: a runtime may map a part of a file a
/// second time elsewhere (V8 moves a copy of its builtins next to the code that it generates).
fn as_loaded<'a>(module: &Module, mappings: &[&'a Mapping]) -> Option<(u64, Vec<&'a Mapping>)> {
    let first = module.segments.iter().map(|s| s.vaddr).min()? & !0xfff;
    let end = module.segments.iter();
    let end = end.map(|s| s.vaddr.saturating_add(s.mem_size)).max()?;
    mappings.iter().filter(|m| m.perms.exec).find_map(|text| {
        let bias = bias_of(module, text)?;
        let address = |m: &Mapping| m.start.0.wrapping_sub(bias);
        let own = mappings.iter().copied();
        let own: Vec<_> = own.filter(|m| (first..end).contains(&address(m))).collect();
        let is_there = |vaddr: u64| {
            let at = vaddr.wrapping_add(bias);
            own.iter()
                .any(|m| m.perms.exec && (m.start.0..m.end.0).contains(&at))
        };
        let mut code = module.segments.iter().filter(|s| s.executable);
        code.all(|s| is_there(s.vaddr)).then_some((bias, own))
    })
}

fn bias_of(module: &Module, text: &Mapping) -> Option<u64> {
    let segment = module.segments.iter().find(|s| {
        let first_page = s.file_offset & !0xfff;
        s.executable && text.offset >= first_page && text.offset < s.file_offset + s.file_size
    })?;
    let vaddr = segment
        .vaddr
        .wrapping_sub(segment.file_offset)
        .wrapping_add(text.offset);
    Some(text.start.0.wrapping_sub(vaddr))
}
