//! Functions that leave for another stack: `swapcontext`, `jump_fcontext` and whatever else loads rsp and goes on there;
//! and those that throw frames away: the unwinder's last step. Their exit probe knows where the thread goes on.
//!
//! ```text
//!   shadow stack of a thread           in a coroutine that it resumed
//!     sentinel                           sentinel
//!     main                               main
//!     resume                             resume
//!                                        swapcontext      left at S: here the thread comes back to
//!                                        base             stands for the other stack's outer end
//!                                        body, step, ...
//! ```
//!
//! A thread's own activations stay where they are while it runs a coroutine. Those of a coroutine that is left go to the
//! store of suspended_stacks.rs, under the stack pointer at which it was left, and come back, on top of whoever resumes it, with
//! their contexts found anew in the tree of the resuming thread. Time while they are suspended is not theirs; no call is
//! counted twice. A coroutine that resumes another is remembered as its caller, up to `shm::RESUMERS` deep; beyond
//! that the entered one takes the place of the one that was left: schedulers switch in any order, and every order would be
//! a context.
//!
//! Everything is by exact stack pointers. Where they do not match, the stack counts as a new one, whose activations are
//! callees of whoever went there.

use crate::claim;
use crate::clock;
use crate::memory::{Slot, atomic64, flags, ticks};
use crate::migration;
use crate::prune;
use crate::record;
use crate::slow::{drop_above, find, function_of, in_folded, leave, node_below, pop};
use crate::states;
use crate::suspended_stacks::{self, Chain, StackWriter};
use crate::tree::Callee;
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::{Frame, Node, SuspendedFrame, frame_key, frame_sp};

/// A function that may leave for another stack is at one of its exits; `rsp` as the instruction that leaves finds it.
#[unsafe(no_mangle)]
pub extern "C" fn tw_slow_switch(word: u32, rsp: u64, _: u32) {
    let began = ticks();
    let function = word & shm::SWITCH_FUNCTION;
    let jumps = word & shm::SWITCH_JUMPS != 0;
    // A jump to where a call would have returned to has popped the return address already.
    let sp = if jumps { rsp.wrapping_sub(8) } else { rsp };
    let Some(slot) = claim::after_switch(sp) else {
        return;
    };
    // SAFETY: `slot` is this thread's own, so its frames and nodes are.
    unsafe {
        (*slot.shared()).slow_exits += 1;
        let now = clock::event(slot, began);
        let top = slot.top();
        let known = top > slot.bottom()
            && (*top).key != 0
            && function_of((*top).node as *const Node) == function;
        let left_at = frame_sp((*top).key);
        if known && jumps && left_at == rsp {
            // An ordinary tail jump; where it goes is somebody else's call.
            leave(slot, now);
        } else if !known || left_at == sp || (*slot.shared()).switching != 0 {
            if find(slot, sp, now) {
                leave(slot, now);
            }
        } else if word & shm::SWITCH_UNWINDS != 0 {
            unwind(slot, sp, now);
        } else {
            (&raw mut (*slot.shared()).switching).write_volatile(1);
            // A jump may also go to a function that will return in the resumed one's stead.
            if !(go_to(slot, sp, now) || jumps && go_to(slot, rsp, now)) {
                go_elsewhere(slot, sp, now);
            }
            (&raw mut (*slot.shared()).switching).write_volatile(0);
        }
        clock::resume(slot, now, false);
    }
}

/// Goes on where a stack was left at `sp`, if it is known.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn go_to(slot: Slot, sp: u64, now: u64) -> bool {
    // SAFETY: as in tw_slow_switch.
    unsafe {
        let base = slot.base();
        if !base.is_null() && frame_sp((*base.sub(1)).key) == sp && base.sub(1) > slot.sentinel() {
            suspend(slot, base, left_at(slot), now);
            drop_base(slot, now);
        } else if let Some(chain) = suspended_stacks::take(sp, (*slot.shared()).pid) {
            if !enter(slot, sp, now) {
                chain.unpack(|_, _| ());
                return true;
            }
            set_base_of(slot, restore(slot, chain, now));
        } else {
            return false;
        }
        // The switch that left this stack returns now.
        leave(slot, now);
        true
    }
}

/// No stack is known that was left at `sp`.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn go_elsewhere(slot: Slot, sp: u64, now: u64) {
    // SAFETY: as in tw_slow_switch.
    unsafe {
        let top_sp = frame_sp((*slot.top()).key);
        let outermost = frame_sp((*slot.bottom().add(1)).key);
        if top_sp < sp && sp <= outermost {
            // A place further up on the same stack, as getcontext remembers one.
            unwind(slot, sp, now);
        } else if own_stack_encloses(slot, sp) {
            suspend(slot, slot.base(), left_at(slot), now);
            drop_base(slot, now);
            unwind(slot, sp, now);
        } else {
            enter(slot, sp, now);
        }
    }
}

