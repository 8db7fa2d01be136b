//! The instructions of a group that can run, found by following its control flow.

use std::collections::{BTreeMap, HashMap};

use iced_x86::Instruction;
use thalweg_patch::SkipReason;
use thalweg_patch::code::{Flow, Image, Insn, Targets, decode_one};
use thalweg_symbols::syscall_never_returns;

use crate::group::Group;

/// Decoded code by address.
#[derive(Default)]
pub(crate) struct Code {
    pub insns: BTreeMap<u64, (Insn, Instruction)>,
    /// Who comes before each instruction, jump tables included as far as they are known.
    pub before: HashMap<u64, Vec<u64>>,
}

/// What a walk needs beside the code that it has found so far.
pub(crate) struct Walk<'a, 'm> {
    pub image: &'a Image<'m>,
    pub targets: &'a Targets,
    pub group: &'a Group,
}

/// Does an instruction that a thread may run next follow this one?
pub(crate) fn goes_on(image: &Image, insn: &Insn) -> bool {
    !insn.closed() && !ends_thread(image, insn)
}

/// A system call behind which nothing runs.
fn ends_thread(image: &Image, insn: &Insn) -> bool {
    if insn.flow != Flow::Kernel {
        return false;
    }
    let Some(function) = image.function_at(insn.addr) else {
        return false;
    };
    let start = image.module.functions[function].start;
    image
        .code_range(start, insn.addr)
        .is_some_and(syscall_never_returns)
}

pub(crate) fn is_call(insn: &Insn) -> bool {
    matches!(insn.flow, Flow::Call(_) | Flow::CallIndirect)
}

/// Calls and system calls run where they are.
pub(crate) fn stays_home(insn: &Insn) -> bool {
    is_call(insn) || insn.flow == Flow::Kernel
}

impl Walk<'_, '_> {
    /// Follows the code at `root`. On failure `code` is as it was.
    pub fn follow(&self, code: &mut Code, root: u64) -> Result<(), SkipReason> {
        let mut added = Vec::new();
        let result = self.add(code, root, &mut added);
        if result.is_err() {
            for address in added {
                code.insns.remove(&address);
            }
        }
        result
    }

    fn add(&self, code: &mut Code, root: u64, added: &mut Vec<u64>) -> Result<(), SkipReason> {
        // Behind a call that does not return may stand anything.
        let mut work = vec![(root, false)];
        while let Some((mut at, mut doubtful)) = work.pop() {
            while self.group.holds(at) && !code.insns.contains_key(&at) {
                let found = match self.decode(code, at) {
                    Err(_) if doubtful => break,
                    found => found?,
                };
                let insn = found.0;
                code.insns.insert(at, found);
                added.push(at);
                match insn.flow {
                    Flow::Transaction(_) | Flow::Unmovable => {
                        return Err(SkipReason::Undecodable { at });
                    }
                    // A call of a place in the function's own middle returns to a string, or nowhere.
                    Flow::Call(target)
                        if self.is_in_own_middle(at, target) && target != insn.end() =>
                    {
                        return Err(SkipReason::MaybeData { at: insn.end() });
                    }
                    _ => {}
                }
                if let Some(target) = insn.jump_target() {
                    work.push((target, false));
                }
                if !goes_on(self.image, &insn) {
                    break;
                }
                doubtful = is_call(&insn);
                at = insn.end();
            }
        }
        Ok(())
    }

    fn is_in_own_middle(&self, at: u64, target: u64) -> bool {
        let functions = &self.image.module.functions;
        let own = self.image.function_at(at);
        own.is_some_and(|own| functions[own].start < target && target < functions[own].end)
    }

    fn decode(&self, code: &Code, at: u64) -> Result<(Insn, Instruction), SkipReason> {
        let overlaps = |before: &Insn| before.addr < at && at < before.end();
        if code
            .insns
            .range(..at)
            .next_back()
            .is_some_and(|(_, (before, _))| overlaps(before))
        {
            return Err(SkipReason::Overlapping { at });
        }
        if self.targets.read.contains(&at) {
            return Err(SkipReason::MaybeData { at });
        }
        let bytes = self.image.code_at(at);
        let instruction = bytes.and_then(|bytes| decode_one(bytes, at));
        let insn = instruction.as_ref().and_then(Insn::from_iced);
        let (Some(insn), Some(instruction)) = (insn, instruction) else {
            return Err(SkipReason::Undecodable { at });
        };
        if insn.end() > self.group.end_of(at) {
            return Err(SkipReason::Undecodable { at });
        }
        if code.insns.range(at + 1..insn.end()).next().is_some() {
            return Err(SkipReason::Overlapping { at });
        }
        Ok((insn, instruction))
    }
}

impl Code {
    /// Notes anew who comes before whom. `tables`: computed jumps, and where each may go.
    pub fn connect(&mut self, image: &Image, tables: &[(u64, Vec<u64>)]) {
        self.before.clear();
        for (&at, (insn, _)) in &self.insns {
            let next = goes_on(image, insn).then(|| insn.end());
            for to in insn.jump_target().into_iter().chain(next) {
                self.before.entry(to).or_default().push(at);
            }
        }
        for (at, targets) in tables {
            for &to in targets {
                self.before.entry(to).or_default().push(*at);
            }
        }
    }
}
