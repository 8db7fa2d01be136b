//! Drivers for everything that reads bytes which somebody else has written: files of other tools, programs and their debug
//! information, and the memory that a target carries. Each takes any bytes; any answer is fine, but no panic, no endless loop
//! and no memory without bound.
//!
//! ```text
//! fuzz TARGET [--seconds N] [--seed S] [FILE]...     by hand, for as long as one likes      main.rs
//! tests/short.rs                                     a fixed number of inputs, in `./test`
//! corpus/TARGET/*                                    what mutations begin with               made by `fuzz seeds`, seeds.rs
//! ```

pub mod corpus;
mod files;
pub mod mutate;
mod programs;
mod region;

pub use programs::has_go_table;
pub use region::{Image, image_of, is_understood};

/// One reader.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// How many inputs the short run tries: about a second of them.
    pub inputs: u64,
}

const fn target(name: &'static str, inputs: u64, run: fn(&[u8])) -> Target {
    Target { name, run, inputs }
}

/// All of them.
pub const TARGETS: [Target; 15] = [
    target("profile", 3000, files::profile),
    target("pprof", 3000, files::pprof),
    target("callgrind", 3000, files::callgrind),
    target("folded", 3000, files::folded),
    target("perf", 3000, files::perf_script),
    target("chrome", 3000, files::chrome),
    target("rules", 3000, files::rules),
    target("bytecode", 5000, programs::bytecode),
    target("values", 3000, programs::values),
    target("elf", 300, programs::elf),
    target("dwarf", 300, programs::dwarf),
    target("unwind", 300, programs::unwind),
    target("pclntab", 500, programs::elf),
    target("ledger", 2000, region::ledger),
    target("region", 120, region::region),
];

pub fn named(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
