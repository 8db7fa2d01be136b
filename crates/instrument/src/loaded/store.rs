//! What a target carries of modules that were loaded after attaching: their names and their ledgers.
//!
//! An entry of the table of loaded modules describes one blob of names or one ledger in the growth area. Whoever writes has
//! the blob in place before the entry says so; whoever reads may do so at any time, and from any process.

use std::collections::HashSet;
use std::mem::offset_of;

use thalweg_abi as shm;
use thalweg_model as model;

use crate::catalogs;
use crate::dynamic::{self, Dynamic};
use crate::error::{Error, Result};
use crate::ledger::{Ledger, Text};
use crate::memory::{FromZeros, IntoBytes, Shared};
use crate::prepare::page_up;
use crate::proc::{self, Pid};
use crate::survey;

/// The writing side: how much of table and growth area is used.
pub(super) struct Store {
    entries: usize,
    offset: u64,
    len: u64,
    used: u64,
}

impl Store {
    pub(super) fn new(header: &shm::Header) -> Store {
        Store {
            entries: header.loaded as usize,
            offset: header.growth_offset,
            len: header.growth_len,
            used: header.growth_used,
        }
    }

    /// Names of functions, which get the numbers from `first` on.
    pub(super) fn add_catalog(
        &mut self,
        shared: &Shared,
        pid: Pid,
        catalog: &model::Profile,
        first: u32,
    ) -> Result<()> {
        let bytes = catalogs::write(catalog)?;
        let entry = self.new_entry()?;
        let offset = self.take(shared, bytes.len() as u64)?;
        shared.write(offset, &bytes)?;
        let mut loaded: shm::Loaded = FromZeros::new_zeroed();
        loaded.state = shm::LOADED_CLOSED;
        loaded.pid = pid.0 as u32;
        loaded.catalog_offset = offset;
        loaded.catalog_len = bytes.len() as u64;
        loaded.first_function = first;
        loaded.functions = catalog.functions.len() as u32;
        self.write(shared, entry, &loaded)
    }

    pub(super) fn new_entry(&mut self) -> Result<usize> {
        if self.entries >= shm::MAX_LOADED {
            return Err(Error::NoRoom("no room for more modules".into()));
        }
        self.entries += 1;
        Ok(self.entries - 1)
    }

    pub(super) fn put_ledger(
        &mut self,
        shared: &Shared,
        entry: usize,
        pid: Pid,
        ledger: &Ledger,
    ) -> Result<()> {
        let mut loaded: shm::Loaded = shared.read(entry_offset(entry))?;
        let bytes = ledger.encode();
        let room = bytes.len() as u64 <= loaded.ledger_room;
        let same = room
            && loaded.ledger_len == bytes.len() as u64
            && shared.read_vec(loaded.ledger_offset, loaded.ledger_len)? == bytes;
        if !same {
            // No ledger while it is being written, should we be killed meanwhile: nothing is patched by it now.
            loaded.ledger_len = 0;
            if !room {
                loaded.ledger_room = page_up(bytes.len() as u64 * 5 / 4);
                loaded.ledger_offset = self.take(shared, loaded.ledger_room)?;
            }
            self.write(shared, entry, &loaded)?;
            shared.write(loaded.ledger_offset, &bytes)?;
        }
        loaded.state = shm::LOADED_LIVE;
        loaded.pid = pid.0 as u32;
        loaded.ledger_len = bytes.len() as u64;
        self.write(shared, entry, &loaded)
    }

    pub(super) fn close(&self, shared: &Shared, entry: usize) -> Result<()> {
        let place = entry_offset(entry) + offset_of!(shm::Loaded, state) as u64;
        shared.write(place, &shm::LOADED_CLOSED.to_le_bytes())
    }

