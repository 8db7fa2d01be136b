//! What the probes do when the plain case does not hold. Each event is done here completely.

use crate::alloc;
use crate::claim;
use crate::clock;
use crate::memory::{Slot, atomic32, atomic64, flags, header, thread_pointer, ticks};
use crate::prune;
use crate::python;
use crate::record::{self, Registers};
use crate::stacks::{drop_base, own_stack_encloses};
use crate::states;
use crate::tree::{self, Callee, Room};
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::{Frame, Node, frame_key, frame_sp};

/// Addresses farther apart than this are not on the same stack.
const SAME_STACK: u64 = 64 << 20;

/// Whether both addresses may be on one stack. A thread's control block lies at the end of its stack, so what is beyond
/// it is another one: a signal's, if that was put above the thread's own.
fn same_stack(low: u64, high: u64) -> bool {
    let end = thread_pointer();
    high - low < SAME_STACK && !(low < end && end <= high)
}

/// The function that `word` names begins; its return address is at `sp`.
#[unsafe(no_mangle)]
pub extern "C" fn tw_slow_entry(word: u32, sp: u64, loops: u32) {
    enter(word, sp, loops != 0, None);
}

/// The same where single calls are recorded. `function` has its 32nd bit set if it may jump back to its entry.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_entry_r(
    function: u64,
    sp: u64,
    saved: *const record::Saved,
    vectors: *const record::Vectors,
) {
    let registers = Registers::C { saved, vectors };
    enter(function as u32, sp, function >> 32 != 0, Some(registers));
}

fn enter(word: u32, sp: u64, loops: bool, registers: Option<Registers>) {
    let began = ticks();
    let function = word & shm::MODE_FUNCTION;
    let Some(slot) = claim::current(sp) else {
        return;
    };
    // SAFETY: `slot` is this thread's own, so its frames and nodes are.
    unsafe {
        (*slot.shared()).slow_entries += 1;
        let now = clock::event(slot, began);
        let mut tail = 0;
        let top = slot.top();
        if top > slot.bottom() && (*top).key != 0 {
            let top_sp = frame_sp((*top).key);
            if sp == top_sp && (*top).key & shm::KEY_PENDING != 0 {
                (*top).key &= !shm::KEY_PENDING;
                tail = shm::KEY_TAIL;
            } else if sp == top_sp && loops && (*((*top).node as *const Node)).function == function
            {
                return clock::resume(slot, now, false);
            } else {
                leave_behind(slot, sp, now);
            }
        } else {
            leave_behind(slot, sp, now);
        }
        let caller = caller_at(slot, sp);
        let site = match tree::with_sites() {
            true if tail != 0 && (*slot.private()).jumped_at == sp - 8 => {
                (*slot.private()).jumped_from
            }
            true if tail != 0 => 0,
            true => *(sp as *const u64),
            false => 0,
        };
        let pushed = push(slot, caller, Callee { function, site }, sp, tail, now);
        if pushed {
            python::stack::entered(slot, sp);
        }
        if let Some(registers) = registers
            && pushed
        {
            record::began(slot, function, sp, &registers);
        }
        if clock::is_untimed(word) && pushed {
            states::make_untimed(slot);
        }
        clock::resume(slot, now, false);
    }
}

/// The function begins, which calls nothing and is only counted: nobody will hear of its end. Where it was jumped to, that is the end of the one that did.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_leaf(function: u32, sp: u64) {
    let began = ticks();
    let Some(slot) = claim::current(sp) else {
        return;
    };
    // SAFETY: as in `enter`.
    unsafe {
        (*slot.shared()).slow_entries += 1;
        let now = clock::event(slot, began);
        let top = slot.top();
        let jumped =
            top > slot.bottom() && (*top).key & shm::KEY_PENDING != 0 && frame_sp((*top).key) == sp;
        match jumped {
            true => (*top).key &= !shm::KEY_PENDING,
            false => leave_behind(slot, sp, now),
        }
        let caller = caller_at(slot, sp);
        let callee = Callee { function, site: 0 };
        let (node, folded) = node_below(slot, caller, callee, sp, now);
        count(node, folded);
        if jumped {
            leave(slot, now);
        }
        clock::resume(slot, now, false);
    }
}

