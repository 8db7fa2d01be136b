//! Go's probes when the plain case does not hold. Every goroutine has a stack, which is small at first and is moved when it
//! grows; any thread may run it. Its activations are on the shadow stack of the thread that runs it, and in the store of
//! suspended_stacks.rs, under the address of its `g`, while none does.
//!
//! ```text
//!   shadow stack        sentinel | activations of the goroutine                    a thread without cgo
//!                       sentinel | of C | of the goroutine | of C | of the goroutine     C and Go calling each other
//!   leaves its thread   runtime.mcall, runtime.newstack, runtime.dropm: all that is the goroutine's, down to the first of C
//!   is back             runtime.gogo; or its first event on a thread finds that the slot has another goroutine, or none
//! ```
//!
//! A goroutine that C functions have called cannot leave its thread before they return: the runtime sees to that.
//! Activations of one goroutine lie one above the other at places that are relative to the end of its stack.

use crate::claim;
use crate::clock;
use crate::memory::{Slot, flags, gs_base, header, thread_pointer, ticks, undisturbed};
use crate::record::{self, Registers};
use crate::slow::{drop_above, leave_with, push};
use crate::stacks::{restore, suspend};
use crate::states;
use crate::suspended_stacks;
use crate::tree::{self, Callee};
use thalweg_abi as shm;
use thalweg_abi::{Frame, frame_sp, is_goroutine};

/// A goroutine: the address of its `g`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Goroutine(u64);

impl Goroutine {
    fn word(self, offset: usize) -> u64 {
        // SAFETY: the hot path has read the same fields of what r14 points to.
        unsafe { ((self.0 + offset as u64) as *const u64).read_volatile() }
    }

    fn place(self, sp: u64) -> u64 {
        shm::goroutine_sp(sp, self.word(shm::G_STACK_END))
    }
}

/// The function that `word` names begins; its return address is at `sp`.
#[unsafe(no_mangle)]
extern "C" fn tw_go_entry(word: u32, sp: u64, g: u64) {
    enter(word, sp, Goroutine(g), None);
}

/// The same where single calls are recorded.
#[unsafe(no_mangle)]
extern "C" fn tw_go_entry_r(
    function: u32,
    sp: u64,
    g: u64,
    saved: *const crate::registers::Goroutine,
) {
    enter(function, sp, Goroutine(g), Some(Registers::Go(saved)));
}

