//! Allocation: what the functions that allocate and free are asked for, and what they answer, charged to their callers.
//!
//! ```text
//! entry stub   call tw_entry_*            the allocator's frame is on top
//!              call tw_alloc              notes what is asked for, and where: `PrivateSlot::alloc.at = sp`
//!              ...
//! exit stub    jmp tw_return_*a           rsp == alloc.at: the answer is in rax
//! ```
//!
//! The outermost allocator counts: while a note is open, those that it calls or jumps to (`operator new[]` -> `operator
//! new` -> `malloc`) are passed over. Whoever returns from the place of the note ends it, so that the answer is also right
//! if the allocator has left by a tail jump (`calloc` -> `memset`). A note whose frame is gone was left by an exception.
//!
//! What is freed leaves the table at the entry, since another thread may get the same address before the exit; what
//! is allocated enters it at the exit.

use crate::clock;
use crate::memory::{Slot, atomic32, atomic64, gs_base, header, region, thread_pointer, ticks};
use crate::{totals, tree};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use thalweg_abi as shm;
use thalweg_abi::alloc::{AllocHead, Allocated, Block, kind};
use thalweg_abi::{AllocNote, Frame, frame_sp};

/// An allocator begins; its frame is on top, its return address at `sp`.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_alloc(kind: u32, args: *const [u64; 6], sp: u64) {
    let began = ticks();
    let slot = Slot(gs_base());
    // SAFETY: every GS base is a slot's; only the thread that has it touches it. `args` is on this thread's stack.
    unsafe {
        if (*slot.private()).owner != thread_pointer() {
            return;
        }
        let now = clock::event(slot, began);
        match kind {
            shm::totals::OF_THREAD | shm::totals::OF_PROCESS => {
                totals::answer(slot, kind, (*args)[0] as *mut _, now);
            }
            _ => begin(slot, kind, &*args, sp),
        }
        clock::resume(slot, now, false);
    }
}

/// The function whose return address is at `sp` returns `answer`, and a note says that it was to allocate. `unseen`: it jumps
/// to code without probes instead.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_alloc_exit(answer: u64, sp: u64, unseen: u64) {
    let began = ticks();
    let slot = Slot(gs_base());
    // SAFETY: as in tw_slow_alloc.
    unsafe {
        let now = clock::event(slot, began);
        let answer = match unseen {
            0 => Some(answer),
            _ => cleared(slot, &Jump::at(sp, 40, 24)),
        };
        end(slot, sp, answer);
        clock::resume(slot, now, false);
    }
}

/// The activation at `sp` jumps to code without probes: what that answers is not seen.
///
/// # Safety
/// `slot` must be the running thread's, its top frame the one at `sp`; to be called below `tw_slow_tail` only.
pub unsafe fn jumps_away(slot: Slot, sp: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        if (*slot.private()).alloc.at == sp {
            end(slot, sp, cleared(slot, &Jump::at(sp, 48, 40)));
        }
    }
}

/// The first three arguments of what an allocator jumps to.
struct Jump {
    first: u64,
    second: u64,
    third: u64,
}

impl Jump {
    /// Where `TAIL` and `EXIT` have put rsi and rdx, and `SLOW_CALL` rdi, counted from the return address at `sp`.
    ///
    /// # Safety
    /// To be called below `tw_slow_tail` or `tw_slow_exit` only, with the `sp` that these give.
    unsafe fn at(sp: u64, second: u64, third: u64) -> Jump {
        // SAFETY: the probe that calls us has them on the stack.
        unsafe {
            Jump {
                first: *((sp - 184) as *const u64),
                second: *((sp - second) as *const u64),
                third: *((sp - third) as *const u64),
            }
        }
    }
}

