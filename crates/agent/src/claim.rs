//! A thread's first event: it gets a slot of its own, and its GS base points there from then on.
//!
//! Signals are blocked meanwhile, so that no handler finds a thread that has half a slot. System calls are made here and
//! in clock.rs, nowhere else on the way of an event; a thread comes here once, and now and then for its name.

use crate::gate::tw_slow_gate;
use crate::memory::{
    Slot, atomic32, atomic64, flags, getpid, getppid, gettid, gs_base, header, region, set_gs_base,
    thread_name, thread_pointer, ticks, undisturbed,
};
use crate::tree::{Callee, Room};
use crate::{clock, limits, record, reuse, thread_creation, tree};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::compiler_fence;
use thalweg_abi as shm;

/// The slot of the running thread, claimed if need be; `None` when there are none left.
pub fn current(sp: u64) -> Option<Slot> {
    let owner = thread_pointer();
    if owner == 0 {
        // No thread pointer to tell threads apart by: such a thread goes uncounted.
        return None;
    }
    let slot = Slot(gs_base());
    if slot.is_nobodys() {
        return go_uncounted();
    }
    // SAFETY: every thread's GS base points to a slot: the controller set those of the threads it saw, all others
    // have inherited theirs.
    unsafe {
        if (*slot.private()).owner == owner && is_on_own_stack(slot, sp) {
            if (*slot.shared()).slow_entries >= (*slot.shared()).name_due {
                ask_name(slot);
            }
            return Some(slot);
        }
        if (*slot.private()).owner == 0 && flags() & shm::HEADER_FOLLOW == 0 {
            stray(slot, sp);
            return None;
        }
        if (*header()).full_until != 0 && ticks() < (*header()).full_until {
            return go_uncounted();
        }
    }
    undisturbed(|| claim(owner, sp))
}

/// Code that counts blocks does not know whose thread it is, and will count at the GS base whatever comes of this: one that gets no slot
/// gets nobody's.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_claim(_: u64, sp: u64) {
    if current(sp).is_some() {
        return;
    }
    // SAFETY: the header and all private pages are mapped; nobody's has no other use.
    unsafe {
        if let Some(slot) = (*header()).blocks.nobodys() {
            let slot = Slot::number(slot);
            // The same thread need not ask again, unless another one has asked since.
            (&raw mut (*slot.private()).owner).write_volatile(thread_pointer());
            set_gs_base(slot.0);
        }
    }
}

/// The same when the thread has just gone to another stack, wherever that is.
pub fn after_switch(sp: u64) -> Option<Slot> {
    let slot = Slot(gs_base());
    let owner = thread_pointer();
    // SAFETY: as in current.
    if owner != 0 && !slot.is_nobodys() && unsafe { (*slot.private()).owner } == owner {
        return Some(slot);
    }
    current(sp)
}

pub fn go_uncounted() -> Option<Slot> {
    // SAFETY: the header is mapped.
    unsafe { atomic32(&raw mut (*header()).unslotted).fetch_add(1, Relaxed) };
    None
}

/// Threads made by a bare `clone` may have their creator's thread pointer, and so its slot, until this finds their stack
/// to be no part of it. Stacks that were asked about are remembered: coroutines come here often.
///
/// # Safety
/// `slot` must be a slot.
unsafe fn is_on_own_stack(slot: Slot, sp: u64) -> bool {
    // SAFETY: by the caller's promise.
    unsafe {
        let at = shm::frame_sp((*slot.top()).key);
        if at.abs_diff(sp) <= shm::WINDOW {
            return true;
        }
        let (place, megabyte) = shm::stack_place(sp);
        (*slot.private()).stacks[place & (shm::KNOWN_STACKS - 1)] == megabyte
    }
}

const _: () = assert!(shm::KNOWN_STACKS.is_power_of_two());

