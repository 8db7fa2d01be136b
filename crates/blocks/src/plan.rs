//! From a module to the plan of its cave: each group by itself, all of it or nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{InstructionInfoFactory, Mnemonic};
use thalweg_patch::code::{Flow, Image, Targets, collect, read_before_set};
use thalweg_patch::{SkipReason, Skipped};
use thalweg_symbols::{FunctionKind, Module};

use crate::cave::{Cave, Writer};
use crate::flags::{self, COUNTED, Outside};
use crate::graph::{BasicBlock, Graph, Next, Tight};
use crate::group::{Entered, Group, groups};
use crate::points::{self, Common, Point};
use crate::tables::{Constants, Known, Resolver, Unknown};
use crate::walk::{Code, Walk};

/// A run of instructions that is entered at its start and left at its end. Addresses are the module's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub start: u64,
    pub end: u64,
    pub instructions: u32,
    pub ending: Ending,
    pub not_taken: NotTaken,
}

/// How a block is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Into what follows it.
    Falls,
    Jump(u64),
    /// Conditional.
    Branch(u64),
    /// A computed jump, in the function or out of it.
    Computed,
    Return,
    Call(u64),
    CallComputed,
    SystemCall,
    /// Nothing follows.
    Stop,
}

/// Where it is counted how often a conditional jump was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// It ends with none.
    NoBranch,
    /// As often as the block behind it ran.
    BlockBehind,
    /// As often as it ran itself, less its target.
    AllButTarget,
    /// By a counter of its own.
    Counter(u32),
}

/// What becomes of one module.
#[derive(Default)]
pub struct BlockPlan {
    /// Functions whose blocks are counted, as indices in `module.functions`, sorted. Fragments are not among them.
    pub functions: Vec<usize>,
    /// Selected ones that are not.
    pub skipped: Vec<Skipped>,
    /// In address order. Block `n` has counter `n`.
    pub blocks: Vec<Block>,
    /// Of blocks and of branches.
    pub counters: u32,
    pub(crate) groups: Vec<GroupPlan>,
    /// Bytes that the cave needs.
    pub(crate) len: u64,
    /// How many blocks have to keep the flags while they are counted.
    pub flags_kept: u32,
    /// Fragments, and a function of the same group for each.
    pub(crate) parents: HashMap<usize, usize>,
}

impl BlockPlan {
    pub fn cave_len(&self) -> u64 {
        self.len
    }

    /// All functions and fragments whose code is moved.
    pub fn moved(&self) -> impl Iterator<Item = usize> + '_ {
        self.functions
            .iter()
            .copied()
            .chain(self.parents.keys().copied())
    }

    /// A function that goes on in this fragment.
    pub fn owner_of(&self, fragment: usize) -> Option<usize> {
        self.parents.get(&fragment).copied()
    }
}

/// One group's cave and the jumps to it.
pub(crate) struct GroupPlan {
    /// Offset of its code in the cave.
    pub offset: u64,
    pub cave: Cave,
    pub points: Vec<Point>,
    /// Entry -> label behind the check whose thread it is.
    pub entries: Vec<(u64, usize)>,
    /// Displacements of direct calls at home, and what they call.
    pub calls: Vec<(u64, u64)>,
    /// Of what patches belong to.
    pub owner: usize,
}

const ALIGNMENT: u64 = 16;

/// What somebody else changes in a module.
#[derive(Default)]
pub struct Others {
    /// Functions that have patches of theirs, by index in `module.functions`.
    pub functions: Vec<bool>,
    /// All bytes of those patches.
    pub bytes: Vec<(u64, u64)>,
    /// Every other module is counted as this one is: what returns from a call through a linkage table has been asked whose thread it is.
    pub all_ask: bool,
}

