//! End-to-end tests: real programs under the real `thalweg` binary. Each module keeps one kind of promise.

// Until the engine stands, its tests are compiled only with `--cfg engine`.
#![allow(unexpected_cfgs)]
#![cfg_attr(not(engine), allow(dead_code))]

#[cfg(engine)]
mod alone;
#[cfg(engine)]
mod attach;
#[cfg(engine)]
mod bad_input;
#[cfg(engine)]
mod exact;
#[cfg(engine)]
mod filters;
#[cfg(engine)]
mod harmless;
#[cfg(engine)]
mod real;
mod references;
mod support;
#[cfg(engine)]
mod transparent;
#[cfg(engine)]
mod tree;
