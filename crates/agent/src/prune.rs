//! Pruning: a thread that needs a new context when memory is short cuts contexts out of its own tree first. tree.rs asks
//! for it, free.rs takes what is cut, and what the contexts had counted goes to the process-wide node of their function, so
//! that no call and no time is lost.
//!
//! ```text
//!   root            never cut, nor are its children
//!   |- main         active (on the shadow stack): never cut
//!   |  |- serve     active
//!   |  |  |- a      inactive: cum below a share of serve's -> goes, with all that is below it
//!   |  |  `- b      its cum is larger, but among the smallest quarter of all contexts -> goes if the shares free too little
//!   |  `- load      has a hundredth of the thread's time -> stays
//! ```
//!
//! A pass goes through the tree twice: once to count how many contexts there are of which size, once to cut. Children come before
//! their parents, so that what is cut has no children any more. The levels of the walk are kept at the far end of the
//! thread's shadow stack.
//!
//! A context with blocks of memory that nobody has freed stays, too: whoever frees them knows it by its place.
//!
//! Without a clock the calls of a context and of those below it stand for its time.
//!
//! Signals are blocked meanwhile, and no other probe of the thread is under way (interrupted.rs). Readers are kept out by
//! the words of `shm::Pruning`. Whoever is killed in the middle leaves a tree in order, and the one context that it was cutting named in its slot.

use crate::interrupted::is_only_event;
use crate::memory::{Slot, atomic32, atomic64, flags, header, ticks, undisturbed};
use crate::tree::{self, from_link, to_link};
use crate::{alloc, clock, free, kernel, slow, states};
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use thalweg_abi as shm;
use thalweg_abi::{Frame, Node};

/// What part of all contexts a pruning pass tries to free.
const FREED_PART: u64 = 4;
/// One that has freed less than this part has cost more than it gave: so many contexts go without before the next.
const POOR_PART: u64 = 16;
const PATIENCE_PART: u64 = 8;
const LEAST_PATIENCE: u64 = 64;
/// Looking whether something is in the way costs time, too: each time in a row twice as many go without, up to this power of two.
const MOST_HINDERED: u64 = 10;
/// Contexts with this part of the thread's time are not among the smallest.
const KEPT_PART: u64 = 128;

/// From here on nothing is cut, for this reason.
pub fn stop(reason: u32) {
    // SAFETY: the header is mapped.
    unsafe {
        let off = atomic32(&raw mut (*header()).prune.off);
        if off.load(Relaxed) & reason == 0 {
            off.fetch_or(reason, Relaxed);
        }
    }
}

/// Cuts contexts of this thread, if it is time to and nothing is in the way.
///
/// # Safety
/// `slot` must be the running thread's, in an event at `now` on its clock whose activation has its return address at `sp`, and
/// which holds no nodes but those on the shadow stack.
pub unsafe fn make_room(slot: Slot, sp: u64, now: u64) {
    // SAFETY: by the caller's promise; the header is mapped.
    unsafe {
        let prune = &raw mut (*header()).prune;
        let state = &raw mut (*slot.shared()).prune;
        if (*prune).limit > (*header()).nodes_len
            || (&raw const (*prune).off).read_volatile() != 0
            || is_read()
        {
            return;
        }
        if (*state).patience > 0 {
            (*state).patience -= 1;
            return;
        }
        undisturbed(|| {
            let began = ticks();
            if !is_only_event(slot, sp) {
                (*state).patience = 1 << (*state).hindered;
                (*state).hindered = MOST_HINDERED.min((*state).hindered + 1);
                return;
            }
            let active = atomic32(&raw mut (*state).active);
            active.store(1, SeqCst);
            if !is_read() {
                let (cut, kept) = Pruner::new(slot, now).run();
                (*state).hindered = 0;
                if cut < kept / POOR_PART || cut == 0 {
                    (*state).patience = LEAST_PATIENCE.max(kept / PATIENCE_PART);
                }
                atomic64(&raw mut (*prune).passes).fetch_add(1, Relaxed);
            }
            active.store(0, Release);
            atomic64(&raw mut (*prune).ticks).fetch_add(clock::skip(slot, began), Relaxed);
        });
    }
}

/// Whether somebody outside reads the trees.
///
/// # Safety
/// The region must be mapped.
unsafe fn is_read() -> bool {
    let now = ticks();
    // SAFETY: the header is mapped.
    unsafe {
        let readers: *mut u64 = (&raw mut (*header()).prune.readers).cast();
        (0..shm::READERS).any(|index| atomic64(readers.add(index)).load(SeqCst) > now)
    }
}

