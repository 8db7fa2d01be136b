//! From a program's first instruction to the moment when its libraries are in place.
//!
//! A loader calls the empty function `_dl_debug_state` for the debugger's sake whenever its list of libraries changes,
//! and says in `r_debug.r_state` how things stand: RT_ADD before it maps the first, RT_CONSISTENT once all are mapped and
//! relocated. Constructors come later. glibc and musl both do so. A loader without that symbol is
//! followed to the program's entry point instead, where constructors of libraries have already run.

use object::read::elf::{FileHeader, SectionHeader};
use object::{Endianness, elf};

use crate::error::{Error, Result};
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::remote_memory;
use crate::tracee::Stopped;

/// More than any loader: a file beyond it is not one.
const LARGEST_LOADER: u64 = 64 << 20;
const RT_CONSISTENT: u32 = 0;
/// More than enough calls of `_dl_debug_state`: two are usual.
const MOST_VISITS: usize = 64;

pub fn run_to_ready(stopped: &mut Stopped) -> Result<()> {
    let auxv = proc::auxv(stopped.pid())?;
    let value = |kind| {
        auxv.iter()
            .find(|(k, _)| *k == kind)
            .map_or(0, |(_, value)| *value)
    };
    let base = RemoteAddr(value(libc::AT_BASE));
    if base == RemoteAddr(0) {
        return Ok(());
    }
    let maps = stopped.maps()?;
    let state_function = maps
        .iter()
        .find(|mapping| mapping.contains(base) && mapping.is_file())
        .and_then(|mapping| symbol_in(stopped, mapping, "_dl_debug_state"));
    match state_function {
        Some(offset) => {
            let at = RemoteAddr(base.0.wrapping_add(offset));
            for _ in 0..MOST_VISITS {
                stopped.run_to_breakpoint(at)?;
                if is_consistent(stopped, value(libc::AT_PHDR), value(libc::AT_PHNUM)) {
                    return Ok(());
                }
            }
            Err(Error::Lost(format!(
                "the loader of process {} never said that its libraries are in place",
                stopped.pid()
            )))
        }
        None => stopped.run_to_breakpoint(RemoteAddr(value(libc::AT_ENTRY))),
    }
}

/// The value of a symbol in the file behind a mapping.
fn symbol_in(stopped: &Stopped, mapping: &Mapping, name: &str) -> Option<u64> {
    use std::os::unix::fs::FileExt;
    let file = proc::file_of(stopped.pid(), mapping).ok()?;
    let len = file.metadata().ok()?.len();
    if len > LARGEST_LOADER {
        return None;
    }
    let mut data = vec![0; len as usize];
    file.read_exact_at(&mut data, 0).ok()?;
    symbol(&data, name)
}

fn symbol(data: &[u8], name: &str) -> Option<u64> {
    let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    [elf::SHT_DYNSYM, elf::SHT_SYMTAB]
        .into_iter()
        .find_map(|kind| {
            let section = sections
                .iter()
                .find(|section| section.sh_type(endian) == kind)?;
            let strings = sections.strings(endian, data, section.link(endian)).ok()?;
            let symbols = section
                .data_as_array::<elf::Sym64<Endianness>, _>(endian, data)
                .ok()?;
            symbols
                .iter()
                .find(|symbol| {
                    symbol.st_value.get(endian) != 0
                        && strings.get(symbol.st_name.get(endian)) == Ok(name.as_bytes())
                })
                .map(|symbol| symbol.st_value.get(endian))
        })
}

/// Whether `r_debug` says that the libraries are in place.
fn is_consistent(stopped: &Stopped, headers: u64, count: u64) -> bool {
    let mut read = |address: u64, into: &mut [u8]| stopped.read(RemoteAddr(address), into).is_ok();
    let Some(place) = state_address(&mut read, headers, count) else {
        return false;
    };
    let mut state = [0; 4];
    read(place, &mut state) && u32::from_le_bytes(state) == RT_CONSISTENT
}

/// Where a running process's loader says whether its list of objects is in order (`r_debug.r_state`), if it has one.
pub fn list_state(pid: Pid) -> Option<u64> {
    let auxv = proc::auxv(pid).ok()?;
    let value = |kind| auxv.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v);
    let mut read = |address: u64, into: &mut [u8]| {
        remote_memory::read_remote(pid, RemoteAddr(address), into).is_ok()
    };
    state_address(&mut read, value(libc::AT_PHDR)?, value(libc::AT_PHNUM)?)
}

/// The address of `r_debug.r_state`: the program's headers lead to DT_DEBUG, which leads to `r_debug`.
fn state_address(
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    headers: u64,
    count: u64,
) -> Option<u64> {
    const ENTRY: usize = 56;
    const R_STATE: u64 = 24;
    let word = |bytes: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let mut table = vec![0; count.min(256) as usize * ENTRY];
    if !read(headers, &mut table) {
        return None;
    }
    let entries = || table.chunks_exact(ENTRY);
    let kind = |entry: &[u8]| word(entry, 0) as u32;
    // The difference between addresses in memory and in the file, by the one address known in both.
    let slide = entries()
        .find(|entry| kind(entry) == elf::PT_PHDR.0)
        .map_or(0, |entry| headers.wrapping_sub(word(entry, 16)));
    let dynamic = entries().find(|entry| kind(entry) == elf::PT_DYNAMIC.0)?;
    let start = word(dynamic, 16).wrapping_add(slide);
    let mut bytes = vec![0; word(dynamic, 40).min(64 * 1024) as usize];
    if !read(start, &mut bytes) {
        return None;
    }
    let debug = bytes
        .chunks_exact(16)
        .find(|pair| word(pair, 0) == elf::DT_DEBUG.0 as u64)
        .map(|pair| word(pair, 8))
        .filter(|address| *address != 0)?;
    Some(debug.wrapping_add(R_STATE))
}
