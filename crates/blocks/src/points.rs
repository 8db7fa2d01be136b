//! Room at home for the jumps to the cave.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_patch::SkipReason;
use thalweg_patch::code::{Image, Targets, in_one_page, only_nops};

use crate::graph::Graph;
use crate::group::Group;

/// A place at home from which a thread goes on in the cave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub at: u64,
    /// In the cave.
    pub label: usize,
    pub form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `jmp rel32`. `over_leader`: code at home may jump to a place in its bytes, as long as not all patches stand.
    Near { over_leader: bool },
    /// `jmp rel8` to a `jmp rel32` here.
    Short { springboard: u64 },
}

/// A jump with a 32-bit displacement.
pub(crate) const JUMP: u64 = 5;
/// A jump with an 8-bit displacement.
pub(crate) const SHORT_JUMP: u64 = 2;

/// Room that any group may use: padding between functions, and what died in groups whose own jumps need no springboard, so
/// that it is dead before the first springboard is written.
pub(crate) struct Common {
    /// Start -> end.
    ranges: BTreeMap<u64, u64>,
    taken: BTreeSet<u64>,
}

impl Common {
    pub fn of(targets: &Targets) -> Common {
        let ranges = targets.padding.iter().copied().collect();
        Common {
            ranges,
            taken: BTreeSet::new(),
        }
    }

    fn is_free(&self, address: u64) -> bool {
        let range = self.ranges.range(..=address).next_back();
        range.is_some_and(|(_, end)| address < *end) && !self.taken.contains(&address)
    }
}

/// Places for which there is no room.
pub(crate) type Missing = Vec<u64>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Byte {
    /// Not known to be code of ours, or it still runs.
    Used,
    /// Nobody runs it any more.
    Dead,
    Taken,
}

/// The bytes of one group.
struct Room<'a> {
    parts: Vec<(u64, Vec<Byte>)>,
    common: &'a mut Common,
}

impl Room<'_> {
    fn byte(&mut self, address: u64) -> Option<&mut Byte> {
        let after = self.parts.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.parts.get_mut(after.checked_sub(1)?)?;
        bytes.get_mut((address - *start) as usize)
    }

    fn fill(&mut self, start: u64, end: u64, byte: Byte) {
        for address in start..end {
            if let Some(place) = self.byte(address) {
                *place = byte;
            }
        }
    }

    fn is_free(&mut self, start: u64, len: u64) -> bool {
        in_one_page(start, len)
            && (start..start + len).all(|address| match self.byte(address) {
                Some(byte) => *byte == Byte::Dead,
                None => self.common.is_free(address),
            })
    }

    fn take(&mut self, start: u64, len: u64) {
        for address in start..start + len {
            match self.byte(address) {
                Some(byte) => *byte = Byte::Taken,
                None => drop(self.common.taken.insert(address)),
            }
        }
    }

    /// What is still dead is for others.
    fn leave(self) {
        for (start, bytes) in self.parts {
            let mut at = start;
            for run in bytes.chunk_by(|one, next| one == next) {
                let end = at + run.len() as u64;
                if run[0] == Byte::Dead && run.len() as u64 >= JUMP {
                    self.common.ranges.insert(at, end);
                }
                at = end;
            }
        }
    }
}

