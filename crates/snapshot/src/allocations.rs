//! What contexts have allocated, read from the shared memory.

use thalweg_abi as shm;
use thalweg_abi::alloc::{ALLOCATED_SIZE, AllocHead, Allocated};
use thalweg_model::{self as model, Metric};

use crate::error::Result;
use crate::memory::{FromBytes, Shared};

/// A copy of what all contexts have allocated; empty where that was not counted.
#[derive(Default)]
pub struct Allocations {
    nodes: Vec<u8>,
    folded: Vec<u8>,
}

impl Allocations {
    pub fn read(shared: &Shared, header: &shm::Header) -> Result<Allocations> {
        if !header.has_alloc() {
            return Ok(Allocations::default());
        }
        let start = shm::alloc::allocated_offset(header.alloc_offset);
        let first_node = header.nodes_offset.saturating_sub(header.folded_offset);
        let used = header.nodes_used;
        let folded = match header.folded_calls | header.prune.pruned_contexts {
            0 => 0,
            _ => u64::from(header.functions) * ALLOCATED_SIZE,
        };
        Ok(Allocations {
            nodes: shared.read_vec(start.saturating_add(first_node), used)?,
            folded: shared.read_vec(start, folded)?,
        })
    }

    /// Of the node with this number.
    pub fn of(&self, number: u64) -> model::Metrics {
        metrics(&self.nodes, number)
    }

    /// Of the contexts of a function that found no room.
    pub fn folded(&self, function: u32) -> model::Metrics {
        metrics(&self.folded, function.into())
    }
}

fn metrics(bytes: &[u8], number: u64) -> model::Metrics {
    let at = usize::try_from(number.saturating_mul(ALLOCATED_SIZE)).unwrap_or(usize::MAX);
    let end = at.saturating_add(ALLOCATED_SIZE as usize);
    let mut metrics = model::Metrics::default();
    let figures = bytes.get(at..end).unwrap_or_default();
    let Ok(figures) = Allocated::read_from_bytes(figures) else {
        return metrics;
    };
    let places = [
        (Metric::AllocCalls, figures.calls),
        (Metric::AllocBytes, figures.bytes),
        (Metric::FreeCalls, figures.frees),
        (Metric::FreeBytes, figures.freed_bytes),
        (Metric::LiveBytes, figures.live_bytes),
        (Metric::LiveObjects, figures.live_objects),
        (Metric::MapCalls, figures.maps),
        (Metric::MapBytes, figures.mapped_bytes),
        (Metric::UnmapCalls, figures.unmaps),
        (Metric::UnmapBytes, figures.unmapped_bytes),
    ];
    for (metric, word) in places {
        // Read while others free: a count may for a moment be behind another.
        metrics.set(metric, if (word as i64) < 0 { 0 } else { word });
    }
    metrics
}

/// What the reader of the figures must know.
pub fn add_notes(
    profile: &mut model::Profile,
    shared: &Shared,
    header: &shm::Header,
) -> Result<()> {
    if !header.has_alloc() {
        return Ok(());
    }
    let head: AllocHead = shared.read(header.alloc_offset)?;
    if head.unknown_frees > 0 {
        profile.notes.push(format!(
            "{} frees were of blocks that are not known (allocated before the attach or before a fork, or freed by the C library for itself when a thread ends): counted, their sizes are not",
            head.unknown_frees
        ));
    }
    if head.untracked > 0 {
        profile.notes.push(format!(
            "{} blocks were allocated that could not be followed: they are missing in what is live, and in the sizes of frees",
            head.untracked
        ));
    }
    if head.failed > 0 {
        profile.notes.push(format!(
            "{} requests for memory were refused and are not counted",
            head.failed
        ));
    }
    Ok(())
}
