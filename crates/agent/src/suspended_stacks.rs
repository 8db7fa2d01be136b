//! Stacks that nobody runs on: the activations of suspended coroutines, kept for all threads, because a coroutine may be
//! resumed by another one. stacks.rs puts them here at a switch and takes them back at a later one.
//!
//! ```text
//! store | index: a word per stack, (sp, number of its first block + 1) | blocks of 1 KiB, chained |
//! ```
//!
//! Lock-free. A stack is known by the stack pointer at which it was left; a word of the index is taken or given by one
//! compare-exchange, and who has taken it owns the blocks. Nothing here is searched further than one short run of the
//! index; where that is full the stack that was left longest ago is forgotten: most likely nobody will come back to it.

use crate::memory::{atomic64, header, region, ticks};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use thalweg_abi as shm;
use thalweg_abi::{SuspendedBlock, SuspendedCall, SuspendedFrame};

/// How many words of the index a stack may be in.
const RUN: u64 = 16;
const NUMBER_BITS: u32 = shm::SUSPENDED_NUMBER_BITS;
const NUMBER_MASK: u64 = (1 << NUMBER_BITS) - 1;
const _: () = assert!(shm::SUSPENDED_BLOCKS < 1 << NUMBER_BITS);

/// The first block of a chain, which holds the outermost activations; 0: none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Chain(u32);

fn store() -> u64 {
    // SAFETY: the header is mapped.
    unsafe { region() + shm::PRIVATE_SIZE + (*header()).nodes_offset + (*header()).nodes_len }
}

fn block(number: u32) -> *mut SuspendedBlock {
    (store() + shm::SUSPENDED_BLOCKS_OFFSET + (number as u64 - 1) * shm::SUSPENDED_BLOCK_SIZE)
        as *mut SuspendedBlock
}

