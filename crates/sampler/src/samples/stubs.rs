//! Code of ours in a target: which of it is the program's own, displaced, and which is what probes cost.

use std::sync::Arc;

use thalweg_abi as shm;

use crate::agent;
use crate::error::Result;
use crate::leaf;
use crate::ledger::{Home, NOBODYS, Text, lookup};
use crate::ledgers;
use crate::loaded;
use crate::memory::{Shared, read_remote};
use crate::proc::{Pid, RemoteAddr};

/// Where a program counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In no code of ours.
    Outside,
    /// In a probe.
    Probe,
    /// In displaced code: the address it comes from, and how far the stack pointer is below what it would be there.
    Displaced(u64, u64),
}

/// All stubs of one target.
#[derive(Default)]
pub(super) struct Stubs {
    /// Which of the modules that were loaded later are in it.
    version: Version,
    regions: Vec<(u64, u64)>,
    /// Stub pc -> original pc, sorted.
    back: Vec<(u64, u64)>,
    /// The stubs themselves, by address.
    code: Vec<(u64, Vec<u8>)>,
    /// Jumps to stubs that stand apart from the code that they are for: where that is, and whose. Sorted.
    boards: Vec<(u64, (u64, u32))>,
    /// Where modules lay whose functions are counted, each with the code of its ledger.
    homes: Vec<(Home, Vec<Text>)>,
}

pub(super) type Version = (u32, u64);

pub(super) fn version(header: &shm::Header) -> Version {
    (header.loaded, header.growth_used)
}

/// `lea rsp, [rsp - 128]`, before a probe of a function that loops.
const BELOW_THE_RED_ZONE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
const CALL: u8 = 0xe8;
const JUMP: u8 = 0xe9;
const INT3: u8 = 0xcc;
/// `call $+5`, by which a displaced call pushes the address that it will return to.
const PUSH_A_PLACE: [u8; 5] = [CALL, 0, 0, 0, 0];
/// The two instructions behind it that make it the right address: 5 to 11 and 12 to 19 bytes from the start.
const WHILE_PUSHED: std::ops::RangeInclusive<u64> = 5..=12;

/// No target has more bytes of stubs: one that says so has scribbled over its memory.
const MOST_CODE: u64 = 1 << 30;

impl Stubs {
    pub(super) fn read(shared: &Shared, header: &shm::Header, pid: Pid) -> Result<Stubs> {
        let bytes = shared.read_vec(header.ledger_offset, header.ledger_len)?;
        let mut ledgers = vec![ledgers::read(&bytes)?];
        let loaded = loaded::ledgers(shared, header)?;
        ledgers.extend(loaded.into_iter().map(Arc::new));
        let regions = header.code.iter().filter(|region| region.len > 0);
        let mut stubs = Stubs {
            version: version(header),
            regions: regions
                .map(|region| (region.start, region.start.wrapping_add(region.len)))
                .collect(),
            ..Stubs::default()
        };
        for ledger in ledgers {
            // Nearly all are in stubs, and few patches are at springboards.
            let in_stubs = |pc: u64| {
                let mut regions = stubs.regions.iter();
                regions.any(|region| (region.0..region.1).contains(&pc))
            };
            let back = ledger.back.iter().copied();
            let apart: Vec<(u64, u64)> = back.filter(|pair| !in_stubs(pair.0)).collect();
            for (patch, owner) in ledger.patches.iter().zip(&ledger.owners) {
                if let Some(home) = lookup(&apart, patch.address) {
                    stubs.boards.push((patch.address, (home, *owner)));
                }
            }
            stubs.back.extend(&ledger.back);
            let texts = &ledger.texts;
            let homes = ledger.homes.iter().map(|home| (*home, texts.clone()));
            stubs.homes.extend(homes);
        }
        stubs.back.sort_unstable();
        stubs.boards.sort_unstable();
        for &(start, end) in &stubs.regions {
            let from = stubs.back.partition_point(|pair| pair.0 < start);
            let to = stubs.back.partition_point(|pair| pair.0 < end);
            let (Some(first), Some(last)) = (stubs.back.get(from), stubs.back[..to].last()) else {
                continue;
            };
            let len = last.0.saturating_sub(first.0).saturating_add(16);
            if from < to && len < MOST_CODE {
                let mut code = vec![0; len as usize];
                if read_remote(pid, RemoteAddr(first.0), &mut code).is_ok() {
                    stubs.code.push((first.0, code));
                }
            }
        }
        Ok(stubs)
    }

    pub(super) fn is_current(&self, header: &shm::Header) -> bool {
        self.version == version(header)
    }

    /// The number of the first counted function of a module that lies there.
    pub(super) fn first_function(&self, low: u64, bias: u64, text: &[Text]) -> Option<u32> {
        let homes = self.homes.iter().rev();
        let mut same = homes.filter(|(home, texts)| {
            home.low == low && home.bias == bias && text.iter().all(|text| texts.contains(text))
        });
        same.next().map(|(home, _)| home.function)
    }

