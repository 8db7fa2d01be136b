//! (to come)

pub mod filter;
pub mod error;
pub mod launch;
pub mod proc;
pub mod tracee;
