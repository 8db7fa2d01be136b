//! Calls that rules have chosen, written down one by one: the agent's side of `thalweg_abi::record`. The slow path comes here when a
//! function that a rule wants to hear of begins, and at every end of a call that is not a plain one: it took long, a rule
//! looks at every end of its function, or something that it called was kept.
//!
//! Times are counter values: a recorded call has the moments at which it began and ended, waits included.

use crate::memory::{Slot, atomic64, flags, header, region};
pub use crate::registers::Registers;
use crate::slow::function_of;
use crate::values::{self, Asked, Found, Over, Values};
use crate::{limits, migration};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::record::{self, Area, Begun, Ended, Read, Side, State};
use thalweg_abi::rules::{self, Entry};
use thalweg_abi::{Frame, Node};
use thalweg_bytecode::Call;

/// What a probe has pushed, from the last on.
#[repr(C)]
pub struct Saved {
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
}

/// The 16 vector registers, of which floating-point values take the low half.
pub type Vectors = [[u64; 2]; 16];

fn is_on() -> bool {
    flags() & shm::HEADER_RECORDS != 0 && !limits::is_frozen()
}

pub fn rules() -> u64 {
    // SAFETY: the header is mapped.
    region() + shm::PRIVATE_SIZE + unsafe { (*header()).rules_offset }
}

pub fn rules_head() -> *mut rules::Head {
    rules() as *mut rules::Head
}

/// # Safety
/// `frame` must be a frame of this thread's shadow stack.
pub unsafe fn side(frame: *mut Frame) -> *mut Side {
    (frame as u64 + record::SIDE_FROM_FRAME) as *mut Side
}

/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn state(slot: Slot) -> &'static State {
    // SAFETY: every slot's page has one; it is integers, shared with the controller.
    unsafe { &*((slot.shared() as u64 + record::STATE_OFFSET) as *const State) }
}

/// # Safety
/// `slot` must be the running thread's.
unsafe fn area(slot: Slot) -> Area<'static> {
    // SAFETY: the area lies behind the slot's frames, AREA_ROOM bytes, of which the controller has chosen a part.
    unsafe {
        let frames = slot.sentinel() as u64 - shm::FRAME_SIZE;
        let words = (frames + record::AREA_FROM_FRAMES) as *const AtomicU64;
        let count = (*rules_head()).area_words.min(record::AREA_ROOM / 8);
        Area {
            state: state(slot),
            words: core::slice::from_raw_parts(words, count as usize),
            overwrite: (*rules_head()).overwrite != 0,
        }
    }
}

/// A thread that has just got its slot.
///
/// # Safety
/// `slot` must be the running thread's alone.
pub unsafe fn open(slot: Slot) {
    if !is_on() {
        return;
    }
    // SAFETY: by the caller's promise.
    unsafe {
        (*slot.private()).rules = rules() + rules::TABLE_OFFSET;
        let state = state(slot);
        for word in [
            &state.marked,
            &state.named,
            &state.request,
            &state.request_depth,
            &state.values,
        ] {
            word.store(0, Relaxed);
        }
        let least = (&raw const (*rules_head()).least).read_volatile();
        state.threshold.store(least, Relaxed);
    }
}

/// The activation at `frame` begins at `now` on the thread's clock.
///
/// # Safety
/// `frame` must be on the shadow stack of `slot`, which must be the running thread's.
pub unsafe fn begins(slot: Slot, frame: *mut Frame, now: u64) {
    if !is_on() {
        return;
    }
    // SAFETY: every frame has its side.
    unsafe {
        let shared = slot.shared();
        let side = side(frame);
        (&raw mut (*side).entry).write_volatile(now.wrapping_add((*shared).off));
        (&raw mut (*side).slow).write_volatile((*shared).slow_ticks);
        (&raw mut (*side).watch).write_volatile(0);
        (&raw mut (*side).before).write_volatile(0);
    }
}

