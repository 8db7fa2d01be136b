//! `thalweg instrument`: a copy of a program or library with its probes inside, which counts by itself.
//!
//! What an attach computes is computed here and stored; what it does to the process is done by the start code
//! (`crates/agent/start`) before the program begins. The picture of what is stored is in `abi/ahead.rs`, the design in
//! docs/design/aot.md.

mod elf;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use thalweg_abi as shm;
use thalweg_abi::{Ahead, AheadMode, AheadPlace};
use thalweg_model as model;
use thalweg_symbols::Module;

use crate::agent;
use crate::blocks;
use crate::catalogs;
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::leaf;
use crate::ledger::{Ledger, Switchable};
use crate::memory::{FromZeros, IntoBytes};
use crate::prepare::{self, Made, Probes, page_up};
use crate::pruning::Pruning;
use crate::survey::{Survey, Surveyed};
use crate::table::Table;
use elf::{Elf, Kind, Part};

/// The section with the agent and the stubs.
const CODE: &str = ".thalweg.code";
const RET: u8 = 0xc3;
const JUMP: u8 = 0xe9;
const JUMP_LEN: u64 = 5;

/// How the copy counts.
#[derive(Clone, Debug)]
pub struct Options {
    pub filter: Filter,
    pub timed: bool,
    /// Bytes for tree nodes.
    pub memory: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub functions: u32,
    pub skipped: usize,
    pub blocks: u64,
    pub is_library: bool,
    /// Of the file and of its copy, in bytes.
    pub before: u64,
    pub after: u64,
}

/// Writes the copy of `from` to `to`, whole or not at all.
pub fn instrument(from: &Path, to: &Path, options: &Options) -> Result<Done> {
    let io = |source| Error::Io {
        path: from.to_path_buf(),
        source,
    };
    let file = thalweg_symbols::open_regular(from).map_err(io)?;
    let mode = file.metadata().map_err(io)?;
    drop(file);
    if fs::metadata(to).is_ok_and(|to| (to.dev(), to.ino()) == (mode.dev(), mode.ino())) {
        return Err(Error::Refused(format!(
            "{} is the file itself: name another one for the copy",
            to.display()
        )));
    }
    let bytes = fs::read(from).map_err(io)?;
    let before = bytes.len() as u64;
    let elf = Elf::parse(from, bytes)?;
    let survey = Survey::of_file(from, &options.filter)?;
    let copy = Copy::new(from, elf, survey, options)?;
    let mut done = copy.done;
    let bytes = copy.finish(from)?;
    (done.before, done.after) = (before, bytes.len() as u64);
    write(to, &bytes, mode.permissions().mode() & 0o777)?;
    Ok(done)
}

/// Under its name only when it is whole.
fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{name}.{}", std::process::id()));
    let io = |source| Error::Io {
        path: to.to_path_buf(),
        source,
    };
    let written = (|| {
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&beside)?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&beside, to)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written.map_err(io)
}

struct Copy {
    elf: Elf,
    /// The agent's image and the stubs, quiet.
    code: Vec<u8>,
    image: u64,
    places: Vec<AheadPlace>,
    modes: Vec<AheadMode>,
    numbers: Vec<u64>,
    entries: Vec<u64>,
    catalog: Vec<u8>,
    ledger: Vec<u8>,
    header: shm::Header,
    memory: u64,
    name: String,
    done: Done,
}

