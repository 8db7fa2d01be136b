//! The process's own memory, read for rules: a bad pointer is an answer, never a fault.
//!
//! Only the kernel can copy what may not be there. That takes about a microsecond, however little is copied (a system call that does nothing takes a
//! seventh of that), so small reads bring the block around them along: fields of one structure cost one call. Blocks do not cross pages,
//! so that they can be read where the field can.
//!
//! What lies between the probe's own stack pointer and the end of that page is there for certain, since the probe is using that page.

use crate::memory::{Slot, gs_base, syscall6};
use crate::record::{Registers, rules_head};
use core::mem::MaybeUninit;
use thalweg_abi as shm;
use thalweg_bytecode::Memory;

const BLOCK: usize = 256;

/// What one program reads. It is not used for longer, so what it remembers is as old as the call's event.
pub struct TargetMemory {
    /// Of the running thread's stack.
    stack: (u64, u64),
    block_at: u64,
    block: MaybeUninit<[u8; BLOCK]>,
}

impl TargetMemory {
    pub fn new(registers: Option<&Registers>) -> TargetMemory {
        let stack = match registers {
            Some(registers) => {
                let used = registers.stack();
                (used, (used | (shm::PAGE - 1)) + 1)
            }
            None => (0, 0),
        };
        TargetMemory {
            stack,
            block_at: u64::MAX,
            block: MaybeUninit::uninit(),
        }
    }

    /// The part of the block with `at` in it, reading it first if it is another one.
    fn block_with(&mut self, at: u64, len: usize) -> Option<*const u8> {
        let start = at & !(BLOCK as u64 - 1);
        let within = (at - start) as usize;
        if len > BLOCK - within {
            return None;
        }
        if self.block_at != start {
            self.block_at = u64::MAX;
            if copy(start, self.block.as_mut_ptr().cast(), BLOCK) != BLOCK {
                return None;
            }
            self.block_at = start;
        }
        // SAFETY: the block is filled, and `within` and `len` are inside of it.
        Some(unsafe { self.block.as_ptr().cast::<u8>().add(within) })
    }
}

impl Memory for TargetMemory {
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize {
        let (from, to) = self.stack;
        let len = into.len();
        let on_stack = at >= from && at < to && to - at >= len as u64;
        let found = match on_stack {
            true => Some(at as *const u8),
            false if len <= 16 => self.block_with(at, len),
            false => None,
        };
        let Some(found) = found else {
            return copy(at, into.as_mut_ptr(), len);
        };
        for (place, to) in into.iter_mut().enumerate() {
            // SAFETY: `len` bytes from `found` on are there. Volatile, or the loop becomes a call of memcpy, which the agent does not have.
            *to = unsafe { found.add(place).read_volatile() };
        }
        len
    }
}

/// Copies what can be read of `len` bytes at `at`, and says how much that was.
fn copy(at: u64, to: *mut u8, len: usize) -> usize {
    let local: [u64; 2] = [to as u64, len as u64];
    let remote: [u64; 2] = [at, len as u64];
    // SAFETY: the callers have `len` bytes at `to`; the kernel writes nowhere else, and reads whatever can be read.
    let read = unsafe {
        if (&raw const (*rules_head()).may_read).read_volatile() == 0 {
            return 0;
        }
        syscall6(
            shm::calls::PROCESS_VM_READV,
            [
                shm::number((*Slot(gs_base()).shared()).pid) as u64,
                &raw const local as u64,
                1,
                &raw const remote as u64,
                1,
                0,
            ],
        )
    };
    match read as i64 {
        0.. => (read as usize).min(len),
        _ => 0,
    }
}
