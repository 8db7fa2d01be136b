//! Where things are in `libjvm.so`, by its own symbols. The file is hostile: it is read up to a bound, and an address counts only if it lies in
//! one of the library's segments that may hold it.

use std::io::Read;

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, elf};

use super::unusable;
use crate::error::Result;
use crate::proc::{self, Mapping, Pid, RemoteAddr};

/// Larger than any build, with debug information inside.
const MOST: u64 = 1 << 30;

/// Addresses in the target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Symbols {
    /// The byte of `DTraceMethodProbes`.
    pub flag: RemoteAddr,
    /// Further flags: nobody may attach by the socket; SIGQUIT is the program's own.
    pub attach_disabled: RemoteAddr,
    pub signals_reduced: RemoteAddr,
    /// `JvmtiExport::_all_dependencies_are_recorded`: a redefinition drops only code that depends on what it changes.
    pub dependencies_known: RemoteAddr,
    pub version: RemoteAddr,
    /// What the library exports about its own structures, in the order of [`TABLES`].
    pub tables: [u64; TABLES.len()],
}

/// How the agent walks the tables of fields and types.
pub(super) const TABLES: [&str; 9] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMTypeEntryArrayStride",
];

const VARIABLES: [&str; 5] = [
    "DTraceMethodProbes",
    "DisableAttachMechanism",
    "ReduceSignalUsage",
    "_ZN11JvmtiExport30_all_dependencies_are_recordedE",
    "_ZN19Abstract_VM_Version17_vm_major_versionE",
];

impl Symbols {
    pub(super) fn read(pid: Pid, mapping: &Mapping) -> Result<Symbols> {
        let mut bytes = Vec::new();
        let file = proc::file_of(pid, mapping)?;
        let read = file.take(MOST).read_to_end(&mut bytes);
        read.map_err(|error| unusable(pid, error))?;
        Symbols::of(&bytes, mapping).map_err(|why| unusable(pid, why))
    }

    fn of(bytes: &[u8], mapping: &Mapping) -> Result<Symbols, String> {
        let file = ElfFile64::<Endianness>::parse(bytes).map_err(|error| error.to_string())?;
        let endian = file.endian();
        let segments = || {
            let headers = file.elf_program_headers().iter();
            headers.filter(|header| header.p_type(endian) == elf::PT_LOAD)
        };
        let is_code = |header: &elf::ProgramHeader64<Endianness>| {
            (header.p_flags(endian) & elf::PF_X) == elf::PF_X
        };
        // What the loader added to the addresses of the file.
        let text = segments().find(|header| {
            let from = header.p_offset(endian) & !0xfff;
            let to = from.saturating_add(header.p_filesz(endian));
            is_code(header) && (from..to).contains(&mapping.offset)
        });
        let text = text.ok_or("its library is not mapped as the file says")?;
        let first = text.p_vaddr(endian).wrapping_sub(text.p_offset(endian));
        let bias = mapping
            .start
            .0
            .wrapping_sub(first.wrapping_add(mapping.offset));
        let is_data = |address: u64| {
            segments().any(|header| {
                let offset = address.wrapping_sub(header.p_vaddr(endian));
                !is_code(header) && offset.saturating_add(8) <= header.p_memsz(endian)
            })
        };
        let names = || VARIABLES.into_iter().chain(TABLES);
        let mut found = [None; VARIABLES.len() + TABLES.len()];
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let Ok(name) = symbol.name() else { continue };
            let index = names().position(|wanted| wanted == name);
            if let Some(index) = index
                && symbol.is_definition()
                && is_data(symbol.address())
            {
                found[index].get_or_insert(symbol.address().wrapping_add(bias));
            }
        }
        let mut missing = names().zip(&found).filter(|(_, at)| at.is_none());
        if let Some((name, _)) = missing.next() {
            return Err(format!(
                "{} has no symbol {name}: it is stripped, or no HotSpot of a known kind",
                super::LIBRARY
            ));
        }
        let at = |index: usize| found[index].unwrap_or(0);
        Ok(Symbols {
            flag: RemoteAddr(at(0)),
            attach_disabled: RemoteAddr(at(1)),
            signals_reduced: RemoteAddr(at(2)),
            dependencies_known: RemoteAddr(at(3)),
            version: RemoteAddr(at(4)),
            tables: std::array::from_fn(|index| at(VARIABLES.len() + index)),
        })
    }
}
