//! Source lines, for the functions that appear in a profile.
//!
//! Reads DWARF of the module or of its separate debug file, on demand: a stripped module costs one
//! look at its headers.

use crate::debugfile::{self, DebugLookup};
use crate::dwarf::{self, Reader};
use crate::elf::{self, Elf};
use crate::regular;
use std::path::{Path, PathBuf};

/// A place in a source file, and the function that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub function: Option<String>,
    pub file: String,
    pub line: u32,
}

/// The line table of one module; empty where there is none.
#[derive(Default)]
pub struct Lines {
    context: Option<addr2line::Context<Reader>>,
    /// Where a separate debug file may be, there or not: another one there, and the lines are
    /// others.
    pub debug_files: Vec<PathBuf>,
}

impl Lines {
    /// Never fails: a module without usable DWARF has no lines, and nor has a file that is another
    /// build than `build_id` (in hexadecimal digits; empty: not known).
    pub fn load(path: &Path, build_id: &str) -> Lines {
        if let Some(none) = has_none(path, build_id) {
            return none;
        }
        match regular::read(path) {
            Ok(data) if build_id.is_empty() || has_build_id(&data, build_id) => {
                Lines::parse(&data, &DebugLookup::for_path(path))
            }
            _ => Lines::default(),
        }
    }

    pub fn parse(data: &[u8], lookup: &DebugLookup) -> Lines {
        let Ok(elf) = Elf::parse("", data) else {
            return Lines::default();
        };
        let context = if has_lines(&elf) {
            context(data)
        } else {
            debugfile::find(&elf, lookup).and_then(|debug| context(&debug))
        };
        Lines {
            context,
            debug_files: debugfile::debug_candidates(data, lookup),
        }
    }

    /// Where the code at `address` was written, innermost first: behind an inlined function stands
    /// where it was called.
    pub fn frames(&self, address: u64) -> Vec<Written> {
        let mut all = Vec::new();
        let Some(context) = &self.context else {
            return all;
        };
        let Ok(mut frames) = context.find_frames(address).skip_all_loads() else {
            return all;
        };
        while let Ok(Some(frame)) = frames.next() {
            let Some(location) = frame.location else {
                continue;
            };
            let name = frame.function.as_ref().and_then(|f| f.raw_name().ok());
            if let (Some(file), Some(line)) = (location.file, location.line) {
                all.push(Written {
                    function: name.map(|name| crate::demangle(&name)),
                    file: file.to_owned(),
                    line,
                });
            }
        }
        all
    }

    pub fn is_empty(&self) -> bool {
        self.context.is_none()
    }

    /// File and line of the code at `address` (the module's own, without load bias).
    pub fn lookup(&self, address: u64) -> Option<(String, u32)> {
        let location = self.context.as_ref()?.find_location(address).ok()??;
        Some((location.file?.to_owned(), location.line?))
    }
}

pub(crate) fn has_build_id(data: &[u8], wanted: &str) -> bool {
    let id = Elf::parse("", data).ok().and_then(|elf| elf.build_id());
    let hex = |id: Vec<u8>| id.iter().map(|b| format!("{b:02x}")).collect::<String>();
    id.map(hex).as_deref() == Some(wanted)
}

/// If the headers of a file tell that there are no lines to be had, without a look at the rest of
/// it.
fn has_none(path: &Path, build_id: &str) -> Option<Lines> {
    let headers = regular::open(path).ok();
    let headers = headers.and_then(|file| elf::read_headers(&file))?;
    let elf = Elf::parse("", &headers).ok()?;
    if !build_id.is_empty() && !has_build_id(&headers, build_id) {
        return Some(Lines::default());
    }
    let debug_files = debugfile::debug_candidates(&headers, &DebugLookup::for_path(path));
    if has_lines(&elf) || debug_files.iter().any(|path| path.exists()) {
        return None;
    }
    Some(Lines {
        context: None,
        debug_files,
    })
}

fn has_lines(elf: &Elf<'_>) -> bool {
    elf.header(".debug_line")
        .or_else(|| elf.header(".zdebug_line"))
        .is_some_and(|h| h.size > 0)
}

fn context(data: &[u8]) -> Option<addr2line::Context<Reader>> {
    // Where variables live, and macros: large, and no line depends on them.
    let unused = [
        gimli::SectionId::DebugLoc,
        gimli::SectionId::DebugLocLists,
        gimli::SectionId::DebugMacinfo,
        gimli::SectionId::DebugMacro,
        gimli::SectionId::DebugTypes,
    ];
    addr2line::Context::from_dwarf(dwarf::load(data, &unused)?).ok()
}
