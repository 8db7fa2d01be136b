//! Letting all threads go at the same moment: by the end of the OS thread that holds them.
//!
//! Detached one by one, the threads that already run compete with us for a processor before the last one is let go
//! (`urgency.rs` has the figures, and the remedy for those who may use it). When a tracing thread ends, the kernel
//! detaches all that it holds in one go, under a lock, for everybody. It also lets go of threads that do not stand, which a
//! detach refuses to do.

use std::cell::Cell;
use std::path::PathBuf;

use super::sys::Backoff;
use super::{StopOptions, Stopped};
use crate::error::Result;
use crate::proc::Pid;

thread_local! {
    static ENDS_SOON: Cell<bool> = const { Cell::new(false) };
}

/// Whether the end of this OS thread is near, so that letting go can be left to it.
pub(super) fn ends_soon() -> bool {
    ENDS_SOON.try_with(Cell::get).unwrap_or(false)
}

/// Stops a process for as long as `work` takes. This is how a controller that lives on makes a stop: whatever fails, and
/// whatever thread would not stop, afterwards nothing is held.
pub fn while_stopped<T: Send>(
    pid: Pid,
    options: StopOptions,
    work: impl FnOnce(&mut Stopped) -> Result<T> + Send,
) -> Result<T> {
    on_own_thread(|| {
        let mut stopped = Stopped::stop_with(pid, options)?;
        let result = work(&mut stopped)?;
        stopped.release()?;
        Ok(result)
    })
}

/// Runs `work`, which stops a process, on an OS thread of its own. The process goes on when `work` is over, all threads at
/// the same moment; also when `work` panics, which is passed on. Afterwards nothing is traced any more.
///
/// A [`super::Stopped`] that is released or dropped inside stays stopped until the end of `work`, for the rest of which a
/// second stop of the same process is of course refused.
pub fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let (tid, result) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("stop".to_owned())
            .spawn_scoped(scope, || {
                ENDS_SOON.set(true);
                // SAFETY: no preconditions.
                let tid = unsafe { libc::gettid() };
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                (tid, result)
            })
            .expect("a thread can be made");
        thread.join().expect("a panic was caught inside")
    });
    // `join` comes back a moment before the kernel is through with the thread.
    let task = PathBuf::from(format!("/proc/self/task/{tid}"));
    let mut pause = Backoff::default();
    while task.exists() {
        pause.rest();
    }
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