/// The block, if what a `calloc` jumps to is there to clear it, as in glibc and musl: `memset(block, 0, length)`.
///
/// # Safety
/// `slot` must be the running thread's, `to` what its program jumps to.
unsafe fn cleared(slot: Slot, to: &Jump) -> Option<u64> {
    // SAFETY: the note is this thread's own.
    let kind = unsafe { (*slot.private()).alloc.kind };
    let is_memset =
        to.first > shm::PAGE && to.first.is_multiple_of(8) && to.second == 0 && to.third > 0;
    (kind == u64::from(kind::PRODUCT) && is_memset).then_some(to.first)
}

/// # Safety
/// `slot` must be the running thread's, its top frame the one at `sp`.
unsafe fn begin(slot: Slot, kind: u32, args: &[u64; 6], sp: u64) {
    // SAFETY: walks this thread's frames.
    unsafe {
        let top = slot.top();
        if top <= slot.bottom() || frame_sp((*top).key) != sp {
            // Too deep for the shadow stack.
            return;
        }
        let note = &raw mut (*slot.private()).alloc;
        if is_open(slot, note) && top as u64 > (*note).frame {
            return;
        }
        let below = top.sub(1);
        let caller = match below == slot.sentinel() {
            // Nobody that is counted called it.
            true => (*top).node,
            false => (*below).node,
        };
        // In this order: what a handler allocates once `at` is set is taken for a part of this.
        (&raw mut (*note).at).write_volatile(0);
        (&raw mut (*note).frame).write_volatile(top as u64);
        (&raw mut (*note).node).write_volatile((*top).node);
        (&raw mut (*note).kind).write_volatile(kind.into());
        (&raw mut (*note).at).write_volatile(sp);
        let asked = Asked::of(kind, args);
        (*note).caller = caller;
        (*note).size = asked.size;
        (*note).old = asked.old;
        (*note).into = asked.into;
        (*note).old_bytes = 0;
        (*note).old_node = UNKNOWN;
        if asked.old != 0
            && let Some((bytes, node)) = take(key(slot, asked.old, is_mapping(kind)))
        {
            (*note).old_bytes = bytes;
            (*note).old_node = node;
        }
        if kind == kind::FREE && asked.old != 0 {
            freed(caller, (*note).old_bytes, (*note).old_node);
        }
    }
}

/// In `AllocNote::old_node`: nobody knows who allocated it.
const UNKNOWN: u64 = u64::MAX;

struct Asked {
    size: u64,
    old: u64,
    into: u64,
}

impl Asked {
    fn of(kind: u32, args: &[u64; 6]) -> Asked {
        let [first, second, third, fourth, ..] = *args;
        let (size, old, into) = match kind {
            kind::SIZE => (first, 0, 0),
            kind::PRODUCT => (first.saturating_mul(second), 0, 0),
            kind::SECOND => (second, 0, 0),
            kind::POSIX => (third, 0, first),
            kind::RESIZE => (second, first, 0),
            kind::RESIZE_PRODUCT => (second.saturating_mul(third), first, 0),
            kind::RESIZE_FOURTH => (fourth, first, 0),
            kind::FREE => (0, first, 0),
            // `into` says whether it is anonymous.
            kind::MAP => (second, 0, fourth & MAP_ANONYMOUS),
            kind::UNMAP => (second, first, 0),
            kind::REMAP => (third, first, second),
            _ => (0, 0, 0),
        };
        Asked { size, old, into }
    }
}

fn is_mapping(kind: u32) -> bool {
    matches!(kind, kind::UNMAP | kind::REMAP)
}

const MAP_ANONYMOUS: u64 = 0x20;
/// From here on an answer of `mmap` is an error.
const FIRST_ERROR: u64 = (-4095i64) as u64;

/// Whether the allocator that the note is about has not returned yet.
///
/// # Safety
/// `slot` must be the running thread's, `note` one of the notes in it.
unsafe fn is_open(slot: Slot, note: *const AllocNote) -> bool {
    // SAFETY: `frame` is one of this thread's frames, or 0.
    unsafe {
        let frame = (*note).frame as *const Frame;
        (*note).at != 0
            && frame as u64 <= slot.top() as u64
            && frame_sp((*frame).key) == (*note).at
            && (*frame).node == (*note).node
    }
}

