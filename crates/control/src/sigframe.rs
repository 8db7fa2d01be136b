//! Program counters saved on a stack by the kernel: a thread that is in a signal handler resumes there.
//!
//! No return address ever points into a displaced window (calls are not displaced), so a word on a stack that does is either
//! the saved rip of a signal frame or stale. A frame is told by what stands 176 bytes before its rip:
//!
//! ```text
//! +0    address of the restorer, whose code is mov rax, 15; syscall
//! +8    ucontext: flags 8, link 8, stack 24, then r8 .. r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp
//! +176  rip
//! ```

use crate::error::Result;
use crate::proc::RemoteAddr;
use crate::tracee::Stopped;

const RIP_OFFSET: u64 = 176;
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// How much of a stack is searched. Signal frames are near its end unless the handler itself runs deep.
const SEARCHED: usize = 1 << 20;

/// Rewrites saved program counters that `pairs` translates.
pub fn translate(stopped: &mut Stopped, rsp: u64, pairs: &[(u64, u64)]) -> Result<()> {
    let (Some(first), Some(last)) = (pairs.first(), pairs.last()) else { return Ok(()) };
    let (low, high) = (first.0, last.0);
    for (at, rip) in saved_pcs(stopped, rsp, &|value| value >= low && value <= high) {
        if let Some(moved) = crate::attach::lookup(pairs, rip) {
            stopped.write(RemoteAddr(at), &moved.to_le_bytes())?;
        }
    }
    Ok(())
}

/// Saved program counters for which `wanted` holds: where they are stored, and their values.
pub fn saved_pcs(stopped: &Stopped, rsp: u64, wanted: &dyn Fn(u64) -> bool) -> Vec<(u64, u64)> {
    let start = rsp & !7;
    let stack = read_stack(stopped, start);
    let mut found = Vec::new();
    for (index, word) in stack.chunks_exact(8).enumerate() {
        let value = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        let offset = index as u64 * 8;
        if !wanted(value) || offset < RIP_OFFSET {
            continue;
        }
        let at = (offset - RIP_OFFSET) as usize;
        let restorer = u64::from_le_bytes(stack[at..at + 8].try_into().expect("eight bytes"));
        let mut code = [0; RESTORER.len()];
        if stopped.read(RemoteAddr(restorer), &mut code).is_ok() && code == RESTORER {
            found.push((start + offset, value));
        }
    }
    found
}

/// From `start` to the end of the stack's mapping, at most `SEARCHED` bytes.
fn read_stack(stopped: &Stopped, start: u64) -> Vec<u8> {
    let mut stack = vec![0; SEARCHED];
    let mut done = 0;
    while done < SEARCHED {
        let step = (4096 - ((start as usize + done) & 0xfff)).min(SEARCHED - done);
        // Larger reads first: most stacks have plenty; the page-wise tail finds the mapping's end.
        let large = (64 << 10) - step;
        if done + step + large <= SEARCHED
            && stopped.read(RemoteAddr(start + done as u64), &mut stack[done..done + step + large]).is_ok()
        {
            done += step + large;
            continue;
        }
        if stopped.read(RemoteAddr(start + done as u64), &mut stack[done..done + step]).is_err() {
            break;
        }
        done += step;
    }
    stack.truncate(done & !7);
    stack
}
