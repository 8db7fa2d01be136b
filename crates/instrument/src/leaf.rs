//! The code by which a leaf counts its own calls, in its stub: the picture is in `abi/leaf.rs`.

use thalweg_abi as shm;

/// Two registers, a call, a number and a jump.
const SLOW: u64 = 10 + 5 + 7 + 2;
const MARK: u64 = 8;

/// How the code behind the mark begins; no displaced instruction of a program does.
pub const FIRST: [u8; 16] = [
    0x48, 0x89, 0x44, 0x24, 0xf8, // mov [rsp - 8], rax
    0x4c, 0x89, 0x54, 0x24, 0xf0, // mov [rsp - 16], r10
    0x31, 0xc0, // xor eax, eax
    0x64, 0x4c, 0x8b, 0x10, // mov r10, fs:[rax]
];

const RESTORE: [u8; 10] = [
    0x4c, 0x8b, 0x54, 0x24, 0xf0, // mov r10, [rsp - 16]
    0x48, 0x8b, 0x44, 0x24, 0xf8, // mov rax, [rsp - 8]
];

/// What stands before a leaf's code, from `at` on. `probe` is called where the plain case does not hold.
pub(crate) fn put_lead(probe: u64, number: u32, at: u64, out: &mut Vec<u8>) {
    let unaligned = (at + 1 + SLOW + MARK) % 8;
    let fill = 1 + (8 - unaligned) % 8;
    out.extend((0..fill).map(|_| 0xcc));
    out.extend(RESTORE);
    let behind = at + fill + RESTORE.len() as u64 + 5;
    out.push(0xe8);
    out.extend((probe.wrapping_sub(behind) as u32).to_le_bytes());
    out.extend([0x0f, 0x1f, 0x80]);
    out.extend(number.to_le_bytes());
    out.extend([0xeb, (MARK + shm::LEAF_CODE) as u8]);
    out.extend(shm::LEAF_MARK.to_le_bytes());
}

/// The code itself, right behind its lead.
pub(crate) fn put_code(number: u32, out: &mut Vec<u8>) {
    let start = out.len();
    let to_slow = |condition: u8, out: &mut Vec<u8>| {
        let back = out.len() + 2 - start + (MARK + SLOW) as usize;
        out.extend([condition, (back as u8).wrapping_neg()]);
    };
    const NOT_EQUAL: u8 = 0x75;
    const ABOVE: u8 = 0x77;
    out.extend(FIRST);
    out.extend([0x65, 0x4c, 0x3b, 0x50, shm::PRIVATE_OWNER as u8]); // cmp r10, gs:[rax + OWNER]
    to_slow(NOT_EQUAL, out);
    out.extend([0x65, 0x48, 0x8b, 0x40, shm::PRIVATE_TOP as u8]); // mov rax, gs:[rax + TOP]
    out.extend([0x65, 0x4c, 0x8b, 0x50, shm::FRAME_KEY as u8]); // mov r10, gs:[rax + KEY]
    out.extend([0x49, 0x29, 0xe2]); // sub r10, rsp
    out.extend([0x49, 0x83, 0xc2, 8]); // add r10, 8: a probe that is called has its return address below
    out.extend([0x49, 0x81, 0xfa]); // cmp r10, WINDOW
    out.extend((shm::WINDOW as u32).to_le_bytes());
    to_slow(ABOVE, out);
    out.extend([0x65, 0x48, 0x8b, 0x40, shm::FRAME_NODE as u8]); // mov rax, gs:[rax + NODE]
    let compare = |place: usize, out: &mut Vec<u8>| {
        let place = shm::NODE_CHILDREN + 8 * place;
        out.extend([0x4c, 0x8b, 0x50, place as u8]); // mov r10, [rax + place]
        out.extend([0x41, 0x81, 0x7a, shm::NODE_FUNCTION as u8]); // cmp dword ptr [r10 + FUNCTION], number
        out.extend(number.to_le_bytes());
    };
    let [first, second] = shm::child_places(number);
    compare(first, out);
    out.extend([0x74, 4 + 8 + 2]); // je to the `inc`
    compare(second, out);
    to_slow(NOT_EQUAL, out);
    out.extend([0x49, 0xff, 0x42, shm::NODE_CALLS as u8]); // inc qword ptr [r10 + CALLS]
    out.extend(RESTORE);
}

const _: () = {
    assert!(shm::NODE_CHILDREN + 8 * (shm::CHILD_SLOTS as usize - 1) < 128);
    assert!(shm::WINDOW < 1 << 31);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_as_long_as_the_agent_takes_it_to_be_and_aligned() {
        for at in 0x1000..0x1008u64 {
            let mut out = Vec::new();
            put_lead(0x100, 77, at, &mut out);
            let lead = out.len();
            assert_eq!((at + lead as u64) % 8, 0);
            assert_eq!(out[0], 0xcc);
            assert_eq!(out[lead - 8..], shm::LEAF_MARK.to_le_bytes());
            put_code(77, &mut out);
            assert_eq!((out.len() - lead) as u64, shm::LEAF_CODE);
            // The jump behind the slow path leads to the end, and those to the slow path to its start.
            let slow = lead - (MARK + SLOW) as usize;
            assert_eq!(out[slow..slow + 10], RESTORE);
            let jump = lead - MARK as usize;
            assert_eq!(out[jump - 2], 0xeb);
            assert_eq!(jump + usize::from(out[jump - 1]), out.len());
            let goals: Vec<usize> = (lead..out.len() - 1)
                .filter(|&i| matches!(out[i], 0x75 | 0x77) && out[i + 1] >= 0x80)
                .map(|i| (i + 2).wrapping_add_signed(isize::from(out[i + 1] as i8)))
                .collect();
            assert_eq!(goals, [slow; 3]);
        }
    }
}
