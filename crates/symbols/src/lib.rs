//! What is in a module: its functions, their names and extents, and every code address that
//! something may jump to.
//!
//! First station of the way of the data: ELF file -> `Module` -> patch planner. All addresses are
//! the module's own (ELF virtual addresses, no load bias); the controller adds the bias.
//!
//! Inside: `elf` reads headers, `symtab` and `debugfile` collect symbols, `frames` reads the unwind
//! information, `pointers` collects what points into code, `rseq` finds restartable sequences,
//! `functions` makes one list of all of it, `kinds` says what may be probed. `gotable` has what Go
//! programs know of themselves. `store` turns a module into bytes and back. `lines` and `unwind`
//! serve the reports and the moment of attaching, `dwarf` both `lines` and whoever reads types.
#![forbid(unsafe_code)]

mod bytes;
mod cfi;
mod debugfile;
mod dwarf;
mod elf;
mod fragments;
mod frames;
mod functions;
mod gotable;
mod kinds;
mod lazy;
mod lines;
mod lsda;
mod module;
mod names;
mod padding;
mod pointers;
mod reach;
mod regular;
mod rseq;
pub mod store;
mod symtab;
mod text;
mod unwind;

pub use cfi::CfiTable;
pub use debugfile::{DebugLookup, debug_candidates};
pub use dwarf::{Dwarf, Reader, debug_info, debug_info_of};
pub use elf::Error;
pub use gotable::{GoFrame, GoFunction, GoTable};
pub use lines::{Lines, Written};
pub use names::demangle;
pub use reach::syscall_never_returns;
pub use regular::open as open_regular;
pub use rseq::{RSEQ_SIGNATURE, rseq_descriptor};
pub use text::Text;
pub use unwind::{AllRegisters, Frame, HomeOf, ReadWord, Unwinder};

use std::ops::Range;

/// One ELF file, analysed once.
#[derive(Default)]
pub struct Module {
    /// File name only: `libc.so.6`.
    pub name: String,
    pub build_id: Option<Vec<u8>>,
    /// ET_DYN (PIE or shared library), as opposed to a fixed-address executable.
    pub position_independent: bool,
    /// `e_entry`, 0 for most libraries.
    pub entry: u64,
    /// PT_LOAD segments in address order.
    pub segments: Vec<Segment>,
    /// Allocated sections that have contents (or, with no section headers, one per PT_LOAD),
    /// address order.
    pub sections: Vec<Section>,
    /// Sorted by `start`; ranges do not overlap.
    pub functions: Vec<Function>,
    /// Sorted, deduplicated: addresses inside code that can be reached otherwise than by a direct
    /// branch that a disassembler sees: relocation addends and values of pointers in data, landing
    /// pads of exceptions, symbols, starts of FDEs, .init_array, the entry point.
    /// Over-approximation is fine, a missing one is not.
    pub code_pointers: Vec<u64>,
    /// Those of `code_pointers` where an instruction stands for certain: starts that symbols of
    /// functions or unwind information tell, landing pads, the entry point. Sorted.
    pub certain_code: Vec<u64>,
    /// Those of `code_pointers` that data holds: code if something jumps there through a pointer,
    /// else perhaps a string. Sorted.
    pub pointed_to: Vec<u64>,
    /// Nothing but padding, from the end of one function to the start of the next, both of which
    /// symbols with a size or unwind information tell. Start and end, address order.
    pub padding: Vec<(u64, u64)>,
    /// Executable ranges that hold something other than padding and belong to no function:
    /// assembler code without symbol and unwind information, data among code. Start and end,
    /// address order.
    pub gaps: Vec<(u64, u64)>,
    /// Where calls into other modules lead until the loader has bound them; address order.
    pub lazy_slots: Vec<LazySlot>,
    /// CFA rules; see `cfa_is_rsp_plus_8`.
    pub cfi: CfiTable,
    /// Where the unwind information lies.
    pub eh_frame: Option<Range<u64>>,
    pub eh_frame_hdr: Option<Range<u64>>,
    /// The file is the dynamic loader (has `_dl_debug_state`/SONAME ld-linux*, ld-musl*).
    pub is_loader: bool,
    /// Has restartable sequences, whose functions are untouchable.
    pub uses_rseq: bool,
    /// Made by the Go compiler, in part at least.
    pub is_go: bool,
    /// Its Go functions, where their table could be read.
    pub go: Option<GoTable>,
    /// Was linked statically (no PT_INTERP, no PT_DYNAMIC needed libs) and is an executable.
    pub is_static: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub vaddr: u64,
    pub mem_size: u64,
    pub file_offset: u64,
    pub file_size: u64,
    pub executable: bool,
    pub writable: bool,
}

pub struct Section {
    pub name: String,
    pub vaddr: u64,
    /// In bytes.
    pub size: u64,
    /// What it holds. None where that was stored and is needed for the analysis alone.
    pub bytes: Vec<u8>,
    pub executable: bool,
    pub writable: bool,
}

impl Section {
    pub fn end(&self) -> u64 {
        self.vaddr + self.size
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub start: u64,
    /// Exclusive; padding after the last instruction is not part of it.
    pub end: u64,
    /// Demangled, or `sub_1a2b0` where there is no name.
    pub name: String,
    /// As in the symbol table, without the symbol's version.
    pub linkage_name: Option<String>,
    pub kind: FunctionKind,
    pub found_in: FoundIn,
}

/// One slot of the procedure linkage table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LazySlot {
    /// What the slot holds in the file: an address inside the PLT.
    pub stub: u64,
    /// The function that the loader will look for, as in the symbol table, without its version.
    pub symbol: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    Normal,
    /// A part of another function placed elsewhere (`foo.cold`, an FDE whose CFA at its start is
    /// not rsp+8).
    Fragment,
    /// PLT entry or other linker-made stub.
    Plt,
    /// Runs during relocation (STT_GNU_IFUNC symbol value, R_X86_64_IRELATIVE addend).
    IfuncResolver,
    /// `_start`, or what e_entry points to.
    EntryCode,
    /// Must not be probed: signal restorers, clone/vfork and kin, return and indirect thunks,
    /// context switches, rseq and cancellation ranges. The text is the reason shown to the user.
    Untouchable(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FoundIn {
    Symtab,
    Dynsym,
    DebugData,
    DebugLink,
    EhFrame,
    /// Go's own table.
    GoTable,
}
