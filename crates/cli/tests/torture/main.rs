//! The torture test: programs that people run, as their distributions ship them, launched under the real `thalweg` binary and
//! attached to and detached from while they work. Each must give the answers that it gives without, end as it ends without,
//! and have the code of its files in memory afterwards. `docs/torture.md` says how to run it and what came out.

mod batch;
mod cycles;
mod goroutines;
mod hour;
mod processor;
mod row;
mod runtimes;
mod server;
mod servers;
#[path = "../e2e/support/mod.rs"]
#[allow(dead_code)] // Made for the end-to-end tests; a part of it serves here.
mod support;
mod tools;
