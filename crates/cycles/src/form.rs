//! The form of an instruction: what scheduling models tell apart.

use iced_x86::{Code, Instruction, OpKind, Register};

/// A code of the decoder's, and how its operands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Form(u32);

/// Operands in registers.
const PLAIN: u32 = 0;
/// The same register twice: `xor eax, eax` waits for nobody.
const SAME: u32 = 1;
const MEMORY: u32 = 2;
/// `rep movsb`.
const REPEATED: u32 = 3;
/// Addresses that `lea` computes are told by what they are made of.
const ADDRESS: u32 = 32;
const BASE: u32 = 1;
const INDEX: u32 = 2;
const SCALED: u32 = 4;
const DISPLACED: u32 = 8;
/// rbp, r13 or rip.
const SPECIAL: u32 = 16;
/// Kinds of a code.
const KINDS: u32 = 64;

impl Form {
    pub fn from_number(number: u32) -> Form {
        Form(number)
    }

    pub fn number(self) -> u32 {
        self.0
    }

    /// The form to look up where this one is not told apart.
    pub fn plain(self) -> Form {
        Form(self.0 / KINDS * KINDS)
    }
}

pub fn form(instruction: &Instruction) -> Form {
    let code = instruction.code();
    let kind = match code {
        _ if instruction.is_string_instruction()
            && (instruction.has_rep_prefix() || instruction.has_repne_prefix()) =>
        {
            REPEATED
        }
        Code::Lea_r16_m | Code::Lea_r32_m | Code::Lea_r64_m => ADDRESS | address(instruction),
        _ => operands(instruction),
    };
    Form(code as u32 * KINDS + kind)
}

fn operands(instruction: &Instruction) -> u32 {
    let count = instruction.op_count();
    let mut before = Register::None;
    for index in 0..count {
        match instruction.op_kind(index) {
            OpKind::Memory => return MEMORY,
            OpKind::Register => {
                let register = instruction.op_register(index);
                // The two sources, which are the last ones.
                if register == before && index + 1 == count {
                    return SAME;
                }
                before = register;
            }
            _ => before = Register::None,
        }
    }
    PLAIN
}

fn address(instruction: &Instruction) -> u32 {
    let base = instruction.memory_base();
    let has_index = instruction.memory_index() != Register::None;
    let is_special = matches!(
        base,
        Register::RBP
            | Register::EBP
            | Register::R13
            | Register::R13D
            | Register::RIP
            | Register::EIP
    );
    let mut kind = 0;
    if base != Register::None {
        kind |= BASE;
    }
    if has_index {
        kind |= INDEX;
        if instruction.memory_index_scale() > 1 {
            kind |= SCALED;
        }
    }
    if instruction.memory_displacement64() != 0 {
        kind |= DISPLACED;
    }
    if is_special {
        kind |= SPECIAL;
    }
    kind
}
