//! Whether the target's cgroup has room for what is put into it: beyond its limit the kernel kills the target, or
//! something beside it.
//!
//! | what is charged to the target | bytes |
//! |---|---|
//! | stubs and agent | as many as there are |
//! | text | each page that is changed becomes its own |
//! | threads | some pages each |
//! | trees | as contexts come, up to `--memory`: no more than a part of what is left |
//!
//! Tables and slots are charged to us, who write them.

use std::collections::HashSet;

use thalweg_abi as shm;

use crate::error::{Error, Result};
use crate::prepare::Build;
use crate::proc::{self, MemoryRoom, Pid};

/// Of what is left the trees get at most one part in so many: the program goes on to need some.
const TREES_PART: u64 = 4;
/// As little as the option takes.
const LEAST_TREES: u64 = 1 << 20;
/// Private page, slot, shadow stack, first contexts.
const THREAD_BYTES: u64 = 8 * shm::PAGE;
/// Page tables, and what the kernel charges ahead.
const SLACK: u64 = 512 << 10;

/// What a target may take.
pub struct Room {
    room: Option<MemoryRoom>,
    /// For the trees.
    pub trees: u64,
}

impl Room {
    /// `wanted`: for the trees.
    pub fn of(pid: Pid, wanted: u64) -> Room {
        let room = proc::memory_room(pid);
        let most = room.map_or(u64::MAX, |room| (room.left / TREES_PART).max(LEAST_TREES));
        Room {
            room,
            trees: wanted.min(most),
        }
    }

    /// What is to be told of it.
    pub fn note(&self, wanted: u64) -> Option<String> {
        let room = self.room.filter(|_| self.trees < wanted)?;
        Some(format!(
            "the target's cgroup has {} left of {}: contexts get {}, not the {} of --memory",
            mebibytes(room.left),
            mebibytes(room.limit),
            mebibytes(self.trees),
            mebibytes(wanted)
        ))
    }

    /// Before anything is put into the target.
    pub fn check(&self, pid: Pid, build: &Build) -> Result<()> {
        let Some(room) = self.room else {
            return Ok(());
        };
        let needed = taken_by(pid, build) + self.trees;
        if needed <= room.left {
            return Ok(());
        }
        Err(Error::NoRoom(format!(
            "process {pid} is in a cgroup that has {} of {} left, and its probes would take {}: the kernel would kill it. \
             Raise the limit, or choose fewer functions (-F, --no-lib); nothing was changed",
            mebibytes(room.left),
            mebibytes(room.limit),
            mebibytes(needed)
        )))
    }
}

fn taken_by(pid: Pid, build: &Build) -> u64 {
    let code = build.code.iter();
    let code: u64 = code.map(|region| region.used).sum();
    let patches = build.ledger.patches.iter();
    let pages: HashSet<u64> = patches.map(|patch| patch.address / shm::PAGE).collect();
    let threads = proc::tasks(pid).map_or(1, |tasks| tasks.len()) as u64;
    code + pages.len() as u64 * shm::PAGE + threads * THREAD_BYTES + SLACK
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}