/// Plans the functions of `module` whose flag in `selected` is set. With `checks` it is asked at entries from outside whose
/// thread it is.
pub fn plan(module: &Module, selected: &[bool], others: &Others, checks: bool) -> BlockPlan {
    let touched = &others.functions;
    let image = Image::new(module);
    let targets = collect(&image);
    let groups = groups(&image);
    let mut planner = Planner {
        entered: Entered::new(&image, &groups),
        constants: Constants::of(&image),
        common: Common::of(&targets, &others.bytes),
        image: &image,
        targets,
        checks,
        info: InstructionInfoFactory::new(),
        reads_flags: RefCell::default(),
        plan: BlockPlan::default(),
        numbers: Vec::new(),
    };
    let is = |flags: &[bool], index: usize| flags.get(index).copied().unwrap_or(false);
    let mut unmoved: HashSet<u64> = HashSet::new();
    let mut wanted = Vec::new();
    for group in groups {
        let kind = |&index: &usize| module.functions[index].kind;
        let whole = |index: &usize| kind(index) != FunctionKind::Fragment;
        let reason = group.members.iter().find_map(|index| match kind(index) {
            FunctionKind::Plt => Some(SkipReason::Plt),
            FunctionKind::EntryCode => Some(SkipReason::EntryCode),
            FunctionKind::IfuncResolver => Some(SkipReason::Untouchable(
                "runs before its module is relocated",
            )),
            FunctionKind::Untouchable(why) => Some(SkipReason::Untouchable(why)),
            _ if is(touched, *index) => Some(SkipReason::Untouchable("has a probe of its own")),
            FunctionKind::Normal | FunctionKind::Fragment => None,
        });
        let asked = group.members.iter().any(|&index| is(selected, index));
        let all = group
            .members
            .iter()
            .filter(|index| whole(index))
            .all(|&index| is(selected, index));
        match reason {
            None if asked && all => wanted.push(group),
            reason => {
                if !(others.all_ask && reason == Some(SkipReason::Plt)) {
                    unmoved.extend(&group.entries);
                }
                let reason = reason.unwrap_or(SkipReason::NotSelected);
                let skip = group
                    .members
                    .iter()
                    .copied()
                    .filter(|&i| is(selected, i) && whole(&i));
                let skip = skip.map(|function| Skipped {
                    function,
                    reason: reason.clone(),
                });
                planner.plan.skipped.extend(skip);
            }
        }
    }
    let mut left = Vec::new();
    for group in wanted {
        if let Err(failure) = planner.add(&group, &unmoved, &Tight::default()) {
            left.push((group, failure));
        }
    }
    // Others have left room meanwhile.
    for (group, failure) in left {
        let reason = match failure {
            Failure::NoRoom(_) => match planner.add_tight(&group, &unmoved) {
                Ok(()) => continue,
                Err(reason) => reason,
            },
            Failure::Other(reason) => reason,
        };
        let whole = |&&index: &&usize| module.functions[index].kind != FunctionKind::Fragment;
        let skip = group.members.iter().filter(whole);
        let skip = skip.map(|&function| Skipped {
            function,
            reason: reason.clone(),
        });
        planner.plan.skipped.extend(skip);
    }
    planner.finish()
}

struct Planner<'i, 'm> {
    image: &'i Image<'m>,
    targets: Targets,
    constants: Constants,
    entered: Entered,
    common: Common,
    checks: bool,
    info: InstructionInfoFactory,
    /// Whether code outside of a group reads flags that it has not set, as far as that was asked.
    reads_flags: RefCell<HashMap<u64, bool>>,
    plan: BlockPlan,
    /// For each group the counters that its code uses, in the order of their use.
    numbers: Vec<(u64, Vec<Block>, u32)>,
}

/// Why a group is not planned, so far.
enum Failure {
    /// At these places.
    NoRoom(Vec<u64>),
    Other(SkipReason),
}

/// How often room is looked for.
const MOST_ATTEMPTS: usize = 12;

impl Planner<'_, '_> {
    /// Makes room where there is none.
    fn add_tight(&mut self, group: &Group, unmoved: &HashSet<u64>) -> Result<(), SkipReason> {
        let mut tight = Tight::default();
        for _ in 0..MOST_ATTEMPTS {
            match self.add(group, unmoved, &tight) {
                Ok(()) => return Ok(()),
                Err(Failure::Other(reason)) => return Err(reason),
                Err(Failure::NoRoom(missing)) => {
                    let graph = self.graph(group, &tight)?;
                    for at in missing {
                        if !graph.make_room(at, &mut tight) {
                            return Err(points::no_room(group, at));
                        }
                    }
                }
            }
        }
        Err(points::no_room(group, group.ranges[0].0))
    }

