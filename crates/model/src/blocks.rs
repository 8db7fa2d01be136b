//! How often each basic block of a module ran, all threads and processes together.
//!
//! While a program runs, its catalog says with [`BlockCounters`] where in the target each count is kept; a finished profile has the
//! counts themselves and none of those.

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::ids::FuncId;

/// The blocks of one module that were counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleBlocks {
    /// Index into the profile's modules.
    pub module: u32,
    /// In the order of their addresses, each once. Two blocks may share bytes only where a return is counted with the call before it.
    pub blocks: Vec<Block>,
}

/// A run of instructions that is entered at its start and left at its end. Addresses are the module's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Index into the profile's functions.
    pub function: FuncId,
    pub start: u64,
    pub bytes: u32,
    pub instructions: u32,
    pub ending: Ending,
    pub executions: u64,
    /// How often the conditional jump at its end was not taken. 0 for blocks that end otherwise.
    pub not_taken: u64,
    /// What one execution costs by the model of [`Profile::cycles_of`](crate::Profile::cycles_of), in thousandths of a cycle.
    /// 0: not known.
    pub cost: u32,
}

/// Costs are told in thousandths of a cycle.
pub const PER_CYCLE: u32 = 1000;

/// How a block is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Into what follows it.
    #[default]
    Falls,
    Jump(u64),
    /// Conditional.
    Branch(u64),
    /// A computed jump.
    Computed,
    Return,
    Call(u64),
    CallComputed,
    SystemCall,
    /// Nothing follows.
    Stop,
}

impl Ending {
    pub fn name(self) -> &'static str {
        match self {
            Ending::Falls => "falls",
            Ending::Jump(_) => "jump",
            Ending::Branch(_) => "branch",
            Ending::Computed => "computed jump",
            Ending::Return => "return",
            Ending::Call(_) => "call",
            Ending::CallComputed => "computed call",
            Ending::SystemCall => "system call",
            Ending::Stop => "stop",
        }
    }

    /// Where it jumps to or what it calls, if the instruction says so.
    pub fn target(self) -> Option<u64> {
        match self {
            Ending::Jump(to) | Ending::Branch(to) | Ending::Call(to) => Some(to),
            _ => None,
        }
    }

    fn number(self) -> u8 {
        match self {
            Ending::Falls => 0,
            Ending::Jump(_) => 1,
            Ending::Branch(_) => 2,
            Ending::Computed => 3,
            Ending::Return => 4,
            Ending::Call(_) => 5,
            Ending::CallComputed => 6,
            Ending::SystemCall => 7,
            Ending::Stop => 8,
        }
    }
}

impl Block {
    pub fn end(&self) -> u64 {
        self.start.wrapping_add(self.bytes.into())
    }

    /// How often the conditional jump at its end was taken.
    pub fn taken(&self) -> u64 {
        match self.ending {
            Ending::Branch(_) => self.executions.saturating_sub(self.not_taken),
            _ => 0,
        }
    }

    /// What all executions cost, in thousandths of a cycle.
    pub fn cost_of_all(&self) -> u128 {
        u128::from(self.executions) * u128::from(self.cost)
    }

    /// How many instructions ran in it.
    pub fn executed(&self) -> u64 {
        self.executions.saturating_mul(self.instructions.into())
    }
}

/// Where a running target keeps the counts of a module's blocks. Parallel to the profile's list of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    /// Number of the first block's counter; those of the others follow.
    pub first: u32,
    /// Of each block that ends with a conditional jump, in their order.
    pub not_taken: Vec<NotTaken>,
}

/// Where it is counted how often a conditional jump was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// As often as the block behind it ran.
    BlockBehind,
    /// As often as its own block ran, less its target.
    AllButTarget,
    /// By a counter of its own.
    Counter(u32),
}

impl ModuleBlocks {
    /// The block that begins at `address`.
    pub fn at(&self, address: u64) -> Option<&Block> {
        let found = self
            .blocks
            .binary_search_by_key(&address, |block| block.start);
        found.ok().map(|index| &self.blocks[index])
    }

