//! The instructions of a block, for those who show them.

use iced_x86::{FastFormatter, Instruction};
use thalweg_patch::code::decoder;

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub address: u64,
    pub len: usize,
    /// In Intel's notation.
    pub text: String,
}

/// The instructions of `code`, which lies at `address`; up to the first that is none.
pub fn listed(code: &[u8], address: u64) -> Vec<Listed> {
    let mut decoder = decoder(code, address);
    let mut instruction = Instruction::default();
    let mut formatter = FastFormatter::new();
    formatter
        .options_mut()
        .set_space_after_operand_separator(true);
    let mut all = Vec::new();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            break;
        }
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let (address, len) = (instruction.ip(), instruction.len());
        all.push(Listed { address, len, text });
    }
    all
}
