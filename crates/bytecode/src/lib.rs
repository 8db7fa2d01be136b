//! What a rule is while the target runs: a byte string that says whether a call is kept and which
//! values are copied.
//!
//! `crates/rules` writes programs, the agent runs them, this crate is what both agree on.
//! Freestanding: no allocation, no formatting, no indexing that could panic, nothing to relocate
//! (so no trait objects).
//!
//! A program is a header, the code for the entry of a call and the code for its exit. The code is a
//! stack machine whose jumps lead forward only, so that it ends. Any bytes are a program: those
//! that make no sense keep nothing.
//!
//! ```text
//! entry   values that only the entry knows -> slots; condition -> verdict; values to record -> out
//! exit    slots from what the entry wrote;  condition -> kept?;   values to record -> out
//! ```
//!
//! At the entry, what only the exit knows (return value, duration, errno) is *late*. A late operand
//! makes a result late unless the other operand decides alone: `n > 100 or ret < 0` is true at once
//! for n = 101, and late otherwise. What cannot be read is *unknown* in the same way, and an
//! unknown condition keeps nothing.
#![no_std]
#![forbid(unsafe_code)]

/// Where this package lies, for the build script that compiles it into the agent's image.
#[cfg(not(freestanding))]
pub const SOURCE: &str = env!("CARGO_MANIFEST_DIR");

mod header;
mod items;
pub mod op;
mod run;
mod text;

pub use header::{BadProgram, HEADER_SIZE, Header, flags};
pub use items::{ITEM_HEADER, Item, Items, Out, STATE_ID, Status};
pub use run::{SLOTS, STACK};
pub use text::{CHUNK, NUL_TERMINATED};

/// How many integer and floating-point registers carry arguments, in Go code, where there are most.
pub const INTS: usize = 9;
pub const FLOATS: usize = 15;

/// The registers that matter at an entry and at an exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// rdi rsi rdx rcx r8 r9, at the entry. In Go code rax rbx rcx rdi rsi r8 r9 r10 r11, at either
    /// end.
    pub int: [u64; INTS],
    /// The low halves of xmm0 to xmm7, at the entry. In Go code of xmm0 to xmm14, at either end.
    pub float: [u64; FLOATS],
    /// The address of the return address; arguments on the stack begin 8 above it.
    pub sp: u64,
    /// rax and rdx, at the exit; in Go code the first two of `int`, of which further results are.
    pub ret: [u64; 2],
    /// The low halves of xmm0 and xmm1, at the exit; in Go code further ones are in `float`.
    pub ret_float: [u64; 2],
    /// The thread's errno, at the exit.
    pub errno: i64,
}

/// The target's memory.
pub trait Memory {
    /// Reads `into.len()` bytes at `at` and says how many could be read; never faults.
    fn read(&mut self, at: u64, into: &mut [u8]) -> usize;
}

/// What stands around a call. Asked at entries only.
pub trait Surroundings {
    /// The function directly above is one of set `set`.
    fn caller_in(&self, set: u16) -> bool;
    /// Some function above, however far, is one of set `set`.
    fn above_in(&self, set: u16) -> bool;
    /// A call that rule `rule` has not refused is open above this one.
    fn active(&self, rule: u16) -> bool;
    /// Rule `rule` has kept a call, in whatever thread.
    fn fired(&self, rule: u16) -> bool;
    /// The thread's name, padded with zeros.
    fn thread_name(&self) -> [u8; 16];
}

/// What is known of a call. The times and `unwound` are those of its exit; at the entry they are
/// not looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    pub total_ns: u64,
    pub self_ns: u64,
    pub waited_ns: u64,
    /// It was left by an exception, a longjmp or the like: there is no return value.
    pub unwound: bool,
    /// The kernel's number of the thread.
    pub thread: u32,
    /// This is the nth call that the rule has seen, from 1.
    pub number: u64,
    /// What the program on the throwing function wrote, if `unwound` and an exception is known;
    /// empty otherwise.
    pub exception: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    No,
    Yes,
    /// It depends on how the call ends.
    AtExit,
}

/// Runs the entry part. Unless the verdict is `No`, `out` has what `exit` needs and the values
/// recorded at the entry.
pub fn entry<M: Memory, S: Surroundings>(
    program: &[u8],
    machine: &Machine,
    memory: &mut M,
    around: &S,
    call: &Call<'_>,
    out: &mut Out<'_>,
) -> Verdict {
    let start = out.len();
    let verdict = match Header::read(program) {
        Ok(header) => run::Run::new(machine, memory, around, call, out, true)
            .entry(&header, header.entry_code(program)),
        Err(_) => None,
    };
    let verdict = verdict.unwrap_or(Verdict::No);
    if verdict == Verdict::No {
        out.truncate(start);
    }
    verdict
}

/// Runs the exit part: is the call kept? `entry_values` is what `entry` wrote. If so, `out` gets
/// the values recorded at the exit.
pub fn exit<M: Memory>(
    program: &[u8],
    machine: &Machine,
    memory: &mut M,
    call: &Call<'_>,
    entry_values: &[u8],
    out: &mut Out<'_>,
) -> bool {
    let start = out.len();
    let kept = match Header::read(program) {
        Ok(header) => run::Run::new(machine, memory, &Nowhere, call, out, false)
            .exit(header.exit_code(program), entry_values),
        Err(_) => None,
    };
    let kept = kept.unwrap_or(false);
    if !kept {
        out.truncate(start);
    }
    kept
}

/// Surroundings of which nothing is known.
pub struct Nowhere;

impl Surroundings for Nowhere {
    fn caller_in(&self, _: u16) -> bool {
        false
    }
    fn above_in(&self, _: u16) -> bool {
        false
    }
    fn active(&self, _: u16) -> bool {
        false
    }
    fn fired(&self, _: u16) -> bool {
        false
    }
    fn thread_name(&self) -> [u8; 16] {
        [0; 16]
    }
}
