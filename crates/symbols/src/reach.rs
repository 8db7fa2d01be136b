//! How far code reaches whose end nothing tells: as far as direct control flow leads from its
//! start.
//!
//! What lies behind may be a string or a table that somebody put among the code.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

/// Whether the `syscall` behind these instructions ends the thread or goes elsewhere (`mov $n,%eax`
/// shortly before it): rt_sigreturn, exit, exit_group.
pub fn syscall_never_returns(before: &[u8]) -> bool {
    const NUMBERS: [u8; 3] = [15, 60, 231];
    let near = &before[before.len().saturating_sub(24)..];
    let load = near.windows(5).rfind(|w| w[0] == 0xb8 && w[2..] == [0; 3]);
    load.is_some_and(|load| NUMBERS.contains(&load[1]))
}

/// The end of the last instruction that is reached from the first byte of `code`, which stands at
/// `start`. `None` where a way leads to what is no instruction, or runs out of a call to one of
/// `labels` (sorted): if the call does not return, that may be data.
pub(crate) fn end(code: &[u8], start: u64, labels: &[u64]) -> Option<u64> {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut seen = vec![false; code.len()];
    let mut instruction = Instruction::default();
    let mut work = vec![0];
    let mut end = 0;
    while let Some(from) = work.pop() {
        let mut at: usize = from;
        let mut after_call = false;
        while at < code.len() && !seen[at] {
            if after_call && labels.binary_search(&(start + at as u64)).is_ok() {
                return None;
            }
            decoder.set_position(at).ok()?;
            decoder.set_ip(start + at as u64);
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                if after_call {
                    // The call does not return.
                    break;
                }
                return None;
            }
            seen[at] = true;
            at += instruction.len();
            end = end.max(at);
            let flow = instruction.flow_control();
            let jumps = matches!(
                flow,
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            );
            if jumps && instruction.op0_kind() == OpKind::NearBranch64 {
                let target = instruction.near_branch_target().wrapping_sub(start);
                let target = usize::try_from(target).ok();
                work.extend(target.filter(|&t| t < code.len()));
            }
            // `syscall` is among them.
            after_call = matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
            let closed = match instruction.mnemonic() {
                Mnemonic::Hlt | Mnemonic::Int3 => true,
                Mnemonic::Syscall => syscall_never_returns(&code[..at - instruction.len()]),
                _ => matches!(
                    flow,
                    FlowControl::UnconditionalBranch
                        | FlowControl::IndirectBranch
                        | FlowControl::Return
                        | FlowControl::Exception
                ),
            };
            if closed {
                break;
            }
        }
    }
    Some(start + end as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_behind_the_last_reachable_instruction_is_no_part_of_it() {
        // ret; "EXIT"
        assert_eq!(end(b"\xc3EXIT", 0x10, &[]), Some(0x11));
        // jmp over a string; ret; zeroes
        assert_eq!(end(b"\xeb\x04EXIT\xc3\0\0\0", 0x10, &[]), Some(0x17));
        // je +1; ret; ret; data
        assert_eq!(end(b"\x74\x01\xc3\xc3data", 0x10, &[]), Some(0x14));
        // jmp *%rax; data
        assert_eq!(end(b"\xff\xe0data", 0x10, &[]), Some(0x12));
        // mov $60,%eax; syscall; data
        assert_eq!(end(b"\xb8\x3c\0\0\0\x0f\x05data", 0x10, &[]), Some(0x17));
    }

    #[test]
    fn a_way_that_leads_to_no_instruction_shows_that_it_is_no_code() {
        assert_eq!(end(b"\x90\x06\xc3", 0x10, &[]), None);
        // call 0x10; what follows is never reached
        let call = b"\xe8\xfb\xff\xff\xff";
        assert_eq!(end(&[call, &b"\x06"[..]].concat(), 0x10, &[]), Some(0x15));
        // The call may not return, and something with a name begins behind it.
        let named = [call, &b"\xc3"[..]].concat();
        assert_eq!(end(&named, 0x10, &[0x15]), None);
        assert_eq!(end(&named, 0x10, &[]), Some(0x16));
    }
}
