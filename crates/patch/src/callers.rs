//! Instructions that call: found by the return address that they leave, to say whether they name what they call.

use std::collections::HashMap;

use thalweg_symbols::Module;

use crate::image::Image;
use crate::insn::{Flow, Insn, decode_one};

/// How an instruction says where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By an address in the instruction, or through the linkage table: `call f`, `call f@PLT`, `call *f@GOT`.
    Direct,
    /// By a pointer in a register or in memory.
    Indirect,
}

/// An instruction that calls or jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallingInsn {
    pub address: u64,
    pub reach: Reach,
}

/// Finds calling instructions of one module, each function decoded once. Addresses are the module's own.
pub struct Callers<'m> {
    module: &'m Module,
    image: Image<'m>,
    /// By function: the calls in it by where they end.
    known: HashMap<usize, HashMap<u64, CallingInsn>>,
}

impl<'m> Callers<'m> {
    pub fn new(module: &'m Module) -> Callers<'m> {
        Callers {
            module,
            image: Image::new(module),
            known: HashMap::new(),
        }
    }

    /// The call that returns to `address`; `None` where there is none, or its function cannot be decoded up to there.
    pub fn returning_to(&mut self, address: u64) -> Option<CallingInsn> {
        let function = self.module.function_at(address.checked_sub(1)?)?;
        if !self.known.contains_key(&function) {
            let calls = self.calls_in(function);
            self.known.insert(function, calls);
        }
        self.known[&function].get(&address).copied()
    }

    /// How the jump at `address` says where it goes.
    pub fn jump_at(&self, address: u64) -> Option<Reach> {
        let instruction = decode_one(self.image.code_at(address)?, address)?;
        match Insn::from_iced(&instruction)?.flow {
            Flow::Jump(target) | Flow::Branch(target) => Some(self.direct(target)),
            Flow::JumpIndirect => Some(self.through(&instruction)),
            // The function runs on into the next.
            _ => Some(Reach::Direct),
        }
    }

    fn calls_in(&self, function: usize) -> HashMap<u64, CallingInsn> {
        let function = &self.module.functions[function];
        let mut calls = HashMap::new();
        let mut at = function.start;
        while at < function.end {
            let code = self.image.code_at(at);
            let Some(instruction) = code.and_then(|code| decode_one(code, at)) else {
                // Data among code: what follows may still be code.
                at += 1;
                continue;
            };
            let end = instruction.next_ip();
            let reach = match Insn::from_iced(&instruction).map(|insn| insn.flow) {
                Some(Flow::Call(target)) => Some(self.direct(target)),
                Some(Flow::CallIndirect) => Some(self.through(&instruction)),
                _ => None,
            };
            if let Some(reach) = reach {
                calls.insert(end, CallingInsn { address: at, reach });
            }
            at = end;
        }
        calls
    }

    /// A thunk that jumps to where a register points is an indirect call's disguise.
    fn direct(&self, target: u64) -> Reach {
        let thunk = self.module.function_at(target).is_some_and(|function| {
            let function = &self.module.functions[function];
            function.start == target && function.name.starts_with("__x86_indirect_thunk")
        });
        match thunk {
            true => Reach::Indirect,
            false => Reach::Direct,
        }
    }

    fn through(&self, instruction: &iced_x86::Instruction) -> Reach {
        let in_linkage_table = instruction.is_ip_rel_memory_operand()
            && self
                .module
                .section_at(instruction.ip_rel_memory_address())
                .is_some_and(|section| section.name.starts_with(".got"));
        match in_linkage_table {
            true => Reach::Direct,
            false => Reach::Indirect,
        }
    }
}
