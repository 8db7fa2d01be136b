//! Where the arithmetic flags mean something: a counter changes all of them but the carry.

use iced_x86::{Mnemonic, RflagsBits};
use thalweg_patch::code::{ARITHMETIC, Flow};

use crate::graph::{Graph, Next};

/// What `inc` changes.
pub(crate) const COUNTED: u32 = ARITHMETIC & !RflagsBits::CF;

/// What is known of code outside of a group.
pub(crate) struct Outside<'a> {
    /// Does the code at this address read a flag that it has not set?
    pub reads: &'a dyn Fn(u64) -> bool,
    /// A function of the group hands flags to its callers.
    pub returns_flags: bool,
}

/// The flags that are read later, before each instruction.
pub(crate) fn live(graph: &Graph, outside: &Outside) -> Vec<u32> {
    let mut live = vec![0; graph.insns.len()];
    let mut into = vec![0u32; graph.blocks.len()];
    let all_if = |reads: bool| if reads { ARITHMETIC } else { 0 };
    loop {
        let mut changed = false;
        for (index, block) in graph.blocks.iter().enumerate().rev() {
            let mut now = 0;
            for next in [block.jumps, block.falls].into_iter().flatten() {
                now |= match next {
                    Next::Block(next) => into[next],
                    Next::Outside(address) => all_if((outside.reads)(address)),
                };
            }
            now |= block.computed.iter().fold(0, |all, &next| all | into[next]);
            for at in (block.first..=block.last).rev() {
                let (insn, instruction) = &graph.insns[at];
                now = match insn.flow {
                    Flow::Call(target) => all_if((outside.reads)(target)),
                    Flow::CallIndirect => 0,
                    Flow::Return | Flow::ReturnPop => all_if(outside.returns_flags),
                    _ => {
                        let set = match may_leave_flags(instruction) {
                            true => 0,
                            false => instruction.rflags_modified(),
                        };
                        now & !set | instruction.rflags_read() & ARITHMETIC
                    }
                };
                live[at] = now;
            }
            changed |= into[index] != now;
            into[index] = now;
        }
        if !changed {
            return live;
        }
    }
}

/// Shifts by nothing and repetitions of nothing change no flag.
fn may_leave_flags(instruction: &iced_x86::Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        instruction.mnemonic(),
        Shl | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd | Syscall
    ) || instruction.has_rep_prefix()
        || instruction.has_repne_prefix()
}
