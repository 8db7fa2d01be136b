//! From a plan to bytes: the code of the cave, and the patches of the text in the order in which they have to be written.

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_patch::code::{Flow, Image, Insn, call_to_jump, copy, decode_one, in_one_page};
use thalweg_patch::{EmitError, Emitted, Patch, PatchBytes, Stubs};
use thalweg_symbols::Module;

use crate::cave::{GIVE_FLAGS, Goal, Item, KEEP_FLAGS, PUSH_BYTES, Placement};
use crate::plan::{BlockPlan, GroupPlan};
use crate::points::{Form, JUMP, SHORT_JUMP};

/// Realises a plan. The patches are in the order in which they have to be written: see `rank`.
pub fn emit(module: &Module, plan: &BlockPlan, place: &Placement) -> Result<Emitted, EmitError> {
    let image = Image::new(module);
    let mut entries = BTreeMap::new();
    for group in &plan.groups {
        for &(entry, label) in &group.entries {
            entries.insert(entry, place.base + group.offset + group.cave.labels[label]);
        }
    }
    let mut emitter = Emitter {
        image: &image,
        place,
        entries,
        stubs: Vec::with_capacity(plan.len as usize),
        out: Emitted::default(),
        ranked: Vec::new(),
    };
    for group in &plan.groups {
        let filler = group.offset - emitter.stubs.len() as u64;
        emitter
            .stubs
            .extend(std::iter::repeat_n(0xcc, filler as usize));
        emitter.code(group)?;
        emitter.patches(group)?;
    }
    emitter.stubs.resize(plan.len as usize, 0xcc);
    emitter.out.stubs.push(Stubs {
        address: place.base,
        bytes: emitter.stubs,
    });
    emitter
        .ranked
        .sort_by_key(|(round, _, patch)| (*round, patch.address));
    for (_, owner, patch) in emitter.ranked {
        emitter.out.owners.push(owner);
        emitter.out.patches.push(patch);
    }
    emitter.out.moves.sort_unstable();
    emitter.out.moves.dedup_by_key(|pair| pair.0);
    emitter.out.back.sort_unstable();
    emitter.out.back.dedup_by_key(|pair| pair.0);
    Ok(emitter.out)
}

/// The order of writing, so that a controller that is killed in between leaves a program that works: first the jumps whose bytes
/// nobody else jumps into, on all pages; then the rest page by page, all of a page at once. What code may still run then that the
/// second round has not come to is in the planner's mind when it chooses room (`points`).
mod round {
    pub const FIRST: u8 = 0;
    pub const SECOND: u8 = 1;
}

struct Emitter<'a, 'm> {
    image: &'a Image<'m>,
    place: &'a Placement<'a>,
    /// Where the caves of functions begin, for those that come from other caves.
    entries: BTreeMap<u64, u64>,
    stubs: Vec<u8>,
    out: Emitted,
    ranked: Vec<(u8, usize, Patch)>,
}

