//! Changes to text, in the planner's order and a page at a time.
//!
//! The order matters to a target whose controller is killed half way: a short jump needs its springboard, a springboard may
//! lie in bytes that are dead only once their own window is patched. Every prefix of the list is a working program, and the
//! kernel copies a page without looking at signals, so patches that follow each other on one page go in one write.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_patch::{HelperThread, Patch};

use crate::error::{Error, Result};
use crate::ledger::{Ledger, Text};
use crate::memory::read_remote;
use crate::proc::{self, Mapping, Pid, RemoteAddr};
use crate::tracee::{RemoteMemory, Stopped};

/// How often text is read that other files take the place of.
const ATTEMPTS: u32 = 20;
/// As much of the text as is compared at a time while the target stands.
const READ_AT_ONCE: usize = 64 * PAGE;
const PAGE: usize = thalweg_abi::PAGE as usize;

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
            let changed = apply(pid, run, &mut page)?;
            let at = start + changed.start as u64;
            changes.writes.push((at, page[changed].to_vec()));
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

/// Makes the changes of a ledger in a process that has stood still since its text was mapped: each
/// page is read, compared with what the file says, and written, one after the other. What is wrong
/// is found out half way, and it is for the caller to take the rest back.
///
/// Of large programs most of the time is the kernel's, which copies each page. So files take turns
/// on all processors: no patch depends on one in another file.
pub fn make(stopped: &mut Stopped, ledger: &Ledger) -> Result<()> {
    /// Below this many a thread is not worth its start.
    const WORTH_A_THREAD: usize = 5000;
    let mut files = by_file(ledger);
    // The longest first.
    files.sort_by_key(|patches| Reverse(patches.len()));
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let worth = ledger.patches.len() / WORTH_A_THREAD;
    let helpers = processors
        .min(files.len())
        .min(worth)
        .min(8)
        .saturating_sub(1);
    let memory = stopped.memory();
    let next = AtomicUsize::new(0);
    let each = || std::iter::from_fn(|| files.get(next.fetch_add(1, Ordering::Relaxed)));
    let left = std::thread::scope(|scope| {
        let help = || {
            each()
                .map(|file| rest_of(&memory, file))
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..helpers)
            .map(|_| HelperThread::spawn(scope, help))
            .collect();
        // To the end, or until something is wrong.
        let here = each().try_for_each(|file| rest_of(&memory, file).1);
        let helped = threads.into_iter().flat_map(|thread| match thread.join() {
            Ok(left) => left,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let left: Vec<_> = helped.map(|(rest, _)| rest).collect();
        here.map(|()| left)
    })?;
    // Some kernels let none but the tracing thread write.
    let mut unwritten = left.into_iter();
    unwritten.try_for_each(|rest| rest_of(&memory, &rest).1)
}

/// The patches of each file, in their order.
fn by_file(ledger: &Ledger) -> Vec<Vec<&Patch>> {
    let mut texts: Vec<&Text> = ledger.texts.iter().collect();
    texts.sort_unstable_by_key(|text| text.start);
    let file_of = |patch: &Patch| {
        let next = texts.partition_point(|text| text.start <= patch.address);
        texts[..next].last().map(|text| (text.dev, text.inode))
    };
    let mut files: HashMap<_, Vec<&Patch>> = HashMap::new();
    for patch in &ledger.patches {
        files.entry(file_of(patch)).or_default().push(patch);
    }
    files.into_values().collect()
}

/// Makes patches up to the first that cannot be made; gives that one and those behind it, and why.
fn rest_of<'a>(memory: &RemoteMemory<'_>, patches: &[&'a Patch]) -> (Vec<&'a Patch>, Result<()>) {
    let mut page = [0; PAGE];
    let mut done = 0;
    for run in patches.chunk_by(|a, b| page_of(a) == page_of(b)) {
        if let Err(error) = make_on_page(memory, run, &mut page) {
            return (patches[done..].to_vec(), Err(error));
        }
        done += run.len();
    }
    (Vec::new(), Ok(()))
}

fn make_on_page(memory: &RemoteMemory<'_>, run: &[&Patch], page: &mut [u8; PAGE]) -> Result<()> {
    let start = page_of(run[0]);
    memory.read(RemoteAddr(start), page)?;
    let changed = apply(memory.pid, run, page)?;
    let at = start + changed.start as u64;
    memory.write(RemoteAddr(at), &page[changed])
}

/// Makes patches on the page that they are all of. Gives the bytes that they lie within; refuses a
/// page that is not what the file says.
fn apply(pid: Pid, run: &[&Patch], page: &mut [u8]) -> Result<Range<usize>> {
    let start = page_of(run[0]);
    let (mut low, mut high) = (PAGE, 0);
    for patch in run {
        let at = (patch.address - start) as usize;
        let bytes = at..at + patch.original.len();
        let place = page.get_mut(bytes.clone()).ok_or_else(|| crosses(patch))?;
        if *place != *patch.original {
            return Err(foreign(pid, patch, place));
        }
        place.copy_from_slice(&patch.replacement);
        (low, high) = (low.min(bytes.start), high.max(bytes.end));
    }
    Ok(low..high)
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
            if *place == *patch.replacement {
                place.copy_from_slice(&patch.original);
                (low, high) = (low.min(at), high.max(at + patch.original.len()));
            } else if *place != *patch.original {
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
    Error::Refused(format!(
        "the patch at {:#x} crosses a page: nothing was changed",
        patch.address
    ))
}

fn foreign(pid: Pid, patch: &Patch, found: &[u8]) -> Error {
    Error::Refused(format!(
        "the code at {:#x} of process {pid} is not what its file says ({found:02x?} instead of {:02x?}): a debugger's breakpoint or another tool's patch; remove it first",
        patch.address, patch.original
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_cannot_be_made_ends_the_row_and_the_rest_is_given_back_in_order() {
        // SAFETY: a descriptor of our own, or -1.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"text".as_ptr(), 0)) };
        file.set_len(4 * PAGE as u64).expect("a file in memory");
        // Somebody else's breakpoint.
        file.write_all_at(&[0xcc], 0x2010).expect("room");
        let all = [0x10, 0x20, 0x1010, 0x2000, 0x2010, 0x3010].map(patch);
        let patches: Vec<&Patch> = all.iter().collect();
        let memory = RemoteMemory::of_file(&file);
        let (rest, result) = rest_of(&memory, &patches);
        assert!(result.is_err());
        assert_eq!(rest, patches[3..], "from the page on where it stands");
        let there = |at: u64| {
            let mut bytes = [0; 5];
            file.read_exact_at(&mut bytes, at).expect("room");
            bytes == [1; 5]
        };
        let made = [0x10, 0x20, 0x1010, 0x2000, 0x3010].map(there);
        assert_eq!(made, [true, true, true, false, false]);
        file.write_all_at(&[0], 0x2010).expect("room");
        let (rest, result) = rest_of(&memory, &rest);
        assert!(rest.is_empty() && result.is_ok());
        assert!(all.iter().all(|patch| there(patch.address)));
    }

    #[test]
    fn patches_of_one_file_stay_in_their_order() {
        let text = |start, inode| Text {
            start,
            end: start + 0x1000,
            offset: 0,
            dev: (8, 1),
            inode,
        };
        // The second file has two pieces of code, which are patched by turns.
        let patches = [0x1000, 0x1010, 0x5000, 0x9000, 0x5010, 0x1020].map(patch);
        let ledger = Ledger {
            patches: patches.to_vec(),
            texts: vec![text(0x9000, 2), text(0x1000, 1), text(0x5000, 2)],
            ..Ledger::default()
        };
        let addresses = |file: Vec<&Patch>| file.iter().map(|p| p.address).collect::<Vec<_>>();
        let mut files: Vec<_> = by_file(&ledger).into_iter().map(addresses).collect();
        files.sort();
        assert_eq!(
            files,
            [vec![0x1000, 0x1010, 0x1020], vec![0x5000, 0x9000, 0x5010]]
        );
    }

    fn patch(address: u64) -> Patch {
        Patch {
            address,
            original: [0; 5].into(),
            replacement: [1; 5].into(),
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
