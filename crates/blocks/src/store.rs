//! Plans as bytes: they depend on the file alone, and are kept with its module (`thalweg_symbols::store`).

use thalweg_patch::Skipped;
use thalweg_symbols::store::{In, Out};

use crate::cave::{Cave, GIVE_FLAGS, Goal, Item, KEEP_FLAGS, WHOSE};
use crate::plan::{Block, BlockPlan, Ending, GroupPlan, NotTaken};
use crate::points::{Form, Point};

/// Code of ours that is the same everywhere.
const RAW: [&[u8]; 3] = [WHOSE, KEEP_FLAGS, GIVE_FLAGS];

impl BlockPlan {
    pub fn store(&self, out: &mut Out) {
        let BlockPlan {
            functions,
            skipped,
            blocks,
            counters,
            groups,
            len,
            flags_kept,
            parents,
        } = self;
        out.list(functions, |out, &function| out.size(function));
        out.list(skipped, |out, skipped| skipped.store(out));
        let mut last = 0;
        out.list(blocks, |out, block| {
            store_block(out, block, last);
            last = block.end;
        });
        out.number((*counters).into());
        out.list(groups, |out, group| group.store(out));
        out.number(*len);
        out.number((*flags_kept).into());
        let mut parents: Vec<(usize, usize)> = parents.iter().map(|(&a, &b)| (a, b)).collect();
        parents.sort_unstable();
        out.list(&parents, |out, &(fragment, function)| {
            out.size(fragment);
            out.size(function);
        });
    }

    /// What [`BlockPlan::store`] was given, for a module with so many functions.
    pub fn restore(stored: &mut In<'_>, functions: usize) -> Option<BlockPlan> {
        let index = |i: &mut In<'_>| i.size().filter(|&index| index < functions);
        let of_module = stored.list(index)?;
        let skipped = stored.list(|i| Skipped::restore(i, functions))?;
        let mut last = 0;
        let blocks = stored.list(|i| {
            let block = restore_block(i, last)?;
            last = block.end;
            Some(block)
        })?;
        let counters = small(stored)?;
        let groups = stored.list(|i| GroupPlan::restore(i, functions, counters))?;
        Some(BlockPlan {
            functions: of_module,
            skipped,
            blocks,
            counters,
            groups,
            len: stored.number()?,
            flags_kept: small(stored)?,
            parents: stored
                .list(|i| Some((index(i)?, index(i)?)))?
                .into_iter()
                .collect(),
        })
    }
}

fn small(stored: &mut In<'_>) -> Option<u32> {
    u32::try_from(stored.number()?).ok()
}

fn store_block(out: &mut Out, block: &Block, last: u64) {
    out.step(last, block.start);
    out.step(block.start, block.end);
    out.number(block.instructions.into());
    let (kind, to) = match block.ending {
        Ending::Falls => (0, None),
        Ending::Jump(to) => (1, Some(to)),
        Ending::Branch(to) => (2, Some(to)),
        Ending::Computed => (3, None),
        Ending::Return => (4, None),
        Ending::Call(to) => (5, Some(to)),
        Ending::CallComputed => (6, None),
        Ending::SystemCall => (7, None),
        Ending::Stop => (8, None),
    };
    out.number(kind);
    if let Some(to) = to {
        out.step(block.end, to);
    }
    out.number(match block.not_taken {
        NotTaken::NoBranch => 0,
        NotTaken::BlockBehind => 1,
        NotTaken::AllButTarget => 2,
        NotTaken::Counter(number) => 3 + u64::from(number),
    });
}

fn restore_block(stored: &mut In<'_>, last: u64) -> Option<Block> {
    let start = stored.step(last)?;
    let end = stored.step(start)?;
    let instructions = small(stored)?;
    let kind = stored.number()?;
    let mut to = || stored.step(end);
    let ending = match kind {
        0 => Ending::Falls,
        1 => Ending::Jump(to()?),
        2 => Ending::Branch(to()?),
        3 => Ending::Computed,
        4 => Ending::Return,
        5 => Ending::Call(to()?),
        6 => Ending::CallComputed,
        7 => Ending::SystemCall,
        8 => Ending::Stop,
        _ => return None,
    };
    let not_taken = match stored.number()? {
        0 => NotTaken::NoBranch,
        1 => NotTaken::BlockBehind,
        2 => NotTaken::AllButTarget,
        number => NotTaken::Counter(u32::try_from(number - 3).ok()?),
    };
    (start <= end).then_some(Block {
        start,
        end,
        instructions,
        ending,
        not_taken,
    })
}

impl GroupPlan {
    fn store(&self, out: &mut Out) {
        let GroupPlan {
            offset,
            cave,
            points,
            entries,
            calls,
            owner,
        } = self;
        out.number(*offset);
        out.list(&cave.labels, |out, &label| out.number(label));
        let mut last = 0;
        let items: Vec<(&Item, u8)> = cave.items.iter().zip(cave.sizes.iter().copied()).collect();
        out.list(&items, |out, (item, size)| {
            out.0.push(*size);
            store_item(out, item, &mut last);
        });
        out.number(cave.len());
        let mut last = 0;
        out.list(points, |out, point| {
            out.step(last, point.at);
            last = point.at;
            out.size(point.label);
            match point.form {
                Form::Near { over_leader } => out.number(over_leader.into()),
                Form::Short { springboard } => {
                    out.number(2);
                    out.step(point.at, springboard);
                }
            }
        });
        out.list(entries, |out, &(at, label)| {
            out.number(at);
            out.size(label);
        });
        out.list(calls, |out, &(at, to)| {
            out.number(at);
            out.step(at, to);
        });
        out.size(*owner);
    }