impl Emitter<'_, '_> {
    fn code(&mut self, group: &GroupPlan) -> Result<(), EmitError> {
        let cave = &group.cave;
        let base = self.place.base + group.offset;
        for (item, &size) in cave.items.iter().zip(&cave.sizes) {
            let at = self.place.base + self.stubs.len() as u64;
            let end = at + u64::from(size);
            let address = |goal: &Goal| match goal {
                Goal::Label(label) => base + cave.labels[*label],
                Goal::Home(home) => home.wrapping_add(self.place.bias),
                Goal::Function(home) => match self.entries.get(home) {
                    Some(entry) => *entry,
                    None => home.wrapping_add(self.place.bias),
                },
            };
            let home = match item {
                Item::Copy { at, .. } | Item::CallFrom { at, .. } => Some(*at),
                Item::Jump { home, .. }
                | Item::CountBranch { home, .. }
                | Item::Count { home, .. } => Some(*home),
                Item::Glue { home, .. } | Item::Branch { home, .. } => *home,
                Item::Label(_) | Item::Nothing { .. } | Item::Raw(_) | Item::Claim => None,
            };
            if let Some(home) = home {
                self.out.back.push((at, home.wrapping_add(self.place.bias)));
            }
            let mut bytes: Vec<u8> = Vec::with_capacity(usize::from(size));
            match item {
                Item::Label(_) | Item::Nothing { .. } => {}
                Item::Raw(raw) => bytes.extend_from_slice(raw),
                Item::Copy { at: home, len } => {
                    let foreign = EmitError::ForeignPlan { address: *home };
                    let original = self.image.code_range(*home, home + u64::from(*len));
                    let piece = original
                        .and_then(|bytes| copy(bytes, *home))
                        .ok_or(foreign)?;
                    bytes = piece.bytes;
                    if let Some((offset, target)) = piece.relative {
                        let way = reach(end, target.wrapping_add(self.place.bias))?;
                        bytes[offset..offset + 4].copy_from_slice(&way.to_le_bytes());
                    }
                }
                Item::Jump { to, .. } | Item::Glue { to, .. } => {
                    jump(&mut bytes, &[0xeb], &[0xe9], size == 2, end, address(to))?;
                }
                Item::Branch { condition, to, .. } => {
                    let (short, near) = ([0x70 | condition], [0x0f, 0x80 | condition]);
                    jump(&mut bytes, &short, &near, size == 2, end, address(to))?;
                }
                Item::CountBranch { opcode, to, .. } => {
                    bytes.extend([*opcode, 2, 0xeb, 5, 0xe9]);
                    bytes.extend(reach(end, address(to))?.to_le_bytes());
                }
                Item::Count {
                    counter,
                    keeps_flags,
                    ..
                } => {
                    let count = self.place.encoder.count(*counter);
                    if *keeps_flags {
                        bytes.extend(KEEP_FLAGS.iter().chain(&count).chain(GIVE_FLAGS));
                    } else {
                        bytes.extend(count);
                    }
                }
                Item::CallFrom { at: home, len } => {
                    self.call_from(*home, *len, end, &mut bytes)?;
                }
                Item::Claim => {
                    bytes.push(0xe8);
                    bytes.extend(reach(end, self.place.encoder.claim())?.to_le_bytes());
                }
            }
            debug_assert_eq!(bytes.len(), usize::from(size));
            self.stubs.extend(bytes);
        }
        self.moves(group, base);
        Ok(())
    }

    fn call_from(&self, home: u64, len: u8, end: u64, out: &mut Vec<u8>) -> Result<(), EmitError> {
        let foreign = || EmitError::ForeignPlan { address: home };
        let behind = home + u64::from(len);
        let original = self.image.code_range(home, behind).ok_or_else(foreign)?;
        let back = behind.wrapping_add(self.place.bias).to_le_bytes();
        out.extend([0xe8, 0, 0, 0, 0, 0xc7, 0x04, 0x24]);
        out.extend(&back[..4]);
        out.extend([0xc7, 0x44, 0x24, 0x04]);
        out.extend(&back[4..]);
        let instruction = decode_one(original, home).ok_or_else(foreign)?;
        let insn = Insn::from_iced(&instruction).ok_or_else(foreign)?;
        let most = usize::from(PUSH_BYTES + len.max(JUMP as u8));
        match insn.flow {
            Flow::Call(target) => {
                let entry = self.entries.get(&target).copied();
                let to = entry.unwrap_or_else(|| target.wrapping_add(self.place.bias));
                out.push(0xe9);
                let behind = end - (most as u64 - u64::from(PUSH_BYTES) - JUMP);
                out.extend(reach(behind, to)?.to_le_bytes());
            }
            _ => {
                let piece = call_to_jump(original, home).ok_or_else(foreign)?;
                let at = out.len();
                out.extend(&piece.bytes);
                if let Some((offset, target)) = piece.relative {
                    let behind = end - (most - out.len()) as u64;
                    let way = reach(behind, target.wrapping_add(self.place.bias))?;
                    out[at + offset..at + offset + 4].copy_from_slice(&way.to_le_bytes());
                }
            }
        }
        out.resize(most, 0xcc);
        Ok(())
    }