fn enter(word: u32, sp: u64, g: Goroutine, registers: Option<Registers>) {
    let began = ticks();
    let function = word & shm::MODE_FUNCTION;
    let Some(slot) = current(g, sp) else {
        return;
    };
    // SAFETY: `slot` is this thread's own, so its frames and nodes are.
    unsafe {
        (*slot.shared()).slow_entries += 1;
        let now = time_of(slot, g, began);
        go_on_with(slot, g, now);
        let place = g.place(sp);
        if let Some(frame) = outermost_left(slot, place) {
            drop_above(slot, frame.sub(1), now);
        }
        let caller = slot.top();
        if caller == slot.sentinel() {
            (*caller).key = shm::GO_SENTINEL;
        }
        let site = match tree::with_sites() {
            true => *(sp as *const u64),
            false => 0,
        };
        let pushed = push(slot, caller, Callee { function, site }, place, 0, now);
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

/// The activation whose return address is at `sp` returns.
#[unsafe(no_mangle)]
extern "C" fn tw_go_exit(sp: u64, _: u64, g: u64) {
    exit(sp, Goroutine(g), None);
}

/// The same where single calls are recorded.
#[unsafe(no_mangle)]
extern "C" fn tw_go_exit_r(sp: u64, _: u64, g: u64, saved: *const crate::registers::Goroutine) {
    exit(sp, Goroutine(g), Some(Registers::Go(saved)));
}

fn exit(sp: u64, g: Goroutine, registers: Option<Registers>) {
    let began = ticks();
    let Some(slot) = current(g, sp) else {
        return;
    };
    // SAFETY: as in tw_go_entry.
    unsafe {
        (*slot.shared()).slow_exits += 1;
        let now = time_of(slot, g, began);
        go_on_with(slot, g, now);
        let place = g.place(sp);
        if let Some(frame) = outermost_left(slot, place) {
            if frame_sp((*frame).key) == place {
                drop_above(slot, frame, now);
                leave_with(slot, now, registers.as_ref());
            } else {
                // One that began before the attach, or that was forgotten: what it called is over, too.
                drop_above(slot, frame.sub(1), now);
            }
        }
        clock::resume(slot, now, false);
    }
}

/// The running goroutine is about to leave this thread, whose slot is its own. `then`: the closure that the scheduler will call, if it is
/// known.
#[unsafe(no_mangle)]
extern "C" fn tw_go_leave(then: *const u64, _: u64, _: u64) {
    let slot = Slot(gs_base());
    // SAFETY: the probe has seen that the slot is this thread's; a closure begins with the address of its code.
    unsafe {
        let now = clock::event(slot, ticks());
        let end = (*header()).goroutine_end;
        if !then.is_null() && end != 0 && *then == end {
            // What is open was left by runtime.Goexit, or by the panic that ends the program.
            drop_above(slot, outer_end(slot), now);
        }
        put_away(slot, now);
        clock::resume(slot, now, false);
    }
}

/// The scheduler, whose stack pointer is `sp`, is about to run `g` on this thread: from here on its time is that of its activations.
#[unsafe(no_mangle)]
extern "C" fn tw_go_arrives(g: u64, sp: u64, _: u64) {
    let g = Goroutine(g);
    let began = ticks();
    let Some(slot) = current(g, sp) else {
        return;
    };
    // SAFETY: as in tw_go_entry.
    unsafe {
        let now = time_of(slot, g, began);
        go_on_with(slot, g, now);
        clock::resume(slot, now, false);
    }
}

/// The thread's clock at an event of `g`. What the thread waited since its last one is charged to the context on top if
/// the goroutine was the same; a thread that waits for one to run waits at nobody's charge.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn time_of(slot: Slot, g: Goroutine, began: u64) -> u64 {
    // SAFETY: as in tw_go_entry.
    unsafe {
        match (*slot.private()).goroutine == g.0 {
            true => clock::event(slot, began),
            false => clock::begin(slot),
        }
    }
}

/// The slot of the running thread, claimed if need be; `None` when there are none left.
fn current(g: Goroutine, sp: u64) -> Option<Slot> {
    let slot = Slot(gs_base());
    let machine = g.word(shm::G_MACHINE);
    let thread = thread_pointer();
    // SAFETY: as in claim::current.
    unsafe {
        let private = slot.private();
        if (*private).go_machine == machine && (*private).go_thread == thread {
            if (*slot.shared()).slow_entries >= (*slot.shared()).name_due {
                claim::ask_name(slot);
            }
            return Some(slot);
        }
        if (*private).owner == 0 && flags() & shm::HEADER_FOLLOW == 0 {
            return None;
        }
        if (*header()).full_until != 0 && ticks() < (*header()).full_until {
            return claim::go_uncounted();
        }
        // Without cgo there is no thread pointer; the address that stands for the thread in Go is as good.
        let owner = if thread == 0 { machine } else { thread };
        let slot = undisturbed(|| claim::claim(owner, sp))?;
        let private = slot.private();
        (*private).go_thread = thread;
        (*private).go_machine = machine;
        Some(slot)
    }
}

/// Makes `g` the goroutine whose activations are on the shadow stack.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn go_on_with(slot: Slot, g: Goroutine, now: u64) {
    // SAFETY: as in tw_go_entry.
    unsafe {
        let private = slot.private();
        if (*private).goroutine == g.0 {
            return;
        }
        put_away(slot, now);
        (&raw mut (*slot.shared()).switching).write_volatile(1);
        if let Some(chain) = suspended_stacks::take(g.0, (*slot.shared()).pid) {
            restore(slot, chain, now);
        }
        if slot.top() == slot.sentinel() {
            (*slot.top()).key = shm::GO_SENTINEL;
        }
        (&raw mut (*slot.shared()).switching).write_volatile(0);
        (&raw mut (*private).goroutine).write_volatile(g.0);
    }
}

/// What lies below the activations of the goroutine that the slot has.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn outer_end(slot: Slot) -> *mut Frame {
    // SAFETY: as in tw_go_entry; the walk ends at the sentinel.
    unsafe {
        let mut base = slot.top();
        while base > slot.sentinel() && is_goroutine((*base).key) {
            base = base.sub(1);
        }
        base
    }
}

/// Parks the activations of the goroutine that the slot has, if any.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn put_away(slot: Slot, now: u64) {
    // SAFETY: as in tw_go_entry.
    unsafe {
        let goroutine = &raw mut (*slot.private()).goroutine;
        let under = goroutine.read_volatile();
        if under == 0 {
            return;
        }
        goroutine.write_volatile(0);
        let base = outer_end(slot);
        (&raw mut (*slot.shared()).switching).write_volatile(1);
        suspend(slot, base, under, now);
        (&raw mut (*slot.shared()).switching).write_volatile(0);
    }
}

/// Of the goroutine's activations that end no later than one at `place` begins or returns, the outermost.
///
/// # Safety
/// `slot` must be the running thread's.
unsafe fn outermost_left(slot: Slot, place: u64) -> Option<*mut Frame> {
    // SAFETY: walks this thread's frames, down to the sentinel.
    unsafe {
        let mut found = None;
        let mut frame = slot.top();
        while frame > slot.sentinel() {
            if is_goroutine((*frame).key) {
                if frame_sp((*frame).key) > place {
                    break;
                }
                found = Some(frame);
            }
            frame = frame.sub(1);
        }
        found
    }
}
