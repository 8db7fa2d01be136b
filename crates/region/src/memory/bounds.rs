//! The header as its readers get it. The target can write whatever it likes over its own memory, so no figure of the header
//! is believed further than this: what leads out of the memory leads to its end, where every read fails with a message.
//!
//! ```text
//! offset  <= the memory's length
//! length  <= what is left behind its offset
//! count   <= the room of its table
//! ```
//!
//! So sums of an offset, a length and the size of a table of ours never overflow, and what is allocated for a table stays in
//! proportion. What is wrong is not told apart from what is right: a reader that needs it finds out.

use thalweg_abi as shm;

/// No target has more functions. The largest that was seen had 0.4 million, and 2 million more may be loaded.
const MAX_FUNCTIONS: u32 = 1 << 23;

/// `len`: of the shared memory.
pub(super) fn bound(header: &mut shm::Header, len: u64) {
    let spans = [
        (&mut header.catalog_offset, &mut header.catalog_len),
        (&mut header.ledger_offset, &mut header.ledger_len),
        (&mut header.nodes_offset, &mut header.nodes_len),
        (&mut header.growth_offset, &mut header.growth_len),
    ];
    for (offset, length) in spans {
        *offset = (*offset).min(len);
        *length = (*length).min(len - *offset);
    }
    let offsets = [
        &mut header.frames_offset,
        &mut header.folded_offset,
        &mut header.rules_offset,
        &mut header.alloc_offset,
        &mut header.states_offset,
        &mut header.looks.offset,
    ];
    for offset in offsets {
        *offset = (*offset).min(len);
    }
    header.nodes_used = header.nodes_used.min(header.nodes_len);
    header.growth_used = header.growth_used.min(header.growth_len);
    header.functions_limit = header.functions_limit.min(MAX_FUNCTIONS.into());
    header.functions = header.functions.min(header.functions_limit as u32);
    header.next_slot = header.next_slot.min(shm::SLOTS as u32);
    header.blocks.offset = header.blocks.offset.min(len);
    header.blocks.slots = header.blocks.slots.min(shm::SLOTS as u32);
    if header.blocks.len() > len - header.blocks.offset {
        header.blocks = shm::Blocks::default();
    }
    header.blocks.used = header.blocks.used.min(header.blocks.limit);
    header.ended = header.ended.min(shm::ENDED_LIMIT as u32);
    header.loaded = header.loaded.min(shm::MAX_LOADED as u32);
    let entries = len.saturating_sub(shm::TABLE_OFFSET) / 8;
    if !entries_fit(header.table_mask, entries) {
        header.table_mask = 0;
    }
    for length in &mut header.looks.len {
        *length = (*length).min(shm::LOOKS_ROOM);
    }
}

/// One less than a power of two, for which there is room.
fn entries_fit(mask: u64, room: u64) -> bool {
    mask.checked_add(1)
        .is_some_and(|entries| entries.is_power_of_two() && entries <= room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FromZeros;

    #[test]
    fn whatever_a_header_says_its_figures_stay_inside_the_memory() {
        const LEN: u64 = 1 << 37;
        let mut header: shm::Header = FromZeros::new_zeroed();
        // SAFETY: the header consists of integers: every byte may be anything.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::from_mut(&mut header).cast::<u8>(),
                size_of::<shm::Header>(),
            )
        };
        bytes.fill(0xff);
        bound(&mut header, LEN);
        for (offset, length) in [
            (header.catalog_offset, header.catalog_len),
            (header.ledger_offset, header.ledger_len),
            (header.nodes_offset, header.nodes_len),
            (header.growth_offset, header.growth_len),
        ] {
            assert!(offset + length <= LEN);
        }
        assert!(header.nodes_used <= header.nodes_len);
        assert!(u64::from(header.functions) <= header.functions_limit);
        assert!(u64::from(header.next_slot) <= shm::SLOTS);
        assert_eq!(header.table_mask, 0);
        let blocks = header.blocks;
        assert!(blocks.offset + blocks.len() <= LEN && blocks.used <= blocks.limit);
    }

    #[test]
    fn the_header_of_a_real_layout_stays_as_it_is() {
        let layout = shm::Layout::new(400_000, 9 << 20, 7 << 20, 256 << 20);
        let mut header: shm::Header = FromZeros::new_zeroed();
        header.table_mask = layout.table_entries - 1;
        header.functions = 400_000;
        header.functions_limit = layout.functions_limit;
        header.nodes_offset = layout.nodes_offset;
        header.nodes_len = layout.nodes_len;
        header.nodes_used = layout.nodes_len;
        header.states_offset = layout.states_offset;
        header.growth_offset = layout.growth_offset;
        header.growth_len = shm::GROWTH_LEN;
        bound(&mut header, layout.shared_size);
        assert_eq!(header.table_mask, layout.table_entries - 1);
        assert_eq!(header.functions, 400_000);
        assert_eq!(header.functions_limit, layout.functions_limit);
        assert_eq!(header.nodes_used, layout.nodes_len);
        assert_eq!(header.states_offset, layout.states_offset);
        assert_eq!(header.growth_len, shm::GROWTH_LEN);
    }
}
