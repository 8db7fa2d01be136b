//! What a stop is for that switches functions off or on: which patches go and come, whom they move, and which probes become others.

use std::collections::HashSet;
use std::sync::Arc;

use thalweg_patch::Patch;

use crate::error::Result;
use crate::ledger::{Ledger, lookup};
use crate::proc::RemoteAddr;
use crate::tracee::Stopped;

/// Everything that a stop is for, made before it.
pub(super) struct Change<'a> {
    pub off: HashSet<u32>,
    pub on: HashSet<u32>,
    /// Patches that go, in the order in which they have to.
    pub taken: Vec<Patches<'a>>,
    pub put: Vec<Patches<'a>>,
    /// Springboards that go: a thread that stands on one has yet to leave for the stub.
    pub boards: Vec<(u64, u64)>,
    /// Instructions that will run in a stub again.
    pub moves: Vec<(u64, u64)>,
    /// Address, and what is there while the target is probed and while it is not.
    tails: Vec<(u32, u64, [u8; 4], [u8; 4])>,
}

/// Patches of one ledger.
pub(super) struct Patches<'a> {
    pub ledger: &'a Ledger,
    pub patches: Vec<&'a Patch>,
}

impl<'a> Change<'a> {
    pub(super) fn new(
        ledgers: &'a [Arc<Ledger>],
        off: HashSet<u32>,
        on: HashSet<u32>,
    ) -> Change<'a> {
        let mut change = Change {
            off,
            on,
            taken: Vec::new(),
            put: Vec::new(),
            boards: Vec::new(),
            moves: Vec::new(),
            tails: Vec::new(),
        };
        for ledger in ledgers {
            let of = |functions: &HashSet<u32>| -> Vec<&Patch> {
                let owned = ledger.patches.iter().zip(&ledger.owners);
                owned
                    .filter(|(_, owner)| functions.contains(owner))
                    .map(|(patch, _)| patch)
                    .collect()
            };
            let (mut taken, put) = (of(&change.off), of(&change.on));
            taken.reverse();
            let boards = taken.iter().map(|patch| patch.address);
            let boards = boards.filter_map(|at| Some((at, lookup(&ledger.back, at)?)));
            change.boards.extend(boards);
            for one in &ledger.switchable {
                if change.on.contains(&one.function) {
                    let from = ledger.moves.partition_point(|pair| pair.0 < one.low);
                    let to = ledger.moves.partition_point(|pair| pair.0 < one.high);
                    change.moves.extend(&ledger.moves[from..to]);
                }
            }
            for tail in &ledger.tails {
                if change.off.contains(&tail.target) || change.on.contains(&tail.target) {
                    change
                        .tails
                        .push((tail.target, tail.address, tail.probed, tail.unprobed));
                }
            }
            if !taken.is_empty() {
                change.taken.push(Patches {
                    ledger,
                    patches: taken,
                });
            }
            if !put.is_empty() {
                change.put.push(Patches {
                    ledger,
                    patches: put,
                });
            }
        }
        change.boards.sort_unstable();
        change.moves.sort_unstable();
        change
    }

    pub(super) fn write_tails(
        &self,
        stopped: &mut Stopped,
        chosen: impl Fn(u32) -> bool,
        is_probed: bool,
    ) -> Result<()> {
        for &(target, address, probed, unprobed) in &self.tails {
            if !chosen(target) {
                continue;
            }
            let (old, new) = match is_probed {
                true => (unprobed, probed),
                false => (probed, unprobed),
            };
            let mut now = [0; 4];
            // Stubs of a module that is not there any more may be another's by now.
            if stopped.read(RemoteAddr(address), &mut now).is_ok() && now == old {
                stopped.write(RemoteAddr(address), &new)?;
            }
        }
        Ok(())
    }
}
