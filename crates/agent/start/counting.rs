//! From a process that nobody counts to one that counts: what a controller writes at an attach (`thalweg_instrument::attach`), the
//! first thread's slot as `thalweg_instrument::threads` opens it, then the probes.

use crate::given::{Given, Mode};
use crate::kernel::{
    ARCH_PRCTL, GETPID, GETTID, MPROTECT, PRCTL, PROT_EXEC, PROT_READ, PROT_WRITE, call, clock,
    segment_base,
};
use crate::region::Region;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use thalweg_abi as shm;
use thalweg_abi::calls::{ARCH_GET_GS, ARCH_SET_FS, ARCH_SET_GS, PR_GET_NAME};
use thalweg_abi::{Ahead, AheadMode, AheadPlace, Header};

pub const ARCH_GET_FS: u64 = 0x1003;
const MONOTONIC_RAW: u64 = 4;
const REALTIME: u64 = 0;
const THREAD_TIME: u64 = 3;
/// The rate of the counter is known to a few parts in a hundred thousand after this long.
const LONG_ENOUGH_NS: u64 = 1_000_000;
/// As in the controller: two events this far apart, in nanoseconds, and the thread may have waited in between.
const GAP_LEAST_NS: u64 = 2_000;
const GAP_MOST_NS: u64 = 16_000;
/// Where in a slot's private page a thread without thread-local storage gets a word that its FS base can point to.
const SPARE_THREAD_POINTER: u64 = 2048;

/// The counter and the raw monotonic clock at the same moment.
#[derive(Clone, Copy)]
struct Moment {
    ticks: u64,
    ns: u64,
}

impl Moment {
    /// Of a few tries the one with the narrowest bracket.
    fn now() -> Option<Moment> {
        let mut best = None;
        let mut narrowest = u64::MAX;
        for _ in 0..5 {
            let before = ticks();
            let ns = clock(MONOTONIC_RAW)?;
            let width = ticks().wrapping_sub(before);
            if width < narrowest {
                narrowest = width;
                let ticks = before + width / 2;
                best = Some(Moment { ticks, ns });
            }
        }
        best
    }
}