/// The activation at `frame` goes on after it was suspended, as a call of its own.
///
/// # Safety
/// As for `begins`.
pub unsafe fn resumes(slot: Slot, frame: *mut Frame, now: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        begins(slot, frame, now);
        if is_on() && has_rules(function_of((*frame).node as *const Node)) {
            record::Stack::watch(&mut Frames(slot), depth_of(slot, frame));
        }
    }
}

/// A function that a rule wants to hear of has begun; its frame is on top.
///
/// # Safety
/// `slot` must be the running thread's.
pub unsafe fn began(slot: Slot, function: u32, sp: u64, registers: &Registers) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut frames = Frames(slot);
        let depth = depth_of(slot, slot.top());
        let state = state(slot);
        let values = Values::of(slot, state);
        let asked = Asked {
            depth,
            entry: (*side(slot.top())).entry,
            sp,
        };
        let mut watched = false;
        for entry in entries_of(function) {
            if entry.flags & rules::ENTRY_ROOT != 0 && state.request.load(Relaxed) == 0 {
                let requests = atomic64(&raw mut (*rules_head()).requests);
                let number = requests.fetch_add(1, Relaxed).wrapping_add(1);
                state.request.store(number, Relaxed);
                state.request_depth.store(depth, Relaxed);
                watched = true;
            }
            if entry.flags & rules::ENTRY_THROWS != 0 {
                values.throws(&entry, &asked, registers);
            }
            if entry.flags & rules::ENTRY_DEFERRED != 0 {
                // From now on the hot path can save them.
                make_room_for_arguments(slot, state);
            }
            if entry.flags & (rules::ENTRY_AT_ENTRY | rules::ENTRY_DEFERRED) != 0 {
                watched |= values.begin(entry, &asked, registers);
            }
            watched |= entry.flags & rules::ENTRY_AT_EXIT != 0;
        }
        if watched {
            record::Stack::watch(&mut frames, depth);
        }
    }
}

/// The activation on top ends at `now` on the thread's clock; its frame is still there.
///
/// # Safety
/// `slot` must be the running thread's, or one whose thread has ended.
pub unsafe fn ends(slot: Slot, now: u64, how: u8, registers: Option<&Registers>) {
    if !is_on() {
        return;
    }
    // SAFETY: by the caller's promise; the top frame is above the sentinel.
    unsafe {
        let top = slot.top();
        let depth = depth_of(slot, top);
        let mut frames = Frames(slot);
        let area = area(slot);
        let Some(begun) = record::Stack::call(&frames, depth) else {
            return area.forget_above(depth - 1);
        };
        let shared = slot.shared();
        let exit = now.wrapping_add((*shared).off);
        let took = exit.wrapping_sub(begun.entry);
        // Of a coroutine that was resumed only what came since counts here; a goroutine's calls have all of it.
        let processor = now.wrapping_sub((*top).start);
        let processor = processor.wrapping_add((*side(top)).before).min(took);
        let own = now.wrapping_sub((*top).start).wrapping_sub((*top).child);
        let ended = Ended {
            exit,
            own: own.min(processor),
            processor,
            slow: (*shared).slow_ticks.wrapping_sub((*side(top)).slow),
            how,
        };
        let is_over = how == record::HOW_RETURNED || how == record::HOW_UNWOUND;
        let values = Values::of(slot, area.state);
        let unwound = how == record::HOW_UNWOUND;
        let thrown = match unwound {
            true => {
                let throws = rules::ENTRY_THROWS | rules::ENTRY_RETHROWS;
                if entries_of(begun.function).any(|entry| entry.flags & throws != 0) {
                    values.unwinds_at(now);
                }
                values.thrown_at(now)
            }
            false => &[],
        };
        let call = Call {
            total_ns: to_ns(took),
            self_ns: to_ns(ended.own),
            waited_ns: to_ns(took.saturating_sub(processor).saturating_sub(ended.slow)),
            unwound,
            thread: (*shared).tid,
            number: 0,
            exception: thrown,
        };
        let over = Over {
            depth,
            entry: begun.entry,
            call,
            took,
        };
        let is_asked = is_over && has_rules(begun.function);
        let arguments = match is_asked {
            true => arguments_of(slot, top, begun.function),
            false => None,
        };
        let mut entries = entries_of(begun.function);
        let found = match is_asked {
            true => chosen(&mut entries, &values, &over, registers, arguments),
            false if how == record::HOW_SUSPENDED => values.suspend(depth, begun.entry),
            false => None,
        };
        let (rule, read) = match &found {
            Some(found) => (found.rule, found.values),
            None => (record::NO_RULE, &[][..]),
        };
        let read = Read {
            values: read,
            thrown,
        };
        area.end(&mut frames, depth, rule, &ended, &read);
        let is_kept = found.is_some();
        if let Some(found) = found {
            values.give_back(found);
        }
        // Each further rule that keeps the call has a record of its own; the reader takes them for one call.
        while is_kept
            && is_asked
            && let Some(found) = chosen(&mut entries, &values, &over, registers, arguments)
        {
            let read = Read {
                values: found.values,
                thrown: &[],
            };
            area.end(&mut frames, depth, found.rule, &ended, &read);
            values.give_back(found);
        }
        area.forget_above(depth - 1);
        if shm::is_goroutine((*top).key) {
            migration::forget(top);
        }
    }
}

