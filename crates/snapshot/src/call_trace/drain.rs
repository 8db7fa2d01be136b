//! The record areas of all threads, read while they are written.
//!
//! A reader that owns the recording moves each area's persist index behind itself, which makes room for more. One that only looks
//! leaves it where it is. Either remembers how far it has come, and goes on there.
//!
//! What was read stays here until the profile is made of it, and may come for hours: so there is a most of it. Beyond that either no more
//! calls are added, or the oldest ones go, as in the areas. What is read at a time is no more than the target has filled of its memory,
//! whatever the indices of its 4,096 areas say.

use std::collections::HashMap;
use std::mem::offset_of;
use std::time::{Duration, Instant};

use thalweg_abi as shm;
use thalweg_abi::record as area;
use thalweg_abi::rules;
use thalweg_model as model;

use super::list::CallList;
use super::making::{Making, Times};
use super::walk::{End, Stop, Walk};
use crate::error::Result;
use crate::memory::Shared;
use crate::thread_registry::ThreadRegistry;

/// A record that is not finished after this long never will be: a signal handler did not come back to what it interrupted.
const ABANDONED: Duration = Duration::from_secs(1);

/// What one who only looks keeps at most, callers included: as many as a recording does when nobody
/// says otherwise. A target can fill its areas with tens of millions of calls that nobody made.
const MOST_READ: usize = 1_000_000;
/// The same of what rules have read of them. As text it takes several times as much.
const MOST_READ_BYTES: usize = 256 << 20;

/// Everything that was recorded so far in one region.
#[derive(Default)]
pub struct Drain {
    rings: HashMap<u64, Ring>,
    calls: CallList,
    /// The slot of each call's thread: with the position it makes the call's name.
    slots: Vec<u16>,
    owns: bool,
    /// Areas whose oldest records were overwritten before they were read.
    overrun: u64,
    /// How many calls are kept; `None`: all.
    most: Option<usize>,
    /// Beyond that the oldest go, as opposed to no more being added.
    oldest_go: bool,
    /// Chosen calls that went because there were too many after them.
    forgotten: u64,
    /// Somebody else has taken some out.
    others_read: bool,
    /// What others have taken out is read as well, as long as it lies there.
    wants_all: bool,
}

#[derive(Default)]
struct Ring {
    position: u64,
    walk: Walk,
    unfinished: Option<(u64, Instant)>,
}

/// Where the records of a thread begin and end, in words since its first. Nothing is believed that is not in order.
struct Indices {
    oldest: u64,
    read: u64,
    head: u64,
}

