//! Putting probes into a process, changing what they do, and taking them out.
//!
//! ```text
//! survey     what is in its modules, and what can be patched          survey, cache, filter, alloc, enters_kernel, limits
//! plan       where stubs and tables go, and what is in them           prepare, place, agent, blocks, table, catalogs, call_rules, leaf
//! ledger     all that is changed, kept in the region                  ledger, ledgers, text
//! file       a copy of a program with all of it inside               ahead
//! stop       attach, detach, switch, loaded (libraries), gate         threads, coroutines, goroutines, rseq, states
//! ```

pub mod agent;
pub mod ahead;
pub mod alloc;
pub mod attach;
pub mod blocks;
pub mod cache;
pub mod call_rules;
pub mod catalogs;
pub mod coroutines;
pub mod detach;
pub mod dynamic;
pub mod enters_kernel;
pub mod filter;
pub mod gate;
pub mod goroutines;
pub mod idle;
pub mod java;
pub mod later;
pub mod leaf;
pub mod ledger;
pub mod ledgers;
pub mod limits;
pub mod loaded;
pub mod place;
pub mod prepare;
pub mod python;
mod room;
pub mod rseq;
pub mod states;
pub mod survey;
pub mod switch;
pub mod table;
pub mod text;
pub mod threads;

use call_rules as record;
use thalweg_ptrace::{error, launch, proc, sigframe, tracee};
use thalweg_region::{attendants, clock, held, memory, numbers, pruning};
