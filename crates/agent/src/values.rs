//! What rules read: programs run here, with the registers of the probed function and its memory, which is read through the kernel so that a
//! bad pointer is an answer and not a fault.
//!
//! ```text
//! value stack   | call at depth 3: rule, what it read | call at depth 7: ... | <- `State::values`
//! ```
//!
//! What was read when a call began waits for its end on a stack of its own beside the shadow stack. An entry knows how deep its call is and
//! when it began: those of calls that were thrown away are found out and dropped.

use crate::memory::{Slot, atomic64, header};
use crate::record::{Registers, rules, rules_head, side};
use crate::slow::function_of;
use crate::target_memory::TargetMemory;
use core::sync::atomic::Ordering::Relaxed;
use thalweg_abi as shm;
use thalweg_abi::record::{self, State};
use thalweg_abi::rules::{self as contract, Entry};
use thalweg_abi::{Frame, Node};
use thalweg_bytecode::{self as bytecode, Call, Machine, Out, Surroundings, Verdict};

/// The head of an entry of the value stack; what was read follows it, and then one word: where the entry begins.
#[repr(C)]
pub struct Kept {
    pub depth: u64,
    entry: u64,
    pub rule: u32,
    len: u32,
    /// 1: the call is kept, however it ends.
    decided: u64,
    /// The rule, as it was when the call began.
    of: Entry,
}

pub const HEAD: u64 = core::mem::size_of::<Kept>() as u64;
/// The last of a thread's room for values is for what it throws.
const THROWN_ROOM: u64 = 4096;
pub const STACK_ROOM: u64 = record::VALUES_ROOM - THROWN_ROOM;

/// What a thread throws: when it last left activations, on the thread's clock, and what was read of it.
#[repr(C)]
struct Thrown {
    unwinds_at: u64,
    len: u64,
}

/// The value stack of one thread.
pub struct Values {
    slot: Slot,
    state: &'static State,
    pub start: u64,
}

/// A call that began, for the programs.
pub struct Asked {
    pub depth: u64,
    pub entry: u64,
    pub sp: u64,
}

/// What keeps a call that ends.
pub struct Found<'v> {
    pub rule: u32,
    /// On the value stack, until it is given back: a signal handler's would be written over it.
    pub values: &'v [u8],
    at: u64,
}

/// A call that ends.
pub struct Over<'a> {
    pub depth: u64,
    pub entry: u64,
    pub call: Call<'a>,
    pub took: u64,
}

impl Values {
    /// # Safety
    /// `slot` must be the running thread's, `state` that of its recording.
    pub unsafe fn of(slot: Slot, state: &'static State) -> Values {
        let frames = slot.sentinel() as u64 - shm::FRAME_SIZE;
        Values {
            slot,
            state,
            start: frames + record::VALUES_FROM_FRAMES,
        }
    }

    pub fn used(&self) -> u64 {
        self.state.values.load(Relaxed).min(STACK_ROOM)
    }

    /// The uppermost entry and where it begins.
    ///
    /// # Safety
    /// The stack of values must be this thread's.
    unsafe fn last(&self) -> Option<(u64, *mut Kept)> {
        // SAFETY: as in last_below.
        unsafe { self.last_below(self.used()) }
    }

    /// The uppermost entry of the first `used` bytes, and where it begins.
    ///
    /// # Safety
    /// An entry must end there, or the stack begin.
    pub unsafe fn last_below(&self, used: u64) -> Option<(u64, *mut Kept)> {
        // SAFETY: `used` bytes were written by this thread: entries, each with its start at its end.
        unsafe {
            if used < HEAD + 8 {
                return None;
            }
            let at = *((self.start + used - 8) as *const u64);
            (at <= used - HEAD - 8).then_some((at, (self.start + at) as *mut Kept))
        }
    }

