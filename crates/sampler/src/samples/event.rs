//! Asks the kernel to look: one event for each thread and processor, which copies the thread's registers and the top of its stack into
//! the processor's ring whenever the thread has used so much processor time, or at every so many page faults, switches, instructions.
//!
//! Threads that are created later inherit the event of their creator before their first instruction; processes do not, and a
//! process that becomes another program loses it. Nobody is stopped or signalled.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use perf_event_open_sys as sys;
use sys::bindings as perf;

use super::ring::Ring;
use crate::proc::{Pid, Tid};

/// What the kernel counts, by its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nanoseconds of processor time.
    Time,
    Faults,
    Switches,
    Instructions,
    Cycles,
    CacheMisses,
}

impl Event {
    fn numbers(self) -> (u32, u64) {
        let software = |config: u32| (perf::PERF_TYPE_SOFTWARE, u64::from(config));
        let hardware = |config: u32| (perf::PERF_TYPE_HARDWARE, u64::from(config));
        match self {
            Event::Time => software(perf::PERF_COUNT_SW_TASK_CLOCK),
            Event::Faults => software(perf::PERF_COUNT_SW_PAGE_FAULTS),
            Event::Switches => software(perf::PERF_COUNT_SW_CONTEXT_SWITCHES),
            Event::Instructions => hardware(perf::PERF_COUNT_HW_INSTRUCTIONS),
            Event::Cycles => hardware(perf::PERF_COUNT_HW_CPU_CYCLES),
            Event::CacheMisses => hardware(perf::PERF_COUNT_HW_CACHE_MISSES),
        }
    }
}

/// What is copied, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub event: Event,
    /// So many of them from one look to the next.
    pub period: u64,
    /// Bytes from the stack pointer on.
    pub stack: u32,
    /// Also while the thread is in the kernel.
    pub kernel: bool,
    /// Looks that there is to be room for on one processor.
    pub room: usize,
}

/// What the record has of the registers, by the kernel's numbers: rax rbx rcx rdx rsi rdi rbp rsp rip, r8 to r15.
const REGISTERS: u64 = 0x1ff | 0xff << 16;
/// Where each of them is among all, by the numbers of unwind information.
pub(super) const DWARF_NUMBERS: [usize; 17] =
    [0, 3, 2, 1, 4, 5, 6, 7, 16, 8, 9, 10, 11, 12, 13, 14, 15];

const LEAST_RING: usize = 512 << 10;
const MOST_RING: usize = 64 << 20;
/// All rings of one event together.
const MOST_RINGS: usize = 256 << 20;
/// What a record has beside the stack, and a little more.
const BESIDE_THE_STACK: usize = 512;

impl Wanted {
    fn attributes(&self) -> perf::perf_event_attr {
        let (type_, config) = self.event.numbers();
        let mut attributes = perf::perf_event_attr {
            type_,
            size: size_of::<perf::perf_event_attr>() as u32,
            config,
            sample_type: (perf::PERF_SAMPLE_TID
                | perf::PERF_SAMPLE_TIME
                | perf::PERF_SAMPLE_REGS_USER
                | perf::PERF_SAMPLE_STACK_USER) as u64,
            sample_regs_user: REGISTERS,
            sample_stack_user: self.stack,
            // As all other times of a recording.
            clockid: libc::CLOCK_MONOTONIC_RAW,
            ..Default::default()
        };
        attributes.__bindgen_anon_1.sample_period = self.period;
        attributes.set_inherit(1);
        attributes.set_inherit_thread(1);
        attributes.set_remove_on_exec(1);
        attributes.set_use_clockid(1);
        attributes.set_exclude_kernel((!self.kernel).into());
        attributes.set_exclude_hv(1);
        // New code, new threads and the ends of threads are told of as well.
        attributes.set_mmap(1);
        attributes.set_task(1);
        attributes
    }

    fn open(&self, tid: Tid, cpu: i32) -> io::Result<OwnedFd> {
        let mut attributes = self.attributes();
        let flags = perf::PERF_FLAG_FD_CLOEXEC as libc::c_ulong;
        // SAFETY: the structure says its own size; the result is a descriptor of ours alone, or -1.
        unsafe {
            match sys::perf_event_open(&mut attributes, tid.0, cpu, -1, flags) {
                -1 => Err(io::Error::last_os_error()),
                fd => Ok(OwnedFd::from_raw_fd(fd)),
            }
        }
    }

    fn ring_bytes(&self, smaller: u32) -> usize {
        let bytes = self.room * (self.stack as usize + BESIDE_THE_STACK);
        let share = (MOST_RINGS / processors() as usize).next_power_of_two();
        let most = share.clamp(LEAST_RING, MOST_RING);
        bytes.next_power_of_two().clamp(LEAST_RING, most) >> smaller
    }
}

/// What this machine and this user's rights allow of it, tried on ourselves.
pub fn allowed(mut wanted: Wanted) -> io::Result<Wanted> {
    let ourselves = Tid(0);
    let is_refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    match wanted.open(ourselves, -1) {
        Err(error) if is_refused(&error) && wanted.kernel => {
            wanted.kernel = false;
            wanted.open(ourselves, -1)?;
        }
        other => drop(other?),
    }
    Ok(wanted)
}

/// The events of some processes, and the rings that they write to, one for each processor.
pub(super) struct Events {
    pub(super) wanted: Wanted,
    pub(super) rings: Vec<(i32, Ring)>,
    open: Vec<(Pid, Tid, OwnedFd)>,
    /// What those counted that are not open any more.
    counted: u64,
}