    fn add(&mut self, group: &Group, unmoved: &HashSet<u64>, tight: &Tight) -> Result<(), Failure> {
        let graph = self.graph(group, tight).map_err(Failure::Other)?;
        let image = self.image;
        let targets = &self.targets;
        let known = &self.reads_flags;
        let reads = |address: u64| {
            if let Some(&reads) = known.borrow().get(&address) {
                return reads;
            }
            let function = image
                .function_at(address)
                .map(|index| &image.module.functions[index]);
            let reads = match function {
                Some(f) if f.kind == FunctionKind::Plt => false,
                Some(f) if f.start == address => read_before_set(image, f.start, f.end),
                // Code that is joined elsewhere, or of nobody.
                _ => true,
            };
            known.borrow_mut().insert(address, reads);
            reads
        };
        let returns_flags = group
            .entries
            .iter()
            .any(|at| targets.flags_read_after.contains(at));
        let live = flags::live(
            &graph,
            &Outside {
                reads: &reads,
                returns_flags,
            },
        );
        let mut writer = Writer::new(image, &graph, &live);
        let ways = graph.ways_in(group);
        let (mut blocks, mut counters, mut kept) = (Vec::new(), graph.blocks.len() as u32, 0);
        for (index, block) in graph.blocks.iter().enumerate() {
            let first = graph.insns[block.first].0;
            let is_entry = group.entries.contains(&first.addr);
            let previous_falls =
                index > 0 && graph.blocks[index - 1].falls == Some(Next::Block(index));
            if is_entry && self.checks {
                let before = index.checked_sub(1).map(|before| &graph.blocks[before]);
                let returns = |b: &&BasicBlock| b.home_from.is_some() || b.calls_from_cave;
                if previous_falls && before.filter(returns).is_none() {
                    writer.jump_to_block(index, first.addr);
                }
                writer.checked_entry(index, live[block.first] != 0);
            }
            writer.begin(index);
            if self.checks && self.may_be_new_process(&graph, index, unmoved) {
                writer.check();
            }
            let last_before = block.home_from.unwrap_or(block.last);
            let dead = (block.first..=last_before).find(|&at| live[at] & COUNTED == 0);
            kept += u32::from(dead.is_none());
            writer.body(index, dead.unwrap_or(block.first), dead.is_none());
            let (ending, not_taken) = self.ending(&graph, index, &ways, &mut counters);
            let edge = match not_taken {
                NotTaken::Counter(number) => Some(number),
                _ => None,
            };
            writer.leave(index, edge);
            blocks.push(Block {
                start: block.start,
                end: graph.insns[block.last].0.end(),
                instructions: (block.last - block.first + 1) as u32,
                ending,
                not_taken,
            });
        }
        let (cave, checked) = writer.finish();
        let mut wanted: BTreeMap<u64, usize> = BTreeMap::new();
        for &address in group.entries.iter().chain(&graph.entered) {
            let Some(&block) = graph.at.get(&address) else {
                // An entry that is no code.
                continue;
            };
            let first = graph.insns[graph.blocks[block].first].1.mnemonic();
            let skipped = if first == Mnemonic::Endbr64 { 4 } else { 0 };
            let is_entry = group.entries.contains(&address);
            let label = checked
                .get(&block)
                .copied()
                .filter(|_| is_entry)
                .unwrap_or(block);
            let other = wanted.insert(address + skipped, label);
            if other.is_some_and(|other| other != label) {
                return Err(Failure::Other(SkipReason::Overlapping { at: address }));
            }
        }
        let points = points::place(image, targets, group, &graph, &wanted, &mut self.common);
        let points = points.map_err(Failure::NoRoom)?;
        let calls = graph.insns.iter().filter_map(|(insn, _)| match insn.flow {
            Flow::Call(target) if insn.len >= 5 && !tight.from_cave.contains(&insn.addr) => {
                Some((insn.end() - 4, target))
            }
            _ => None,
        });
        let entries = group.entries.iter();
        let entries = entries.filter_map(|at| Some((*at, *graph.at.get(at)?)));
        self.plan.flags_kept += kept;
        self.numbers
            .push((blocks.first().map_or(0, |b| b.start), blocks, counters));
        let whole = |&&index: &&usize| image.module.functions[index].kind != FunctionKind::Fragment;
        self.plan
            .functions
            .extend(group.members.iter().filter(whole));
        if let Some(owner) = group.members.iter().copied().find(|index| whole(&index)) {
            let fragments = group.members.iter().copied().filter(|index| !whole(&index));
            self.plan
                .parents
                .extend(fragments.map(|fragment| (fragment, owner)));
        }
        let plan = GroupPlan {
            offset: self.plan.len,
            points,
            entries: entries.collect(),
            calls: calls.collect(),
            owner: group.members[0],
            cave,
        };
        self.plan.len = (self.plan.len + plan.cave.len()).next_multiple_of(ALIGNMENT);
        self.plan.groups.push(plan);
        Ok(())
    }