    /// Asks the programs of a function that has just begun. Whether its end is to be looked at.
    ///
    /// # Safety
    /// `entry` must be of the activation on top of this thread's shadow stack, `registers` those of
    /// its entry.
    pub unsafe fn begin(&self, entry: Entry, asked: &Asked, registers: &Registers) -> bool {
        // SAFETY: as in begin_with.
        unsafe {
            let machine = registers.machine(asked.sp, false);
            self.begin_with(entry, asked, &machine, TargetMemory::new(Some(registers)))
        }
    }

    /// The same at the end of the call, for a program that needs nothing but what was saved when it began.
    ///
    /// # Safety
    /// `entry` must be of the activation that ends, `saved` what its entry has saved.
    pub unsafe fn begin_late(&self, entry: Entry, saved: &record::Saved, over: &Over) -> bool {
        let mut machine = Machine::default();
        for (to, from) in machine.int.iter_mut().zip(saved.ints) {
            *to = from;
        }
        for (to, from) in machine.float.iter_mut().zip(saved.floats) {
            *to = from;
        }
        let asked = Asked {
            depth: over.depth,
            entry: over.entry,
            sp: saved.sp,
        };
        // SAFETY: as in begin_with.
        unsafe { self.begin_with(entry, &asked, &machine, TargetMemory::new(None)) }
    }

    /// # Safety
    /// `entry` must be of the activation on top of this thread's shadow stack.
    unsafe fn begin_with(
        &self,
        entry: Entry,
        asked: &Asked,
        machine: &Machine,
        mut memory: TargetMemory,
    ) -> bool {
        // SAFETY: what is written lies within this thread's room.
        unsafe {
            let program = program_of(&entry);
            let Ok(head) = bytecode::Header::read(program) else {
                return false;
            };
            let counter = counter(entry.rule);
            let number = atomic64(&raw mut (*counter).asked).fetch_add(1, Relaxed) + 1;
            let at = self.used();
            let room = (head.max_out as u64).min(record::VALUES_LIMIT as u64);
            let end = at + HEAD + room.next_multiple_of(8) + 8;
            if end > STACK_ROOM {
                atomic64(&raw mut (*counter).unread).fetch_add(1, Relaxed);
                return false;
            }
            let kept = (self.start + at) as *mut Kept;
            let fill = || {
                (*kept).depth = asked.depth;
                (*kept).entry = asked.entry;
                (*kept).rule = entry.rule;
                (*kept).len = 0;
                (*kept).decided = 0;
                (*kept).of = entry;
                ((self.start + end - 8) as *mut u64).write_volatile(at);
            };
            // Once more after it is on the stack: a handler may have used the place in between.
            fill();
            self.state.values.store(end, Relaxed);
            fill();
            let bytes =
                core::slice::from_raw_parts_mut((kept as u64 + HEAD) as *mut u8, room as usize);
            let mut out = Out::new(bytes);
            let around = Around {
                values: self,
                depth: asked.depth,
            };
            let call = Call {
                thread: (*self.slot.shared()).tid,
                number,
                ..Call::default()
            };
            let verdict = bytecode::entry(program, machine, &mut memory, &around, &call, &mut out);
            if verdict == Verdict::No {
                self.state.values.store(at, Relaxed);
                return false;
            }
            let len = out.len() as u64;
            (*kept).len = len as u32;
            (*kept).decided = (verdict == Verdict::Yes) as u64;
            let end = at + HEAD + len.next_multiple_of(8) + 8;
            ((self.start + end - 8) as *mut u64).write_volatile(at);
            self.state.values.store(end, Relaxed);
            true
        }
    }

    /// The uppermost entry, if it is of the call that began at `entry` at this depth. Those of calls that are no more are dropped.
    ///
    /// # Safety
    /// The stack of values must be this thread's.
    unsafe fn last_of(&self, depth: u64, entry: u64) -> Option<(u64, *mut Kept)> {
        // SAFETY: as in last.
        unsafe {
            while let Some((at, kept)) = self.last() {
                if (*kept).depth < depth {
                    return None;
                }
                if (*kept).depth == depth && (*kept).entry == entry {
                    return Some((at, kept));
                }
                self.state.values.store(at, Relaxed);
            }
            None
        }
    }