/// A newcomer, as it is before it has a slot.
pub struct Newcomer {
    pub owner: u64,
    /// See `shm::process`.
    pub pid: u32,
    pub tid: u32,
    pub sp: u64,
    /// See `SharedSlot::namespace`.
    pub namespace: u32,
    /// The slot that its GS base names: its creator's.
    pub inherited: Slot,
    pub creator: Creator,
    /// When it began, in ticks.
    pub start: u64,
    /// By `fork`, as opposed to as a thread.
    pub forked: bool,
}

/// Who made a thread.
#[derive(PartialEq, Eq)]
pub struct Creator {
    pub pid: u32,
    pub tid: u32,
    pub functions: [u32; shm::CREATORS],
}

pub fn claim(owner: u64, sp: u64) -> Option<Slot> {
    // Once more: a handler may have claimed a slot before signals were blocked.
    let inherited = Slot(gs_base());
    if limits::is_silent() {
        // SAFETY: as in current.
        return unsafe { claim_silently(owner, sp, inherited) };
    }
    let (pid, tid) = (getpid(), gettid());
    // SAFETY: as in current.
    unsafe {
        let recorded = (*inherited.private()).owner;
        let shared = inherited.shared();
        let known = shm::number((*shared).pid);
        let is_mine = (*shared).tid == tid && known == pid;
        if recorded == owner && (is_mine || known != pid) {
            // A child that shares its parent's memory has its slot too: the parent waits for it meanwhile.
            remember_stack(inherited, sp);
            return Some(inherited);
        }
        if recorded != 0 && is_mine {
            // The same thread with another thread pointer: a static program that has set up its own.
            (*inherited.private()).owner = owner;
            return Some(inherited);
        }
        // A fork child in a new namespace may have the very number that its parent has in its own.
        let forked = recorded == 0;
        let namespace = match (!forked && known == pid) || getppid() == known {
            true => (*shared).namespace,
            // Its numbers and those of its creator may mean different threads: neither may judge the other's life.
            false => atomic32(&raw mut (*header()).namespaces).fetch_add(1, Relaxed) + 1,
        };
        let (creator, start) = creator_of(owner, inherited, forked);
        let newcomer = Newcomer {
            owner,
            pid: shm::process(namespace, pid),
            tid,
            sp,
            namespace,
            inherited,
            creator,
            start,
            forked,
        };
        let Some(slot) = reuse::find(&newcomer) else {
            return go_uncounted();
        };
        open(slot, &newcomer);
        if newcomer.forked {
            announce(sp);
        }
        Some(slot)
    }
}

/// The same where the kernel may not be asked who the thread is. One that has its creator's thread pointer is taken for it, and a
/// fork child, whose number nobody knows, goes uncounted.
///
/// # Safety
/// `inherited` must be the slot that the thread's GS base names.
unsafe fn claim_silently(owner: u64, sp: u64, inherited: Slot) -> Option<Slot> {
    // SAFETY: by the caller's promise; the header is mapped.
    unsafe {
        let recorded = (*inherited.private()).owner;
        if recorded == owner {
            remember_stack(inherited, sp);
            return Some(inherited);
        }
        if recorded == 0 {
            return go_uncounted();
        }
        let number = atomic32(&raw mut (*header()).unnumbered).fetch_add(1, Relaxed);
        let (creator, start) = creator_of(owner, inherited, false);
        let newcomer = Newcomer {
            owner,
            pid: (*inherited.shared()).pid,
            tid: shm::MADE_UP_TID.wrapping_add(number),
            sp,
            namespace: (*inherited.shared()).namespace,
            inherited,
            creator,
            start,
            forked: false,
        };
        let Some(slot) = reuse::find(&newcomer) else {
            return go_uncounted();
        };
        open(slot, &newcomer);
        Some(slot)
    }
}

