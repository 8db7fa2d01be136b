//! What every function has counted so far, for those who decide what its probes do: read often, while the trees grow.
//!
//! A tree is walked once. From then on it is known which node of the arena is whose, and all figures are read from one end of the arena to the
//! other, in pieces; a link that leads to a node which is not known yet shows where to walk on. In CPython (440,000 contexts) that takes
//! a tenth of a walk through everything.

use std::collections::{HashMap, HashSet};

use thalweg_abi as shm;

use super::clock::Clock;
use super::nodes::{Nodes, has_folded};
use crate::clock::Moment;
use crate::error::Result;
use crate::memory::Shared;
use crate::states;
use crate::thread_table;
use crate::waits::Waits;

/// What all contexts of one function have counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionSum {
    pub calls: u64,
    pub untimed: u64,
    /// Of the calls that were timed.
    pub own_ns: f64,
    /// What its callees took in all its calls, as far as it was timed.
    pub below_ns: f64,
}

/// What was counted, and by whom.
pub struct Sums {
    /// By function number, of all threads.
    pub functions: Vec<FunctionSum>,
    /// Those that have a slot.
    pub threads: Vec<ThreadSum>,
}

/// Names a thread: address of its root, and when it began.
pub type Whose = (u64, u64);

/// What a thread has done so far.
pub struct ThreadSum {
    pub whose: Whose,
    /// Its own clock at its last timed event, and what it has spent in the slow path, which that clock leaves out; in nanoseconds.
    pub clock_ns: f64,
    pub slow_ns: f64,
    /// How often it was there.
    pub slow_events: u64,
    /// Calls of Java methods that are off.
    pub off_calls: u64,
    /// By function number; empty where nobody wanted to know.
    pub calls: Vec<u64>,
}

impl ThreadSum {
    /// Nanoseconds on a processor, as far as its events tell.
    pub fn used_since(&self, before: &ThreadSum) -> f64 {
        (self.clock_ns + self.slow_ns - before.clock_ns - before.slow_ns).max(0.0)
    }

    /// Nanoseconds in the slow path. A thread that is taken off its processor there measures that too, now and then: nothing that it does
    /// takes so long.
    pub fn slow_since(&self, before: Option<&ThreadSum>) -> f64 {
        const LONGEST_NS: f64 = 2_000.0;
        let (ns, events) = before.map_or((0.0, 0), |before| (before.slow_ns, before.slow_events));
        let most = self.slow_events.saturating_sub(events) as f64 * LONGEST_NS;
        (self.slow_ns - ns).clamp(0.0, most)
    }
}

/// How many nodes are read at a time: what stays in the processor's caches.
const PIECE: u64 = 512;

/// Which node is whose, as far as it was found out.
#[derive(Default)]
pub struct Tally {
    /// By the numbers of nodes.
    known: Vec<Known>,
    /// The threads whose trees were begun: their numbers in `known`.
    thread_numbers: HashMap<Whose, u32>,
    /// What was cut then: nodes become others' when more is.
    cut: u64,
}

/// Of a node that is in use.
#[derive(Clone, Copy)]
struct Known {
    /// `NO_FUNCTION` for a root, and where nothing is known.
    function: u32,
    /// Number of its thread, plus one; 0: nothing is known.
    thread_number: u32,
}

const UNKNOWN: Known = Known {
    function: shm::NO_FUNCTION,
    thread_number: 0,
};

/// A node's figures and links.
struct Figures {
    calls: u64,
    cum: u64,
    base: u64,
    function: u32,
    first_child: u32,
    sibling: u32,
}

impl Figures {
    fn of(bytes: &[u8]) -> Option<Figures> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        Some(Figures {
            calls: word(shm::NODE_CALLS)?,
            cum: word(shm::NODE_CUM)?,
            base: word(shm::NODE_BASE)?,
            function: half(shm::NODE_FUNCTION)?,
            first_child: half(FIRST_CHILD)?,
            sibling: half(SIBLING)?,
        })
    }
}

const FIRST_CHILD: usize = std::mem::offset_of!(shm::Node, first_child);
const SIBLING: usize = std::mem::offset_of!(shm::Node, sibling);
const UNTIMED: usize = std::mem::offset_of!(shm::Waits, untimed);

