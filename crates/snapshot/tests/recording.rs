//! Calls that rules choose, through the very structure that the agent writes and the walk that the controller makes, and through a
//! model that keeps every call and prunes afterwards: the same trees.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use thalweg_abi::record::{
    self, Area, Begun, Ended, HOW_RETURNED, HOW_UNWOUND, NO_RULE, Stack, State,
};
use thalweg_snapshot::call_trace::list::CallList;
use thalweg_snapshot::call_trace::walk::{End, Walk};

const FUNCTIONS: u32 = 6;

#[derive(Clone, Debug)]
enum Step {
    Call(u32),
    Return,
    /// This many activations are thrown away.
    Throw(u8),
    Wait(u16),
    /// The reader comes by.
    Read,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0..FUNCTIONS).prop_map(Step::Call),
        4 => Just(Step::Return),
        1 => (1u8..6).prop_map(Step::Throw),
        3 => (0u16..300).prop_map(Step::Wait),
        1 => Just(Step::Read),
    ];
    prop::collection::vec(step, 0..400)
}

/// What each function's calls must take to be kept; `None`: no rule names it.
fn rules() -> impl Strategy<Value = Vec<Option<u64>>> {
    prop::collection::vec(prop::option::of(0u64..400), FUNCTIONS as usize)
}

/// A call as both sides describe it: function, entry, exit and how, rule; its children.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Tree {
    function: u32,
    entry: u64,
    end: Option<(u64, u8)>,
    rule: u32,
    children: Vec<Tree>,
}

/// Keeps everything, and prunes afterwards.
#[derive(Default)]
struct Naive {
    calls: Vec<(Tree, Option<usize>)>,
    open: Vec<usize>,
}

impl Naive {
    fn call(&mut self, function: u32, now: u64) {
        let tree = Tree {
            function,
            entry: now,
            end: None,
            rule: NO_RULE,
            children: Vec::new(),
        };
        self.calls.push((tree, self.open.last().copied()));
        self.open.push(self.calls.len() - 1);
    }

    fn end(&mut self, now: u64, how: u8, rules: &[Option<u64>]) {
        let index = self.open.pop().expect("a call is open");
        let call = &mut self.calls[index].0;
        call.end = Some((now, how));
        call.rule = rule(call.function, now - call.entry, rules);
    }

    fn kept(&self) -> u64 {
        let kept = self.calls.iter().filter(|(call, _)| call.rule != NO_RULE);
        kept.count() as u64
    }

    fn pruned(mut self) -> Vec<Tree> {
        let mut roots = Vec::new();
        while let Some((mut call, parent)) = self.calls.pop() {
            call.children.reverse();
            if call.rule == NO_RULE && call.children.is_empty() {
                continue;
            }
            match parent {
                Some(parent) => self.calls[parent].0.children.push(call),
                None => roots.push(call),
            }
        }
        roots.reverse();
        roots
    }
}

fn rule(function: u32, took: u64, rules: &[Option<u64>]) -> u32 {
    match rules[function as usize] {
        Some(least) if took > least => function + 1,
        _ => NO_RULE,
    }
}

/// A thread with the hot path of the probes: it comes to the record area only for exits that took long or are watched.
struct Thread {
    frames: Vec<(Begun, bool)>,
    state: State,
    words: Vec<AtomicU64>,
    overwrite: bool,
    slow_exits: u64,
}

struct Frames<'a>(&'a mut Vec<(Begun, bool)>);

impl Stack for Frames<'_> {
    fn call(&self, depth: u64) -> Option<Begun> {
        self.0.get(depth as usize - 1).map(|frame| frame.0)
    }

    fn watch(&mut self, depth: u64) {
        self.0[depth as usize - 1].1 = true;
    }

    fn thread(&self) -> (u64, u64) {
        (7 << 32 | 8, 1)
    }
}

