//! The region: the memory that a target and its controller share, as the controller reads it.
//!
//! `memory` finds, opens and checks it; above that are the readings that more than one layer needs: the threads that there are,
//! clocks, process numbers, who tends a target, and for how long it stood.

pub mod attendants;
pub mod clock;
pub mod held;
pub mod memory;
pub mod numbers;
pub mod pruning;
pub mod thread_table;

use thalweg_ptrace::{error, proc, remote_memory, tracee};
