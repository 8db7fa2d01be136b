//! Changes to text, in the planner's order and a page at a time.
//!
//! The order matters to a target whose controller is killed half way: a short jump needs its springboard, a springboard may
//! lie in bytes that are dead only once their own window is patched. Every prefix of the list is a working program, and the
//! kernel copies a page without looking at signals, so patches that follow each other on one page go in one write.

use std::borrow::Cow;
use std::collections::HashMap;

use thalweg_patch::Patch;

use crate::error::{Error, Result};
use crate::ledger::{Ledger, Text};
use crate::memory::read_remote;
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::tracee::Stopped;

/// How often text is read that other files take the place of.
const ATTEMPTS: u32 = 20;
/// As much of the text as is compared at a time while the target stands.
const READ_AT_ONCE: usize = 64 * PAGE;
const PAGE: usize = thalweg_shm::PAGE as usize;

/// Patches that can be taken back at once: consecutive ones on the same page, last first.
pub fn runs_backwards(patches: &[Patch]) -> impl Iterator<Item = &[Patch]> {
    let mut rest = patches;
    std::iter::from_fn(move || {
        let page = page_of(rest.last()?);
        let start = rest
            .iter()
            .rposition(|p| page_of(p) != page)
            .map_or(0, |at| at + 1);
        let (before, run) = rest.split_at(start);
        rest = before;
        Some(run)
    })
}

fn page_of(patch: &Patch) -> u64 {
    patch.address & !(PAGE as u64 - 1)
}

/// All changes to a target's text, ready to be written.
#[derive(Clone, Default)]
pub struct Changes {
    /// Neighbouring pages as they are before, in the order of their addresses.
    spans: Vec<(u64, Vec<u8>)>,
    /// Address and new bytes, in order.
    writes: Vec<(u64, Vec<u8>)>,
}

