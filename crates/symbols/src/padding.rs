//! Fill bytes between functions: nop in all its forms, int3, zeroes.

use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};

/// The length of the padding instruction (or fill byte) at the start of `code`, 0 where there is
/// none.
pub(crate) fn padding_len(code: &[u8]) -> usize {
    match code.first() {
        Some(0x00 | 0xcc | 0x90) => return 1,
        Some(0x66 | 0x2e | 0x0f | 0xf3 | 0x48 | 0x8d | 0x87) => {}
        _ => return 0,
    }
    let mut decoder = Decoder::with_ip(64, &code[..code.len().min(15)], 0, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if is_padding(&instruction) {
        instruction.len()
    } else {
        0
    }
}

/// Does nothing at all, whatever it is encoded as.
fn is_padding(instruction: &iced_x86::Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Nop | Mnemonic::Int3 => true,
        Mnemonic::Xchg => {
            instruction.op0_register() == instruction.op1_register() && instruction.len() <= 3
        }
        // lea 0(%rsi,%riz,1),%rsi and kin: old assemblers' long nops.
        Mnemonic::Lea => {
            instruction.code() == Code::Lea_r64_m
                && instruction.memory_displacement64() == 0
                && instruction.memory_base() == instruction.op0_register()
                && instruction.memory_index() == iced_x86::Register::None
        }
        _ => false,
    }
}

/// Cuts padding off both ends of `code` at `start`; `None` where nothing else is in it.
pub(crate) fn trim_both(code: &[u8], start: u64) -> Option<(u64, u64)> {
    let mut skip = 0;
    loop {
        if skip >= code.len() {
            return None;
        }
        match padding_len(&code[skip..]) {
            0 => break,
            n => skip += n,
        }
    }
    let rest = &code[skip..];
    let begin = start + skip as u64;
    Some((begin, trim_end(rest, begin)))
}

/// The end of the last instruction that is not padding. Where the bytes cannot be decoded from
/// start to end (data among the code), nothing is cut off: the last bytes of an instruction look
/// like padding all too easily.
pub(crate) fn trim_end(code: &[u8], start: u64) -> u64 {
    let full = start + code.len() as u64;
    if !matches!(code.last(), Some(0x00 | 0xcc | 0x90)) {
        return full;
    }
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut instruction = iced_x86::Instruction::default();
    let mut end = start;
    while decoder.can_decode() {
        let position = decoder.position();
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            // A run of an odd number of zeroes leaves half an `add [rax],al` at the end.
            let zeroes = code[position..].iter().all(|&b| b == 0);
            return if zeroes { end } else { full };
        }
        let zeroes =
            instruction.code() == Code::Add_rm8_r8 && code[position..position + 2] == [0, 0];
        if !zeroes && !is_padding(&instruction) {
            end = instruction.next_ip();
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nop_an_assembler_emits_is_padding() {
        let nops: [&[u8]; 10] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
            &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            &[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            &[0x48, 0x8d, 0x76, 0x00],
        ];
        for nop in nops {
            assert_eq!(padding_len(nop), nop.len(), "{nop:02x?}");
        }
        assert_eq!(
            padding_len(&[0xf3, 0x0f, 0x1e, 0xfa]),
            0,
            "endbr64 begins functions"
        );
        assert_eq!(padding_len(&[0x48, 0x8d, 0x76, 0x01]), 0);
        assert_eq!(padding_len(&[]), 0);
    }

    #[test]
    fn an_instruction_that_ends_in_zeroes_is_not_cut() {
        // jmp +0x100
        assert_eq!(trim_end(&[0xe9, 0x00, 0x01, 0x00, 0x00], 0x10), 0x15);
        // jmp +0x100; nopl 0(%rax)
        assert_eq!(
            trim_end(&[0xe9, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x1f, 0x00], 0x10),
            0x15
        );
        // ret; int3; int3
        assert_eq!(trim_end(&[0xc3, 0xcc, 0xcc], 0x10), 0x11);
        // ret; zeroes, odd and even
        assert_eq!(trim_end(&[0xc3, 0, 0, 0], 0x10), 0x11);
        assert_eq!(trim_end(&[0xc3, 0, 0, 0, 0], 0x10), 0x11);
    }

    #[test]
    fn a_gap_of_padding_only_is_no_gap() {
        assert_eq!(trim_both(&[0x90, 0x66, 0x90, 0xcc, 0, 0], 0), None);
        assert_eq!(
            trim_both(&[0x90, 0x66, 0x90, 0xc3, 0xcc], 0x10),
            Some((0x13, 0x14))
        );
    }
}