impl Thread {
    fn new(words: usize, overwrite: bool) -> Thread {
        Thread {
            frames: Vec::new(),
            state: State::default(),
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            overwrite,
            slow_exits: 0,
        }
    }

    fn end(&mut self, now: u64, how: u8, rules: &[Option<u64>]) {
        let depth = self.frames.len() as u64;
        let (begun, watched) = *self.frames.last().expect("a call is open");
        let took = now - begun.entry;
        let least = rules.iter().flatten().min();
        let is_plain = how == HOW_RETURNED && !watched && least.is_none_or(|least| took <= *least);
        if !is_plain {
            self.slow_exits += 1;
            let area = Area {
                state: &self.state,
                words: &self.words,
                overwrite: self.overwrite,
            };
            let ended = Ended {
                exit: now,
                how,
                ..Ended::default()
            };
            let rule = rule(begun.function, took, rules);
            let read = record::Read::default();
            area.end(&mut Frames(&mut self.frames), depth, rule, &ended, &read);
            area.forget_above(depth - 1);
        }
        self.frames.pop();
    }
}

/// The controller's side.
#[derive(Default)]
struct Reader {
    walk: Walk,
    position: u64,
    calls: CallList,
}

impl Reader {
    fn read(&mut self, thread: &Thread) {
        let size = thread.words.len() as u64;
        let to = thread.state.head.load(Relaxed);
        let from = self.position.max(thread.state.oldest.load(Relaxed));
        let words: Vec<u64> = (from..to)
            .map(|at| thread.words[(at % size) as usize].load(Relaxed))
            .collect();
        let (position, stop) = self.walk.go(&words, from, size, &mut self.calls);
        assert_eq!((position, stop), (to, None));
        self.position = position;
        thread.state.read.store(position, Relaxed);
    }

    fn trees(&self) -> Vec<Tree> {
        let mut trees: Vec<Option<Tree>> = self
            .calls
            .iter()
            .map(|call| {
                Some(Tree {
                    function: call.function,
                    entry: call.entry,
                    end: match call.end {
                        End::Closed { exit, how, .. } => Some((exit, how)),
                        End::Open | End::Lost => None,
                    },
                    rule: call.rule,
                    children: Vec::new(),
                })
            })
            .collect();
        let mut roots = Vec::new();
        for index in (0..trees.len()).rev() {
            let mut tree = trees[index].take().expect("taken once");
            tree.children.reverse();
            match self.calls.get(index).expect("it is there").parent {
                Some(parent) => {
                    let above = trees[parent as usize].as_mut().expect("parents come first");
                    above.children.push(tree);
                }
                None => roots.push(tree),
            }
        }
        roots.reverse();
        roots
    }
}

fn run(steps: &[Step], rules: &[Option<u64>], mut thread: Thread) -> (Naive, Thread, Reader) {
    let mut naive = Naive::default();
    let mut reader = Reader::default();
    let mut now = 1000;
    for step in steps {
        now += 1;
        match *step {
            Step::Call(function) => {
                let entry = now;
                thread.frames.push((Begun { function, entry }, false));
                naive.call(function, now);
            }
            Step::Return if thread.frames.is_empty() => {}
            Step::Return => {
                thread.end(now, HOW_RETURNED, rules);
                naive.end(now, HOW_RETURNED, rules);
            }
            Step::Throw(frames) => {
                for _ in 0..usize::from(frames).min(thread.frames.len()) {
                    thread.end(now, HOW_UNWOUND, rules);
                    naive.end(now, HOW_UNWOUND, rules);
                }
            }
            Step::Wait(ticks) => now += u64::from(ticks),
            Step::Read => reader.read(&thread),
        }
    }
    reader.read(&thread);
    (naive, thread, reader)
}