impl Tally {
    /// `wanted`: of which threads the calls are added up for themselves, too. Contexts may be cut meanwhile, which makes this one reading wrong and
    /// no other: while a reader kept threads from cutting, they would have to do without new contexts.
    pub fn read(
        &mut self,
        shared: &Shared,
        wanted: &dyn Fn(&[ThreadSum]) -> HashSet<Whose>,
    ) -> Result<Sums> {
        let header = shared.header()?;
        let clock = Clock::new(&header, Moment::now());
        let mut threads = Vec::new();
        for slot in thread_table::slots(shared, &header) {
            let (_, slot) = slot?;
            if slot.root != 0 {
                threads.push(ThreadSum {
                    whose: (slot.root, slot.start),
                    clock_ns: clock.ns(slot.last) as f64,
                    slow_ns: clock.ns(slot.slow_ticks) as f64,
                    slow_events: slot.slow_entries.saturating_add(slot.slow_exits),
                    off_calls: slot.off_calls,
                    calls: Vec::new(),
                });
            }
        }
        let cut = header.prune.pruned_contexts;
        if cut != self.cut {
            *self = Tally {
                cut,
                ..Tally::default()
            };
        }
        self.begin_trees(shared, &header)?;
        let states = states::of_all(shared, &header)?;
        let untimed_of = |function: u32, calls: u64, counted: u64| {
            let state = states.get(function as usize);
            match state.is_some_and(states::is_never_timed) {
                true => calls,
                false => counted,
            }
        };
        let count = header.functions as usize;
        let mut functions = vec![FunctionSum::default(); count];
        // By the threads' numbers.
        let mut by_thread: Vec<Option<Vec<u64>>> = vec![None; self.thread_numbers.len()];
        for whose in wanted(&threads) {
            if let Some(&thread_number) = self.thread_numbers.get(&whose) {
                by_thread[thread_number as usize] = Some(vec![0; count]);
            }
        }
        let mut add = |known: Known, node: &Figures, untimed: u64| {
            if let Some(sum) = functions.get_mut(known.function as usize) {
                let own = clock.signed_ns(node.base as i64) as f64;
                sum.calls = sum.calls.saturating_add(node.calls);
                let untimed = untimed_of(known.function, node.calls, untimed);
                sum.untimed = sum.untimed.saturating_add(untimed);
                sum.own_ns += own;
                sum.below_ns += (clock.signed_ns(node.cum as i64) as f64 - own).max(0.0);
            }
            let thread_number = known.thread_number.wrapping_sub(1) as usize;
            if let Some(Some(calls)) = by_thread.get_mut(thread_number)
                && let Some(calls) = calls.get_mut(known.function as usize)
            {
                *calls = calls.saturating_add(node.calls);
            }
        };
        self.read_known(shared, &header, &mut add)?;
        for thread in &mut threads {
            let thread_number = self.thread_numbers.get(&thread.whose);
            let calls =
                thread_number.and_then(|&thread_number| by_thread[thread_number as usize].take());
            thread.calls = calls.unwrap_or_default();
        }
        if has_folded(&header) {
            let nodes = Nodes::read_folded(shared, &header)?;
            let waits = Waits::read(shared, &header)?;
            for (function, sum) in (0..).zip(&mut functions) {
                let node = nodes.folded(function)?;
                sum.calls = sum.calls.saturating_add(node.calls);
                let untimed = waits.folded(function).untimed;
                let untimed = untimed_of(function, node.calls, untimed);
                sum.untimed = sum.untimed.saturating_add(untimed);
                sum.own_ns += clock.signed_ns(node.base as i64) as f64;
            }
        }
        Ok(Sums { functions, threads })
    }

    /// Notes the roots of threads that are new.
    fn begin_trees(&mut self, shared: &Shared, header: &shm::Header) -> Result<()> {
        let used = header.nodes_used / shm::NODE_SIZE;
        self.known
            .resize(self.known.len().max(used as usize), UNKNOWN);
        let start = header
            .base
            .wrapping_add(shm::PRIVATE_SIZE)
            .wrapping_add(header.nodes_offset);
        for entry in thread_table::read(shared)? {
            let whose = (entry.root, entry.start);
            // A root outside of the arena has nothing below it.
            let offset = entry.root.wrapping_sub(start);
            let number = offset / shm::NODE_SIZE;
            if offset % shm::NODE_SIZE != 0
                || number >= used
                || self.thread_numbers.contains_key(&whose)
            {
                continue;
            }
            let next = self.thread_numbers.len() as u32;
            self.thread_numbers.insert(whose, next);
            self.known[number as usize].thread_number = next + 1;
        }
        Ok(())
    }

