//! What each context has waited, as the agent wrote it beside the nodes.

use thalweg_abi as shm;

use crate::error::Result;
use crate::memory::{FromBytes, Shared};

/// A copy of the waits of all contexts that there are.
pub struct Waits {
    nodes: Vec<u8>,
    folded: Vec<u8>,
}

impl Waits {
    pub fn read(shared: &Shared, header: &shm::Header) -> Result<Waits> {
        let start = shm::waits_offset(header.nodes_offset, header.nodes_len);
        let first_node = shm::waits_place(header.nodes_offset.saturating_sub(header.folded_offset));
        let used = shm::waits_place(header.nodes_used);
        let folded = match header.folded_calls | header.prune.pruned_contexts {
            0 => 0,
            _ => u64::from(header.functions) * shm::WAITS_SIZE,
        };
        Ok(Waits {
            nodes: shared.read_vec(start.saturating_add(first_node), used)?,
            folded: shared.read_vec(start, folded)?,
        })
    }

    /// Of the node with this number.
    pub fn of(&self, number: u64) -> shm::Waits {
        entry(&self.nodes, number)
    }

    /// Of the contexts of a function that found no room.
    pub fn folded(&self, function: u32) -> shm::Waits {
        entry(&self.folded, function.into())
    }
}

fn entry(bytes: &[u8], number: u64) -> shm::Waits {
    let at = usize::try_from(number.saturating_mul(shm::WAITS_SIZE)).unwrap_or(usize::MAX);
    let end = at.saturating_add(shm::WAITS_SIZE as usize);
    let entry = bytes.get(at..end).unwrap_or_default();
    shm::Waits::read_from_bytes(entry).unwrap_or_default()
}
