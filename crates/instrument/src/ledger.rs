//! The ledger: every byte that was changed in the target, and how program counters translate. It lies in the target's
//! shared memory before the first byte of text is written, so that any later process can undo everything.

mod switches;

use thalweg_patch::{Emitted, Patch, PatchBytes};

use crate::error::{Error, Result};
use crate::proc::Mapping;
use crate::survey::Surveyed;

pub use switches::{NOBODYS, Switchable, Switches, Tail};

/// All patches of one target.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// In the order in which they are written; undone in the reverse order.
    pub patches: Vec<Patch>,
    /// Stub pc -> original pc, sorted.
    pub back: Vec<(u64, u64)>,
    /// Original pc -> stub pc, sorted.
    pub moves: Vec<(u64, u64)>,
    /// Whose each patch is, parallel to `patches`: a function's number, or `NOBODYS`.
    pub owners: Vec<u32>,
    /// The functions whose probes can be switched.
    pub switchable: Vec<Switchable>,
    /// Probes before jumps to functions of this ledger.
    pub tails: Vec<Tail>,
    /// Which files' code lay where, patched or not: a patch is undone only where its file is still mapped.
    pub texts: Vec<Text>,
    /// Which modules lay where, for those who meet an address later.
    pub homes: Vec<Home>,
    /// What is changed beside code.
    pub data: Vec<Data>,
}

/// Data of the target that a language's runtime goes by, which is as it was again after a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// A byte that is 1 and was 0.
    Flag { address: u64 },
    /// Objects in a list, each with a word that is `value` and was 0.
    Words {
        /// Where the address of the first one is.
        head: u64,
        /// Offsets in an object: the address of the next one, the word.
        next: u32,
        word: u32,
        value: u64,
    },
}

/// A module at its place in an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// From its first to its last mapped byte.
    pub low: u64,
    pub high: u64,
    /// What the loader added to its addresses.
    pub bias: u64,
    /// The number of one of its functions.
    pub function: u32,
}

impl Home {
    /// `None` for a module of which nothing is counted.
    pub fn of(surveyed: &Surveyed, numbers: &[u32]) -> Option<Home> {
        let first = surveyed.numbered().next()?;
        Some(Home {
            low: surveyed.low,
            high: surveyed.high,
            bias: surveyed.bias,
            function: numbers[first],
        })
    }
}

/// A part of a file's code at its place in an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Text {
    pub start: u64,
    pub end: u64,
    /// Offset of `start` in the file.
    pub offset: u64,
    pub dev: (u32, u32),
    pub inode: u64,
}

impl Text {
    pub fn of(mapping: &Mapping) -> Text {
        Text {
            start: mapping.start.0,
            end: mapping.end.0,
            offset: mapping.offset,
            dev: mapping.dev,
            inode: mapping.inode,
        }
    }

    /// Whether `maps` shows the same part of the same file at `address`.
    pub fn is_mapped_at(&self, maps: &[Mapping], address: u64) -> bool {
        let next = maps.partition_point(|m| m.start.0 <= address);
        let Some(mapping) = maps[..next].last() else {
            return false;
        };
        address < mapping.end.0
            && mapping.dev == self.dev
            && mapping.inode == self.inode
            && mapping.offset.wrapping_add(address - mapping.start.0)
                == self.offset.wrapping_add(address.wrapping_sub(self.start))
    }
}

/// Packed for the target's memory while it waits: quick rather than small.
const LEVEL: i32 = -3;
/// Beyond it no program has code.
const USER_SPACE: u64 = (1 << 47) - 4096;

impl Ledger {
    /// Takes over what was emitted for one module; `switches` tells whose the patches are.
    pub fn add(&mut self, emitted: Emitted, switches: Switches) {
        self.owners.extend(switches.owners);
        self.switchable.extend(switches.switchable);
        self.tails.extend(switches.tails);
        self.patches.extend(emitted.patches);
        self.back.extend(emitted.back);
        self.moves.extend(emitted.moves);
    }

