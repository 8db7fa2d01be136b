//! The region of this process: mapped here for the first time, or found where somebody else has mapped it.

use crate::given::Given;
use crate::kernel::{
    MADV_DONTDUMP, MADV_WIPEONFORK, MADVISE, MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE,
    MAP_SHARED, MMAP, MUNMAP, NOBODY, PROT_NONE, PROT_READ, PROT_WRITE, call,
};
use crate::output::Output;
use thalweg_abi as shm;
use thalweg_abi::{Ahead, Header};

pub struct Region {
    /// Of the first private page.
    pub base: u64,
    len: u64,
    output: Output,
}

impl Region {
    /// All zeroes.
    pub fn map(ahead: &Ahead, header: &Header, given: &Given) -> Option<Region> {
        let output = Output::new(ahead, header, given)?;
        let len = shm::PRIVATE_SIZE + header.shared_size;
        // SAFETY: new memory.
        let room = unsafe {
            let kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
            call(MMAP, [0, len, PROT_NONE, kind, NOBODY, 0])
        };
        let Some(base) = room else {
            output.take_back();
            return None;
        };
        let region = Region { base, len, output };
        match region.furnish(header) {
            Some(()) => Some(region),
            None => {
                region.take_back();
                None
            }
        }
    }

    fn furnish(&self, header: &Header) -> Option<()> {
        let access = PROT_READ | PROT_WRITE;
        let shared = self.base + shm::PRIVATE_SIZE;
        // SAFETY: all of it within the room that was just mapped.
        unsafe {
            let kind = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
            let len = header.shared_size;
            call(MMAP, [shared, len, access, kind, self.output.fd, 0])?;
            let kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
            let private = shm::PRIVATE_SIZE;
            call(MMAP, [self.base, private, access, kind, NOBODY, 0])?;
            call(MADVISE, [self.base, private, MADV_WIPEONFORK, 0, 0, 0])?;
            call(MADVISE, [self.base, self.len, MADV_DONTDUMP, 0, 0, 0])?;
        }
        Some(())
    }

    /// It stays, and needs no descriptor any more.
    pub fn settle(&self) {
        self.output.close();
    }

    /// Nobody has used it.
    pub fn take_back(&self) {
        self.output.take_back();
        // SAFETY: our own mappings.
        unsafe { call(MUNMAP, [self.base, self.len, 0, 0, 0, 0]) };
    }
}
