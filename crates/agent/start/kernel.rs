//! System calls, as the start code makes them. An answer below zero is `None`.

use core::arch::asm;

pub const READ: u64 = 0;
pub const OPENAT: u64 = 257;
pub const CLOSE: u64 = 3;
pub const MMAP: u64 = 9;
pub const MPROTECT: u64 = 10;
pub const MUNMAP: u64 = 11;
pub const MADVISE: u64 = 28;
pub const GETPID: u64 = 39;
pub const FTRUNCATE: u64 = 77;
pub const UNLINKAT: u64 = 263;
pub const FSTATFS: u64 = 138;
pub const PRCTL: u64 = 157;
pub const ARCH_PRCTL: u64 = 158;
pub const GETTID: u64 = 186;
pub const CLOCK_GETTIME: u64 = 228;
pub const FALLOCATE: u64 = 285;
pub const PRLIMIT64: u64 = 302;
pub const MEMFD_CREATE: u64 = 319;
pub const FCNTL: u64 = 72;

pub const AT_FDCWD: u64 = -100i64 as u64;
pub const O_RDONLY: u64 = 0;
pub const O_RDWR: u64 = 2;
pub const O_CREAT: u64 = 0o100;
pub const O_EXCL: u64 = 0o200;
pub const O_NOFOLLOW: u64 = 0o400_000;
pub const O_CLOEXEC: u64 = 0o2_000_000;
pub const PROT_NONE: u64 = 0;
pub const PROT_READ: u64 = 1;
pub const PROT_WRITE: u64 = 2;
pub const PROT_EXEC: u64 = 4;
pub const MAP_SHARED: u64 = 1;
pub const MAP_PRIVATE: u64 = 2;
pub const MAP_FIXED: u64 = 0x10;
pub const MAP_ANONYMOUS: u64 = 0x20;
pub const MAP_NORESERVE: u64 = 0x4000;
pub const MADV_DONTDUMP: u64 = 16;
pub const MADV_WIPEONFORK: u64 = 18;
pub const NOBODY: u64 = u64::MAX;

/// # Safety
/// As the system call has it.
pub unsafe fn call(number: u64, a: [u64; 6]) -> Option<u64> {
    let result: i64;
    // SAFETY: by the caller's promise.
    unsafe {
        asm!("syscall", inlateout("rax") number as i64 => result, in("rdi") a[0], in("rsi") a[1],
             in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _,
             lateout("r11") _, options(nostack))
    };
    u64::try_from(result).ok()
}

/// The nanoseconds that a clock shows.
pub fn clock(id: u64) -> Option<u64> {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes two words.
    unsafe { call(CLOCK_GETTIME, [id, &raw mut time as u64, 0, 0, 0, 0])? };
    // SAFETY: a local.
    let [seconds, nanoseconds] = unsafe { (&raw const time).read_volatile() };
    Some(seconds * 1_000_000_000 + nanoseconds)
}

/// A base of a segment, asked by one of `arch_prctl`'s codes.
pub fn segment_base(code: u64) -> Option<u64> {
    let mut base = 0u64;
    // SAFETY: the kernel writes a word.
    unsafe { call(ARCH_PRCTL, [code, &raw mut base as u64, 0, 0, 0, 0])? };
    // SAFETY: a local.
    Some(unsafe { (&raw const base).read_volatile() })
}

/// Fills `into` from the start of a file of /proc; how many bytes there were.
pub fn read_file(path: &[u8], into: &mut [u8]) -> Option<usize> {
    let mut filled = 0usize;
    // SAFETY: `path` ends with a zero byte, by all callers; the kernel writes into the rest of `into`.
    unsafe {
        let flags = O_RDONLY | O_CLOEXEC;
        let fd = call(OPENAT, [AT_FDCWD, path.as_ptr() as u64, flags, 0, 0, 0])?;
        while filled < into.len() {
            let at = into.as_mut_ptr().add(filled) as u64;
            let left = (into.len() - filled) as u64;
            match call(READ, [fd, at, left, 0, 0, 0]) {
                Some(0) | None => break,
                Some(more) => filled += more as usize,
            }
        }
        call(CLOSE, [fd, 0, 0, 0, 0, 0]);
    }
    Some(filled)
}
