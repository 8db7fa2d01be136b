//! A whole recording: all processes of a target from attach to profile, kept within a budget.
//!
//! Uppermost of the layers that touch a process. `process_tree` follows forks and execs; `budget` says which functions are worth their
//! probes; `sidecar` stays beside a target that nobody records.

pub mod budget;
pub mod heap;
pub mod process_tree;
pub mod sidecar;

use thalweg_instrument::{agent, attach, detach, gate, later, loaded, states, switch};
use thalweg_ptrace::{error, launch, proc, tracee};
use thalweg_region::{attendants, clock, held, memory, numbers, thread_table};
use thalweg_sampler::samples;
use thalweg_snapshot::snapshot;
