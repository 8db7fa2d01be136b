//! The checker notices what it is there to notice: each way to be wrong, tried once.

mod common;

use common::Sample;
use std::path::Path;
use thalweg_patch::{Emitted, ModulePlan, PatchForm, Placement, emit, verify};
use thalweg_symbols::Module;

const PLACE: Placement = Placement {
    bias: 0x10_0000,
    stub_base: 0x4000_0000,
    encoder: &Sample,
};

struct Sound {
    module: Module,
    plan: ModulePlan,
    emitted: Emitted,
}

fn sound() -> Sound {
    let module = Module::load(Path::new("/usr/lib/x86_64-linux-gnu/libc.so.6")).expect("libc");
    let plan = common::everything(&module);
    let emitted = emit(&module, &plan, &PLACE).unwrap();
    assert_eq!(
        verify(&module, &plan, &emitted, &PLACE),
        Vec::<String>::new()
    );
    Sound {
        module,
        plan,
        emitted,
    }
}

#[track_caller]
fn noticed(what: &str, s: &Sound) {
    assert!(
        !verify(&s.module, &s.plan, &s.emitted, &PLACE).is_empty(),
        "{what} went unnoticed"
    );
}

#[test]
fn a_wrong_byte_anywhere_in_the_stubs() {
    let mut s = sound();
    let step = s.emitted.stubs[0].bytes.len() / 60;
    for at in (0..s.emitted.stubs[0].bytes.len()).step_by(step) {
        s.emitted.stubs[0].bytes[at] ^= 0x04;
        noticed(&format!("byte {at:#x} of the stubs"), &s);
        s.emitted.stubs[0].bytes[at] ^= 0x04;
    }
}

#[test]
fn a_wrong_patch() {
    let mut s = sound();
    s.emitted.patches[100].replacement[1] ^= 1;
    noticed("a jump to the wrong place", &s);
    let mut s = sound();
    s.emitted.patches.remove(200);
    noticed("a missing patch", &s);
    let mut s = sound();
    s.emitted.patches[300].original[0] ^= 1;
    noticed("wrong original bytes", &s);
    let mut s = sound();
    let copy = s.emitted.patches[301];
    s.emitted.patches.push(copy);
    noticed("overlapping patches", &s);
}

#[test]
fn a_springboard_written_after_the_jump_to_it() {
    let mut s = sound();
    let windows = s.plan.functions.iter().flat_map(|f| &f.windows);
    let short = windows
        .map(|w| (w.start, w.patch))
        .find_map(|(start, patch)| match patch {
            PatchForm::Short { springboard } => Some((start, springboard)),
            _ => None,
        });
    let (start, springboard) = short.expect("libc needs springboards");
    let find = |s: &Sound, addr: u64| {
        s.emitted
            .patches
            .iter()
            .position(|p| p.address == addr + PLACE.bias)
            .unwrap()
    };
    let (a, b) = (find(&s, start), find(&s, springboard));
    s.emitted.patches.swap(a, b);
    noticed("the wrong order of writing", &s);
}

#[test]
fn a_wrong_move_of_a_program_counter() {
    let mut s = sound();
    s.emitted.moves[50].1 += 1;
    noticed("a wrong move", &s);
    let mut s = sound();
    s.emitted.moves.remove(60);
    noticed("a missing move", &s);
}

#[test]
fn a_target_inside_a_window() {
    let mut s = sound();
    let pointer = s.emitted.moves[500].0 - PLACE.bias;
    s.module.code_pointers.push(pointer);
    noticed("a code pointer into a window", &s);
}

#[test]
fn a_missing_probe() {
    let mut s = sound();
    let window = s.plan.functions[700]
        .windows
        .iter_mut()
        .find(|w| w.events.len() == 1)
        .unwrap();
    window.events.clear();
    noticed("a probe that is not in the plan", &s);
}

#[test]
fn a_missing_way_back_from_a_springboard() {
    let mut s = sound();
    let stubs = PLACE.stub_base..s.emitted.stubs_end();
    let board = s.emitted.back.iter().position(|b| !stubs.contains(&b.0));
    s.emitted
        .back
        .remove(board.expect("libc needs springboards"));
    noticed("a springboard without a way back", &s);
}

#[test]
fn a_wrong_way_back_from_a_stub() {
    let mut s = sound();
    let (_, copy) = s.emitted.moves[50];
    let back = s.emitted.back.iter().position(|b| b.0 == copy);
    s.emitted.back[back.expect("a move has its way back")].1 += 1;
    noticed("a wrong way back", &s);
}

#[test]
fn a_single_byte_jump_whose_displacement_is_somebody_elses() {
    let ballast = "add eax, 0x12345678; ".repeat(24);
    let source = format!("f: ret; g: push rbx; {ballast} pop rbx; ret; .p2align 4");
    let module = common::assemble(&source);
    let plan = common::everything(&module);
    let emitted = emit(&module, &plan, &PLACE).unwrap();
    let mut s = Sound {
        module,
        plan,
        emitted,
    };
    let pun = s
        .emitted
        .patches
        .iter()
        .position(|p| p.replacement == [0xeb]);
    let pun = pun.expect("f has one byte");
    let address = s.emitted.patches[pun].address;
    assert_eq!(
        verify(&s.module, &s.plan, &s.emitted, &PLACE),
        Vec::<String>::new()
    );
    let behind = |s: &Sound| {
        let next = |p: &thalweg_patch::Patch| p.address == address + 1;
        s.emitted.patches.iter().position(next).unwrap()
    };
    let partner = behind(&s);
    s.emitted.patches.swap(pun, partner);
    noticed("the byte is written before its displacement", &s);
    s.emitted.patches.swap(pun, partner);
    s.emitted.patches[partner].replacement[0] ^= 1;
    noticed("another displacement", &s);
    s.emitted.patches.remove(partner);
    noticed("no displacement", &s);
}