    /// A coroutine is left in the call: whether it is kept however it ends, and what was read when it began. What the end would
    /// have decided is given up.
    ///
    /// # Safety
    /// The stack of values must be this thread's.
    pub unsafe fn suspend(&self, depth: u64, entry: u64) -> Option<Found<'_>> {
        // SAFETY: as in begin.
        unsafe {
            while let Some((at, kept)) = self.last_of(depth, entry) {
                let of = (*kept).of;
                let head = bytecode::Header::read(program_of(&of));
                if (*kept).decided != 0 && head.is_ok_and(|head| is_within_limits(of.rule, &head)) {
                    let bytes = (kept as u64 + HEAD) as *const u8;
                    let values = core::slice::from_raw_parts(bytes, (*kept).len as usize);
                    let rule = of.rule;
                    return Some(Found { rule, values, at });
                }
                self.state.values.store(at, Relaxed);
            }
            None
        }
    }

    /// A call that is kept whatever was read of it.
    pub fn nothing(&self, rule: u32) -> Found<'_> {
        Found {
            rule,
            values: &[],
            at: self.used(),
        }
    }

    /// What was found has been written down.
    pub fn give_back(&self, found: Found) {
        self.state.values.store(found.at, Relaxed);
    }

    /// Asks whether the call that ends is kept, by what its rules read when it began: the rule and all that was read.
    ///
    /// # Safety
    /// `over` must be of the activation that ends, `registers` those of its end.
    pub unsafe fn end(&self, over: &Over, registers: Option<&Registers>) -> Option<Found<'_>> {
        // SAFETY: as in begin.
        unsafe {
            while let Some((at, kept)) = self.last_of(over.depth, over.entry) {
                let read = (*kept).len as u64;
                let entry = (*kept).of;
                let found = self.finish(at, read, &entry, over, registers);
                if found.is_some() {
                    return found;
                }
                self.state.values.store(at, Relaxed);
            }
            None
        }
    }

    /// The same for a rule that read nothing when the call began.
    ///
    /// # Safety
    /// `over` must be of the activation that ends, `registers` those of its end.
    pub unsafe fn end_only(
        &self,
        entry: &Entry,
        over: &Over,
        registers: Option<&Registers>,
    ) -> Option<Found<'_>> {
        // SAFETY: as in begin.
        unsafe {
            let at = self.used();
            let found = self.finish(at, 0, entry, over, registers);
            if found.is_none() {
                self.state.values.store(at, Relaxed);
            }
            found
        }
    }

    /// # Safety
    /// `at` must be where an entry of this thread's stack of values begins, or its end.
    unsafe fn finish(
        &self,
        at: u64,
        read: u64,
        entry: &Entry,
        over: &Over,
        registers: Option<&Registers>,
    ) -> Option<Found<'_>> {
        // SAFETY: as in begin.
        unsafe {
            let program = program_of(entry);
            let head = bytecode::Header::read(program).ok()?;
            let first = self.start + at + HEAD;
            let room = (head.max_out as u64)
                .min(record::VALUES_LIMIT as u64)
                .max(read);
            let end = at + HEAD + room.next_multiple_of(8) + 8;
            if end > STACK_ROOM {
                atomic64(&raw mut (*counter(entry.rule)).unread).fetch_add(1, Relaxed);
                return None;
            }
            let known = core::slice::from_raw_parts(first as *const u8, read as usize);
            let rest = (first + read) as *mut u8;
            let rest = core::slice::from_raw_parts_mut(rest, (room - read) as usize);
            // A handler's entries go above it, and find it whole.
            let kept = (self.start + at) as *mut Kept;
            let fill = || {
                (&raw mut (*kept).depth).write_volatile(over.depth);
                (&raw mut (*kept).entry).write_volatile(over.entry);
                ((self.start + end - 8) as *mut u64).write_volatile(at);
            };
            fill();
            self.state.values.store(end, Relaxed);
            fill();
            let mut out = Out::new(rest);
            let mut machine = match registers {
                Some(registers) => registers.machine(0, true),
                None => Machine::default(),
            };
            if head.has(bytecode::flags::NEEDS_ERRNO) {
                machine.errno = errno();
            }
            let mut memory = TargetMemory::new(registers);
            if over.took <= entry.least
                || !bytecode::exit(program, &machine, &mut memory, &over.call, known, &mut out)
                || !is_within_limits(entry.rule, &head)
            {
                return None;
            }
            let len = read as usize + out.len();
            Some(Found {
                rule: entry.rule,
                values: core::slice::from_raw_parts(first as *const u8, len),
                at,
            })
        }
    }

    fn thrown(&self) -> *mut Thrown {
        (self.start + STACK_ROOM) as *mut Thrown
    }

    /// Reads what is being thrown, for the calls that it will leave.
    ///
    /// # Safety
    /// `registers` must be those of the function that throws.
    pub unsafe fn throws(&self, entry: &Entry, asked: &Asked, registers: &Registers) {
        // SAFETY: the last of the room is for this.
        unsafe {
            let thrown = self.thrown();
            let bytes = (thrown as u64 + core::mem::size_of::<Thrown>() as u64) as *mut u8;
            let room = THROWN_ROOM as usize - core::mem::size_of::<Thrown>();
            (*thrown).len = 0;
            let mut out = Out::new(core::slice::from_raw_parts_mut(bytes, room));
            let machine = registers.machine(asked.sp, false);
            let call = Call::default();
            let around = bytecode::Nowhere;
            bytecode::entry(
                program_of(entry),
                &machine,
                &mut TargetMemory::new(Some(registers)),
                &around,
                &call,
                &mut out,
            );
            (*thrown).len = out.len() as u64;
            (*thrown).unwinds_at = 0;
        }
    }

    /// The activations that end at `now` are left by what was thrown last.
    ///
    /// # Safety
    /// The stack of values must be this thread's.
    pub unsafe fn unwinds_at(&self, now: u64) {
        // SAFETY: as in throws.
        unsafe { (*self.thrown()).unwinds_at = now }
    }

    /// What the activations that end at `now` are left by, if it was thrown.
    ///
    /// # Safety
    /// The stack of values must be this thread's.
    pub unsafe fn thrown_at(&self, now: u64) -> &[u8] {
        // SAFETY: as in throws.
        unsafe {
            let thrown = self.thrown();
            let bytes = (thrown as u64 + core::mem::size_of::<Thrown>() as u64) as *const u8;
            match (*thrown).unwinds_at == now && (*thrown).len < THROWN_ROOM {
                true => core::slice::from_raw_parts(bytes, (*thrown).len as usize),
                false => &[],
            }
        }
    }
}

