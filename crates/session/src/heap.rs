//! How this process asks the kernel for memory.

/// Memory that was freed is used again before the kernel is asked for more, and large pieces come
/// from there, too: each page that the kernel gives is cleared first, which in a virtual machine
/// takes a microsecond, and the tables of a large program are made one after the other. For a
/// command that ends soon or waits: what is free is given back only beyond a quarter of a gigabyte.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    {
        /// As large as glibc allows.
        const MAPPED_FROM: i32 = 32 << 20;
        const ASKED_AT_ONCE: i32 = 64 << 20;
        const KEPT: i32 = 256 << 20;
        // SAFETY: sets numbers of the allocator, at any time.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_TOP_PAD, ASKED_AT_ONCE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}
