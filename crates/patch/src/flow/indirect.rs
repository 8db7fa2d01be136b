//! Indirect jumps: within the function, by a table of its own, or out of it.

use super::Body;
use super::exits::frame_gone;
use crate::image::Image;
use crate::insn::{Flow, decode_one};
use crate::interface::SkipReason;
use crate::targets::Targets;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Does the indirect jump at `index` leave the function? `Err` when it may go to places inside that nobody told.
pub(super) fn indirect(
    image: &Image,
    targets: &Targets,
    function: usize,
    body: &Body,
    index: usize,
) -> Result<bool, SkipReason> {
    let at = body.insns[index].addr;
    let unresolved = Err(SkipReason::UnresolvedJump { at });
    let Some(jump) = image.code_at(at).and_then(|b| decode_one(b, at)) else {
        return unresolved;
    };
    let inner_targets = targets.any_in(body.insns[body.entry].addr + 1, body.end);
    let resolved = targets.with_tables.contains(&function) || inner_targets;
    let computed = match jump.op0_kind() {
        OpKind::Register => definition(image, body, index, jump.op0_register()),
        _ => Some(jump),
    };
    let from_table =
        |i: &Instruction| i.memory_index() != Register::None && i.memory_index_scale() == 8;
    let local = match &computed {
        // Register that came in from elsewhere: a pointer to a function.
        None => false,
        Some(i) => match i.mnemonic() {
            Mnemonic::Mov | Mnemonic::Jmp if has_memory(i) => from_table(i) && inner_targets,
            Mnemonic::Lea if i.is_ip_rel_memory_operand() => {
                (body.start..body.end).contains(&i.ip_rel_memory_address())
            }
            // An offset from a table's start.
            Mnemonic::Add | Mnemonic::Lea
                if offset_from_table(image, targets, function, body, index, i) =>
            {
                return Ok(false);
            }
            Mnemonic::Add | Mnemonic::Sub | Mnemonic::Lea | Mnemonic::Movsxd => return unresolved,
            // Copied, chosen among several, or unscrambled: a pointer to a function.
            _ => false,
        },
    };
    if local {
        return Ok(false);
    }
    if frame_gone(image, body, index) {
        return Ok(true);
    }
    // With a frame on the stack it stays inside, and somebody must have told where.
    if resolved { Ok(false) } else { unresolved }
}

/// `sum` is `add a, b` or `lea c, [a + b]` before the jump at `index`: is one a table known to hold offsets of targets, the other such an offset?
///
/// The table's address may come from far away; then any table of the function will do.
fn offset_from_table(
    image: &Image,
    targets: &Targets,
    function: usize,
    body: &Body,
    index: usize,
    sum: &Instruction,
) -> bool {
    let summands = match sum.op1_kind() {
        OpKind::Register => [sum.op0_register(), sum.op1_register()],
        OpKind::Memory if sum.mnemonic() == Mnemonic::Lea && sum.memory_index_scale() == 1 => {
            [sum.memory_base(), sum.memory_index()]
        }
        _ => return false,
    };
    let Some(at) = body.index_of(sum.ip()).filter(|&at| at <= index) else {
        return false;
    };
    let sources = summands.map(|r| definition(image, body, at, r));
    let base = sources
        .iter()
        .flatten()
        .find(|i| i.is_ip_rel_memory_operand() && i.mnemonic() == Mnemonic::Lea);
    let is_offset = |i: &Instruction| {
        i.mnemonic() == Mnemonic::Movsxd
            && has_memory(i)
            && (i.memory_index_scale() == 4 || i.is_ip_rel_memory_operand())
    };
    let has_offset = || sources.iter().flatten().any(is_offset);
    match base.map(|lea| lea.ip_rel_memory_address()) {
        Some(table) if !image.is_code(table) => targets.tables.contains(&table),
        Some(label) => targets.tables.contains(&label) && has_offset(),
        None => targets.with_tables.contains(&function) && has_offset(),
    }
}

fn has_memory(i: &Instruction) -> bool {
    (0..i.op_count()).any(|op| i.op_kind(op) == OpKind::Memory)
}

/// The last instruction before `index`, in straight line, that sets `register`.
fn definition(image: &Image, body: &Body, index: usize, register: Register) -> Option<Instruction> {
    let mut i = index;
    for _ in 0..16 {
        let before = *body.insns.get(i.checked_sub(1)?)?;
        if before.end() != body.insns[i].addr || before.closed() {
            return None;
        }
        if matches!(before.flow, Flow::Call(_) | Flow::CallIndirect) {
            return None;
        }
        let instruction = decode_one(image.code_at(before.addr)?, before.addr)?;
        let writes = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().full_register() == register.full_register()
            && !matches!(
                instruction.mnemonic(),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt
            );
        if writes {
            return Some(instruction);
        }
        i -= 1;
    }
    None
}
