//! Single instructions for a new place: everything stays as it is but what depends on the address.

use crate::insn::decode_one;
use iced_x86::{Decoder, DecoderOptions, OpKind, Register};

/// Machine code with at most one displacement that depends on where it stands.
pub struct Piece {
    pub bytes: Vec<u8>,
    /// Offset of a 32-bit displacement, and the module address that it has to reach.
    pub relative: Option<(usize, u64)>,
}

/// The instruction at `addr` with its rip-relative operand, if any, left to fill in.
pub fn copy(bytes: &[u8], addr: u64) -> Option<Piece> {
    let mut decoder = Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return None;
    }
    let relative = if instruction.is_ip_rel_memory_operand() {
        let offsets = decoder.get_constant_offsets(&instruction);
        if offsets.displacement_size() != 4 {
            return None;
        }
        Some((
            offsets.displacement_offset(),
            instruction.ip_rel_memory_address(),
        ))
    } else {
        None
    };
    Some(Piece {
        bytes: bytes.to_vec(),
        relative,
    })
}

/// Where the opcode starts: (legacy prefixes, REX byte or 0, offset of the opcode).
fn opcode(bytes: &[u8]) -> Option<(&[u8], u8, usize)> {
    let legacy = bytes.iter().position(|b| {
        !matches!(
            b,
            0x66 | 0x67 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65
        )
    })?;
    match bytes[legacy] {
        rex @ 0x40..=0x4f => Some((&bytes[..legacy], rex, legacy + 1)),
        _ => Some((&bytes[..legacy], 0, legacy)),
    }
}

/// The condition of a conditional jump, as the low four bits of its opcode.
pub fn condition(bytes: &[u8]) -> Option<u8> {
    let (_, _, at) = opcode(bytes)?;
    match (bytes.get(at)?, bytes.get(at + 1)) {
        (op @ 0x70..=0x7f, _) => Some(op & 15),
        (0x0f, Some(op @ 0x80..=0x8f)) => Some(op & 15),
        _ => None,
    }
}

/// The opcode of `jrcxz` or `loop`, without its displacement.
pub fn count_branch(bytes: &[u8]) -> Option<Vec<u8>> {
    let (_, _, at) = opcode(bytes)?;
    matches!(bytes.get(at)?, 0xe0..=0xe3).then(|| vec![bytes[at]])
}

/// `call reg` or `call [mem]` as a jump.
pub fn call_to_jump(bytes: &[u8], addr: u64) -> Option<Piece> {
    let (_, _, at) = opcode(bytes)?;
    let mut piece = copy(bytes, addr)?;
    let modrm = *piece.bytes.get(at + 1)?;
    if bytes[at] != 0xff || modrm >> 3 & 7 != 2 {
        return None;
    }
    piece.bytes[at + 1] = modrm & 0xc7 | 4 << 3;
    Some(piece)
}

const SAVE_RAX: [u8; 5] = [0x48, 0x89, 0x44, 0x24, 0xe0];
const RESTORE_RAX: [u8; 5] = [0x48, 0x8b, 0x44, 0x24, 0xe0];
/// `mov [rsp-24], rax`.
const STORE_RAX: [u8; 5] = [0x48, 0x89, 0x44, 0x24, 0xe8];

fn plain(bytes: &[u8]) -> Piece {
    Piece {
        bytes: bytes.to_vec(),
        relative: None,
    }
}

/// Stores where the indirect jump at `addr` goes to `[rsp-24]`; changes nothing else but `[rsp-32]`.
pub(crate) fn store_target(bytes: &[u8], addr: u64) -> Option<Vec<Piece>> {
    let instruction = decode_one(bytes, addr)?;
    if instruction.op0_kind() == OpKind::Register {
        let register = instruction.op0_register();
        if register == Register::RSP {
            return None;
        }
        let number = register.number() as u8;
        let rex = 0x48 | (number >> 3) << 2;
        return Some(vec![plain(&[
            rex,
            0x89,
            0x44 | (number & 7) << 3,
            0x24,
            0xe8,
        ])]);
    }
    // jmp [mem]: ff /4  ->  mov rax, [mem]: 8b /0, with the same addressing bytes.
    let (legacy, rex, at) = opcode(bytes)?;
    let modrm = *bytes.get(at + 1)?;
    if bytes[at] != 0xff || modrm >> 3 & 7 != 4 {
        return None;
    }
    let mut load: Vec<u8> = legacy
        .iter()
        .copied()
        .filter(|b| matches!(b, 0x64 | 0x65 | 0x67))
        .collect();
    load.extend([0x48 | rex & 3, 0x8b, modrm & 0xc7]);
    let relative = instruction
        .is_ip_rel_memory_operand()
        .then(|| (load.len(), instruction.ip_rel_memory_address()));
    load.extend(&bytes[at + 2..]);
    Some(vec![
        plain(&SAVE_RAX),
        Piece {
            bytes: load,
            relative,
        },
        plain(&STORE_RAX),
        plain(&RESTORE_RAX),
    ])
}

/// Stores the pointer at module address `slot` to `[rsp-24]`; changes nothing else but `[rsp-32]`.
pub(crate) fn store_pointer(slot: u64) -> [Piece; 4] {
    let load = Piece {
        bytes: vec![0x48, 0x8b, 0x05, 0, 0, 0, 0],
        relative: Some((3, slot)),
    };
    [
        plain(&SAVE_RAX),
        load,
        plain(&STORE_RAX),
        plain(&RESTORE_RAX),
    ]
}
