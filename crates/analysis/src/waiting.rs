//! Where threads waited: for each other, for the network, for disks, for time to pass.
//!
//! Where the recording kept the time off the processor apart (`elapsed` is more than `cum`), that is the answer. Else
//! time in the functions that wait by their nature is taken for it.

use thalweg_model::{Node, Profile};

use crate::threads;

/// Functions of the C library, without their decoration, that return when something has happened elsewhere.
const WAITS: [&str; 52] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "connect",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "fdatasync",
    "flock",
    "fsync",
    "futex_abstimed_wait",
    "futex_abstimed_wait_cancelable",
    "futex_abstimed_wait_common",
    "futex_lock_pi",
    "futex_wait",
    "io_getevents",
    "lll_lock_wait",
    "lll_lock_wait_private",
    "mq_timedreceive",
    "msgrcv",
    "nanosleep",
    "pause",
    "poll",
    "ppoll",
    "pread",
    "preadv",
    "pselect",
    "pthread_barrier_wait",
    "pthread_clockjoin_ex",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_mutex_lock_full",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "select",
    "sem_timedwait",
    "sem_wait",
    "semop",
    "semtimedop",
    "sigsuspend",
    "sigtimedwait",
    "sigwaitinfo",
    "sleep",
    "usleep",
    "wait",
    "wait4",
    "waitid",
    "waitpid",
];

/// Functions that waited, and for how long in all, most first.
pub fn waits(profile: &Profile) -> Vec<(u32, u64)> {
    let mut waited = measured(profile);
    if waited.iter().all(|&waited| waited == 0) {
        waited = by_nature(profile);
    }
    let mut waits: Vec<(u32, u64)> = (0..).zip(waited).filter(|(_, time)| *time > 0).collect();
    waits.sort_by_key(|&(_, time)| std::cmp::Reverse(time));
    waits
}

/// What each context of each thread waited itself, in the order of [`threads`], and whether that was measured, in which case
/// it is no part of the context's base.
pub fn waited_by_context(profile: &Profile) -> (Vec<Vec<u64>>, bool) {
    let is_measured =
        threads(profile).any(|(_, thread)| thread.nodes.iter().any(|node| node.elapsed > node.cum));
    let by_nature: Vec<bool> = profile
        .functions
        .iter()
        .map(|function| waits_by_nature(&function.name))
        .collect();
    let waited = threads(profile).map(|(_, thread)| {
        if !is_measured {
            let own = |node: &Node| u64::from(by_nature[node.function as usize]) * node.base;
            return thread.nodes.iter().map(own).collect();
        }
        let mut own: Vec<u64> = thread
            .nodes
            .iter()
            .map(|node| node.elapsed.saturating_sub(node.base))
            .collect();
        for node in &thread.nodes {
            if let Some(parent) = node.parent {
                let own = &mut own[parent as usize];
                *own = own.saturating_sub(node.elapsed);
            }
        }
        own
    });
    (waited.collect(), is_measured)
}

/// own waiting = (elapsed - elapsed of the callees) - base
fn measured(profile: &Profile) -> Vec<u64> {
    let mut waited = vec![0u64; profile.functions.len()];
    for (_, thread) in threads(profile) {
        if thread.nodes.iter().all(|node| node.elapsed <= node.cum) {
            continue;
        }
        let mut of_callees = vec![0u64; thread.nodes.len()];
        for node in &thread.nodes {
            if let Some(parent) = node.parent {
                let sum = &mut of_callees[parent as usize];
                *sum = sum.saturating_add(node.elapsed);
            }
        }
        for (node, of_callees) in thread.nodes.iter().zip(of_callees) {
            let own = node.elapsed.saturating_sub(of_callees);
            let sum = &mut waited[node.function as usize];
            *sum = sum.saturating_add(own.saturating_sub(node.base));
        }
    }
    waited
}

fn by_nature(profile: &Profile) -> Vec<u64> {
    let waits: Vec<bool> = profile
        .functions
        .iter()
        .map(|function| waits_by_nature(&function.name))
        .collect();
    let mut waited = vec![0u64; waits.len()];
    for (_, thread) in threads(profile) {
        for node in thread.nodes.iter().filter(|n| waits[n.function as usize]) {
            let sum = &mut waited[node.function as usize];
            *sum = sum.saturating_add(node.base);
        }
    }
    waited
}

/// `__GI___clock_nanosleep`, `__libc_read` and `__futex_abstimed_wait_common64` are all known.
fn waits_by_nature(name: &str) -> bool {
    let name = name.split('@').next().unwrap_or(name);
    let mut bare = name.trim_start_matches('_');
    for prefix in ["GI_", "libc_", "new_", "old_"] {
        bare = bare
            .strip_prefix(prefix)
            .unwrap_or(bare)
            .trim_start_matches('_');
    }
    let known = |name: &str| WAITS.binary_search(&name).is_ok();
    let short = bare.strip_suffix("64").unwrap_or(bare);
    let shorter = short
        .strip_suffix("_nocancel")
        .unwrap_or(short)
        .trim_end_matches('_');
    known(bare) || known(short) || known(shorter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    #[test]
    fn functions_that_wait_are_known_under_their_decorated_names() {
        assert!(WAITS.is_sorted());
        for name in [
            "epoll_wait",
            "__GI___clock_nanosleep",
            "__libc_read",
            "__futex_abstimed_wait_common64",
            "pthread_cond_wait@@GLIBC_2.3.2",
            "__read_nocancel",
        ] {
            assert!(waits_by_nature(name), "{name}");
        }
        for name in ["main", "readline", "PyObject_wait", "selector", "__"] {
            assert!(!waits_by_nature(name), "{name}");
        }
    }

    #[test]
    fn time_off_the_processor_is_believed_before_names() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 20)]);
        profile.functions[A as usize].name = "read".into();
        assert_eq!(waits(&profile), [(A, 10)]);
        let nodes = &mut profile.processes[0].threads[0].nodes;
        (nodes[0].elapsed, nodes[1].elapsed, nodes[2].elapsed) = (131, 130, 120);
        assert_eq!(waits(&profile), [(B, 100)]);
    }
}
