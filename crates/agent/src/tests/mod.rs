//! What the agent counts, on the host: its slow path is called as the probes call it, and the trees are compared with what a
//! plain model of the calls says. Its hot path, in assembler, is tested in real targets (`crates/cli/tests/e2e`).

mod pruning;
mod suspended;
mod target;
mod trees;
