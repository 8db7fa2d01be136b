//! From the region to a profile: what the threads of a target have counted, read while they run or after their end.
//!
//! `harvest` reads all of it; `call_trace` the single calls that rules chose; `witness` notes what can only be known while a
//! thread lives; `sites` and `lines` say where in the source things are.

pub mod allocations;
pub mod call_trace;
pub mod handed_on;
pub mod harvest;
pub mod kernel;
pub mod lines;
pub mod sites;
pub mod terminal;
pub mod waits;
pub mod witness;

use thalweg_instrument::{cache, call_rules, catalogs, ledger, loaded, states, survey};
use thalweg_ptrace::{error, proc};
use thalweg_region::{accounts, clock, memory, numbers, pruning};
use thalweg_sampler::samples;
