//! The other file that compilers write for perf: `jit-PID.dump`, a header and records, each with its length. Who writes one maps it
//! executable, by which it is found (`node --perf-prof`, .NET, HotSpot and LLVM with their agents).
//!
//! ```text
//! header   magic, version, length, machine, padding, pid, time, flags
//! record   kind u32, length u32, time u64
//!   load   pid u32, tid u32, address u64, start u64, size u64, number u64, name with a zero, the code
//!   move   pid u32, tid u32, address u64, old u64, new u64, size u64, number u64
//! ```

use std::io::{Read, Seek, SeekFrom};

const MAGIC: u32 = 0x4a69_5444;
const HEADER_LEN: u64 = 40;
const RECORD_LEN: usize = 16;
const LOAD: u32 = 0;
const MOVE: u32 = 1;
/// Fields of a load in front of its name, and of a move.
const LOAD_LEN: usize = 40;
const MOVE_LEN: usize = 48;
/// What of a record is read: its fields and its name, not the code.
const MOST: usize = LOAD_LEN + 1024;
/// A record is no longer than this.
const LONGEST: u64 = 64 << 20;
/// So many are read at a time, and so many in all: the file is whoever's who wrote it.
const MOST_AT_A_TIME: u64 = 1 << 16;
const MOST_RECORDS: u64 = 4 << 20;

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    Loaded {
        start: u64,
        size: u64,
        name: Vec<u8>,
    },
    Moved {
        from: u64,
        to: u64,
        size: u64,
    },
}

/// Where the next record begins; 0 before the header was read.
#[derive(Default)]
pub(super) struct Dump {
    at: u64,
    is_broken: bool,
    records: u64,
}

impl Dump {
    /// Records that were written since the last time, up to a bound.
    pub(super) fn read_on(&mut self, file: &mut (impl Read + Seek)) -> std::io::Result<Vec<Told>> {
        let mut told = Vec::new();
        let len = file.seek(SeekFrom::End(0))?;
        if self.at == 0 && len >= HEADER_LEN {
            let header = bytes_at::<12>(file, 0)?;
            self.is_broken = word(&header, 0) != Some(MAGIC);
            self.at = word(&header, 8)
                .map_or(HEADER_LEN, u64::from)
                .max(HEADER_LEN);
        }
        let most = self.records.saturating_add(MOST_AT_A_TIME);
        let most = most.min(MOST_RECORDS);
        while !self.is_broken
            && self.at != 0
            && self.records < most
            && self.at + RECORD_LEN as u64 <= len
        {
            let head = bytes_at::<RECORD_LEN>(file, self.at)?;
            let (kind, total) = (word(&head, 0), word(&head, 4).unwrap_or(0));
            let end = self.at + u64::from(total);
            if u64::from(total) < RECORD_LEN as u64 || u64::from(total) > LONGEST {
                // What follows cannot be found.
                self.is_broken = true;
                break;
            }
            if end > len {
                // Being written.
                break;
            }
            let body = (total as usize - RECORD_LEN).min(MOST);
            let mut bytes = vec![0; body];
            file.seek(SeekFrom::Start(self.at + RECORD_LEN as u64))?;
            file.read_exact(&mut bytes)?;
            told.extend(record(kind.unwrap_or(u32::MAX), &bytes));
            self.at = end;
            self.records += 1;
        }
        Ok(told)
    }
}

fn bytes_at<const N: usize>(file: &mut (impl Read + Seek), at: u64) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn record(kind: u32, bytes: &[u8]) -> Option<Told> {
    match kind {
        LOAD => {
            let name = bytes.get(LOAD_LEN..)?;
            let end = name.iter().position(|byte| *byte == 0)?;
            Some(Told::Loaded {
                start: long(bytes, 16)?,
                size: long(bytes, 24)?,
                name: name[..end].to_vec(),
            })
        }
        MOVE => Some(Told::Moved {
            from: long(bytes, 16)?,
            to: long(bytes, 24)?,
            size: long(bytes.get(..MOVE_LEN)?, 32)?,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn header() -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend(1u32.to_le_bytes());
        bytes.extend((HEADER_LEN as u32).to_le_bytes());
        bytes.resize(HEADER_LEN as usize, 0);
        bytes
    }

    fn record(kind: u32, fields: &[u64], rest: &[u8]) -> Vec<u8> {
        let len = RECORD_LEN + 8 + fields.len() * 8 + rest.len();
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend([0; 16]);
        for field in fields {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn records_are_told_as_they_come() {
        let load = record(LOAD, &[0, 0x1000, 4, 1], b"work\0\x90\x90\x90\x90");
        let moved = record(MOVE, &[0, 0x1000, 0x2000, 4, 1], b"");
        let unknown = record(9, &[1], b"");
        let whole = [header(), load, unknown, moved].concat();
        let mut dump = Dump::default();
        let mut told = Vec::new();
        // However much of it is there.
        for len in 0..=whole.len() {
            let mut file = Cursor::new(&whole[..len]);
            told.extend(dump.read_on(&mut file).unwrap());
        }
        let expected = [
            Told::Loaded {
                start: 0x1000,
                size: 4,
                name: b"work".to_vec(),
            },
            Told::Moved {
                from: 0x1000,
                to: 0x2000,
                size: 4,
            },
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_file_of_very_many_records_is_read_up_to_a_bound() {
        let mut whole = header();
        let load = record(LOAD, &[0, 0x1000, 4, 1], b"work\0");
        let most = MOST_AT_A_TIME as usize + 1;
        whole.extend(load.repeat(most));
        let mut dump = Dump::default();
        let mut file = Cursor::new(&whole);
        assert_eq!(
            dump.read_on(&mut file).unwrap().len() as u64,
            MOST_AT_A_TIME
        );
        assert_eq!(dump.read_on(&mut file).unwrap().len(), 1);
        dump.records = MOST_RECORDS;
        whole.extend(&load);
        assert_eq!(dump.read_on(&mut Cursor::new(&whole)).unwrap(), []);
    }

    #[test]
    fn a_file_that_is_none_says_nothing() {
        let short = [
            header(),
            LOAD.to_le_bytes().to_vec(),
            vec![3, 0, 0, 0],
            vec![0; 64],
        ]
        .concat();
        let endless = record(LOAD, &[0, 0x1000, 4, 1], b"no zero");
        for bytes in [vec![7; 200], short, [header(), endless].concat()] {
            let mut dump = Dump::default();
            for _ in 0..2 {
                assert_eq!(dump.read_on(&mut Cursor::new(&bytes)).unwrap(), []);
            }
        }
    }
}