/// Counts the call among those that its rule keeps; `false` if it is one too many.
///
/// # Safety
/// The region of rules must be mapped, `rule` be one of it.
pub unsafe fn is_within_limits(rule: u32, head: &bytecode::Header) -> bool {
    // SAFETY: every rule has a counter.
    unsafe {
        let counter = counter(rule);
        if head.per_second > 0 {
            let ticks = crate::memory::ticks();
            let rate = (*rules_head()).ticks_per_second.max(1);
            let second = ticks / rate;
            let current = atomic64(&raw mut (*counter).second);
            let seen = current.load(Relaxed);
            let count = atomic64(&raw mut (*counter).in_second);
            if seen != second
                && current
                    .compare_exchange(seen, second, Relaxed, Relaxed)
                    .is_ok()
            {
                count.store(0, Relaxed);
            }
            if count.fetch_add(1, Relaxed) >= head.per_second as u64 {
                return false;
            }
        }
        let kept = atomic64(&raw mut (*counter).kept);
        if head.first == 0 {
            kept.fetch_add(1, Relaxed);
            return true;
        }
        kept.fetch_update(Relaxed, Relaxed, |n| (n < head.first).then_some(n + 1))
            .is_ok()
    }
}

pub fn counter(rule: u32) -> *mut contract::Counter {
    let index = rule as u64 % contract::MAX_RULES;
    (rules() + contract::COUNTERS_OFFSET + index * contract::COUNTER_SIZE) as *mut contract::Counter
}

