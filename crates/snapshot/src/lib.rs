//! From the region to a profile: what the threads of a target have counted, read while they run or after their end.
//!
//! `snapshot` reads all of it; `call_trace` the single calls that rules chose; `thread_registry` notes what can only be known while a
//! thread lives; `sites` and `lines` say where in the source things are.

pub mod allocations;
pub mod blocks;
pub mod call_trace;
pub mod kernel;
pub mod lines;
pub mod merge_recycled;
pub mod sites;
pub mod snapshot;
pub mod terminal;
pub mod thread_registry;
pub mod waits;

use thalweg_instrument::{cache, call_rules, catalogs, ledger, loaded, states, survey};
use thalweg_ptrace::{error, proc};
use thalweg_region::{clock, memory, numbers, pruning, thread_table};
use thalweg_sampler::samples;
