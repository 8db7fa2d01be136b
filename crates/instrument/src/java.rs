//! Java: what is known of a HotSpot virtual machine in a target, and how its methods come to be counted
//! (docs/design/managed.md).
//!
//! The machine calls `SharedRuntime::dtrace_method_entry` and `_exit` for every method while its flag `DTraceMethodProbes`
//! is set: the agent's `java.rs` stands in their place. Here the flag is found and written, and code that was compiled
//! without those calls is dropped (`drop.rs`). Where the flag is, the symbols of the library tell (`symbols.rs`); where the
//! fields of a method are, the agent reads from the tables that the library exports.

mod drop;
mod symbols;

use crate::error::{Error, Result};
use crate::memory::read_remote;
use crate::proc::{self, Mapping, Pid, RemoteAddr};

pub use drop::drop_compiled;
use symbols::Symbols;

/// The library that is HotSpot.
pub const LIBRARY: &str = "libjvm.so";

/// From this version on interpreted code asks for the flag when it is made, not when it runs.
const FLAG_IS_LATE: i32 = 24;

/// A HotSpot virtual machine in a process.
#[derive(Clone, Debug)]
pub struct Machine {
    pub pid: Pid,
    symbols: Symbols,
}

impl Machine {
    /// `None` where the process has none. An error says why one that is there cannot be used.
    pub fn of_process(pid: Pid) -> Result<Option<Machine>> {
        let maps = proc::maps(pid)?;
        let Some(mapping) = maps.iter().find(|mapping| is_library(mapping)) else {
            return Ok(None);
        };
        let symbols = Symbols::read(pid, mapping)?;
        Ok(Some(Machine { pid, symbols }))
    }

    /// Where the flag is.
    pub fn flag(&self) -> RemoteAddr {
        self.symbols.flag
    }

    fn byte(&self, place: RemoteAddr) -> Result<u8> {
        let mut byte = [0];
        read_remote(self.pid, place, &mut byte)?;
        Ok(byte[0])
    }

    /// Whether the flag is set, by whomever.
    pub fn is_set(&self) -> Result<bool> {
        Ok(self.byte(self.flag())? != 0)
    }

    /// The version of a machine that runs: 17 for JDK 17. Not known before it has begun.
    fn version(&self) -> Result<i32> {
        let mut version = [0; 4];
        read_remote(self.pid, self.symbols.version, &mut version)?;
        Ok(i32::from_le_bytes(version))
    }

    /// Why the methods of a machine that already runs cannot be counted.
    pub fn refuses_now(&self) -> Result<Option<String>> {
        let version = self.version()?;
        if version >= FLAG_IS_LATE {
            return Ok(Some(format!(
                "interpreted code of JDK {version} does not look for the flag any more: launch the program by \
                 `thalweg record --java on -- java ...`"
            )));
        }
        drop::refusal(self)
    }
}

pub(crate) fn is_library(mapping: &Mapping) -> bool {
    let name = mapping.path.as_deref().and_then(|path| path.file_name());
    mapping.perms.exec && mapping.inode != 0 && name.is_some_and(|name| name == LIBRARY)
}

fn unusable(pid: Pid, why: impl std::fmt::Display) -> Error {
    Error::Other(format!(
        "the Java methods of process {pid} are not counted: {why}"
    ))
}
