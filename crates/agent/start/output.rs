//! Where the region's pages are kept: a file that outlives the process, or memory.
//!
//! A shared mapping of a file kills whoever touches a page for which the disk has no room. So the file gets its room at once, all
//! that a program with a usual number of threads fills of it; where there is none, the program is not counted.

use crate::given::Given;
use crate::kernel::{
    AT_FDCWD, CLOSE, FALLOCATE, FCNTL, FSTATFS, FTRUNCATE, GETPID, MAP_ANONYMOUS, MAP_PRIVATE,
    MEMFD_CREATE, MMAP, MUNMAP, NOBODY, O_CLOEXEC, O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR, OPENAT,
    PRLIMIT64, PROT_READ, PROT_WRITE, UNLINKAT, call,
};
use thalweg_abi as shm;
use thalweg_abi::{Ahead, Header};

/// An open file of the region's length.
pub struct Output {
    pub fd: u64,
    name: Option<Name>,
}

const LONGEST_NAME: usize = 4096;
const NAME_ROOM: u64 = LONGEST_NAME as u64 + 4096;

/// In memory of its own, which is all zeroes behind it.
struct Name {
    at: u64,
    len: usize,
}

/// What has to be free on the disk beside the room that is taken at once.
const LEFT_FREE: u64 = 256 << 20;
/// So many threads, and so deep calls in each, have their room at once.
const THREADS: u64 = 16;
const DEPTH: u64 = 256 << 10;
/// Names that are tried where there is such a file.
const TRIES: u64 = 100;

impl Output {
    pub fn new(ahead: &Ahead, header: &Header, given: &Given) -> Option<Output> {
        let out = given.out.unwrap_or_default();
        let output = match out {
            b"memory" => Output::memory()?,
            prefix => Output::file(ahead, prefix)?,
        };
        match output.grow(header) {
            Some(()) => Some(output),
            None => {
                output.take_back();
                None
            }
        }
    }

    fn memory() -> Option<Output> {
        const CLOEXEC: u64 = 1;
        const ALLOW_SEALING: u64 = 2;
        let name = b"thalweg\0";
        const { assert!(matches!(shm::MEMFD_NAME.as_bytes(), b"thalweg")) };
        let flags = CLOEXEC | ALLOW_SEALING;
        // SAFETY: the name ends with a zero byte.
        let fd = unsafe { call(MEMFD_CREATE, [name.as_ptr() as u64, flags, 0, 0, 0, 0])? };
        Some(Output { fd, name: None })
    }

    /// `prefix` and what every name ends with. A file that is there is never opened, nor one behind a link.
    fn file(ahead: &Ahead, prefix: &[u8]) -> Option<Output> {
        for number in 0..TRIES {
            let mut name = Name::new()?;
            let opened = name.fill(ahead, prefix, number).and_then(|()| {
                let flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
                const OWNERS: u64 = 0o600;
                // SAFETY: the path ends with a zero byte.
                unsafe { call(OPENAT, [AT_FDCWD, name.at, flags, OWNERS, 0, 0]) }
            });
            match opened {
                Some(fd) => {
                    let name = Some(name);
                    return Some(Output { fd, name });
                }
                None => name.forget(),
            }
        }
        None
    }

    /// As long as the region, with room on the disk.
    fn grow(&self, header: &Header) -> Option<()> {
        let len = header.shared_size;
        // SAFETY: numbers, and places of locals.
        unsafe {
            const FILE_SIZE: u64 = 1;
            let mut limit = [0u64; 2];
            // Beyond this limit a signal would end the program.
            let place = &raw mut limit as u64;
            call(PRLIMIT64, [0, FILE_SIZE, 0, place, 0, 0])?;
            if (&raw const limit[0]).read_volatile() < len {
                return None;
            }
            call(FTRUNCATE, [self.fd, len, 0, 0, 0, 0])?;
            if self.name.is_none() {
                const ADD_SEALS: u64 = 1033;
                const SHRINK_AND_GROW: u64 = 6;
                call(FCNTL, [self.fd, ADD_SEALS, SHRINK_AND_GROW, 0, 0, 0])?;
                return Some(());
            }
        }
        self.fill(0, shm::DYNAMIC_OFFSET)?;
        self.fill(
            shm::TABLE_OFFSET,
            shm::Layout::blocks_offset(header.functions.into()),
        )?;
        if header.blocks.is_empty() {
            self.fill(header.catalog_offset, header.frames_offset)?;
        } else {
            let ledger_end = header.ledger_offset + header.ledger_len;
            self.fill(header.catalog_offset, ledger_end)?;
        }
        for thread in 0..THREADS {
            let at = header.frames_offset + thread * shm::FRAMES_STRIDE;
            self.fill(at, at + DEPTH)?;
        }
        let functions = u64::from(header.functions) + shm::PAGE;
        let folded = header.folded_offset;
        self.fill(folded, folded + functions * shm::NODE_SIZE)?;
        let nodes = header.nodes_offset;
        self.fill(nodes, nodes + header.nodes_len)?;
        let waits = shm::waits_offset(nodes, header.nodes_len);
        self.fill(waits, waits + functions * shm::WAITS_SIZE)?;
        let waits = waits + shm::waits_place(nodes - folded);
        self.fill(waits, waits + shm::waits_place(header.nodes_len))?;
        let states = header.states_offset;
        self.fill(states, states + functions * shm::PROBE_STATE_SIZE)?;
        self.has_space()
    }

