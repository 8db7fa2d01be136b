//! The basic blocks of a group, and which follows which.

use std::collections::{BTreeSet, HashMap, HashSet};

use iced_x86::Instruction;
use thalweg_patch::code::{Flow, Image, Insn};

use crate::group::Group;
use crate::points::JUMP;
use crate::walk::{Code, goes_on, is_call, stays_home};

/// Where a block goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Block(usize),
    /// Code of another group, or of none.
    Outside(u64),
}

/// Where a block ends.
struct Extent {
    last: usize,
    home_from: Option<usize>,
    /// The first instruction of the next one.
    next: usize,
}

#[derive(Debug)]
pub(crate) struct BasicBlock {
    pub start: u64,
    /// Indices of its first and last instruction.
    pub first: usize,
    pub last: usize,
    /// The first instruction of those that run at home: up to the last one. A block has at most one such run, at its end.
    pub home_from: Option<usize>,
    /// It ends with a call that is made from the cave.
    pub calls_from_cave: bool,
    /// What its jump leads to, if it ends with a direct one.
    pub jumps: Option<Next>,
    /// What follows without a jump, or behind the call at its end.
    pub falls: Option<Next>,
    /// Where its computed jump may go; empty: out of the group, or it has none.
    pub computed: Vec<usize>,
}

pub(crate) struct Graph {
    /// In address order.
    pub insns: Vec<(Insn, Instruction)>,
    pub blocks: Vec<BasicBlock>,
    /// Blocks by their first instruction.
    pub at: HashMap<u64, usize>,
    /// Places at home that are jumped to or returned to, beside the entries.
    pub entered: BTreeSet<u64>,
}

/// What is done where there is no room for a jump at home.
#[derive(Default)]
pub(crate) struct Tight {
    /// Calls that are made from the cave, with the return address that they have at home: their bytes become room.
    pub from_cave: HashSet<u64>,
    /// Places behind calls from which a function returns at once: that runs at home, and counts with the call's block.
    pub returns: HashSet<u64>,
}

/// Calls so close that no jump fits between them are one run.
const SHORT_JUMP: u64 = 2;

impl Graph {
    pub fn new(
        image: &Image,
        group: &Group,
        code: Code,
        tables: &[(u64, Vec<u64>)],
        outside: &HashSet<u64>,
        tight: &Tight,
    ) -> Graph {
        let insns: Vec<(Insn, Instruction)> = code.insns.into_values().collect();
        let known: HashSet<u64> = insns.iter().map(|(insn, _)| insn.addr).collect();
        let computed: HashMap<u64, &Vec<u64>> = tables.iter().map(|(at, to)| (*at, to)).collect();
        let mut entered: BTreeSet<u64> = outside
            .iter()
            .copied()
            .filter(|at| known.contains(at))
            .collect();
        entered.extend(tables.iter().flat_map(|(_, targets)| targets));
        let mut leaders = entered.clone();
        leaders.extend(&group.entries);
        for (insn, _) in &insns {
            if let Some(target) = insn.jump_target() {
                leaders.insert(target);
            }
            if insn.jump_target().is_some() || !goes_on(image, insn) {
                leaders.insert(insn.end());
            }
        }
        let mut graph = Graph {
            insns,
            blocks: Vec::new(),
            at: HashMap::new(),
            entered,
        };
        let mut first = 0;
        while first < graph.insns.len() {
            let Extent {
                last,
                home_from,
                next,
            } = graph.extent(first, &leaders, tight);
            let start = graph.insns[first].0.addr;
            graph.at.insert(start, graph.blocks.len());
            let end = graph.insns[last].0;
            let calls_from_cave = home_from.is_none() && is_call(&end);
            let returns = home_from.is_some() || calls_from_cave;
            if returns && goes_on(image, &end) && known.contains(&end.end()) {
                graph.entered.insert(end.end());
            }
            graph.blocks.push(BasicBlock {
                start,
                first,
                last,
                home_from,
                calls_from_cave,
                jumps: None,
                falls: None,
                computed: Vec::new(),
            });
            first = next;
        }
        for index in 0..graph.blocks.len() {
            let insn = graph.insns[graph.blocks[index].last].0;
            let next = |address: u64| match graph.at.get(&address) {
                Some(&block) => Next::Block(block),
                None => Next::Outside(address),
            };
            let jumps = insn.jump_target().map(next);
            let falls = goes_on(image, &insn).then(|| next(insn.end()));
            let targets = computed
                .get(&insn.addr)
                .map(|to| to.as_slice())
                .unwrap_or_default();
            let mut targets: Vec<usize> = targets
                .iter()
                .filter_map(|to| graph.at.get(to).copied())
                .collect();
            targets.sort_unstable();
            targets.dedup();
            let block = &mut graph.blocks[index];
            // Nothing but the next function stands behind a call that does not return.
            let is_call = block.home_from.is_some() || block.calls_from_cave;
            let returns_outside = is_call && matches!(falls, Some(Next::Outside(_)));
            block.jumps = jumps;
            block.falls = falls.filter(|_| !returns_outside);
            block.computed = targets;
        }
        graph
    }