/// Finds room for all of `wanted` (address at home -> label), or says where there is none.
pub(crate) fn place(
    image: &Image,
    targets: &Targets,
    group: &Group,
    graph: &Graph,
    wanted: &BTreeMap<u64, usize>,
    common: &mut Common,
) -> Result<Vec<Point>, Missing> {
    let parts = group.ranges.iter();
    let parts = parts.map(|&(start, end)| (start, vec![Byte::Used; (end - start) as usize]));
    let mut room = Room {
        parts: parts.collect(),
        common,
    };
    mark(image, targets, group, graph, &mut room);
    // Whatever may be jumped to keeps what stands there, if it is not known to be an instruction of ours.
    let mut kept: BTreeSet<u64> = BTreeSet::new();
    for &(start, end) in &group.ranges {
        let hard = targets.in_range(start, end).iter().copied();
        kept.extend(hard.filter(|at| !wanted.contains_key(at)));
    }
    let leads_in = |start: u64, end: u64| kept.range(start + 1..end).next().is_some();
    let blocks: BTreeSet<u64> = graph.blocks.iter().map(|block| block.start).collect();
    let (mut points, mut short, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for (&at, &label) in wanted {
        let next = wanted
            .range(at + 1..)
            .next()
            .map_or(u64::MAX, |next| *next.0);
        let fits = |len: u64| next >= at + len && !leads_in(at, at + len);
        if fits(JUMP) && room.is_free(at, JUMP) {
            let over_leader = blocks.range(at + 1..at + JUMP).next().is_some();
            points.push(Point {
                at,
                label,
                form: Form::Near { over_leader },
            });
        } else if fits(SHORT_JUMP) && room.is_free(at, SHORT_JUMP) {
            short.push((at, label));
        } else {
            missing.push(at);
        }
    }
    if !missing.is_empty() {
        return Err(missing);
    }
    let simple = points
        .iter()
        .all(|p| p.form == Form::Near { over_leader: false });
    let is_host = short.is_empty() && simple;
    for point in &points {
        room.take(point.at, JUMP);
    }
    for &(at, _) in &short {
        room.take(at, SHORT_JUMP);
    }
    for &at in &kept {
        room.take(at, 1);
    }
    for (at, label) in short {
        let Some(springboard) = springboard(&mut room, at) else {
            missing.push(at);
            continue;
        };
        room.take(springboard, JUMP);
        points.push(Point {
            at,
            label,
            form: Form::Short { springboard },
        });
    }
    match missing.is_empty() {
        false => return Err(missing),
        true if is_host => room.leave(),
        true => {}
    }
    Ok(points)
}

fn mark(image: &Image, targets: &Targets, group: &Group, graph: &Graph, room: &mut Room) {
    let mut from = BTreeMap::new();
    for (insn, _) in &graph.insns {
        room.fill(insn.addr, insn.end(), Byte::Dead);
        from.insert(insn.addr, insn.end());
    }
    fill_gaps(image, targets, group, &from, room);
    for block in &graph.blocks {
        if let Some(home_from) = block.home_from {
            let (start, end) = (
                graph.insns[home_from].0.addr,
                graph.insns[block.last].0.end(),
            );
            room.fill(start, end, Byte::Used);
        }
    }
}

/// Why the group is left alone.
pub(crate) fn no_room(group: &Group, at: u64) -> SkipReason {
    match group
        .entries
        .iter()
        .any(|&entry| (entry..entry + JUMP).contains(&at))
    {
        true => SkipReason::NoRoomAtEntry { at },
        false => SkipReason::NoRoomAtExit { at },
    }
}

/// The nearest room for a jump that a short one at `at` reaches.
fn springboard(room: &mut Room, at: u64) -> Option<u64> {
    let from = at + SHORT_JUMP;
    let ways = (0..=i64::from(i8::MAX)).flat_map(|way| [way, -way - 1]);
    ways.map(|way| from.wrapping_add_signed(way))
        .find(|&place| room.is_free(place, JUMP))
}

/// Padding between the instructions of a function is dead as well.
fn fill_gaps(
    image: &Image,
    targets: &Targets,
    group: &Group,
    from: &BTreeMap<u64, u64>,
    room: &mut Room,
) {
    for &(start, end) in &group.ranges {
        let mut at = start;
        for (&next, &behind) in from.range(start..end).chain([(&end, &end)]) {
            if at < next && !targets.any_in(at, next) {
                let gap = image.code_range(at, next);
                if gap.is_some_and(|gap| only_nops(gap, at)) {
                    room.fill(at, next, Byte::Dead);
                }
            }
            at = behind;
        }
    }
}