impl Copy {
    fn new(from: &Path, mut elf: Elf, mut survey: Survey, options: &Options) -> Result<Copy> {
        let refuse = |why: &str| Error::Refused(format!("{}: {why}", from.display()));
        let counters = survey.number_counters();
        let numbers = survey.numbers();
        let functions = survey.planned() as u32;
        let (Some(surveyed), Some(numbers)) = (survey.modules.first(), numbers.first()) else {
            return Err(refuse("has no code"));
        };
        if surveyed.module.is_go {
            return Err(refuse(
                "is a Go program, whose runtime has to be told of code that is added: use `thalweg record`",
            ));
        }
        if let Some(why) = surveyed.left_alone {
            return Err(refuse(why));
        }
        if let Some(why) = confines_itself(surveyed) {
            return Err(refuse(why));
        }
        if functions == 0 {
            return Err(refuse(
                "no function of it can be counted: `thalweg probe` says why",
            ));
        }
        if surveyed.blocks.is_some()
            && let Some(why) = blocks::refusal(surveyed)
        {
            return Err(refuse(&format!("{why}: blocks cannot be counted here")));
        }
        if surveyed.module.is_static && elf.kind == Kind::Library {
            elf.kind = Kind::Program;
        }
        let is_library = elf.kind == Kind::Library;
        let blocks = match counters {
            0 => shm::Blocks::default(),
            _ => shm::Blocks::new(shm::Layout::blocks_offset(functions.into()), counters)
                .ok_or_else(|| blocks::too_many(counters))?,
        };
        let probes = Probes {
            timed: options.timed,
            sites: false,
            records: false,
            alloc: false,
            leaves: !options.timed,
            movable: true,
        };
        let image = elf.free();
        let stubs = image + page_up(agent::IMAGE.len() as u64);
        if stubs + prepare::stub_bytes(surveyed) - surveyed.low > 1 << 30 {
            return Err(refuse(
                "is so big that stubs behind it are out of its code's reach",
            ));
        }
        let make = |numbers: &[u32]| -> Result<Vec<Made>> {
            let mut made = prepare::emit(surveyed, numbers, probes, image, stubs)?;
            made.extend(prepare::emit_blocks(surveyed, &blocks, image, stubs)?);
            Ok(made)
        };
        let made = make(numbers)?;
        let mut code = placed(&made, image);
        let others: Vec<u32> = numbers.iter().map(|number| shifted(*number)).collect();
        let words = differing(&code, &placed(&make(&others)?, image));
        for patch in made.iter().flat_map(|made| &made.code.patches) {
            elf.patch(patch.address, &patch.original, &patch.replacement)
                .ok_or_else(|| refuse("its code is not where its headers say"))?;
        }
        let switchable = made.iter().flat_map(|made| &made.switches.switchable);
        let switchable: Vec<&Switchable> = switchable.collect();
        let modes = modes(&switchable, image, probes);
        let places = quieten(&mut code);
        let table = Table::new(shm::table_entries(functions.into()), &survey.modules);
        let (catalog, skipped) = describe(&survey, options)?;
        // Nothing is ever undone in a process, and addresses are known when the program is loaded.
        let ledger = Ledger::default().encode();
        let layout = shm::Layout::with_blocks(
            functions.into(),
            &blocks,
            catalog.len() as u64,
            ledger.len() as u64,
            options.memory,
        );
        let mut header = header(&layout, options);
        header.functions = functions;
        header.blocks = blocks;
        header.catalog_len = catalog.len() as u64;
        header.ledger_len = ledger.len() as u64;
        header.code[0] = shm::CodeRegion {
            start: image,
            len: code.len() as u64,
        };
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        Ok(Copy {
            elf,
            code,
            image,
            places,
            modes,
            numbers: words,
            entries: table.addresses(),
            catalog,
            ledger,
            header,
            memory: options.memory,
            name: name.into_owned(),
            done: Done {
                functions,
                skipped,
                blocks: counters,
                is_library,
                before: 0,
                after: 0,
            },
        })
    }

    fn finish(mut self, from: &Path) -> Result<Vec<u8>> {
        let no_room = |what: &str| Error::Refused(format!("{}: {what}", from.display()));
        let start = self.image + self.code.len() as u64;
        let own = page_up(start + agent::START.len() as u64);
        let is_library = self.elf.kind == Kind::Library;
        let original = match is_library {
            false => {
                let entry = self.elf.entry();
                self.elf.set_entry(start + agent::START_PROGRAM);
                entry
            }
            true => {
                let init = start + agent::START_LIBRARY;
                let replaced = self.elf.replace_init(init);
                replaced
                    .ok_or_else(|| no_room("its dynamic table has no room for an initialiser"))?
            }
        };
        let mut data = Data {
            address: own,
            bytes: vec![0; size_of::<Ahead>()],
        };
        let headers = data.room(self.elf.headers_len(2));
        let header = data.add(self.header.as_bytes());
        data.bytes.resize(
            data.bytes.len() + shm::PAGE as usize - size_of::<shm::Header>(),
            0,
        );
        let mut name = [0; shm::AHEAD_NAME];
        let kept = self.name.bytes().filter(|byte| *byte != b'/');
        for (place, byte) in name.iter_mut().take(shm::AHEAD_NAME - 1).zip(kept) {
            *place = byte;
        }
        let ahead = Ahead {
            magic: shm::AHEAD_MAGIC,
            version: shm::VERSION,
            flags: if is_library { shm::AHEAD_LIBRARY } else { 0 },
            own,
            original,
            image: self.image,
            code_len: self.code.len() as u64,
            header,
            catalog: data.add(&self.catalog),
            ledger: data.add(&self.ledger),
            entries: data.add(self.entries.as_bytes()),
            entry_count: self.entries.len() as u64,
            places: data.add(self.places.as_bytes()),
            place_count: self.places.len() as u64,
            modes: data.add(self.modes.as_bytes()),
            mode_count: self.modes.len() as u64,
            numbers: data.add(self.numbers.as_bytes()),
            number_count: self.numbers.len() as u64,
            memory: self.memory,
            name,
        };
        data.bytes[..size_of::<Ahead>()].copy_from_slice(ahead.as_bytes());
        let mut code = self.code;
        code.extend_from_slice(agent::START);
        let head = (start - self.image) as usize;
        code[head..head + 8].copy_from_slice(&(own - start).to_le_bytes());
        let parts = [
            Part {
                name: CODE,
                address: self.image,
                bytes: &code,
                executable: true,
            },
            Part {
                name: ".thalweg.data",
                address: own,
                bytes: &data.bytes,
                executable: false,
            },
        ];
        let finished = self.elf.finish(&parts, headers);
        finished.ok_or_else(|| no_room("has no room for more program headers"))
    }
}

