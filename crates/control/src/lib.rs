//! The controller: attaches to a process, instruments it, reads what it counted, and leaves it as it was.
//!
//! Middle of the way of the data: it takes modules (symbols) and plans (patch) to the target, and shared-memory trees
//! back to a profile (model).
//!
//! `survey` -> `prepare` -> `attach` put the instrumentation in; `detach` takes it out; `harvest` reads the trees; `record` chooses single calls and reads them; `family` follows forks and execs.
//! Below them: `tracee` (a stopped process), `launch`, `proc` (what /proc says), `memory` (the shared memory), `ledger`
//! (all that was changed). `switch` changes what single functions' probes do; `samples` looks at stacks beside them. Everything that stops or changes a process happens on one OS thread.

mod accounts;
pub mod agent;
mod alloc;
mod allocations;
pub mod attach;
pub mod attendants;
pub mod budget;
pub mod cache;
mod catalogs;
pub mod clock;
mod coroutines;
pub mod counters;
pub mod detach;
mod enters_kernel;
pub mod error;
pub mod family;
pub mod filter;
pub mod gate;
mod goroutines;
mod handed_on;
pub mod harvest;
pub mod heap;
pub(crate) mod held;
pub mod idle;
mod kernel;
mod later;
pub mod launch;
mod leaf;
pub mod ledger;
mod ledgers;
mod limits;
pub mod lines;
pub mod loaded;
pub mod memory;
mod numbers;
mod place;
mod prepare;
pub mod proc;
pub mod pruning;
pub mod record;
mod remote_memory;
mod rseq;
pub mod samples;
pub mod sidecar;
mod sigframe;
mod sites;
pub mod states;
pub mod survey;
pub mod switch;
mod table;
mod terminal;
mod text;
mod threads;
pub mod tracee;
mod waits;
mod witness;

pub use error::{Error, Result};
pub use thalweg_shm::{HEADER_TIMED, MAGIC, PRIVATE_SIZE, STATE_ATTACHED, VERSION};
