//! End-to-end tests: real programs under the real `thalweg` binary. Each module keeps one kind of promise.

mod alone;
mod attach;
mod bad_input;
mod checkpoints;
mod exact;
mod filters;
mod harmless;
mod loaded;
mod processes;
mod real;
mod references;
mod reports;
mod stacks;
mod support;
mod threads;
mod transparent;
mod tree;
