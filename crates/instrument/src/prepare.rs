//! Everything that can be made before the target is stopped: numbers, catalog, stubs, patches, and where they will lie.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_abi as shm;
use thalweg_model as model;
use thalweg_patch::{Emitted, HelperThread, ModulePlan, Patch, Placement, ProbeEncoder};
use thalweg_symbols::{DebugLookup, Module, Unwinder};

use crate::agent;
use crate::blocks::{self, Counters};
use crate::catalogs;
use crate::error::{Error, Result};
use crate::java;
use crate::launch::list_state;
use crate::ledger::{Home, Ledger, NOBODYS, Switches};
use crate::ledgers;
use crate::limits;
use crate::memory::{FromZeros, IntoBytes, Shared, read_remote};
use crate::place;
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::pruning::Pruning;
use crate::python;
use crate::record::Recording;
use crate::record::tables::Tables;
use crate::states;
use crate::survey::{Survey, Surveyed};
use crate::table::Table;
use crate::text::Changes;

/// How a target is to be measured.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    pub timed: bool,
    /// Contexts are told apart by call site.
    pub sites: bool,
    /// Allocations are counted.
    pub alloc: bool,
    /// Short functions that call nothing are counted at their entry alone, and never timed.
    pub leaves: bool,
    /// Functions are counted at first and not timed, as far as they have that mode.
    pub counted_first: bool,
    /// Bytes for tree nodes.
    pub memory: u64,
    pub pruning: Pruning,
    pub launched: bool,
    /// Only some threads are reported.
    pub chosen: bool,
    /// Fork children are counted.
    pub follow: bool,
    /// Worth the while even if no function is counted.
    pub gates_suffice: bool,
    /// And even if nothing is patched at all.
    pub samples_only: bool,
    /// Single calls are recorded.
    pub records: bool,
}

/// Which of the probes are used.
#[derive(Clone, Copy, Debug)]
pub struct Probes {
    pub timed: bool,
    pub sites: bool,
    pub records: bool,
    pub alloc: bool,
    pub leaves: bool,
    /// Stubs and code will lie somewhere else, as far apart.
    pub movable: bool,
}

impl Measure {
    fn probes(&self) -> Probes {
        Probes {
            timed: self.timed,
            sites: self.sites,
            records: self.records,
            alloc: self.alloc,
            leaves: self.leaves,
            movable: false,
        }
    }
}

impl Probes {
    pub fn of(header: &shm::Header) -> Probes {
        Probes {
            timed: header.flags & shm::HEADER_TIMED != 0,
            sites: header.flags & shm::HEADER_SITES != 0,
            records: header.flags & shm::HEADER_RECORDS != 0,
            alloc: header.has_alloc(),
            leaves: header.flags & shm::HEADER_LEAVES != 0,
            movable: false,
        }
    }
}

/// Room that is kept free behind the stubs. Only address space, and fork children inherit it.
const SPARE: u64 = 8 << 20;

/// One mapping for stubs: the agent's image first, the stubs of one or more modules behind it.
pub struct CodeRegion {
    pub start: u64,
    pub len: u64,
    /// What lies behind this many bytes is for modules that are loaded later.
    pub used: u64,
    /// Stubs by address.
    pub stubs: Vec<(u64, Vec<u8>)>,
}

/// A target's instrumentation, complete but for the address of the data region.
pub struct Build {
    pub survey: Survey,
    pub numbers: Vec<Vec<u32>>,
    pub catalog: Vec<u8>,
    pub ledger: Arc<Ledger>,
    pub ledger_bytes: Vec<u8>,
    pub code: Vec<CodeRegion>,
    /// For a target that runs on until they are made.
    pub changes: Option<Changes>,
    pub table: Table,
    pub layout: shm::Layout,
    pub blocks: shm::Blocks,
    pub measure: Measure,
    pub functions: u32,
    pub skipped: usize,
    /// What to record of single calls.
    pub rules: Option<Tables>,
    pub(crate) java: java::Plan,
}

