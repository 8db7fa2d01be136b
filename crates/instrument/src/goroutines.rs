//! Where the stacks of Go's threads and goroutines end. They lie side by side in Go's heap; beyond the end of one begins another's,
//! with signal frames that were left long ago.
//!
//! ```text
//! fs base - 8 -> g -> m -> g0, gsignal, curg ... each with {stack.lo, stack.hi, ..., m}
//! ```

use thalweg_abi as shm;

use crate::proc::RemoteAddr;
use crate::tracee::{Regs, Stopped};

/// Goroutines' stacks do not grow beyond this.
const LARGEST: u64 = 1 << 30;
/// How much of an `m` is searched for the goroutines that belong to it.
const SEARCHED: usize = 512;

/// The ends of the stacks that belong to the thread with these registers; none if it is not one of Go's.
pub fn stack_ends(stopped: &Stopped, regs: &Regs) -> Vec<u64> {
    let machine = word(stopped, regs.fs_base.wrapping_sub(8)).and_then(|g| {
        let machine = word(stopped, g.wrapping_add(shm::G_MACHINE as u64))?;
        end_of(stopped, g, machine).and(Some(machine))
    });
    let Some(machine) = machine else {
        return Vec::new();
    };
    let mut bytes = [0; SEARCHED];
    if stopped.read(RemoteAddr(machine), &mut bytes).is_err() {
        return Vec::new();
    }
    let words = bytes.chunks_exact(8);
    let words = words.map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
    words.filter_map(|g| end_of(stopped, g, machine)).collect()
}

/// Where the slow path's stack ends that a thread of Go's goes to, and, if it is there, where it left the goroutine's. `ours`: whether a GS base is one of our slots.
pub fn slow_stack(
    stopped: &Stopped,
    regs: &Regs,
    ours: impl Fn(u64) -> bool,
) -> Option<(u64, Option<u64>)> {
    let slot = Some(regs.gs_base).filter(|base| ours(*base))?;
    let end = word(stopped, slot.wrapping_add(shm::PRIVATE_GO_STACK as u64))?;
    let is_there = end.wrapping_sub(regs.rsp) <= shm::AGENT_STACK;
    let left = is_there.then(|| word(stopped, end - 8)).flatten();
    Some((end, left))
}

/// Where the stack of `g` ends, if that is a goroutine of `machine`.
fn end_of(stopped: &Stopped, g: u64, machine: u64) -> Option<u64> {
    if machine == 0 || word(stopped, g.wrapping_add(shm::G_MACHINE as u64))? != machine {
        return None;
    }
    let start = word(stopped, g)?;
    let end = word(stopped, g + shm::G_STACK_END as u64)?;
    (start < end && end - start <= LARGEST).then_some(end)
}

fn word(stopped: &Stopped, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    if address < 0x1000 || address >> 47 != 0 || !address.is_multiple_of(8) {
        return None;
    }
    stopped.read(RemoteAddr(address), &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}
