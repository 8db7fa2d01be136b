//! The items of a cave: copies of instructions, counters, and jumps between them and home.

use std::collections::HashMap;

use thalweg_patch::code::{Flow, Image, condition, count_branch};

use crate::graph::{Graph, Next};
use crate::points::JUMP;

/// The length of a counter's instruction.
pub const COUNT_BYTES: usize = 9;

/// Makes the code that depends on how threads find their counters.
pub trait Encoder {
    /// Adds one to a counter; may change the arithmetic flags, but not the carry.
    fn count(&self, counter: u32) -> [u8; COUNT_BYTES];

    /// Where the code is that finds out whose thread it is. It is called, keeps all registers, and returns.
    fn claim(&self) -> u64;
}

/// Where a plan is to be realised.
pub struct Placement<'a> {
    /// What the loader added to the module's addresses.
    pub bias: u64,
    /// Where the cave will be.
    pub base: u64,
    pub encoder: &'a dyn Encoder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    Label(usize),
    /// A place in the module, which stays there.
    Home(u64),
    /// The same, or its cave where it is the entry of a function that has one.
    Function(u64),
}

#[derive(Clone, Debug)]
pub(crate) enum Item {
    Label(usize),
    Copy {
        at: u64,
        len: u8,
    },
    /// An instruction that does nothing has no copy; whoever is at it goes on here.
    Nothing {
        home: u64,
    },
    Jump {
        to: Goal,
        home: u64,
    },
    /// A jump that the function has not; `home`: whoever is at it may go on there.
    Glue {
        to: Goal,
        home: Option<u64>,
    },
    /// Without `home` it is part of a check.
    Branch {
        condition: u8,
        to: Goal,
        home: Option<u64>,
    },
    /// `jrcxz`, `loop`.
    CountBranch {
        opcode: u8,
        to: Goal,
        home: u64,
    },
    Count {
        counter: u32,
        keeps_flags: bool,
        home: u64,
    },
    /// A call that returns to its place at home: `call $+5`, and the address it pushed becomes that one; then a jump.
    CallFrom {
        at: u64,
        len: u8,
    },
    /// Code of ours that a thread does not stop in.
    Raw(&'static [u8]),
    Claim,
}

const NOT_EQUAL: u8 = 5;

/// `lea rsp, [rsp-128]; push rax; lahf; seto al`
pub(crate) const KEEP_FLAGS: &[u8] = &[0x48, 0x8d, 0x64, 0x24, 0x80, 0x50, 0x9f, 0x0f, 0x90, 0xc0];
/// `add al, 127; sahf; pop rax; lea rsp, [rsp+128]`
pub(crate) const GIVE_FLAGS: &[u8] = &[
    0x04, 0x7f, 0x9e, 0x58, 0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0,
];
/// `push rax; mov rax, fs:[0]; cmp rax, gs:[0]; pop rax`
pub(crate) const WHOSE: &[u8] = &[
    0x50, 0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x65, 0x48, 0x3b, 0x04, 0x25, 0, 0, 0, 0, 0x58,
];

/// Of what pushes a return address.
pub(crate) const PUSH_BYTES: u8 = 5 + 7 + 8;

pub(crate) struct Cave {
    pub items: Vec<Item>,
    pub sizes: Vec<u8>,
    /// Offsets by number.
    pub labels: Vec<u64>,
    len: u64,
}

impl Cave {
    /// One that was stored.
    pub fn restored(items: Vec<Item>, sizes: Vec<u8>, labels: Vec<u64>, len: u64) -> Cave {
        Cave {
            items,
            sizes,
            labels,
            len,
        }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Gives each counter the number that it has in its module.
    pub fn renumber(&mut self, numbers: &[u32]) {
        for item in &mut self.items {
            if let Item::Count { counter, .. } = item {
                *counter = numbers[*counter as usize];
            }
        }
    }
}

/// Makes the items of one group.
pub(crate) struct Writer<'a, 'm> {
    image: &'a Image<'m>,
    graph: &'a Graph,
    live: &'a [u32],
    items: Vec<Item>,
    /// Labels of the code that asks whose thread it is, by block.
    checked: HashMap<usize, usize>,
    labels: usize,
    /// What is out of the way: label, and where it goes back.
    slow: Vec<(usize, usize)>,
}

impl<'a, 'm> Writer<'a, 'm> {
    pub fn new(image: &'a Image<'m>, graph: &'a Graph, live: &'a [u32]) -> Self {
        Writer {
            image,
            graph,
            live,
            items: Vec::new(),
            checked: HashMap::new(),
            labels: graph.blocks.len(),
            slow: Vec::new(),
        }
    }

