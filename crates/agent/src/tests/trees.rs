//! Trees and shadow stacks.

use thalweg_abi as shm;

use super::target::{Target, Thread, exit};

const ROOM: u64 = 64 << 20;

/// Numbers by chance that are the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

/// Calls and returns as they come.
fn wander(thread: &mut Thread, steps: u64, functions: u64, seed: u64) {
    let mut chance = Chance(seed);
    for _ in 0..steps {
        if thread.depth() < 12 && (thread.depth() == 0 || chance.below(2) == 0) {
            thread.enter(chance.below(functions) as u32);
        } else {
            thread.leave();
        }
    }
    while thread.depth() > 0 {
        thread.leave();
    }
}

#[test]
fn each_call_is_counted_once_in_its_context() {
    for flags in [0, shm::HEADER_TIMED] {
        let target = Target::new(flags, ROOM, u64::MAX);
        target.thread(|thread| {
            wander(thread, 20_000, 5, 1);
            assert_eq!(thread.tree(), thread.calls);
        });
        assert_eq!(target.header().folded_calls, 0);
    }
}

#[test]
fn a_context_with_thousands_of_callees_has_each_once() {
    let target = Target::new(0, ROOM, u64::MAX);
    target.thread(|thread| {
        thread.enter(1);
        for round in 0..3u32 {
            for function in 0..3000 {
                thread.enter((function * 7 + round) % 3000);
                thread.leave();
            }
        }
        thread.leave();
        assert_eq!(thread.tree(), thread.calls);
    });
}

#[test]
fn threads_have_trees_of_their_own() {
    let target = Target::new(0, ROOM, u64::MAX);
    let count = |seed| {
        target.thread(|thread| {
            wander(thread, 3000, 40, seed);
            assert_eq!(thread.tree(), thread.calls);
            thread.slot().index()
        })
    };
    std::thread::scope(|scope| {
        let count = &count;
        let threads: Vec<_> = (0..4)
            .map(|seed| scope.spawn(move || count(seed)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn what_an_exception_leaves_is_ended_when_something_further_out_returns() {
    let target = Target::new(shm::HEADER_TIMED, ROOM, u64::MAX);
    target.thread(|thread| {
        thread.enter(1);
        let outer = thread.sp();
        thread.enter(2);
        thread.enter(3);
        // An exception goes through 3 and 2: the next that is seen is the return of 1.
        thread.forget();
        thread.forget();
        exit(outer);
        thread.forget();
        // SAFETY: the slot is this thread's own.
        let (top, sentinel, resyncs) = unsafe {
            let slot = thread.slot();
            (slot.top(), slot.sentinel(), (*slot.shared()).resyncs)
        };
        assert_eq!(top, sentinel, "nothing is left on the shadow stack");
        assert_eq!(resyncs, 2);
        thread.enter(4);
        thread.leave();
        assert_eq!(thread.tree(), thread.calls);
    });
}

#[test]
fn an_exit_that_nobody_entered_changes_nothing() {
    let target = Target::new(0, ROOM, u64::MAX);
    target.thread(|thread| {
        thread.enter(1);
        exit(thread.sp() - 4096);
        thread.enter(2);
        thread.leave();
        thread.leave();
        exit(thread.sp());
        assert_eq!(thread.tree(), thread.calls);
    });
}

#[test]
fn a_tail_jump_ends_with_the_one_that_it_reached() {
    let target = Target::new(shm::HEADER_TIMED, ROOM, u64::MAX);
    target.thread(|thread| {
        thread.enter(1);
        thread.enter(2);
        thread.tail_jump(3);
        // One return ends both.
        thread.leave();
        thread.enter(4);
        thread.leave();
        thread.leave();
        assert_eq!(thread.tree(), thread.calls);
        // SAFETY: the slot is this thread's own.
        let resyncs = unsafe { (*thread.slot().shared()).resyncs };
        assert_eq!(resyncs, 0, "nothing was left behind");
    });
}

#[test]
fn calls_that_find_no_room_are_counted_by_function() {
    // Room for the root and little more.
    let target = Target::new(0, 2 * shm::PAGE, u64::MAX);
    let counted = target.thread(|thread| {
        for function in 0..2000 {
            thread.enter(function);
            thread.leave();
        }
        thread.tree().values().sum::<u64>()
    });
    let folded: u64 = (0..2000)
        .map(|function| target.folded_calls(function))
        .sum();
    assert!(counted < 2000, "more contexts than room");
    assert_eq!(counted + folded, 2000);
    assert_eq!(target.header().folded_calls, folded);
    assert_eq!(target.header().folded_outermost, folded);
}

#[test]
fn a_context_knows_that_it_has_lost_callees() {
    let target = Target::new(0, 2 * shm::PAGE, u64::MAX);
    target.thread(|thread| {
        thread.enter(0);
        for function in 1..2000 {
            thread.enter(function);
            thread.leave();
        }
        // SAFETY: the slot is this thread's own, and so is the node of its frame on top.
        let flags = unsafe { (*((*thread.slot().top()).node as *const shm::Node)).flags };
        assert_ne!(flags & shm::NODE_LOST_CALLEES, 0);
        thread.leave();
    });
    assert_ne!(target.header().folded_calls, 0);
    assert_eq!(target.header().folded_outermost, 0);
}

#[test]
fn recursion_is_a_path_as_deep_as_it_is() {
    let target = Target::new(shm::HEADER_TIMED, ROOM, u64::MAX);
    target.thread(|thread| {
        for _ in 0..3 {
            for _ in 0..200 {
                thread.enter(9);
            }
            while thread.depth() > 0 {
                thread.leave();
            }
        }
        assert_eq!(thread.tree(), thread.calls);
        assert_eq!(thread.tree()[&vec![9; 200]], 3);
    });
}
