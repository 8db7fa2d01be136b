//! Call traces: what threads write down about the calls that rules choose, read while the target runs.
//!
//! ```text
//! record areas   -> records   call_trace/drain.rs     a ring per thread, read behind its writer
//! records        -> calls     call_trace/walk.rs      one walk makes the pruned call trees, in call_trace/list.rs
//! ```

mod drain;
pub mod list;
mod making;
mod moving;
mod order;
pub mod walk;

pub use drain::{Drain, recorded};
