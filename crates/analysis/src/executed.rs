//! What ran, where blocks were counted: by function, and laid over the source by line.
//!
//! A line is executed as often as it is come to from another one, or jumps back into itself; so a call in its midst does not
//! make two of it, and `for (a; b; c)` is as often executed as its test.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_model::{Block, Ending, FuncId, ModuleBlocks, PER_CYCLE, Profile};

/// A line of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Index into [`Code::files`].
    pub file: u32,
    pub line: u32,
}

/// One instruction of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insn {
    pub address: u64,
    /// Where it was written.
    pub written: Option<Place>,
    /// The same in the function that it is in: where an inlined one was called.
    pub outer: Option<Place>,
    /// Its part of the block's cost, in thousandths of a cycle.
    pub cost: u32,
}

/// The code of blocks.
#[derive(Clone, Debug, Default)]
pub struct Code {
    pub files: Vec<String>,
    /// Of each module of `Profile::blocks`, of each of its blocks: its instructions, or none where they are not known or not
    /// wanted.
    pub modules: Vec<Vec<Vec<Insn>>>,
}

/// Which line an inlined instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Written,
    Outer,
}

impl Insn {
    pub fn place(&self, by: By) -> Option<Place> {
        match by {
            By::Written => self.written,
            By::Outer => self.outer,
        }
    }
}

/// What a function did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Index into the profile's functions.
    pub function: FuncId,
    /// How often it was entered at its start, loops back to there not counted.
    pub calls: u64,
    /// Instructions that ran in it.
    pub instructions: u64,
    /// What they cost, in thousandths of a cycle of the profile's model.
    pub cost: u128,
    pub blocks: u32,
    /// Blocks that ran.
    pub blocks_run: u32,
}

/// All functions whose blocks were counted, in the order of their numbers.
pub fn executed(profile: &Profile) -> Vec<Executed> {
    let mut all: BTreeMap<FuncId, Executed> = BTreeMap::new();
    for module in &profile.blocks {
        for block in &module.blocks {
            let function = all.entry(block.function).or_insert(Executed {
                function: block.function,
                ..Executed::default()
            });
            function.instructions = function.instructions.saturating_add(block.executed());
            function.cost += block.cost_of_all();
            function.blocks += 1;
            function.blocks_run += u32::from(block.executions > 0);
            if block.start == profile.functions[block.function].address {
                function.calls = function.calls.saturating_add(block.executions);
            }
        }
        // What jumps back to the entry, or falls into it, is no call.
        for block in &module.blocks {
            for (to, times) in followers(module, block) {
                let next = &module.blocks[to];
                let is_entry = next.start == profile.functions[next.function].address;
                if next.function == block.function
                    && is_entry
                    && let Some(function) = all.get_mut(&next.function)
                {
                    function.calls = function.calls.saturating_sub(times);
                }
            }
        }
    }
    all.into_values().collect()
}

/// All instructions that ran.
pub fn total_executed(profile: &Profile) -> u64 {
    let blocks = profile.blocks.iter().flat_map(|module| &module.blocks);
    blocks.fold(0, |sum, block| sum.saturating_add(block.executed()))
}

/// What all of them cost, in thousandths of a cycle of the profile's model.
pub fn cost_of_blocks(profile: &Profile) -> u128 {
    let blocks = profile.blocks.iter().flat_map(|module| &module.blocks);
    blocks.map(Block::cost_of_all).sum()
}

/// Thousandths of a cycle as cycles.
pub fn cycles(cost: u128) -> u64 {
    let cycles = (cost + u128::from(PER_CYCLE) / 2) / u128::from(PER_CYCLE);
    u64::try_from(cycles).unwrap_or(u64::MAX)
}

/// The blocks that were gone on in behind a block, as far as its end tells, and how often.
fn followers<'a>(
    module: &'a ModuleBlocks,
    block: &Block,
) -> impl Iterator<Item = (usize, u64)> + 'a {
    let at = |address: u64| {
        let found = module
            .blocks
            .binary_search_by_key(&address, |one| one.start);
        found.ok()
    };
    let (ran, behind) = (block.executions, at(block.end()));
    let (one, two) = match block.ending {
        Ending::Falls => ((behind, ran), None),
        Ending::Jump(to) => ((at(to), ran), None),
        Ending::Branch(to) => ((at(to), block.taken()), Some((behind, block.not_taken))),
        // Not every call returns.
        Ending::Call(_) | Ending::CallComputed | Ending::SystemCall => {
            let most = behind.map_or(0, |next| module.blocks[next].executions);
            ((behind, ran.min(most)), None)
        }
        Ending::Computed | Ending::Return | Ending::Stop => ((None, 0), None),
    };
    let ways = [Some(one), two].into_iter().flatten();
    ways.filter_map(|(next, times)| Some((next?, times)))
}

/// A conditional jump of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    pub address: u64,
    pub taken: u64,
    pub not_taken: u64,
}

/// What a line did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    pub executions: u64,
    /// Instructions that ran for it.
    pub instructions: u64,
    /// What they cost, in thousandths of a cycle.
    pub cost: u128,
    /// How often each block ran that has code of it, in the order of their addresses.
    pub blocks: Vec<(u64, u64)>,
    pub branches: Vec<Branch>,
    /// The functions that its code is in.
    pub functions: BTreeSet<FuncId>,
}

