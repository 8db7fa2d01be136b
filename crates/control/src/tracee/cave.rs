//! The piece of code through which a thread of the target makes system calls on our behalf.
//!
//! A borrowed thread has registers that are not its own. If this program is killed at that moment the kernel lets the
//! thread run on as it is, so what it finds behind the `syscall` instruction must bring it back to where it was. No code
//! of the target does that; the 312 bytes below do. They lie in a *cave*: the zero bytes between the end of a code
//! segment and the end of its last page, where nothing ever runs (on Debian 12 the vdso has 1,500 of them).
//!
//! ```text
//! start:  syscall                     <- the borrowed thread starts here, and is stopped at both ends of the call
//!         mov  eax, rt_sigprocmask       from here on it runs only if we died meanwhile:
//!         mov  edi, SIG_SETMASK          signals were blocked for the call; a handler may run right here,
//!         lea  rsi, [mask]               rsp therefore points below the red zone of the thread's own stack
//!         xor  edx, edx
//!         mov  r10d, 8
//!         syscall
//!         push [flags]
//!         popfq
//!         mov  rax, [rax'] ... mov r15, [r15']     all but rsp, by rip-relative loads
//!         mov  rsp, [rsp']
//!         jmp  [rip']
//! data:   mask, flags, rax' ... r15', rsp', rip', then room for a name
//! ```
//!
//! The saved `rip` and `rax` are those after the kernel's restart of an interrupted call (`restart::resolved`).
//! When all is well, ptrace puts the registers back, and the cave gets its zeros again.

use super::{Regs, Stopped, restart};
use crate::error::{Error, Result};
use crate::proc::{Mapping, RemoteAddr};

const DATA: usize = 160;
const MASK: usize = DATA;
const FLAGS: usize = DATA + 8;
const GENERAL: usize = DATA + 16;
const RSP: usize = GENERAL + 15 * 8;
const RIP: usize = RSP + 8;
const SCRATCH: usize = RIP + 8;
const LEN: usize = SCRATCH + Cave::SCRATCH_LEN;

/// A place for the code above.
pub(super) struct Cave {
    pub(super) start: RemoteAddr,
    /// Holds code at the moment, not zeros.
    pub(super) in_use: bool,
}

impl Cave {
    /// Room for bytes that a system call reads, such as a name.
    pub(super) const SCRATCH_LEN: usize = 64;

    pub(super) fn scratch(&self) -> RemoteAddr {
        RemoteAddr(self.start.0 + SCRATCH as u64)
    }

    /// Shows a reader of the target's memory the zeros that belong there.
    pub(super) fn hide_from(&self, addr: RemoteAddr, read: &mut [u8]) {
        if !self.in_use {
            return;
        }
        let from = self.start.0.max(addr.0);
        let to = (self.start.0 + LEN as u64).min(addr.0.saturating_add(read.len() as u64));
        if from < to {
            read[(from - addr.0) as usize..(to - addr.0) as usize].fill(0);
        }
    }
}

impl Stopped {
    /// Finds a cave, once.
    pub(super) fn find_cave(&mut self) -> Result<RemoteAddr> {
        if let Some(cave) = &self.cave {
            return Ok(cave.start);
        }
        let mut maps = self.maps()?;
        // Anonymous code is generated code, or our own stubs, which detaching unmaps.
        maps.retain(|mapping| {
            mapping.perms.exec
                && mapping.perms.read
                && !mapping.perms.shared
                && mapping.path.is_some()
        });
        // The vdso first: no file lies behind it, and nobody patches it.
        maps.sort_by_key(|mapping| mapping.path.as_deref() != Some("[vdso]".as_ref()));
        for mapping in &maps {
            if let Some(start) = self.cave_in(mapping) {
                self.cave = Some(Cave {
                    start,
                    in_use: false,
                });
                return Ok(start);
            }
        }
        Err(Error::NoSyscallInstruction { pid: self.pid })
    }

    fn cave_in(&mut self, mapping: &Mapping) -> Option<RemoteAddr> {
        // More zeros than are needed: those next to the code may be the operand of its last instruction.
        const MARGIN: usize = 16;
        let start = RemoteAddr(mapping.end.0 - (LEN + MARGIN).next_multiple_of(16) as u64);
        if start < mapping.start {
            return None;
        }
        let mut tail = vec![0xff; (mapping.end.0 - start.0) as usize];
        self.read_raw(start, &mut tail).ok()?;
        let abandoned = self.is_abandoned(
            &tail[MARGIN..],
            RemoteAddr(start.0 + MARGIN as u64),
            mapping.end,
        );
        if tail.iter().any(|byte| *byte != 0) && !abandoned {
            return None;
        }
        let start = RemoteAddr(start.0 + MARGIN as u64);
        // Some mappings cannot be written even by a tracer: find out before a thread depends on it.
        self.write(start, &[0; LEN]).ok()?;
        Some(start)
    }

