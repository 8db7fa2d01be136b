//! A program or a library begins: alone, in a process that nobody counts yet, or beside one that counts already. Then its
//! functions get numbers in that region, as those of a library do that a controller sees loaded (`thalweg_instrument::loaded`).

use crate::counting::{ARCH_GET_FS, Carried, begin, copy};
use crate::given::Given;
use crate::kernel::{read_file, segment_base};
use core::mem::{MaybeUninit, offset_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use thalweg_abi as shm;
use thalweg_abi::calls::{ARCH_GET_GS, NO_SIG_PURPOSE, RT_SIGPROCMASK};
use thalweg_abi::{Ahead, Header};

/// `stack`: where the thread's stack pointer is.
pub fn join(ahead: &'static Ahead, bias: u64, given: &Given, stack: u64) -> Option<()> {
    match segment_base(ARCH_GET_GS)? {
        // Threads that run already would find no slot at their GS base. There are none before anybody has made room for
        // thread-local storage. AT_BASE does not tell: it is 0 as well where the loader was started as a program.
        0 if segment_base(ARCH_GET_FS)? == 0 || is_alone()? => begin(ahead, bias, given, stack),
        0 => None,
        base => {
            let carried = Carried {
                ahead,
                bias,
                base: region_of(base)?,
            };
            carried.join(given)
        }
    }
}

/// Whether the process has one thread.
fn is_alone() -> Option<bool> {
    const THREADS: usize = 17;
    const ROOM: usize = 512;
    let mut text = MaybeUninit::<[u8; ROOM]>::uninit();
    // SAFETY: a local of that size; what is not filled is not looked at.
    let text = unsafe { core::slice::from_raw_parts_mut(text.as_mut_ptr().cast::<u8>(), ROOM) };
    let len = read_file(b"/proc/self/stat\0", text)?;
    let text = text.get(..len)?;
    // The command's name stands in parentheses, and may hold anything.
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(name_end + 2..)?.split(|byte| *byte == b' ');
    Some(fields.nth(THREADS)? == b"1")
}

/// The region that a thread with this GS base counts in, if that is one of a copy.
fn region_of(gs: u64) -> Option<u64> {
    let table = word_at(gs.checked_add(shm::PRIVATE_TABLE as u64)?)?;
    let base = table.checked_sub(shm::PRIVATE_SIZE + shm::TABLE_OFFSET)?;
    let shared = base + shm::PRIVATE_SIZE;
    if word_at(shared)? != shm::MAGIC || !gs.wrapping_sub(base).is_multiple_of(shm::PAGE) {
        return None;
    }
    // SAFETY: its first word can be read, so that its page can.
    let header = unsafe { &*(shared as *const Header) };
    let is_ours = header.version == shm::VERSION
        && header.state == shm::STATE_ATTACHED
        && header.flags & shm::HEADER_AHEAD != 0
        && header.base == base
        && header.limits == 0;
    is_ours.then_some(base)
}

/// A word of memory that may not be there: the kernel is given it as a set of signals, for a purpose that there is not.
fn word_at(address: u64) -> Option<u64> {
    const EINVAL: i64 = -22;
    if address < shm::PAGE || !address.is_multiple_of(8) {
        return None;
    }
    let answer: i64;
    // SAFETY: nothing is changed.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") RT_SIGPROCMASK as i64 => answer, in("rdi") NO_SIG_PURPOSE,
            in("rsi") address, in("rdx") 0, in("r10") 8, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    // SAFETY: the kernel has read it.
    (answer == EINVAL).then(|| unsafe { (address as *const u64).read_volatile() })
}

impl Carried {
    /// Its functions are counted in a region that is there already.
    fn join(&self, given: &Given) -> Option<()> {
        // SAFETY: the region is mapped, and the tables are.
        let (header, template) = unsafe {
            let template = &*(self.at(self.ahead.header) as *const Header);
            (&*self.header(), template)
        };
        // Probes that read the clock and others do not go together.
        let kind = shm::HEADER_TIMED | shm::HEADER_LEAVES;
        if (header.flags ^ template.flags) & kind != 0 || !template.blocks.is_empty() {
            return None;
        }
        let first = match self.known(header, template) {
            Some(first) => first,
            None => self.take_numbers(header, template)?,
        };
        // The table is never to be full, or a search in it would not end. What is not in it is taken for code without probes.
        let most = (header.table_mask + 1) / 4 * 3;
        let functions = self.count(offset_of!(Header, functions)).load(Ordering::Relaxed);
        if u64::from(functions) * 2 < most {
            self.enter_probed();
        }
        self.note_code();
        // SAFETY: the header is in place.
        unsafe { self.set_states(given, first) };
        self.enable(given, first, || ())
    }

    /// The number of its first function, if it was loaded before.
    fn known(&self, header: &Header, template: &Header) -> Option<u32> {
        let len = template.catalog_len;
        if self.is_own_catalog(header.catalog_offset, header.catalog_len, len) {
            return Some(0);
        }
        let entries = self.shared() + shm::LOADED_OFFSET;
        for index in 0..u64::from(header.loaded).min(shm::MAX_LOADED as u64) {
            let entry = (entries + index * shm::LOADED_SIZE) as *const shm::Loaded;
            // SAFETY: within the table.
            let entry = unsafe { entry.read_volatile() };
            let is_in_use = entry.state != shm::LOADED_NONE;
            if is_in_use && self.is_own_catalog(entry.catalog_offset, entry.catalog_len, len) {
                return Some(entry.first_function);
            }
        }
        None
    }

    fn is_own_catalog(&self, offset: u64, len: u64, own: u64) -> bool {
        if len != own {
            return false;
        }
        let (one, other) = (self.at(self.ahead.catalog), self.shared() + offset);
        // SAFETY: both are so long, by whoever wrote them.
        (0..len).all(|at| unsafe {
            ((one + at) as *const u8).read_volatile() == ((other + at) as *const u8).read_volatile()
        })
    }

    /// Numbers for its functions, and an entry in the table of loaded modules that names them.
    fn take_numbers(&self, header: &Header, template: &Header) -> Option<u32> {
        let functions = self.count(offset_of!(Header, functions));
        let mut before = functions.load(Ordering::Acquire);
        let first = loop {
            let first = before.checked_next_multiple_of(shm::AHEAD_STEP)?;
            let behind = first.checked_add(template.functions)?;
            if u64::from(behind) > header.functions_limit {
                return None;
            }
            let taken = functions.compare_exchange(
                before,
                behind,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match taken {
                Ok(_) => break first,
                Err(now) => before = now,
            }
        };
        let len = template.catalog_len;
        let room = len.next_multiple_of(shm::PAGE);
        // SAFETY: an aligned word of the header.
        let used = unsafe {
            let place = self.shared() + offset_of!(Header, growth_used) as u64;
            AtomicU64::from_ptr(place as *mut u64)
        };
        let used = used.fetch_add(room, Ordering::AcqRel);
        let index = self.count(offset_of!(Header, loaded)).fetch_add(1, Ordering::AcqRel);
        if used.saturating_add(room) > header.growth_len || index as usize >= shm::MAX_LOADED {
            return None;
        }
        let offset = header.growth_offset + used;
        let place = self.shared() + shm::LOADED_OFFSET + u64::from(index) * shm::LOADED_SIZE;
        let entry = place as *mut shm::Loaded;
        // SAFETY: room and entry are nobody else's.
        unsafe {
            copy(self.at(self.ahead.catalog), self.shared() + offset, len);
            (*entry).pid = header.pid;
            (*entry).catalog_offset = offset;
            (*entry).catalog_len = len;
            (*entry).first_function = first;
            (*entry).functions = template.functions;
            let state = AtomicU32::from_ptr(&raw mut (*entry).state);
            state.store(shm::LOADED_CLOSED, Ordering::Release);
        }
        Some(first)
    }

    /// Where its code is, for the agent that may have to change it (agent/limits.rs).
    fn note_code(&self) {
        let own = self.at(self.ahead.image);
        let all = self.shared() + offset_of!(Header, code) as u64;
        for index in 0..shm::MAX_CODE_REGIONS as u64 {
            let place = all + index * size_of::<shm::CodeRegion>() as u64;
            // SAFETY: two aligned words of the header.
            let (start, len) = unsafe {
                let start = AtomicU64::from_ptr(place as *mut u64);
                (start, AtomicU64::from_ptr((place + 8) as *mut u64))
            };
            let is_there = start.load(Ordering::Acquire) == own;
            let code_len = self.ahead.code_len;
            let take = || len.compare_exchange(0, code_len, Ordering::AcqRel, Ordering::Acquire);
            if is_there || take().is_ok() {
                start.store(own, Ordering::Release);
                len.store(code_len, Ordering::Release);
                return;
            }
        }
    }

    /// A number of the header that others change too.
    fn count(&self, offset: usize) -> &'static AtomicU32 {
        // SAFETY: an aligned word of the header, which stays mapped.
        unsafe { AtomicU32::from_ptr((self.shared() + offset as u64) as *mut u32) }
    }
}
