//! Java: what is known of a HotSpot virtual machine in a target, and how its methods come to be counted
//! (docs/design/managed.md).
//!
//! The machine calls `SharedRuntime::dtrace_method_entry` and `_exit` for every method while its flag `DTraceMethodProbes`
//! is set: the agent's `java.rs` stands in their place. Here the flag is found and written, and code that was compiled
//! without those calls is dropped (`drop.rs`). Where the flag is, the symbols of the library tell (`symbols.rs`); where the
//! fields of a method are, the agent reads from the tables that the library exports.

mod drop;
mod symbols;

use thalweg_abi as shm;
use thalweg_symbols::Function;

use crate::dynamic;
use crate::error::{Error, Result};
use crate::gate::Kind;
use crate::ledger::Data;
use crate::memory::{Shared, read_remote, write_remote};
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::survey::Surveyed;
use crate::tracee::Stopped;

pub use drop::drop_compiled;
use symbols::Symbols;

/// The library that is HotSpot.
pub const LIBRARY: &str = "libjvm.so";

/// From this version on interpreted code asks for the flag when it is made, not when it runs.
const FLAG_IS_LATE: i32 = 24;

/// What stands at a function of the library.
pub(crate) fn gate_of(function: &Function) -> Option<Kind> {
    match function.linkage_name.as_deref()? {
        "_ZN13SharedRuntime19dtrace_method_entryEP10JavaThreadP6Method" => Some(Kind::JavaEntry),
        "_ZN13SharedRuntime18dtrace_method_exitEP10JavaThreadP6Method" => Some(Kind::JavaExit),
        "_ZN15ClassLoaderDataD1Ev"
        | "_ZN15ClassLoaderDataD2Ev"
        | "_ZN6Method19deallocate_contentsEP15ClassLoaderData" => Some(Kind::JavaFree),
        // Without it methods that are off keep a call that does nothing.
        "_ZN8GraphKit29make_dtrace_method_entry_exitEP8ciMethodb" => Some(Kind::JavaCompile),
        _ => None,
    }
}

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

    /// What the probes must know, before the flag is set. One that is set already is somebody else's.
    fn told(&self) -> Result<shm::Java> {
        let flag = match self.is_set()? {
            true => 0,
            false => self.flag().0,
        };
        Ok(shm::Java {
            flag,
            tables: self.symbols.tables,
            version: self.version()? as u32,
            ..shm::Java::default()
        })
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

/// What is done about the machine of a target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// Its flag is to be set.
    machine: Option<Machine>,
    told: Option<shm::Java>,
    /// Why not, for whoever asked for it.
    pub note: Option<String>,
}

impl Plan {
    /// For a target with these modules. `runs`: its machine has begun, if it has one.
    pub(crate) fn of<'a>(
        pid: Pid,
        modules: impl IntoIterator<Item = &'a Surveyed>,
        runs: bool,
    ) -> Plan {
        let mut modules = modules.into_iter();
        let Some(library) = modules.find(|one| one.module.name == LIBRARY) else {
            return Plan::default();
        };
        let result = Plan::with(pid, library, runs);
        result.unwrap_or_else(|error| Plan {
            note: Some(error.to_string()),
            ..Plan::default()
        })
    }

    fn with(pid: Pid, library: &Surveyed, runs: bool) -> Result<Plan> {
        if !library.has_method_probes() {
            return Err(unusable(
                pid,
                "the functions that its virtual machine calls for each method are not to be found (is it stripped?)",
            ));
        }
        let Some(machine) = Machine::of_process(pid)? else {
            return Ok(Plan::default());
        };
        let told = machine.told()?;
        if runs
            && told.flag != 0
            && let Some(reason) = machine.refuses_now()?
        {
            return Err(unusable(pid, reason));
        }
        Ok(Plan {
            machine: Some(machine),
            told: Some(told),
            note: None,
        })
    }

    /// Before any text is changed.
    pub(crate) fn write(&self, shared: &Shared) -> Result<()> {
        match &self.told {
            Some(told) => dynamic::tell_java(shared, told),
            None => Ok(()),
        }
    }

    /// What the ledger says of it, so that any detach finds the flag.
    pub(crate) fn data(&self) -> Option<Data> {
        let flag = self.told.map_or(0, |told| told.flag);
        (flag != 0).then_some(Data::Flag { address: flag })
    }

    /// With the probes in their places: the flag.
    pub(crate) fn begin(&self, stopped: &mut Stopped) -> Result<()> {
        match &self.told {
            Some(told) if told.flag != 0 => stopped.write(RemoteAddr(told.flag), &[1]),
            _ => Ok(()),
        }
    }

    /// With the target running again: what was compiled before goes.
    pub(crate) fn drop_compiled(&self) -> Option<String> {
        let set = self.told.is_some_and(|told| told.flag != 0);
        let machine = self.machine.as_ref().filter(|_| set)?;
        let error = drop_compiled(machine).err()?;
        Some(format!(
            "{error}: methods that were compiled before are not counted"
        ))
    }
}

/// Sets a flag back in a target that stands still.
pub(crate) fn end(stopped: &mut Stopped, maps: &[Mapping], data: &Data) -> Result<()> {
    let Data::Flag { address } = *data else {
        return Ok(());
    };
    let place = RemoteAddr(address);
    // A child that has become another program, or a library that was loaded elsewhere, has something else there.
    let is_data = |m: &Mapping| m.contains(place) && m.perms.write && !m.perms.exec;
    if !maps.iter().any(is_data) {
        return Ok(());
    }
    let mut byte = [0];
    stopped.read(place, &mut byte)?;
    match byte {
        [1] => stopped.write(place, &[0]),
        _ => Ok(()),
    }
}

/// Sets the flag of a process that goes on back, if it was set because of us. Returns the machine that has code to drop.
pub(crate) fn leave(shared: &Shared, pid: Pid) -> Result<Option<Machine>> {
    let told = dynamic::head(shared)?.java.flag;
    let Some(machine) = Machine::of_process(pid)? else {
        return Ok(None);
    };
    // The machine's own symbols say where it is, not the target's memory.
    if told != machine.flag().0 || !machine.is_set()? {
        return Ok(None);
    }
    write_remote(pid, machine.flag(), &[0])?;
    Ok(Some(machine))
}

/// What was compiled with the probes' calls goes, too. It would work as it is, and be a little slower.
pub(crate) fn ended(pid: Pid) {
    if let Ok(Some(machine)) = Machine::of_process(pid) {
        let _ = drop_compiled(&machine);
    }
}

/// What is said of a machine whose methods were not asked for.
pub(crate) fn uncounted(surveyed: &Surveyed) -> Option<String> {
    let is_asked = |(_, kind): &(usize, Kind)| matches!(kind, Kind::JavaEntry | Kind::JavaExit);
    let is_machine = surveyed.module.name == LIBRARY;
    (is_machine && !surveyed.gates.iter().any(is_asked)).then(|| {
        format!("{LIBRARY}: the Java methods that it runs are not counted: --java on does, unless its symbols are stripped")
    })
}

pub(crate) fn is_library(mapping: &Mapping) -> bool {
    let name = mapping.path.as_deref().and_then(|path| path.file_name());
    mapping.perms.exec && mapping.inode != 0 && name.is_some_and(|name| name == LIBRARY)
}

fn unusable(pid: Pid, why: impl std::fmt::Display) -> Error {
    Error::Refused(format!(
        "the Java methods of process {pid} are not counted: {why}"
    ))
}
