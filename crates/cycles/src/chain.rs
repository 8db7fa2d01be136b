//! How long one round of a loop waits for the one before: `sum += x` cannot begin before the last `sum` is there, whatever else
//! the processor has room for.
//!
//! ```text
//! ready(result) = max(ready(address), ready(operand) - advance) + latency
//! chain = (ready after 2 n rounds - ready after n rounds) / n
//! ```
//!
//! Registers and flags only: what goes through memory is not followed, as `llvm-mca` does not.

use std::collections::HashMap;

use iced_x86::{
    Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
};

use crate::form::form;
use crate::table::Table;

/// Rounds until chains that are carried over several rounds have settled.
const ROUNDS: u64 = 16;

/// A register as a whole, or the flags, which are one.
fn whole(register: Register) -> Register {
    register.full_register()
}

/// Reads, and what it writes.
struct Uses {
    /// Of the address.
    address: Vec<Register>,
    operands: Vec<Register>,
    written: Vec<Register>,
}

/// Where flags are kept among the registers.
const FLAGS: Register = Register::None;

/// Not one that depends on its operands: `xor eax, eax`.
fn is_zero(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    let is_any = matches!(
        instruction.mnemonic(),
        M::Xor
            | M::Sub
            | M::Pxor
            | M::Xorps
            | M::Xorpd
            | M::Vpxor
            | M::Vxorps
            | M::Vxorpd
            | M::Vpxord
            | M::Vpxorq
            | M::Psubb
            | M::Psubw
            | M::Psubd
            | M::Psubq
    );
    let count = instruction.op_count();
    is_any
        && count >= 2
        && (count - 2..count).all(|index| instruction.op_kind(index) == OpKind::Register)
        && instruction.op_register(count - 1) == instruction.op_register(count - 2)
}

fn uses(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Uses {
    let mut uses = Uses {
        address: Vec::new(),
        operands: Vec::new(),
        written: Vec::new(),
    };
    let addresses = [instruction.memory_base(), instruction.memory_index()].map(whole);
    let is_zero = is_zero(instruction);
    for used in factory.info(instruction).used_registers() {
        let register = whole(used.register());
        if register == Register::RIP || register.is_segment_register() {
            continue;
        }
        use OpAccess as A;
        let access = used.access();
        // A part that is written is put into what there was.
        let is_part = register.is_gpr() && used.register().size() < 4;
        let reads = matches!(
            access,
            A::Read | A::CondRead | A::ReadWrite | A::ReadCondWrite | A::CondWrite
        ) || is_part;
        if reads && !is_zero {
            match addresses.contains(&register) && access == A::Read {
                true => uses.address.push(register),
                false => uses.operands.push(register),
            }
        }
        if matches!(
            access,
            A::Write | A::CondWrite | A::ReadWrite | A::ReadCondWrite
        ) {
            uses.written.push(register);
        }
    }
    if instruction.rflags_read() != RflagsBits::NONE {
        uses.operands.push(FLAGS);
    }
    if instruction.rflags_modified() != RflagsBits::NONE {
        uses.written.push(FLAGS);
    }
    uses
}

/// In cycles.
pub fn chain(table: &Table, instructions: &[Instruction]) -> u64 {
    let mut factory = InstructionInfoFactory::new();
    let steps: Vec<_> = instructions
        .iter()
        .map(|one| (table.class(form(one)), uses(&mut factory, one)))
        .collect();
    let mut ready: HashMap<Register, u64> = HashMap::new();
    let mut last = [0, 0];
    for time in &mut last {
        for _ in 0..ROUNDS {
            for (class, uses) in &steps {
                let of = |registers: &[Register]| {
                    let times = registers.iter().filter_map(|one| ready.get(one));
                    times.max().copied().unwrap_or(0)
                };
                let operands = of(&uses.operands).saturating_sub(class.advance.into());
                let done = of(&uses.address).max(operands) + u64::from(class.latency);
                for &register in &uses.written {
                    ready.insert(register, done);
                }
            }
        }
        *time = ready.values().max().copied().unwrap_or(0);
    }
    (last[1] - last[0]) / ROUNDS
}