impl Events {
    pub(super) fn new(wanted: Wanted) -> Events {
        Events {
            wanted,
            rings: Vec::new(),
            open: Vec::new(),
            counted: 0,
        }
    }

    /// Looks at one thread from now on, and at those that it will make.
    pub(super) fn add(&mut self, pid: Pid, tid: Tid) -> io::Result<()> {
        for cpu in 0..processors() {
            let event = match self.wanted.open(tid, cpu) {
                Ok(event) => event,
                Err(error) => match error.raw_os_error() {
                    // The processor is switched off.
                    Some(libc::ENODEV) => continue,
                    Some(libc::EMFILE) if allow_more_files() => self.wanted.open(tid, cpu)?,
                    _ => return Err(error),
                },
            };
            match self.rings.iter().find(|(other, _)| *other == cpu) {
                Some((_, ring)) => ring.take(&event)?,
                None => self.rings.push((cpu, self.ring(&event)?)),
            }
            self.open.push((pid, tid, event));
        }
        Ok(())
    }

    /// As large as is allowed: what users may lock in memory is bounded.
    fn ring(&self, event: &OwnedFd) -> io::Result<Ring> {
        let mut smaller = 0;
        loop {
            let bytes = self.wanted.ring_bytes(smaller);
            match Ring::of(event, bytes) {
                Err(error) if bytes / 2 > 2 * self.wanted.stack as usize => {
                    match error.raw_os_error() {
                        Some(libc::EPERM | libc::ENOMEM) => smaller += 1,
                        _ => return Err(error),
                    }
                }
                other => return other,
            }
        }
    }

    /// No more looks at a process.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.close(|whose, _| whose == pid);
    }

    /// A thread that was opened as it was being made has an event from its creator as well.
    pub(super) fn forget_thread(&mut self, tid: Tid) {
        self.close(|_, whose| whose == tid);
    }

    fn close(&mut self, goes: impl Fn(Pid, Tid) -> bool) {
        let counted = &mut self.counted;
        self.open.retain(|(pid, tid, event)| {
            let goes = goes(*pid, *tid);
            if goes {
                // The one that a ring belongs to lives on.
                switch_off(event);
                *counted += count(event);
            }
            !goes
        });
    }

    /// How many events there were, whether there was room for a look or not.
    pub(super) fn counted(&self) -> u64 {
        let open = self.open.iter().map(|(_, _, event)| count(event));
        open.fold(self.counted, u64::saturating_add)
    }

    /// No more looks at anybody; what was seen is still in the rings.
    pub(super) fn stop(&mut self) {
        for (_, _, event) in &self.open {
            switch_off(event);
        }
    }
}

fn switch_off(event: &OwnedFd) {
    // SAFETY: a descriptor that is open, and no argument.
    unsafe { sys::ioctls::DISABLE(event.as_raw_fd(), 0) };
}

/// Of the thread that it was opened for and of all that inherited it.
fn count(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    // SAFETY: eight bytes, into memory of that size.
    let read = unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
    match read {
        8 => u64::from_le_bytes(count),
        _ => 0,
    }
}

fn processors() -> i32 {
    // SAFETY: reads a number.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) as i32 }.max(1)
}

/// A descriptor for each thread and processor may be more than the usual limit, which is below what is allowed.
fn allow_more_files() -> bool {
    // SAFETY: a structure of plain integers, filled by the first call and read by the second; the limit is ours alone, and
    // programs that we launch have been started by now.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 || limit.rlim_cur >= limit.rlim_max
        {
            return false;
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counter;

    const PAGE: usize = 4096;

    /// Looks that this very thread was given meanwhile, and what the kernel counted.
    fn seen(wanted: Wanted, work: impl FnOnce()) -> (u64, u64) {
        let allowed = allowed(wanted).expect("tests may look at themselves");
        let mut events = Events::new(allowed);
        let own = Pid(std::process::id() as i32);
        events.add(own, Tid(0)).expect("an event");
        work();
        events.stop();
        let mut looks = 0;
        for (_, ring) in &mut events.rings {
            ring.read(|kind, _| looks += u64::from(kind == perf::PERF_RECORD_SAMPLE));
        }
        (looks, events.counted())
    }

    #[test]
    fn every_page_fault_is_looked_at() {
        const PAGES: usize = 500;
        let (looks, counted) = seen(Counter::Faults.wanted(), || {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: memory of our own, of which one byte in each page is written.
            unsafe {
                let none = std::ptr::null_mut();
                let memory = libc::mmap(none, PAGES * PAGE, rights, kind, -1, 0);
                assert_ne!(memory, libc::MAP_FAILED);
                libc::madvise(memory, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
                for page in 0..PAGES {
                    memory.cast::<u8>().add(page * PAGE).write_volatile(1);
                }
                libc::munmap(memory, PAGES * PAGE);
            }
        });
        assert!(looks >= PAGES as u64, "{looks}");
        assert_eq!(looks, counted);
    }

    /// As with the processor's counters, which few machines have.
    #[test]
    fn no_more_looks_are_given_than_periods_have_passed() {
        const PERIOD: u64 = 1_000_003;
        let wanted = Wanted {
            event: Event::Time,
            period: PERIOD,
            ..Counter::Instructions.wanted()
        };
        let (looks, counted) = seen(wanted, || {
            let mut sum = 0u64;
            for number in 0..30_000_000u64 {
                sum = std::hint::black_box(sum ^ number);
            }
        });
        assert!(looks > 0 && looks * PERIOD <= counted, "{looks} {counted}");
    }
}
