//! How often blocks ran: the counters of all threads, those that have ended too, added up.

use thalweg_abi as shm;
use thalweg_model as model;

use crate::error::Result;
use crate::memory::Shared;

const COUNTER: usize = 8;

/// Fills in the counts of all modules.
pub fn fill(profile: &mut model::Profile, shared: &Shared, header: &shm::Header) -> Result<()> {
    let counters = std::mem::take(&mut profile.block_counters);
    // No block has more than two: what the target says is not believed beyond that.
    let blocks: usize = profile.blocks.iter().map(|own| own.blocks.len()).sum();
    let sums = sums(shared, header, blocks.saturating_mul(2))?;
    for (own, counters) in profile.blocks.iter_mut().zip(&counters) {
        own.fill(counters, |number| {
            sums.get(number as usize).copied().unwrap_or(0)
        });
    }
    if let Some(nobodys) = header.blocks.nobodys()
        && header.unslotted > 0
    {
        profile.notes.push(format!(
            "blocks that ran in threads beyond {nobodys} at a time were not counted"
        ));
    }
    Ok(())
}

/// What each counter stands at.
fn sums(shared: &Shared, header: &shm::Header, most: usize) -> Result<Vec<u64>> {
    let blocks = header.blocks;
    let mut sums = vec![0u64; most.min(blocks.used as usize)];
    let slots = u64::from(header.next_slot).min(blocks.threads());
    let mut bytes = [0; shm::PAGE as usize];
    for (page, sums) in (0..).zip(sums.chunks_mut(shm::COUNTERS_A_PAGE as usize)) {
        for slot in 0..slots {
            shared.read_bytes(blocks.place(slot, page), &mut bytes)?;
            for (sum, counter) in sums.iter_mut().zip(bytes.as_chunks::<COUNTER>().0) {
                *sum = sum.saturating_add(u64::from_le_bytes(*counter));
            }
        }
    }
    Ok(sums)
}
