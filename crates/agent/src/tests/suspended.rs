//! Stacks that nobody runs on.

use thalweg_abi::{self as shm, SuspendedFrame};

use super::target::{Target, entry, exit};
use crate::stacks::tw_slow_switch;
use crate::suspended_stacks::{StackWriter, take};

const ROOM: u64 = 64 << 20;
const PID: u32 = 7;

fn frame(function: u32) -> SuspendedFrame {
    // SAFETY: integers, for which zero is a value.
    let empty: SuspendedFrame = unsafe { std::mem::zeroed() };
    SuspendedFrame {
        function,
        own: u64::from(function),
        ..empty
    }
}

fn suspend(sp: u64, functions: impl Iterator<Item = u32>) {
    let mut writer = StackWriter::new(sp, PID);
    for function in functions {
        writer.add(frame(function), None);
    }
    writer.finish();
}

fn taken(sp: u64) -> Option<Vec<u32>> {
    let chain = take(sp, PID)?;
    let mut functions = Vec::new();
    chain.unpack(|frame, _| functions.push(frame.function));
    Some(functions)
}

#[test]
fn a_suspended_stack_comes_back_whole_and_once() {
    let _target = Target::new(0, ROOM, u64::MAX);
    // Innermost first; more than a block holds.
    suspend(0x7000_0000, (0..100).rev());
    suspend(0x7100_0000, 5..6);
    assert_eq!(taken(0x7000_0000), Some((0..100).collect()));
    assert_eq!(taken(0x7000_0000), None, "it is taken once");
    assert_eq!(taken(0x7100_0000), Some(vec![5]));
    assert!(take(0x7100_0000, PID + 1).is_none());
}

#[test]
fn a_stack_left_at_the_same_place_takes_the_place_of_the_older_one() {
    let _target = Target::new(0, ROOM, u64::MAX);
    suspend(0x7000_0000, 1..2);
    suspend(0x7000_0000, 2..3);
    assert_eq!(taken(0x7000_0000), Some(vec![2]));
    assert_eq!(taken(0x7000_0000), None);
}

#[test]
fn of_more_stacks_than_there_is_room_for_the_latest_are_known_and_no_block_is_lost() {
    let _target = Target::new(0, ROOM, u64::MAX);
    let all = shm::SUSPENDED_BLOCKS * 2;
    for number in 0..all {
        suspend(0x7000_0000_0000 + number * 64, 3..4);
    }
    let known = |from: u64, to: u64| {
        (from..to)
            .filter(|number| taken(0x7000_0000_0000 + number * 64).is_some())
            .count() as u64
    };
    let late = known(all - 1000, all);
    assert!(late > 900, "{late} of the last thousand are known");
    known(0, all - 1000);
    // All blocks are free again: as many stacks as there are blocks in one chain find room.
    let frames = (shm::SUSPENDED_BLOCKS - 1) * shm::SUSPENDED_FRAMES;
    suspend(0x7000_0000, (0..frames).map(|_| 1));
    let long = taken(0x7000_0000).expect("there is room");
    assert_eq!(long.len() as u64, frames);
}

#[test]
fn a_coroutines_calls_are_counted_once_below_whoever_resumes_it() {
    let target = Target::new(shm::HEADER_TIMED, ROOM, u64::MAX);
    target.thread(|thread| {
        let other = vec![0u64; 8192];
        let end = other.as_ptr_range().end as u64 & !15;
        let (main, resume, switch, body, step) = (1, 2, 3, 4, 5);
        thread.enter(main);
        thread.enter(resume);
        let first = {
            thread.enter(switch);
            thread.sp()
        };
        // To a stack of which nothing is known, where body begins.
        let (body_at, step_at) = (end - 64, end - 128);
        tw_slow_switch(switch, end - 8, 0);
        entry(body, body_at);
        // body's step switches back in the middle.
        entry(step, step_at);
        let inner = end - 192;
        entry(switch, inner);
        tw_slow_switch(switch, first, 0);
        thread.forget();
        thread.leave();
        // Somebody else resumes it.
        thread.enter(6);
        thread.enter(switch);
        tw_slow_switch(switch, inner, 0);
        exit(step_at);
        exit(body_at);
        let tree = thread.tree();
        assert_eq!(tree[&vec![main, resume, switch]], 1, "{tree:?}");
        let calls = |function: u32| {
            let all = tree
                .iter()
                .filter(|(path, _)| path.last() == Some(&function));
            all.map(|(_, calls)| calls).sum::<u64>()
        };
        assert_eq!((calls(body), calls(step)), (1, 1), "{tree:?}");
        let resumed = tree
            .keys()
            .any(|path| path.contains(&6) && path.contains(&body));
        assert!(
            resumed,
            "what it does after that is whoever resumed it: {tree:?}"
        );
    });
}
