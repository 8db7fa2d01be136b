//! Room at home for the jumps to the cave.
//!
//! Jumps are written in two rounds (`emit`). In the second one whole pages are written one after the other, so that a thread may
//! for a while enter a group at a place whose page is still to come and run on at home, up to the next jump of the first round.
//! What it may meet on its way is no room on another page.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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

/// Room that any group may use.
pub(crate) struct Common {
    /// Between functions. Start -> end.
    padding: BTreeMap<u64, u64>,
    /// What died in groups all of whose jumps are of the first round: room for the second.
    left: BTreeMap<u64, u64>,
    taken: BTreeSet<u64>,
}

impl Common {
    /// `taken`: bytes that somebody else changes.
    pub fn of(targets: &Targets, taken: &[(u64, u64)]) -> Common {
        Common {
            padding: targets.padding.iter().copied().collect(),
            left: BTreeMap::new(),
            taken: taken.iter().flat_map(|&(start, end)| start..end).collect(),
        }
    }

    fn is_free(&self, address: u64, round: Round) -> bool {
        let holds = |ranges: &BTreeMap<u64, u64>| {
            let range = ranges.range(..=address).next_back();
            range.is_some_and(|(_, end)| address < *end)
        };
        let is_room = holds(&self.padding) || round == Round::Second && holds(&self.left);
        is_room && !self.taken.contains(&address)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    First,
    Second,
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

    fn is_free(&mut self, start: u64, len: u64, round: Round) -> bool {
        in_one_page(start, len)
            && (start..start + len).all(|address| match self.byte(address) {
                Some(byte) => *byte == Byte::Dead,
                None => self.common.is_free(address, round),
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
                    self.common.left.insert(at, end);
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
        // Which round a jump is of does not hang on what else is room, so that all of the second are known below.
        if fits(JUMP) && room.is_free(at, JUMP, Round::First) {
            let over_leader = blocks.range(at + 1..at + JUMP).next().is_some();
            points.push(Point {
                at,
                label,
                form: Form::Near { over_leader },
            });
        } else {
            short.push((at, label));
        }
    }
    let first = |point: &&Point| point.form == Form::Near { over_leader: false };
    let of_first: BTreeSet<u64> = points.iter().filter(first).map(|p| p.at).collect();
    let later = wanted.keys().copied().filter(|at| !of_first.contains(at));
    let running = StillRunning::of(graph, &of_first, later.collect());
    points.retain(|point| {
        let is_clear =
            of_first.contains(&point.at) || running.is_clear(point.at, point.at..point.at + JUMP);
        if !is_clear {
            short.push((point.at, point.label));
        }
        is_clear
    });
    short.retain(|&(at, _)| {
        let next = wanted.range(at + 1..).next().map_or(u64::MAX, |n| *n.0);
        let fits = next >= at + SHORT_JUMP
            && !leads_in(at, at + SHORT_JUMP)
            && room.is_free(at, SHORT_JUMP, Round::First)
            && running.is_clear(at, at..at + SHORT_JUMP);
        if !fits {
            missing.push(at);
        }
        fits
    });
    if !missing.is_empty() {
        return Err(missing);
    }
    let is_host = of_first.len() == wanted.len();
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
        let Some(springboard) = springboard(&mut room, &running, at) else {
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

/// The nearest room for a jump that a short one at `at` reaches; on its page, so that both are written at once.
fn springboard(room: &mut Room, running: &StillRunning, at: u64) -> Option<u64> {
    let from = at + SHORT_JUMP;
    let ways = (0..=i64::from(i8::MAX)).flat_map(|way| [way, -way - 1]);
    ways.map(|way| from.wrapping_add_signed(way))
        .find(|&place| {
            page_of(place) == page_of(at)
                && room.is_free(place, JUMP, Round::Second)
                && running.is_clear(at, place..place + JUMP)
        })
}

fn page_of(address: u64) -> u64 {
    address & !0xfff
}

/// What threads may run at home between the rounds, by the page of the place at which they come in.
struct StillRunning {
    /// Start -> end of instructions.
    by_page: BTreeMap<u64, BTreeMap<u64, u64>>,
}

impl StillRunning {
    fn of(graph: &Graph, of_first: &BTreeSet<u64>, later: Vec<u64>) -> StillRunning {
        let mut by_page: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
        let pages: BTreeSet<u64> = later.iter().map(|&at| page_of(at)).collect();
        // What is written at once is in nobody's way.
        if pages.len() < 2 {
            return StillRunning { by_page };
        }
        let computed: BTreeMap<u64, &[usize]> = graph
            .blocks
            .iter()
            .filter(|block| !block.computed.is_empty())
            .map(|block| (graph.insns[block.last].0.addr, block.computed.as_slice()))
            .collect();
        for page in pages {
            let met = by_page.entry(page).or_default();
            let mut work: Vec<u64> = later
                .iter()
                .copied()
                .filter(|&at| page_of(at) == page)
                .collect();
            while let Some(at) = work.pop() {
                let found = graph.insns.binary_search_by_key(&at, |(insn, _)| insn.addr);
                let Some((insn, _)) = found.ok().map(|index| &graph.insns[index]) else {
                    continue;
                };
                if of_first.contains(&at) || met.insert(at, insn.end()).is_some() {
                    continue;
                }
                work.extend(insn.jump_target());
                if !insn.closed() {
                    work.push(insn.end());
                }
                let targets = computed.get(&at).copied().unwrap_or_default();
                work.extend(targets.iter().map(|&block| graph.blocks[block].start));
            }
        }
        StillRunning { by_page }
    }

    /// Whether nobody who comes in on another page than that of the jump `at` runs any of these bytes; but the instruction at the
    /// jump's own place, from where it leads on.
    fn is_clear(&self, at: u64, bytes: Range<u64>) -> bool {
        let others = self
            .by_page
            .iter()
            .filter(|(page, _)| **page != page_of(at));
        others.into_iter().all(|(_, met)| {
            let mut upto = met
                .range(..bytes.end)
                .rev()
                .take_while(|(start, end)| **end > bytes.start || **start >= bytes.start);
            upto.all(|(&start, _)| start == at)
        })
    }
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
