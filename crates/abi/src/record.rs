//! Calls that rules have chosen: what a thread writes about them into its part of the region, and one reader takes out.
//!
//! ```text
//! shadow stack      main  loop  serve  query  read      the preallocated stack with entry times: it is there anyway
//!                   `----------------'                  marked: the outermost `marked` frames have their entry mark
//!
//! record area       | enter main | enter loop | enter serve | exit query (rule 1) | exit serve | ...
//!                   ^ read (persist index)                                          ^ head (data index)
//! ```
//!
//! A call that nothing keeps writes nothing. When one is kept, the entry marks of those of its callers that have none yet
//! are written first, outermost first, then its own exit record. A marked frame's exit takes the slow path, where its exit record is
//! written and the mark goes. So the area holds what an array of all entries and exits would hold after everything
//! uninteresting was taken out of it again, and one walk makes call trees of it.
//!
//! Positions are words since the thread's first record; the area is a ring. Only the thread itself writes, but its signal
//! handlers may do so between any two instructions: room is taken by one exchange of `head`, and a record counts when its
//! first word says what it is, which is stored last. Pure logic over atomic words, used by the agent and by tests alike.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// What a thread's recording has, in its slot's shared page.
#[repr(C)]
#[derive(Default)]
pub struct State {
    /// An activation that took more ticks than this, waits included, is looked at when it ends.
    pub threshold: AtomicU64,
    /// The data index: where the next record goes.
    pub head: AtomicU64,
    /// The persist index: what lies before it has been read. The reader's.
    pub read: AtomicU64,
    /// What lies before it may have been overwritten, where the oldest records are.
    pub oldest: AtomicU64,
    /// How many frames of the shadow stack, from the outermost on, have their entry mark.
    pub marked: AtomicU64,
    /// Where the mark of the outermost is.
    pub marked_from: AtomicU64,
    /// 1: the area knows whose records follow.
    pub named: AtomicU64,
    /// The request that the thread is at, 0: none; and how deep its root is.
    pub request: AtomicU64,
    pub request_depth: AtomicU64,
    /// Bytes of the value stack in use.
    pub values: AtomicU64,
    /// Calls that a rule had chosen and for which there was no room.
    pub dropped: AtomicU64,
    pub kept: AtomicU64,
    /// Where arguments are saved: what to add to four times a frame's place from the private page on; and the place up to which there is room. 0: the slow
    /// path has not been asked yet.
    pub saved: AtomicU64,
    pub saved_limit: AtomicU64,
}

/// Offset of the state in a slot's shared page.
pub const STATE_OFFSET: u64 = 3072;
pub const STATE_THRESHOLD: u64 = 0;
pub const STATE_SAVED: u64 = 96;
pub const STATE_SAVED_LIMIT: u64 = 104;

/// Beside each frame of a shadow stack, at the distance `SIDE_FROM_FRAME`: what only recording needs.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
pub struct Side {
    /// Counter value at entry; 0: before the thread was known.
    pub entry: u64,
    /// The thread's `slow_ticks` then.
    pub slow: u64,
    /// `WATCHED`, `ARGUMENTS_SAVED`, `FLOATS_SAVED` and `MARKED_ELSEWHERE`; in the second byte the filter that decides when the call returns, 0: its function's. With one of its own
    /// the upper half says whose it is: where the return address is.
    pub watch: u64,
    /// Of a goroutine's call: ticks on a processor that its frame does not know of, since it was on other threads then.
    pub before: u64,
}

/// The exit is marked only for the filter of its function. Whoever marks it for something else takes that back.
pub const WATCHED: u64 = 1;
pub const ARGUMENTS_SAVED: u64 = 2;
/// Those in vector registers, too.
pub const FLOATS_SAVED: u64 = 4;
/// The call had its entry mark where the goroutine was before: its end is told in any case.
pub const MARKED_ELSEWHERE: u64 = 8;