    fn write(&self, shared: &Shared, entry: usize, loaded: &shm::Loaded) -> Result<()> {
        shared.write(entry_offset(entry), loaded.as_bytes())?;
        let count = offset_of!(shm::Header, loaded) as u64;
        shared.write(count, &(self.entries as u32).to_le_bytes())
    }

    fn take(&mut self, shared: &Shared, bytes: u64) -> Result<u64> {
        let bytes = page_up(bytes);
        if self.used.saturating_add(bytes) > self.len {
            return Err(Error::NoRoom(
                "no room for what more modules need to be described".into(),
            ));
        }
        let offset = self.offset + self.used;
        self.used += bytes;
        let used = offset_of!(shm::Header, growth_used) as u64;
        shared.write(used, &self.used.to_le_bytes())?;
        Ok(offset)
    }
}

fn entry_offset(entry: usize) -> u64 {
    shm::LOADED_OFFSET + entry as u64 * shm::LOADED_SIZE
}

/// The entries of the table of loaded modules that a target carries.
fn entries(shared: &Shared, header: &shm::Header) -> Result<Vec<shm::Loaded>> {
    let count = header.loaded as usize;
    let entries: Result<Vec<shm::Loaded>> = (0..count)
        .map(|entry| shared.read(entry_offset(entry)))
        .collect();
    let entries = entries?;
    if !have_places_of_their_own(&entries) {
        return Err(damaged());
    }
    Ok(entries)
}

fn damaged() -> Error {
    Error::Damaged("what the target carries of loaded modules is damaged".into())
}

/// Of all modules together. Those of a program with 0.4 million functions have some 60 MB.
const MAX_NAME_BYTES: usize = 1 << 30;

/// About how much memory the names take.
fn name_bytes(catalog: &model::Profile) -> usize {
    const EACH: usize = 100;
    let functions = catalog.functions.iter().map(|one| one.name.len() + EACH);
    let skipped = catalog.skipped.iter();
    let skipped = skipped.map(|one| one.name.len() + one.module.len() + one.reason.len() + EACH);
    let notes = catalog.notes.iter().map(|note| note.len() + EACH);
    let modules = catalog.modules.iter();
    let modules = modules.map(|one| one.name.len() + one.path.len() + one.build_id.len() + EACH);
    let blocks = catalog.blocks.iter();
    let blocks = blocks.map(|own| own.blocks.len() * size_of::<model::Block>());
    let names = functions.chain(skipped).chain(notes).chain(modules);
    names.chain(blocks).sum()
}

/// Whether no two entries speak of the same bytes: all of them together are no larger than the memory.
fn have_places_of_their_own(entries: &[shm::Loaded]) -> bool {
    let in_use = entries.iter().filter(|one| one.state != shm::LOADED_NONE);
    let mut spans: Vec<(u64, u64)> = in_use
        .flat_map(|one| {
            let catalog = (one.catalog_offset, one.catalog_len);
            [catalog, (one.ledger_offset, one.ledger_len)]
        })
        .filter(|(_, len)| *len > 0)
        .collect();
    spans.sort_unstable();
    let mut free_from = 0;
    spans.into_iter().all(|(start, len)| {
        let is_free = start >= free_from;
        free_from = start.saturating_add(len);
        is_free
    })
}

