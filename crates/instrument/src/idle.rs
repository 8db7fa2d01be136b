//! Work that leaves the processors to a live target: the analysis before an attach.
//!
//! At first it has nothing but what nobody else wants. On a machine whose processors are all busy it would never
//! end that way, so it gets more after a while. Whoever may not take that back (an ordinary user) begins with a little.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long work runs on what is idle, and how long on a tenth of what an ordinary thread gets.
const IDLE: Duration = Duration::from_millis(300);
const LOW: Duration = Duration::from_secs(1);
const LOW_NICENESS: i32 = 10;
/// Of the threads that work: theirs is inherited by all that they start.
const NAME: &str = "analysis";

/// Runs `work`, and all threads that it starts, at idle priority; after 0.3 s at a low one, after 1.3 s at the ordinary one.
pub fn at_idle_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    at_priorities(work, [IDLE, LOW])
}

/// `pauses`: how long it is idle, and how long low.
fn at_priorities<T: Send>(work: impl FnOnce() -> T + Send, pauses: [Duration; 2]) -> T {
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let worker = std::thread::Builder::new()
            .name(NAME.to_owned())
            .spawn_scoped(scope, move || {
                let _done = done;
                match may_raise() {
                    true => set(0, Priority::Idle),
                    false => set(0, Priority::Nice(LOW_NICENESS)),
                }
                work()
            })
            .expect("a thread can be made");
        for (pause, next) in pauses.into_iter().zip([LOW_NICENESS, 0]) {
            // Disconnected: the work is over.
            if is_done.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            for tid in workers() {
                set(tid, Priority::Nice(next));
            }
        }
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// For the thread that calls, until this is dropped: before others that want the processor, where
/// that is allowed. Who holds a target up must not wait for his turn.
pub struct BeforeOthers {
    tid: i32,
    niceness: i32,
}

const QUICK_NICENESS: i32 = -10;

impl BeforeOthers {
    pub fn begin() -> BeforeOthers {
        // SAFETY: both ask about the thread that calls.
        let (tid, niceness) = unsafe { (libc::gettid(), libc::getpriority(libc::PRIO_PROCESS, 0)) };
        set(tid, Priority::Nice(QUICK_NICENESS.min(niceness)));
        BeforeOthers { tid, niceness }
    }
}

impl Drop for BeforeOthers {
    fn drop(&mut self) {
        set(self.tid, Priority::Nice(self.niceness));
    }
}

enum Priority {
    Idle,
    Nice(i32),
}

/// What is refused changes nothing.
fn set(tid: i32, priority: Priority) {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: calls about a thread of ours, or the one that calls, with a parameter that lives.
    unsafe {
        match priority {
            Priority::Idle => {
                libc::sched_setscheduler(tid, libc::SCHED_IDLE, &none);
            }
            Priority::Nice(niceness) => {
                libc::sched_setscheduler(tid, libc::SCHED_OTHER, &none);
                let tid = match tid {
                    0 => libc::gettid(),
                    tid => tid,
                };
                libc::setpriority(libc::PRIO_PROCESS, tid as u32, niceness);
            }
        }
    }
}

/// Whether this process may give its threads back what it took from them.
fn may_raise() -> bool {
    // SAFETY: no preconditions; the structure is filled by the call.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        let known = libc::getrlimit(libc::RLIMIT_NICE, &mut limit) == 0;
        // 20 stands for a niceness of 0.
        libc::geteuid() == 0 || known && limit.rlim_cur >= 20
    }
}

fn workers() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm"))
                .is_ok_and(|name| name.trim_end() == NAME)
        })
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: about this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// No test lasts as long, however busy the machine is.
    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn work_and_what_it_starts_gives_way_at_first() {
        if !may_raise() {
            return;
        }
        let policies = || (policy(), std::thread::spawn(policy).join().unwrap());
        let found = at_priorities(policies, [NEVER, NEVER]);
        assert_eq!(found, (libc::SCHED_IDLE, libc::SCHED_IDLE));
        assert_eq!(policy(), libc::SCHED_OTHER, "whoever waits is not changed");
    }

    #[test]
    fn work_gives_way_not_for_ever() {
        if !may_raise() {
            return;
        }
        let policy = at_idle_priority(|| {
            // However busy the machine is, this ends: the priority is raised from outside.
            while policy() == libc::SCHED_IDLE {
                std::thread::sleep(Duration::from_millis(1));
            }
            policy()
        });
        assert_eq!(policy, libc::SCHED_OTHER);
    }
}
