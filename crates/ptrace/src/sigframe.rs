//! Program counters saved on a stack by the kernel: a thread that is in a signal handler resumes there.
//!
//! No return address ever points into a displaced window (calls are not displaced), so a word on a stack that does is either
//! the saved rip of a signal frame or stale. A frame is told by its first word:
//!
//! ```text
//! +0    address of the restorer, whose code is mov rax, 15; syscall
//! +8    ucontext: flags 8, link 8, stack 24, then r8 .. r15, rdi, rsi, rbp, rbx, rdx, rax, rcx
//! +168  rsp
//! +176  rip
//! +192  cs, of two bytes, which the kernel has always written
//! ```
//!
//! A handler may run on a stack of its own; what it interrupted may be another handler, on the thread's stack: the
//! saved rsp leads there.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::Result;
use crate::proc::{Mapping, RemoteAddr};
use crate::tracee::Stopped;

const RSP_OFFSET: usize = 168;
const RIP_OFFSET: usize = 176;
const CS_OFFSET: usize = 192;
/// How many bytes from its start on tell a frame.
const TOLD_BY: usize = CS_OFFSET + 8;
/// Code segment selector of 64-bit user code. The return from a handler sets the privilege level's two bits.
const USER_CS: u16 = 0x33;
const PRIVILEGE: u16 = 3;
/// `mov rax, 15; syscall` as C libraries have it, and as others write it.
const RESTORERS: [&[u8]; 2] = [
    &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
    &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],
];
/// How much of a stack is searched, from where the thread is to the stack's end.
const SEARCHED: u64 = 64 << 20;
/// Stacks of one thread that signal frames lead to.
const MAX_STACKS: usize = 16;

/// Finds signal frames on the stacks of a stopped process.
pub struct Frames {
    maps: Vec<Mapping>,
    /// Where code is: nearly all words on a stack point elsewhere.
    code: Vec<Range<u64>>,
    /// Words met on stacks that point to code: whether that is a restorer.
    known: HashMap<u64, bool>,
    /// Where stacks end that do not end with their mapping.
    ends: Vec<u64>,
}

impl Frames {
    /// `maps`: what the process has mapped while it stands.
    pub fn of(maps: Vec<Mapping>) -> Frames {
        let mut code: Vec<Range<u64>> = Vec::new();
        for mapping in maps.iter().filter(|mapping| mapping.perms.exec) {
            match code.last_mut() {
                Some(last) if last.end == mapping.start.0 => last.end = mapping.end.0,
                _ => code.push(mapping.start.0..mapping.end.0),
            }
        }
        Frames {
            maps,
            code,
            known: HashMap::new(),
            ends: Vec::new(),
        }
    }

    /// A stack that is less than `WINDOW` deep ends at `end`.
    pub fn add_end(&mut self, end: u64) {
        self.ends.push(end);
    }

    /// Rewrites saved program counters that have a `partner`, and returns where handlers will return to then.
    pub fn translate(
        &mut self,
        stopped: &mut Stopped,
        rsp: u64,
        partner: impl Fn(u64) -> Option<u64>,
    ) -> Result<Vec<u64>> {
        let mut saved = Vec::new();
        for (at, rip) in self.saved_pcs(stopped, rsp) {
            let moved = partner(rip);
            if let Some(moved) = moved {
                stopped.write(RemoteAddr(at), &moved.to_le_bytes())?;
            }
            saved.push(moved.unwrap_or(rip));
        }
        Ok(saved)
    }

    /// Program counters to which handlers of the thread at `rsp` will return: where they are stored, and their values.
    pub fn saved_pcs(&mut self, stopped: &Stopped, rsp: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut searched: Vec<(u64, u64)> = Vec::new();
        let mut pending = vec![rsp];
        while let Some(rsp) = pending.pop() {
            if searched.len() == MAX_STACKS
                || searched
                    .iter()
                    .any(|&(start, end)| rsp >= start && rsp < end)
            {
                continue;
            }
            let start = rsp & !7;
            let stack = self.read_stack(stopped, start);
            searched.push((start, start + stack.len() as u64));
            for at in frames_maybe(&stack) {
                if self.is_restorer(stopped, word(&stack, at)) {
                    let rip = word(&stack, at + RIP_OFFSET);
                    found.push((start + (at + RIP_OFFSET) as u64, rip));
                    pending.push(word(&stack, at + RSP_OFFSET));
                }
            }
        }
        found
    }

    fn is_restorer(&mut self, stopped: &Stopped, address: u64) -> bool {
        let next = self.code.partition_point(|range| range.end <= address);
        let is_code = |range: &Range<u64>| range.contains(&address);
        if !self.code.get(next).is_some_and(is_code) {
            return false;
        }
        if let Some(&known) = self.known.get(&address) {
            return known;
        }
        let is = RESTORERS.iter().any(|form| {
            let mut code = vec![0; form.len()];
            stopped.read(RemoteAddr(address), &mut code).is_ok() && code == *form
        });
        self.known.insert(address, is);
        is
    }

    /// From `start` to the end of the stack or of its mapping, at most `SEARCHED` bytes.
    fn read_stack(&self, stopped: &Stopped, start: u64) -> Vec<u8> {
        let Some(mapping) = mapping_at(&self.maps, start) else {
            return Vec::new();
        };
        let nearest = self.ends.iter().filter(|&&end| end > start).min();
        let end = match nearest {
            Some(&end) if end - start <= thalweg_abi::WINDOW => end.min(mapping.end.0),
            _ => mapping.end.0,
        };
        let mut stack = vec![0; (end - start).min(SEARCHED) as usize];
        match stopped.read(RemoteAddr(start), &mut stack) {
            Ok(()) => stack,
            Err(_) => Vec::new(),
        }
    }
}

/// Where frames may begin: the code segment is told at once, what is a restorer takes a search for each word.
fn frames_maybe(stack: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let windows = stack.windows(TOLD_BY).step_by(8).zip((0..).step_by(8));
    windows.filter_map(|(window, at)| {
        let cs = u16::from_le_bytes([window[CS_OFFSET], window[CS_OFFSET + 1]]);
        (cs | PRIVILEGE == USER_CS).then_some(at)
    })
}

fn word(stack: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&stack[at..at + 8]);
    u64::from_le_bytes(word)
}

fn mapping_at(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    let index = maps
        .partition_point(|m| m.start.0 <= address)
        .checked_sub(1)?;
    maps.get(index).filter(|m| address < m.end.0)
}
