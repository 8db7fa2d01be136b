//! What a basic block costs at least, in cycles of a processor's model: *virtual cycles*, which no load of the machine moves.
//!
//! ```text
//! form       an instruction -> the form that models tell apart
//! table      of each form: micro-operations, ports, latency; a table for each family of processors
//! block      a block's code -> its cost, and what part of it each instruction has
//! chain      of a block that loops on itself: how long one round waits for the one before
//! system_call  which one a block makes
//! processor  which table is the one of this machine
//! ```
//!
//! A block costs as long as the busiest of its processor's resources needs: micro-operations over the width, or the use of a set
//! of ports over their number. That is what `llvm-mca` calls Block RThroughput. A block that loops on itself costs at least the
//! longest chain from one round to the next. No cache misses, no mispredicted jumps, no overlap between blocks: it says how much
//! work there is, not how long it takes.
//!
//! The tables come from LLVM's scheduling models (`derive`, `NOTICE`).
#![forbid(unsafe_code)]

mod block;
mod chain;
mod form;
mod processor;
mod system_call;
mod table;

pub use block::{cost, shares};
pub use form::{Form, form};
pub use processor::{Processor, by_name, names, of_this_machine};
pub use system_call::system_call_number;
pub use table::{Class, Table};

/// Costs are told in thousandths of a cycle.
pub const PER_CYCLE: u32 = 1000;