impl Changes {
    /// Refuses text that is not what the files say: another tool's breakpoints. Modules that were unloaded meanwhile
    /// are left out; some programs load and unload all the time.
    pub fn prepare(pid: Pid, ledger: &Ledger) -> Result<Changes> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let maps = proc::maps(pid)?;
            let there = ledger.texts_in(&maps);
            let patches = ledger.patches.iter();
            let patches: Vec<&Patch> = patches.filter(|patch| there(patch.address)).collect();
            match Changes::read(pid, &patches) {
                Err(_) if attempts < ATTEMPTS => {}
                result => return result,
            }
        }
    }

    fn read(pid: Pid, patches: &[&Patch]) -> Result<Changes> {
        let mut pages: Vec<u64> = patches.iter().map(|patch| page_of(patch)).collect();
        pages.sort_unstable();
        pages.dedup();
        let mut changes = Changes::default();
        for span in pages.chunk_by(|page, next| page + PAGE as u64 == *next) {
            let mut bytes = vec![0; span.len() * PAGE];
            read_remote(pid, RemoteAddr(span[0]), &mut bytes)?;
            changes.spans.push((span[0], bytes));
        }
        // A page may come again later in the order: it is then as the patches before have left it.
        let mut now: HashMap<u64, Vec<u8>> = HashMap::new();
        let runs = || patches.chunk_by(|a, b| page_of(a) == page_of(b));
        let mut visits: HashMap<u64, u32> = HashMap::new();
        for run in runs() {
            *visits.entry(page_of(run[0])).or_default() += 1;
        }
        for run in runs() {
            let start = page_of(run[0]);
            let mut page = match now.remove(&start) {
                Some(page) => page,
                None => changes.page(start).ok_or_else(|| crosses(run[0]))?.to_vec(),
            };
            let (mut low, mut high) = (PAGE, 0);
            for patch in run {
                let at = (patch.address - start) as usize;
                let place = page
                    .get_mut(at..at + patch.original.len())
                    .ok_or_else(|| crosses(patch))?;
                if *place != patch.original {
                    return Err(foreign(pid, patch, place));
                }
                place.copy_from_slice(&patch.replacement);
                (low, high) = (low.min(at), high.max(at + patch.original.len()));
            }
            changes
                .writes
                .push((start + low as u64, page[low..high].to_vec()));
            if visits[&start] > 1 {
                now.insert(start, page);
            }
        }
        Ok(changes)
    }

    /// One page as it is before.
    fn page(&self, address: u64) -> Option<&[u8]> {
        let after = self.spans.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.spans.get(after.checked_sub(1)?)?;
        let at = (address - start) as usize;
        bytes.get(at..at + PAGE)
    }

    /// The same but for code that is not mapped any more.
    pub fn without(&self, gone: &[&Text]) -> Cow<'_, Changes> {
        if gone.is_empty() {
            return Cow::Borrowed(self);
        }
        let stays = |address: u64| {
            !gone
                .iter()
                .any(|text| (text.start..text.end).contains(&address))
        };
        let mut changes = self.clone();
        let pages = self.spans.iter().flat_map(|(start, bytes)| {
            let pages = bytes.chunks_exact(PAGE).zip(0u64..);
            pages.map(move |(page, index)| (start + index * PAGE as u64, page.to_vec()))
        });
        changes.spans = pages.filter(|(page, _)| stays(*page)).collect();
        changes.writes.retain(|(address, _)| stays(*address));
        Cow::Owned(changes)
    }

    /// Whether the text is still what the changes were made for.
    pub fn still_fit(&self, stopped: &Stopped) -> Result<bool> {
        let mut bytes = Vec::new();
        for (start, before) in &self.spans {
            // Some at a time: what was just read is still in the processor's cache when it is compared.
            let pieces = before.chunks(READ_AT_ONCE);
            for (piece, index) in pieces.zip(0u64..) {
                bytes.resize(piece.len(), 0);
                let at = start + index * READ_AT_ONCE as u64;
                stopped.read(RemoteAddr(at), &mut bytes)?;
                if bytes != piece {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    pub fn write(&self, stopped: &mut Stopped) -> Result<()> {
        self.writes
            .iter()
            .try_for_each(|(address, bytes)| stopped.write(RemoteAddr(*address), bytes))
    }
}

/// Puts original bytes back where ours are; `foreign` gets the places where neither are.
///
/// A module may have been unloaded, and something else may lie where it was: only where its very file is mapped as it
/// was is anything looked at. (A file that was loaded anew has its original bytes.)
pub fn undo(
    stopped: &mut Stopped,
    maps: &[Mapping],
    ledger: &Ledger,
    foreign: &mut Vec<u64>,
) -> Result<()> {
    let still_there = ledger.texts_in(maps);
    let mut page = vec![0; PAGE];
    for run in runs_backwards(&ledger.patches) {
        let start = page_of(&run[0]);
        if !still_there(start) || stopped.read(RemoteAddr(start), &mut page).is_err() {
            continue;
        }
        let (mut low, mut high) = (PAGE, 0);
        for patch in run {
            let at = (patch.address - start) as usize;
            let Some(place) = page.get_mut(at..at + patch.original.len()) else {
                continue;
            };
            if *place == patch.replacement {
                place.copy_from_slice(&patch.original);
                (low, high) = (low.min(at), high.max(at + patch.original.len()));
            } else if *place != patch.original {
                foreign.push(patch.address);
            }
        }
        if low < high {
            stopped.write(RemoteAddr(start + low as u64), &page[low..high])?;
        }
    }
    Ok(())
}

/// Takes these patches out of the text, in the order given, where ours are in it.
pub fn put_back(
    stopped: &mut Stopped,
    patches: &[&Patch],
    there: &impl Fn(u64) -> bool,
) -> Result<()> {
    rewrite(stopped, patches, there, |patch| {
        (&patch.replacement, &patch.original)
    })
}

/// Puts these patches into the text, in the order given, where it is as it was.
pub fn put_in(
    stopped: &mut Stopped,
    patches: &[&Patch],
    there: &impl Fn(u64) -> bool,
) -> Result<()> {
    rewrite(stopped, patches, there, |patch| {
        (&patch.original, &patch.replacement)
    })
}

fn rewrite(
    stopped: &mut Stopped,
    patches: &[&Patch],
    there: &impl Fn(u64) -> bool,
    bytes: impl Fn(&Patch) -> (&[u8], &[u8]),
) -> Result<()> {
    for run in patches.chunk_by(|a, b| page_of(a) == page_of(b)) {
        let (Some(low), Some(high)) = (
            run.iter().map(|p| p.address).min(),
            run.iter()
                .map(|p| p.address + p.original.len() as u64)
                .max(),
        ) else {
            continue;
        };
        let mut now = vec![0; (high - low) as usize];
        if !there(low) || stopped.read(RemoteAddr(low), &mut now).is_err() {
            continue;
        }
        let before = now.clone();
        for patch in run {
            let (old, new) = bytes(patch);
            let at = (patch.address - low) as usize;
            let place = &mut now[at..at + old.len()];
            if place == old {
                place.copy_from_slice(new);
            }
        }
        if now != before {
            stopped.write(RemoteAddr(low), &now)?;
        }
    }
    Ok(())
}

fn crosses(patch: &Patch) -> Error {
    Error::Other(format!(
        "the patch at {:#x} crosses a page: nothing was changed",
        patch.address
    ))
}

fn foreign(pid: Pid, patch: &Patch, found: &[u8]) -> Error {
    Error::Other(format!(
        "the code at {:#x} of process {pid} is not what its file says ({found:02x?} instead of {:02x?}): a debugger's breakpoint or another tool's patch; remove it first",
        patch.address, patch.original
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(address: u64) -> Patch {
        Patch {
            address,
            original: vec![0; 5],
            replacement: vec![1; 5],
        }
    }

    #[test]
    fn runs_keep_the_order_and_never_leave_a_page() {
        let list: Vec<Patch> = [0x1000, 0x1010, 0x2000, 0x1020, 0x1ff0, 0x3000]
            .map(patch)
            .to_vec();
        let addresses = |run: &[Patch]| run.iter().map(|p| p.address).collect::<Vec<_>>();
        let forward: Vec<_> = list
            .chunk_by(|a, b| page_of(a) == page_of(b))
            .map(addresses)
            .collect();
        assert_eq!(
            forward,
            [
                vec![0x1000, 0x1010],
                vec![0x2000],
                vec![0x1020, 0x1ff0],
                vec![0x3000]
            ]
        );
        let mut backward: Vec<_> = runs_backwards(&list).map(addresses).collect();
        backward.reverse();
        assert_eq!(backward, forward);
    }
}
