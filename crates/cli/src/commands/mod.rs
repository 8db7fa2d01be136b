//! One file per subcommand: its arguments and what it does with them.

pub mod attach;
pub mod begin;
pub mod cache;
pub mod calibrate;
pub mod calls;
pub mod checkpoint;
pub mod completions;
pub mod detach;
pub mod diff;
pub mod export;
pub mod graph;
pub mod import;
pub mod man;
pub mod merge;
pub mod probe;
pub mod record;
pub mod report;
pub mod rules;
pub mod serve;
pub mod status;
pub mod summary;
pub mod switch;
pub mod threads;
pub mod top;