/// In a coroutine: whether `sp` is between two activations of the thread's own stack.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn own_stack_encloses(slot: Slot, sp: u64) -> bool {
    // SAFETY: below the base there is a frame of this thread or the sentinel.
    unsafe {
        let base = slot.base();
        if base.is_null() || base.sub(1) <= slot.sentinel() {
            return false;
        }
        let outermost = slot.sentinel().add(1);
        frame_sp((*base.sub(1)).key) <= sp && sp <= frame_sp((*outermost).key)
    }
}

/// The activations up to the one whose return address was at `sp` are thrown away.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn unwind(slot: Slot, sp: u64, now: u64) {
    // SAFETY: as in tw_slow_switch; stops at the stack's end.
    unsafe {
        let bottom = slot.bottom();
        let mut frame = slot.top();
        while frame > bottom && frame_sp((*frame).key) <= sp {
            frame = frame.sub(1);
        }
        drop_above(slot, frame, now);
    }
}

/// Parks the running coroutine, if it is one, and makes a base for another stack on which the thread is at `sp`.
/// `false`: the shadow stack has no room.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn enter(slot: Slot, sp: u64, now: u64) -> bool {
    // SAFETY: as in tw_slow_switch; there is room for one frame more.
    unsafe {
        let shared = slot.shared();
        let mut base = slot.base();
        prune::stop(shm::PRUNING_STACKS);
        if base.is_null() {
            let caller = slot.top();
            if slot.0 + (*slot.private()).limit <= caller as u64 {
                return false;
            }
            base = caller.add(1);
            (*shared).resumers = 0;
            let node = (*caller).node;
            fill_base(base, sp, node, now);
            (&raw mut (*shared).base).write_volatile(base as u64);
            slot.set_top(base);
            // A handler may have used the place in between.
            fill_base(base, sp, node, now);
            return true;
        }
        let left = shm::Resumer {
            sp: frame_sp((*slot.top()).key),
            node: (*base).node,
        };
        let resumer_node = (*slot.top()).node;
        suspend(slot, base, left_at(slot), now);
        settle_base(base, now);
        let resumers: *mut shm::Resumer = (&raw mut (*shared).resumed_by).cast();
        let count = (*shared).resumers;
        let mut back = 0;
        while back < count && (*resumers.add(back as usize)).sp != sp {
            back += 1;
        }
        if back < count {
            (*shared).resumers = back;
            (*base).node = (*resumers.add(back as usize)).node;
        } else if (count as usize) < shm::RESUMERS {
            *resumers.add(count as usize) = left;
            (*shared).resumers = count + 1;
            (*base).node = resumer_node;
        }
        (*base).key = base_key(sp);
        true
    }
}

/// The base lies so far above that whatever runs on the stack looks like its callee, and no exit matches it.
fn base_key(sp: u64) -> u64 {
    frame_key((sp + shm::WINDOW / 2) & !7, shm::KEY_SENTINEL)
}

/// # Safety
/// `base` must be a free place of this thread's shadow stack.
unsafe fn fill_base(base: *mut Frame, sp: u64, node: u64, now: u64) {
    // SAFETY: by the caller `base` is a place on this thread's shadow stack.
    unsafe {
        (&raw mut (*base).node).write_volatile(node);
        (&raw mut (*base).start).write_volatile(now);
        (&raw mut (*base).child).write_volatile(0);
        (&raw mut (*base).key).write_volatile(base_key(sp));
    }
}

/// What ran on the other stack without being a known function's is its resumer's own time.
///
/// # Safety
/// `base` must be a base of this thread's shadow stack.
unsafe fn settle_base(base: *mut Frame, now: u64) {
    if flags() & shm::HEADER_TIMED == 0 {
        return;
    }
    // SAFETY: below the base there is another frame of this thread.
    unsafe {
        let took = now.wrapping_sub((*base).start);
        let own = took.wrapping_sub((*base).child);
        let below = base.sub(1);
        (*below).child = (*below).child.wrapping_add(took);
        add_own((*base).node as *mut Node, own);
        (*base).start = now;
        (*base).child = 0;
    }
}

/// The thread is back on its own stack.
///
/// # Safety
/// `slot` must be the running thread's, with a base on its shadow stack.
pub unsafe fn drop_base(slot: Slot, now: u64) {
    // SAFETY: as in tw_slow_switch; the caller has seen that the base is on top.
    unsafe {
        let base = slot.base();
        settle_base(base, now);
        record::forget_above(slot, base.sub(1));
        slot.set_top(base.sub(1));
        (&raw mut (*base).key).write_volatile(0);
        (&raw mut (*slot.shared()).base).write_volatile(0);
        (*slot.shared()).resumers = 0;
    }
}

