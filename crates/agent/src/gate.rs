//! Gates: how a thread waits for the controller at the entry of a few chosen functions.
//!
//! ```text
//! thread                                        controller
//! take an entry, fill it, POSTED ------------>  sees the sequence move, does its work (it may stop the process)
//! wait until the word is not what was posted <- SERVED
//! FREE
//! ```
//!
//! Nobody is waited for who does not serve: without `gate_server`, without a free entry, when the heartbeat has stood
//! still (then until the controller is back), or where the agent is silent (limits.rs), the thread goes on. Raw system calls only; works in fork and vfork children too, whose memory is the same.

use crate::memory::{
    Slot, atomic32, getpid, gettid, gs_base, header, region, syscall, thread_pointer, ticks,
};
use crate::{clock, java, limits, python, thread_creation};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use thalweg_abi as shm;
use thalweg_abi::calls;

/// `what`: kind and function of the gate; `args`: the six argument registers; `sp`: address of the return address.
#[unsafe(no_mangle)]
pub extern "C" fn tw_slow_gate(what: u32, args: *const [u64; 6], sp: u64) {
    let kind = what >> shm::GATE_KIND_SHIFT;
    // SAFETY: `args` is on this thread's stack.
    if unsafe { watch(kind, &*args) } {
        return;
    }
    let began = ticks();
    let slot = Slot(gs_base());
    // SAFETY: every GS base is a slot's; only the thread that has it touches it.
    unsafe {
        if (*slot.private()).owner != thread_pointer() {
            return pass(what, args, sp);
        }
        let now = clock::event(slot, began);
        pass(what, args, sp);
        clock::resume(slot, now, true);
    }
}

/// The program may be about to limit itself: nobody is waited for. Says whether it was that kind of a gate.
fn watch(kind: u32, args: &[u64; 6]) -> bool {
    let [a, b, c, d, e, f] = *args;
    match kind {
        shm::GATE_KIND_PRCTL => limits::before(calls::PRCTL, &[a, b, c, d, e]),
        shm::GATE_KIND_ARCH_PRCTL => limits::before(calls::ARCH_PRCTL, &[a, b, c, d, e]),
        // Another process is to be traced: that one is made silent by the controller, for which this one waits.
        shm::GATE_KIND_SYSCALL
            if a == calls::PTRACE && matches!(b, calls::PTRACE_ATTACH | calls::PTRACE_SEIZE) =>
        {
            return false;
        }
        shm::GATE_KIND_SYSCALL => limits::before(a, &[b, c, d, e, f]),
        shm::GATE_KIND_GS_BASE => limits::before_gs_base(),
        shm::GATE_KIND_JAVA_FREE => java::forget(),
        shm::GATE_KIND_EVALUATOR => python::give_back(a),
        _ => return false,
    }
    true
}

/// # Safety
/// `args` must be where the gate's stub has put the arguments of the call at `sp`.
unsafe fn pass(what: u32, args: *const [u64; 6], sp: u64) {
    // SAFETY: header and gates are mapped as long as a stub can run; `args` is on this thread's stack.
    unsafe {
        let kind = what >> shm::GATE_KIND_SHIFT;
        if kind == shm::GATE_KIND_CLONE || kind == shm::GATE_KIND_CLONE3 {
            return thread_creation::note(kind, &*args, sp);
        }
        if limits::is_silent()
            || !is_served()
            || (kind == shm::GATE_KIND_LINK_MAP && !is_list_in_order())
        {
            return;
        }
        if kind == shm::GATE_KIND_CHECKPOINT && !is_checkpoint_mine() {
            return;
        }
        let Some((gate, turn)) = take() else {
            return;
        };
        (*gate).kind = kind;
        (*gate).function = what & shm::GATE_NO_FUNCTION;
        (*gate).pid = own_process();
        (*gate).tid = gettid();
        for index in 0..6 {
            (&raw mut (*gate).args)
                .cast::<u64>()
                .add(index)
                .write(args.cast::<u64>().add(index).read());
        }
        (*gate).sp = sp;
        let posted = turn | shm::GATE_POSTED;
        let word = atomic32(&raw mut (*gate).word);
        word.store(posted, Release);
        let sequence = &raw mut (*header()).gate_sequence;
        atomic32(sequence).fetch_add(1, AcqRel);
        futex(sequence, FUTEX_WAKE, i32::MAX as u64, 0);
        wait(&raw mut (*gate).word, posted);
        // Served: free for others. Given up: the same, and an answer that comes late finds another turn.
        let left = turn | shm::GATE_FREE;
        let _ = word.compare_exchange(turn | shm::GATE_SERVED, left, AcqRel, Relaxed);
        let _ = word.compare_exchange(posted, left, AcqRel, Relaxed);
    }
}