impl Build {
    pub fn new(
        pid: Pid,
        mut survey: Survey,
        meta: model::Meta,
        measure: Measure,
        recording: Option<&Recording>,
    ) -> Result<Build> {
        let maps = proc::maps(pid)?;
        let java = match survey.wants_java {
            true => java::Plan::of(pid, &survey.modules, !measure.launched),
            false => java::Plan::default(),
        };
        survey.notes.extend(java.note.clone());
        for surveyed in &mut survey.modules {
            let needed = page_up(agent::IMAGE.len() as u64) + stub_bytes(surveyed);
            if surveyed.top_byte.is_some() && distant_place(surveyed, &maps, needed).is_none() {
                surveyed.leave_alone(
                    "Go code of a program so big, or so placed, that no stubs fit where its epilogues can reach them",
                );
            }
        }
        python::keep_first(&mut survey.modules);
        limits::check(&survey)?;
        let functions = survey.planned();
        let gates_suffice = measure.gates_suffice && survey.has_gates();
        let leads_on = gates_suffice || measure.samples_only;
        if functions == 0 && !leads_on {
            return Err(Error::NothingToProfile { pid });
        }
        let counters = survey.number_counters();
        let blocks = match counters {
            0 => shm::Blocks::default(),
            _ => shm::Blocks::new(shm::Layout::blocks_offset(functions as u64), counters)
                .ok_or_else(|| blocks::too_many(counters))?,
        };
        let numbers = survey.numbers();
        let rules = match recording {
            Some(recording) => {
                let lenient = measure.gates_suffice;
                Some(Tables::new(pid, recording, &survey, &numbers, lenient)?)
            }
            None => None,
        };
        // Two things that take long and do not need each other.
        let (described, placed) = std::thread::scope(|scope| {
            let described = HelperThread::spawn(scope, || describe(&survey, meta));
            let placed = place(&survey, &numbers, measure, &blocks, &maps);
            (joined(described), placed)
        });
        let (catalog, skipped) = described?;
        let (mut code, mut ledger) = placed?;
        ledger
            .data
            .extend(survey.modules.iter().filter_map(python::data));
        ledger.data.extend(java.data());
        if measure.counted_first {
            states::count_first(&mut code, &ledger.switchable);
        }
        let ledger = Arc::new(ledger);
        let (ledger_bytes, table, changes) = std::thread::scope(|scope| {
            let encoded = HelperThread::spawn(scope, || ledger.encode());
            let tabled = HelperThread::spawn(scope, || {
                Table::new(shm::table_entries(functions as u64), &survey.modules)
            });
            let changes = match measure.launched {
                true => Ok(None),
                false => Changes::prepare(pid, &ledger).map(Some),
            };
            (joined(encoded), joined(tabled), changes)
        });
        ledgers::keep(&ledger_bytes, &ledger);
        let mut layout = shm::Layout::with_blocks(
            functions as u64,
            &blocks,
            catalog.len() as u64,
            ledger_bytes.len() as u64,
            measure.memory,
        );
        if measure.alloc {
            layout = layout.with_alloc();
        }
        Ok(Build {
            survey,
            numbers,
            catalog,
            ledger,
            ledger_bytes,
            code,
            changes: changes?,
            layout,
            blocks,
            table,
            measure,
            functions: functions as u32,
            skipped,
            rules,
            java,
        })
    }