/// # Safety
/// `node` must be a node of this thread's tree, or a folded one.
unsafe fn add_own(node: *mut Node, own: u64) {
    // SAFETY: a node of this thread's tree, or one of the folded ones, which are touched atomically.
    unsafe {
        if in_folded(node) {
            atomic64(&raw mut (*node).base).fetch_add(own, Relaxed);
        } else {
            (*node).base = (*node).base.wrapping_add(own);
        }
    }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn left_at(slot: Slot) -> u64 {
    // SAFETY: as in tw_slow_switch.
    unsafe { frame_sp((*slot.top()).key) }
}

/// Takes the activations above `base` off the shadow stack and into the store, under the name `under`.
///
/// # Safety
/// `slot` must be the running thread's, `base` a frame of its shadow stack.
pub unsafe fn suspend(slot: Slot, base: *mut Frame, under: u64, now: u64) {
    // SAFETY: as in tw_slow_switch.
    unsafe {
        let timed = flags() & shm::HEADER_TIMED != 0;
        let mut writer = StackWriter::new(under, (*slot.shared()).pid);
        let carried = migration::is_asked(slot).then(|| migration::before_suspend(slot, base));
        while slot.top() > base {
            let top = slot.top();
            if states::is_not_suspended(slot, top) {
                states::end_unseen(slot, top, now);
                pop(slot, now);
                continue;
            }
            let node = (*top).node as *mut Node;
            let key = (*top).key;
            let mut own = 0;
            let call = match carried {
                Some(_) => Some(migration::call_of(slot, now)),
                None => {
                    record::ends(slot, now, shm::record::HOW_SUSPENDED, None);
                    None
                }
            };
            let untimed = (*top).start == 0;
            if timed {
                let took = match untimed {
                    true => (*top).child,
                    false => now.wrapping_sub((*top).start),
                };
                own = took.wrapping_sub((*top).child);
                let below = top.sub(1);
                (*below).child = (*below).child.wrapping_add(took);
                add_own(node, own);
                if !in_folded(node) {
                    (*node).cum = (*node).cum.wrapping_add(took);
                }
            }
            let frame = SuspendedFrame {
                key: key & !shm::KEY_CLOSER,
                own,
                site: match in_folded(node) {
                    true => 0,
                    false => Callee::of(node).site,
                },
                function: function_of(node),
                flags: if untimed { shm::SUSPENDED_UNTIMED } else { 0 },
            };
            writer.add(frame, call);
            slot.set_top(top.sub(1));
            (&raw mut (*top).key).write_volatile(0);
        }
        if let Some(carried) = carried {
            migration::after_suspend(slot, base, &carried, &mut writer);
        }
        writer.finish();
    }
}

/// The stack on which the base stands has its outermost activation at `sp`.
///
/// # Safety
/// `slot` must be the running thread's, with a base on its shadow stack.
unsafe fn set_base_of(slot: Slot, sp: Option<u64>) {
    if let Some(sp) = sp {
        // SAFETY: as in tw_slow_switch.
        unsafe { (*slot.base()).key = base_key(sp) };
    }
}

/// Puts suspended activations on top of what is there, and tells where the outermost of them is. What they had spent before is taken off their contexts again and their starts are
/// set back by as much, so that their exits account for whole calls.
///
/// # Safety
/// `slot` must be the running thread's, `chain` what it has taken out of the store.
pub unsafe fn restore(slot: Slot, chain: Chain, now: u64) -> Option<u64> {
    // SAFETY: as in tw_slow_switch; no frame is written beyond the limit.
    unsafe {
        let timed = flags() & shm::HEADER_TIMED != 0;
        let limit = slot.0 + (*slot.private()).limit;
        let mut rest = chain.total();
        let base = slot.top();
        if timed {
            (*base).child = (*base).child.wrapping_sub(rest);
        }
        let mut outermost = None;
        migration::before_restore(slot, chain);
        chain.unpack(|suspended, call| {
            let caller = slot.top();
            if limit <= caller as u64 {
                if timed {
                    // Its time stays where it was settled.
                    (*caller).child = (*caller).child.wrapping_add(rest);
                    rest = 0;
                }
                return;
            }
            if states::is_not_restored(suspended, rest) {
                if timed {
                    // Its time stays where it was settled, too.
                    (*caller).child = (*caller).child.wrapping_add(suspended.own);
                    rest = rest.wrapping_sub(suspended.own);
                }
                return;
            }
            outermost = outermost.or(Some(frame_sp(suspended.key)));
            let (node, mark) = node_below(
                slot,
                caller,
                Callee {
                    function: suspended.function,
                    site: suspended.site,
                },
                frame_sp(suspended.key),
                now,
            );
            if timed {
                add_own(node, suspended.own.wrapping_neg());
                if mark == 0 {
                    (*node).cum = (*node).cum.wrapping_sub(rest);
                }
            }
            let frame = caller.add(1);
            let fill = || {
                (&raw mut (*frame).node).write_volatile(node as u64);
                let start = match suspended.flags & shm::SUSPENDED_UNTIMED {
                    0 => now.wrapping_sub(rest),
                    _ => 0,
                };
                (&raw mut (*frame).start).write_volatile(start);
                (&raw mut (*frame).child).write_volatile(0);
                (&raw mut (*frame).key).write_volatile(suspended.key | mark);
            };
            fill();
            slot.set_top(frame);
            fill();
            match call {
                Some(call) => migration::restore_call(slot, frame, suspended, call, rest),
                None => record::resumes(slot, frame, now),
            }
            rest = rest.wrapping_sub(suspended.own);
        });
        outermost
    }
}
