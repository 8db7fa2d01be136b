//! The profile: what the controller hands over and what everything after it reads.
//!
//! Middle of the way of the data: shared-memory trees -> controller -> [`Profile`] -> analysis ->
//! reports, exports. The types are plain data; [`write_file`] and [`read_file`] carry them to disk
//! and back.
//!
//! From the file inwards: `file` (a name on disk) -> `container` (magic, compression, checksum) ->
//! `body` (sections) -> `nodes` (the columns of a tree) -> `codec` (bytes). `stream` reads a file's
//! recorded calls some at a time.
#![forbid(unsafe_code)]

mod blocks;
mod body;
mod calls;
mod codec;
mod container;
mod counting;
mod error;
mod file;
mod ids;
mod kernel;
mod language;
mod merge;
mod metrics;
mod nodes;
mod profile;
mod samples;
mod sites;
mod stream;
mod switched;
mod timeline;
mod validate;
mod values;

pub use blocks::{Block, BlockCounters, Ending, ModuleBlocks, NotTaken, PER_CYCLE};
pub use calls::{Call, CallEnd, Recorded, Rule, Signature};
pub use container::{read, write, write_quickly};
pub use counting::Counting;
pub use error::{FileError, ReadError};
pub use file::{OutputFile, read_file, write_file};
pub use ids::FuncId;
pub use kernel::{EntersKernel, Made, SystemCall, system_call_name};
pub use language::Language;
pub use merge::Merger;
pub use metrics::{Metric, Metrics, NodeMetrics, Unit};
pub use profile::{
    Creator, End, Function, Held, KINDS_OF_WORK, KernelCounts, Meta, Module, Node, NodeFlags,
    ProbeCosts, Process, Profile, Pruned, Site, SiteId, Skipped, Target, Thread,
};
pub use samples::{SampleNode, SampledFunction, Sampling};
pub use stream::{CallBlock, CallFile};
pub use switched::{ProbeState, Switched};
pub use timeline::{Mark, TimedSample, Timeline, Wait, WaitsOf};
pub use validate::Invalid;
pub use values::{CallValue, CallValues, ValuesAt};