/// One context between the root and where the walk is.
#[repr(C)]
struct Level {
    node: *mut Node,
    /// Links of the child that comes next, and of the last one that stays.
    next: u32,
    previous: u32,
    /// cum, with that of the call that is under way.
    cum: u64,
    /// What counts when the smallest are looked for, see `Pruner::weigh`.
    weight: u64,
    /// A bit for each function on the way here; several may have the same.
    functions: u64,
    active: bool,
    /// Below the share, or below one that is.
    doomed: bool,
}

fn end_of_frames(slot: Slot) -> u64 {
    slot.sentinel() as u64 - shm::FRAME_SIZE + shm::FRAMES_SIZE
}

/// How many contexts there are of which weight: four classes for each power of two.
const CLASSES: usize = 256;
const CLASSES_SIZE: u64 = CLASSES as u64 * 4;
const LEVEL_SIZE: u64 = core::mem::size_of::<Level>() as u64;
/// What is left free above the shadow stack's top.
const CLEARANCE: u64 = 1 << 16;

fn class_of(weight: u64) -> usize {
    if weight < 4 {
        return weight as usize;
    }
    let power = 63 - weight.leading_zeros() as usize;
    (power - 1) * 4 + (weight >> (power - 2)) as usize % 4
}

/// The least weight of the next class.
fn end_of(class: usize) -> u64 {
    if class < 4 {
        return class as u64 + 1;
    }
    let power = class / 4 + 1;
    (1u64 << power).wrapping_add((class as u64 % 4 + 1) << (power - 2))
}

struct Pruner {
    slot: Slot,
    now: u64,
    timed: bool,
    /// `CLASSES` counters.
    classes: *mut u32,
    /// The lowest address that a level may have, and the deepest that was used.
    lowest: u64,
    deepest: u64,
    /// Of the active calls, the innermost that the walk is in.
    frame: *mut Frame,
    contexts: u64,
    doomed: u64,
    /// What is lighter goes; 0 in the first walk.
    limit: u64,
    cut: u64,
    first_cut: *mut Node,
    last_cut: *mut Node,
}

impl Pruner {
    /// # Safety
    /// As for `make_room`, in a state in which contexts may be cut.
    unsafe fn new(slot: Slot, now: u64) -> Pruner {
        let end = end_of_frames(slot);
        let classes = end - CLASSES_SIZE;
        Pruner {
            slot,
            now,
            timed: flags() & shm::HEADER_TIMED != 0,
            classes: classes as *mut u32,
            lowest: slot.top() as u64 + CLEARANCE,
            deepest: classes,
            frame: slot.sentinel(),
            contexts: 0,
            doomed: 0,
            limit: 0,
            cut: 0,
            first_cut: core::ptr::null_mut(),
            last_cut: core::ptr::null_mut(),
        }
    }

    /// Counts, cuts, and tells how many contexts were cut and how many are left.
    ///
    /// # Safety
    /// The promise made to `new` must still hold.
    unsafe fn run(mut self) -> (u64, u64) {
        // SAFETY: by the promise made to `new`.
        unsafe {
            let root = (*self.slot.shared()).root as *mut Node;
            if !tree::is_in_arena(root) || self.level(1) as u64 <= self.lowest {
                return (0, 0);
            }
            self.clear(self.classes as u64);
            self.mark(true);
            let total = self.walk(root, Walk::Count);
            let wanted = self.contexts / FREED_PART;
            if self.doomed < wanted {
                self.limit = self.limit_for(wanted - self.doomed).min(total / KEPT_PART);
            }
            self.walk(root, Walk::Cut);
            self.mark(false);
            if !self.first_cut.is_null() {
                free::give_nodes(self.first_cut, self.last_cut);
            }
            // Nobody is to take for frames what the walk has left.
            self.clear(self.deepest);
            (self.cut, self.contexts - self.cut)
        }
    }

    /// Empties the far end of the shadow stack, from `start` on.
    ///
    /// # Safety
    /// The shadow stack must be free from `start` on.
    unsafe fn clear(&self, start: u64) {
        let end = end_of_frames(self.slot);
        for at in (start..end).step_by(8) {
            // SAFETY: beyond the top of this thread's shadow stack.
            unsafe { (at as *mut u64).write_volatile(0) };
        }
    }

