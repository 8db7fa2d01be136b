//! A thread beside this one, where there may be one more: services and containers have a limit on processes (`TasksMax=`,
//! `pids.max`, `ulimit -u`), and a target may stand still while it is met.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Result, Scope, ScopedJoinHandle};

/// Work that another thread does, or that was done at once for want of one.
pub enum HelperThread<'scope, T> {
    Beside(ScopedJoinHandle<'scope, T>),
    Done(T),
}

impl<'scope, T: Send + 'scope> HelperThread<'scope, T> {
    pub fn spawn<'env, F>(scope: &'scope Scope<'scope, 'env>, work: F) -> HelperThread<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
    {
        // A thread that does not start takes its work with it.
        let work = Arc::new(Mutex::new(Some(work)));
        let there = Arc::clone(&work);
        match Builder::new().spawn_scoped(scope, move || taken(&there)()) {
            Ok(thread) => HelperThread::Beside(thread),
            Err(_) => HelperThread::Done(taken(&work)()),
        }
    }

    /// What came of the work, or its panic.
    pub fn join(self) -> Result<T> {
        match self {
            HelperThread::Beside(thread) => thread.join(),
            HelperThread::Done(result) => Ok(result),
        }
    }
}

/// Either the thread takes it or, where none starts, this one.
fn taken<F>(work: &Mutex<Option<F>>) -> F {
    let mut work = work.lock().unwrap_or_else(PoisonError::into_inner);
    work.take().expect("one of the two takes it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_whoever_does_it() {
        let numbers = [1, 2, 3];
        let sum = std::thread::scope(|scope| {
            let helper = HelperThread::spawn(scope, || numbers.iter().sum::<i32>());
            helper.join().expect("no panic")
        });
        assert_eq!(sum, 6);
        assert_eq!(HelperThread::Done(7).join().expect("no panic"), 7);
    }
}