/// What a function was called with, for its end. A signal handler may have used the place of a frame that was not there yet: it is believed only if it
/// says whose it is.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Saved {
    /// Where the return address is.
    pub sp: u64,
    /// rdi rsi rdx rcx r8 r9
    pub ints: [u64; 6],
    /// xmm0 to xmm7, if a rule of the function asks for one.
    pub floats: [u64; 8],
    pub function: u64,
}

pub const SAVED_SIZE: u64 = 128;
/// Calls that are deeper are asked about when they begin.
pub const SAVED_FRAMES: u64 = 16 << 10;
pub const SAVED_ROOM: u64 = SAVED_FRAMES * SAVED_SIZE;

pub const SIDE_FROM_FRAME: u64 = crate::FRAMES_SIZE;
pub const SIDE_ENTRY: u64 = SIDE_FROM_FRAME;
pub const SIDE_SLOW: u64 = SIDE_FROM_FRAME + 8;
pub const SIDE_WATCH: u64 = SIDE_FROM_FRAME + 16;

/// The most that a thread's record area may have, and where it lies behind the thread's first frame.
pub const AREA_ROOM: u64 = 16 << 20;
pub const AREA_FROM_FRAMES: u64 = 2 * crate::FRAMES_SIZE;
pub const AREA_LEAST: u64 = 64 << 10;
/// What was read at entries of calls that are still running.
pub const VALUES_ROOM: u64 = 256 << 10;
pub const VALUES_FROM_FRAMES: u64 = AREA_FROM_FRAMES + AREA_ROOM;
pub const SAVED_FROM_FRAMES: u64 = VALUES_FROM_FRAMES + VALUES_ROOM;
/// All that recording adds to a thread's part of the region.
pub const ROOM: u64 = crate::FRAMES_SIZE + AREA_ROOM + VALUES_ROOM + SAVED_ROOM;

/// The first word of a record: its length in words, what it is, how the call ended, and how deep it was.
///
/// ```text
/// 63      48 47 44 43 40 39   32 31       20 19   0
/// |  words  |  lap | kind |  how  | goroutine | depth |
/// ```
///
/// `lap` is how often the ring had been gone around, in its last bits: what an earlier lap has left there is not taken for a record. `goroutine` is a few
/// bits of whose call it is, 0 for a thread's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(pub u64);

impl Head {
    pub const fn new(words: u64, kind: u8, how: u8, depth: u64) -> Head {
        Head(words << 48 | (kind as u64) << 40 | (how as u64) << 32 | depth & DEPTH_MASK)
    }

    pub const fn of_goroutine(self, tag: u16) -> Head {
        Head(self.0 | (tag as u64 & 0xfff) << DEPTH_BITS)
    }

    pub const fn goroutine(self) -> u16 {
        (self.0 >> DEPTH_BITS) as u16 & 0xfff
    }

    pub const fn words(self) -> u64 {
        self.0 >> 48
    }

    pub const fn kind(self) -> u8 {
        (self.0 >> 40) as u8 & 15
    }

    /// As it is written at `position` of a ring of `size` words.
    pub const fn at(self, position: u64, size: u64) -> Head {
        Head(self.0 & !(15 << 44) | ((position / size) & 15) << 44)
    }

    /// Whether it was written there.
    pub const fn is_at(self, position: u64, size: u64) -> bool {
        self.at(position, size).0 == self.0
    }

    pub const fn how(self) -> u8 {
        (self.0 >> 32) as u8
    }

    pub const fn depth(self) -> u64 {
        self.0 & DEPTH_MASK
    }
}

const DEPTH_BITS: u32 = 20;
const DEPTH_MASK: u64 = (1 << DEPTH_BITS) - 1;

/// Room that is taken but not filled.
pub const KIND_NONE: u8 = 0;
/// Whose records follow: pid << 32 | tid, counter value when the thread began.
pub const KIND_THREAD: u8 = 1;
/// function << 32 | request, counter value at entry.
pub const KIND_ENTER: u8 = 2;
/// function << 32 | request, counter values at entry and exit, ticks in itself, ticks on a processor, ticks in the slow path,
/// rule << 32 | bytes of what was thrown << 16 | bytes of values; the values, and in words of their own what was thrown.
pub const KIND_EXIT: u8 = 3;

