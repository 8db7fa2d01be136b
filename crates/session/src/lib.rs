//! A whole recording: all processes of a target from attach to profile, kept within a budget.
//!
//! Uppermost of the layers that touch a process. `family` follows forks and execs; `budget` says which functions are worth their
//! probes; `sidecar` stays beside a target that nobody records.

pub mod budget;
pub mod family;
pub mod heap;
pub mod sidecar;

use thalweg_instrument::{agent, attach, detach, gate, later, loaded, states, switch};
use thalweg_ptrace::{error, launch, proc, tracee};
use thalweg_region::{accounts, attendants, clock, held, memory, numbers};
use thalweg_sampler::samples;
use thalweg_snapshot::harvest;
