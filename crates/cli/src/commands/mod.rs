//! One file per subcommand: its arguments and what it does with them.

pub mod attach;
pub mod bench;
pub mod checkpoint;
pub mod completions;
pub mod detach;
pub mod export;
pub mod man;
pub mod probe;
pub mod record;
pub mod report;
pub mod status;
