//! Another process: what /proc says of it, its memory, and the state in which it stands, the only one in which it is
//! changed. Lowest of the layers between the command line and a target.
//!
//! `proc` asks the kernel, `tracee` stops and changes a process, `launch` starts one, `sigframe` finds signal frames on its
//! stacks. Everything that stops or changes a process happens on one OS thread.

pub mod error;
pub mod launch;
pub mod proc;
pub mod remote_memory;
pub mod sigframe;
pub mod tracee;

pub use error::{Error, Result};