pub const THREAD_WORDS: u64 = 3;
pub const ENTER_WORDS: u64 = 3;
pub const EXIT_WORDS: u64 = 8;
/// The most values that one record carries, in bytes.
pub const VALUES_LIMIT: usize = 32 << 10;

pub const HOW_RETURNED: u8 = 0;
/// By an exception, a longjmp or a cancellation.
pub const HOW_UNWOUND: u8 = 1;
/// A coroutine was left; the call goes on in a record of its own when it is resumed.
pub const HOW_SUSPENDED: u8 = 2;
/// Its thread ended in it.
pub const HOW_ENDED: u8 = 3;
/// Added where values were left out for want of room.
pub const HOW_WITHOUT_VALUES: u8 = 0x80;
/// Added to marks and exits of a goroutine's calls: the rings of other threads may speak of the same call, by its function and the counter
/// value at its entry.
pub const HOW_GOROUTINE: u8 = 0x40;
/// Added to an exit whose mark is in another ring, or further back in this one.
pub const HOW_MARKED_ELSEWHERE: u8 = 0x20;

/// `ENTER` and `EXIT` of a call that no rule has chosen: a caller of one that was.
pub const NO_RULE: u32 = 0;

/// A call that is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub function: u32,
    pub entry: u64,
}

/// What is known of a call when it ends. Ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub exit: u64,
    pub own: u64,
    pub processor: u64,
    pub slow: u64,
    pub how: u8,
}

/// What rules have read of a call, and what was thrown through it, as `thalweg_bytecode` writes it.
#[derive(Clone, Copy, Default)]
pub struct Read<'a> {
    pub values: &'a [u8],
    pub thrown: &'a [u8],
}

impl Read<'_> {
    fn words(&self) -> u64 {
        (self.values.len().div_ceil(8) + self.thrown.len().div_ceil(8)) as u64
    }
}

/// The thread's shadow stack, as far as recording needs it. Depths count from 1.
pub trait Stack {
    /// `None`: a frame that stands for no call.
    fn call(&self, depth: u64) -> Option<Begun>;
    /// From now on the exit of that frame is told.
    fn watch(&mut self, depth: u64);
    /// pid and tid in one word, and when the thread began.
    fn thread(&self) -> (u64, u64);
    /// It is a goroutine's call, which other threads may go on with: some bits of which goroutine's.
    fn goroutine(&self, _depth: u64) -> Option<u16> {
        None
    }
    /// It had its mark before it came to this thread.
    fn is_marked_elsewhere(&self, _depth: u64) -> bool {
        false
    }
}

/// One thread's recording.
pub struct Area<'a> {
    pub state: &'a State,
    /// A power of two of them.
    pub words: &'a [AtomicU64],
    /// Where there is no room the oldest records go, whether they were read or not; otherwise the newest are not written.
    pub overwrite: bool,
}