fn programs() -> u64 {
    // SAFETY: the header is mapped.
    rules() + contract::programs_offset(unsafe { (*header()).functions_limit })
}

/// The bytes of a rule's program.
///
/// # Safety
/// `entry` must be an entry of the region of rules, which stays mapped.
pub unsafe fn program_of(entry: &Entry) -> &'static [u8] {
    // SAFETY: programs that are named stay where they are.
    unsafe {
        let at = programs() + entry.program as u64 * 8;
        core::slice::from_raw_parts(at as *const u8, entry.program_len as usize)
    }
}

fn errno() -> i64 {
    // SAFETY: the controller has found where the C library keeps it, from the thread pointer on.
    unsafe {
        match (*rules_head()).errno_offset {
            0 => 0,
            offset => {
                let at = crate::memory::thread_pointer().wrapping_add(offset);
                (at as *const i32).read_volatile() as i64
            }
        }
    }
}

struct Around<'a> {
    values: &'a Values,
    depth: u64,
}

impl Around<'_> {
    fn function(&self, depth: u64) -> Option<u32> {
        // SAFETY: depths below that of a frame on the stack are those of frames.
        unsafe {
            let slot = self.values.slot;
            let frame: *mut Frame = slot.sentinel().add(depth as usize);
            if (*frame).key == 0 || frame == slot.base() {
                return None;
            }
            Some(function_of((*frame).node as *const Node))
        }
    }

    fn is_in(&self, set: u16, function: u32) -> bool {
        // SAFETY: the controller has written as many sets as it says, each with a bit per function.
        unsafe {
            let head = rules_head();
            if set as u64 >= (*head).sets {
                return false;
            }
            let at = programs() + (*head).sets_offset + set as u64 * 16;
            let [offset, len] = *(at as *const [u64; 2]);
            let byte = function as u64 / 8;
            byte < len && *((programs() + offset + byte) as *const u8) >> (function % 8) & 1 != 0
        }
    }
}

impl Surroundings for Around<'_> {
    fn caller_in(&self, set: u16) -> bool {
        let mut depth = self.depth - 1;
        while depth > 0 {
            if let Some(function) = self.function(depth) {
                return self.is_in(set, function);
            }
            depth -= 1;
        }
        false
    }

    fn above_in(&self, set: u16) -> bool {
        let mut above = (1..self.depth).rev();
        above.any(|depth| {
            let function = self.function(depth);
            function.is_some_and(|function| self.is_in(set, function))
        })
    }

    fn active(&self, rule: u16) -> bool {
        // SAFETY: as in last.
        unsafe {
            let mut used = self.values.used();
            while used >= HEAD + 8 {
                let at = *((self.values.start + used - 8) as *const u64);
                if at > used - HEAD - 8 {
                    return false;
                }
                let kept = (self.values.start + at) as *const Kept;
                let is_open = (*kept).depth < self.depth && {
                    let frame = self.values.slot.sentinel().add((*kept).depth as usize);
                    (*side(frame)).entry == (*kept).entry
                };
                if is_open && (*kept).rule == rule as u32 + 1 {
                    return true;
                }
                used = at;
            }
            false
        }
    }

    fn fired(&self, rule: u16) -> bool {
        // SAFETY: every rule has a counter.
        unsafe { (*counter(rule as u32 + 1)).kept > 0 }
    }

    fn thread_name(&self) -> [u8; 16] {
        let mut name = [0; 16];
        crate::memory::thread_name(&raw mut name);
        // SAFETY: the kernel has written to it.
        unsafe { (&raw const name).read_volatile() }
    }
}

const _: () = assert!(HEAD.is_multiple_of(8));
