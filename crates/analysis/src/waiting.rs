//! Where threads waited: for each other, for the network, for disks, for time to pass.
//!
//! Where the recording kept the time off the processor apart (`wall` is more than `total`), that is
//! the answer. Else time in the functions that wait by their nature is taken for it.

use std::collections::BTreeMap;

use thalweg_model::{FuncId, Node, Profile};

use crate::threads;

/// What was waited for, as far as the function tells in which it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitKind {
    /// Another thread: a lock, a condition, a semaphore, a thread's end.
    Lock,
    /// Files, pipes and sockets.
    Io,
    /// Whichever of several descriptors is ready first.
    Poll,
    Sleep,
    /// A child process.
    Process,
    Signal,
    /// A person at a terminal.
    Terminal,
    /// The function waits for nothing by its nature: others had the processor, or memory was not
    /// there.
    Preempted,
}

impl WaitKind {
    pub fn name(self) -> &'static str {
        match self {
            WaitKind::Lock => "locks and other threads",
            WaitKind::Io => "input and output",
            WaitKind::Poll => "polling",
            WaitKind::Sleep => "sleeping",
            WaitKind::Process => "child processes",
            WaitKind::Signal => "signals",
            WaitKind::Terminal => "a terminal's input",
            WaitKind::Preempted => "the processor (preempted) or memory",
        }
    }
}

/// Functions of the C library, without their decoration, that return when something has happened
/// elsewhere.
const WAITS: [(&str, WaitKind); 69] = [
    ("accept", WaitKind::Io),
    ("accept4", WaitKind::Io),
    ("clock_nanosleep", WaitKind::Sleep),
    ("connect", WaitKind::Io),
    ("copy_file_range", WaitKind::Io),
    ("epoll_pwait", WaitKind::Poll),
    ("epoll_pwait2", WaitKind::Poll),
    ("epoll_wait", WaitKind::Poll),
    ("fdatasync", WaitKind::Io),
    ("flock", WaitKind::Io),
    ("fsync", WaitKind::Io),
    ("futex_abstimed_wait", WaitKind::Lock),
    ("futex_abstimed_wait_cancelable", WaitKind::Lock),
    ("futex_abstimed_wait_common", WaitKind::Lock),
    ("futex_lock_pi", WaitKind::Lock),
    ("futex_wait", WaitKind::Lock),
    ("io_getevents", WaitKind::Io),
    ("lll_lock_wait", WaitKind::Lock),
    ("lll_lock_wait_private", WaitKind::Lock),
    ("mq_timedreceive", WaitKind::Io),
    ("msgrcv", WaitKind::Io),
    ("nanosleep", WaitKind::Sleep),
    ("open", WaitKind::Io),
    ("openat", WaitKind::Io),
    ("pause", WaitKind::Signal),
    ("poll", WaitKind::Poll),
    ("ppoll", WaitKind::Poll),
    ("pread", WaitKind::Io),
    ("preadv", WaitKind::Io),
    ("pselect", WaitKind::Poll),
    ("pthread_barrier_wait", WaitKind::Lock),
    ("pthread_clockjoin_ex", WaitKind::Lock),
    ("pthread_cond_timedwait", WaitKind::Lock),
    ("pthread_cond_wait", WaitKind::Lock),
    ("pthread_mutex_lock", WaitKind::Lock),
    ("pthread_mutex_lock_full", WaitKind::Lock),
    ("pthread_rwlock_rdlock", WaitKind::Lock),
    ("pthread_rwlock_wrlock", WaitKind::Lock),
    ("pwrite", WaitKind::Io),
    ("pwritev", WaitKind::Io),
    ("read", WaitKind::Io),
    ("readv", WaitKind::Io),
    ("recv", WaitKind::Io),
    ("recvfrom", WaitKind::Io),
    ("recvmmsg", WaitKind::Io),
    ("recvmsg", WaitKind::Io),
    ("select", WaitKind::Poll),
    ("sem_timedwait", WaitKind::Lock),
    ("sem_wait", WaitKind::Lock),
    ("semop", WaitKind::Lock),
    ("semtimedop", WaitKind::Lock),
    ("send", WaitKind::Io),
    ("sendfile", WaitKind::Io),
    ("sendmmsg", WaitKind::Io),
    ("sendmsg", WaitKind::Io),
    ("sendto", WaitKind::Io),
    ("sigsuspend", WaitKind::Signal),
    ("sigtimedwait", WaitKind::Signal),
    ("sigwaitinfo", WaitKind::Signal),
    ("sleep", WaitKind::Sleep),
    ("splice", WaitKind::Io),
    ("sync", WaitKind::Io),
    ("usleep", WaitKind::Sleep),
    ("wait", WaitKind::Process),
    ("wait4", WaitKind::Process),
    ("waitid", WaitKind::Process),
    ("waitpid", WaitKind::Process),
    ("write", WaitKind::Io),
    ("writev", WaitKind::Io),
];