    fn restore(stored: &mut In<'_>, functions: usize, counters: u32) -> Option<GroupPlan> {
        let offset = stored.number()?;
        let labels = stored.list(In::number)?;
        let of_cave = Of {
            labels: labels.len(),
            counters,
        };
        let mut last = 0;
        let items = stored.list(|i| Some((i.byte()?, restore_item(i, &mut last, &of_cave)?)))?;
        let (sizes, items) = items.into_iter().unzip();
        let cave = Cave::restored(items, sizes, labels, stored.number()?);
        let mut last = 0;
        Some(GroupPlan {
            offset,
            cave,
            points: stored.list(|i| {
                let at = i.step(last)?;
                last = at;
                Some(Point {
                    at,
                    label: of_cave.label(i)?,
                    form: match i.number()? {
                        0 => Form::Near { over_leader: false },
                        1 => Form::Near { over_leader: true },
                        2 => Form::Short {
                            springboard: i.step(at)?,
                        },
                        _ => return None,
                    },
                })
            })?,
            entries: stored.list(|i| Some((i.number()?, of_cave.label(i)?)))?,
            calls: stored.list(|i| {
                let at = i.number()?;
                Some((at, i.step(at)?))
            })?,
            owner: stored.size().filter(|&owner| owner < functions)?,
        })
    }
}

/// How many labels and counters there are.
struct Of {
    labels: usize,
    counters: u32,
}

impl Of {
    fn label(&self, stored: &mut In<'_>) -> Option<usize> {
        stored.size().filter(|&label| label < self.labels)
    }

    fn goal(&self, stored: &mut In<'_>, last: u64) -> Option<Goal> {
        Some(match stored.byte()? {
            0 => Goal::Label(self.label(stored)?),
            1 => Goal::Home(stored.step(last)?),
            2 => Goal::Function(stored.step(last)?),
            _ => return None,
        })
    }
}

fn store_goal(out: &mut Out, goal: Goal, last: u64) {
    match goal {
        Goal::Label(label) => {
            out.0.push(0);
            out.size(label);
        }
        Goal::Home(at) => {
            out.0.push(1);
            out.step(last, at);
        }
        Goal::Function(at) => {
            out.0.push(2);
            out.step(last, at);
        }
    }
}

/// `last`: the place at home of the item before.
fn store_item(out: &mut Out, item: &Item, last: &mut u64) {
    let mut place = |out: &mut Out, at: u64| {
        out.step(*last, at);
        *last = at;
    };
    match *item {
        Item::Label(label) => {
            out.0.push(0);
            out.size(label);
        }
        Item::Copy { at, len } => {
            out.0.push(1);
            place(out, at);
            out.0.push(len);
        }
        Item::Nothing { home } => {
            out.0.push(2);
            place(out, home);
        }
        Item::Jump { to, home } => {
            out.0.push(3);
            place(out, home);
            store_goal(out, to, home);
        }
        Item::Glue { to, home } => {
            out.0.push(4);
            out.optional(home, &mut place);
            store_goal(out, to, *last);
        }
        Item::Branch {
            condition,
            to,
            home,
        } => {
            out.0.extend([5, condition]);
            out.optional(home, &mut place);
            store_goal(out, to, *last);
        }
        Item::CountBranch { opcode, to, home } => {
            out.0.extend([6, opcode]);
            place(out, home);
            store_goal(out, to, home);
        }
        Item::Count {
            counter,
            keeps_flags,
            home,
        } => {
            out.0.push(7);
            out.number(counter.into());
            out.flag(keeps_flags);
            place(out, home);
        }
        Item::CallFrom { at, len } => {
            out.0.push(8);
            place(out, at);
            out.0.push(len);
        }
        Item::Raw(bytes) => {
            let known = RAW.iter().position(|raw| *raw == bytes);
            out.0.push(9);
            out.size(known.unwrap_or(RAW.len()));
        }
        Item::Claim => out.0.push(10),
    }
}

fn restore_item(stored: &mut In<'_>, last: &mut u64, of: &Of) -> Option<Item> {
    let kind = stored.byte()?;
    let mut place = |stored: &mut In<'_>| {
        *last = stored.step(*last)?;
        Some(*last)
    };
    Some(match kind {
        0 => Item::Label(of.label(stored)?),
        1 => Item::Copy {
            at: place(stored)?,
            len: stored.byte()?,
        },
        2 => Item::Nothing {
            home: place(stored)?,
        },
        3 => {
            let home = place(stored)?;
            let to = of.goal(stored, home)?;
            Item::Jump { to, home }
        }
        4 => {
            let home = stored.optional(&mut place)?;
            let to = of.goal(stored, *last)?;
            Item::Glue { to, home }
        }
        5 => {
            let condition = stored.byte()?;
            let home = stored.optional(&mut place)?;
            let to = of.goal(stored, *last)?;
            Item::Branch {
                condition,
                to,
                home,
            }
        }
        6 => {
            let opcode = stored.byte()?;
            let home = place(stored)?;
            let to = of.goal(stored, home)?;
            Item::CountBranch { opcode, to, home }
        }
        7 => Item::Count {
            counter: small(stored).filter(|&counter| counter < of.counters)?,
            keeps_flags: stored.flag()?,
            home: place(stored)?,
        },
        8 => Item::CallFrom {
            at: place(stored)?,
            len: stored.byte()?,
        },
        9 => Item::Raw(RAW.get(stored.size()?)?),
        10 => Item::Claim,
        _ => return None,
    })
}
