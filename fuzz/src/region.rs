//! The memory that a target carries, which the target can write over. An input is an image of it with its holes left out:
//!
//! ```text
//! length of the memory, 8 bytes      then pieces of it: offset 8, length 4, bytes
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};
use thalweg_instrument::call_rules;
use thalweg_instrument::ledger::Ledger;
use thalweg_instrument::{loaded, states};
use thalweg_ptrace::proc::Pid;
use thalweg_region::memory::Shared;
use thalweg_snapshot::call_trace::Drain;
use thalweg_snapshot::snapshot::{ThreadRegistry, catalog, take, totals};

/// Address space of the largest region there is.
const LONGEST: u64 = 1 << 40;
/// Holes that are shorter are not worth a piece.
const SHORTEST_HOLE: usize = 16;

/// Pieces of a memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub len: u64,
    pub pieces: Vec<(u64, Vec<u8>)>,
}

impl Image {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.len.to_le_bytes().to_vec();
        for (offset, bytes) in &self.pieces {
            out.extend(offset.to_le_bytes());
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
        }
        out
    }

    /// As far as it is one.
    pub fn decode(mut data: &[u8]) -> Image {
        let mut take = |count: usize| {
            let (taken, rest) = data.split_at_checked(count)?;
            data = rest;
            Some(taken)
        };
        let long = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let mut image = Image {
            len: take(8).map_or(0, long).min(LONGEST),
            ..Image::default()
        };
        while let (Some(offset), Some(count)) = (take(8), take(4)) {
            let count = u32::from_le_bytes(count.try_into().expect("four bytes"));
            let Some(bytes) = take(count as usize) else {
                break;
            };
            image.pieces.push((long(offset), bytes.to_vec()));
        }
        image
    }

    /// As a target has it.
    fn shared(&self) -> Option<Shared> {
        let file = File::from(memfd_create(c"region", MFdFlags::MFD_CLOEXEC).ok()?);
        file.set_len(self.len).ok()?;
        for (offset, bytes) in &self.pieces {
            let end = offset.checked_add(bytes.len() as u64);
            if end.is_some_and(|end| end <= self.len) {
                file.write_all_at(bytes, *offset).ok()?;
            }
        }
        Some(Shared::File {
            file,
            len: self.len,
        })
    }
}

/// What of a memory is not zero. `pages`: where anything may be.
pub fn image_of(file: &File, len: u64, pages: impl Iterator<Item = u64>) -> std::io::Result<Image> {
    const PAGE: usize = 4096;
    let mut image = Image {
        len,
        pieces: Vec::new(),
    };
    for start in pages {
        let mut page = [0; PAGE];
        file.read_exact_at(&mut page, start)?;
        let mut at = 0;
        while let Some(first) = page[at..].iter().position(|byte| *byte != 0) {
            let first = at + first;
            let zeros = page[first..].windows(SHORTEST_HOLE);
            let hole = zeros
                .enumerate()
                .find(|(_, bytes)| bytes.iter().all(|b| *b == 0));
            let end = hole.map_or(PAGE, |(place, _)| first + place);
            image
                .pieces
                .push((start + first as u64, page[first..end].to_vec()));
            at = end;
        }
    }
    Ok(image)
}

/// Every reader of it.
pub fn region(data: &[u8]) {
    let Some(shared) = Image::decode(data).shared() else {
        return;
    };
    let Ok(header) = shared.header() else {
        return;
    };
    let mut registry = ThreadRegistry::default();
    let _ = registry.update(&shared);
    let _ = totals(&shared);
    let _ = catalog(&shared);
    let _ = states::of_all(&shared, &header);
    let _ = call_rules::notes(&shared, &header);
    let _ = loaded::uncounted(Pid(std::process::id() as i32), &shared, &header);
    for ended in [None, Some(header.attach_ticks.saturating_add(1 << 30))] {
        if let Ok(profile) = take(&shared, &registry, ended) {
            // Not every figure that a hostile target may give makes a profile that can be saved; none makes a panic.
            let _ = thalweg_model::write(&profile);
        }
    }
    let mut drain = Drain::owner(1000);
    for _ in 0..3 {
        let _ = drain.take(&shared, &header);
        drain.trim();
    }
    let _ = drain.into_recorded(&shared, &header, &registry, 1e9, header.attach_ticks);
}

/// Whether a real region is still read as one: it has contexts and recorded calls. One of another layout says nothing.
pub fn is_understood(data: &[u8]) -> bool {
    let Some(shared) = Image::decode(data).shared() else {
        return false;
    };
    let Ok(header) = shared.header() else {
        return false;
    };
    let end = header.attach_ticks.saturating_add(1 << 30);
    let profile = take(&shared, &ThreadRegistry::default(), Some(end));
    header.version != thalweg_abi::VERSION
        || profile.is_ok_and(|profile| {
            let mut threads = profile.processes.iter().flat_map(|one| &one.threads);
            !profile.recorded.calls.is_empty() && threads.any(|one| !one.nodes.is_empty())
        })
}

/// The ledger of patches, before it is packed.
pub fn ledger(data: &[u8]) {
    let _ = Ledger::decode(data);
    let packed = zstd::encode_all(data, 1).expect("memory");
    if let Ok(ledger) = Ledger::decode(&packed) {
        let again = Ledger::decode(&ledger.encode()).expect("what was read can be written");
        assert_eq!(again, ledger);
    }
}