/// Lines with code in the functions that `keep` wants.
pub fn line_counts(
    profile: &Profile,
    code: &Code,
    by: By,
    keep: impl Fn(FuncId) -> bool,
) -> BTreeMap<Place, LineCounts> {
    let mut lines: BTreeMap<Place, LineCounts> = BTreeMap::new();
    for (module, insns) in profile.blocks.iter().zip(&code.modules) {
        let edge = |block: usize, last: bool| {
            let mut places = insns[block].iter().filter_map(|insn| insn.place(by));
            match last {
                true => places.next_back(),
                false => places.next(),
            }
        };
        // How often a block was come to from its own line, forwards.
        let mut inside = vec![0u64; module.blocks.len()];
        for (index, block) in module.blocks.iter().enumerate() {
            let from = edge(index, true);
            for (to, times) in followers(module, block) {
                let is_forward = module.blocks[to].start > block.start;
                if from.is_some() && is_forward && from == edge(to, false) {
                    inside[to] = inside[to].saturating_add(times);
                }
            }
        }
        for (index, block) in module.blocks.iter().enumerate() {
            if !keep(block.function) {
                continue;
            }
            let mut met = BTreeSet::new();
            for insn in &insns[index] {
                let Some(place) = insn.place(by) else {
                    continue;
                };
                let line = lines.entry(place).or_default();
                line.instructions = line.instructions.saturating_add(block.executions);
                line.cost += u128::from(block.executions) * u128::from(insn.cost);
                if met.insert(place) {
                    let times = match met.len() {
                        1 => block.executions.saturating_sub(inside[index]),
                        _ => block.executions,
                    };
                    line.executions = line.executions.saturating_add(times);
                    line.blocks.push((block.start, block.executions));
                    line.functions.insert(block.function);
                }
            }
            let last = insns[index].last();
            if let Ending::Branch(_) = block.ending
                && let Some((insn, place)) = last.and_then(|insn| Some((insn, insn.place(by)?)))
            {
                lines.entry(place).or_default().branches.push(Branch {
                    address: insn.address,
                    taken: block.taken(),
                    not_taken: block.not_taken,
                });
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::{Function, Module};

    /// `for (a; b; c) body();` on line 1 with its body on line 2, as a compiler lays it out without optimisation, ten times round.
    fn counted_loop() -> (Profile, Code) {
        let block = |start: u64, instructions: u32, ending, executions, not_taken| Block {
            function: FuncId(0),
            start,
            bytes: instructions,
            instructions,
            ending,
            executions,
            not_taken,
            cost: 500 * instructions,
        };
        let profile = Profile {
            modules: vec![Module::default()],
            functions: vec![Function {
                address: 0,
                ..Function::default()
            }],
            blocks: vec![ModuleBlocks {
                module: 0,
                blocks: vec![
                    block(0, 2, Ending::Jump(5), 1, 0),
                    block(2, 1, Ending::Call(100), 10, 0),
                    block(3, 2, Ending::Falls, 10, 0),
                    block(5, 2, Ending::Branch(2), 11, 1),
                    block(7, 1, Ending::Return, 1, 0),
                ],
            }],
            ..Profile::default()
        };
        let place = |line| Some(Place { file: 0, line });
        let insns = |start: u64, lines: &[u32]| {
            let insns = (start..).zip(lines).map(|(address, &line)| Insn {
                address,
                written: place(line),
                outer: place(line),
                cost: 500,
            });
            insns.collect::<Vec<_>>()
        };
        let code = Code {
            files: vec!["loop.c".into()],
            modules: vec![vec![
                insns(0, &[1, 1]),
                insns(2, &[2]),
                insns(3, &[2, 1]),
                insns(5, &[1, 1]),
                insns(7, &[3]),
            ]],
        };
        (profile, code)
    }

    #[test]
    fn a_line_is_executed_as_often_as_it_is_come_to() {
        let (profile, code) = counted_loop();
        let lines = line_counts(&profile, &code, By::Written, |_| true);
        let told: Vec<(u32, u64, u64)> = lines
            .iter()
            .map(|(place, line)| (place.line, line.executions, line.instructions))
            .collect();
        assert_eq!(told, [(1, 11, 2 + 10 + 22), (2, 10, 20), (3, 1, 1)]);
        let costs: u128 = lines.values().map(|line| line.cost).sum();
        assert_eq!(costs, cost_of_blocks(&profile));
        let head = &lines[&Place { file: 0, line: 1 }];
        assert_eq!(head.blocks, [(0, 1), (3, 10), (5, 11)]);
        assert_eq!(
            (head.branches[0].taken, head.branches[0].not_taken),
            (10, 1)
        );
    }

    #[test]
    fn a_loop_to_the_entry_is_no_call() {
        let (mut profile, _) = counted_loop();
        profile.functions[0].address = 2;
        let all = executed(&profile);
        assert_eq!(all[0].calls, 0);
        assert_eq!(
            (all[0].instructions, all[0].blocks, all[0].blocks_run),
            (55, 5, 5)
        );
        assert_eq!(total_executed(&profile), 55);
        assert_eq!((all[0].cost, cost_of_blocks(&profile)), (27_500, 27_500));
        assert_eq!(cycles(cost_of_blocks(&profile)), 28);
    }
}