    /// The control flow of a group, and the places in it that are entered from outside.
    fn graph(&mut self, group: &Group, tight: &Tight) -> Result<Graph, SkipReason> {
        let walk = Walk {
            image: self.image,
            targets: &self.targets,
            group,
        };
        let mut code = Code::default();
        for &entry in &group.entries {
            walk.follow(&mut code, entry)?;
        }
        let mut hard: Vec<u64> = Vec::new();
        for &(start, end) in &group.ranges {
            hard.extend(self.targets.in_range(start, end));
        }
        let module = self.image.module;
        let is_inner = |at: &u64| {
            self.entered
                .is_inner(module, &self.targets, group.number, *at)
        };
        hard.retain(|at| !is_inner(at));
        let is_certain = |at: &u64| {
            self.targets.jumped_to.contains(at)
                || self.image.module.certain_code.binary_search(at).is_ok()
        };
        for &at in hard.iter().filter(|at| is_certain(at)) {
            walk.follow(&mut code, at)?;
        }
        let mut outside: HashSet<u64> = hard.iter().copied().collect();
        let mut resolved: Vec<(u64, Vec<u64>)> = Vec::new();
        let mut unresolved: BTreeMap<u64, Unknown>;
        loop {
            code.connect(self.image, &resolved);
            unresolved = BTreeMap::new();
            let done: HashSet<u64> = resolved.iter().map(|(at, _)| *at).collect();
            let jumps = code.insns.values().map(|(insn, _)| insn);
            let jumps =
                jumps.filter(|insn| insn.flow == Flow::JumpIndirect && !done.contains(&insn.addr));
            let jumps: Vec<u64> = jumps.map(|insn| insn.addr).collect();
            let mut grew = false;
            let mut known = Known::new();
            for jump in jumps {
                let mut resolver = Resolver {
                    module: self.image.module,
                    constants: &self.constants,
                    group,
                    code: &code,
                    outside: &outside,
                    info: &mut self.info,
                    known: &mut known,
                };
                match resolver.resolve(jump) {
                    Err(unknown) => drop(unresolved.insert(jump, unknown)),
                    Ok(tables) => {
                        let mut all = Vec::new();
                        for table in tables {
                            for target in table.targets {
                                match walk.follow(&mut code, target) {
                                    Ok(()) => all.push(target),
                                    Err(reason) if table.proven || all.is_empty() => {
                                        return Err(reason);
                                    }
                                    // Beyond the table's end.
                                    Err(_) => break,
                                }
                            }
                        }
                        resolved.push((jump, all));
                        grew = true;
                    }
                }
            }
            if !grew {
                break;
            }
        }
        for (jump, unknown) in unresolved {
            let leaves = self.image.module.cfi.cfa_is_rsp_plus_8(jump) == Some(true);
            if !(leaves && unknown == Unknown::Pointer) {
                return Err(SkipReason::UnresolvedJump { at: jump });
            }
        }
        // Whatever else may be entered is patched where it is an instruction for certain, and else left as it is.
        outside.retain(|at| code.insns.contains_key(at) && !group.entries.contains(at));
        Ok(Graph::new(
            self.image, group, code, &resolved, &outside, tight,
        ))
    }

