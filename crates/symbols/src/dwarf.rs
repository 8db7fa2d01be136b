//! Debug information as gimli reads it: of the module itself, of its separate debug file, and of
//! the supplementary file that several debug files of one package may share.

use crate::bytes::c_string;
use crate::debugfile::{self, DebugLookup};
use crate::elf::Elf;
use crate::lines::has_build_id;
use crate::regular;
use gimli::{EndianArcSlice, LittleEndian, SectionId};
use object::{Object, ObjectSection};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub type Reader = EndianArcSlice<LittleEndian>;
pub type Dwarf = gimli::Dwarf<Reader>;

/// What all debug sections together may unpack to.
const UNPACKED_LIMIT: u64 = 4 << 30;

/// The types of the module at `path`; `None` where there is no debug information.
pub fn debug_info(path: &Path) -> Option<Dwarf> {
    debug_info_of(path, "")
}

/// What Go's linker leaves in each program.
const GO_SECTIONS: [&str; 3] = [".go.buildinfo", ".note.go.buildid", ".gopclntab"];

/// The same, unless the file there is another build than `build_id` (in hexadecimal digits; empty
/// where there is none to compare with).
pub fn debug_info_of(path: &Path, build_id: &str) -> Option<Dwarf> {
    let data = regular::read(path).ok()?;
    if !build_id.is_empty() && !has_build_id(&data, build_id) {
        return None;
    }
    let elf = Elf::parse("", &data).ok()?;
    let lookup = DebugLookup::for_path(path);
    // The line table is not used, but a unit is not read without it. Only of Go's functions is it
    // asked where variables are.
    let mut unused = vec![SectionId::DebugMacinfo, SectionId::DebugMacro];
    if !GO_SECTIONS.iter().any(|section| has(&elf, section)) {
        unused.extend([SectionId::DebugLoc, SectionId::DebugLocLists]);
    }
    let separate;
    let debug: &[u8] = if has(&elf, ".debug_info") {
        &data
    } else {
        separate = debugfile::find(&elf, &lookup)?;
        &separate
    };
    let mut dwarf = load(debug, &unused)?;
    if let Some(shared) = supplementary(debug, &lookup) {
        dwarf.set_sup(load(&shared, &unused)?);
    }
    Some(dwarf)
}

fn has(elf: &Elf<'_>, section: &str) -> bool {
    let packed = section.replacen(".debug", ".zdebug", 1);
    elf.header(section)
        .or_else(|| elf.header(&packed))
        .is_some_and(|h| h.size > 0 && h.kind != crate::elf::SHT_NOBITS)
}

/// The file that .gnu_debugaltlink names: by its build id, or by its path below the directories of
/// debug files.
fn supplementary(debug: &[u8], lookup: &DebugLookup) -> Option<Vec<u8>> {
    let elf = Elf::parse("", debug).ok()?;
    let contents = elf.contents(elf.header(".gnu_debugaltlink")?)?;
    let name = c_string(contents, 0, 4096)?;
    let id = contents.get(name.len() + 1..)?;
    let name = PathBuf::from(std::str::from_utf8(name).ok()?);
    let below: PathBuf = name
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
    let candidates = lookup.roots.iter().flat_map(|root| {
        let by_id = hex
            .split_at_checked(2)
            .map(|(a, b)| root.join(".build-id").join(a).join(format!("{b}.debug")));
        [by_id, Some(root.join(&below))]
    });
    let mut all = candidates
        .flatten()
        .chain(name.is_absolute().then(|| name.clone()));
    all.find_map(|path| {
        let data = regular::read(&path).ok()?;
        let found = Elf::parse("", &data).ok()?.build_id();
        (found.as_deref() == Some(id)).then_some(data)
    })
}

pub(crate) fn load(data: &[u8], unused: &[SectionId]) -> Option<Dwarf> {
    let file = object::File::parse(data).ok()?;
    let mut budget = UNPACKED_LIMIT;
    let mut load = |id: SectionId| -> Result<Reader, gimli::Error> {
        let bytes = if unused.contains(&id) {
            Arc::default()
        } else {
            section(&file, id.name(), &mut budget).unwrap_or_default()
        };
        Ok(Reader::new(bytes, LittleEndian))
    };
    gimli::Dwarf::load(&mut load).ok()
}

fn section(file: &object::File<'_>, name: &str, budget: &mut u64) -> Option<Arc<[u8]>> {
    let section = file.section_by_name(name)?;
    let packed = section.compressed_data().ok()?;
    // zlib and zstd cannot unpack much beyond a thousandfold; a header that promises more is a lie.
    let plausible = (packed.data.len() as u64)
        .saturating_mul(2048)
        .saturating_add(1 << 16);
    if packed.uncompressed_size > plausible {
        return None;
    }
    *budget = budget.checked_sub(packed.uncompressed_size)?;
    Some(Arc::from(packed.decompress().ok()?.into_owned()))
}
