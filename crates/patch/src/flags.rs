//! Where probes have to leave the arithmetic flags alone.

use crate::image::Image;
use crate::insn::{Flow, Insn, decode_one};
use crate::targets::ARITHMETIC;

/// Instructions looked at before giving up and calling the flags live.
const LIMIT: usize = 96;

/// Does the code at `start` (of a function that ends at `end`) read a flag that it has not set?
pub fn read_before_set(image: &Image, start: u64, end: u64) -> bool {
    let mut work = vec![(start, ARITHMETIC)];
    let mut seen: Vec<(u64, u32)> = Vec::new();
    let mut left = LIMIT;
    while let Some((mut at, mut unset)) = work.pop() {
        while unset != 0 && (start..end).contains(&at) {
            if seen.contains(&(at, unset)) {
                break;
            }
            if left == 0 {
                return true;
            }
            left -= 1;
            let Some(instruction) = image.code_at(at).and_then(|b| decode_one(b, at)) else {
                break;
            };
            let Some(insn) = Insn::from_iced(&instruction) else {
                break;
            };
            // A system call saves the flags for the kernel's use only.
            if insn.flow == Flow::Kernel {
                break;
            }
            if instruction.rflags_read() & unset != 0 {
                return true;
            }
            let before = unset;
            unset &= !instruction.rflags_modified();
            if let Some(target) = insn.jump_target() {
                seen.push((at, before));
                work.push((target, unset));
            }
            if insn.closed()
                || !matches!(
                    insn.flow,
                    Flow::Next | Flow::Branch(_) | Flow::CountBranch(_)
                )
            {
                break;
            }
            at = insn.end();
        }
    }
    false
}
