//! Functions that are not patched but named by a pointer into the program: their numbers, and what is kept of each
//! (docs/design/managed.md). A runtime's probe looks the pointer up in its set of places; here is what it does when
//! it is not there.
//!
//! Nothing here waits: a signal handler, or another thread, may do the same in between.

use crate::memory::{atomic32, atomic64, header, region};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use thalweg_abi as shm;
use thalweg_abi::dynamic::*;

const MOST: usize = DYNAMIC_TEXT_MOST as usize;

/// A text of bounded length, filled byte by byte.
pub struct Text {
    bytes: MaybeUninit<[u8; MOST]>,
    len: usize,
    /// There was more.
    pub cut: bool,
}

impl Text {
    fn start(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr().cast()
    }

    pub fn push(&mut self, byte: u8) {
        if self.len >= MOST {
            self.cut = true;
            return;
        }
        // SAFETY: within the array. Volatile, or a loop around this becomes a call of memcpy, which the agent does not have.
        unsafe { self.start().add(self.len).write_volatile(byte) };
        self.len += 1;
    }

    /// A character in UTF-8, as a whole or not at all. What is none becomes a question mark.
    pub fn push_char(&mut self, code: u32) {
        let is_char = code < 0xd800 || (0xe000..0x11_0000).contains(&code);
        let code = if is_char { code } else { u32::from(b'?') };
        let len = match code {
            0..0x80 => 1,
            0x80..0x800 => 2,
            0x800..0x1_0000 => 3,
            _ => 4,
        };
        if self.len + len > MOST {
            self.cut = true;
            return;
        }
        let tail = |turn: u32| 0x80 | (code >> turn & 0x3f) as u8;
        match len {
            1 => self.push(code as u8),
            2 => {
                self.push(0xc0 | (code >> 6) as u8);
                self.push(tail(0));
            }
            3 => {
                self.push(0xe0 | (code >> 12) as u8);
                self.push(tail(6));
                self.push(tail(0));
            }
            _ => {
                self.push(0xf0 | (code >> 18) as u8);
                self.push(tail(12));
                self.push(tail(6));
                self.push(tail(0));
            }
        }
    }

    /// UTF-8 as it is.
    ///
    /// # Safety
    /// There must be `len` bytes to read at `from`.
    pub unsafe fn push_bytes(&mut self, from: *const u8, len: usize) {
        for at in 0..len {
            // SAFETY: by the caller's promise.
            self.push(unsafe { from.add(at).read_volatile() });
        }
    }

    fn at(&self, index: usize) -> u8 {
        // SAFETY: callers count up to `len`, so the byte was written.
        unsafe { self.bytes.as_ptr().cast::<u8>().add(index).read_volatile() }
    }

    /// FNV-1a, going on from `hash`.
    fn hash(&self, mut hash: u64) -> u64 {
        for index in 0..self.len {
            hash = (hash ^ u64::from(self.at(index))).wrapping_mul(0x100_0000_01b3);
        }
        // A byte that no UTF-8 has keeps one text's end from being the next one's start.
        (hash ^ 0xff).wrapping_mul(0x100_0000_01b3)
    }
}

/// Who a function is. Two with the same of everything are one.
pub struct Identity {
    pub name: Text,
    pub file: Text,
    pub line: u32,
    /// `RECORD_` flags.
    pub flags: u16,
}

impl Identity {
    /// Field by field: as a whole it would be set by memset, which the agent does not have.
    fn empty(room: &mut MaybeUninit<Identity>) -> &mut Identity {
        let identity = room.as_mut_ptr();
        // SAFETY: all fields are written but for bytes that may be uninitialised.
        unsafe {
            for text in [&raw mut (*identity).name, &raw mut (*identity).file] {
                (&raw mut (*text).len).write_volatile(0);
                (&raw mut (*text).cut).write_volatile(false);
            }
            (&raw mut (*identity).line).write(0);
            (&raw mut (*identity).flags).write(0);
            &mut *identity
        }
    }
}

pub fn head() -> *mut DynamicHead {
    area(0) as *mut DynamicHead
}

fn area(offset: u64) -> u64 {
    region() + shm::PRIVATE_SIZE + shm::DYNAMIC_OFFSET + offset
}