    /// Marks the contexts that are active, or takes the marks away.
    ///
    /// # Safety
    /// The promise made to `new` must hold.
    unsafe fn mark(&self, active: bool) {
        // SAFETY: walks this thread's frames; their nodes are in the arena or among the folded ones.
        unsafe {
            let mut frame = self.slot.sentinel().add(1);
            while frame <= self.slot.top() {
                let node = (*frame).node as *mut Node;
                if tree::is_in_arena(node) {
                    match active {
                        true => (*node).flags |= shm::NODE_HELD,
                        false => (*node).flags &= !shm::NODE_HELD,
                    }
                }
                frame = frame.add(1);
            }
        }
    }

    fn level(&self, depth: u64) -> *mut Level {
        (self.classes as u64 - (depth + 1) * LEVEL_SIZE) as *mut Level
    }

    /// Goes through the tree, children before their parents. Gives the cum of the root's children.
    ///
    /// # Safety
    /// `root` must be the root of the tree that is pruned.
    unsafe fn walk(&mut self, root: *mut Node, walk: Walk) -> u64 {
        // SAFETY: the levels lie above this thread's shadow stack, which does not grow meanwhile; links lead to nodes of
        // its tree.
        unsafe {
            self.frame = self.slot.sentinel();
            let mut depth = 0;
            self.level(0).write(Level {
                node: root,
                next: (*root).first_child,
                previous: 0,
                cum: 0,
                weight: 0,
                functions: 0,
                active: true,
                doomed: false,
            });
            loop {
                let at = &mut *self.level(depth);
                let child = from_link(at.next);
                if !child.is_null() {
                    if (self.level(depth + 1) as u64) < self.lowest {
                        // No room to go deeper: all of it stays.
                        at.next = 0;
                        at.active = true;
                        continue;
                    }
                    depth += 1;
                    self.enter(at, child, depth);
                    continue;
                }
                if depth == 0 {
                    return at.cum;
                }
                depth -= 1;
                let above = &mut *self.level(depth);
                let rest = (*at.node).sibling;
                at.active |= alloc::has_live(at.node);
                above.active |= at.active;
                above.weight = match self.timed {
                    true => above.weight.max(at.weight),
                    false => above.weight.wrapping_add(at.weight),
                };
                if depth == 0 {
                    above.cum = above.cum.wrapping_add(match self.timed {
                        true => at.cum,
                        false => at.weight,
                    });
                }
                let stays = at.active || depth == 0;
                match walk {
                    Walk::Count => self.count(at, stays),
                    Walk::Cut if stays => {}
                    Walk::Cut => {
                        if (at.doomed || at.weight < self.limit) && self.cut(depth, at.node) {
                            above.next = rest;
                            continue;
                        }
                    }
                }
                above.previous = to_link(at.node);
                above.next = rest;
            }
        }
    }

    /// `child` of `parent` becomes the level at `depth`.
    ///
    /// # Safety
    /// `child` must be a child of the context of `parent`, and the shadow stack have room for a
    /// level at `depth`.
    unsafe fn enter(&mut self, parent: &Level, child: *mut Node, depth: u64) {
        // SAFETY: as in walk.
        unsafe {
            let at = self.level(depth);
            self.deepest = self.deepest.min(at as u64);
            let active = (*child).flags & shm::NODE_HELD != 0;
            let mut cum = (*child).cum;
            if active {
                let top = self.slot.top();
                while self.frame < top && (*self.frame).node != child as u64 {
                    self.frame = self.frame.add(1);
                }
                let is_timed = self.timed && (*self.frame).start != 0;
                if is_timed && (*self.frame).node == child as u64 {
                    cum = cum.wrapping_add(self.now.wrapping_sub((*self.frame).start));
                }
            }
            // What was never timed is not below any share of the time.
            let is_small = cum != 0
                && depth > 1
                && (cum as u128 * shm::WHOLE as u128)
                    < (*header()).prune.below as u128 * parent.cum as u128;
            at.write(Level {
                node: child,
                next: (*child).first_child,
                previous: 0,
                cum,
                weight: self.weigh(child, cum),
                functions: parent.functions | bit_of((*child).function),
                active,
                doomed: !active && (parent.doomed || is_small),
            });
        }
    }

    /// With a clock the cum, or that of a callee where that is more (the context itself may be counted only); the number of
    /// calls at least. Without one the calls of the context and of all below it.
    ///
    /// # Safety
    /// `node` must be a node of the tree that is pruned.
    unsafe fn weigh(&self, node: *const Node, cum: u64) -> u64 {
        // SAFETY: as in walk.
        let calls = unsafe { (*node).calls };
        match self.timed {
            // Time that a signal in the middle of a probe has made negative.
            true if (cum as i64) < 0 => calls,
            true => cum.max(calls),
            false => calls,
        }
    }