/// `answer`: what is returned, if that is seen.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn end(slot: Slot, sp: u64, answer: Option<u64>) {
    // SAFETY: the note is this thread's own; nodes in it are those of frames.
    unsafe {
        let note = &raw mut (*slot.private()).alloc;
        let open = is_open(slot, note) && (*note).at == sp;
        let (caller, size) = ((*note).caller, (*note).size);
        let (old, old_bytes, old_node) = ((*note).old, (*note).old_bytes, (*note).old_node);
        let (what, into) = ((*note).kind as u32, (*note).into);
        (&raw mut (*note).at).write_volatile(0);
        if !open {
            return;
        }
        let block = match what {
            kind::FREE => return,
            kind::MAP => {
                if let Some(at) = answer
                    && at < FIRST_ERROR
                    && into != 0
                {
                    mapped(slot, caller, at, size);
                }
                return;
            }
            kind::UNMAP => {
                return unmapped(slot, answer, (old, size), (caller, old_bytes, old_node));
            }
            kind::REMAP => {
                let moved = answer.filter(|at| *at < FIRST_ERROR);
                let done = moved.map(|_| 0);
                unmapped(slot, done, (old, into), (caller, old_bytes, old_node));
                if let Some(at) = moved
                    && old_node != UNKNOWN
                {
                    mapped(slot, caller, at, size);
                }
                return;
            }
            // The function has just written there.
            kind::POSIX => answer.map(|error| match error as u32 {
                0 => (into as *const u64).read_unaligned(),
                _ => 0,
            }),
            _ => answer,
        };
        if old != 0 {
            // A refused request leaves the old block as it was; one for nothing is a free.
            let kept = block == Some(0) && size != 0;
            match kept {
                true if old_node != UNKNOWN => put(key(slot, old, false), old_bytes, old_node),
                true => {}
                false => freed(caller, old_bytes, old_node),
            }
        }
        match block {
            Some(0) if old == 0 || size != 0 => count(head(|head| &raw mut (*head).failed), 1),
            Some(0) => {}
            Some(address) => allocated(slot, caller, size, address),
            None => {
                // A request for nothing may have freed the block, or not.
                add_own(caller, |f| &raw mut (*f).calls, 1);
                add_own(caller, |f| &raw mut (*f).bytes, size);
                count(head(|head| &raw mut (*head).untracked), 1);
            }
        }
    }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn allocated(slot: Slot, caller: u64, size: u64, address: u64) {
    // SAFETY: as in end.
    unsafe {
        add_own(caller, |f| &raw mut (*f).calls, 1);
        add_own(caller, |f| &raw mut (*f).bytes, size);
        let place = place_of(caller);
        if enter(key(slot, address, false), size, place) {
            add_live(place, size, 1);
        }
    }
}

/// `node`: of the context that allocated it.
///
/// # Safety
/// `node` must be 0 or what the table of blocks has for one.
unsafe fn freed(caller: u64, bytes: u64, node: u64) {
    // SAFETY: as in end.
    unsafe {
        add_own(caller, |f| &raw mut (*f).frees, 1);
        if node == UNKNOWN {
            return count(head(|head| &raw mut (*head).unknown_frees), 1);
        }
        add_own(caller, |f| &raw mut (*f).freed_bytes, bytes);
        add_live(node, bytes.wrapping_neg(), u64::MAX);
    }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn mapped(slot: Slot, caller: u64, at: u64, size: u64) {
    // SAFETY: as in end.
    unsafe {
        add_own(caller, |f| &raw mut (*f).maps, 1);
        add_own(caller, |f| &raw mut (*f).mapped_bytes, size);
        put(key(slot, at, true), size, place_of(caller));
    }
}

/// Only what begins where an anonymous mapping began is known as one; what is left behind it stays known.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn unmapped(
    slot: Slot,
    answer: Option<u64>,
    (at, size): (u64, u64),
    known: (u64, u64, u64),
) {
    let (caller, bytes, node) = known;
    if node == UNKNOWN {
        return;
    }
    // SAFETY: as in end.
    unsafe {
        if answer != Some(0) {
            return put(key(slot, at, true), bytes, node);
        }
        let size = size.wrapping_add(shm::PAGE - 1) & !(shm::PAGE - 1);
        let bytes = bytes.wrapping_add(shm::PAGE - 1) & !(shm::PAGE - 1);
        add_own(caller, |f| &raw mut (*f).unmaps, 1);
        add_own(caller, |f| &raw mut (*f).unmapped_bytes, size.min(bytes));
        if size < bytes {
            put(key(slot, at.wrapping_add(size), true), bytes - size, node);
        }
    }
}