/// Who made the thread, and when. Without a note the slot that it has inherited is its creator's, unless that has ended and left it
/// to another.
///
/// # Safety
/// `inherited` must be the slot that the thread's GS base names.
unsafe fn creator_of(owner: u64, inherited: Slot, forked: bool) -> (Creator, u64) {
    if let Some(noted) = thread_creation::take(owner).filter(|_| !forked) {
        return noted;
    }
    // SAFETY: by the callers a slot.
    let shared = unsafe { &*inherited.shared() };
    let creator = Creator {
        pid: shared.pid,
        tid: shared.tid,
        functions: [shm::NO_FUNCTION; shm::CREATORS],
    };
    (creator, ticks())
}

/// An event at `sp` is not asked about again.
///
/// # Safety
/// `slot` must be the running thread's alone.
unsafe fn remember_stack(slot: Slot, sp: u64) {
    let (place, megabyte) = shm::stack_place(sp);
    // SAFETY: by the callers the running thread's slot.
    unsafe { (*slot.private()).stacks[place & (shm::KNOWN_STACKS - 1)] = megabyte };
}

/// A fork child that nobody counts. Most of them are about to become another program; one that stays says so once.
///
/// # Safety
/// `inherited` must be the slot of the thread that forked, as the child sees it.
unsafe fn stray(inherited: Slot, sp: u64) {
    // SAFETY: the page is this process's own. Threads of it may count at the same time: then it is announced a little
    // later, or twice.
    unsafe {
        let strayed = &raw mut (*inherited.private()).strayed;
        let events = strayed.read_volatile() + 1;
        strayed.write_volatile(events);
        if events == shm::STRAY_EVENTS {
            announce(sp);
        }
    }
}

/// Waits until the controller, if there is one, knows this process.
fn announce(sp: u64) {
    let what = shm::GATE_KIND_FORK_CHILD << shm::GATE_KIND_SHIFT | shm::GATE_NO_FUNCTION;
    tw_slow_gate(what, &[0; 6], sp);
}

/// # Safety
/// `slot` must be the running thread's alone: never used before, or emptied by `reuse`.
unsafe fn open(slot: Slot, newcomer: &Newcomer) {
    // SAFETY: all addresses are in the region, in pages of this slot alone; the creator's are read only.
    unsafe {
        let shared = slot.shared();
        (*shared).pid = newcomer.pid;
        (*shared).tid = newcomer.tid;
        (*shared).start = newcomer.start;
        clock::open(slot);
        (*shared).namespace = newcomer.namespace;
        (*shared).dead_since = 0;
        if newcomer.forked {
            (*shared).flags |= shm::SLOT_FORKED;
        }
        if limits::is_frozen() {
            (*shared).flags |= shm::SLOT_FROZEN;
        }
        let creator = &newcomer.creator;
        if (*shared).root != 0 {
            // Handed on: what is not the same for all of its threads is unknown, and the name stays the first one's.
            (*shared).name_due = u64::MAX;
            if ((*shared).creator_pid, (*shared).creator_tid) != (creator.pid, creator.tid) {
                (*shared).creator_tid = 0;
            }
            if (*shared).creators != creator.functions {
                (*shared).creators = [shm::NO_FUNCTION; shm::CREATORS];
            }
        } else {
            (*shared).creator_pid = creator.pid;
            (*shared).creator_tid = creator.tid;
            (*shared).creators = creator.functions;
            (*shared).first_start = newcomer.start;
            (*shared).threads = 0;
            (*shared).name_step = 1;
            ask_name(slot);
            let root = tree::make_root(slot);
            atomic64(&raw mut (*shared).root).store(root as u64, Release);
        }
        (*shared).threads += 1;
        (*shared).base = 0;
        (*shared).switching = 0;
        (*shared).resumers = 0;
        let bottom = slot.sentinel();
        (*bottom).key = shm::frame_key((newcomer.sp + shm::WINDOW / 2) & !7, shm::KEY_SENTINEL);
        (*bottom).node = (*shared).root;
        let private = slot.private();
        (*private).table = region() + shm::PRIVATE_SIZE + shm::TABLE_OFFSET;
        (*private).table_mask = (*header()).table_mask;
        (*private).nodes = tree::nodes_base();
        (*private).untimed = shm::untimed_base(region() + shm::PRIVATE_SIZE, &*header());
        (*private).limit = bottom as u64 + shm::MAX_FRAMES * shm::FRAME_SIZE - slot.0;
        (*private).top = bottom as u64 - slot.0;
        (*private).stacks = [0; shm::KNOWN_STACKS];
        (*private).python = shm::PythonStack::UNKNOWN;
        (&raw mut (*private).goroutine).write_volatile(0);
        (&raw mut (*private).go_machine).write_volatile(0);
        (*private).go_stack = slot.agent_stack();
        record::open(slot);
        (&raw mut (*private).go_busy).write_volatile(0);
        (&raw mut (*private).alloc.at).write_volatile(0);
        let state = atomic64(&raw mut (*shared).state);
        let generation = state.load(Acquire) | shm::SLOT_STATE;
        state.store(generation + shm::SLOT_TAKEN + 1, Release);
        // Whoever finds the owner in place believes the rest.
        compiler_fence(SeqCst);
        (&raw mut (*private).owner).write_volatile(newcomer.owner);
        compiler_fence(SeqCst);
        set_gs_base(slot.0);
        if newcomer.forked {
            inherit_stack(slot, newcomer.inherited, newcomer.sp);
        }
    }
}

