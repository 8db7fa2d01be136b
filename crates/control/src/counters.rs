//! The processor's event counters: whether this machine gives us any. Nothing reads them yet.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Instructions,
    Cycles,
    CacheMisses,
}

#[derive(Debug, thiserror::Error)]
pub enum NoCounter {
    #[error(
        "this machine has no such counter, or its hypervisor does not pass it on (perf_event_open: {0})"
    )]
    Absent(std::io::Error),
    #[error(
        "the kernel does not let this user count (perf_event_open: {0}): see /proc/sys/kernel/perf_event_paranoid"
    )]
    Forbidden(std::io::Error),
}

/// Asks the kernel for the counter, for this very thread, and gives it back at once.
pub fn try_open(counter: Counter) -> Result<(), NoCounter> {
    const TYPE_HARDWARE: u32 = 0;
    /// The first version of `perf_event_attr`, which every kernel knows.
    const SIZE: u32 = 64;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    let config: u64 = match counter {
        Counter::Cycles => 0,
        Counter::Instructions => 1,
        Counter::CacheMisses => 3,
    };
    let mut attributes = [0u64; SIZE as usize / 8];
    attributes[0] = u64::from(TYPE_HARDWARE) | u64::from(SIZE) << 32;
    attributes[1] = config;
    attributes[5] = EXCLUDE_KERNEL;
    // SAFETY: the kernel reads SIZE bytes; the descriptor that it may give is closed here.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            0,
            -1,
            -1,
            0u64,
        )
    };
    if opened >= 0 {
        // SAFETY: it is ours.
        unsafe { libc::close(opened as i32) };
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => NoCounter::Forbidden(error),
        _ => NoCounter::Absent(error),
    })
}
