//! Which system call a block makes.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

/// The number that is in `eax` at the end of a block that makes a system call, if the block puts a constant there.
pub fn system_call_number(code: &[u8]) -> Option<u32> {
    const BITS: u32 = 64;
    let mut decoder = Decoder::new(BITS, code, DecoderOptions::NONE);
    let mut number = None;
    while decoder.can_decode() {
        let one = decoder.decode();
        if one.is_invalid() {
            return None;
        }
        match one.code() {
            Code::Syscall => return number,
            _ if is_into_eax(&one) => number = constant(&one),
            _ => {}
        }
    }
    None
}

fn is_into_eax(one: &Instruction) -> bool {
    one.op_count() > 0
        && one.op0_kind() == OpKind::Register
        && one.op0_register().full_register() == Register::RAX
        && !matches!(
            one.mnemonic(),
            iced_x86::Mnemonic::Cmp | iced_x86::Mnemonic::Test | iced_x86::Mnemonic::Push
        )
}

fn constant(one: &Instruction) -> Option<u32> {
    match one.code() {
        Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 => Some(one.immediate32()),
        Code::Mov_rm64_imm32 => u32::try_from(one.immediate32to64()).ok(),
        Code::Xor_r32_rm32 | Code::Xor_rm32_r32 if one.op1_kind() == OpKind::Register => {
            (one.op0_register() == one.op1_register()).then_some(0)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_constant_before_the_instruction_is_the_number() {
        // mov eax, 39; syscall
        assert_eq!(system_call_number(&[0xb8, 39, 0, 0, 0, 0x0f, 5]), Some(39));
        // mov eax, 39; xor eax, eax; syscall
        let read = [0xb8, 39, 0, 0, 0, 0x31, 0xc0, 0x0f, 5];
        assert_eq!(system_call_number(&read), Some(0));
        // mov eax, 39; mov rax, rdi; syscall
        let given = [0xb8, 39, 0, 0, 0, 0x48, 0x89, 0xf8, 0x0f, 5];
        assert_eq!(system_call_number(&given), None);
        // mov eax, 39
        assert_eq!(system_call_number(&[0xb8, 39, 0, 0, 0]), None);
    }
}