    /// Fills in the counts: `count` gives what a counter stands at.
    pub fn fill(&mut self, counters: &BlockCounters, count: impl Fn(u32) -> u64) {
        for (number, block) in (counters.first..).zip(&mut self.blocks) {
            block.executions = count(number);
        }
        let mut kinds = counters.not_taken.iter();
        for index in 0..self.blocks.len() {
            let block = self.blocks[index];
            let Ending::Branch(target) = block.ending else {
                continue;
            };
            let of = |address: u64| self.at(address).map_or(0, |other| other.executions);
            let not_taken = match kinds.next() {
                None => 0,
                Some(NotTaken::BlockBehind) => of(block.end()),
                Some(NotTaken::AllButTarget) => block.executions.saturating_sub(of(target)),
                Some(NotTaken::Counter(number)) => count(*number),
            };
            // A thread may be between the two counters.
            self.blocks[index].not_taken = not_taken.min(block.executions);
        }
    }

    /// Adds the counts of the same module in another process or recording. Blocks that only one of them has are kept.
    pub(crate) fn add(&mut self, other: ModuleBlocks) {
        let is_same = |(one, two): (&Block, &Block)| {
            (one.start, one.bytes, one.function) == (two.start, two.bytes, two.function)
        };
        let same = self.blocks.len() == other.blocks.len()
            && self.blocks.iter().zip(&other.blocks).all(is_same);
        if same {
            for (one, two) in self.blocks.iter_mut().zip(&other.blocks) {
                one.add(two);
            }
            return;
        }
        let ours = std::mem::take(&mut self.blocks);
        let mut all: Vec<Block> = ours.into_iter().chain(other.blocks).collect();
        all.sort_by_key(|block| (block.start, std::cmp::Reverse(block.bytes)));
        for block in all {
            match self.blocks.last_mut() {
                // Planned apart at different times: the longer one has both's executions.
                Some(last) if last.start == block.start => last.add(&block),
                _ => self.blocks.push(block),
            }
        }
    }
}

impl Block {
    fn add(&mut self, other: &Block) {
        self.executions = self.executions.saturating_add(other.executions);
        self.not_taken = self.not_taken.saturating_add(other.not_taken);
        self.cost = self.cost.max(other.cost);
    }
}

/// What one block takes at least.
const LEAST_BYTES: usize = 6;

/// Addresses are told from the end of the block before, targets from the block's own end.
pub(crate) fn encode(module: &ModuleBlocks, out: &mut Encoder) {
    out.number(module.module.into());
    out.number(module.blocks.len() as u64);
    let (mut function, mut end) = (0u64, 0u64);
    for block in &module.blocks {
        out.difference(block.function.into(), function);
        out.difference(block.start, end);
        out.number(block.bytes.into());
        out.number(block.instructions.into());
        out.byte(block.ending.number());
        (function, end) = (block.function.into(), block.end());
        if let Some(target) = block.ending.target() {
            out.difference(target, end);
        }
        out.number(block.executions);
        if let Ending::Branch(_) = block.ending {
            out.number(block.not_taken);
        }
    }
}

pub(crate) fn decode(input: &mut Decoder) -> Result<ModuleBlocks, ReadError> {
    let module = input.number32()?;
    let (mut function, mut end) = (0u64, 0u64);
    let blocks = input.list(LEAST_BYTES, |input| {
        function = input.difference(function)?;
        let mut block = Block {
            function: u32::try_from(function)
                .map(FuncId)
                .map_err(|_| ReadError::Corrupt("a block is in a function that does not exist"))?,
            start: input.difference(end)?,
            bytes: input.number32()?,
            instructions: input.number32()?,
            ..Block::default()
        };
        end = block.end();
        let ending = input.byte()?;
        block.ending = match ending {
            0 => Ending::Falls,
            1 => Ending::Jump(input.difference(end)?),
            2 => Ending::Branch(input.difference(end)?),
            3 => Ending::Computed,
            4 => Ending::Return,
            5 => Ending::Call(input.difference(end)?),
            6 => Ending::CallComputed,
            7 => Ending::SystemCall,
            8 => Ending::Stop,
            _ => return Err(ReadError::Corrupt("a block ends in an unknown way")),
        };
        block.executions = input.number()?;
        if let Ending::Branch(_) = block.ending {
            block.not_taken = input.number()?;
        }
        Ok(block)
    })?;
    Ok(ModuleBlocks { module, blocks })
}

