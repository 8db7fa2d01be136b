//! The route from a file to a `Module`: headers, symbols from everywhere, frames, pointers,
//! functions.

use crate::debugfile::{self, DebugLookup};
use crate::elf::{Elf, Error};
use crate::pointers::CodeRanges;
use crate::symtab::Symbol;
use crate::{FoundIn, Module, frames, functions, gotable, lazy, pointers, regular, rseq, symtab};
use std::path::Path;

impl Module {
    /// Reads and analyses the file at `path`, with the symbols of its separate debug file if there
    /// is one.
    pub fn load(path: &Path) -> Result<Module, Error> {
        let shown = path.display().to_string();
        let data = match regular::read(path) {
            Ok(data) => data,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
                return Err(Error::NotElf { name: shown });
            }
            Err(source) => {
                return Err(Error::Read {
                    path: shown,
                    source,
                });
            }
        };
        let name = path
            .file_name()
            .map_or_else(|| shown.clone(), |n| n.to_string_lossy().into_owned());
        Module::parse(&name, &data, &DebugLookup::for_path(path))
    }

    /// Analyses the contents of a file that somebody else has opened; `name` is what reports call
    /// it.
    pub fn parse(name: &str, data: &[u8], lookup: &DebugLookup) -> Result<Module, Error> {
        let elf = Elf::parse(name, data)?;
        elf.check_loadable(name)?;
        let dynamic = elf.dynamic_entries();
        let debug_data = debugfile::embedded(&elf);
        let debug_link = debugfile::find(&elf, lookup);
        let mut symbols = symtab::read(&elf, &dynamic, FoundIn::Symtab);
        add_foreign(debug_data.as_deref(), FoundIn::DebugData, &mut symbols);
        add_foreign(debug_link.as_deref(), FoundIn::DebugLink, &mut symbols);

        let sections = elf.load_sections();
        let code = CodeRanges::new(&sections);
        let frames = frames::read(&elf);
        let relocations = pointers::relocations(&elf, &dynamic, &code);
        let rseq = rseq::find(&sections, &relocations, &code);
        let in_data = pointers::in_data(&elf, &sections, &relocations, &code);
        let name_budget = gotable::name_budget(data.len() as u64);
        let lazy_slots = lazy::slots(&elf, &dynamic, &code, name_budget);
        let functions::Built {
            mut functions,
            mut gaps,
            padding,
        } = functions::build(&functions::Sources {
            sections: &sections,
            symbols: &symbols,
            fdes: &frames.fdes,
            cfi: &frames.cfi,
            resolvers: &relocations.resolvers,
            pointers: &in_data,
            fixed: !elf.position_independent(),
            rseq: &rseq,
            entry: elf.entry,
            name_budget,
        });
        let go = gotable::read(&sections, name_budget);
        if let Some(table) = &go {
            gotable::replace(&mut functions, table, &sections);
            gaps.retain(|gap| !table.contains(gap.0));
        }
        let pointers = pointers::collect(
            in_data,
            &pointers::Sources {
                elf: &elf,
                dynamic: &dynamic,
                symbols: &symbols,
                fdes: &frames.fdes,
                code: &code,
                barriers: &rseq.barriers,
            },
        );
        let soname = elf.soname(&dynamic).unwrap_or_default();
        let is_loader = soname.starts_with("ld-linux")
            || soname.starts_with("ld-musl")
            || symbols
                .iter()
                .any(|s| s.found_in == FoundIn::Dynsym && s.name == b"_dl_debug_state");
        Ok(Module {
            name: name.to_owned(),
            build_id: elf.build_id(),
            position_independent: elf.position_independent(),
            entry: elf.entry,
            is_static: elf.is_static_executable(&dynamic),
            is_loader,
            uses_rseq: !rseq.is_empty(),
            is_go: gotable::is_go(&sections),
            go,
            eh_frame: frames.eh_frame,
            eh_frame_hdr: elf.eh_frame_hdr.clone(),
            segments: elf.segments,
            sections,
            functions,
            code_pointers: pointers.code_pointers,
            certain_code: pointers.certain_code,
            pointed_to: pointers.pointed_to,
            gaps,
            padding,
            lazy_slots,
            cfi: frames.cfi,
        })
    }

    /// The function that `address` belongs to.
    pub fn function_at(&self, address: u64) -> Option<usize> {
        let next = self.functions.partition_point(|f| f.start <= address);
        let index = next.checked_sub(1)?;
        (address < self.functions[index].end).then_some(index)
    }

    /// The section that holds `address`.
    pub fn section_at(&self, address: u64) -> Option<&crate::Section> {
        let next = self.sections.partition_point(|s| s.vaddr <= address);
        self.sections[..next].last().filter(|s| address < s.end())
    }

    /// `len` bytes at `address`, if one section holds them all.
    pub fn bytes_at(&self, address: u64, len: u64) -> Option<&[u8]> {
        let section = self.section_at(address)?;
        crate::bytes::slice(&section.bytes, address - section.vaddr, len)
    }
}

fn add_foreign<'d>(data: Option<&'d [u8]>, found_in: FoundIn, symbols: &mut Vec<Symbol<'d>>) {
    if let Some(elf) = data.and_then(|data| Elf::parse("", data).ok()) {
        symbols.extend(symtab::read(&elf, &[], found_in));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    /// A shared library of this machine.
    pub(crate) fn library(name: &str) -> PathBuf {
        let directories = [
            "/usr/lib/x86_64-linux-gnu",
            "/lib/x86_64-linux-gnu",
            "/usr/lib64",
            "/lib64",
            "/usr/lib",
        ];
        directories
            .iter()
            .map(|d| PathBuf::from(d).join(name))
            .find(|p| p.exists())
            .expect("a library of this machine")
    }
}
