//! What the process was given: its arguments, its environment, and what the kernel says of the machine.

use crate::kernel::{
    MAP_ANONYMOUS, MAP_PRIVATE, MMAP, MUNMAP, NOBODY, PROT_READ, PROT_WRITE, call, read_file,
};

/// As the variables ask for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// `THALWEG_MODE=timed`, and without that: every call is timed.
    Timed,
    /// One call of a function now and then is timed.
    Sampled,
    /// Calls are counted.
    Counted,
}

pub struct Given {
    /// The arguments, each ended by a zero byte.
    pub command: &'static [u8],
    /// `THALWEG_OUT`, with its final zero byte left out.
    pub out: Option<&'static [u8]>,
    pub mode: Mode,
    /// Somebody else's rights were given to this program: its environment is nobody's to choose. So it is until the kernel says no.
    pub secure: bool,
    /// `rdgsbase` and `wrgsbase` may be used.
    pub fsgsbase: bool,
}

const AT_SECURE: u64 = 23;
const AT_HWCAP2: u64 = 26;
const HWCAP2_FSGSBASE: u64 = 2;
const OUT: &[u8] = b"THALWEG_OUT=";
const MODE: &[u8] = b"THALWEG_MODE=";

/// No program has more of either.
const MOST_STRINGS: usize = 1 << 20;
const LONGEST: usize = 1 << 22;

/// # Safety
/// `stack` must be what the kernel has put on the stack of a new program.
pub unsafe fn of_program(stack: *const u64) -> Option<Given> {
    let mut given = Given::nothing();
    // SAFETY: by the caller's promise: a number, that many pointers and a zero, pointers and zeroes, pairs (the kernel always gives
    // some) and a pair that begins with a zero. All strings are where they were made, and end with a zero byte.
    unsafe {
        let count = stack.read() as usize;
        if count > MOST_STRINGS {
            return None;
        }
        let mut at = stack.add(1);
        if count > 0 {
            let first = at.read() as *const u8;
            let last = at.add(count - 1).read() as *const u8;
            let end = last.add(length(last) + 1);
            let len = (end as usize).wrapping_sub(first as usize);
            if len <= LONGEST {
                given.command = core::slice::from_raw_parts(first, len);
            }
        }
        at = at.add(count + 1);
        while at.read() != 0 {
            let string = at.read() as *const u8;
            given.take(core::slice::from_raw_parts(string, length(string)));
            at = at.add(1);
        }
        // The loader takes variables out of the environment of a program with somebody else's rights: one more zero for each.
        while at.read() == 0 {
            at = at.add(1);
        }
        while at.read() != 0 {
            given.take_fact(at.read(), at.add(1).read());
            at = at.add(2);
        }
    }
    given.settled()
}

/// The same where nobody has handed it over: by what /proc says.
pub fn with_library(work: impl FnOnce(&Given) -> Option<()>) -> Option<()> {
    const ROOM: usize = 256 << 10;
    const FACTS: usize = 1 << 10;
    // SAFETY: new memory, given back when `work` is over; nothing of it is kept.
    unsafe {
        let access = PROT_READ | PROT_WRITE;
        let kind = MAP_PRIVATE | MAP_ANONYMOUS;
        let at = call(MMAP, [0, ROOM as u64, access, kind, NOBODY, 0])?;
        let room = core::slice::from_raw_parts_mut(at as *mut u8, ROOM);
        let result = (|| {
            let (facts, rest) = room.split_at_mut_checked(FACTS)?;
            let (command, environment) = rest.split_at_mut_checked(ROOM / 4)?;
            let mut given = Given::nothing();
            let len = read_file(b"/proc/self/auxv\0", facts)?;
            for pair in facts.get(..len)?.chunks_exact(16) {
                let (name, value) = pair.split_at_checked(8)?;
                let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
                given.take_fact(number(name)?, number(value)?);
            }
            let len = read_file(b"/proc/self/cmdline\0", command)?;
            given.command = command.get(..len)?;
            let len = read_file(b"/proc/self/environ\0", environment)?;
            for string in environment.get(..len)?.split(|byte| *byte == 0) {
                given.take(string);
            }
            work(&given.settled()?)
        })();
        call(MUNMAP, [at, ROOM as u64, 0, 0, 0, 0]);
        result
    }
}

impl Given {
    fn nothing() -> Given {
        Given {
            command: &[],
            out: None,
            mode: Mode::Timed,
            secure: true,
            fsgsbase: false,
        }
    }

    fn take(&mut self, string: &'static [u8]) {
        if let Some(value) = string.strip_prefix(OUT) {
            self.out = Some(value);
        }
        if let Some(value) = string.strip_prefix(MODE) {
            self.mode = match value {
                b"counted" => Mode::Counted,
                b"sampled" => Mode::Sampled,
                _ => Mode::Timed,
            };
        }
    }

    fn take_fact(&mut self, name: u64, value: u64) {
        match name {
            AT_SECURE => self.secure = value != 0,
            AT_HWCAP2 => self.fsgsbase = value & HWCAP2_FSGSBASE != 0,
            _ => {}
        }
    }

    /// What holds whatever was asked for. `None`: not to be counted.
    fn settled(mut self) -> Option<Given> {
        if self.secure {
            self.out = Some(b"memory");
            self.mode = Mode::Timed;
        }
        (self.out != Some(b"off")).then_some(self)
    }
}

/// # Safety
/// `string` must end with a zero byte.
unsafe fn length(string: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: by the caller's promise.
    while unsafe { string.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}