/// As in the thread's slot; a child that borrows its parent's memory has that slot too, and a number of its own.
fn own_process() -> u32 {
    let number = getpid();
    // SAFETY: every GS base is a slot's.
    let known = unsafe { (*Slot(gs_base()).shared()).pid };
    match shm::number(known) == number {
        true => known,
        false => number,
    }
}

/// # Safety
/// The region must be mapped.
unsafe fn is_served() -> bool {
    // SAFETY: the header is mapped.
    unsafe {
        let server = atomic32(&raw mut (*header()).gate_server).load(Acquire);
        server != 0 && server != shm::GATE_DESERTED
    }
}

/// Of all that come to a checkpoint one waits for it, and only while the controller wants another.
///
/// # Safety
/// The region must be mapped.
unsafe fn is_checkpoint_mine() -> bool {
    // SAFETY: the header is mapped.
    unsafe {
        let wanted = atomic32(&raw mut (*header()).checkpoint_wanted);
        wanted.load(Relaxed) == 1 && wanted.compare_exchange(1, 0, AcqRel, Relaxed).is_ok()
    }
}

/// The loader also calls before it begins to change its list: not worth a wait.
///
/// # Safety
/// To be called at the loader's own breakpoint, where its list can be read.
unsafe fn is_list_in_order() -> bool {
    // SAFETY: the header is mapped; the word is the loader's, which is never unmapped.
    unsafe {
        let state = (*header()).list_state as *const u32;
        state.is_null() || state.read_volatile() == 0
    }
}

/// A free entry, taken, and its new turn.
///
/// # Safety
/// The region must be mapped.
unsafe fn take() -> Option<(*mut shm::Gate, u32)> {
    let first = (region() + shm::PRIVATE_SIZE + shm::GATES_OFFSET) as *mut shm::Gate;
    // SAFETY: there are MAX_GATES entries.
    unsafe {
        for index in 0..shm::MAX_GATES {
            let gate = first.add(index);
            let word = atomic32(&raw mut (*gate).word);
            let old = word.load(Relaxed);
            if old & shm::GATE_STATES != shm::GATE_FREE {
                continue;
            }
            let turn = old.wrapping_add(shm::GATE_TURN);
            if word
                .compare_exchange(old, turn | shm::GATE_TAKEN, AcqRel, Relaxed)
                .is_ok()
            {
                return Some((gate, turn));
            }
        }
    }
    None
}

/// Until `word` is not `posted` any more, or nobody serves, or it has taken too long.
///
/// # Safety
/// `word` must be a word of a gate that this thread has taken.
unsafe fn wait(word: *mut u32, posted: u32) {
    // SAFETY: both words are in the mapped header and gates.
    unsafe {
        let heartbeat = atomic32(&raw mut (*header()).gate_heartbeat);
        let mut heard = heartbeat.load(Relaxed);
        let (mut silent, mut waits) = (0, 0);
        while atomic32(word).load(Acquire) == posted && is_served() && !limits::is_silent() {
            let pause: [u64; 2] = [0, shm::GATE_WAIT_NS];
            let result = futex(word, FUTEX_WAIT, u64::from(posted), &raw const pause as u64);
            waits += u32::from(result == ETIMEDOUT);
            if waits >= shm::GATE_LONGEST {
                return;
            }
            let now = heartbeat.load(Relaxed);
            if now != heard {
                heard = now;
                silent = 0;
            } else if result == ETIMEDOUT {
                silent += 1;
            }
            if silent >= shm::GATE_PATIENCE {
                // Killed or stopped. Once is enough: nobody waits until it is back.
                let server = atomic32(&raw mut (*header()).gate_server);
                let seen = server.load(Relaxed);
                if seen != 0 {
                    let _ = server.compare_exchange(seen, shm::GATE_DESERTED, AcqRel, Relaxed);
                }
                return;
            }
        }
    }
}

// Not the private kind: the other side is another process.
const FUTEX_WAIT: u64 = 0;
const FUTEX_WAKE: u64 = 1;
const ETIMEDOUT: u64 = (-110i64) as u64;

/// # Safety
/// `word` must be in the region, `pause` 0 or the address of a timespec.
unsafe fn futex(word: *mut u32, operation: u64, value: u64, pause: u64) -> u64 {
    // SAFETY: by the caller's promise; futex touches nothing else.
    unsafe { syscall(calls::FUTEX, word as u64, operation, value, pause) }
}
