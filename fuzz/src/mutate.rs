//! Inputs out of other inputs, the same ones from the same seed: bits, bytes and numbers that are likely to hurt, parts that
//! are cut out, doubled, or taken from another input.

/// No input is longer.
pub const LONGEST: usize = 256 << 10;

/// A small generator, so that a failure can be repeated from its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Small seeds are spread out, and none is 0.
        Random((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// 0 where there is nothing to choose from.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() >> 11) as usize % limit.max(1)
    }
}

const NUMBERS: [u64; 16] = [
    0,
    1,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x10000,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// One to eight changes to one of `inputs`.
pub fn mutated(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut data = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(8) {
        change(&mut data, inputs, random);
    }
    data.truncate(LONGEST);
    data
}

fn change(data: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut Random) {
    let at = random.below(data.len());
    let len = data.len();
    match random.below(9) {
        _ if data.is_empty() => data.push(random.word() as u8),
        0 => data[at] ^= 1 << random.below(8),
        1 => data[at] = random.word() as u8,
        2 | 3 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let size = [1, 2, 4, 8][random.below(4)].min(len - at);
            data[at..at + size].copy_from_slice(&number[..size]);
        }
        4 => {
            let step = random.below(32) as u8;
            data[at] = data[at].wrapping_add(step).wrapping_sub(16);
        }
        5 => {
            let end = (at + 1 + random.below(64)).min(len);
            data.drain(at..end);
        }
        6 => {
            let end = (at + 1 + random.below(64)).min(len);
            let part = data[at..end].to_vec();
            let to = random.below(len);
            data.splice(to..to, part);
        }
        7 => {
            let other = &inputs[random.below(inputs.len())];
            let from = random.below(other.len());
            let end = (from + random.below(256)).min(other.len());
            let replaced = (at + random.below(256)).min(len);
            data.splice(at..replaced, other[from..end].iter().copied());
        }
        _ => data.truncate(at),
    }
}
