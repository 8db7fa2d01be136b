//! End-to-end tests: real programs under the real `thalweg` binary. Each module keeps one kind of promise.

mod references;
mod support;