/// The number of the function that `pointer` names. `check` tells it from others that were at the same address before; it must
/// depend on the pointer. `describe` fills in who it is; `false`: that cannot be known, and it is one of the others of its kind.
///
/// `None`: there is no number at all.
pub fn number(
    kind: u16,
    pointer: u64,
    check: u32,
    describe: impl FnOnce(&mut Identity) -> bool,
) -> Option<u32> {
    if let Some(place) = find(pointer, check) {
        return Some(place);
    }
    let mut room = MaybeUninit::uninit();
    let identity = Identity::empty(&mut room);
    if !describe(identity) {
        return others(kind);
    }
    if identity.name.cut || identity.file.cut {
        identity.flags |= RECORD_CUT;
    }
    let number = match known_or_new(kind, pointer, identity) {
        Some(number) => number,
        None => others(kind)?,
    };
    enter(pointer, check, number);
    Some(number)
}

/// What was at this address is gone: whoever comes there next is another one.
#[allow(dead_code, reason = "runtimes that free their pointers need it")]
pub fn drop(pointer: u64) {
    each_place(pointer, |place| {
        // SAFETY: places are in the region.
        unsafe {
            if (&raw const (*place).pointer).read_volatile() == pointer {
                (&raw mut (*place).pointer).write_volatile(0);
            }
        }
        false
    });
}

/// Calls `look` for the places that a pointer may have, until it says yes.
fn each_place(pointer: u64, mut look: impl FnMut(*mut DynamicPlace) -> bool) {
    let first = dynamic_set(pointer) * SET_PLACES;
    for step in 0..SETS_SEARCHED * SET_PLACES {
        let place = (first + step) % (DYNAMIC_SETS * SET_PLACES);
        let at = area(DYNAMIC_PLACES + place * DYNAMIC_PLACE_SIZE);
        if look(at as *mut DynamicPlace) {
            return;
        }
    }
}

/// Both halves of a place's second word.
///
/// # Safety
/// `place` must be a place of the table of dynamic functions.
unsafe fn word_of(place: *mut DynamicPlace) -> *mut u64 {
    // SAFETY: by the callers a place of the region; the word is aligned.
    unsafe { (&raw mut (*place).check).cast() }
}

/// The number of a function that was seen before.
pub fn find(pointer: u64, check: u32) -> Option<u32> {
    let mut found = None;
    each_place(pointer, |place| {
        // SAFETY: places are in the region.
        let (there, word) = unsafe {
            let there = (&raw const (*place).pointer).read_volatile();
            (there, word_of(place).read_volatile())
        };
        if there == pointer && word as u32 == check {
            found = Some((word >> 32) as u32);
        }
        found.is_some()
    });
    found
}

/// Enters the pointer where it was under another check, or in a free place, or, if there is none, in the first.
fn enter(pointer: u64, check: u32, number: u32) {
    let mut chosen: *mut DynamicPlace = core::ptr::null_mut();
    each_place(pointer, |place| {
        // SAFETY: places are in the region.
        let there = unsafe { (&raw const (*place).pointer).read_volatile() };
        if there == pointer || there == 0 && chosen.is_null() {
            chosen = place;
        }
        there == pointer
    });
    if chosen.is_null() {
        let first = dynamic_set(pointer) * SET_SIZE;
        chosen = area(DYNAMIC_PLACES + first) as *mut DynamicPlace;
    }
    // SAFETY: a place of the region. Nobody takes the pointer together with the other's word: the check tells.
    unsafe {
        (&raw mut (*chosen).pointer).write_volatile(0);
        word_of(chosen).write_volatile(u64::from(number) << 32 | u64::from(check));
        (&raw mut (*chosen).pointer).write_volatile(pointer);
    }
}

fn record_at(index: u64) -> *mut DynamicRecord {
    area(DYNAMIC_RECORDS_AT + index * DYNAMIC_RECORD_SIZE) as *mut DynamicRecord
}

/// The number of those who are this one, or a new one; `None`: no room.
fn known_or_new(kind: u16, pointer: u64, identity: &Identity) -> Option<u32> {
    let seed = 0xcbf2_9ce4_8422_2325 ^ u64::from(kind) << 32 ^ u64::from(identity.line);
    let hash = identity.file.hash(identity.name.hash(seed));
    let first =
        hash.wrapping_mul(DYNAMIC_FACTOR) >> (64 - DYNAMIC_IDENTITY_PLACES.trailing_zeros());
    let mut made = None;
    for step in 0..IDENTITIES_SEARCHED {
        let place = (first + step) % DYNAMIC_IDENTITY_PLACES;
        // SAFETY: an aligned word of the region.
        let word = unsafe { atomic64(area(DYNAMIC_IDENTITIES + place * 8) as *mut u64) };
        let mut there = word.load(Acquire);
        if there == 0 {
            let (index, number) = match made {
                Some(made) => made,
                None => make(kind, pointer, hash, identity)?,
            };
            made = Some((index, number));
            let ours = hash >> IDENTITY_SHIFT << IDENTITY_SHIFT | (index + 1);
            match word.compare_exchange(0, ours, Release, Acquire) {
                Ok(_) => return Some(number),
                Err(other) => there = other,
            }
        }
        if let Some(number) = is_same(there, hash) {
            if let Some((index, _)) = made {
                // SAFETY: a record of the region, which is this thread's own.
                unsafe { (&raw mut (*record_at(index)).state).write_volatile(RECORD_ALIAS) };
            }
            return Some(number);
        }
    }
    None
}

