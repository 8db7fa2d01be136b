//! Pruning.

use thalweg_abi as shm;

use super::target::Target;

const RUN: u64 = shm::PAGE;

#[test]
fn no_call_is_lost_where_contexts_are_pruned_and_active_ones_stay() {
    for flags in [0, shm::HEADER_TIMED] {
        // Contexts are pruned from 64 runs of nodes on.
        let target = Target::new(flags, 1024 * RUN, 64 * RUN);
        let (made, kept, all) = target.thread(|thread| {
            thread.enter(1);
            thread.enter(2);
            for round in 0..6000u32 {
                // Contexts that are as light as those that go, but active when there is no room for the next.
                thread.enter(3 + round % 3000);
                thread.enter(3100 + round % 7);
                thread.leave();
                thread.leave();
            }
            let tree = thread.tree();
            assert_eq!(tree[&vec![1]], 1, "it is active");
            assert_eq!(tree[&vec![1, 2]], 1, "it is active");
            for (path, calls) in &tree {
                assert!(
                    *calls <= thread.calls[path],
                    "{path:?} has calls that it did not make"
                );
            }
            thread.leave();
            thread.leave();
            (
                thread.calls.values().sum::<u64>(),
                tree.values().sum::<u64>(),
                thread.calls.len(),
            )
        });
        let prune = &target.header().prune;
        assert!(prune.passes > 0, "nothing was pruned of {all} contexts");
        assert!(prune.pruned_calls > 0);
        let folded: u64 = (0..4096)
            .map(|function| target.folded_calls(function))
            .sum();
        assert_eq!(kept + folded, made);
    }
}

#[test]
fn nothing_is_pruned_while_somebody_reads() {
    let target = Target::new(0, 1024 * RUN, 64 * RUN);
    // SAFETY: no thread of the target runs yet.
    unsafe { (*crate::memory::header()).prune.readers[0] = u64::MAX };
    target.thread(|thread| {
        thread.enter(1);
        for round in 0..4000u32 {
            thread.enter(2 + round);
            thread.leave();
        }
        thread.leave();
    });
    assert_eq!(target.header().prune.passes, 0);
    assert_eq!(target.header().prune.pruned_calls, 0);
}
