//! Being scheduled before the target's threads while they stop and go.
//!
//! Each thread that is let go competes with us for a processor before we have let go of the next. Measured with 8
//! spinning threads on 2 processors: releasing them one by one took 14-20 ms at ordinary priority (some threads stood
//! all that time), 0.03 ms at a real-time one. Where we have no right to that, things go on at ordinary priority.

use std::cell::Cell;
use std::marker::PhantomData;

use super::own_thread;

thread_local! {
    static RAISED: Cell<bool> = const { Cell::new(false) };
}

/// For those who wait: yielding gives way to no thread of lower priority, only sleeping does.
pub(super) fn is_raised() -> bool {
    RAISED.try_with(Cell::get).unwrap_or(false)
}

/// Real-time priority for this OS thread until it is dropped.
pub(super) struct Urgency {
    raised: bool,
    _not_send: PhantomData<*const ()>,
}

impl Urgency {
    pub(super) fn new() -> Urgency {
        let lowest = libc::sched_param { sched_priority: 1 };
        // SAFETY: calls about this very thread, with a parameter that lives.
        let raised = unsafe {
            // A thread that somebody gave a policy keeps it. What we start meanwhile does not inherit ours.
            libc::sched_getscheduler(0) == libc::SCHED_OTHER
                && libc::sched_setscheduler(
                    0,
                    libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
                    &lowest,
                ) == 0
        };
        if raised {
            RAISED.set(true);
        }
        Urgency {
            raised,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Urgency {
    fn drop(&mut self) {
        // Else others would get the processor between the last word to the target and its release.
        if self.raised && !own_thread::ends_soon() {
            let none = libc::sched_param { sched_priority: 0 };
            // SAFETY: as above.
            unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &none) };
            let _ = RAISED.try_with(|raised| raised.set(false));
        }
    }
}
