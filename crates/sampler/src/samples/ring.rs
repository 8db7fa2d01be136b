//! A ring that the kernel writes records into and we read: memory of both, with a head that it moves and a tail that we move.
//!
//! The kernel is believed no more than anybody: a record that does not fit into what was written empties the ring.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use sys::bindings::perf_event_mmap_page;

/// Type, two bytes that say more about it, and size.
const HEAD: usize = 8;

pub(super) struct Ring {
    /// Whose ring it is: without it others could not be led here.
    event: OwnedFd,
    memory: NonNull<u8>,
    mapped: usize,
    /// Where the records begin, and for how many bytes, a power of two.
    start: usize,
    bytes: usize,
    /// A record that goes on at the ring's start, in one piece.
    pieces: Vec<u8>,
}

// SAFETY: the mapping belongs to nobody else in this process, and all access to it is through `&mut self`.
unsafe impl Send for Ring {}

impl Ring {
    /// The event's own ring.
    pub(super) fn of(event: &OwnedFd, bytes: usize) -> io::Result<Ring> {
        let event = event.try_clone()?;
        // SAFETY: reads a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize;
        let mapped = page + bytes;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            let none = std::ptr::null_mut();
            libc::mmap(none, mapped, rights, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Ring {
            event,
            memory,
            mapped,
            start: page,
            bytes,
            pieces: Vec::new(),
        })
    }

    /// Lets another event of the same processor write here too.
    pub(super) fn take(&self, event: &OwnedFd) -> io::Result<()> {
        let own = self.event.as_raw_fd();
        // SAFETY: both descriptors are open.
        match unsafe { sys::ioctls::SET_OUTPUT(event.as_raw_fd(), own) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn counter(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page holds the kernel's structure, whose counters are aligned and live as long as the mapping.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    fn head(&self) -> u64 {
        let at = std::mem::offset_of!(perf_event_mmap_page, data_head);
        self.counter(at).load(Ordering::Acquire)
    }

    fn tail(&self) -> &AtomicU64 {
        self.counter(std::mem::offset_of!(perf_event_mmap_page, data_tail))
    }

    /// Which part of it waits to be read.
    pub(super) fn fullness(&self) -> f64 {
        let waiting = self
            .head()
            .wrapping_sub(self.tail().load(Ordering::Relaxed));
        waiting as f64 / self.bytes as f64
    }

    /// Reads what there was when it began: the type of each record and what follows its head. Says whether all was in order.
    pub(super) fn read(&mut self, mut visit: impl FnMut(u32, &[u8])) -> bool {
        let head = self.head();
        let mut at = self.tail().load(Ordering::Relaxed);
        while at != head {
            let waiting = head.wrapping_sub(at);
            if waiting < HEAD as u64 || waiting > self.bytes as u64 {
                break;
            }
            let mut start = [0; HEAD];
            self.copy(at, &mut start);
            let kind = u32::from_le_bytes(start[..4].try_into().expect("four bytes"));
            let size = usize::from(u16::from_le_bytes([start[6], start[7]]));
            if size < HEAD || size as u64 > waiting {
                break;
            }
            let mut pieces = std::mem::take(&mut self.pieces);
            visit(
                kind,
                self.piece(at.wrapping_add(HEAD as u64), size - HEAD, &mut pieces),
            );
            self.pieces = pieces;
            at = at.wrapping_add(size as u64);
            self.tail().store(at, Ordering::Release);
        }
        let in_order = at == head;
        self.tail().store(head, Ordering::Release);
        in_order
    }

    /// `len` bytes, as they are where they are in one piece. They stay what they are until the tail moves.
    fn piece<'a>(&'a self, at: u64, len: usize, pieces: &'a mut Vec<u8>) -> &'a [u8] {
        let from = at as usize & (self.bytes - 1);
        if len <= self.bytes - from {
            // SAFETY: inside of the ring, and the kernel does not write between tail and head.
            return unsafe {
                std::slice::from_raw_parts(self.memory.as_ptr().add(self.start + from), len)
            };
        }
        pieces.resize(len, 0);
        self.copy(at, pieces);
        pieces
    }

    fn copy(&self, at: u64, into: &mut [u8]) {
        let from = at as usize & (self.bytes - 1);
        let first = into.len().min(self.bytes - from);
        // SAFETY: `from` is inside of the ring, `first` bytes end with it at the latest, and the rest, no more than the ring
        // has, begins at its start. The kernel does not write between tail and head.
        unsafe {
            let data = self.memory.as_ptr().add(self.start);
            std::ptr::copy_nonoverlapping(data.add(from), into.as_mut_ptr(), first);
            let rest = into.len() - first;
            std::ptr::copy_nonoverlapping(data, into.as_mut_ptr().add(first), rest);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made, which nothing refers to any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.mapped) };
    }
}
