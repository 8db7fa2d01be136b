//! The profile: what the controller hands over and what everything after it reads.
//!
//! Middle of the way of the data: shared-memory trees -> controller -> [`Profile`] -> analysis -> reports, exports.
//! The types are plain data; [`write_file`] and [`read_file`] carry them to disk and back.
#![forbid(unsafe_code)]

mod profile;

pub use profile::{
    Creator, Function, Meta, Module, Node, NodeFlags, Process, Profile, Skipped, Thread,
};
