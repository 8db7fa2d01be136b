//! The attack suite: hostile and unusual targets, files and users. Each test plays one attack of
//! `docs/security.md` through against the real `thalweg` binary, and fails where it succeeds.

mod clock;
mod containers;
mod death;
mod descriptors;
mod exhausted;
mod filters;
mod frozen;
mod gs_base;
mod hosts;
mod many_threads;
mod names;
mod outputs;
mod own_text;
mod page;
mod readers;
mod rseq;
mod scribbler;
#[path = "../e2e/support/mod.rs"]
#[allow(dead_code)] // Made for the end-to-end tests; a part of it serves here.
mod support;
mod text_data;
mod tracers;
