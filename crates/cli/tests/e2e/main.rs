//! End-to-end tests: real programs under the real `thalweg` binary. Each module keeps one kind of promise.

mod alone;
mod attach;
mod bad_input;
mod calls;
mod checkpoints;
mod exact;
mod filters;
mod goroutines;
mod harmless;
mod imports;
mod live_reports;
mod loaded;
mod pictures;
mod processes;
mod real;
mod references;
mod reports;
mod sites;
mod stacks;
mod support;
mod threads;
mod top;
mod transparent;
mod tree;
mod truth;
mod waits;
