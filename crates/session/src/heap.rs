//! How this process asks the kernel for memory.
//!
//! Each page that the kernel gives is cleared first, and has its fault, which in a virtual machine takes a microsecond. The
//! tables of a program with 100,000 functions are a gigabyte: 340,000 faults, a third of all that `record -- rustc --version`
//! takes. Two things are done about it.

/// For a command that ends soon or waits. What was freed is used again before the kernel is asked for more, and large pieces
/// come from there, too; and what comes from the kernel are huge pages, as far as it has some at hand.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    gnu::keep_freed_memory();
}

/// Gives back what is free: the making of tables is over, and the command goes on for long.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(target_env = "gnu")]
mod gnu {
    /// Of the kernel's free huge pages at most a half are taken.
    const SHARE: u64 = 2;
    const HUGE: u64 = 2 << 20;
    /// More than the tables of the largest programs take; less than this is not worth the while.
    const MOST: u64 = 1 << 30;
    const LEAST: u64 = 64 << 20;
    /// The size of a piece that makes glibc ask the kernel, because it has no such piece.
    const ASKED: usize = 16 << 20;
    const ASKED_AT_ONCE: i32 = 64 << 20;
    /// As large as glibc allows.
    const MAPPED_FROM: i32 = 32 << 20;
    const KEPT: i32 = 256 << 20;

    pub(super) fn keep_freed_memory() {
        // SAFETY: sets numbers of the allocator, at any time.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_TOP_PAD, ASKED_AT_ONCE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
        let buddies = std::fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
        let room = (free_huge_bytes(&buddies) / SHARE).min(MOST);
        if room >= LEAST {
            take_room(room);
        }
    }

    /// What the kernel has in free pieces of two megabytes and more. Asked for more than that it would move other memory
    /// about to make some, and we would wait for it.
    pub(super) fn free_huge_bytes(buddies: &str) -> u64 {
        let of_zone = |line: &str| {
            let counts = line.split_once("zone")?.1.split_whitespace().skip(1);
            let bytes = (0..).zip(counts).filter_map(|(order, count)| {
                let size = 4096u64.checked_shl(order)?;
                (size >= HUGE).then_some(count.parse::<u64>().ok()?.saturating_mul(size))
            });
            Some(bytes.fold(0, u64::saturating_add))
        };
        buddies
            .lines()
            .filter_map(of_zone)
            .fold(0, u64::saturating_add)
    }

    /// Has the heap grow once by so much address space, which gets huge pages when it is used.
    fn take_room(room: u64) {
        // SAFETY: numbers of the allocator; a piece that is given back unused; and advice about the
        // end of the heap, which changes nothing of what is in it.
        unsafe {
            // All threads get theirs from this one heap, large pieces too, and what is free stays in it.
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_MMAP_MAX, 0);
            libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
            libc::mallopt(libc::M_TOP_PAD, room as i32);
            let piece = libc::malloc(ASKED) as u64;
            libc::mallopt(libc::M_TOP_PAD, ASKED_AT_ONCE);
            let end = libc::sbrk(0) as u64;
            let start = piece.next_multiple_of(HUGE);
            // Where the heap may not grow, glibc has made a mapping elsewhere, or none.
            if piece != 0 && start < end && end - start <= room + 2 * ASKED as u64 {
                libc::madvise(start as *mut _, (end - start) as usize, libc::MADV_HUGEPAGE);
            }
            libc::free(piece as *mut _);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn what_is_free_in_huge_pieces_is_added_up_over_all_zones() {
            let some = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      2 \n\
                Node 0, zone   Normal   4381   1047    327    101     30     16      9      4      1      3      0 \n\
                nonsense\n";
            // Order 9 and 10: two and four megabytes.
            assert_eq!(free_huge_bytes(some), (2 + 2 * 4 + 3 * 2) << 20);
            assert_eq!(free_huge_bytes(""), 0);
        }
    }
}