    fn extent(&self, first: usize, leaders: &BTreeSet<u64>, tight: &Tight) -> Extent {
        let mut last = first;
        let mut home_from = None;
        loop {
            let insn = &self.insns[last].0;
            let is_home = stays_home(insn) && !tight.from_cave.contains(&insn.addr);
            if is_home {
                home_from = home_from.or(Some(last));
                if tight.returns.contains(&insn.end())
                    && let Some(end) = self.return_behind(last)
                {
                    // What returns may be a block of its own as well, for those that jump there.
                    return Extent {
                        last: end,
                        home_from,
                        next: last + 1,
                    };
                }
            }
            let next = self.insns.get(last + 1).map(|(insn, _)| insn);
            let follows = |next: &&Insn| next.addr == insn.end() && !leaders.contains(&next.addr);
            let ends = insn.closed() || insn.jump_target().is_some();
            if next.filter(follows).is_none() || ends || is_call(insn) && !is_home {
                return Extent {
                    last,
                    home_from,
                    next: last + 1,
                };
            }
            match is_home {
                false => last += 1,
                true => match self.close_call(last + 1, insn.end(), leaders, tight) {
                    Some(more) => last = more,
                    None => {
                        return Extent {
                            last,
                            home_from,
                            next: last + 1,
                        };
                    }
                },
            }
        }
    }

    /// The return behind the instruction at `from`, if nothing but simple instructions stands before it.
    fn return_behind(&self, from: usize) -> Option<usize> {
        let mut expected = self.insns[from].0.end();
        for (index, (insn, _)) in self.insns.iter().enumerate().skip(from + 1) {
            match insn.flow {
                Flow::Return | Flow::ReturnPop if insn.addr == expected => return Some(index),
                Flow::Next if insn.addr == expected => expected = insn.end(),
                _ => return None,
            }
        }
        None
    }

    /// The next call, if it begins so soon behind `end` that no jump fits.
    fn close_call(
        &self,
        from: usize,
        end: u64,
        leaders: &BTreeSet<u64>,
        tight: &Tight,
    ) -> Option<usize> {
        let mut expected = end;
        for (index, (insn, _)) in self.insns.iter().enumerate().skip(from) {
            let is_close = insn.addr < end + SHORT_JUMP;
            if insn.addr != expected || !is_close || leaders.contains(&insn.addr) {
                return None;
            }
            if stays_home(insn) {
                return (!tight.from_cave.contains(&insn.addr)).then_some(index);
            }
            if insn.flow != Flow::Next {
                return None;
            }
            expected = insn.end();
        }
        None
    }

    /// What to do about a place at home without room.
    pub fn make_room(&self, at: u64, tight: &mut Tight) -> bool {
        let first = self.insns.partition_point(|(insn, _)| insn.addr < at);
        let near = self.insns[first..]
            .iter()
            .take_while(|(insn, _)| insn.addr < at + JUMP);
        let call = near
            .map(|(insn, _)| insn)
            .find(|insn| is_call(insn) && !insn.fixed && !tight.from_cave.contains(&insn.addr));
        if let Some(call) = call {
            return tight.from_cave.insert(call.addr);
        }
        let before = first.checked_sub(1).map(|before| &self.insns[before].0);
        let is_behind_call = before.is_some_and(|insn| stays_home(insn) && insn.end() == at);
        is_behind_call
            && first > 0
            && self.return_behind(first - 1).is_some()
            && tight.returns.insert(at)
    }

    /// How many blocks may be followed by each, those at home that are entered from elsewhere counted as two.
    pub fn ways_in(&self, group: &Group) -> Vec<u32> {
        let mut ways = vec![0; self.blocks.len()];
        for block in &self.blocks {
            for next in [block.jumps, block.falls].into_iter().flatten() {
                if let Next::Block(next) = next {
                    ways[next] += 1;
                }
            }
            for &next in &block.computed {
                ways[next] += 2;
            }
        }
        for address in self.entered.iter().chain(&group.entries) {
            if let Some(&block) = self.at.get(address) {
                ways[block] += 2;
            }
        }
        ways
    }
}
