//! Where a function is left, and how; what is not understood is refused.

use super::indirect::indirect;
use super::{Body, Exit, ExitKind, LeavesFor};
use crate::image::Image;
use crate::insn::{Flow, decode_one, padding_len};
use crate::interface::SkipReason;
use crate::targets::Targets;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use thalweg_symbols::FunctionKind;

/// Finds the exits, and refuses what is not understood.
pub(super) fn classify(
    image: &Image,
    targets: &Targets,
    function: usize,
    body: &mut Body,
) -> Result<(), SkipReason> {
    let module = image.module;
    let mut exits = Vec::new();
    let mut continues_in = Vec::new();
    for index in 0..body.insns.len() {
        let insn = body.insns[index];
        let at = insn.addr;
        let kind = match insn.flow {
            Flow::Return => {
                if body.leaves_for == LeavesFor::Caller {
                    check_return(image, body, index)?;
                }
                ExitKind::Return
            }
            Flow::ReturnPop => ExitKind::ReturnPop,
            Flow::JumpIndirect if body.leaves_for == LeavesFor::OtherStack => {
                ExitKind::TailIndirect
            }
            Flow::JumpIndirect => match indirect(image, targets, function, body, index)? {
                true => ExitKind::TailIndirect,
                false => continue,
            },
            Flow::Jump(t) | Flow::Branch(t) | Flow::CountBranch(t)
                if !(body.start..body.end).contains(&t) =>
            {
                let to = image.function_at(t);
                let leaves = frame_gone(image, body, index);
                let kind = match to.map(|g| (g, &module.functions[g])) {
                    None if leaves => ExitKind::Tail(None),
                    _ if !leaves && never_taken(image, body, index, t) => continue,
                    None => return Err(SkipReason::OddJump { at }),
                    Some((_, g)) if is_return_thunk(image, g) => ExitKind::Thunk,
                    Some((_, g)) if g.kind == FunctionKind::Plt && leaves => ExitKind::TailPlt,
                    Some((g, other))
                        if t == other.start && other.kind != FunctionKind::Fragment =>
                    {
                        if !leaves {
                            return Err(SkipReason::OddJump { at });
                        }
                        ExitKind::Tail(Some(g))
                    }
                    Some((g, _)) => {
                        continues_in.push(g);
                        continue;
                    }
                };
                if matches!(insn.flow, Flow::CountBranch(_)) {
                    return Err(SkipReason::OddJump { at });
                }
                kind
            }
            Flow::Next | Flow::Branch(_) | Flow::CountBranch(_) | Flow::Kernel
                if insn.end() == body.end && !insn.nop =>
            {
                match runs_into(image, body.end) {
                    Some(next) if insn.flow == Flow::Next && !image.is_fragment(next) => {
                        ExitKind::FallThrough(next)
                    }
                    _ => return Err(SkipReason::FallsThrough { at }),
                }
            }
            _ => continue,
        };
        exits.push(Exit { insn: index, kind });
    }
    continues_in.sort_unstable();
    continues_in.dedup();
    body.exits = exits;
    body.continues_in = continues_in;
    Ok(())
}

/// A jump behind a call that never returns, to the end of a function: where compilers send what they know to be unreachable.
fn never_taken(image: &Image, body: &Body, index: usize, target: u64) -> bool {
    let functions = &image.module.functions;
    let ends_there = functions
        .partition_point(|f| f.start < target)
        .checked_sub(1)
        .is_some_and(|f| functions[f].end == target);
    let after_call = index
        .checked_sub(1)
        .map(|i| body.insns[i])
        .is_some_and(|before| {
            before.end() == body.insns[index].addr
                && matches!(before.flow, Flow::Call(_) | Flow::CallIndirect)
        });
    ends_there && after_call
}

/// The function whose start comes next for code that runs on at `end`, nops aside.
fn runs_into(image: &Image, end: u64) -> Option<usize> {
    let start = image.next_start(end);
    let nops = image.code_range(end, start)?;
    let only_nops = padding_len(nops, end) == nops.len() && !nops.contains(&0xcc);
    only_nops.then(|| image.function_at(start)).flatten()
}

/// At a jump out or a return: is the return address on top of the stack?
///
/// Unwind information decides where it is right. Some compilers leave epilogues out of it, so an instruction that gives
/// up the frame just before counts as well.
pub(super) fn frame_gone(image: &Image, body: &Body, index: usize) -> bool {
    match image.module.cfi.cfa_is_rsp_plus_8(body.insns[index].addr) {
        Some(true) | None => true,
        Some(false) => previous(image, body, index).is_some_and(|i| gives_up_frame(&i)),
    }
}

fn gives_up_frame(i: &Instruction) -> bool {
    let to_rsp =
        i.op_count() > 0 && i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    match i.mnemonic() {
        Mnemonic::Pop | Mnemonic::Leave => true,
        Mnemonic::Add | Mnemonic::Lea | Mnemonic::Mov => to_rsp,
        _ => false,
    }
}

fn previous(image: &Image, body: &Body, index: usize) -> Option<Instruction> {
    let before = body.insns[index.checked_sub(1)?];
    (before.end() == body.insns[index].addr).then_some(())?;
    decode_one(image.code_at(before.addr)?, before.addr)
}

/// Refuses a `ret` that jumps somewhere inside (`push target; ret`, retpolines).
fn check_return(image: &Image, body: &Body, index: usize) -> Result<(), SkipReason> {
    let at = body.insns[index].addr;
    let odd = Err(SkipReason::OddReturn { at });
    match previous(image, body, index) {
        Some(i) if i.mnemonic() == Mnemonic::Push => odd,
        Some(i)
            if i.op_count() == 2
                && i.op0_kind() == OpKind::Memory
                && i.memory_base() == Register::RSP
                && i.memory_index() == Register::None
                && i.memory_displacement64() == 0
                && i.mnemonic() == Mnemonic::Mov =>
        {
            odd
        }
        _ if frame_gone(image, body, index) => Ok(()),
        _ => odd,
    }
}

fn is_return_thunk(image: &Image, f: &thalweg_symbols::Function) -> bool {
    if f.linkage_name.as_deref() == Some("__x86_return_thunk") || f.name == "__x86_return_thunk" {
        return true;
    }
    let Some(code) = image.code_at(f.start) else {
        return false;
    };
    // call 1f; 2: pause; lfence; jmp 2b; 1: lea rsp, [rsp+8]; ret (or add rsp, 8; ret)
    let spin = [0xf3, 0x90, 0x0f, 0xae, 0xe8];
    let retpoline = code.first() == Some(&0xe8)
        && code.get(5..10) == Some(&spin)
        && code.get(10..48).is_some_and(|tail| {
            let ends: [&[u8]; 2] = [
                &[0x48, 0x8d, 0x64, 0x24, 0x08, 0xc3],
                &[0x48, 0x83, 0xc4, 0x08, 0xc3],
            ];
            ends.iter()
                .any(|end| tail.windows(end.len()).any(|w| w == *end))
        });
    let untouchable_ret =
        matches!(f.kind, FunctionKind::Untouchable(_)) && code.first() == Some(&0xc3);
    retpoline || untouchable_ret
}