    /// Whether an address lies in code of one of the files of this ledger that is where it was.
    pub fn texts_in<'a>(&self, maps: &'a [Mapping]) -> impl Fn(u64) -> bool + use<'a> {
        let mut texts = self.texts.clone();
        texts.sort_unstable_by_key(|text| text.start);
        move |address| {
            let next = texts.partition_point(|text| text.start <= address);
            texts[..next]
                .last()
                .is_some_and(|text| address < text.end && text.is_mapped_at(maps, address))
        }
    }

    pub fn sort(&mut self) {
        // Each module's are sorted: what is left is to merge them, which the stable way does.
        self.back.sort();
        self.moves.sort();
        self.switchable.sort_unstable_by_key(|one| one.function);
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, self.patches.len() as u64);
        let mut last = 0;
        for patch in &self.patches {
            put(&mut out, folded(last, patch.address));
            last = patch.address;
            put(&mut out, patch.original.len() as u64);
            out.extend_from_slice(&patch.original);
            out.extend_from_slice(&patch.replacement);
        }
        put(&mut out, self.back.len() as u64);
        let (mut last_stub, mut last_home) = (0, 0u64);
        for &(stub, home) in &self.back {
            put(&mut out, stub - last_stub);
            put(&mut out, folded(last_home, home));
            (last_stub, last_home) = (stub, home);
        }
        put(&mut out, self.texts.len() as u64);
        for text in &self.texts {
            put(&mut out, text.start);
            put(&mut out, text.end.wrapping_sub(text.start));
            put(&mut out, text.offset);
            put(&mut out, text.dev.0.into());
            put(&mut out, text.dev.1.into());
            put(&mut out, text.inode);
        }
        put(&mut out, self.homes.len() as u64);
        for home in &self.homes {
            put(&mut out, home.low);
            put(&mut out, home.high.wrapping_sub(home.low));
            put(&mut out, home.bias);
            put(&mut out, home.function.into());
        }
        self.encode_switches(&mut out);
        put(&mut out, self.data.len() as u64);
        for data in &self.data {
            match *data {
                Data::Flag { address } => {
                    put(&mut out, 0);
                    put(&mut out, address);
                }
                Data::Words {
                    head,
                    next,
                    word,
                    value,
                } => {
                    put(&mut out, 1);
                    for number in [head, next.into(), word.into(), value] {
                        put(&mut out, number);
                    }
                }
            }
        }
        zstd::bulk::compress(&out, LEVEL).expect("compressing memory to memory does not fail")
    }

    /// The target may have scribbled over it, so nothing is believed.
    pub fn decode(bytes: &[u8]) -> Result<Ledger> {
        // A program with a million functions has some 60 MiB of them.
        const SANE: usize = 128 << 20;
        let raw = zstd::bulk::decompress(bytes, SANE.min(bytes.len().saturating_mul(200) + 4096))
            .map_err(|_| damaged())?;
        let mut input = Input(&raw);
        let mut ledger = Ledger::default();
        let mut last = 0u64;
        for _ in 0..input.number()? {
            last = unfolded(last, input.number()?);
            let len = input.number()?;
            // In user space and of an instruction's size, or the target has scribbled.
            if !(1..=16).contains(&len) || last >= USER_SPACE {
                return Err(damaged());
            }
            let mut bytes = || PatchBytes::new(input.take(len as usize)?).ok_or_else(damaged);
            let (original, replacement) = (bytes()?, bytes()?);
            ledger.patches.push(Patch {
                address: last,
                original,
                replacement,
            });
        }
        let (mut stub, mut home) = (0u64, 0u64);
        for _ in 0..input.number()? {
            stub = stub.wrapping_add(input.number()?);
            home = unfolded(home, input.number()?);
            ledger.back.push((stub, home));
        }
        for _ in 0..input.number()? {
            let start = input.number()?;
            let end = start.wrapping_add(input.number()?);
            let offset = input.number()?;
            let dev = (input.number()? as u32, input.number()? as u32);
            let inode = input.number()?;
            if end > USER_SPACE || start > end {
                return Err(damaged());
            }
            ledger.texts.push(Text {
                start,
                end,
                offset,
                dev,
                inode,
            });
        }
        for _ in 0..input.number()? {
            let low = input.number()?;
            ledger.homes.push(Home {
                low,
                high: low.wrapping_add(input.number()?),
                bias: input.number()?,
                function: input.number()? as u32,
            });
        }
        ledger.decode_switches(&mut input)?;
        for _ in 0..input.number()? {
            let data = match input.number()? {
                0 => Data::Flag {
                    address: input.number()?,
                },
                1 => Data::Words {
                    head: input.number()?,
                    next: input.number()? as u32,
                    word: input.number()? as u32,
                    value: input.number()?,
                },
                _ => return Err(damaged()),
            };
            ledger.data.push(data);
        }
        Ok(ledger)
    }
}

