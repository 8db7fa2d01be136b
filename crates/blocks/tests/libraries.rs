//! The planner on what a distribution ships: nearly everything is counted, the checker looks at all of it and finds
//! nothing wrong, and it finds what was spoiled.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use thalweg_blocks::{
    BlockPlan, COUNT_BYTES, Encoder, Ending, Others, Placement, emit, plan, verify,
};
use thalweg_patch::code::{Image, Insn, decode_one};
use thalweg_patch::{Emitted, Patch, PatchBytes};
use thalweg_symbols::Module;

const BIAS: u64 = 0x7f00_0000_0000;
const CAVE: u64 = 0x1000_0000;

/// With the agent right before the cave.
struct Sample {
    cave: u64,
}

impl Encoder for Sample {
    fn count(&self, counter: u32) -> [u8; COUNT_BYTES] {
        let mut code = [0x65, 0x48, 0xff, 0x04, 0x25, 0, 0, 0, 0];
        code[5..].copy_from_slice(&(8 * counter).to_le_bytes());
        code
    }

    fn claim(&self) -> u64 {
        self.cave - 4096
    }
}

fn library(name: &str) -> Option<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/bin",
        "/lib/x86_64-linux-gnu",
        "/usr/lib64",
    ];
    folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
}

/// Plans, emits and checks a module; `least`: how many functions of a thousand are counted;
/// `spoils`: how many of each kind are tried.
#[track_caller]
fn counted(name: &str, least: usize, spoils: usize) {
    let Some(path) = library(name) else {
        return eprintln!("no {name} here: not tested");
    };
    let module = Module::load(&path).expect("an ELF file");
    let all = vec![true; module.functions.len()];
    let plan = plan(&module, &all, &Others::default(), true);
    let bias = if module.position_independent { BIAS } else { 0 };
    let place = Placement {
        bias,
        base: bias + CAVE,
        encoder: &Sample { cave: bias + CAVE },
    };
    let emitted = emit(&module, &plan, &place).expect("in reach");
    let verdict = verify(&module, &plan, &emitted, &place);
    assert!(verdict.problems.is_empty(), "{name}: {verdict:#?}");
    let unseen = verdict.unseen.len();
    assert!(
        unseen * 1000 <= plan.blocks.len(),
        "{name}: {unseen} blocks are not looked at"
    );
    let left = left(&plan);
    let functions = plan.functions.len();
    assert!(
        functions * 1000 >= least * (functions + left),
        "{name}: {functions}, and not {left}"
    );
    spoiled(&module, &plan, &place, spoils);
}

/// Functions that are left alone for what they are like, not for what they are.
fn left(plan: &BlockPlan) -> usize {
    let structural = ["plt", "entry-code", "untouchable"];
    plan.skipped
        .iter()
        .filter(|skipped| !structural.contains(&skipped.reason.kind()))
        .count()
}

/// `inc qword ptr gs:[n]`, up to its number.
const COUNT: &[u8] = &[0x65, 0x48, 0xff, 0x04, 0x25];

/// So many of them, from all over.
fn some<T: Clone>(all: &[T], most: usize) -> Vec<T> {
    let step = (all.len() / most.max(1)).max(1);
    all.iter().step_by(step).take(most).cloned().collect()
}