impl Area<'_> {
    /// The call at `depth` is over. `rule`: the rule that keeps it, or `NO_RULE`; then it is written only if it has a mark.
    /// Returns whether it was written.
    pub fn end(
        &self,
        stack: &mut impl Stack,
        depth: u64,
        rule: u32,
        ended: &Ended,
        read: &Read,
    ) -> bool {
        let was_marked = depth <= self.state.marked.load(Relaxed);
        if rule != NO_RULE {
            let fits = self.mark(stack, depth - 1, if was_marked { 0 } else { EXIT_WORDS });
            if !fits && !was_marked {
                self.state.dropped.fetch_add(1, Relaxed);
                return false;
            }
        }
        let is_marked = depth <= self.state.marked.load(Relaxed);
        let mut written = false;
        let is_marked_elsewhere = stack.is_marked_elsewhere(depth);
        if (is_marked || was_marked || is_marked_elsewhere || rule != NO_RULE)
            && let Some(begun) = stack.call(depth)
        {
            let mut how = ended.how;
            let goroutine = stack.goroutine(depth);
            if goroutine.is_some() {
                how |= HOW_GOROUTINE
                    | if is_marked_elsewhere {
                        HOW_MARKED_ELSEWHERE
                    } else {
                        0
                    };
            }
            let ended = Ended { how, ..*ended };
            let call = (depth, goroutine.unwrap_or(0));
            written = self.exit(call, begun, rule, &ended, read);
            if rule != NO_RULE {
                let count = match written {
                    true => &self.state.kept,
                    false => &self.state.dropped,
                };
                count.fetch_add(1, Relaxed);
            }
        }
        if is_marked {
            self.state.marked.store(depth - 1, Relaxed);
        }
        written
    }

    /// Frames above `depth` are no more, and nothing is to be said about them.
    pub fn forget_above(&self, depth: u64) {
        if self.state.marked.load(Relaxed) > depth {
            self.state.marked.store(depth, Relaxed);
        }
        if self.state.request_depth.load(Relaxed) > depth {
            self.state.request.store(0, Relaxed);
            self.state.request_depth.store(0, Relaxed);
        }
    }

    /// Gives all frames up to `depth` their entry marks. `false`: there is no room for them and for all exits that will follow, and
    /// for `more` words.
    pub fn mark(&self, stack: &mut impl Stack, depth: u64, more: u64) -> bool {
        let state = self.state;
        let lost = state.oldest.load(Relaxed) > state.marked_from.load(Relaxed);
        if self.overwrite && lost && state.marked.load(Relaxed) > 0 {
            state.marked.store(0, Relaxed);
        }
        let missing = depth.saturating_sub(state.marked.load(Relaxed));
        let needed = missing * (ENTER_WORDS + EXIT_WORDS) + THREAD_WORDS + more;
        if !self.make_room(needed) {
            return false;
        }
        if state.named.load(Relaxed) == 0 {
            let (who, start) = stack.thread();
            if self.put(
                Head::new(THREAD_WORDS, KIND_THREAD, 0, 0),
                &[who, start],
                &Read::default(),
            ) {
                state.named.store(1, Relaxed);
            }
        }
        loop {
            // Read again each time: a handler that kept a call of its own has marked these as well. One that comes
            // between a mark and the count writes the mark once more, which the reader takes for the same.
            let next = state.marked.load(Relaxed) + 1;
            if next > depth {
                return true;
            }
            if next == 1 {
                let head = state.head.load(Relaxed);
                state.marked_from.store(head, Relaxed);
            }
            if let Some(begun) = stack.call(next) {
                let goroutine = stack.goroutine(next);
                let how = goroutine.map_or(0, |_| HOW_GOROUTINE);
                let head = Head::new(ENTER_WORDS, KIND_ENTER, how, next);
                let head = head.of_goroutine(goroutine.unwrap_or(0));
                let what = self.what(next, begun);
                if !self.put(head, &[what, begun.entry], &Read::default()) {
                    return false;
                }
                stack.watch(next);
            }
            state.marked.store(next, Relaxed);
        }
    }

    fn what(&self, depth: u64, begun: Begun) -> u64 {
        let root = self.state.request_depth.load(Relaxed);
        let request = match root != 0 && depth >= root {
            true => self.state.request.load(Relaxed) & 0xffff_ffff,
            false => 0,
        };
        (begun.function as u64) << 32 | request
    }

    fn exit(
        &self,
        (depth, goroutine): (u64, u16),
        begun: Begun,
        rule: u32,
        ended: &Ended,
        read: &Read,
    ) -> bool {
        let limited = Read {
            values: read.values.get(..VALUES_LIMIT).unwrap_or(read.values),
            thrown: read.thrown.get(..VALUES_LIMIT).unwrap_or(read.thrown),
        };
        let (read, how) = match self.make_room(EXIT_WORDS + limited.words()) {
            true => (limited, ended.how),
            false if limited.words() == 0 => (limited, ended.how),
            false => (Read::default(), ended.how | HOW_WITHOUT_VALUES),
        };
        let words = [
            self.what(depth, begun),
            begun.entry,
            ended.exit,
            ended.own,
            ended.processor,
            ended.slow,
            (rule as u64) << 32 | (read.thrown.len() as u64) << 16 | read.values.len() as u64,
        ];
        let head = Head::new(EXIT_WORDS + read.words(), KIND_EXIT, how, depth);
        let head = head.of_goroutine(goroutine);
        self.put(head, &words, &read)
    }

    fn size(&self) -> u64 {
        self.words.len() as u64
    }

    fn used(&self) -> u64 {
        let from = match self.overwrite {
            true => &self.state.oldest,
            false => &self.state.read,
        };
        let used = self
            .state
            .head
            .load(Relaxed)
            .wrapping_sub(from.load(Acquire));
        used.min(self.size())
    }

    /// Whether `words` more fit, beside the exit records of all marked frames.
    fn make_room(&self, words: u64) -> bool {
        let promised = self.state.marked.load(Relaxed) * EXIT_WORDS;
        let needed = words.saturating_add(promised);
        if needed <= self.size() - self.used() {
            return true;
        }
        if !self.overwrite || needed > self.size() {
            return false;
        }
        while needed > self.size() - self.used() {
            let oldest = self.state.oldest.load(Relaxed);
            let length = Head(self.word(oldest)).words();
            if length == 0 || length > self.size() {
                return false;
            }
            self.state.oldest.store(oldest + length, Release);
        }
        true
    }

    fn word(&self, at: u64) -> u64 {
        let index = at as usize & (self.words.len().wrapping_sub(1));
        self.words.get(index).map_or(0, |word| word.load(Relaxed))
    }

    fn set(&self, at: u64, value: u64, order: core::sync::atomic::Ordering) {
        let index = at as usize & (self.words.len().wrapping_sub(1));
        if let Some(word) = self.words.get(index) {
            word.store(value, order);
        }
    }

    /// Writes one record. What was promised to exits may be used up by it: the caller has asked before.
    fn put(&self, head: Head, words: &[u64], read: &Read) -> bool {
        let at = loop {
            if self.used() + head.words() > self.size() {
                return false;
            }
            let at = self.state.head.load(Relaxed);
            let next = at + head.words();
            let taken = self.state.head.compare_exchange(at, next, AcqRel, Relaxed);
            if taken.is_ok() {
                break at;
            }
        };
        // Nobody believes it, but it can be passed over if a handler never comes back to what it interrupted.
        let taken = Head::new(head.words(), KIND_NONE, 0, 0);
        self.set(at, taken.at(at, self.size()).0, Relaxed);
        let mut to = at + 1;
        for word in words {
            self.set(to, *word, Relaxed);
            to += 1;
        }
        let thrown = read.thrown.chunks(8);
        for part in read.values.chunks(8).chain(thrown) {
            let mut word = 0;
            for (place, byte) in part.iter().enumerate() {
                word |= (*byte as u64) << (place * 8);
            }
            self.set(to, word, Relaxed);
            to += 1;
        }
        self.set(at, head.at(at, self.size()).0, Release);
        true
    }
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(State, threshold) as u64 == STATE_THRESHOLD);
    assert!(offset_of!(State, saved) as u64 == STATE_SAVED);
    assert!(offset_of!(State, saved_limit) as u64 == STATE_SAVED_LIMIT);
    assert!(size_of::<Saved>() as u64 == SAVED_SIZE && SAVED_SIZE == 4 * crate::FRAME_SIZE);
    assert!(STATE_OFFSET + size_of::<State>() as u64 <= crate::PAGE);
    assert!(STATE_OFFSET >= crate::SPARE_ROOT + crate::NODE_SIZE);
    assert!(size_of::<Side>() as u64 == crate::FRAME_SIZE);
    assert!(crate::MAX_FRAMES <= DEPTH_MASK);
    assert!(SIDE_ENTRY == SIDE_FROM_FRAME + offset_of!(Side, entry) as u64);
    assert!(SIDE_SLOW == SIDE_FROM_FRAME + offset_of!(Side, slow) as u64);
    assert!(SIDE_WATCH == SIDE_FROM_FRAME + offset_of!(Side, watch) as u64);
    assert!(AREA_ROOM / 8 < 1 << 31 && VALUES_LIMIT / 4 + (EXIT_WORDS as usize) < 1 << 16);
};