/// One call more.
///
/// # Safety
/// `node` must be one of the running thread's tree, or with the mark `folded` a process-wide one.
unsafe fn count(node: *mut Node, folded: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        atomic64(&raw mut (*node).calls).fetch_add(1, Relaxed);
        if folded != 0 {
            atomic64(&raw mut (*header()).folded_calls).fetch_add(1, Relaxed);
        }
    }
}

/// The frame that calls at `sp`.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn caller_at(slot: Slot, sp: u64) -> *mut Frame {
    // SAFETY: walks this thread's frames, down to the sentinel.
    unsafe {
        let switching = (&raw const (*slot.shared()).switching).read_volatile() != 0;
        let mut caller = slot.top();
        while caller > slot.bottom() && (*caller).key == 0 {
            // An entry that a handler interrupted has not filled it yet (an earlier handler has emptied it).
            caller = caller.sub(1);
        }
        if slot.top() == slot.bottom() && !switching {
            recentre(caller, sp);
        }
        caller
    }
}

/// Ends activations that cannot be there any more if something is called at `sp`.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn leave_behind(slot: Slot, sp: u64, now: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut known = slot.top();
        // An entry that a handler interrupted has not filled its frame yet, and never will if the handler has jumped out.
        while known > slot.bottom() && (*known).key == 0 {
            known = known.sub(1);
        }
        let is_behind = match known > slot.bottom() {
            true => sp >= frame_sp((*known).key),
            false => own_stack_encloses(slot, sp),
        };
        // In the middle of a switch this is a handler, on a stack that is not the top frame's any more.
        let switching = (&raw const (*slot.shared()).switching).read_volatile() != 0;
        if is_behind && !switching {
            leave_stale(slot, sp, now);
        }
    }
}

/// The activation whose return address is at `sp` returns.
#[unsafe(no_mangle)]
pub extern "C" fn tw_slow_exit(sp: u64) {
    exit(sp, None);
}

/// The same where single calls are recorded.
#[unsafe(no_mangle)]
extern "C" fn tw_slow_exit_r(
    sp: u64,
    _: u64,
    saved: *const record::Saved,
    vectors: *const record::Vectors,
) {
    exit(sp, Some(Registers::C { saved, vectors }));
}

fn exit(sp: u64, registers: Option<Registers>) {
    let began = ticks();
    let Some(slot) = claim::current(sp) else {
        return;
    };
    // SAFETY: as in tw_slow_entry.
    unsafe {
        (*slot.shared()).slow_exits += 1;
        let now = clock::event(slot, began);
        if find(slot, sp, now) {
            leave_with(slot, now, registers.as_ref());
        }
        clock::resume(slot, now, false);
    }
}

/// The activation at `sp` jumps to `target`, which is probed for certain if `target` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn tw_slow_tail(sp: u64, target: u64) {
    let began = ticks();
    let Some(slot) = claim::current(sp) else {
        return;
    };
    // SAFETY: as in tw_slow_entry.
    unsafe {
        (*slot.shared()).slow_exits += 1;
        let now = clock::event(slot, began);
        if find(slot, sp, now) {
            if target == 0 || is_probed(slot, target) {
                (*slot.top()).key |= shm::KEY_PENDING;
            } else {
                alloc::jumps_away(slot, sp);
                leave(slot, now);
            }
        }
        clock::resume(slot, now, false);
    }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn is_probed(slot: Slot, target: u64) -> bool {
    // SAFETY: the table has mask + 1 entries, at least one of which is 0.
    unsafe {
        let table = (*slot.private()).table as *const u64;
        let mask = (*slot.private()).table_mask;
        let mut index = shm::table_index(target, mask);
        loop {
            match *table.add(index as usize) {
                0 => return false,
                known if known == target => return true,
                _ => index = (index + 1) & mask,
            }
        }
    }
}

/// How many frames beyond the first that cannot lie above `sp` are searched: those of another stack (a signal's, a
/// vfork child's) may be on top of the thread's own.
const SEARCH_ON: u32 = 64;

