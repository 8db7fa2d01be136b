//! Whether a function's exits lead to its caller, or to another stack or a caller further up: told by its code.

use super::{Body, LeavesFor};
use crate::image::Image;
use crate::insn::{Flow, Insn, decode_one};
use iced_x86::{Mnemonic, OpKind, Register};

/// Code that makes another value than one of its own the stack pointer, and then leaves without a further branch:
///
/// ```text
///   mov rsp, [rdx+0xa0] ... ret          swapcontext
///   mov rsp, rdi ... jmp r8              boost's jump_fcontext
///   mov rsp, rcx; pop rcx; jmp rcx       the unwinder, once it has found who catches
/// ```
///
/// What switches stacks is written by hand and calls nothing; the unwinder calls a lot, and then leaves as shown.
pub(super) fn leaves_for(image: &Image, body: &Body) -> LeavesFor {
    let calls = |i: &Insn| matches!(i.flow, Flow::Call(_) | Flow::CallIndirect);
    let calls = body.insns.iter().any(calls);
    if !calls && body.end - body.start > LONGEST_SWITCH {
        return LeavesFor::Caller;
    }
    for (index, insn) in body.insns.iter().enumerate() {
        if insn.flow != Flow::Next || insn.len < 3 {
            continue;
        }
        let code = image.code_at(insn.addr);
        // mov r64, r/m64 and mov r/m64, r64, with any REX prefix that has W.
        if !matches!(code, Some([0x48..=0x4f, 0x89 | 0x8b, ..])) {
            continue;
        }
        let Some(i) = code.and_then(|c| decode_one(c, insn.addr)) else {
            continue;
        };
        if i.op0_kind() != OpKind::Register || i.op0_register() != Register::RSP {
            continue;
        }
        let foreign = match i.op1_kind() {
            OpKind::Register => {
                i.op1_register() != Register::RBP
                    && !keeps_stack_pointer(image, body, i.op1_register())
            }
            OpKind::Memory => !matches!(i.memory_base(), Register::RSP | Register::RBP),
            _ => false,
        };
        if !foreign {
            continue;
        }
        if calls {
            if matches!(
                code,
                Some([0x48, 0x89, 0xcc, 0x59, 0xff, 0xe1, ..] | [0x48, 0x89, 0xcc, 0xc3, ..])
            ) {
                return LeavesFor::OuterCaller;
            }
            continue;
        }
        let straight = body.insns[index..]
            .windows(2)
            .find(|pair| pair[0].flow != Flow::Next || pair[0].end() != pair[1].addr);
        let last = straight.map_or(body.insns[body.insns.len() - 1], |pair| pair[0]);
        if matches!(last.flow, Flow::Return | Flow::JumpIndirect) {
            return LeavesFor::OtherStack;
        }
    }
    LeavesFor::Caller
}

/// No function that switches stacks is longer.
const LONGEST_SWITCH: u64 = 1024;

/// Does the function copy its own stack pointer to `register` anywhere? Then what it loads from there is its own.
fn keeps_stack_pointer(image: &Image, body: &Body, register: Register) -> bool {
    body.insns.iter().any(|insn| {
        let i = image
            .code_at(insn.addr)
            .and_then(|c| decode_one(c, insn.addr));
        i.is_some_and(|i| {
            let to_it = i.op_count() == 2
                && i.op0_kind() == OpKind::Register
                && i.op0_register() == register;
            let of_rsp = match i.mnemonic() {
                Mnemonic::Mov => {
                    i.op1_kind() == OpKind::Register && i.op1_register() == Register::RSP
                }
                Mnemonic::Lea => i.memory_base() == Register::RSP,
                _ => false,
            };
            to_it && of_rsp
        })
    })
}