/// The number of the record that a word of the table of identities names, if that has this identity.
fn is_same(word: u64, hash: u64) -> Option<u32> {
    let mask = (1 << IDENTITY_SHIFT) - 1;
    if word & !mask != hash & !mask {
        return None;
    }
    let index = (word & mask).checked_sub(1)?;
    if index >= DYNAMIC_RECORDS {
        return None;
    }
    let record = record_at(index);
    // SAFETY: a record of the region. It was ready before its word was there.
    unsafe { ((*record).identity == hash).then(|| (*record).number) }
}

/// A record with a number of its own.
fn make(kind: u16, pointer: u64, hash: u64, identity: &Identity) -> Option<(u64, u32)> {
    let head = head();
    // SAFETY: the head is mapped; its counters are aligned.
    let (records, text) = unsafe {
        (
            atomic32(&raw mut (*head).records),
            atomic64(&raw mut (*head).text),
        )
    };
    if u64::from(records.load(Relaxed)) >= DYNAMIC_LIMIT {
        return None;
    }
    let len = (identity.name.len + identity.file.len) as u64;
    if text.load(Relaxed).saturating_add(len) > DYNAMIC_TEXT_LEN {
        return None;
    }
    let index = u64::from(records.fetch_add(1, Relaxed));
    let at = text.fetch_add(len, Relaxed);
    if index >= DYNAMIC_LIMIT || at + len > DYNAMIC_TEXT_LEN {
        return None;
    }
    put(at, &identity.name);
    put(at + identity.name.len as u64, &identity.file);
    let record = DynamicRecord {
        state: RECORD_NONE,
        kind,
        flags: identity.flags,
        number: next_number()?,
        line: identity.line,
        identity: hash,
        pointer,
        name: at as u32,
        name_len: identity.name.len as u32,
        file: at as u32 + identity.name.len as u32,
        file_len: identity.file.len as u32,
        reserved: [0; 2],
    };
    let number = record.number;
    publish(index, record);
    Some((index, number))
}

fn publish(index: u64, record: DynamicRecord) {
    let place = record_at(index);
    // SAFETY: a record of the region that no other thread has.
    unsafe {
        place.write_volatile(record);
        atomic32(&raw mut (*place).state).store(RECORD_READY, Release);
    }
}

fn put(at: u64, text: &Text) {
    let to = area(DYNAMIC_TEXT + at) as *mut u8;
    for index in 0..text.len {
        // SAFETY: callers have taken the room.
        unsafe { to.add(index).write_volatile(text.at(index)) };
    }
}

/// The next number of a function, patched or not.
fn next_number() -> Option<u32> {
    // SAFETY: the header is mapped, its counter aligned.
    let (functions, limit) = unsafe {
        (
            atomic32(&raw mut (*header()).functions),
            (*header()).functions_limit,
        )
    };
    let number = functions.fetch_add(1, Relaxed);
    if u64::from(number) < limit {
        return Some(number);
    }
    functions.fetch_sub(1, Relaxed);
    None
}

/// The function that stands for all of a kind that found no room.
fn others(kind: u16) -> Option<u32> {
    let place = u64::from(kind) % KINDS;
    // SAFETY: a word of the head.
    let word = unsafe {
        let first = (&raw mut (*head()).others).cast::<u32>();
        atomic32(first.add(place as usize))
    };
    if let Some(number) = word.load(Acquire).checked_sub(1) {
        return Some(number);
    }
    let number = next_number()?;
    match word.compare_exchange(0, number + 1, Release, Acquire) {
        Ok(_) => {
            let record = DynamicRecord {
                state: RECORD_NONE,
                kind,
                flags: RECORD_OTHERS,
                number,
                ..EMPTY
            };
            publish(DYNAMIC_LIMIT + place, record);
            Some(number)
        }
        Err(other) => other.checked_sub(1),
    }
}

const EMPTY: DynamicRecord = DynamicRecord {
    state: 0,
    kind: 0,
    flags: 0,
    number: 0,
    line: 0,
    identity: 0,
    pointer: 0,
    name: 0,
    name_len: 0,
    file: 0,
    file_len: 0,
    reserved: [0; 2],
};