/// Makes the activation at `sp` the top one, if it is on the stack at all; what lay above it was left without an exit.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn find(slot: Slot, sp: u64, now: u64) -> bool {
    // SAFETY: walks this thread's frames, down to the sentinel.
    unsafe {
        let bottom = slot.sentinel();
        let base = slot.base();
        let mut frame = slot.top();
        let mut beyond = 0;
        while frame > bottom {
            let at = frame_sp((*frame).key);
            if at == sp && frame != base {
                drop_above(slot, frame, now);
                return true;
            }
            if at > sp && same_stack(sp, at) {
                beyond += 1;
                if beyond > SEARCH_ON {
                    return false;
                }
            }
            frame = frame.sub(1);
        }
        false
    }
}

/// Ends the top activation, and those that it was reached from by tail jumps.
///
/// # Safety
/// `slot` must be the running thread's, with an activation on its shadow stack.
pub unsafe fn leave(slot: Slot, now: u64) {
    // SAFETY: as the caller's.
    unsafe { leave_with(slot, now, None) }
}

/// The same, with what it returns.
///
/// # Safety
/// `slot` must be the running thread's, with an activation on its shadow stack.
pub unsafe fn leave_with(slot: Slot, now: u64, registers: Option<&Registers>) {
    // SAFETY: the sentinel has no tail mark, so the loop ends there at the latest.
    unsafe {
        loop {
            let top = slot.top();
            if top <= slot.bottom() {
                return;
            }
            let tail = (*top).key & shm::KEY_TAIL != 0;
            record::ends(slot, now, shm::record::HOW_RETURNED, registers);
            pop(slot, now);
            if !tail {
                return;
            }
        }
    }
}

/// An entry at `sp`, at or above the top frame: either frames were left by an exception or longjmp, or the thread is
/// on another stack (a signal's, a coroutine's). Frames are dropped only when one further down encloses `sp`.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn leave_stale(slot: Slot, sp: u64, now: u64) {
    // SAFETY: walks this thread's frames, down to the sentinel.
    unsafe {
        if own_stack_encloses(slot, sp) {
            drop_above(slot, slot.base(), now);
            drop_base(slot, now);
        }
        let bottom = slot.bottom();
        let mut frame = slot.top();
        while frame > bottom {
            let at = frame_sp((*frame).key);
            // C code that a goroutine calls leaves none of the goroutine's own.
            if at > sp && same_stack(sp, at) || shm::is_goroutine((*frame).key) {
                break;
            }
            frame = frame.sub(1);
        }
        if frame == bottom && frame == slot.top() {
            return;
        }
        if frame == bottom && frame == slot.base() {
            // Above what is known of a coroutine: on its stack only below where that began.
            if sp + shm::WINDOW / 2 > frame_sp((*frame).key) {
                return;
            }
        } else if frame == bottom {
            let first = frame_sp((*bottom.add(1)).key);
            if sp < first || !same_stack(first, sp) {
                return;
            }
        }
        drop_above(slot, frame, now);
    }
}

/// Ends the activations above `frame`, which were left without a return.
///
/// # Safety
/// `slot` must be the running thread's, `frame` one of its shadow stack.
pub unsafe fn drop_above(slot: Slot, frame: *mut Frame, now: u64) {
    // SAFETY: by the callers `frame` is one of this thread's, the sentinel at the lowest.
    unsafe {
        let mut unseen = false;
        while slot.top() > frame {
            let top = slot.top();
            if top == slot.base() {
                drop_base(slot, now);
                continue;
            }
            let key = (*top).key;
            unseen = key != 0 && (unseen || states::left_unseen(top));
            if !unseen {
                (*slot.shared()).resyncs += 1;
            }
            if key != 0 && !unseen {
                add_unwound((*top).node as *mut Node, 1);
            }
            let how = match unseen {
                true => shm::record::HOW_RETURNED,
                false => shm::record::HOW_UNWOUND,
            };
            record::ends(slot, now, how, None);
            if states::ends_unseen(slot, top) {
                states::end_unseen(slot, top, now);
            }
            // One that was reached by a tail jump has left together with the frame below.
            unseen &= key & shm::KEY_TAIL != 0;
            pop(slot, now);
        }
    }
}

/// # Safety
/// `node` must be one of this thread's tree or a folded one.
pub unsafe fn add_unwound(node: *mut Node, times: u32) {
    // SAFETY: by the caller's promise.
    unsafe {
        let unwound = atomic32(&raw mut (*node).unwound);
        let room = u32::MAX - unwound.load(Relaxed);
        if room > 0 {
            unwound.fetch_add(times.min(room), Relaxed);
        }
    }
}