/// The model's name, and each block's cost.
pub(crate) fn encode_costs(name: &str, modules: &[ModuleBlocks], out: &mut Encoder) {
    out.text(name);
    for module in modules {
        for block in &module.blocks {
            out.number(block.cost.into());
        }
    }
}

pub(crate) fn decode_costs(
    input: &mut Decoder,
    modules: &mut [ModuleBlocks],
) -> Result<String, ReadError> {
    let name = input.text()?;
    for module in modules {
        for block in &mut module.blocks {
            block.cost = input.number32()?;
        }
    }
    Ok(name)
}

pub(crate) fn encode_counters(counters: &BlockCounters, out: &mut Encoder) {
    out.number(counters.first.into());
    out.number(counters.not_taken.len() as u64);
    for kind in &counters.not_taken {
        match kind {
            NotTaken::BlockBehind => out.number(0),
            NotTaken::AllButTarget => out.number(1),
            NotTaken::Counter(number) => out.number(u64::from(*number) + 2),
        }
    }
}

pub(crate) fn decode_counters(input: &mut Decoder) -> Result<BlockCounters, ReadError> {
    Ok(BlockCounters {
        first: input.number32()?,
        not_taken: input.list(1, |input| {
            Ok(match input.number()? {
                0 => NotTaken::BlockBehind,
                1 => NotTaken::AllButTarget,
                number => NotTaken::Counter(
                    u32::try_from(number - 2)
                        .map_err(|_| ReadError::Corrupt("a branch has no such counter"))?,
                ),
            })
        })?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(start: u64, bytes: u32, ending: Ending) -> Block {
        Block {
            start,
            bytes,
            instructions: 1,
            ending,
            ..Block::default()
        }
    }

    #[test]
    fn branches_are_told_by_their_neighbours_or_by_counters_of_their_own() {
        let mut module = ModuleBlocks {
            module: 0,
            blocks: vec![
                block(0x10, 2, Ending::Branch(0x40)),
                block(0x12, 2, Ending::Branch(0x20)),
                block(0x14, 2, Ending::Branch(0x10)),
                block(0x20, 1, Ending::Return),
            ],
        };
        let counters = BlockCounters {
            first: 100,
            not_taken: vec![
                NotTaken::BlockBehind,
                NotTaken::AllButTarget,
                NotTaken::Counter(200),
            ],
        };
        module.fill(&counters, |number| match number {
            100 => 50,
            101 => 40,
            102 => 30,
            103 => 25,
            200 => 7,
            _ => 0,
        });
        let told: Vec<(u64, u64, u64)> = module
            .blocks
            .iter()
            .map(|b| (b.executions, b.not_taken, b.taken()))
            .collect();
        assert_eq!(told, [(50, 40, 10), (40, 15, 25), (30, 7, 23), (25, 0, 0)]);
    }

    #[test]
    fn counts_of_the_same_module_are_added_and_blocks_of_one_are_kept() {
        let with = |starts: &[u64], executions| ModuleBlocks {
            module: 0,
            blocks: starts
                .iter()
                .map(|&start| Block {
                    executions,
                    ..block(start, 4, Ending::Falls)
                })
                .collect(),
        };
        let sums = |module: &ModuleBlocks| -> Vec<(u64, u64)> {
            let blocks = module.blocks.iter();
            blocks.map(|b| (b.start, b.executions)).collect()
        };
        let mut all = with(&[1, 5], 2);
        all.add(with(&[1, 5], 3));
        assert_eq!(sums(&all), [(1, 5), (5, 5)]);
        all.add(with(&[5, 9], 10));
        assert_eq!(sums(&all), [(1, 5), (5, 15), (9, 10)]);
    }
}