fn area() -> u64 {
    // SAFETY: the header is mapped.
    region() + shm::PRIVATE_SIZE + unsafe { (*header()).alloc_offset }
}

fn head(field: fn(*mut AllocHead) -> *mut u64) -> *mut u64 {
    field(area() as *mut AllocHead)
}

/// # Safety
/// `field` must be a figure in the area of allocations.
unsafe fn count(field: *mut u64, by: u64) {
    // SAFETY: by the callers a word of the area.
    unsafe { atomic64(field).fetch_add(by, Relaxed) };
}

/// How far a node lies behind the first folded one.
fn place_of(node: u64) -> u64 {
    node.wrapping_sub(tree::folded(0) as u64)
}

/// The figures of the context at that place. None for a root that found no room in the arena.
fn figures(place: u64) -> Option<*mut Allocated> {
    // SAFETY: the header is mapped.
    let nodes =
        unsafe { (*header()).nodes_offset + (*header()).nodes_len - (*header()).folded_offset };
    (place < nodes).then_some((area() + shm::PAGE + place) as *mut Allocated)
}

/// Adds to a figure of a context that this thread is in. One instruction, so that a handler loses nothing; folded contexts
/// are everybody's.
///
/// # Safety
/// `node` must be 0 or the address of a node of this thread's tree, or of a folded one.
unsafe fn add_own(node: u64, field: fn(*mut Allocated) -> *mut u64, by: u64) {
    let place = place_of(node);
    let Some(figures) = figures(place) else {
        return;
    };
    // SAFETY: every node has its figures, and only this thread adds to those of its own.
    unsafe {
        let field = field(figures);
        if crate::slow::in_folded(node as *const shm::Node) {
            count(field, by);
        } else {
            let flags = atomic32(&raw mut (*(node as *mut shm::Node)).flags);
            if flags.load(Relaxed) & shm::NODE_ALLOCATED == 0 {
                flags.fetch_or(shm::NODE_ALLOCATED, Relaxed);
            }
            core::arch::asm!("add qword ptr [{}], {}", in(reg) field, in(reg) by, options(nostack));
        }
    }
}

/// Whether there are blocks that this context has allocated: whoever frees them will come back to it.
///
/// # Safety
/// `node` must be a node of this thread's tree.
pub unsafe fn has_live(node: *const shm::Node) -> bool {
    // SAFETY: every node has its figures.
    unsafe {
        (*node).flags & shm::NODE_ALLOCATED != 0
            && figures(place_of(node as u64)).is_some_and(|figures| {
                let live = |field: *mut u64| atomic64(field).load(Acquire) != 0;
                live(&raw mut (*figures).live_objects) || live(&raw mut (*figures).live_bytes)
            })
    }
}

