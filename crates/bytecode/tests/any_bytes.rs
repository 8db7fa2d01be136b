//! Any bytes are a program that ends, and none writes beyond its buffer.

use proptest::prelude::*;
use thalweg_bytecode::*;

/// Memory of which some is readable.
struct Patchy;

impl Memory for Patchy {
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize {
        let readable = (4096 - (at & 4095)) as usize;
        let len = into.len().min(readable);
        if at & 0x1000 != 0 {
            return 0;
        }
        for (i, byte) in into[..len].iter_mut().enumerate() {
            *byte = (at as u8).wrapping_add(i as u8);
        }
        len
    }
}

fn run(program: &[u8], room: usize) {
    let guard = 0xa5;
    let mut buffer = vec![guard; room + 64];
    let (inside, outside) = buffer.split_at_mut(room);
    let machine = Machine {
        int: [0x2000, 0x1000, 5, u64::MAX, 0x2ff8, 0, 0, 0, 0],
        sp: 0x4000,
        ..Machine::default()
    };
    let call = Call {
        number: 7,
        ..Call::default()
    };
    let mut out = Out::new(inside);
    entry(program, &machine, &mut Patchy, &Nowhere, &call, &mut out);
    assert!(out.len() <= room);
    let values = out.written().to_vec();
    exit(program, &machine, &mut Patchy, &call, &values, &mut out);
    assert!(out.len() <= room);
    Items::new(out.written()).for_each(drop);
    assert!(outside.iter().all(|byte| *byte == guard));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_end_and_stay_in_their_buffer(bytes in prop::collection::vec(any::<u8>(), 0..300), room in 0usize..200) {
        run(&bytes, room);
    }

    #[test]
    fn any_code_behind_a_right_header_ends_and_stays_in_its_buffer(
        code in prop::collection::vec(prop_oneof![0u8..=112, 0u8..8, any::<u8>()], 0..400),
        split in 0usize..400, room in 0usize..200, flags in any::<u16>(),
    ) {
        let split = split.min(code.len());
        let header = Header {
            flags,
            entry_len: split as u32,
            exit_len: (code.len() - split) as u32,
            ..Header::default()
        };
        let mut program = header.write().to_vec();
        program.extend_from_slice(&code);
        run(&program, room);
    }
}