    /// The header and the tables, for the region at `base`. What threads have is added when they stand still.
    pub fn write_tables(&self, shared: &Shared, header: &shm::Header) -> Result<()> {
        shared.write(self.layout.catalog_offset, &self.catalog)?;
        shared.write(self.layout.ledger_offset, &self.ledger_bytes)?;
        shared.write(shm::TABLE_OFFSET, &self.table.bytes())?;
        for (surveyed, numbers) in self.survey.modules.iter().zip(&self.numbers) {
            python::tell(shared, surveyed, numbers)?;
        }
        if let Some(rules) = &self.rules {
            rules.write(shared, header)?;
        }
        self.java.write(shared)?;
        let counted_first = self.measure.counted_first;
        states::begin(shared, header, &self.ledger.switchable, counted_first)?;
        shared.write(0, header.as_bytes())
    }

    /// The header for a region at `base` that holds nothing yet.
    pub fn header(&self, pid: Pid, base: u64) -> shm::Header {
        let mut header: shm::Header = FromZeros::new_zeroed();
        header.magic = shm::MAGIC;
        header.version = shm::VERSION;
        header.state = shm::STATE_BUILDING;
        header.base = base;
        header.shared_size = self.layout.shared_size;
        header.pid = pid.0 as u32;
        header.inner_pid = proc::inner_number(pid, pid.into()).unwrap_or(header.pid);
        header.flags = if self.measure.timed {
            shm::HEADER_TIMED
        } else {
            0
        } | if crate::clock::has_fsgsbase() {
            shm::HEADER_FSGSBASE
        } else {
            0
        } | if self.measure.launched {
            shm::HEADER_LAUNCHED
        } else {
            0
        } | if self.measure.sites {
            shm::HEADER_SITES
        } else {
            0
        } | if self.measure.records {
            shm::HEADER_RECORDS
        } else {
            0
        } | if self.measure.alloc {
            shm::HEADER_ALLOC
        } else {
            0
        } | if self.measure.leaves {
            shm::HEADER_LEAVES
        } else {
            0
        } | if self.measure.follow {
            shm::HEADER_FOLLOW
        } else {
            0
        } | if self.measure.chosen {
            shm::HEADER_CHOSEN
        } else {
            0
        };
        header.functions = self.functions;
        header.blocks = self.blocks;
        header.table_mask = self.layout.table_entries - 1;
        header.catalog_offset = self.layout.catalog_offset;
        header.catalog_len = self.catalog.len() as u64;
        header.ledger_offset = self.layout.ledger_offset;
        header.ledger_len = self.ledger_bytes.len() as u64;
        header.growth_offset = self.layout.growth_offset;
        header.growth_len = shm::GROWTH_LEN;
        header.functions_limit = self.layout.functions_limit;
        header.list_state = list_state(pid).unwrap_or(0);
        header.frames_offset = self.layout.frames_offset;
        header.folded_offset = self.layout.folded_offset;
        header.nodes_offset = self.layout.nodes_offset;
        header.nodes_len = self.layout.nodes_len;
        header.rules_offset = self.layout.rules_offset;
        let mut modules = self.survey.modules.iter();
        header.goroutine_end = modules
            .find_map(|module| module.go_function("runtime.goexit0"))
            .unwrap_or(0);
        header.alloc_offset = self.layout.alloc_offset;
        header.states_offset = self.layout.states_offset;
        header.looks.offset = self.layout.looks_offset;
        let nodes_len = header.nodes_len;
        self.measure
            .pruning
            .for_header(nodes_len, &mut header.prune);
        for (place, region) in header.code.iter_mut().zip(&self.code) {
            *place = shm::CodeRegion {
                start: region.start,
                len: region.len,
            };
        }
        header
    }

    /// Knows the frames of all modules, and of the code that the kernel gives to every process: a thread that reads the
    /// clock stands there.
    pub fn unwinder(&self, pid: Pid) -> Result<Unwinder> {
        let mut unwinder = Unwinder::new();
        for surveyed in &self.survey.modules {
            unwinder.add_module(&surveyed.module, surveyed.bias);
        }
        let is_vdso = |m: &&Mapping| {
            m.path
                .as_ref()
                .is_some_and(|path| path.as_os_str() == "[vdso]")
        };
        if let Some(mapping) = proc::maps(pid)?.iter().find(is_vdso) {
            let mut image = vec![0; (mapping.end.0 - mapping.start.0) as usize];
            read_remote(pid, mapping.start, &mut image)?;
            if let Ok(module) = Module::parse("[vdso]", &image, &DebugLookup::none()) {
                unwinder.add_module(&module, mapping.start.0);
            }
        }
        Ok(unwinder)
    }