pub(super) fn damaged() -> Error {
    Error::Damaged(
        "the ledger of patches that the target carries is damaged: nothing was changed".into(),
    )
}

/// The way from one address to another as a small number, whatever its direction.
pub(super) fn folded(from: u64, to: u64) -> u64 {
    let step = to.wrapping_sub(from) as i64;
    ((step << 1) ^ (step >> 63)) as u64
}

pub(super) fn unfolded(from: u64, step: u64) -> u64 {
    from.wrapping_add((step >> 1) ^ (step & 1).wrapping_neg())
}

pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(head)
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged())
    }
}

/// The partner of `pc` in a sorted list of pairs.
pub fn lookup(pairs: &[(u64, u64)], pc: u64) -> Option<u64> {
    pairs
        .binary_search_by_key(&pc, |pair| pair.0)
        .ok()
        .map(|index| pairs[index].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Ledger {
        let patch = |address, byte| Patch {
            address,
            original: [byte; 5].into(),
            replacement: [0xe9, 1, 2, 3, 4].into(),
        };
        Ledger {
            patches: vec![patch(0x7f00_0000_0000, 1), patch(0x5555_0000, 2)],
            back: vec![(0x1000, 0x7f00_0000_0000), (0x1005, 0x5555_0000)],
            moves: vec![(0x5555_0001, 0x1001), (0x7f00_0000_0001, 0x1006)],
            owners: vec![NOBODYS, 3],
            switchable: vec![Switchable {
                function: 3,
                low: 0x5555_0000,
                high: 0x5555_0040,
                mode_at: 0x1080,
                fixed: false,
                leaf: true,
                needs: vec![4, 1],
            }],
            tails: vec![Tail {
                target: 3,
                address: 0x1091,
                probed: [1, 2, 3, 4],
                unprobed: [5, 6, 7, 0xf0],
            }],
            texts: vec![Text {
                start: 0x7f00_0000_0000,
                end: 0x7f00_0000_2000,
                offset: 0x1000,
                dev: (8, 1),
                inode: 77,
            }],
            homes: vec![Home {
                low: 0x7f00_0000_0000,
                high: 0x7f00_0000_5000,
                bias: 0x7f00_0000_0000,
                function: 3,
            }],
            data: vec![
                Data::Flag {
                    address: 0x7f00_0000_6001,
                },
                Data::Words {
                    head: 0x7f00_0000_6008,
                    next: 8,
                    word: 0x590,
                    value: 0x5555_0000,
                },
            ],
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(Ledger::decode(&sample().encode()).unwrap(), sample());
    }

    #[test]
    fn a_damaged_ledger_is_an_error_and_never_a_panic() {
        let good = sample().encode();
        for cut in 0..good.len() {
            assert!(Ledger::decode(&good[..cut]).is_err());
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                let _ = Ledger::decode(&bad);
            }
        }
    }
}
