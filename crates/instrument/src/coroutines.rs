//! Which memory is in use as a stack by coroutines, as the agent knows it: for detaching, which looks there for program counters
//! that point into the stubs. Stacks of coroutines lie side by side on the heap; beyond the end of one begins another's dead
//! part, full of what was once true.

use thalweg_abi as shm;

use crate::error::Result;
use crate::memory::Shared;

/// What may lie above the outermost known activation of a coroutine: a signal frame, and a handler without probes.
const SLACK: u64 = 4096;

/// A part of the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub start: u64,
    pub end: u64,
}

/// A thread that runs a coroutine.
pub struct Running {
    /// Where the coroutine's stack ends, about.
    pub end: u64,
    /// Where the thread has left its own stack.
    pub own: u64,
}

/// `None`: the thread with this GS base is on its own stack, as far as is known.
pub fn running(shared: &Shared, header: &shm::Header, gs_base: u64) -> Option<Running> {
    let private = gs_base.wrapping_sub(header.base);
    if private >= shm::PRIVATE_SIZE || !private.is_multiple_of(shm::PAGE) {
        return None;
    }
    let slot: shm::SharedSlot = shared.read(shm::SLOTS_OFFSET + private).ok()?;
    let shared_start = header.base.wrapping_add(shm::PRIVATE_SIZE);
    let base = slot.base.wrapping_sub(shared_start);
    let frames = header.frames_offset + shm::FRAME_SIZE
        ..header.frames_offset + shm::SLOTS * shm::FRAMES_STRIDE;
    if slot.base == 0 || !frames.contains(&base) {
        return None;
    }
    let outer_end: shm::Frame = shared.read(base).ok()?;
    let switch: shm::Frame = shared.read(base - shm::FRAME_SIZE).ok()?;
    Some(Running {
        end: shm::frame_sp(outer_end.key)
            .wrapping_sub(shm::WINDOW / 2)
            .wrapping_add(SLACK),
        own: shm::frame_sp(switch.key),
    })
}

/// The stacks of coroutines that nobody runs, from where they were left to their outermost known activations. Where
/// the memory is not what it should be, none.
pub fn suspended(shared: &Shared, header: &shm::Header) -> Vec<Stretch> {
    match header.state {
        shm::STATE_BUILDING => Vec::new(),
        _ => read_suspended(shared, header).unwrap_or_default(),
    }
}

fn read_suspended(shared: &Shared, header: &shm::Header) -> Result<Vec<Stretch>> {
    let store = header.nodes_offset.saturating_add(header.nodes_len);
    let mut stretches = Vec::new();
    let mut ever_used = [0; 8];
    shared.read_bytes(store.saturating_add(8), &mut ever_used)?;
    if ever_used == [0; 8] {
        return Ok(stretches);
    }
    let index = shared.read_vec(
        store + shm::SUSPENDED_INDEX_OFFSET,
        shm::SUSPENDED_INDEX * 8,
    )?;
    for entry in index.chunks_exact(8) {
        let entry = u64::from_le_bytes(entry.try_into().expect("eight bytes"));
        let number = entry & ((1 << shm::SUSPENDED_NUMBER_BITS) - 1);
        if number == 0 || number > shm::SUSPENDED_BLOCKS {
            continue;
        }
        let at = store + shm::SUSPENDED_BLOCKS_OFFSET + (number - 1) * shm::SUSPENDED_BLOCK_SIZE;
        let block: shm::SuspendedBlock = shared.read(at)?;
        let count = (block.count as usize).min(block.frames.len());
        let coroutine = |f: &&shm::SuspendedFrame| !shm::is_goroutine(f.key);
        if let Some(outermost) = block.frames[..count].last().filter(coroutine) {
            let end = shm::frame_sp(outermost.key).wrapping_add(SLACK);
            if block.sp < end {
                stretches.push(Stretch {
                    start: block.sp,
                    end,
                });
            }
        }
    }
    Ok(stretches)
}