/// The checker sees each change that means something: an instruction in the cave that is another, a counter of another
/// block, one that is gone, a patch that leads elsewhere, and one that is missing before a place that a thread comes to.
fn spoiled(module: &Module, plan: &BlockPlan, place: &Placement, spoils: usize) {
    let good = emit(module, plan, place).expect("in reach");
    let stubs = &good.stubs[0].bytes;
    let missed = |what: &str, at: u64, bad: &Emitted| {
        let problems = verify(module, plan, bad, place).problems;
        assert!(!problems.is_empty(), "{}: {what} at {at:#x}", module.name);
    };
    let with = |offset: usize, bytes: &[u8]| {
        let mut bad = good.clone();
        bad.stubs[0].bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        bad
    };
    let offset_of = |&(cave, _): &(u64, u64)| {
        let offset = usize::try_from(cave.checked_sub(place.base)?).ok()?;
        (*stubs.get(offset)? != 0xcc).then_some(offset)
    };
    let code: Vec<usize> = good.back.iter().filter_map(offset_of).collect();
    for offset in some(&code, spoils) {
        missed("int3", place.base + offset as u64, &with(offset, &[0xcc]));
    }
    let is_count = |offset: &usize| stubs[*offset..].starts_with(COUNT);
    let counts: Vec<usize> = code.iter().copied().filter(is_count).collect();
    for offset in some(&counts, spoils) {
        let at = place.base + offset as u64;
        let nop = [0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
        missed("a counter is gone", at, &with(offset, &nop));
        let other = stubs[offset + COUNT.len()] ^ 8;
        let bad = with(offset + COUNT.len(), &[other]);
        missed("another counter", at, &bad);
    }
    let numbers: Vec<usize> = (0..good.patches.len()).collect();
    for number in some(&numbers, spoils) {
        let mut bad = good.clone();
        let patch = &mut bad.patches[number];
        let mut bytes = patch.replacement.to_vec();
        let way = usize::from(bytes.len() != 4);
        bytes[way] = bytes[way].wrapping_add(1);
        patch.replacement = PatchBytes::new(&bytes).expect("as short as before");
        let at = patch.address;
        missed("a patch leads elsewhere", at, &bad);
    }
    let entries = plan.functions.iter();
    let entries = entries.map(|&index| module.functions[index].start);
    let behind_calls = plan.blocks.iter();
    let behind_calls = behind_calls
        .filter(|block| matches!(block.ending, Ending::Call(_) | Ending::CallComputed))
        .map(|block| block.end);
    let wanted: Vec<u64> = entries.chain(behind_calls).collect();
    for at in some(&wanted, spoils) {
        let at = at.wrapping_add(place.bias);
        let stands = |patch: &&Patch| [at, at + 4].contains(&patch.address);
        let is_jump = |patch: &&Patch| matches!(patch.replacement[0], 0xe9 | 0xeb);
        let mut patches = good.patches.iter();
        let Some(gone) = patches.find(|patch| stands(patch) && is_jump(patch)) else {
            continue;
        };
        let mut bad = good.clone();
        bad.patches.retain(|patch| patch.address != gone.address);
        missed("a patch is missing", at, &bad);
    }
}

#[test]
fn sqlite_is_counted_and_the_same_in_its_cave() {
    counted("libsqlite3.so.0", 990, 1);
}

#[test]
fn lua_is_counted_and_the_same_in_its_cave() {
    counted("lua5.4", 990, 16);
}

#[test]
fn cpython_is_counted_and_the_same_in_its_cave() {
    counted("python3.11", 980, 0);
}

#[test]
fn libc_is_counted_and_the_same_in_its_cave() {
    counted("libc.so.6", 980, 1);
}

#[test]
fn libstdcxx_is_counted_and_the_same_in_its_cave() {
    counted("libstdc++.so.6", 980, 1);
}

/// What a thread runs at home while only some of the patches stand: from every place that it may come to from elsewhere, up to
/// the next jump that stands. Gives an instruction that it would meet half overwritten.
fn torn(
    module: &Module,
    plan: &BlockPlan,
    entries: &HashSet<u64>,
    jumps: &HashSet<u64>,
    written: &HashMap<u64, bool>,
) -> Option<u64> {
    let image = Image::new(module);
    let block_at = |address: u64| {
        let next = plan.blocks.partition_point(|block| block.start <= address);
        let block = plan.blocks[..next].last()?;
        (address < block.end).then_some(block)
    };
    let mut work: Vec<u64> = entries.iter().copied().collect();
    let mut met = HashSet::new();
    while let Some(at) = work.pop() {
        if jumps.contains(&at) || !met.insert(at) {
            continue;
        }
        let Some(block) = block_at(at) else { continue };
        let code = image.code_at(at).and_then(|code| decode_one(code, at));
        let Some(insn) = code.as_ref().and_then(Insn::from_iced) else {
            return Some(at);
        };
        // The way of a direct call may lead to the cave.
        let is_spoiled = |byte: u64| written.get(&byte).is_some_and(|is_way| !is_way);
        if (at..insn.end()).any(is_spoiled) {
            return Some(at);
        }
        work.extend(insn.jump_target());
        let starts = plan
            .blocks
            .binary_search_by_key(&insn.end(), |block| block.start);
        if !insn.closed() && (insn.end() < block.end || starts.is_ok()) {
            work.push(insn.end());
        }
    }
    None
}

/// Writes patches a page at a time, as a controller does that may be killed after each; the first instruction that is torn then.
fn first_torn(
    module: &Module,
    plan: &BlockPlan,
    place: &Placement,
    emitted: &Emitted,
) -> Option<u64> {
    let home = |patch: &Patch| patch.address.wrapping_sub(place.bias);
    let is_board = |patch: &Patch| {
        let found = emitted
            .back
            .binary_search_by_key(&patch.address, |pair| pair.0);
        found.is_ok_and(|index| emitted.back[index].1 != patch.address)
    };
    let is_way = |patch: &Patch| patch.replacement.len() == 4;
    let all = emitted.patches.iter();
    let entries: HashSet<u64> = all
        .filter(|patch| !is_way(patch) && !is_board(patch))
        .map(home)
        .collect();
    let (mut jumps, mut written) = (HashSet::new(), HashMap::new());
    for run in emitted
        .patches
        .chunk_by(|one, next| home(one) >> 12 == home(next) >> 12)
    {
        for patch in run {
            let at = home(patch);
            if entries.contains(&at) {
                jumps.insert(at);
            }
            let bytes = at..at + patch.replacement.len() as u64;
            written.extend(bytes.map(|byte| (byte, is_way(patch))));
        }
        let torn = torn(module, plan, &entries, &jumps, &written);
        if torn.is_some() {
            return torn;
        }
    }
    None
}

#[test]
fn a_controller_may_be_killed_between_any_two_pages() {
    let Some(path) = library("lua5.4") else {
        return eprintln!("no lua5.4 here: not tested");
    };
    let module = Module::load(&path).expect("an ELF file");
    let all = vec![true; module.functions.len()];
    let plan = plan(&module, &all, &Others::default(), true);
    let bias = if module.position_independent { BIAS } else { 0 };
    let place = Placement {
        bias,
        base: bias + CAVE,
        encoder: &Sample { cave: bias + CAVE },
    };
    let mut emitted = emit(&module, &plan, &place).expect("in reach");
    assert_eq!(first_torn(&module, &plan, &place, &emitted), None);
    // In the order of the addresses it would not do.
    emitted.patches.sort_by_key(|patch| patch.address);
    assert!(first_torn(&module, &plan, &place, &emitted).is_some());
}