/// Every call of `some` is one of `all`, with the same end, below the same callers.
fn is_part_of(some: &[Tree], all: &[Tree]) -> bool {
    some.iter().all(|one| {
        all.iter().any(|other| {
            one.function == other.function
                && one.entry == other.entry
                && one.end == other.end
                && is_part_of(&one.children, &other.children)
        })
    })
}

proptest! {
    #[test]
    fn what_is_recorded_is_what_pruning_a_full_trace_gives(steps in steps(), rules in rules()) {
        let (naive, thread, reader) = run(&steps, &rules, Thread::new(1 << 16, false));
        prop_assert_eq!(thread.state.dropped.load(Relaxed), 0);
        prop_assert_eq!(thread.state.kept.load(Relaxed), naive.kept());
        prop_assert_eq!(reader.trees(), naive.pruned());
    }

    #[test]
    fn a_full_area_drops_whole_calls_and_says_how_many(steps in steps(), rules in rules()) {
        let without_reads: Vec<Step> = steps
            .into_iter()
            .filter(|step| !matches!(step, Step::Read))
            .collect();
        let (naive, thread, reader) = run(&without_reads, &rules, Thread::new(256, false));
        let state = &thread.state;
        prop_assert_eq!(state.kept.load(Relaxed) + state.dropped.load(Relaxed), naive.kept());
        let kept = reader.calls.iter().filter(|call| call.rule != NO_RULE).count() as u64;
        prop_assert_eq!(kept, state.kept.load(Relaxed));
        // Callers that were marked for a call have their exits too, whatever was dropped in between.
        prop_assert!(is_part_of(&reader.trees(), &naive.pruned()));
    }

    #[test]
    fn the_newest_calls_survive_where_the_oldest_make_room(steps in steps(), rules in rules()) {
        let (naive, thread, reader) = run(&steps, &rules, Thread::new(2048, true));
        prop_assert_eq!(thread.state.kept.load(Relaxed), naive.kept());
        let last = naive.calls.iter().filter(|(call, _)| call.rule != NO_RULE);
        let last = last.max_by_key(|(call, _)| call.end).map(|(call, _)| call.end);
        let read = reader.calls.iter().filter(|call| call.rule != NO_RULE);
        let read = read.filter_map(|call| match call.end {
            End::Closed { exit, how, .. } => Some((exit, how)),
            _ => None,
        });
        prop_assert_eq!(read.max(), last.flatten());
    }

    #[test]
    fn calls_that_no_rule_names_never_come_to_the_record_area(steps in steps()) {
        let only_returns: Vec<Step> = steps
            .into_iter()
            .filter(|step| !matches!(step, Step::Throw(_)))
            .collect();
        let rules = vec![None; FUNCTIONS as usize];
        let (_, thread, _) = run(&only_returns, &rules, Thread::new(256, false));
        prop_assert_eq!(thread.slow_exits, 0);
        prop_assert_eq!(thread.state.head.load(Relaxed), 0);
    }
}

#[test]
fn a_record_that_a_handler_never_came_back_to_is_passed_over() {
    let mut thread = Thread::new(1024, false);
    let rules = vec![Some(0); FUNCTIONS as usize];
    let begun = Begun {
        function: 1,
        entry: 5,
    };
    thread.frames.push((begun, false));
    thread.end(10, HOW_RETURNED, &rules);
    let head = thread.state.head.load(Relaxed);
    // Room is taken, and then the handler leaves by a longjmp.
    let abandoned = record::Head::new(3, record::KIND_NONE, 0, 0);
    thread.words[head as usize].store(abandoned.0, Relaxed);
    thread.state.head.store(head + 3, Relaxed);
    let words: Vec<u64> = thread.words.iter().map(|word| word.load(Relaxed)).collect();
    let mut walk = Walk::default();
    let mut calls = CallList::default();
    let (position, stop) = walk.go(&words[..head as usize + 3], 0, 1024, &mut calls);
    assert_eq!(position, head);
    assert!(stop.is_some());
    assert_eq!(calls.len(), 1);
}
