//! Who reads flags, by the bytes at home alone.

use std::collections::HashSet;

use iced_x86::{Instruction, Mnemonic, Register};
use thalweg_patch::code::{Flow, Image, Insn, decode_one};

/// How far the flags are followed behind a counter.
const MOST_FLAGS: usize = 2000;

/// Whether some way from `home` on reads one of these flags before it is set.
pub(super) fn reads_flags(image: &Image, home: u64, flags: u32) -> bool {
    let (mut work, mut seen) = (vec![(home, flags)], HashSet::new());
    while let Some((at, unset)) = work.pop() {
        if unset == 0 || !seen.insert((at, unset)) || seen.len() > MOST_FLAGS {
            continue;
        }
        let code = image.code_at(at).and_then(|code| decode_one(code, at));
        let Some((one, insn)) = code.and_then(|one| Some((one, Insn::from_iced(&one)?))) else {
            continue;
        };
        if one.rflags_read() & unset != 0 && insn.flow != Flow::Kernel {
            return true;
        }
        // Repetitions of nothing and shifts by nothing change no flag.
        let may_be_none = one.has_rep_prefix()
            || one.has_repne_prefix()
            || is_shift(&one) && one.op_register(one.op_count() - 1) == Register::CL;
        let unset = match may_be_none {
            true => unset,
            false => unset & !one.rflags_modified(),
        };
        match insn.flow {
            // Neither arguments nor results are flags, but where hand-written code says so.
            Flow::Call(_) | Flow::CallIndirect | Flow::Return | Flow::ReturnPop => continue,
            _ => {}
        }
        work.extend(insn.jump_target().map(|target| (target, unset)));
        if !insn.closed() {
            work.push((insn.end(), unset));
        }
    }
    false
}

fn is_shift(one: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        one.mnemonic(),
        Shl | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd
    )
}