/// The sentinel encloses whatever part of the stack the thread is in, so that entries below it are plain ones.
///
/// # Safety
/// `bottom` must be the sentinel of this thread's shadow stack.
unsafe fn recentre(bottom: *mut Frame, sp: u64) {
    // SAFETY: `bottom` is this thread's sentinel.
    unsafe {
        let distance = (*bottom).key.wrapping_sub(sp - 8);
        if distance > shm::WINDOW {
            (*bottom).key = frame_key((sp + shm::WINDOW / 2) & !7, shm::KEY_SENTINEL);
        }
    }
}

/// `false`: counted, but too deep for the shadow stack.
///
/// # Safety
/// `slot` must be the running thread's, `caller` its top frame.
pub unsafe fn push(
    slot: Slot,
    caller: *mut Frame,
    callee: Callee,
    sp: u64,
    tail: u64,
    now: u64,
) -> bool {
    // SAFETY: `caller` is a frame of this thread.
    unsafe {
        let (node, folded) = node_below(slot, caller, callee, sp, now);
        push_node(slot, node, tail | folded, sp, now)
    }
}

/// The same where the context is known. `mark`: what the frame is marked with.
///
/// # Safety
/// `slot` must be the running thread's, and `node` one of its tree, or with the mark `KEY_CLOSER` a process-wide one.
pub unsafe fn push_node(slot: Slot, node: *mut Node, mark: u64, sp: u64, now: u64) -> bool {
    // SAFETY: there is room for MAX_FRAMES above the sentinel, checked here.
    unsafe {
        let top = slot.top();
        count(node, mark & shm::KEY_CLOSER);
        if (slot.0 + (*slot.private()).limit) <= top as u64 {
            // Too deep for the shadow stack: counted, its time is its caller's.
            atomic64(&raw mut (*header()).deep_calls).fetch_add(1, Relaxed);
            return false;
        }
        // Of a handler that ran meanwhile this one has none.
        let now = match flags() & shm::HEADER_TIMED {
            0 => now,
            _ => now.max((&raw const (*slot.shared()).last).read_volatile()),
        };
        let frame = top.add(1);
        (&raw mut (*frame).key).write_volatile(frame_key(sp, mark));
        (&raw mut (*frame).node).write_volatile(node as u64);
        slot.set_top(frame);
        (&raw mut (*frame).key).write_volatile(frame_key(sp, mark));
        (&raw mut (*frame).node).write_volatile(node as u64);
        (&raw mut (*frame).start).write_volatile(now);
        (&raw mut (*frame).child).write_volatile(0);
        record::begins(slot, frame, now);
        true
    }
}

/// The context of `callee` when the activation at `caller` calls it with the return address at `sp`, and how its frame is marked.
///
/// # Safety
/// `slot` must be the running thread's, `caller` one of its frames.
pub unsafe fn node_below(
    slot: Slot,
    caller: *mut Frame,
    callee: Callee,
    sp: u64,
    now: u64,
) -> (*mut Node, u64) {
    // SAFETY: `caller` is a frame of this thread.
    unsafe {
        let parent = (*caller).node as *mut Node;
        if caller == slot.sentinel() || !in_folded(parent) {
            let mut node = tree::child(slot, parent, callee, 0, Room::Limited);
            if node.is_null() {
                prune::make_room(slot, sp, now);
                node = tree::child(slot, parent, callee, 0, Room::All);
            }
            if !node.is_null() {
                return (node, 0);
            }
            lost_callees(slot, parent, 1);
        }
        (folded(slot, callee.function), shm::KEY_CLOSER)
    }
}

/// Notes that so many calls from `parent` are not below it.
///
/// # Safety
/// `slot` must be the running thread's, `parent` a node of its tree.
pub unsafe fn lost_callees(slot: Slot, parent: *mut Node, calls: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        if parent as u64 == (*slot.shared()).root {
            atomic64(&raw mut (*header()).folded_outermost).fetch_add(calls, Relaxed);
        } else {
            atomic32(&raw mut (*parent).flags).fetch_or(shm::NODE_LOST_CALLEES, Relaxed);
        }
    }
}