    fn fill(&self, from: u64, to: u64) -> Option<()> {
        let len = to.saturating_sub(from).next_multiple_of(shm::PAGE);
        let from = from & !(shm::PAGE - 1);
        // SAFETY: numbers.
        unsafe { call(FALLOCATE, [self.fd, 0, from, len + shm::PAGE, 0, 0])? };
        Some(())
    }

    fn has_space(&self) -> Option<()> {
        // type, block size, blocks, free blocks, blocks that are free for us, ...
        let mut facts = [0u64; 16];
        // SAFETY: the kernel writes 120 bytes.
        unsafe { call(FSTATFS, [self.fd, &raw mut facts as u64, 0, 0, 0, 0])? };
        // SAFETY: a local.
        let (size, free) = unsafe {
            let facts = (&raw const facts).cast::<u64>();
            (facts.add(1).read_volatile(), facts.add(4).read_volatile())
        };
        (size.saturating_mul(free) >= LEFT_FREE).then_some(())
    }

    /// The mapping stays.
    pub fn close(&self) {
        if let Some(name) = &self.name {
            name.forget();
        }
        // SAFETY: our own descriptor.
        unsafe { call(CLOSE, [self.fd, 0, 0, 0, 0, 0]) };
    }

    /// Nothing of it stays.
    pub fn take_back(&self) {
        if let Some(name) = &self.name {
            // SAFETY: the path ends with a zero byte; it is the file that was made here.
            unsafe {
                call(UNLINKAT, [AT_FDCWD, name.at, 0, 0, 0, 0]);
            }
        }
        self.close();
    }
}

impl Name {
    fn new() -> Option<Name> {
        let access = PROT_READ | PROT_WRITE;
        let kind = MAP_PRIVATE | MAP_ANONYMOUS;
        // SAFETY: new memory.
        let at = unsafe { call(MMAP, [0, NAME_ROOM, access, kind, NOBODY, 0])? };
        Some(Name { at, len: 0 })
    }

    /// Gives its memory back.
    fn forget(&self) {
        // SAFETY: its own mapping.
        unsafe { call(MUNMAP, [self.at, NAME_ROOM, 0, 0, 0, 0]) };
    }

    fn fill(&mut self, ahead: &Ahead, prefix: &[u8], number: u64) -> Option<()> {
        self.add(prefix)?;
        if prefix.last().is_none_or(|last| *last == b'/') {
            let len = ahead.name.iter().position(|byte| *byte == 0);
            self.add(ahead.name.get(..len?)?)?;
        }
        self.add(b".")?;
        // SAFETY: has no effect.
        self.add_number(unsafe { call(GETPID, [0; 6])? })?;
        if number > 0 {
            self.add(b".")?;
            self.add_number(number)?;
        }
        self.add(shm::REGION_SUFFIX.as_bytes())
    }

    fn add(&mut self, bytes: &[u8]) -> Option<()> {
        for byte in bytes {
            if self.len >= LONGEST_NAME {
                return None;
            }
            // SAFETY: within its memory.
            unsafe { ((self.at + self.len as u64) as *mut u8).write_volatile(*byte) };
            self.len += 1;
        }
        Some(())
    }

    fn add_number(&mut self, mut number: u64) -> Option<()> {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first = first.checked_sub(1)?;
            *digits.get_mut(first)? = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.add(digits.get(first..)?)
    }
}
