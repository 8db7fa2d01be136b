//! One function, or the calls of one function by another, split by thread: who of all those that
//! were merged did it.
//!
//! Merging makes paths that no thread took (`a` is called by `foo` in one thread and by `bar` in
//! another, and what it calls seems to be reachable from both). The shares of the threads tell them
//! apart.

use thalweg_model::{FuncId, Node, Profile, Thread};

use crate::lineage::{Lineage, Origin, ThreadNumber};
use crate::{outermost_total, threads};

/// What one thread has of a function or of a call. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadShare {
    pub thread: ThreadNumber,
    pub origin: Option<Origin>,
    pub level: u32,
    pub pid: u32,
    pub tid: u32,
    pub calls: u64,
    pub self_ns: u64,
    pub total_ns: u64,
    pub contexts: u64,
}

/// The threads that ran `function`, in their order.
pub fn function_by_thread(profile: &Profile, function: FuncId) -> Vec<ThreadShare> {
    split(profile, |_, _, node| node.function == function)
}

/// Of these, the threads of that nesting level: a node of the call graph, where first functions of
/// threads stand apart by level.
pub fn function_at_level(profile: &Profile, function: FuncId, level: u32) -> Vec<ThreadShare> {
    let mut shares = function_by_thread(profile, function);
    shares.retain(|share| share.level == level);
    shares
}

/// The threads that `maker` made and that began in `first`: times are theirs.
pub fn creation_by_thread(profile: &Profile, maker: FuncId, first: FuncId) -> Vec<ThreadShare> {
    split(profile, |origin, _, node| {
        let is_its = origin.is_some_and(|origin| origin.function == Some(maker));
        is_its && node.parent.is_none() && node.function == first
    })
}

/// Functions that made threads, and in which function those began; each pair once.
pub fn creations(profile: &Profile) -> Vec<(FuncId, FuncId)> {
    let lineage = Lineage::from_profile(profile);
    let mut pairs = Vec::new();
    for (number, (_, thread)) in (0..).map(ThreadNumber).zip(threads(profile)) {
        let maker = lineage.origin(number).and_then(|origin| origin.function);
        let roots = thread.nodes.iter().filter(|node| node.parent.is_none());
        pairs.extend(
            maker
                .into_iter()
                .flat_map(|maker| roots.clone().map(move |root| (maker, root.function))),
        );
    }
    pairs.sort();
    pairs.dedup();
    pairs
}

/// The threads in which `caller` called `callee`, in their order; times are the callee's.
pub fn call_by_thread(profile: &Profile, caller: FuncId, callee: FuncId) -> Vec<ThreadShare> {
    split(profile, |_, thread, node| {
        let is_caller = |parent: u32| thread.nodes[parent as usize].function == caller;
        node.function == callee && node.parent.is_some_and(is_caller)
    })
}

fn split(
    profile: &Profile,
    wanted: impl Fn(Option<Origin>, &Thread, &Node) -> bool,
) -> Vec<ThreadShare> {
    let lineage = Lineage::from_profile(profile);
    let mut shares = Vec::new();
    for (number, (process, thread)) in (0..).map(ThreadNumber).zip(threads(profile)) {
        let mut share = ThreadShare {
            thread: number,
            origin: lineage.origin(number),
            level: lineage.level(number),
            pid: process.pid,
            tid: thread.tid,
            calls: 0,
            self_ns: 0,
            total_ns: 0,
            contexts: 0,
        };
        let is_wanted = |node: &&Node| wanted(lineage.origin(number), thread, node);
        for node in thread.nodes.iter().filter(is_wanted) {
            share.calls = share.calls.saturating_add(node.calls);
            share.self_ns = share.self_ns.saturating_add(node.self_ns);
            share.total_ns = share.total_ns.saturating_add(outermost_total(node));
            share.contexts += 1;
        }
        if share.contexts > 0 {
            shares.push(share);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{arbitrary, edges, flat};
    use proptest::prelude::*;

    #[test]
    fn each_thread_has_its_share_and_its_maker() {
        let profile = fixture::pool(2);
        let shares = function_by_thread(&profile, B);
        let found: Vec<(u32, u32, u64, u64)> = shares
            .iter()
            .map(|s| (s.tid, s.level, s.calls, s.self_ns))
            .collect();
        assert_eq!(found, [(101, 1, 1, 5), (102, 1, 1, 5)]);
        let origin = shares[0].origin.unwrap();
        assert_eq!(
            (origin.maker, origin.function),
            (ThreadNumber(0), Some(MAIN))
        );
        assert_eq!(call_by_thread(&profile, A, B).len(), 2);
        assert_eq!(function_at_level(&profile, B, 1), shares);
        assert_eq!(function_at_level(&profile, B, 0), []);
        let roots = creations(&profile);
        assert_eq!(roots, [(MAIN, A)]);
        let made = creation_by_thread(&profile, MAIN, A);
        let tids: Vec<u32> = made.iter().map(|share| share.tid).collect();
        assert_eq!(tids, [101, 102]);
        assert_eq!(creation_by_thread(&profile, MAIN, B), []);
        assert_eq!(call_by_thread(&profile, MAIN, B), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_shares_add_up_to_the_whole(profile in arbitrary::program()) {
            for row in flat(&profile) {
                let shares = function_by_thread(&profile, row.function);
                prop_assert_eq!(shares.len() as u32, row.threads);
                prop_assert_eq!(shares.iter().map(|s| s.calls).sum::<u64>(), row.calls);
                prop_assert_eq!(shares.iter().map(|s| s.total_ns).sum::<u64>(), row.total_ns);
            }
            for edge in edges(&profile) {
                if let crate::Caller::Function(caller) = edge.caller {
                    let shares = call_by_thread(&profile, caller, edge.callee);
                    prop_assert_eq!(shares.iter().map(|s| s.calls).sum::<u64>(), edge.calls);
                    prop_assert_eq!(shares.iter().map(|s| s.total_ns).sum::<u64>(), edge.total_ns);
                }
            }
        }
    }
}