fn index_word(sp: u64, pid: u32, turn: u64) -> *mut u64 {
    let hash = ((sp >> 3) ^ pid as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let at = (hash + turn) % shm::SUSPENDED_INDEX;
    (store() + shm::SUSPENDED_INDEX_OFFSET + at * 8) as *mut u64
}

fn number_of(word: u64) -> u32 {
    (word & NUMBER_MASK) as u32
}

fn free_list() -> *mut u64 {
    store() as *mut u64
}

/// A block that is nobody's, or 0.
fn take_block() -> u32 {
    // SAFETY: both words and all blocks lie in the store; a count beside the free block's number keeps a stale `next`
    // from being believed.
    unsafe {
        let free = atomic64(free_list());
        loop {
            let head = free.load(Acquire);
            let number = head as u32;
            if number == 0 {
                break;
            }
            let next = (&raw const (*block(number)).next).read_volatile();
            let changed = ((head >> 32) + 1) << 32 | next as u64;
            if free
                .compare_exchange(head, changed, AcqRel, Relaxed)
                .is_ok()
            {
                return number;
            }
        }
        let used = atomic64(free_list().add(1));
        if used.load(Relaxed) >= shm::SUSPENDED_BLOCKS {
            return 0;
        }
        match used.fetch_add(1, Relaxed) {
            fresh if fresh < shm::SUSPENDED_BLOCKS => fresh as u32 + 1,
            _ => 0,
        }
    }
}

fn give_block(number: u32) {
    // SAFETY: as in take_block.
    unsafe {
        let free = atomic64(free_list());
        loop {
            let head = free.load(Relaxed);
            (&raw mut (*block(number)).next).write_volatile(head as u32);
            let changed = ((head >> 32) + 1) << 32 | number as u64;
            if free
                .compare_exchange(head, changed, AcqRel, Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }
}

/// Gives a whole chain of them back.
fn give_blocks(first: u32) {
    let mut number = first;
    while number != 0 {
        // SAFETY: whoever gives them back owns them.
        let next = unsafe { (*block(number)).next };
        give_block(number);
        number = next;
    }
}

/// The activations of one stack as they are laid down, innermost first.
pub struct StackWriter {
    sp: u64,
    pid: u32,
    head: u32,
    total: u64,
    complete: bool,
    /// The first block of what rules have read.
    values: u32,
    request: (u32, u32),
}

impl StackWriter {
    /// For the stack that process `pid` leaves at `sp`.
    pub fn new(sp: u64, pid: u32) -> StackWriter {
        StackWriter {
            sp,
            pid,
            head: 0,
            total: 0,
            complete: true,
            values: 0,
            request: (0, 0),
        }
    }

    /// An activation, and what recording knows of it with the flags that this adds.
    pub fn add(&mut self, frame: SuspendedFrame, call: Option<(SuspendedCall, u32)>) {
        if !self.complete {
            return;
        }
        let flags = call.map_or(0, |(_, flags)| flags);
        let frame = SuspendedFrame {
            flags: frame.flags | flags,
            ..frame
        };
        let places = 1 + u64::from(call.is_some());
        // SAFETY: blocks that were taken are this thread's alone.
        unsafe {
            if self.head == 0 || (*block(self.head)).count as u64 + places > shm::SUSPENDED_FRAMES {
                let fresh = self.fresh_block();
                if fresh == 0 {
                    self.complete = false;
                    Chain(self.head).release();
                    return;
                }
                (*block(fresh)).count = 0;
                (*block(fresh)).values = 0;
                (*block(fresh)).next = self.head;
                self.head = fresh;
            }
            let at = block(self.head);
            let frames: *mut SuspendedFrame = (&raw mut (*at).frames).cast();
            self.total = self.total.wrapping_add(frame.own);
            if let Some((call, _)) = call {
                let place: *mut SuspendedCall = frames.add((*at).count as usize).cast();
                place.write(call);
                (*at).count += 1;
            }
            frames.add((*at).count as usize).write(frame);
            (*at).count += 1;
        }
    }

    fn fresh_block(&self) -> u32 {
        match take_block() {
            0 if replace_oldest(self.sp, self.pid, 0) => take_block(),
            fresh => fresh,
        }
    }

    pub fn put_request(&mut self, request: (u32, u32)) {
        self.request = request;
    }

    /// `len` bytes at `at` go along, behind three words that say what they are. `false`: there is no room.
    ///
    /// # Safety
    /// They must be there.
    pub unsafe fn put_bytes(&mut self, head: &[u64; 3], at: u64, len: u64) -> bool {
        // SAFETY: by the caller's promise; blocks that were taken are this thread's alone. All lengths are multiples of a word.
        unsafe {
            let mut from = 0;
            let mut last = 0;
            while from < 3 + len / 8 {
                let fresh = self.fresh_block();
                if fresh == 0 {
                    give_blocks(self.values);
                    self.values = 0;
                    return false;
                }
                (*block(fresh)).next = 0;
                match last {
                    0 => self.values = fresh,
                    last => (*block(last)).next = fresh,
                }
                last = fresh;
                let words: *mut u64 = (&raw mut (*block(fresh)).frames).cast();
                let count = (3 + len / 8 - from).min(shm::SUSPENDED_BYTES / 8);
                for place in 0..count {
                    let word = match head.get((from + place) as usize) {
                        Some(word) => *word,
                        None => *((at as *const u64).add((from + place - 3) as usize)),
                    };
                    words.add(place as usize).write_volatile(word);
                }
                (*block(fresh)).count = count as u32;
                from += count;
            }
            true
        }
    }

    /// Makes the stack known. Where there was no room for it, it will count as a new one when it is resumed.
    pub fn finish(self) {
        if !self.complete || self.head == 0 {
            return give_blocks(self.values);
        }
        let (sp, pid) = (self.sp, self.pid);
        // SAFETY: the chain is this thread's until its word is in the index.
        unsafe {
            let first = block(self.head);
            (*first).sp = sp;
            (*first).pid = pid;
            (*first).total = self.total;
            (*first).values = self.values;
            ((*first).request, (*first).request_depth) = self.request;
            (*first).suspended_at = ticks();
            let word = (sp >> 3) << NUMBER_BITS | self.head as u64;
            // An older stack that was left at the same place is gone: this one lies where it lay.
            if let Some(old) = take(sp, pid) {
                old.release();
            }
            for _ in 0..4 {
                for turn in 0..RUN {
                    let place = atomic64(index_word(sp, pid, turn));
                    if place.load(Relaxed) == 0
                        && place.compare_exchange(0, word, AcqRel, Relaxed).is_ok()
                    {
                        return;
                    }
                }
                if replace_oldest(sp, pid, word) {
                    return;
                }
            }
        }
        Chain(self.head).release();
    }
}

/// Forgets the stack that was left longest ago among those that share a run of the index with `sp`; `word` takes its
/// place. `false`: there was none, or another thread was faster.
fn replace_oldest(sp: u64, pid: u32, word: u64) -> bool {
    // SAFETY: all words lie in the index, what they name in the store.
    unsafe {
        let mut oldest = index_word(sp, pid, 0);
        let mut left_at = u64::MAX;
        for turn in 0..RUN {
            let place = index_word(sp, pid, turn);
            let there = atomic64(place).load(Acquire);
            if there != 0 {
                let suspended_at =
                    (&raw const (*block(number_of(there))).suspended_at).read_volatile();
                if suspended_at < left_at {
                    (oldest, left_at) = (place, suspended_at);
                }
            }
        }
        let victim = atomic64(oldest).load(Acquire);
        let taken = victim != 0
            && atomic64(oldest)
                .compare_exchange(victim, word, AcqRel, Relaxed)
                .is_ok();
        if taken {
            Chain(number_of(victim)).release();
        }
        taken
    }
}

/// Takes the stack that process `pid` left at `sp` out of the store.
pub fn take(sp: u64, pid: u32) -> Option<Chain> {
    for turn in 0..RUN {
        // SAFETY: the word lies in the index, what it names in the store.
        unsafe {
            let place = atomic64(index_word(sp, pid, turn));
            let word = place.load(Acquire);
            let number = number_of(word);
            if number == 0 || word >> NUMBER_BITS != sp >> 3 & (u64::MAX >> NUMBER_BITS) {
                continue;
            }
            let first = block(number);
            let ours = |at: *mut SuspendedBlock| {
                (&raw const (*at).sp).read_volatile() == sp
                    && (&raw const (*at).pid).read_volatile() == pid
            };
            if !ours(first) || place.compare_exchange(word, 0, AcqRel, Relaxed).is_err() {
                continue;
            }
            let chain = Chain(number);
            if ours(first) {
                return Some(chain);
            }
            // Between the two looks another stack got the same block and the same word.
            chain.release();
        }
    }
    None
}

impl Chain {
    /// Sum of what the activations have spent in themselves.
    pub fn total(self) -> u64 {
        // SAFETY: whoever has a chain owns its blocks.
        unsafe { (*block(self.0)).total }
    }

    /// The request that its goroutine is at, and how deep in it that began; 0: none.
    pub fn request(self) -> (u32, u32) {
        // SAFETY: as in total.
        unsafe { ((*block(self.0)).request, (*block(self.0)).request_depth) }
    }

    /// What `put_bytes` has put there: the three words that say what they are, if the bytes have room at `to`.
    ///
    /// # Safety
    /// There must be `room` bytes.
    pub unsafe fn take_bytes(self, to: u64, room: u64) -> Option<[u64; 3]> {
        // SAFETY: whoever has a chain owns its blocks, also those with bytes.
        unsafe {
            let first = core::mem::replace(&mut (*block(self.0)).values, 0);
            if first == 0 {
                return None;
            }
            let mut head = [0; 3];
            let mut at = 0;
            let mut number = first;
            while number != 0 {
                let words: *const u64 = (&raw const (*block(number)).frames).cast();
                let count = (*block(number))
                    .count
                    .min((shm::SUSPENDED_BYTES / 8) as u32);
                for place in 0..count as usize {
                    let word = words.add(place).read_volatile();
                    match head.get_mut(at) {
                        Some(to) => *to = word,
                        None if (at as u64 - 2) * 8 <= room => {
                            (to as *mut u64).add(at - 3).write_volatile(word);
                        }
                        None => {}
                    }
                    at += 1;
                }
                number = (*block(number)).next;
            }
            give_blocks(first);
            (head[2] <= room && at as u64 == 3 + head[2] / 8).then_some(head)
        }
    }

    /// Visits the activations, outermost first, with what recording knows of them, and gives the memory back.
    pub fn unpack(self, mut visit: impl FnMut(&SuspendedFrame, Option<&SuspendedCall>)) {
        let mut number = self.0;
        if number != 0 {
            // SAFETY: as below.
            unsafe { give_blocks((*block(number)).values) };
        }
        while number != 0 {
            // SAFETY: whoever has a chain owns its blocks; `count` never exceeds what a block holds.
            unsafe {
                let at = block(number);
                let frames: *const SuspendedFrame = (&raw const (*at).frames).cast();
                let mut left = (*at).count as usize;
                while left > 0 {
                    left -= 1;
                    let frame = &*frames.add(left);
                    let mut call = None;
                    if frame.flags & shm::SUSPENDED_CALL != 0 && left > 0 {
                        left -= 1;
                        call = Some(&*frames.add(left).cast::<SuspendedCall>());
                    }
                    visit(frame, call);
                }
                let next = (*at).next;
                give_block(number);
                number = next;
            }
        }
    }

    fn release(self) {
        self.unpack(|_, _| ());
    }
}