    fn label(&mut self) -> usize {
        self.labels += 1;
        self.labels - 1
    }

    pub fn jump_to_block(&mut self, block: usize, home: u64) {
        self.items.push(Item::Glue {
            to: Goal::Label(block),
            home: Some(home),
        });
    }

    /// Asks whose thread it is, for whoever comes from outside.
    pub fn checked_entry(&mut self, block: usize, keeps_flags: bool) {
        let label = self.label();
        self.checked.insert(block, label);
        self.items.push(Item::Label(label));
        if keeps_flags {
            return self.check();
        }
        let slow = self.label();
        self.items.push(Item::Raw(WHOSE));
        self.items.push(Item::Branch {
            condition: NOT_EQUAL,
            to: Goal::Label(slow),
            home: None,
        });
        self.slow.push((slow, block));
    }

    /// The same where flags and red zone may mean something.
    pub fn check(&mut self) {
        let (slow, back) = (self.label(), self.label());
        self.items.push(Item::Raw(KEEP_FLAGS));
        self.items.push(Item::Raw(WHOSE));
        self.items.push(Item::Branch {
            condition: NOT_EQUAL,
            to: Goal::Label(slow),
            home: None,
        });
        self.items.push(Item::Label(back));
        self.items.push(Item::Raw(GIVE_FLAGS));
        self.slow.push((slow, back));
    }

    pub fn begin(&mut self, block: usize) {
        self.items.push(Item::Label(block));
    }

    /// The block's instructions, with its counter before the one at index `counted`; up to what runs at home.
    pub fn body(&mut self, block: usize, counted: usize, keeps_flags: bool) {
        let graph = self.graph;
        let extent = &graph.blocks[block];
        for at in extent.first..=extent.last {
            let (insn, instruction) = &graph.insns[at];
            if at == counted {
                let counter = block as u32;
                self.items.push(Item::Count {
                    counter,
                    keeps_flags,
                    home: insn.addr,
                });
            }
            if extent.home_from == Some(at) {
                let home = Some(insn.addr);
                self.items.push(Item::Glue {
                    to: Goal::Home(insn.addr),
                    home,
                });
                return;
            }
            if extent.calls_from_cave && at == extent.last {
                self.items.push(Item::CallFrom {
                    at: insn.addr,
                    len: insn.len,
                });
                return;
            }
            let nothing = insn.nop || instruction.mnemonic() == iced_x86::Mnemonic::Endbr64;
            if nothing {
                self.items.push(Item::Nothing { home: insn.addr });
            } else if insn.jump_target().is_none() {
                self.items.push(Item::Copy {
                    at: insn.addr,
                    len: insn.len,
                });
            }
        }
    }

