//! Looks on their way from the process that looks to those that read the target: written down in the shared memory that the target
//! carries, where they outlive whoever looked.
//!
//! ```text
//! reader, switch   asked += 1                      waits until that is answered, or nobody looks any more
//! whoever looks    takes what the kernel has seen, writes it down, answered = asked
//! ```
//!
//! So whoever reads has the looks of this moment, and nothing is switched from outside before what was seen until then has been judged by
//! the states that held.

use std::mem::offset_of;
use std::time::{Duration, Instant};

use thalweg_abi as shm;

use super::looks::Looks;
use super::{Sampler, Wishes};
use crate::attendants;
use crate::error::Result;
use crate::memory::Shared;

/// Unasked it is written down so often at most, should whoever looks be killed ...
const UNASKED: Duration = Duration::from_secs(3);
/// ... and takes no more than this part of the time.
const WRITING: u32 = 50;
/// Somebody may write while it is read.
const ATTEMPTS: u32 = 5;

/// The writing side, there is one for each target.
pub struct Spool {
    shared: Shared,
    answered: u32,
    turn: u32,
    next: Instant,
}

impl Spool {
    /// From now on this process is the one that looks, if it can.
    pub fn begin(shared: Shared, sampler: Option<&Sampler>) -> Result<Spool> {
        let known = shared.header()?.looks;
        let mut spool = Spool {
            shared,
            answered: known.asked,
            turn: known.turn,
            next: Instant::now() + UNASKED,
        };
        spool.put(offset_of!(shm::Looks, answered), &known.asked.to_le_bytes())?;
        let period = sampler.map_or(0, Sampler::timer_ns);
        spool.put(offset_of!(shm::Looks, period_ns), &period.to_le_bytes())?;
        let own = std::process::id();
        spool.put(offset_of!(shm::Looks, looker), &own.to_le_bytes())?;
        Ok(spool)
    }

    fn put(&mut self, field: usize, bytes: &[u8]) -> Result<()> {
        let at = offset_of!(shm::Header, looks) + field;
        self.shared.write(at as u64, bytes)
    }

    /// Answers whoever has asked. `unasked`: also writes it down now and then for those who come when this process is gone. `notes`: what
    /// else is to be said.
    pub fn tend(
        &mut self,
        sampler: Option<&mut Sampler>,
        unasked: bool,
        notes: impl FnOnce() -> Vec<String>,
    ) -> Result<()> {
        let asked = self.shared.header()?.looks.asked;
        if asked == self.answered && (!unasked || Instant::now() < self.next) {
            return Ok(());
        }
        self.write(sampler, notes())?;
        self.answered = asked;
        self.put(offset_of!(shm::Looks, answered), &asked.to_le_bytes())
    }

    fn write(&mut self, sampler: Option<&mut Sampler>, notes: Vec<String>) -> Result<()> {
        let began = Instant::now();
        let bytes = match sampler {
            Some(sampler) => sampler.encode(notes)?,
            None => Looks::default().encode(notes)?,
        };
        if bytes.len() as u64 <= shm::LOOKS_ROOM {
            let turn = self.turn.wrapping_add(1).max(1);
            let place = turn & 1;
            let start = self.shared.header()?.looks.offset + u64::from(place) * shm::LOOKS_ROOM;
            self.shared.write(start, &bytes)?;
            let len = offset_of!(shm::Looks, len) + place as usize * 8;
            self.put(len, &(bytes.len() as u64).to_le_bytes())?;
            self.put(offset_of!(shm::Looks, turn), &turn.to_le_bytes())?;
            self.turn = turn;
        }
        self.next = Instant::now() + UNASKED.max(began.elapsed() * WRITING);
        Ok(())
    }

    /// For the last time: nobody looks any more.
    pub fn end(mut self, sampler: Option<&mut Sampler>, notes: Vec<String>) -> Result<()> {
        self.write(sampler, notes)?;
        self.put(offset_of!(shm::Looks, looker), &0u32.to_le_bytes())
    }
}

/// What others have seen of the target until now.
pub fn read(shared: &Shared) -> Result<Option<Looks>> {
    let is_answered = attendants::ask(shared)?;
    for _ in 0..ATTEMPTS {
        let known = shared.header()?.looks;
        if known.turn == 0 {
            return Ok(None);
        }
        let place = known.turn & 1;
        let len = known.len[place as usize].min(shm::LOOKS_ROOM);
        let start = known
            .offset
            .saturating_add(u64::from(place) * shm::LOOKS_ROOM);
        let bytes = shared.read_vec(start, len)?;
        if shared.header()?.looks.turn == known.turn {
            let mut looks = Looks::decode(&bytes)?;
            if !is_answered {
                let late = "the process that looks at stacks did not answer: what it has seen lately is missing";
                looks.notes.push(late.into());
            }
            return Ok(Some(looks));
        }
    }
    Ok(None)
}

/// What it takes to look at a target that another process has attached.
pub struct Looking {
    pub wishes: Wishes,
    /// By which its functions were numbered.
    pub filter: crate::filter::Filter,
}