    /// Whoever is at an instruction at home goes on at its copy; but who is where a jump will stand, which leads there: behind a
    /// system call that the kernel is about to make again, the address tells where that is.
    fn moves(&mut self, group: &GroupPlan, base: u64) {
        let cave = &group.cave;
        let points: HashSet<u64> = group.points.iter().map(|point| point.at).collect();
        let mut at = base;
        let mut seen: HashMap<u64, u64> = HashMap::new();
        for (item, &size) in cave.items.iter().zip(&cave.sizes) {
            let home = match item {
                Item::Copy { at, .. } | Item::CallFrom { at, .. } => Some(*at),
                Item::Nothing { home } | Item::Count { home, .. } => Some(*home),
                Item::Jump { home, .. } | Item::CountBranch { home, .. } => Some(*home),
                Item::Branch { home, .. } => *home,
                _ => None,
            };
            if let Some(home) = home.filter(|home| !points.contains(home)) {
                seen.entry(home).or_insert(at);
            }
            at += u64::from(size);
        }
        let bias = self.place.bias;
        self.out.moves.extend(
            seen.into_iter()
                .map(|(home, at)| (home.wrapping_add(bias), at)),
        );
    }

    fn patches(&mut self, group: &GroupPlan) -> Result<(), EmitError> {
        let cave = self.place.base + group.offset;
        let bias = self.place.bias;
        for point in &group.points {
            let to = cave + group.cave.labels[point.label];
            match point.form {
                Form::Near { over_leader } => {
                    let round = match over_leader {
                        true => round::SECOND,
                        false => round::FIRST,
                    };
                    self.near(round, group.owner, point.at, to)?;
                }
                Form::Short { springboard } => {
                    self.near(round::SECOND, group.owner, springboard, to)?;
                    let home = point.at.wrapping_add(bias);
                    self.out.back.push((springboard.wrapping_add(bias), home));
                    let way = springboard.wrapping_sub(point.at + SHORT_JUMP) as u8;
                    self.change(round::SECOND, group.owner, point.at, &[0xeb, way])?;
                }
            }
        }
        for &(at, callee) in &group.calls {
            if let Some(&entry) = self.entries.get(&callee)
                && in_one_page(at, 4)
            {
                let way = reach(at.wrapping_add(bias) + 4, entry)?;
                self.change(round::FIRST, group.owner, at, &way.to_le_bytes())?;
            }
        }
        Ok(())
    }

    fn near(&mut self, round: u8, owner: usize, at: u64, to: u64) -> Result<(), EmitError> {
        let way = reach(at.wrapping_add(self.place.bias) + JUMP, to)?;
        let mut bytes = vec![0xe9];
        bytes.extend(way.to_le_bytes());
        self.change(round, owner, at, &bytes)
    }

    fn change(&mut self, round: u8, owner: usize, at: u64, bytes: &[u8]) -> Result<(), EmitError> {
        let original = self.image.code_range(at, at + bytes.len() as u64);
        let original = original.and_then(PatchBytes::new);
        let replacement = PatchBytes::new(bytes);
        let (Some(original), Some(replacement)) = (original, replacement) else {
            return Err(EmitError::ForeignPlan { address: at });
        };
        let address = at.wrapping_add(self.place.bias);
        self.ranked.push((
            round,
            owner,
            Patch {
                address,
                original,
                replacement,
            },
        ));
        Ok(())
    }
}

fn jump(
    out: &mut Vec<u8>,
    short: &[u8],
    near: &[u8],
    is_short: bool,
    end: u64,
    to: u64,
) -> Result<(), EmitError> {
    if is_short {
        out.extend(short);
        out.push(to.wrapping_sub(end) as u8);
    } else {
        out.extend(near);
        out.extend(reach(end, to)?.to_le_bytes());
    }
    Ok(())
}

fn reach(from: u64, to: u64) -> Result<i32, EmitError> {
    i32::try_from(to.wrapping_sub(from) as i64).map_err(|_| EmitError::OutOfReach { from, to })
}