    /// The block's jump. `edge`: the counter of the way straight on.
    pub fn leave(&mut self, block: usize, edge: Option<u32>) {
        let extent = &self.graph.blocks[block];
        if extent.home_from.is_some() || extent.calls_from_cave {
            return;
        }
        let insn = self.graph.insns[extent.last].0;
        let goal = |next: Next| match next {
            Next::Block(block) => Goal::Label(block),
            Next::Outside(address) => Goal::Function(address),
        };
        let home = insn.addr;
        if let Some(to) = extent.jumps.map(goal) {
            let bytes = self
                .image
                .code_range(insn.addr, insn.end())
                .unwrap_or_default();
            let item = match insn.flow {
                Flow::Branch(_) => Item::Branch {
                    condition: condition(bytes).unwrap_or(0),
                    to,
                    home: Some(home),
                },
                Flow::CountBranch(_) => {
                    let opcode = count_branch(bytes).and_then(|bytes| bytes.first().copied());
                    Item::CountBranch {
                        opcode: opcode.unwrap_or(0xe3),
                        to,
                        home,
                    }
                }
                _ => Item::Jump { to, home },
            };
            self.items.push(item);
        }
        let Some(falls) = extent.falls else { return };
        let home = insn.end();
        if let Some(counter) = edge {
            let live = match falls {
                Next::Block(next) => self.live[self.graph.blocks[next].first],
                Next::Outside(_) => u32::MAX,
            };
            let keeps_flags = live & crate::flags::COUNTED != 0;
            self.items.push(Item::Count {
                counter,
                keeps_flags,
                home,
            });
        }
        let follows = falls == Next::Block(block + 1);
        if !follows {
            self.items.push(Item::Glue {
                to: goal(falls),
                home: Some(home),
            });
        }
    }

    /// The cave, and the labels of checked entries by block.
    pub fn finish(mut self) -> (Cave, HashMap<usize, usize>) {
        for (label, back) in std::mem::take(&mut self.slow) {
            self.items.push(Item::Label(label));
            self.items.push(Item::Claim);
            self.items.push(Item::Glue {
                to: Goal::Label(back),
                home: None,
            });
        }
        (settle(self.items, self.labels), self.checked)
    }
}

/// Chooses short jumps where they reach.
fn settle(items: Vec<Item>, labels: usize) -> Cave {
    let least = |item: &Item| -> u8 {
        match item {
            Item::Label(_) | Item::Nothing { .. } => 0,
            Item::Copy { len, .. } => *len,
            Item::Jump {
                to: Goal::Label(_), ..
            }
            | Item::Glue {
                to: Goal::Label(_), ..
            }
            | Item::Branch {
                to: Goal::Label(_), ..
            } => 2,
            Item::Jump { .. } | Item::Glue { .. } | Item::Claim => 5,
            Item::Branch { .. } => 6,
            Item::CountBranch { .. } => 9,
            Item::CallFrom { len, .. } => PUSH_BYTES + (*len).max(JUMP as u8),
            Item::Count {
                keeps_flags: false, ..
            } => COUNT_BYTES as u8,
            Item::Count { .. } => (COUNT_BYTES + KEEP_FLAGS.len() + GIVE_FLAGS.len()) as u8,
            Item::Raw(bytes) => bytes.len() as u8,
        }
    };
    let mut cave = Cave {
        sizes: items.iter().map(least).collect(),
        labels: vec![0; labels],
        items,
        len: 0,
    };
    loop {
        let mut at = 0;
        for (item, size) in cave.items.iter().zip(&cave.sizes) {
            if let Item::Label(label) = item {
                cave.labels[*label] = at;
            }
            at += u64::from(*size);
        }
        cave.len = at;
        let (mut end, mut grew) = (0, false);
        for (item, size) in cave.items.iter().zip(&mut cave.sizes) {
            end += u64::from(*size);
            let (long, label) = match item {
                Item::Jump {
                    to: Goal::Label(label),
                    ..
                }
                | Item::Glue {
                    to: Goal::Label(label),
                    ..
                } => (5, label),
                Item::Branch {
                    to: Goal::Label(label),
                    ..
                } => (6, label),
                _ => continue,
            };
            let way = cave.labels[*label].wrapping_sub(end) as i64;
            if *size == 2 && i8::try_from(way).is_err() {
                *size = long;
                grew = true;
            }
        }
        if !grew {
            return cave;
        }
    }
}