/// The next rule that keeps a call that ends, and what was read of it. `entries`: of rules that were not asked yet.
///
/// # Safety
/// `values` must be the running thread's.
unsafe fn chosen<'v>(
    entries: &mut impl Iterator<Item = Entry>,
    values: &'v Values,
    over: &Over,
    registers: Option<&Registers>,
    arguments: Option<&record::Saved>,
) -> Option<Found<'v>> {
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(found) = values.end(over, registers) {
            return Some(found);
        }
        for entry in entries {
            if entry.rule == record::NO_RULE
                || entry.flags & rules::ENTRY_AT_ENTRY != 0
                || over.took <= entry.least
            {
                continue;
            }
            if entry.flags & rules::ENTRY_DEFERRED != 0 {
                let found = arguments.and_then(|saved| {
                    let begun = values.begin_late(entry, saved, over);
                    begun.then(|| values.end(over, registers)).flatten()
                });
                if found.is_some() {
                    return found;
                }
                continue;
            }
            if entry.program_len == 0 {
                atomic64(&raw mut (*values::counter(entry.rule)).kept).fetch_add(1, Relaxed);
                return Some(values.nothing(entry.rule));
            }
            if let Some(found) = values.end_only(&entry, over, registers) {
                return Some(found);
            }
        }
        None
    }
}

/// Where the hot path saves what functions are called with.
fn make_room_for_arguments(slot: Slot, state: &State) {
    if state.saved_limit.load(Relaxed) != 0 {
        return;
    }
    let sentinel = slot.sentinel() as u64;
    let area = sentinel - shm::FRAME_SIZE + record::SAVED_FROM_FRAMES;
    let place = sentinel.wrapping_sub(slot.0);
    state
        .saved
        .store(area.wrapping_sub(place.wrapping_mul(4)), Relaxed);
    let limit = place.wrapping_add(record::SAVED_FRAMES * shm::FRAME_SIZE);
    state.saved_limit.store(limit, Relaxed);
}

/// What the activation at `frame` was called with, if the hot path has saved it and nobody else has saved anything there since.
///
/// # Safety
/// `slot` must be the running thread's, `frame` one of its shadow stack.
unsafe fn arguments_of(
    slot: Slot,
    frame: *mut Frame,
    function: u32,
) -> Option<&'static record::Saved> {
    // SAFETY: below the limit there is room for each frame's arguments.
    unsafe {
        let is_saved = (*side(frame)).watch & record::ARGUMENTS_SAVED != 0;
        let place = (frame as u64 - shm::FRAME_SIZE).wrapping_sub(slot.0);
        let state = state(slot);
        if !is_saved || place >= state.saved_limit.load(Relaxed) {
            return None;
        }
        let at = state
            .saved
            .load(Relaxed)
            .wrapping_add(place.wrapping_mul(4));
        let saved = &*(at as *const record::Saved);
        let is_its = saved.sp == shm::frame_sp((*frame).key) && saved.function == function as u64;
        if !is_its {
            // A handler ran before the frame was pushed: whether a rule would have kept the call nobody knows any more.
            state.dropped.fetch_add(1, Relaxed);
        }
        is_its.then_some(saved)
    }
}

