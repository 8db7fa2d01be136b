//! Functions that are planned together, because one jumps into the other's middle.

use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{Instruction, OpKind};
use thalweg_patch::code::{Flow, Image, Insn, Targets, decoder};
use thalweg_symbols::{FunctionKind, Module};

/// Functions and fragments that share code.
pub(crate) struct Group {
    /// In the list of all groups.
    pub number: usize,
    /// Indices in `module.functions`.
    pub members: Vec<usize>,
    /// Their extents, in address order.
    pub ranges: Vec<(u64, u64)>,
    /// Starts of those that are no fragments.
    pub entries: Vec<u64>,
}

impl Group {
    pub fn holds(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.0 <= address);
        after > 0 && address < self.ranges[after - 1].1
    }

    /// End of the member that holds `address`.
    pub fn end_of(&self, address: u64) -> u64 {
        let after = self.ranges.partition_point(|range| range.0 <= address);
        after.checked_sub(1).map_or(address, |i| self.ranges[i].1)
    }
}

/// All functions of a module, in groups; in the order of their first members.
pub(crate) fn groups(image: &Image) -> Vec<Group> {
    let functions = &image.module.functions;
    let mut above: Vec<usize> = (0..functions.len()).collect();
    for (index, function) in functions.iter().enumerate() {
        if function.kind == FunctionKind::Plt {
            continue;
        }
        for target in jumps_out_of(image, function.start, function.end) {
            let Some(other) = image.function_at(target) else {
                continue;
            };
            let kind = functions[other].kind;
            let in_the_middle = functions[other].start != target || kind == FunctionKind::Fragment;
            if in_the_middle && kind != FunctionKind::Plt {
                let (one, two) = (top(&mut above, index), top(&mut above, other));
                above[one.max(two)] = one.min(two);
            }
        }
    }
    let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in 0..functions.len() {
        members
            .entry(top(&mut above, index))
            .or_default()
            .push(index);
    }
    let group = |(number, members): (usize, Vec<usize>)| Group {
        number,
        ranges: members
            .iter()
            .map(|&i| (functions[i].start, functions[i].end))
            .collect(),
        entries: members
            .iter()
            .filter(|&&i| functions[i].kind != FunctionKind::Fragment)
            .map(|&i| functions[i].start)
            .collect(),
        members,
    };
    members.into_values().enumerate().map(group).collect()
}

/// Addresses in code that something may enter otherwise than by a jump within one group.
pub(crate) struct Entered {
    /// Targets of direct jumps and calls: the only group that they come from, `MANY` if there are others.
    direct: HashMap<u64, usize>,
    /// Taken as an address by an instruction.
    taken: HashSet<u64>,
}

const MANY: usize = usize::MAX;

impl Entered {
    pub fn new(image: &Image, groups: &[Group]) -> Entered {
        let mut entered = Entered {
            direct: HashMap::new(),
            taken: HashSet::new(),
        };
        for (number, group) in groups.iter().enumerate() {
            for &(start, end) in &group.ranges {
                entered.scan(image, start, end, number);
            }
        }
        // Whatever this is, it belongs to no group.
        for &(start, end) in &image.module.gaps {
            entered.scan(image, start, end, MANY);
        }
        entered
    }

    fn scan(&mut self, image: &Image, start: u64, end: u64, group: usize) {
        let Some(bytes) = image.code_range(start, end) else {
            return;
        };
        let mut decoder = decoder(bytes, start);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            let Some(insn) = Insn::from_iced(&instruction) else {
                continue;
            };
            match insn.flow {
                Flow::Jump(target) | Flow::Branch(target) | Flow::CountBranch(target) => {
                    let known = self.direct.entry(target).or_insert(group);
                    if *known != group {
                        *known = MANY;
                    }
                    continue;
                }
                Flow::Call(target) | Flow::Transaction(target) => {
                    self.direct.insert(target, MANY);
                    continue;
                }
                Flow::Unmovable => {
                    self.direct.insert(instruction.near_branch_target(), MANY);
                }
                _ => {}
            }
            if instruction.is_ip_rel_memory_operand() {
                self.taken.insert(instruction.ip_rel_memory_address());
            }
            if image.module.position_independent {
                continue;
            }
            for operand in 0..instruction.op_count() {
                match instruction.op_kind(operand) {
                    OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64 => {
                        self.taken.insert(instruction.immediate(operand));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Only direct jumps of the group itself lead there.
    pub fn is_inner(&self, module: &Module, targets: &Targets, group: usize, at: u64) -> bool {
        let starts_fragment = || {
            let index = module
                .functions
                .binary_search_by_key(&at, |function| function.start);
            index.is_ok_and(|index| module.functions[index].kind == FunctionKind::Fragment)
        };
        self.direct.get(&at).is_none_or(|known| *known == group)
            && !self.taken.contains(&at)
            && !targets.tabled.contains(&at)
            && module.pointed_to.binary_search(&at).is_err()
            && (module.certain_code.binary_search(&at).is_err() || starts_fragment())
            && (self.direct.contains_key(&at) || starts_fragment())
    }
}

fn top(above: &mut [usize], mut index: usize) -> usize {
    while above[index] != index {
        above[index] = above[above[index]];
        index = above[index];
    }
    index
}

fn jumps_out_of(image: &Image, start: u64, end: u64) -> Vec<u64> {
    let Some(bytes) = image.code_range(start, end) else {
        return Vec::new();
    };
    let mut decoder = decoder(bytes, start);
    let mut instruction = Instruction::default();
    let mut found = Vec::new();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        let target = Insn::from_iced(&instruction).and_then(|insn| insn.jump_target());
        found.extend(target.filter(|target| !(start..end).contains(target)));
    }
    found
}