/// Moves the figures of a context that is cut, and has nothing live, to a folded one.
///
/// # Safety
/// `node` must be a node of this thread's tree, `into` a folded one.
pub unsafe fn move_figures(node: *const shm::Node, into: *const shm::Node) {
    let (Some(from), Some(to)) = (
        figures(place_of(node as u64)),
        figures(place_of(into as u64)),
    ) else {
        return;
    };
    // SAFETY: both are integers throughout; folded ones are everybody's.
    unsafe {
        let words = shm::alloc::ALLOCATED_SIZE as usize / 8;
        let (from, to): (*mut u64, *mut u64) = (from.cast(), to.cast());
        for index in 0..words {
            let moved = from.add(index).read_volatile();
            if moved != 0 {
                from.add(index).write_volatile(0);
                count(to.add(index), moved);
            }
        }
    }
}

/// # Safety
/// `place` must be a node's place in the trees' memory.
unsafe fn add_live(place: u64, bytes: u64, objects: u64) {
    if let Some(figures) = figures(place) {
        // SAFETY: every node has its figures.
        unsafe {
            count(&raw mut (*figures).live_bytes, bytes);
            count(&raw mut (*figures).live_objects, objects);
        }
    }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn key(slot: Slot, address: u64, mapping: bool) -> u64 {
    // SAFETY: the slot is this thread's.
    unsafe { shm::alloc::block_key(address, (*slot.shared()).pid, mapping) }
}

fn first_place(key: u64) -> *mut Block {
    // SAFETY: the header is mapped.
    let blocks = unsafe {
        let nodes_end = (*header()).nodes_offset + (*header()).nodes_len;
        let (area, folded) = ((*header()).alloc_offset, (*header()).folded_offset);
        region() + shm::PRIVATE_SIZE + shm::alloc::blocks_offset(area, folded, nodes_end)
    };
    (blocks + shm::alloc::block_place(key) * shm::alloc::BLOCK_SIZE) as *mut Block
}

/// Takes a block out of the table: its size and who allocated it.
///
/// # Safety
/// The area of allocations must be mapped.
unsafe fn take(key: u64) -> Option<(u64, u64)> {
    let first = first_place(key);
    // SAFETY: BLOCK_PLACES from there on are in the table. Who finds a key and makes the entry busy has it alone.
    unsafe {
        for index in 0..shm::alloc::BLOCK_PLACES as usize {
            let block = first.add(index);
            let word = atomic64(&raw mut (*block).key);
            if word.load(Acquire) != key {
                continue;
            }
            let busy = shm::alloc::BLOCK_BUSY;
            if word.compare_exchange(key, busy, AcqRel, Relaxed).is_ok() {
                let found = ((*block).bytes, (*block).node);
                word.store(0, Release);
                return Some(found);
            }
        }
        None
    }
}

/// Enters a block that somebody got. One that is there under the same address was freed unseen.
///
/// # Safety
/// The area of allocations must be mapped.
unsafe fn enter(key: u64, bytes: u64, node: u64) -> bool {
    // SAFETY: as in take.
    unsafe {
        if let Some((bytes, node)) = take(key) {
            add_live(node, bytes.wrapping_neg(), u64::MAX);
        }
        let first = first_place(key);
        for index in 0..shm::alloc::BLOCK_PLACES as usize {
            let block = first.add(index);
            let word = atomic64(&raw mut (*block).key);
            if word.load(Relaxed) != 0 {
                continue;
            }
            let busy = shm::alloc::BLOCK_BUSY;
            if word.compare_exchange(0, busy, AcqRel, Relaxed).is_ok() {
                (*block).bytes = bytes;
                (*block).node = node;
                word.store(key, Release);
                return true;
            }
        }
        count(head(|head| &raw mut (*head).untracked), 1);
        false
    }
}

/// Puts back what was taken, or a mapping, of which nothing is counted as live.
///
/// # Safety
/// The area of allocations must be mapped.
unsafe fn put(key: u64, bytes: u64, node: u64) {
    // SAFETY: as in take.
    unsafe {
        take(key);
        if !enter(key, bytes, node) && key >> 63 == 0 {
            add_live(node, bytes.wrapping_neg(), u64::MAX);
        }
    }
}
