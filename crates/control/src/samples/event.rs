//! Asks the kernel to look: one software event for each thread and processor, which copies the thread's registers and the top
//! of its stack into the processor's ring whenever the thread has used so much processor time.
//!
//! Threads that are created later inherit the event of their creator before their first instruction; processes do not, and a
//! process that becomes another program loses it. Nobody is stopped or signalled.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use perf_event_open_sys as sys;
use sys::bindings as perf;

use super::ring::Ring;
use crate::proc::{Pid, Tid};

/// What is copied, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) period_ns: u64,
    /// Bytes from the stack pointer on.
    pub(super) stack: u32,
    /// Also while the thread is in the kernel.
    pub(super) kernel: bool,
}

/// What the record has of the registers, by the kernel's numbers: rax rbx rcx rdx rsi rdi rbp rsp rip, r8 to r15.
const REGISTERS: u64 = 0x1ff | 0xff << 16;
/// Where each of them is among all, by the numbers of unwind information.
pub(super) const DWARF_NUMBERS: [usize; 17] =
    [0, 3, 2, 1, 4, 5, 6, 7, 16, 8, 9, 10, 11, 12, 13, 14, 15];

/// With so much room in a ring the kernel may be left alone for this long, in seconds.
const LEFT_ALONE: f64 = 0.12;
const LEAST_RING: usize = 512 << 10;
const MOST_RING: usize = 8 << 20;
/// All rings together.
const MOST_RINGS: usize = 64 << 20;
/// What a record has beside the stack, and a little more.
const BESIDE_THE_STACK: usize = 512;

impl Wanted {
    fn attributes(&self) -> perf::perf_event_attr {
        let mut attributes = perf::perf_event_attr {
            type_: perf::PERF_TYPE_SOFTWARE,
            size: size_of::<perf::perf_event_attr>() as u32,
            config: perf::PERF_COUNT_SW_TASK_CLOCK as u64,
            sample_type: (perf::PERF_SAMPLE_TID
                | perf::PERF_SAMPLE_TIME
                | perf::PERF_SAMPLE_REGS_USER
                | perf::PERF_SAMPLE_STACK_USER) as u64,
            sample_regs_user: REGISTERS,
            sample_stack_user: self.stack,
            clockid: libc::CLOCK_MONOTONIC,
            ..Default::default()
        };
        attributes.__bindgen_anon_1.sample_period = self.period_ns;
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
        let looks = LEFT_ALONE * 1e9 / self.period_ns as f64;
        let bytes = (looks * (self.stack as usize + BESIDE_THE_STACK) as f64) as usize;
        let share = (MOST_RINGS / processors() as usize).next_power_of_two();
        let most = share.clamp(LEAST_RING, MOST_RING);
        bytes.next_power_of_two().clamp(LEAST_RING, most) >> smaller
    }
}

/// What this machine and this user's rights allow of it, tried on ourselves.
pub(super) fn allowed(mut wanted: Wanted) -> io::Result<Wanted> {
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
    open: Vec<(Pid, OwnedFd)>,
}

impl Events {
    pub(super) fn new(wanted: Wanted) -> Events {
        Events {
            wanted,
            rings: Vec::new(),
            open: Vec::new(),
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
            self.open.push((pid, event));
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
        self.open.retain(|(other, event)| {
            let goes = *other == pid;
            if goes {
                // The one that a ring belongs to lives on.
                switch_off(event);
            }
            !goes
        });
    }

    /// No more looks at anybody; what was seen is still in the rings.
    pub(super) fn stop(&mut self) {
        for (_, event) in &self.open {
            switch_off(event);
        }
    }
}

fn switch_off(event: &OwnedFd) {
    // SAFETY: a descriptor that is open, and no argument.
    unsafe { sys::ioctls::DISABLE(event.as_raw_fd(), 0) };
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
