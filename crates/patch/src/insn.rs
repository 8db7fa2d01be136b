//! One instruction, reduced to what decides whether and how it can be moved.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

/// How control goes on after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Next,
    Jump(u64),
    /// Conditional on flags.
    Branch(u64),
    /// `jrcxz`, `loop`: conditional, and has no form with a 32-bit displacement.
    CountBranch(u64),
    JumpIndirect,
    Call(u64),
    CallIndirect,
    Return,
    /// `ret imm16`.
    ReturnPop,
    /// `ud2`, `hlt`, `int3`: nothing behind it runs.
    Stop,
    /// `syscall`, `int n`: the kernel may restart it, so it has to stay where it is.
    Kernel,
    /// `xbegin`: falls through, or goes to its target when the transaction aborts.
    Transaction(u64),
    /// Something that cannot be moved or followed (far branches, `iret`).
    Unmovable,
}

#[derive(Clone, Copy, Debug)]
pub struct Insn {
    pub addr: u64,
    pub len: u8,
    pub flow: Flow,
    pub nop: bool,
    /// Belongs at its place for a reason other than where control goes: `endbr64`, an indirect jump or call whose
    /// operand is on a part of the stack that its stub would change.
    pub fixed: bool,
}

impl Insn {
    pub fn end(&self) -> u64 {
        self.addr + u64::from(self.len)
    }

    /// Nothing falls through to the byte behind it.
    pub fn closed(&self) -> bool {
        matches!(
            self.flow,
            Flow::Jump(_) | Flow::JumpIndirect | Flow::Return | Flow::ReturnPop | Flow::Stop
        )
    }

    /// May run at another address, once re-encoded.
    pub fn movable(&self) -> bool {
        !self.fixed
            && !matches!(
                self.flow,
                Flow::Call(_)
                    | Flow::CallIndirect
                    | Flow::Kernel
                    | Flow::Transaction(_)
                    | Flow::Unmovable
                    | Flow::Stop
            )
    }

    /// Target of a direct jump, conditional or not.
    pub fn jump_target(&self) -> Option<u64> {
        match self.flow {
            Flow::Jump(t) | Flow::Branch(t) | Flow::CountBranch(t) => Some(t),
            _ => None,
        }
    }

    pub fn from_iced(i: &Instruction) -> Option<Insn> {
        if i.is_invalid() || talks_to_ports(i) {
            return None;
        }
        let near = i.near_branch_target();
        let flow = match i.flow_control() {
            FlowControl::Next => match i.mnemonic() {
                Mnemonic::Hlt => Flow::Stop,
                _ => Flow::Next,
            },
            FlowControl::UnconditionalBranch => match i.code() {
                Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Flow::Jump(near),
                _ => Flow::Unmovable,
            },
            FlowControl::ConditionalBranch => {
                if i.is_jcc_short_or_near() {
                    Flow::Branch(near)
                } else {
                    Flow::CountBranch(near)
                }
            }
            FlowControl::IndirectBranch => match i.code() {
                Code::Jmp_rm64 => Flow::JumpIndirect,
                _ => Flow::Unmovable,
            },
            FlowControl::Call => match i.code() {
                Code::Call_rel32_64 => Flow::Call(near),
                _ => Flow::Kernel,
            },
            FlowControl::IndirectCall => match i.code() {
                Code::Call_rm64 => Flow::CallIndirect,
                _ => Flow::Unmovable,
            },
            FlowControl::Return => match i.code() {
                Code::Retnq => Flow::Return,
                Code::Retnq_imm16 => Flow::ReturnPop,
                _ => Flow::Unmovable,
            },
            FlowControl::Interrupt => match i.code() {
                Code::Int3 => Flow::Stop,
                _ => Flow::Kernel,
            },
            FlowControl::Exception => Flow::Stop,
            FlowControl::XbeginXabortXend => match i.code() {
                Code::Xbegin_rel16 | Code::Xbegin_rel32 => Flow::Transaction(near),
                _ => Flow::Kernel,
            },
        };
        let eip_relative = i.is_ip_rel_memory_operand() && i.memory_base() == Register::EIP;
        let count_in_ecx = matches!(
            i.code(),
            Code::Jecxz_rel8_64
                | Code::Loop_rel8_64_ECX
                | Code::Loope_rel8_64_ECX
                | Code::Loopne_rel8_64_ECX
        );
        Some(Insn {
            addr: i.ip(),
            len: i.len() as u8,
            flow: if eip_relative || count_in_ecx {
                Flow::Unmovable
            } else {
                flow
            },
            nop: i.mnemonic() == Mnemonic::Nop,
            fixed: matches!(i.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Endbr32)
                || needs_own_stack(i),
        })
    }
}

pub fn decoder(bytes: &[u8], addr: u64) -> Decoder<'_> {
    Decoder::with_ip(64, bytes, addr, DecoderOptions::NONE)
}

/// Decodes the instruction at the start of `bytes`.
pub fn decode_one(bytes: &[u8], addr: u64) -> Option<Instruction> {
    let window = &bytes[..bytes.len().min(15)];
    let instruction = decoder(window, addr).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// No program may execute these; but strings are full of them, since the letters l to o are such instructions.
fn talks_to_ports(i: &Instruction) -> bool {
    matches!(
        i.mnemonic(),
        Mnemonic::In
            | Mnemonic::Out
            | Mnemonic::Insb
            | Mnemonic::Insw
            | Mnemonic::Insd
            | Mnemonic::Outsb
            | Mnemonic::Outsw
            | Mnemonic::Outsd
    )
}

/// Is all of `bytes` `nop` in one of its forms, or `int3`?
pub fn only_nops(bytes: &[u8], addr: u64) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match decode_one(&bytes[at..], addr + at as u64) {
            Some(i) if matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) => at += i.len(),
            _ => return false,
        }
    }
    true
}

/// How many bytes at the start of `bytes` are padding: `nop` in all its forms, `int3`, zeros.
pub(crate) fn padding_len(bytes: &[u8], addr: u64) -> usize {
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            0xcc | 0x00 | 0x90 => at += 1,
            _ => match decode_one(&bytes[at..], addr + at as u64) {
                Some(i) if i.mnemonic() == Mnemonic::Nop => at += i.len(),
                _ => {
                    // A nop cut off by the limit of the range is padding to its end.
                    let cut_off = [0x66, 0x2e, 0x0f].contains(&bytes[at])
                        && bytes.len() - at < 11
                        && cut_nop(&bytes[at..]);
                    return if cut_off { bytes.len() } else { at };
                }
            },
        }
    }
    at.min(bytes.len())
}

/// Is `bytes` the beginning of a long nop whose rest lies outside?
fn cut_nop(bytes: &[u8]) -> bool {
    let mut padded = [0u8; 15];
    padded[..bytes.len()].copy_from_slice(bytes);
    bytes.len() >= 3
        && decode_one(&padded, 0)
            .is_some_and(|i| i.mnemonic() == Mnemonic::Nop && i.len() > bytes.len())
}

fn needs_own_stack(i: &Instruction) -> bool {
    let (Code::Call_rm64 | Code::Jmp_rm64) = i.code() else {
        return false;
    };
    match i.op0_kind() {
        OpKind::Register => i.op0_register() == Register::RSP,
        _ => {
            let below = i.code() == Code::Call_rm64 || (i.memory_displacement64() as i64) < 0;
            i.memory_base() == Register::RSP && below
        }
    }
}