fn to_ns(ticks: u64) -> u64 {
    // SAFETY: the header is mapped.
    let rate = unsafe { (*header()).ticks_per_ns }.max(1);
    ((ticks as u128 * ns_per_tick(rate) as u128) >> 32) as u64
}

/// Nanoseconds per tick, times 2^32: 2^64 / rate.
fn ns_per_tick(rate: u64) -> u64 {
    u64::MAX / rate
}

/// What stood above `frame` is gone.
///
/// # Safety
/// As for `ends`.
pub unsafe fn forget_above(slot: Slot, frame: *mut Frame) {
    if !is_on() {
        return;
    }
    // SAFETY: by the caller's promise.
    unsafe { area(slot).forget_above(depth_of(slot, frame)) }
}

pub fn has_rules(function: u32) -> bool {
    list_of(function) != 0
}

fn list_of(function: u32) -> u32 {
    // SAFETY: there is a word for each function.
    unsafe {
        let limit = (*header()).functions_limit;
        let lists = rules() + rules::lists_offset(limit);
        match (function as u64) < limit {
            true => ((lists + function as u64 * 4) as *const u32).read_volatile(),
            false => 0,
        }
    }
}

/// The rules of a function.
fn entries_of(function: u32) -> impl Iterator<Item = Entry> {
    // SAFETY: there is a word for each function; a list that is named is complete and stays as it is.
    unsafe {
        let list = list_of(function);
        let programs = rules() + rules::programs_offset((*header()).functions_limit);
        let at = programs + list as u64 * 8;
        let count = match list {
            0 => 0,
            _ => *(at as *const u64),
        };
        let first = (at + 8) as *const Entry;
        (0..count as usize).map(move |index| first.add(index).read())
    }
}

pub fn depth_of(slot: Slot, frame: *mut Frame) -> u64 {
    (frame as u64).wrapping_sub(slot.sentinel() as u64) / shm::FRAME_SIZE
}

/// The shadow stack of a thread.
struct Frames(Slot);

impl record::Stack for Frames {
    fn call(&self, depth: u64) -> Option<Begun> {
        // SAFETY: depths that recording asks about are those of frames on the stack.
        unsafe {
            let frame = self.0.sentinel().add(depth as usize);
            if (*frame).key == 0 || frame == self.0.base() {
                return None;
            }
            let entry = match (*side(frame)).entry {
                0 => (*header()).attach_ticks,
                entry => entry,
            };
            Some(Begun {
                function: function_of((*frame).node as *const Node),
                entry,
            })
        }
    }

    fn watch(&mut self, depth: u64) {
        // SAFETY: as in call.
        unsafe {
            let frame = self.0.sentinel().add(depth as usize);
            let watch = &raw mut (*side(frame)).watch;
            watch.write_volatile(watch.read_volatile() & !record::WATCHED);
            let key = &raw mut (*frame).key;
            key.write_volatile(key.read_volatile() | shm::KEY_CLOSER);
        }
    }

    fn thread(&self) -> (u64, u64) {
        // SAFETY: the shared page is mapped.
        unsafe {
            let shared = self.0.shared();
            let who = ((*shared).pid as u64) << 32 | (*shared).tid as u64;
            (who, (*shared).start)
        }
    }

    fn goroutine(&self, depth: u64) -> Option<u16> {
        // SAFETY: as in call. All of a slot's frames that are a goroutine's are of the one that runs.
        unsafe {
            let frame = self.0.sentinel().add(depth as usize);
            let spread = (*self.0.private())
                .goroutine
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            shm::is_goroutine((*frame).key).then_some((spread >> 52) as u16)
        }
    }

    fn is_marked_elsewhere(&self, depth: u64) -> bool {
        // SAFETY: as in call.
        unsafe {
            let frame = self.0.sentinel().add(depth as usize);
            shm::is_goroutine((*frame).key) && (*side(frame)).watch & record::MARKED_ELSEWHERE != 0
        }
    }
}