/// The process-wide node of `function`, made ready.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn folded(slot: Slot, function: u32) -> *mut Node {
    // SAFETY: all threads write the same.
    unsafe {
        let node = tree::folded(function);
        if (&raw const (*node).children[0]).read_volatile() == 0 {
            // The hot path follows a child slot without asking whether it is empty: the first one, by which other
            // threads know that the node is ready, comes last.
            (&raw mut (*node).function).write_volatile(function);
            for child in (*node).children.iter_mut().rev() {
                (&raw mut *child).write_volatile((*slot.shared()).root);
            }
        }
        node
    }
}

/// Whether `node` is one of those that stand for all contexts of a function that found no room.
pub fn in_folded(node: *const Node) -> bool {
    // SAFETY: the header is mapped.
    let nodes = unsafe { (*header()).nodes_offset - (*header()).folded_offset };
    (node as u64).wrapping_sub(tree::folded(0) as u64) < nodes
}

/// # Safety
/// `node` must be a node of this thread's tree, or a folded one.
pub unsafe fn function_of(node: *const Node) -> u32 {
    // SAFETY: by the caller `node` is one of the tree or a folded one.
    unsafe {
        if in_folded(node) {
            ((node as u64 - tree::folded(0) as u64) / shm::NODE_SIZE) as u32
        } else {
            (*node).function
        }
    }
}

/// Ends the top frame at `now`.
///
/// # Safety
/// `slot` must be the running thread's, or one whose thread has ended; there must be a frame above its sentinel.
pub unsafe fn pop(slot: Slot, now: u64) {
    // SAFETY: the top frame is above the sentinel, so there is one below it.
    unsafe {
        let top = slot.top();
        python::stack::leaves(slot, frame_sp((*top).key));
        let node = (*top).node as *mut Node;
        if (*top).key != 0 && (*top).start == 0 {
            states::settle(top);
        } else if flags() & shm::HEADER_TIMED != 0 && (*top).key != 0 {
            let took = now.wrapping_sub((*top).start);
            let own = took.wrapping_sub((*top).child) as i64;
            let below = top.sub(1);
            (*below).child = (*below).child.wrapping_add(took);
            (*slot.shared()).last = now;
            if in_folded(node) {
                pop_folded(slot, top, took, own);
            } else {
                (*node).cum = (*node).cum.wrapping_add(took);
                (*node).base = (*node).base.wrapping_add(own as u64);
                if own < (*node).min {
                    (*node).min = own;
                }
                if own > (*node).max {
                    (*node).max = own;
                }
            }
        }
        // In this order, as in the hot path: a handler must not find an emptied frame on top.
        slot.set_top(top.sub(1));
        (&raw mut (*top).key).write_volatile(0);
    }
}

/// Folded nodes are shared by all threads. Their cum counts an activation only if its function is not already
/// active further down, so that no time counts twice.
///
/// # Safety
/// `slot` must be the running thread's, `top` its top frame, and that of a folded node.
unsafe fn pop_folded(slot: Slot, top: *mut Frame, took: u64, own: i64) {
    // SAFETY: folded nodes are process-wide and only touched atomically; the walk stays within this thread's frames.
    unsafe {
        let node = (*top).node as *mut Node;
        let function = function_of(node);
        atomic64(&raw mut (*node).base).fetch_add(own as u64, Relaxed);
        widen(node, own, own);
        let mut frame = top.sub(1);
        while frame > slot.sentinel() {
            if function_of((*frame).node as *const Node) == function {
                return;
            }
            frame = frame.sub(1);
        }
        atomic64(&raw mut (*node).cum).fetch_add(took, Relaxed);
    }
}

/// Self times between `min` and `max` belong to the folded `node`, too.
///
/// # Safety
/// `node` must be a folded one.
pub unsafe fn widen(node: *mut Node, min: i64, max: i64) {
    // A folded node starts as zeros; `i64::MAX - value` is kept, so that zero means "none yet".
    let inverted = i64::MAX as u64 - min.max(0) as u64;
    // SAFETY: folded nodes are process-wide and only touched atomically.
    unsafe {
        atomic64((&raw mut (*node).min).cast()).fetch_max(inverted, Relaxed);
        atomic64((&raw mut (*node).max).cast()).fetch_max(max.max(0) as u64, Relaxed);
    }
}