/// Adds the names of modules that were loaded later to those that were there at attach, and between them those of functions that are
/// named by pointers: all of them in the order of their numbers.
pub fn add_catalogs(
    profile: &mut model::Profile,
    shared: &Shared,
    header: &shm::Header,
) -> Result<()> {
    let mut names = name_bytes(profile);
    let dynamic = Dynamic::read(shared)?;
    let mut files = dynamic::Modules::default();
    let mut entries = entries(shared, header)?;
    // Who takes numbers writes its entry later.
    entries.sort_by_key(|entry| entry.first_function);
    for loaded in entries {
        if loaded.catalog_len == 0 || loaded.state == shm::LOADED_NONE {
            continue;
        }
        let bytes = shared.read_vec(loaded.catalog_offset, loaded.catalog_len)?;
        let more = model::read(&mut &*bytes)
            .map_err(|e| Error::Damaged(format!("the target's catalog: {e}")))?;
        // Blobs unpack to more than they are, each a little: together they stay bounded, too.
        names += name_bytes(&more);
        if names > MAX_NAME_BYTES {
            return Err(damaged());
        }
        if loaded.functions > 0 {
            let numbers = loaded.first_function.min(header.functions);
            dynamic.add_up_to(profile, &mut files, numbers);
        }
        let modules = profile.modules.len() as u32;
        profile.modules.extend(more.modules);
        profile.skipped.extend(more.skipped);
        for note in more.notes {
            if !profile.notes.contains(&note) {
                profile.notes.push(note);
            }
        }
        let first = profile.functions.len() as u32;
        for mut one in more.enters_kernel {
            one.function.0 += first;
            profile.enters_kernel.push(one);
        }
        for mut own in more.blocks {
            own.module += modules;
            for block in &mut own.blocks {
                block.function.0 += first;
            }
            profile.blocks.push(own);
        }
        profile.block_counters.extend(more.block_counters);
        for mut function in more.functions {
            function.module += modules;
            profile.functions.push(function);
        }
    }
    dynamic.add_up_to(profile, &mut files, header.functions);
    profile.notes.extend(dynamic.note());
    Ok(())
}

/// The ledgers of all modules that were ever loaded. They are for places where their files are mapped, no others.
pub fn ledgers(shared: &Shared, header: &shm::Header) -> Result<Vec<Ledger>> {
    let encoded = encoded_ledgers(shared, header)?;
    encoded.iter().map(|bytes| Ledger::decode(bytes)).collect()
}

/// The same as they lie in the target's memory.
pub fn encoded_ledgers(shared: &Shared, header: &shm::Header) -> Result<Vec<Vec<u8>>> {
    let mut ledgers = Vec::new();
    for loaded in entries(shared, header)? {
        if loaded.ledger_len > 0 && loaded.state != shm::LOADED_NONE {
            ledgers.push(shared.read_vec(loaded.ledger_offset, loaded.ledger_len)?);
        }
    }
    Ok(ledgers)
}

/// Files whose code a process has mapped since it was attached and which nobody was there to instrument.
pub fn uncounted(pid: Pid, shared: &Shared, header: &shm::Header) -> Result<Vec<String>> {
    let bytes = shared.read_vec(header.ledger_offset, header.ledger_len)?;
    let mut ledgers = ledgers(shared, header)?;
    ledgers.push(Ledger::decode(&bytes)?);
    let known: HashSet<Text> = ledgers.iter().flat_map(|l| l.texts.clone()).collect();
    let maps = proc::maps(pid)?;
    let mut names: Vec<String> = survey::group_by_file(&maps)
        .iter()
        .filter(|file| !file.texts().iter().any(|text| known.contains(text)))
        .map(|file| file.name.clone())
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_blob_is_not_read_as_that_of_many_modules() {
        let entry = |catalog: (u64, u64), ledger: (u64, u64)| {
            let mut loaded: shm::Loaded = FromZeros::new_zeroed();
            loaded.state = shm::LOADED_LIVE;
            (loaded.catalog_offset, loaded.catalog_len) = catalog;
            (loaded.ledger_offset, loaded.ledger_len) = ledger;
            loaded
        };
        let first = entry((4096, 100), (8192, 50));
        // A module that came again has a ledger but no names.
        let again = entry((0, 0), (12288, 50));
        assert!(have_places_of_their_own(&[first, again]));
        assert!(!have_places_of_their_own(&[first, first]));
        let across = entry((8200, 10), (0, 0));
        assert!(!have_places_of_their_own(&[first, across]));
        assert!(!have_places_of_their_own(&[entry((9, u64::MAX), (10, 1))]));
    }
}