    /// May the thread that comes to this block from home be one of a new process?
    fn may_be_new_process(&self, graph: &Graph, index: usize, unmoved: &HashSet<u64>) -> bool {
        let Some(before) = index.checked_sub(1).map(|before| &graph.blocks[before]) else {
            return false;
        };
        let returns = before.home_from.is_some() || before.calls_from_cave;
        if !returns || before.falls != Some(Next::Block(index)) {
            return false;
        }
        match graph.insns[before.last].0.flow {
            Flow::Kernel => true,
            Flow::Call(target) => unmoved.contains(&target),
            _ => false,
        }
    }

    fn ending(
        &self,
        graph: &Graph,
        index: usize,
        ways: &[u32],
        counters: &mut u32,
    ) -> (Ending, NotTaken) {
        let block = &graph.blocks[index];
        let insn = graph.insns[block.last].0;
        let ending = match insn.flow {
            Flow::Jump(target) => Ending::Jump(target),
            Flow::Branch(target) | Flow::CountBranch(target) => Ending::Branch(target),
            Flow::JumpIndirect => Ending::Computed,
            Flow::Return | Flow::ReturnPop => Ending::Return,
            Flow::Call(target) => Ending::Call(target),
            Flow::CallIndirect => Ending::CallComputed,
            Flow::Kernel => Ending::SystemCall,
            Flow::Stop => Ending::Stop,
            _ => Ending::Falls,
        };
        if !matches!(ending, Ending::Branch(_)) {
            return (ending, NotTaken::NoBranch);
        }
        let only = |next: Option<Next>| match next {
            Some(Next::Block(next)) => ways[next] == 1,
            _ => false,
        };
        let not_taken = if only(block.falls) {
            NotTaken::BlockBehind
        } else if only(block.jumps) {
            NotTaken::AllButTarget
        } else {
            *counters += 1;
            NotTaken::Counter(*counters - 1)
        };
        (ending, not_taken)
    }

    /// Numbers the counters: first those of all blocks, then those of branches.
    fn finish(mut self) -> BlockPlan {
        let blocks: usize = self.numbers.iter().map(|(_, blocks, _)| blocks.len()).sum();
        let mut order: Vec<usize> = (0..self.numbers.len()).collect();
        order.sort_by_key(|&group| self.numbers[group].0);
        let mut all: Vec<(Block, usize, u32)> = Vec::with_capacity(blocks);
        let mut branches = blocks as u32;
        let mut bases = vec![0; self.numbers.len()];
        for group in order {
            let (_, own, counters) = &self.numbers[group];
            bases[group] = branches;
            for (number, block) in own.iter().enumerate() {
                let mut block = *block;
                if let NotTaken::Counter(counter) = &mut block.not_taken {
                    *counter = *counter - own.len() as u32 + branches;
                }
                all.push((block, group, number as u32));
            }
            branches += counters - own.len() as u32;
        }
        all.sort_by_key(|(block, ..)| block.start);
        let mut places: Vec<Vec<u32>> = self
            .numbers
            .iter()
            .zip(&bases)
            .map(|((_, own, counters), base)| {
                let own = own.len() as u32;
                (0..*counters)
                    .map(|number| base + number.saturating_sub(own))
                    .collect()
            })
            .collect();
        for (counter, (_, group, number)) in all.iter().enumerate() {
            places[*group][*number as usize] = counter as u32;
        }
        for (group, numbers) in self.plan.groups.iter_mut().zip(&places) {
            group.cave.renumber(numbers);
        }
        self.plan.blocks = all.into_iter().map(|(block, ..)| block).collect();
        self.plan.counters = branches;
        self.plan.functions.sort_unstable();
        self.plan.skipped.sort_by_key(|skipped| skipped.function);
        self.plan
    }
}