/// Go's functions make their system calls themselves: what the packages that do are for. The first
/// that fits.
const GO_WAITS: [(&str, WaitKind); 5] = [
    ("os.(*Process).", WaitKind::Process),
    ("internal/poll.", WaitKind::Io),
    ("internal/syscall/", WaitKind::Io),
    ("net.", WaitKind::Io),
    ("os.", WaitKind::Io),
];

/// Functions that waited, and for how long in all, most first.
pub fn waits(profile: &Profile) -> Vec<(FuncId, u64)> {
    let mut waited = measured(profile);
    if waited.iter().all(|&waited| waited == 0) {
        waited = by_nature(profile);
    }
    let mut waits: Vec<(FuncId, u64)> = (0..)
        .map(FuncId)
        .zip(waited)
        .filter(|(_, time)| *time > 0)
        .collect();
    waits.sort_by_key(|&(_, time)| std::cmp::Reverse(time));
    waits
}

/// What each context of each thread waited itself, in the order of [`threads`], and whether that
/// was measured, in which case it is no part of the context's self.
pub fn waited_by_context(profile: &Profile) -> (Vec<Vec<u64>>, bool) {
    let is_measured = is_waiting_measured(profile);
    let by_nature: Vec<bool> = profile
        .functions
        .iter()
        .map(|function| kind_of(&function.name).is_some())
        .collect();
    let waited = threads(profile).map(|(_, thread)| {
        if !is_measured {
            let own = |node: &Node| u64::from(by_nature[node.function.index()]) * node.self_ns;
            return thread.nodes.iter().map(own).collect();
        }
        let own = own_waits(&thread.nodes);
        let charged = |(own, node): (u64, &Node)| own.saturating_sub(node.terminal);
        own.into_iter().zip(&thread.nodes).map(charged).collect()
    });
    (waited.collect(), is_measured)
}

/// Time by what was waited for, most first. A terminal's input is named, but no function is charged
/// with it.
pub fn wait_kinds(profile: &Profile) -> Vec<(WaitKind, u64)> {
    let is_measured = is_waiting_measured(profile);
    let mut kinds: BTreeMap<WaitKind, u64> = BTreeMap::new();
    let mut add = |kind, time: u64| {
        let sum = kinds.entry(kind).or_default();
        *sum = sum.saturating_add(time);
    };
    for (function, time) in waits(profile) {
        let kind = kind_of(&profile.functions[function].name);
        add(kind.unwrap_or(WaitKind::Preempted), time);
    }
    if is_measured {
        let nodes = threads(profile).flat_map(|(_, thread)| &thread.nodes);
        nodes.for_each(|node| add(WaitKind::Terminal, node.terminal));
    }
    let mut kinds: Vec<(WaitKind, u64)> = kinds.into_iter().filter(|(_, time)| *time > 0).collect();
    kinds.sort_by_key(|&(_, time)| std::cmp::Reverse(time));
    kinds
}

/// Whether the recording kept the time off the processor apart.
pub fn is_waiting_measured(profile: &Profile) -> bool {
    let mut nodes = threads(profile).flat_map(|(_, thread)| &thread.nodes);
    nodes.any(|node| node.wall_ns > node.total_ns)
}