fn ticks() -> u64 {
    // SAFETY: asked by `may_be_counted` whether it may be read.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A program begins. `stack`: where its stack pointer is.
pub fn begin(ahead: &'static Ahead, bias: u64, given: &Given, stack: u64) -> Option<()> {
    if ahead.magic != shm::AHEAD_MAGIC || ahead.version != shm::VERSION {
        return None;
    }
    may_be_counted()?;
    let began = Moment::now()?;
    // SAFETY: the tables are mapped for as long as this code is.
    let template = unsafe { &*((ahead.header.wrapping_add(bias)) as *const Header) };
    let region = Region::map(ahead, template, given)?;
    let carried = Carried {
        ahead,
        bias,
        base: region.base,
    };
    let begun = (|| {
        carried.furnish(template, given, began)?;
        // SAFETY: the header is complete, and the region nobody's yet.
        carried.enable(given, 0, || unsafe { carried.open_slot(given, stack) })
    })();
    match begun {
        Some(()) => {
            region.settle();
            carried.begin();
        }
        None => region.take_back(),
    }
    begun
}

/// Nobody uses the GS base, and the counter may be read and runs at one rate.
fn may_be_counted() -> Option<()> {
    const INVARIANT: u32 = 1 << 8;
    const PR_GET_TSC: u64 = 25;
    const TSC_ENABLED: u32 = 1;
    if segment_base(ARCH_GET_GS)? != 0 {
        return None;
    }
    let mut state = 0u32;
    // SAFETY: the kernel writes a number.
    unsafe { call(PRCTL, [PR_GET_TSC, &raw mut state as u64, 0, 0, 0, 0])? };
    // SAFETY: a local.
    if unsafe { (&raw const state).read_volatile() } != TSC_ENABLED {
        return None;
    }
    let leaf = core::arch::x86_64::__cpuid(0x8000_0007);
    (leaf.edx & INVARIANT != 0).then_some(())
}

/// What a file carries, and the region in which it counts.
pub struct Carried {
    pub ahead: &'static Ahead,
    pub bias: u64,
    pub base: u64,
}

impl Carried {
    pub fn shared(&self) -> u64 {
        self.base + shm::PRIVATE_SIZE
    }

    pub fn at(&self, address: u64) -> u64 {
        address.wrapping_add(self.bias)
    }

    /// # Safety
    /// There must be that many of them at `address` in what the copy carries.
    unsafe fn table<T>(&self, address: u64, count: u64) -> &'static [T] {
        // SAFETY: by the caller's promise.
        unsafe { core::slice::from_raw_parts(self.at(address) as *const T, count as usize) }
    }

    pub fn header(&self) -> *mut Header {
        self.shared() as *mut Header
    }

    /// The header and the tables of a new region.
    fn furnish(&self, template: &Header, given: &Given, began: Moment) -> Option<()> {
        let ahead = self.ahead;
        let shared = self.shared();
        let header = self.header();
        // SAFETY: a new region of the template's layout, of which nobody else knows.
        unsafe {
            copy(template as *const Header as u64, shared, shm::PAGE);
            (*header).base = self.base;
            (*header).pid = call(GETPID, [0; 6])? as u32;
            (*header).inner_pid = (*header).pid;
            if given.fsgsbase {
                (*header).flags |= shm::HEADER_FSGSBASE;
            }
            for code in &mut (*header).code {
                if code.len != 0 {
                    code.start = self.at(code.start);
                }
            }
            let (catalog, ledger) = (self.at(ahead.catalog), self.at(ahead.ledger));
            let (offset, len) = ((*header).catalog_offset, (*header).catalog_len);
            copy(catalog, shared + offset, len);
            let (offset, len) = ((*header).ledger_offset, (*header).ledger_len);
            copy(ledger, shared + offset, len);
            (*header).command_offset = (*header).growth_offset;
            (*header).command_len = (given.command.len() as u64).min(shm::PAGE * 16);
            (*header).growth_used = (*header).command_len.next_multiple_of(shm::PAGE);
            let place = shared + (*header).command_offset;
            copy(given.command.as_ptr() as u64, place, (*header).command_len);
            self.enter_probed();
            self.set_states(given, 0);
            self.set_clock(began)
        }
    }

    /// Fills the table of probed entries, which has room for them.
    pub fn enter_probed(&self) {
        let table = self.shared() + shm::TABLE_OFFSET;
        // SAFETY: the table lies in the region, and is never full; entries are addresses.
        unsafe {
            let mask = (*self.header()).table_mask;
            let entries: &[u64] = self.table(self.ahead.entries, self.ahead.entry_count);
            for entry in entries {
                let address = self.at(*entry);
                let mut index = shm::table_index(address, mask);
                loop {
                    let word = AtomicU64::from_ptr((table + index * 8) as *mut u64);
                    let entered =
                        word.compare_exchange(0, address, Ordering::AcqRel, Ordering::Acquire);
                    match entered {
                        Ok(_) => break,
                        Err(known) if known == address => break,
                        Err(_) => index = (index + 1) & mask,
                    }
                }
            }
        }
    }

    fn modes(&self) -> &'static [AheadMode] {
        // SAFETY: so many are carried.
        unsafe { self.table(self.ahead.modes, self.ahead.mode_count) }
    }

    /// How the function's calls are counted, and the bits that say so in its stub.
    fn state_of(&self, mode: &AheadMode, given: &Given) -> (u32, u32) {
        match (
            given.mode,
            mode.flags & shm::PROBE_LEAF != 0 || mode.mode == 0,
        ) {
            (_, true) | (Mode::Timed, _) => (shm::PROBE_TIMED, 0),
            (Mode::Sampled, _) => (shm::PROBE_SAMPLED, shm::MODE_UNTIMED | shm::MODE_SAMPLED),
            (Mode::Counted, _) => (shm::PROBE_COUNTED, shm::MODE_UNTIMED),
        }
    }

    /// `first`: the number of the first function.
    ///
    /// # Safety
    /// The header must be in place.
    pub unsafe fn set_states(&self, given: &Given, first: u32) {
        // SAFETY: by the caller's promise; every function has a state in the region.
        unsafe {
            let header = self.header();
            if (*header).flags & shm::HEADER_TIMED == 0 {
                return;
            }
            let states = self.shared() + (*header).states_offset;
            for mode in self.modes() {
                let function = u64::from(first) + u64::from(mode.function);
                let place = states + function * shm::PROBE_STATE_SIZE;
                let state = place as *mut shm::ProbeState;
                let (number, _) = self.state_of(mode, given);
                (*state).state = match mode.flags & shm::PROBE_LEAF {
                    0 => number,
                    _ => shm::PROBE_COUNTED,
                };
                (*state).flags = mode.flags;
            }
        }
    }

    /// # Safety
    /// The header must be in place.
    unsafe fn set_clock(&self, began: Moment) -> Option<()> {
        let mut now = Moment::now()?;
        while now.ns.wrapping_sub(began.ns) < LONG_ENOUGH_NS {
            core::hint::spin_loop();
            now = Moment::now()?;
        }
        let passed = now.ns.wrapping_sub(began.ns).max(1);
        let ticks = now.ticks.wrapping_sub(began.ticks);
        let rate = ticks as f64 * 1e9 / passed as f64;
        // SAFETY: by the caller's promise.
        unsafe {
            let header = self.header();
            (*header).ticks_hz = rate.to_bits();
            (*header).ticks_per_ns = (ticks as f64 / passed as f64 * (1u64 << 32) as f64) as u64;
            (*header).gap_least = (rate / 1e9 * GAP_LEAST_NS as f64) as i64;
            (*header).gap_most = (rate / 1e9 * GAP_MOST_NS as f64) as i64;
            (*header).attach_ticks = now.ticks;
            (*header).attach_monotonic_ns = now.ns;
            (*header).attach_unix_ns = clock(REALTIME)?;
        }
        Some(())
    }

    /// Has the probes count, in which functions have numbers from `first` on. `ready` is done when that is certain to be possible.
    pub fn enable(&self, given: &Given, first: u32, ready: impl FnOnce()) -> Option<()> {
        let code = self.at(self.ahead.image);
        let len = self.ahead.code_len;
        let all = PROT_READ | PROT_WRITE | PROT_EXEC;
        // SAFETY: the code is ours. Nobody changes it meanwhile but this thread; who runs it finds each probe as it was or as it
        // is to be.
        unsafe {
            // Where that is not allowed, everything is as it was.
            call(MPROTECT, [code, len, all, 0, 0, 0])?;
            ready();
            (code as *mut u64).write_volatile(self.base);
            let numbers: &[u64] = self.table(self.ahead.numbers, self.ahead.number_count);
            for place in numbers {
                let word = (code + place) as *mut u32;
                word.write_unaligned(word.read_unaligned().wrapping_add(first));
            }
            for mode in self.modes() {
                let (_, bits) = self.state_of(mode, given);
                if mode.mode != 0 {
                    let place = (code + u64::from(mode.mode)) as *mut u8;
                    let kept = place.read() & !shm::MODE_BITS;
                    place.write(kept | bits.to_le_bytes()[shm::MODE_BYTE as usize]);
                }
            }
            let places: &[AheadPlace] = self.table(self.ahead.places, self.ahead.place_count);
            for place in places {
                let word = AtomicU64::from_ptr((code + place.at) as *mut u64);
                word.store(place.word, Ordering::Release);
            }
            call(MPROTECT, [code, len, PROT_READ | PROT_EXEC, 0, 0, 0]);
        }
        Some(())
    }

    /// The region counts.
    fn begin(&self) {
        // SAFETY: the header is mapped.
        let state = unsafe { AtomicU32::from_ptr(&raw mut (*self.header()).state) };
        state.store(shm::STATE_ATTACHED, Ordering::Release);
    }

    /// As `thalweg_instrument::threads` does for a program that was launched.
    ///
    /// # Safety
    /// The header must be complete.
    unsafe fn open_slot(&self, given: &Given, stack: u64) {
        let gs = self.base;
        let shared = self.shared();
        // SAFETY: by the caller's promise; all places are in the region, which is zero there, and the first slot is nobody's.
        unsafe {
            let header = &mut *self.header();
            let first = shared + header.nodes_offset;
            let root = first as *mut shm::Node;
            (*root).min = i64::MAX;
            (*root).children = [first; shm::CHILD_SLOTS as usize];
            (*root).function = shm::NO_FUNCTION;
            header.nodes_used = shm::CHUNK_NODES * shm::NODE_SIZE;
            header.next_slot = 1;
            let bottom = shared + header.frames_offset + shm::FRAME_SIZE;
            let opened = ticks();
            let frame = bottom as *mut shm::Frame;
            (*frame).key = shm::frame_key((stack + shm::WINDOW / 2) & !7, shm::KEY_SENTINEL);
            (*frame).node = first;
            (*frame).start = opened;

            let slot = (shared + shm::SLOTS_OFFSET) as *mut shm::SharedSlot;
            (*slot).start = header.attach_ticks;
            (*slot).first_start = header.attach_ticks;
            (*slot).read_cpu = clock(THREAD_TIME).unwrap_or(0);
            (*slot).pid = header.inner_pid;
            (*slot).tid = call(GETTID, [0; 6]).unwrap_or(0) as u32;
            (*slot).state = shm::SLOT_TAKEN;
            (*slot).threads = 1;
            (*slot).name_due = u64::MAX;
            let name = &raw mut (*slot).name as u64;
            call(PRCTL, [PR_GET_NAME, name, 0, 0, 0, 0]);
            (*slot).root = first;
            (*slot).chunk_next = first + shm::NODE_SIZE;
            (*slot).creators = [shm::NO_FUNCTION; shm::CREATORS];
            (*slot).flags = shm::SLOT_AT_ATTACH;

            let mut thread = segment_base(ARCH_GET_FS).unwrap_or(0);
            if thread == 0 {
                // A static program before it has set up its thread-local storage: the probes need a word at fs:[0].
                thread = gs + SPARE_THREAD_POINTER;
                (thread as *mut u64).write(thread);
                call(ARCH_PRCTL, [ARCH_SET_FS, thread, 0, 0, 0, 0]);
            }
            let owner = match (thread as *const u64).read() {
                0 => thread,
                word => word,
            };
            let private = gs as *mut shm::PrivateSlot;
            (*private).owner = owner;
            (*private).top = bottom - gs;
            (*private).limit = bottom + shm::MAX_FRAMES * shm::FRAME_SIZE - gs;
            (*private).table = shared + shm::TABLE_OFFSET;
            (*private).table_mask = header.table_mask;
            (*private).nodes = shared + header.nodes_offset;
            (*private).untimed = shm::untimed_base(shared, header);
            (*private).go_stack = bottom - shm::FRAME_SIZE + shm::FRAMES_STRIDE;
            set_gs_base(gs, given.fsgsbase);
            let now = ticks();
            (*slot).last = opened;
            (*slot).off = now.wrapping_sub(opened);
            (*slot).gap = header.gap_least;
            (*slot).named = now;
            (*slot).read_ticks = now;
        }
    }
}

/// # Safety
/// Nobody else may use the thread's GS base.
unsafe fn set_gs_base(base: u64, by_itself: bool) {
    // SAFETY: by the caller's promise.
    unsafe {
        match by_itself {
            true => asm!("wrgsbase {}", in(reg) base, options(nostack, preserves_flags)),
            false => {
                call(ARCH_PRCTL, [ARCH_SET_GS, base, 0, 0, 0, 0]);
            }
        }
    }
}

/// # Safety
/// As for a copy of memory that does not overlap.
pub unsafe fn copy(from: u64, to: u64, len: u64) {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
             options(nostack, preserves_flags))
    }
}