    /// Stubs and agent, into mappings that no thread executes yet.
    pub fn write_code(&self, pid: Pid, base: u64) -> Result<()> {
        let path = PathBuf::from(format!("/proc/{pid}/mem"));
        let memory = std::fs::File::options()
            .write(true)
            .open(&path)
            .map_err(|source| Error::Io {
                path: path.clone(),
                source,
            })?;
        let write = |addr: u64, bytes: &[u8]| {
            memory
                .write_all_at(bytes, addr)
                .map_err(|source| Error::Memory {
                    pid,
                    verb: "write",
                    addr: RemoteAddr(addr),
                    len: bytes.len(),
                    source,
                })
        };
        for region in &self.code {
            write(region.start, &agent::image_for(base))?;
            for (at, stubs) in &region.stubs {
                write(*at, stubs)?;
            }
        }
        Ok(())
    }
}

/// What the profile will say of the target's functions, as bytes; and how many of them are skipped.
fn describe(survey: &Survey, meta: model::Meta) -> Result<(Vec<u8>, usize)> {
    let mut catalog = survey.catalog();
    catalog.meta = meta;
    let bytes = catalogs::write(&catalog)?;
    let skipped = catalog.skipped.len();
    catalogs::keep(&bytes, catalog);
    Ok((bytes, skipped))
}