/// Whether its libraries may forbid system calls that probes make, or take the GS base, without its code showing when.
fn confines_itself(surveyed: &Surveyed) -> Option<&'static str> {
    let mut sections = surveyed.module.sections.iter();
    let names = sections.find(|section| section.name == ".dynstr")?;
    let has = |wanted: &[u8]| {
        let mut names = names.bytes.split(|byte| *byte == 0);
        names.any(|name| name.starts_with(wanted))
    };
    if has(b"seccomp_load") || has(b"libseccomp.so") {
        return Some(
            "confines itself by libseccomp, which probes would not survive: use `thalweg record`, which sees when",
        );
    }
    has(b"arch_prctl").then_some(
        "calls arch_prctl, which may take the GS segment base from the probes: use `thalweg record`, which sees when",
    )
}

/// What the start code reads, as it is laid out.
struct Data {
    address: u64,
    bytes: Vec<u8>,
}

impl Data {
    /// Where `bytes` will be.
    fn add(&mut self, bytes: &[u8]) -> u64 {
        let at = self.room(0);
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn room(&mut self, len: usize) -> u64 {
        const ALIGNED: usize = 64;
        let at = self.bytes.len().next_multiple_of(ALIGNED);
        self.bytes.resize(at + len, 0);
        self.address + at as u64
    }
}

/// The agent's image and the stubs as they lie from `image` on, whole pages.
fn placed(made: &[Made], image: u64) -> Vec<u8> {
    let mut code = agent::image_for(0);
    for stubs in made.iter().flat_map(|made| &made.code.stubs) {
        let at = (stubs.address - image) as usize;
        if code.len() < at + stubs.bytes.len() {
            code.resize(at + stubs.bytes.len(), 0xcc);
        }
        code[at..at + stubs.bytes.len()].copy_from_slice(&stubs.bytes);
    }
    code.resize(page_up(code.len() as u64) as usize, 0xcc);
    code
}

fn shifted(number: u32) -> u32 {
    match number {
        u32::MAX => u32::MAX,
        number => number + shm::AHEAD_STEP,
    }
}

/// Where a number stands that is another one in the other code: its lowest byte is never the same.
fn differing(code: &[u8], other: &[u8]) -> Vec<u64> {
    let mut places = Vec::new();
    let mut at = 0;
    while at < code.len().min(other.len()) {
        if code[at] == other[at] {
            at += 1;
        } else {
            places.push(at as u64);
            at += 4;
        }
    }
    places
}

fn modes(switchable: &[&Switchable], image: u64, probes: Probes) -> Vec<AheadMode> {
    if !probes.timed {
        return Vec::new();
    }
    let modes = switchable.iter().map(|one| AheadMode {
        function: one.function,
        mode: match one.leaf {
            true => 0,
            false => one.mode_at.saturating_sub(image) as u32,
        },
        flags: match one.leaf && probes.leaves {
            true => shm::PROBE_LEAF,
            false => 0,
        },
        reserved: 0,
    });
    modes
        .filter(|mode| mode.mode != 0 || mode.flags != 0)
        .collect()
}

/// Has every probe and every leaf return at once, as the agent does it where a program has to be left alone (agent/limits.rs). What
/// stood there is told.
fn quieten(code: &mut [u8]) -> Vec<AheadPlace> {
    let mut places = Vec::new();
    let word_at = |code: &[u8], at: usize| {
        let word = code.get(at..at + 8)?;
        word.try_into().ok().map(u64::from_le_bytes)
    };
    for at in agent::probe_places() {
        if let Some(word) = word_at(code, at) {
            places.push(AheadPlace {
                at: at as u64,
                word,
            });
            code[at] = RET;
        }
    }
    let mut at = page_up(agent::IMAGE.len() as u64) as usize;
    while let Some(word) = word_at(code, at) {
        let own = at + 8;
        if word == shm::LEAF_MARK && code[own..].starts_with(&leaf::FIRST) {
            places.push(AheadPlace {
                at: own as u64,
                word: word_at(code, own).unwrap_or_default(),
            });
            code[own] = JUMP;
            let distance = (shm::LEAF_CODE - JUMP_LEN) as u32;
            code[own + 1..own + 5].copy_from_slice(&distance.to_le_bytes());
        }
        at += 8;
    }
    places
}

fn describe(survey: &Survey, options: &Options) -> Result<(Vec<u8>, usize)> {
    let mut catalog = survey.catalog();
    for module in &mut catalog.modules {
        // Its lines are found there later, wherever the copy runs.
        if let Ok(path) = fs::canonicalize(PathBuf::from(&module.path)) {
            module.path = path.display().to_string();
        }
    }
    catalog.meta = model::Meta {
        version: env!("CARGO_PKG_VERSION").into(),
        timed: options.timed,
        memory_limit: options.memory,
        ..model::Meta::default()
    };
    Ok((catalogs::write(&catalog)?, catalog.skipped.len()))
}

/// As far as it is known before the program runs.
fn header(layout: &shm::Layout, options: &Options) -> shm::Header {
    let mut header: shm::Header = FromZeros::new_zeroed();
    header.magic = shm::MAGIC;
    header.version = shm::VERSION;
    header.state = shm::STATE_BUILDING;
    header.shared_size = layout.shared_size;
    header.flags = shm::HEADER_AHEAD
        | shm::HEADER_LAUNCHED
        | shm::HEADER_FOLLOW
        | shm::HEADER_REWRITES
        | if options.timed {
            shm::HEADER_TIMED
        } else {
            shm::HEADER_LEAVES
        };
    header.table_mask = layout.table_entries - 1;
    header.catalog_offset = layout.catalog_offset;
    header.ledger_offset = layout.ledger_offset;
    header.growth_offset = layout.growth_offset;
    header.growth_len = shm::GROWTH_LEN;
    header.functions_limit = layout.functions_limit;
    header.frames_offset = layout.frames_offset;
    header.folded_offset = layout.folded_offset;
    header.nodes_offset = layout.nodes_offset;
    header.nodes_len = layout.nodes_len;
    header.rules_offset = layout.rules_offset;
    header.states_offset = layout.states_offset;
    header.looks.offset = layout.looks_offset;
    Pruning::default().for_header(layout.nodes_len, &mut header.prune);
    header
}

/// Whether a module is a copy that counts by itself: nobody else puts probes into it.
pub fn is_copy(module: &Module) -> bool {
    let mut sections = module.sections.iter();
    sections.any(|section| section.name == CODE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_whatever_they_carry_into() {
        let mut code = vec![0u8; 64];
        let mut other = code.clone();
        for (at, number) in [(3usize, 200u32), (9, 5), (13, 0xffff_ff00), (40, 255)] {
            code[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let number = number.wrapping_add(shm::AHEAD_STEP);
            other[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        assert_eq!(differing(&code, &other), [3, 9, 13, 40]);
    }

    #[test]
    fn a_quiet_image_has_all_probes_return_and_is_what_it_was_again() {
        let mut code = agent::image_for(0);
        code.resize(page_up(code.len() as u64) as usize, 0xcc);
        let before = code.clone();
        let places = quieten(&mut code);
        assert!(places.len() > 50);
        for place in &places {
            let at = place.at as usize;
            assert_eq!(at % 8, 0, "one store has to suffice");
            assert_eq!(code[at], RET);
            code[at..at + 8].copy_from_slice(&place.word.to_le_bytes());
        }
        assert!(code == before);
    }
}