    fn read_known(
        &mut self,
        shared: &Shared,
        header: &shm::Header,
        add: &mut dyn FnMut(Known, &Figures, u64),
    ) -> Result<()> {
        let waits = shm::waits_offset(header.nodes_offset, header.nodes_len).saturating_add(
            shm::waits_place(header.nodes_offset.saturating_sub(header.folded_offset)),
        );
        let used = header.nodes_used / shm::NODE_SIZE;
        let mut nodes_piece = vec![0; (PIECE * shm::NODE_SIZE) as usize];
        let mut waits_piece = vec![0; (PIECE * shm::WAITS_SIZE) as usize];
        // Links to nodes that are not known, and the threads that they are of.
        let mut links: Vec<(u32, u32)> = Vec::new();
        let mut window = Window::default();
        // New nodes lie behind those that are known, as a rule: in one pass they are found before they are read.
        let mut first = 0;
        while first < used {
            let some = PIECE.min(used - first);
            let nodes = &mut nodes_piece[..(some * shm::NODE_SIZE) as usize];
            let waits_some = &mut waits_piece[..(some * shm::WAITS_SIZE) as usize];
            shared.read_bytes(header.nodes_offset + first * shm::NODE_SIZE, nodes)?;
            shared.read_bytes(waits + first * shm::WAITS_SIZE, waits_some)?;
            for index in 0..some {
                let number = first + index;
                let known = self.known[number as usize];
                if known.thread_number == 0 {
                    continue;
                }
                let at = (index * shm::NODE_SIZE) as usize;
                let Some(node) = Figures::of(&nodes[at..]) else {
                    continue;
                };
                let known = Known {
                    function: node.function,
                    ..known
                };
                if known.function < header.functions {
                    let at = (index * shm::WAITS_SIZE) as usize + UNTIMED;
                    let untimed = waits_some[at..at + 8].try_into().map(u64::from_le_bytes);
                    add(known, &node, untimed.unwrap_or(0));
                }
                // It may have been seen before it was whole.
                self.known[number as usize].function = node.function;
                links.push((node.sibling, known.thread_number));
                links.push((node.first_child, known.thread_number));
                self.follow(shared, header, &mut links, &mut window)?;
            }
            first += some;
        }
        Ok(())
    }

    /// Notes all that is not known behind these links. Nodes that lie before those that are being read are added at the next reading.
    fn follow(
        &mut self,
        shared: &Shared,
        header: &shm::Header,
        links: &mut Vec<(u32, u32)>,
        window: &mut Window,
    ) -> Result<()> {
        while let Some((link, thread_number)) = links.pop() {
            let number = u64::from(link).wrapping_sub(1);
            // Made since the header was read, or none.
            let Some(known) = self.known.get_mut(number as usize) else {
                continue;
            };
            if known.thread_number != 0 {
                continue;
            }
            let node = window.node(shared, header, number)?;
            *known = Known {
                function: node.function,
                thread_number,
            };
            links.push((node.sibling, thread_number));
            links.push((node.first_child, thread_number));
        }
        Ok(())
    }
}

/// Some nodes in a row: contexts that are new lie close to each other.
#[derive(Default)]
struct Window {
    first: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn node(&mut self, shared: &Shared, header: &shm::Header, number: u64) -> Result<Figures> {
        // Calls are counted once a context has its own link.
        if let Some(node) = self.at(number).filter(|node| node.calls > 0) {
            return Ok(node);
        }
        let used = header.nodes_used / shm::NODE_SIZE;
        let some = shm::CHUNK_NODES.min(used.saturating_sub(number)).max(1);
        self.first = number;
        self.bytes.resize((some * shm::NODE_SIZE) as usize, 0);
        let at = header.nodes_offset + number * shm::NODE_SIZE;
        shared.read_bytes(at, &mut self.bytes)?;
        self.at(number).ok_or_else(super::nodes::damaged)
    }

    fn at(&self, number: u64) -> Option<Figures> {
        let at = number
            .checked_sub(self.first)?
            .checked_mul(shm::NODE_SIZE)?;
        Figures::of(self.bytes.get(usize::try_from(at).ok()?..)?)
    }
}