fn joined<'scope, T: Send + 'scope>(thread: HelperThread<'scope, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Chooses addresses among the gaps of `maps` and makes stubs and patches for them.
fn place(
    survey: &Survey,
    numbers: &[Vec<u32>],
    measure: Measure,
    blocks: &shm::Blocks,
    maps: &[Mapping],
) -> Result<(Vec<CodeRegion>, Ledger)> {
    let modules = &survey.modules;
    let (mut code, sites) = regions(modules, maps)?;
    let mut ledger = Ledger::default();
    for (site, emitted) in sites
        .iter()
        .zip(emit_all(modules, numbers, measure, blocks, &sites))
    {
        for mut emitted in emitted? {
            let rows = std::mem::take(&mut emitted.code.stubs);
            let rows = rows.into_iter().map(|row| (row.address, row.bytes));
            code[site.region].stubs.extend(rows);
            ledger.add(emitted.code, emitted.switches);
        }
    }
    ledger.texts = modules
        .iter()
        .flat_map(|m| m.text.iter().copied())
        .collect();
    let with_numbers = modules.iter().zip(numbers);
    ledger.homes = with_numbers
        .filter_map(|(surveyed, numbers)| Home::of(surveyed, numbers))
        .collect();
    ledger.sort();
    Ok((code, ledger))
}

/// Where the stubs of a module go.
struct Site {
    module: usize,
    region: usize,
    agent: u64,
    stubs: u64,
}

/// Room for the stubs of all modules, and each module's place in it.
fn regions(modules: &[Surveyed], maps: &[Mapping]) -> Result<(Vec<CodeRegion>, Vec<Site>)> {
    let extents: Vec<_> = modules
        .iter()
        .map(|m| (m.low, m.high, stub_bytes(m)))
        .collect();
    let mut taken = maps.to_vec();
    let (mut code, mut sites) = (Vec::new(), Vec::new());
    // Modules that need their stubs at a certain distance have a region of their own.
    let is_near = |i: usize| modules[i].top_byte.is_none();
    let near: Vec<_> = (0..extents.len())
        .map(|i| {
            let (low, high, bytes) = extents[i];
            (low, high, if is_near(i) { bytes } else { 0 })
        })
        .collect();
    let far = (0..extents.len()).filter(|&i| !is_near(i));
    let far = far.map(|i| place::Cluster {
        members: vec![i],
        low: extents[i].0,
        high: extents[i].1,
        stub_bytes: extents[i].2,
    });
    for cluster in place::clusters(&near).into_iter().chain(far) {
        let needed = page_up(agent::IMAGE.len() as u64) + cluster.stub_bytes;
        let place = |len| {
            let first = &modules[cluster.members[0]];
            let start = match first.top_byte {
                Some(_) => distant_place(first, &taken, len)?,
                None => place::find_gap(&taken, cluster.low, cluster.high, len)?,
            };
            Some((start, len))
        };
        let found = place(needed + SPARE).or_else(|| place(needed));
        let (start, len) = found.ok_or_else(|| {
            Error::NoRoom(format!(
                "no free address range of {needed} bytes within reach of {:#x}",
                cluster.low
            ))
        })?;
        taken.push(reserved(start, len));
        taken.sort_by_key(|m| m.start);
        let mut stubs = start + page_up(agent::IMAGE.len() as u64);
        for &module in &cluster.members {
            sites.push(Site {
                module,
                region: code.len(),
                agent: start,
                stubs,
            });
            stubs += extents[module].2;
        }
        code.push(CodeRegion {
            start,
            len,
            used: needed,
            stubs: Vec::new(),
        });
    }
    if code.len() > shm::MAX_CODE_REGIONS {
        return Err(Error::NoRoom(
            "the target's modules lie too far apart for one profile".into(),
        ));
    }
    Ok((code, sites))
}

/// Makes the code of all modules, on as many threads as there are processors for; the results are in the order of `sites`.
fn emit_all(
    modules: &[Surveyed],
    numbers: &[Vec<u32>],
    measure: Measure,
    blocks: &shm::Blocks,
    sites: &[Site],
) -> Vec<Result<Vec<Made>>> {
    /// Below this many functions a thread is not worth its start.
    const WORTH_A_THREAD: usize = 2000;
    let emit_one = |site: &Site| {
        let (module, numbers) = (&modules[site.module], &numbers[site.module]);
        let mut made = emit(module, numbers, measure.probes(), site.agent, site.stubs)?;
        made.extend(emit_blocks(module, blocks, site.agent, site.stubs)?);
        Ok(made)
    };
    let size = |site: &Site| modules[site.module].numbered().count();
    let work: usize = sites.iter().map(size).sum();
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let workers = processors.min(work / WORTH_A_THREAD).min(8);
    if workers < 2 {
        return sites.iter().map(emit_one).collect();
    }
    // The longest first.
    let mut order: Vec<usize> = (0..sites.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(size(&sites[index])));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push((index, emit_one(&sites[index])));
        }
        done
    };
    let mut made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..workers)
            .map(|_| HelperThread::spawn(scope, work))
            .collect();
        let here = work();
        threads.into_iter().flat_map(joined).chain(here).collect()
    });
    made.sort_by_key(|(index, _)| *index);
    made.into_iter().map(|(_, emitted)| emitted).collect()
}

/// Where `len` bytes of stubs go that have to be at a certain distance from their module's Go code.
fn distant_place(surveyed: &Surveyed, maps: &[Mapping], len: u64) -> Option<u64> {
    let (low, high) = surveyed.go_text()?;
    let distance = u64::from(surveyed.top_byte?) << 24;
    // A displacement counts from behind the jump. Stubs that keep pace are all about as far from their functions as the first.
    let (farthest, stubs) = match surveyed.paced {
        true => (low, len.checked_sub(high - low)?),
        false => (high, len),
    };
    let first = farthest.checked_add(distance + shm::PAGE)?;
    let last = low.checked_add(distance + (1 << 24))?.checked_sub(stubs)?;
    place::find_between(maps, first, last, len)
}