    /// Whether the bytes are our own code, left by a controller that was killed, and no thread needs it any more.
    fn is_abandoned(&mut self, bytes: &[u8], start: RemoteAddr, end: RemoteAddr) -> bool {
        // SAFETY: registers are integers, for which zero is a value.
        let no_regs: Regs = unsafe { std::mem::zeroed() };
        const FIXED: usize = 12;
        if bytes[..FIXED] != healing_code(&no_regs, 0)[..FIXED] {
            return false;
        }
        self.threads.clone().into_iter().all(|tid| {
            self.regs(tid)
                .is_ok_and(|regs| !(start.0..end.0).contains(&regs.rip))
        })
    }

    /// Writes the code and what it needs to bring a thread back to `regs` and `mask`.
    pub(super) fn fill_cave(&mut self, regs: &Regs, mask: u64) -> Result<()> {
        let start = self.find_cave()?;
        let bytes = healing_code(regs, mask);
        if let Some(cave) = &mut self.cave {
            cave.in_use = true;
        }
        self.write(start, &bytes)
    }

    pub(super) fn empty_cave(&mut self) -> Result<()> {
        let Some(start) = self
            .cave
            .as_ref()
            .filter(|cave| cave.in_use)
            .map(|cave| cave.start)
        else {
            return Ok(());
        };
        self.write(start, &[0; LEN])?;
        if let Some(cave) = &mut self.cave {
            cave.in_use = false;
        }
        Ok(())
    }
}

/// Numbers of the registers as instructions encode them, and their values; rsp (4) is not among them.
fn general(regs: &Regs) -> [(u8, u64); 15] {
    [
        (0, regs.rax),
        (1, regs.rcx),
        (2, regs.rdx),
        (3, regs.rbx),
        (5, regs.rbp),
        (6, regs.rsi),
        (7, regs.rdi),
        (8, regs.r8),
        (9, regs.r9),
        (10, regs.r10),
        (11, regs.r11),
        (12, regs.r12),
        (13, regs.r13),
        (14, regs.r14),
        (15, regs.r15),
    ]
}

fn healing_code(regs: &Regs, mask: u64) -> Vec<u8> {
    let home = restart::resolved(regs);
    let mut code = Vec::with_capacity(LEN);
    // An instruction that ends in the distance to a piece of data.
    let with_data = |code: &mut Vec<u8>, opcode: &[u8], data: usize| {
        code.extend_from_slice(opcode);
        let distance = data as i32 - (code.len() as i32 + 4);
        code.extend_from_slice(&distance.to_le_bytes());
    };
    code.extend_from_slice(&[0x0f, 0x05]);
    code.extend_from_slice(&[0xb8, libc::SYS_rt_sigprocmask as u8, 0, 0, 0]);
    code.extend_from_slice(&[0xbf, libc::SIG_SETMASK as u8, 0, 0, 0]);
    with_data(&mut code, &[0x48, 0x8d, 0x35], MASK);
    code.extend_from_slice(&[0x31, 0xd2]);
    code.extend_from_slice(&[0x41, 0xba, 8, 0, 0, 0]);
    code.extend_from_slice(&[0x0f, 0x05]);
    with_data(&mut code, &[0xff, 0x35], FLAGS);
    code.push(0x9d);
    let general = general(&home);
    for (index, (number, _)) in general.iter().enumerate() {
        let rex = 0x48 | if *number >= 8 { 4 } else { 0 };
        let modrm = ((number & 7) << 3) | 5;
        with_data(&mut code, &[rex, 0x8b, modrm], GENERAL + index * 8);
    }
    with_data(&mut code, &[0x48, 0x8b, 0x25], RSP);
    with_data(&mut code, &[0xff, 0x25], RIP);
    assert!(code.len() <= DATA);

    code.resize(DATA, 0);
    code.extend_from_slice(&mask.to_le_bytes());
    code.extend_from_slice(&home.eflags.to_le_bytes());
    for (_, value) in general {
        code.extend_from_slice(&value.to_le_bytes());
    }
    code.extend_from_slice(&home.rsp.to_le_bytes());
    code.extend_from_slice(&home.rip.to_le_bytes());
    code.resize(LEN, 0);
    code
}