impl Indices {
    /// `None`: the target has written over them. The head comes last: it only grows, so that it is behind the others.
    fn read(shared: &Shared, slot: u64) -> Result<Option<Indices>> {
        let word = |field: usize| -> Result<u64> {
            let mut bytes = [0; 8];
            shared.read_bytes(state_offset(slot) + field as u64, &mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let indices = Indices {
            oldest: word(offset_of!(area::State, oldest))?,
            read: word(offset_of!(area::State, read))?,
            head: word(offset_of!(area::State, head))?,
        };
        let in_order = indices.oldest <= indices.head && indices.read <= indices.head;
        Ok(Some(indices).filter(|_| in_order))
    }
}

fn state_offset(slot: u64) -> u64 {
    shm::SLOTS_OFFSET + slot * shm::PAGE + area::STATE_OFFSET
}

impl Drain {
    /// For the one who keeps what is read: at most so many calls, callers included.
    pub fn owner(most: usize) -> Drain {
        Drain {
            owns: true,
            most: Some(most),
            ..Drain::default()
        }
    }

    /// For one who only looks.
    pub fn reader() -> Drain {
        Drain {
            most: Some(MOST_READ),
            calls: CallList::of_at_most(MOST_READ_BYTES),
            ..Drain::default()
        }
    }

    /// For one who only looks, from the beginning of a recording on that another owns.
    pub fn reader_of_all() -> Drain {
        Drain {
            wants_all: true,
            ..Drain::reader()
        }
    }

    /// Reads what has come since. How many calls there are now.
    pub fn take(&mut self, shared: &Shared, header: &shm::Header) -> Result<usize> {
        if header.flags & shm::HEADER_RECORDS == 0 {
            return Ok(0);
        }
        let head: rules::Head = shared.read(header.rules_offset)?;
        let words = head.area_words;
        if !words.is_power_of_two() || words > area::AREA_ROOM / 8 {
            return Ok(self.calls.len());
        }
        self.oldest_go = head.overwrite != 0;
        let mut left = shared.filled()?;
        for slot in 0..u64::from(header.next_slot) {
            let ring = self.rings.entry(slot).or_default();
            ring.walk.limit = self.most.filter(|_| !self.oldest_go);
            self.take_slot(shared, header, slot, words, &mut left)?;
            // Not each time, since it goes over all of them.
            self.keep_to(|most| most + most / 2);
        }
        self.calls.moving.passed();
        Ok(self.calls.len())
    }

    /// To be done before the calls are counted: not more of them than there may be.
    pub fn trim(&mut self) {
        self.keep_to(|most| most);
    }

    fn keep_to(&mut self, limit: impl FnOnce(usize) -> usize) {
        let Some(most) = self.most.filter(|_| self.oldest_go) else {
            return;
        };
        let len = self.calls.len();
        if len > limit(most) {
            self.forget(len - most);
        } else if self.calls.is_full() {
            self.forget(len / 2);
        }
    }

    /// Whether there are calls that have ended.
    pub fn has_ended(&self) -> bool {
        self.calls.iter().any(|call| call.end != End::Open)
    }

    /// Of one who has no use for them any more: only those that are open stay.
    pub fn forget_ended(&mut self) {
        self.forget(self.calls.len());
    }

    /// The first `count` calls go, but for those that are open and for callers of what stays.
    fn forget(&mut self, count: usize) {
        let mut stays = vec![false; self.calls.len()];
        for (index, call) in self.calls.last_first() {
            stays[index] |= index >= count || call.end == End::Open;
            if let Some(parent) = call.parent
                && stays[index]
            {
                stays[parent as usize] = true;
            }
        }
        let mut next = 0..;
        let places: Vec<Option<u32>> = stays
            .iter()
            .map(|stays| stays.then(|| next.next()).flatten())
            .collect();
        let gone = self.calls.iter().zip(&stays);
        let gone = gone.filter(|(call, stays)| !**stays && call.rule != area::NO_RULE);
        self.forgotten += gone.count() as u64;
        let mut place = places.iter();
        self.slots
            .retain(|_| place.next().is_some_and(Option::is_some));
        self.calls.keep(&places);
        for ring in self.rings.values_mut() {
            ring.walk.renumber(&places);
        }
    }

    /// `left`: how many bytes may still be read of all areas.
    fn take_slot(
        &mut self,
        shared: &Shared,
        header: &shm::Header,
        slot: u64,
        words: u64,
        left: &mut u64,
    ) -> Result<()> {
        let Some(indices) = Indices::read(shared, slot)? else {
            return Ok(());
        };
        let (to, oldest) = (indices.head, indices.oldest);
        let ring = self.rings.entry(slot).or_default();
        if to <= ring.position {
            return Ok(());
        }
        // What was read by its owner stays where it is until it is overwritten: one who only looks goes on behind that.
        self.others_read |= !self.owns && indices.read > 0;
        let mut from = match self.owns || ring.position == 0 {
            true => ring.position.max(indices.read),
            false => ring.position,
        };
        if self.wants_all && ring.position == 0 && to <= words {
            from = 0;
        }
        if oldest > from {
            from = oldest;
            self.overrun += 1;
        }
        if to - from > words {
            // One who only looks was too slow; or the target writes to its own data.
            ring.position = indices.read.max(oldest);
            self.overrun += 1;
            return Ok(());
        }
        // Records that are there fill memory; what the target says beyond that is not so.
        let Some(rest) = left.checked_sub((to - from) * 8) else {
            self.overrun += 1;
            return Ok(());
        };
        *left = rest;
        let frames = header.frames_offset + slot * shm::FRAMES_STRIDE;
        let start = frames + area::AREA_FROM_FRAMES;
        let mut bytes = vec![0; ((to - from) * 8) as usize];
        let first = ((words - from % words).min(to - from) * 8) as usize;
        shared.read_bytes(start + from % words * 8, &mut bytes[..first])?;
        let rest = &mut bytes[first..];
        if !rest.is_empty() {
            shared.read_bytes(start, rest)?;
        }
        // What was overwritten meanwhile is not believed.
        let Some(now) =
            Indices::read(shared, slot)?.filter(|now| now.head.wrapping_sub(from) <= words)
        else {
            ring.position = from;
            return Ok(());
        };
        let gone = now.oldest.saturating_sub(from).min(to - from);
        if gone > 0 {
            self.overrun += 1;
        }
        let records: Vec<u64> = bytes[(gone * 8) as usize..]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let (position, stop) = ring.walk.go(&records, from + gone, words, &mut self.calls);
        self.slots.resize(self.calls.len(), slot as u16);
        ring.position = match stop {
            None => position,
            Some(stop) => match ring.unfinished {
                Some((at, since)) if at == position && since.elapsed() > ABANDONED => match stop {
                    Stop::Unfinished { words } => position.saturating_add(words).min(to),
                    Stop::Damaged => to,
                },
                Some((at, _)) if at == position => position,
                _ => {
                    ring.unfinished = Some((position, Instant::now()));
                    position
                }
            },
        };
        if self.owns {
            let read = state_offset(slot) + offset_of!(area::State, read) as u64;
            shared.write(read, &ring.position.to_le_bytes())?;
        }
        Ok(())
    }

    /// All of it, as the profile has it. `hz`: ticks a second.
    pub fn recorded(
        &self,
        shared: &Shared,
        header: &shm::Header,
        registry: &ThreadRegistry,
        hz: f64,
        end: u64,
    ) -> Result<model::Recorded> {
        let times = Times::new(header, hz, end);
        let mut making = Making::new(&self.calls, shared, header, registry, times)?;
        for part in self.calls.parts() {
            making.add(part, &self.slots);
        }
        Ok(self.finish(making))
    }

    /// The same for the last time: what the profile has is given back as it gets it.
    pub fn into_recorded(
        mut self,
        shared: &Shared,
        header: &shm::Header,
        registry: &ThreadRegistry,
        hz: f64,
        end: u64,
    ) -> Result<model::Recorded> {
        let times = Times::new(header, hz, end);
        let mut making = Making::new(&self.calls, shared, header, registry, times)?;
        for part in std::mem::take(&mut self.calls).into_parts() {
            making.add(&part, &self.slots);
        }
        Ok(self.finish(making))
    }

    fn finish(&self, making: Making) -> model::Recorded {
        let mut recorded = making.finish();
        let left_out: u64 = self.rings.values().map(|ring| ring.walk.left_out).sum();
        recorded.dropped = recorded.dropped.saturating_add(left_out + self.forgotten);
        // What was overwritten is counted nowhere, but the rules count all that they choose.
        if self.oldest_go && !self.others_read {
            let chosen = recorded.calls.iter().filter(|call| call.rule.is_some());
            let kept = recorded.rules.iter().map(|rule| rule.kept);
            let kept = kept.fold(0, u64::saturating_add);
            let missing = kept.saturating_sub(chosen.count() as u64);
            recorded.dropped = recorded.dropped.max(missing);
        }
        recorded
    }
}

/// What a region that nobody drains has recorded and still knows.
pub fn recorded(
    shared: &Shared,
    header: &shm::Header,
    registry: &ThreadRegistry,
    hz: f64,
    end: u64,
) -> Result<model::Recorded> {
    let mut drain = Drain::reader();
    drain.take(shared, header)?;
    drain.trim();
    drain.recorded(shared, header, registry, hz, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::FromZeros;
    use std::fs::File;
    use std::os::fd::FromRawFd;

    const WORDS: u64 = 1024;

    /// A region with one thread, which has recorded nothing.
    fn region() -> (Shared, shm::Header) {
        // SAFETY: a descriptor of our own, or -1.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"region".as_ptr(), 0)) };
        let mut header: shm::Header = FromZeros::new_zeroed();
        header.flags = shm::HEADER_RECORDS;
        header.next_slot = 1;
        header.frames_offset = shm::TABLE_OFFSET;
        header.rules_offset = header.frames_offset + shm::FRAMES_STRIDE;
        let len = header.rules_offset + rules::len(0);
        file.set_len(len).expect("a file in memory");
        let shared = Shared::File { file, len };
        let words = header.rules_offset + offset_of!(rules::Head, area_words) as u64;
        let size = WORDS.to_le_bytes();
        shared.write(words, &size).expect("room");
        (shared, header)
    }

    #[test]
    fn indices_in_any_order_are_survived_and_positions_never_pass_the_head() {
        let (shared, header) = region();
        let edges = [0, 1, 7, WORDS, WORDS + 1, 1 << 40, u64::MAX - 1, u64::MAX];
        let put = |field: usize, value: u64| {
            let at = state_offset(0) + field as u64;
            shared.write(at, &value.to_le_bytes()).expect("room");
        };
        for owns in [false, true] {
            let mut drain = match owns {
                true => Drain::owner(100),
                false => Drain::reader(),
            };
            for (head, read, oldest) in edges.iter().flat_map(|head| {
                let rest = edges
                    .iter()
                    .flat_map(|read| edges.iter().map(move |o| (read, o)));
                rest.map(move |(read, oldest)| (*head, *read, *oldest))
            }) {
                put(offset_of!(area::State, head), head);
                put(offset_of!(area::State, read), read);
                put(offset_of!(area::State, oldest), oldest);
                // As if it had come so far in a target that was unharmed until then.
                drain.rings.entry(0).or_default().position = read.min(head);
                drain.take(&shared, &header).expect("all is inside");
                assert!(drain.rings[&0].position <= head, "{head} {read} {oldest}");
                assert_eq!(drain.calls.len(), 0);
            }
        }
    }

    /// Without the bound on what is read at a time each of them would be: 64 GiB of holes.
    #[test]
    fn slots_that_claim_records_which_fill_no_memory_are_not_read() {
        const AREA: u64 = area::AREA_ROOM / 8;
        let (shared, mut header) = region();
        header.next_slot = shm::SLOTS as u32;
        header.rules_offset = header.frames_offset + shm::SLOTS * shm::FRAMES_STRIDE;
        let Shared::File { file, .. } = shared else {
            unreachable!("made as a file")
        };
        let len = header.rules_offset + rules::len(0);
        file.set_len(len).expect("a file in memory");
        let shared = Shared::File { file, len };
        let words = header.rules_offset + offset_of!(rules::Head, area_words) as u64;
        shared.write(words, &AREA.to_le_bytes()).expect("room");
        for slot in 0..shm::SLOTS {
            let head = state_offset(slot) + offset_of!(area::State, head) as u64;
            shared.write(head, &AREA.to_le_bytes()).expect("room");
        }
        let mut drain = Drain::reader();
        drain.take(&shared, &header).expect("all is inside");
        let read = drain
            .rings
            .values()
            .filter(|ring| ring.unfinished.is_some());
        let read = read.count() as u64;
        assert!(read >= 1, "the bound is not what keeps the first from it");
        assert!(
            read * AREA * 8 <= shared.filled().expect("a size"),
            "{read}"
        );
    }

    /// A million calls at most stay, whatever the target has written, and the rest is told.
    #[test]
    fn one_who_only_looks_keeps_no_more_calls_than_a_recording_does() {
        let (shared, header) = region();
        let put = |field: usize, value: u64| {
            let at = state_offset(0) + field as u64;
            shared.write(at, &value.to_le_bytes()).expect("room");
        };
        let reader = Drain::reader();
        assert_eq!(reader.most, Some(MOST_READ));
        // Plausible exits of calls that a rule has chosen, of eight words each.
        let most = 50;
        let mut drain = Drain {
            most: Some(most),
            ..reader
        };
        let start = header.frames_offset + area::AREA_FROM_FRAMES;
        for record in 0..WORDS / 8 {
            let head = area::Head::new(area::EXIT_WORDS, area::KIND_EXIT, 0, 0);
            let head = head.at(record * 8, WORDS);
            let words = [head.0, 0, record, record + 1, 1, 1, 0, 1 << 32];
            for (index, word) in (0..).zip(words) {
                let at = start + (record * 8 + index) * 8;
                shared.write(at, &word.to_le_bytes()).expect("room");
            }
        }
        put(offset_of!(area::State, head), WORDS);
        drain.take(&shared, &header).expect("all is inside");
        assert_eq!(drain.calls.len(), most);
        let left_out: u64 = drain.rings.values().map(|ring| ring.walk.left_out).sum();
        assert_eq!(left_out, WORDS / 8 - most as u64);
    }
}