    /// `is_on`: whether a function is patched at the time.
    pub(super) fn place(&self, pc: u64, is_on: &mut dyn FnMut(u32) -> bool) -> Place {
        let inside = |region: &&(u64, u64)| (region.0..region.1).contains(&pc);
        let Some(&(start, _)) = self.regions.iter().find(inside) else {
            let board = self.boards.binary_search_by_key(&pc, |board| board.0);
            return match board.map(|index| self.boards[index].1) {
                Ok((home, NOBODYS)) => Place::Displaced(home, 0),
                Ok((home, owner)) if is_on(owner) => Place::Displaced(home, 0),
                _ => Place::Outside,
            };
        };
        let next = self.back.partition_point(|pair| pair.0 <= pc);
        let Some(&(stub, home)) = self.back[..next].last().filter(|pair| pair.0 >= start) else {
            return Place::Probe;
        };
        let code = self.code_at(stub);
        // A leaf counts by code of its own, and what stands before that is never run from its first byte on.
        if code.first() == Some(&INT3) || code == leaf::FIRST {
            return Place::Probe;
        }
        let code = match code.strip_prefix(&BELOW_THE_RED_ZONE) {
            Some(rest) => rest,
            None => code,
        };
        let into_the_agent = |code: &[u8], at: u64| {
            let displacement = code.get(1..5)?.try_into().ok()?;
            let displacement = i64::from(i32::from_le_bytes(displacement));
            let goal = at.wrapping_add(5).wrapping_add_signed(displacement);
            Some(goal.wrapping_sub(start) < agent::IMAGE.len() as u64)
        };
        let skipped = self.code_at(stub).len() - code.len();
        let is_probe = matches!(code.first(), Some(&(CALL | JUMP)))
            && into_the_agent(code, stub + skipped as u64) == Some(true);
        if is_probe {
            return Place::Probe;
        }
        let pushed = code.starts_with(&PUSH_A_PLACE) && WHILE_PUSHED.contains(&(pc - stub));
        Place::Displaced(home, if pushed { 8 } else { 0 })
    }

    fn code_at(&self, address: u64) -> &[u8] {
        let found = self.code.iter().find_map(|(start, code)| {
            let at = usize::try_from(address.checked_sub(*start)?).ok()?;
            code.get(at..)
        });
        let found = found.unwrap_or_default();
        &found[..found.len().min(16)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry probe, a displaced instruction, a displaced call, and the jump back.
    fn stubs() -> Stubs {
        let start = 0x10000u64;
        let stub = start + 0x100000;
        let mut code = Vec::new();
        let mut back = vec![(stub, 0x400)];
        let probe = |at: u64| (start + 16).wrapping_sub(at + 5) as u32;
        code.push(CALL);
        code.extend(probe(stub).to_le_bytes());
        code.extend([0x0f, 0x1f, 0x80, 7, 0, 0, 0]);
        back.push((stub + code.len() as u64, 0x400));
        code.extend([0x55]);
        back.push((stub + code.len() as u64, 0x401));
        code.extend(PUSH_A_PLACE);
        code.extend([
            0xc7, 0x04, 0x24, 0, 0, 0, 0, 0xc7, 0x44, 0x24, 4, 0, 0, 0, 0,
        ]);
        back.push((stub + code.len() as u64, 0x900));
        code.extend([JUMP, 0, 0, 0, 0]);
        code.resize(code.len() + 16, 0xcc);
        Stubs {
            regions: vec![(start, start + 0x200000)],
            back,
            code: vec![(stub, code)],
            boards: vec![(0x3fb, (0x400, 7))],
            ..Stubs::default()
        }
    }

    #[test]
    fn displaced_code_is_its_functions_and_probes_are_not() {
        let stubs = stubs();
        let at = |pc: u64| stubs.place(pc, &mut |_| true);
        let place = |offset: u64| at(0x110000 + offset);
        assert_eq!(at(0x9000), Place::Outside);
        assert_eq!(at(0x10100), Place::Probe, "the agent");
        assert_eq!(at(0x3fb), Place::Displaced(0x400, 0), "on its way there");
        let off = stubs.place(0x3fb, &mut |function| function != 7);
        assert_eq!(off, Place::Outside, "the bytes are the program's again");
        assert_eq!([place(0), place(5)], [Place::Probe; 2]);
        assert_eq!(place(12), Place::Displaced(0x400, 0));
        assert_eq!(place(13), Place::Displaced(0x401, 0));
        assert_eq!(place(18), Place::Displaced(0x401, 8), "a word is pushed");
        assert_eq!(place(25), Place::Displaced(0x401, 8));
        assert_eq!(place(33), Place::Displaced(0x900, 0), "it is the callee's");
    }
}