/// What each context waited itself: (wall - wall of the callees) - self
pub fn own_waits(nodes: &[Node]) -> Vec<u64> {
    let mut of_callees = vec![0u64; nodes.len()];
    for node in nodes {
        if let Some(parent) = node.parent {
            let sum = &mut of_callees[parent as usize];
            *sum = sum.saturating_add(node.wall_ns);
        }
    }
    let own = |(node, of_callees): (&Node, u64)| {
        let wall_ns = node.wall_ns.saturating_sub(of_callees);
        wall_ns.saturating_sub(node.self_ns)
    };
    nodes.iter().zip(of_callees).map(own).collect()
}

fn measured(profile: &Profile) -> Vec<u64> {
    let mut waited = vec![0u64; profile.functions.len()];
    for (_, thread) in threads(profile) {
        if thread
            .nodes
            .iter()
            .all(|node| node.wall_ns <= node.total_ns)
        {
            continue;
        }
        for (node, own) in thread.nodes.iter().zip(own_waits(&thread.nodes)) {
            let sum = &mut waited[node.function.index()];
            *sum = sum.saturating_add(own.saturating_sub(node.terminal));
        }
    }
    waited
}

fn by_nature(profile: &Profile) -> Vec<u64> {
    let waits: Vec<bool> = profile
        .functions
        .iter()
        .map(|function| kind_of(&function.name).is_some())
        .collect();
    let mut waited = vec![0u64; waits.len()];
    for (_, thread) in threads(profile) {
        for node in thread.nodes.iter().filter(|n| waits[n.function.index()]) {
            let sum = &mut waited[node.function.index()];
            *sum = sum.saturating_add(node.self_ns);
        }
    }
    waited
}

/// `__GI___clock_nanosleep`, `__libc_read` and `__futex_abstimed_wait_common64` are all known.
fn kind_of(name: &str) -> Option<WaitKind> {
    let mut of_go = GO_WAITS.iter();
    if let Some((_, kind)) = of_go.find(|(prefix, _)| name.starts_with(prefix)) {
        return Some(*kind);
    }
    let name = name.split('@').next().unwrap_or(name);
    let mut bare = name.trim_start_matches('_');
    for prefix in ["GI_", "libc_", "new_", "old_"] {
        bare = bare
            .strip_prefix(prefix)
            .unwrap_or(bare)
            .trim_start_matches('_');
    }
    let known = |name: &str| {
        let found = WAITS.binary_search_by_key(&name, |(known, _)| known);
        found.ok().map(|index| WAITS[index].1)
    };
    let short = bare.strip_suffix("64").unwrap_or(bare);
    let shorter = short
        .strip_suffix("_nocancel")
        .unwrap_or(short)
        .trim_end_matches('_');
    known(bare)
        .or_else(|| known(short))
        .or_else(|| known(shorter))
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
            assert!(kind_of(name).is_some(), "{name}");
        }
        for name in ["main", "readline", "PyObject_wait", "selector", "__"] {
            assert!(kind_of(name).is_none(), "{name}");
        }
    }

    #[test]
    fn time_off_the_processor_is_believed_before_names() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 20)]);
        profile.functions[A.index()].name = "read".into();
        assert_eq!(waits(&profile), [(A, 10)]);
        let nodes = &mut profile.processes[0].threads[0].nodes;
        (nodes[0].wall_ns, nodes[1].wall_ns, nodes[2].wall_ns) = (131, 130, 120);
        assert_eq!(waits(&profile), [(B, 100)]);
        assert_eq!(wait_kinds(&profile), [(WaitKind::Preempted, 100)]);
        assert_eq!(
            own_waits(&profile.processes[0].threads[0].nodes),
            [0, 0, 100]
        );
    }

    #[test]
    fn a_wait_for_a_person_is_named_and_no_function_is_charged_with_it() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10)]);
        profile.functions[A.index()].name = "read".into();
        let nodes = &mut profile.processes[0].threads[0].nodes;
        (nodes[0].wall_ns, nodes[1].wall_ns) = (111, 110);
        nodes[1].terminal = 70;
        assert_eq!(waits(&profile), [(A, 30)]);
        let kinds = [(WaitKind::Terminal, 70), (WaitKind::Io, 30)];
        assert_eq!(wait_kinds(&profile), kinds);
    }
}
