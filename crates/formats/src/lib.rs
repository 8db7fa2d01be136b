//! Profiles for other tools: one file per format.
//!
//! End of the way of the data: [`Profile`](thalweg_model::Profile) -> formats -> whatever reads
//! them; and back, in `import`.
#![forbid(unsafe_code)]

pub mod callgrind;
pub mod callgrind_blocks;
pub mod calls;
mod covered;
pub mod csv;
mod each;
pub mod figures;
pub mod firefox;
pub mod folded;
pub mod gcov;
pub mod graph;
pub mod import;
pub mod json;
pub mod lcov;
pub mod otlp;
pub mod parquet;
pub mod pprof;
mod protobuf;
pub mod spans;
pub mod speedscope;
pub mod stacks;
mod table;
mod tracks;