    /// # Safety
    /// `at` must be a level of this walk.
    unsafe fn count(&mut self, at: &Level, stays: bool) {
        self.contexts += 1;
        if stays {
            return;
        }
        if at.doomed {
            self.doomed += 1;
            return;
        }
        // SAFETY: a class is less than CLASSES.
        unsafe { *self.classes.add(class_of(at.weight) % CLASSES) += 1 };
    }

    /// The weight below which there are `wanted` contexts.
    ///
    /// # Safety
    /// The counts must be those of this walk.
    unsafe fn limit_for(&self, wanted: u64) -> u64 {
        let mut lighter = 0;
        for class in 0..CLASSES {
            // SAFETY: as in count.
            lighter += u64::from(unsafe { *self.classes.add(class) });
            if lighter >= wanted {
                return end_of(class);
            }
        }
        u64::MAX
    }

    /// Cuts `node`, the last child that was entered of the context at `depth`. `false`: it still has children.
    ///
    /// # Safety
    /// `node` must be the last child that was entered of the context at `depth`.
    unsafe fn cut(&mut self, depth: u64, node: *mut Node) -> bool {
        // SAFETY: as in walk; the node has no children any more and is not active.
        unsafe {
            let parent = &*self.level(depth);
            if (*node).first_child != 0 {
                return false;
            }
            if self.is_below_itself(depth, node) {
                (*node).cum = 0;
            }
            let state = &raw mut (*self.slot.shared()).prune;
            (&raw mut (*state).node).write_volatile(to_link(node));
            tree::unlink(self.slot, parent.node, from_link(parent.previous), node);
            account(self.slot, node, parent.node);
            (&raw mut (*state).node).write_volatile(0);
            tree::strip(node);
            (*node).sibling = match self.first_cut.is_null() {
                true => 0,
                false => to_link(self.first_cut),
            };
            self.first_cut = node;
            if self.last_cut.is_null() {
                self.last_cut = node;
            }
            self.cut += 1;
            true
        }
    }

    /// Whether its function is among the callers of `node`, a child of the context at `depth`: their cum has its time.
    ///
    /// # Safety
    /// `node` must be a child of the context at `depth` of this walk.
    unsafe fn is_below_itself(&self, mut depth: u64, node: *const Node) -> bool {
        // SAFETY: as in walk.
        unsafe {
            let function = (*node).function;
            if (*self.level(depth)).functions & bit_of(function) == 0 {
                return false;
            }
            while depth > 0 {
                if (*(*self.level(depth)).node).function == function {
                    return true;
                }
                depth -= 1;
            }
            false
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    Count,
    Cut,
}

fn bit_of(function: u32) -> u64 {
    1 << (function % 64)
}

/// Moves the figures of `node` to the process-wide node of its function.
///
/// # Safety
/// `slot` must be the running thread's, `node` and `parent` of the tree that is pruned.
unsafe fn account(slot: Slot, node: *mut Node, parent: *mut Node) {
    // SAFETY: the node is this thread's alone; folded ones are touched atomically.
    unsafe {
        if let Some(number) = shm::kernel::number((*node).function) {
            kernel::count_cut((*parent).function, number, (*node).calls);
            (&raw mut (*node).calls).write_volatile(0);
            return;
        }
        let into = slow::folded(slot, (*node).function);
        let prune = &raw mut (*header()).prune;
        let calls = (*node).calls;
        slow::lost_callees(slot, parent, calls);
        atomic64(&raw mut (*into).calls).fetch_add(calls, Relaxed);
        (&raw mut (*node).calls).write_volatile(0);
        atomic64(&raw mut (*into).base).fetch_add((*node).base, Relaxed);
        (&raw mut (*node).base).write_volatile(0);
        atomic64(&raw mut (*into).cum).fetch_add((*node).cum, Relaxed);
        (&raw mut (*node).cum).write_volatile(0);
        if (*node).min != i64::MAX {
            slow::widen(into, (*node).min, (*node).max);
        }
        slow::add_unwound(into, (*node).unwound);
        (&raw mut (*node).unwound).write_volatile(0);
        if (*node).flags & shm::NODE_WAITED != 0 || states::was_switched((*node).function) {
            clock::move_waits(node, into);
        }
        if (*node).flags & shm::NODE_ALLOCATED != 0 {
            alloc::move_figures(node, into);
        }
        atomic64(&raw mut (*prune).pruned_contexts).fetch_add(1, Relaxed);
        atomic64(&raw mut (*prune).pruned_calls).fetch_add(calls, Relaxed);
    }
}