/// After so many slow events a thread is not asked for its name any more: it may confine itself to a few system calls.
const NAMED_BY: u64 = 64;

/// Threads are named after their creators at first and as a rule soon by themselves: asked again, ever more rarely. Not the
/// first of a process, which lives long enough to be seen from outside.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn ask_name(slot: Slot) {
    // SAFETY: by the caller's promise.
    unsafe {
        let shared = slot.shared();
        thread_name(&raw mut (*shared).name);
        (*shared).named = ticks();
        (*shared).name_due = match (*shared).tid != shm::number((*shared).pid) {
            true if (*shared).name_step < NAMED_BY => (*shared).slow_entries + (*shared).name_step,
            _ => u64::MAX,
        };
        (*shared).name_step *= 2;
    }
}

/// A fork child returns into functions that its parent entered: they are its ancestors too, with no call counted.
///
/// # Safety
/// As for `open`.
unsafe fn inherit_stack(slot: Slot, from: Slot, sp: u64) {
    // SAFETY: the parent's frames are in shared memory. It may go on meanwhile and overwrite those that the child does
    // not need (below `sp`); each value is checked before it is used.
    unsafe {
        let nodes = tree::nodes_base();
        let end = nodes + (*header()).nodes_len;
        let mut above = from.sentinel();
        let mut top = slot.sentinel();
        let mut count = 0;
        loop {
            above = above.add(1);
            if above as u64 == (*from.shared()).base {
                continue;
            }
            let key = (&raw const (*above).key).read_volatile();
            let node = (&raw const (*above).node).read_volatile();
            count += 1;
            if key == 0
                || shm::frame_sp(key) < sp
                || node < nodes
                || node >= end
                || count > shm::MAX_FRAMES
            {
                return;
            }
            let callee = Callee::of(node as *const shm::Node);
            let still = (&raw const (*above).key).read_volatile() == key
                && (&raw const (*above).node).read_volatile() == node;
            if callee.function >= (*header()).functions || !still {
                // Left, and perhaps cut and another context by now.
                return;
            }
            let context = tree::child(
                slot,
                (*top).node as *mut shm::Node,
                callee,
                shm::NODE_AT_ATTACH,
                Room::All,
            );
            if context.is_null() {
                return;
            }
            top = top.add(1);
            (*top).key = key & !shm::KEY_CLOSER & !shm::KEY_PENDING;
            (*top).node = context as u64;
            (*top).start = ticks();
            (*top).child = 0;
            record::begins(slot, top, (*top).start);
            slot.set_top(top);
        }
    }
}
