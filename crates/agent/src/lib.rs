//! The agent: what runs inside the target. Freestanding: no libc, no allocation, no locks, no thread-local storage of the
//! target, nothing writable of its own. `crates/instrument/build.rs` links it into one flat image that the controller
//! copies beside the stubs; all its memory is the region described in `thalweg_abi`.
//!
//! probes.rs is the hot path. slow.rs is what it falls back to: first events of a thread, missing children, frames left
//! behind by exceptions and longjmp, folding. prune.rs cuts contexts when memory gets short.
//! clock.rs tells working from waiting. stacks.rs follows threads to other
//! stacks, suspended_stacks.rs keeps those that are left, and goroutines.rs does both for Go. record.rs writes down single calls that rules
//! have chosen, values.rs what the rules read of them. gate.rs lets a thread wait for the
//! controller, dynamic.rs gives numbers to functions that are not patched, python.rs finds them for CPython, java.rs stands in for the method probes of HotSpot, limits.rs changes the probes before the program makes them impossible. alloc.rs counts what is allocated, kernel.rs system calls, totals.rs tells the program. Everything is re-entrant: a signal handler may run probes between any two
//! instructions here.
//!
//! The build script of `crates/instrument` compiles this crate a second time, freestanding, and without what is for the
//! host: there it has lints and unit tests, with words in the place of the image's head.
#![cfg_attr(freestanding, no_std, no_main)]

mod alloc;
mod claim;
mod clock;
mod dynamic;
mod free;
mod gate;
mod goroutines;
mod interrupted;
mod java;
mod kernel;
mod limits;
mod memory;
mod migration;
#[cfg(freestanding)]
mod probes;
mod prune;
mod python;
mod record;
mod registers;
mod reuse;
mod slow;
mod stacks;
mod states;
mod suspended_stacks;
mod target_memory;
mod thread_creation;
mod totals;
mod tree;
mod values;

#[cfg(not(freestanding))]
mod host;
#[cfg(not(freestanding))]
pub use host::SOURCE;
#[cfg(test)]
mod tests;

#[cfg(freestanding)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Not reached: nothing here panics, and the linker script refuses the data that panic messages would need.
    loop {}
}