/// Room for the stubs of one module, gates included.
pub fn stub_bytes(surveyed: &Surveyed) -> u64 {
    let cave = surveyed.blocks.as_ref().map_or(0, |plan| plan.cave_len());
    cave_offset(surveyed) + page_up(cave)
}

/// Where among them the moved code begins.
fn cave_offset(surveyed: &Surveyed) -> u64 {
    page_up(surveyed.plan.stub_size_bound() + surveyed.gate_plan.stub_size_bound())
}

/// The moved code of one module, and the jumps to it; `at` and `agent` as for [`emit`].
pub fn emit_blocks(
    surveyed: &Surveyed,
    blocks: &shm::Blocks,
    agent: u64,
    at: u64,
) -> Result<Option<Made>> {
    let Some(plan) = surveyed.blocks.as_ref().filter(|plan| plan.counters > 0) else {
        return Ok(None);
    };
    let counters = Counters {
        agent,
        blocks: *blocks,
        first: surveyed.first_counter,
    };
    let place = thalweg_blocks::Placement {
        bias: surveyed.bias,
        base: at + cave_offset(surveyed),
        encoder: &counters,
    };
    let code = thalweg_blocks::emit(&surveyed.module, plan, &place)
        .map_err(|e| Error::Refused(format!("{}: {e}", surveyed.module.name)))?;
    let switches = Switches {
        owners: vec![NOBODYS; code.patches.len()],
        ..Switches::default()
    };
    Ok(Some(Made { code, switches }))
}

/// Code made for one place.
pub struct Made {
    pub code: Emitted,
    pub switches: Switches,
}

/// The stubs and patches of one module, with its stubs from `at` on and the agent at `agent`. A second set is that of
/// the gates at functions that are not counted; they are left out where the first set needs the same bytes.
pub fn emit(
    surveyed: &Surveyed,
    numbers: &[u32],
    probes: Probes,
    agent: u64,
    at: u64,
) -> Result<Vec<Made>> {
    let gates = &surveyed.gates;
    let realise = |plan: &ModulePlan, at: u64, encoder: &dyn ProbeEncoder| {
        let placement = Placement {
            bias: surveyed.bias,
            stub_base: at,
            encoder,
        };
        thalweg_patch::emit(&surveyed.module, plan, &placement)
            .map(|code| Made {
                switches: Switches::of(surveyed, plan, numbers, &code),
                code,
            })
            .map_err(|e| Error::Refused(format!("{}: {e}", surveyed.module.name)))
    };
    let counting = agent::Encoder {
        agent,
        probes,
        numbers,
        gates,
        allocators: &surveyed.allocators,
        python: surveyed.python.function(),
    };
    let mut made = vec![realise(&surveyed.plan, at, &counting)?];
    if !surveyed.gate_plan.functions.is_empty() {
        let behind = at + surveyed.plan.stub_size_bound();
        let waiting = realise(
            &surveyed.gate_plan,
            behind,
            &agent::GateEncoder {
                agent,
                gates,
                movable: probes.movable,
            },
        )?;
        if !overlap(&made[0].code.patches, &waiting.code.patches) {
            made.push(waiting);
        }
    }
    Ok(made)
}

fn overlap(some: &[Patch], others: &[Patch]) -> bool {
    let end = |p: &Patch| p.address + p.original.len() as u64;
    others.iter().any(|other| {
        some.iter()
            .any(|one| one.address < end(other) && other.address < end(one))
    })
}

pub fn reserved(start: u64, len: u64) -> Mapping {
    Mapping {
        start: RemoteAddr(start),
        end: RemoteAddr(start + len),
        perms: Default::default(),
        offset: 0,
        dev: (0, 0),
        inode: 0,
        path: None,
    }
}

pub fn page_up(n: u64) -> u64 {
    (n + shm::PAGE - 1) & !(shm::PAGE - 1)
}
