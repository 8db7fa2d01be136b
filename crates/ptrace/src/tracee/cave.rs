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
//! When all is well, ptrace puts the registers back, and the cave gets its zeros again. When not, the next controller finds
//! the code: it brings home a thread that still stands in it, and empties it once no thread and no signal frame needs it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{CachedRegs, Regs, Stopped, restart, sys};
use crate::error::{Error, Result};
use crate::proc::{self, Mapping, Pid, RemoteAddr};

const DATA: usize = 160;
const MASK: usize = DATA;
const FLAGS: usize = DATA + 8;
const GENERAL: usize = DATA + 16;
const RSP: usize = GENERAL + 15 * 8;
const RIP: usize = RSP + 8;
const SCRATCH: usize = RIP + 8;
const LEN: usize = SCRATCH + Cave::SCRATCH_LEN;

/// Zeros in front of a cave: those next to the code may be the operand of its last instruction.
const MARGIN: usize = 16;
/// Caves lie side by side, the first one at the end of the page.
const STRIDE: usize = (LEN + MARGIN).next_multiple_of(16);
const CAVES_IN_PAGE: u64 = 4;
const PAGE: u64 = 4096;

/// A place for the code above.
pub(super) struct Cave {
    pub(super) start: RemoteAddr,
    /// Holds code at the moment, not zeros.
    pub(super) in_use: bool,
}

/// The state that healing code brings its thread back to.
struct Home {
    mask: u64,
    regs: Regs,
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

    /// The `index`-th cave before the end of a page.
    fn before(end: u64, index: u64) -> Option<RemoteAddr> {
        let start = end.checked_sub((index + 1) * STRIDE as u64)?;
        Some(RemoteAddr(start + MARGIN as u64))
    }

    /// The cave that an address would be in, were it in one.
    fn around(addr: u64) -> Option<RemoteAddr> {
        let end = addr.checked_next_multiple_of(PAGE)?;
        let index = (end - addr).checked_sub(1)? / STRIDE as u64;
        let start = Cave::before(end, index).filter(|_| index < CAVES_IN_PAGE)?;
        (start.0..start.0 + LEN as u64)
            .contains(&addr)
            .then_some(start)
    }
}

impl Stopped {
    /// A controller before us may have been killed while it had borrowed a thread that has not run since: it stands in
    /// the healing code. Brings such threads home at once, so that nobody has to know of two homes of one thread.
    pub(super) fn bring_home(&mut self) -> Result<()> {
        for tid in self.threads.clone() {
            let mut regs = self.regs(tid)?;
            // It may have been borrowed by one after the other.
            let mut home = None;
            while let Some(start) = Cave::around(regs.rip)
                && let Some(next) = self.home_in(start, &regs)
            {
                regs = next.regs;
                home = Some(next);
            }
            if let Some(home) = home {
                // The mask first: should we die in between, the thread heals itself.
                self.or_ended(
                    sys::set_signal_mask(tid, home.mask)
                        .and_then(|()| sys::set_registers(tid, &home.regs)),
                    "its registers were restored",
                )?;
                self.regs.insert(
                    tid,
                    CachedRegs {
                        regs: home.regs,
                        dirty: false,
                    },
                );
            }
        }
        Ok(())
    }

    /// What the healing code at `start`, if that is what lies there, would make of a thread.
    fn home_in(&self, start: RemoteAddr, regs: &Regs) -> Option<Home> {
        let mut bytes = [0; LEN];
        self.read_raw(start, &mut bytes).ok()?;
        if !is_healing_code(&bytes) {
            return None;
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut home = *regs;
        for (index, (_, register)) in general(&mut home).into_iter().enumerate() {
            *register = word(GENERAL + index * 8);
        }
        home.eflags = word(FLAGS);
        home.rsp = word(RSP);
        home.rip = word(RIP);
        // Not a call to restart: that has been seen to.
        home.orig_rax = u64::MAX;
        Some(Home {
            mask: word(MASK),
            regs: home,
        })
    }

    /// Finds a cave, once.
    /// Whether calls are made from a place that nobody can unmap while other threads run.
    pub(super) fn has_lasting_cave(&mut self) -> Result<bool> {
        let start = self.find_cave()?;
        let is_vdso = |mapping: &Mapping| mapping.path.as_deref() == Some("[vdso]".as_ref());
        let maps = self.maps()?;
        Ok(maps.iter().any(|m| is_vdso(m) && m.contains(start)))
    }

    pub(super) fn find_cave(&mut self) -> Result<RemoteAddr> {
        if let Some(cave) = &self.cave {
            return Ok(cave.start);
        }
        for mapping in &places(self.maps()?) {
            if let Some(start) = self.cave_in(mapping)? {
                self.cave = Some(Cave {
                    start,
                    in_use: false,
                });
                return Ok(start);
            }
        }
        Err(Error::NoSyscallInstruction { pid: self.pid })
    }

    /// Empties every cave that a killed controller left and that nobody needs any more.
    pub fn empty_abandoned_code(&mut self) -> Result<()> {
        for mapping in &places(self.maps()?) {
            for start in abandoned_in(&self.mem, mapping) {
                if self.cave.as_ref().is_none_or(|cave| cave.start != start)
                    && self.is_free(start)?
                {
                    self.write(start, &[0; LEN])?;
                }
            }
        }
        Ok(())
    }

    /// The first usable cave in the last page of a mapping; empties those that nobody needs any more.
    fn cave_in(&mut self, mapping: &Mapping) -> Result<Option<RemoteAddr>> {
        let mut found = None;
        for index in 0..CAVES_IN_PAGE {
            let Some(start) = Cave::before(mapping.end.0, index)
                .filter(|start| start.0 - MARGIN as u64 >= mapping.start.0)
            else {
                break;
            };
            let mut bytes = [0xff; STRIDE];
            let margin = RemoteAddr(start.0 - MARGIN as u64);
            if self.read_raw(margin, &mut bytes).is_err() {
                break;
            }
            let abandoned = is_healing_code(&bytes[MARGIN..]);
            if abandoned && !self.is_free(start)? {
                continue;
            }
            if !abandoned && bytes.iter().any(|byte| *byte != 0) {
                break;
            }
            // Some mappings cannot be written even by a tracer: find out before a thread depends on it.
            if (abandoned || found.is_none()) && self.write(start, &[0; LEN]).is_err() {
                break;
            }
            found.get_or_insert(start);
        }
        Ok(found)
    }

    /// Whether no thread needs the healing code at `start` any more: none stands in it ([`Stopped::bring_home`]), and
    /// none is in a signal handler that interrupted it.
    fn is_free(&mut self, start: RemoteAddr) -> Result<bool> {
        if self.partial {
            // Somebody who runs may need it.
            return Ok(false);
        }
        let cave = start.0..start.0 + LEN as u64;
        let mut frames = crate::sigframe::Frames::of(self.maps()?);
        for tid in self.threads.clone() {
            let regs = self.regs(tid)?;
            let saved = frames.saved_pcs(self, regs.rsp);
            if cave.contains(&regs.rip) || saved.iter().any(|(_, rip)| cave.contains(rip)) {
                return Ok(false);
            }
        }
        Ok(true)
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

/// Mappings that may have caves, the best first.
fn places(mut maps: Vec<Mapping>) -> Vec<Mapping> {
    // Anonymous code is generated code, or our own stubs, which detaching unmaps.
    maps.retain(|mapping| {
        mapping.perms.exec && mapping.perms.read && !mapping.perms.shared && mapping.path.is_some()
    });
    // The vdso first: no file lies behind it, and nobody patches it.
    maps.sort_by_key(|mapping| mapping.path.as_deref() != Some("[vdso]".as_ref()));
    maps
}

fn abandoned_in(mem: &File, mapping: &Mapping) -> Vec<RemoteAddr> {
    (0..CAVES_IN_PAGE)
        .filter_map(|index| Cave::before(mapping.end.0, index))
        .filter(|start| *start >= mapping.start)
        .filter(|start| {
            let mut bytes = [0; LEN];
            mem.read_exact_at(&mut bytes, start.0).is_ok() && is_healing_code(&bytes)
        })
        .collect()
}

/// Whether a controller was killed here while it had borrowed a thread; looks without stopping the process.
pub fn has_abandoned_code(pid: Pid) -> Result<bool> {
    let mem = super::open_mem(pid)?;
    Ok(places(proc::maps(pid)?)
        .iter()
        .any(|mapping| !abandoned_in(&mem, mapping).is_empty()))
}

fn is_healing_code(bytes: &[u8]) -> bool {
    // SAFETY: registers are integers, for which zero is a value.
    let no_regs: Regs = unsafe { std::mem::zeroed() };
    bytes[..DATA] == healing_code(&no_regs, 0)[..DATA]
}

/// Numbers of the registers as instructions encode them, and their values; rsp (4) is not among them.
fn general(regs: &mut Regs) -> [(u8, &mut u64); 15] {
    [
        (0, &mut regs.rax),
        (1, &mut regs.rcx),
        (2, &mut regs.rdx),
        (3, &mut regs.rbx),
        (5, &mut regs.rbp),
        (6, &mut regs.rsi),
        (7, &mut regs.rdi),
        (8, &mut regs.r8),
        (9, &mut regs.r9),
        (10, &mut regs.r10),
        (11, &mut regs.r11),
        (12, &mut regs.r12),
        (13, &mut regs.r13),
        (14, &mut regs.r14),
        (15, &mut regs.r15),
    ]
}

fn healing_code(regs: &Regs, mask: u64) -> Vec<u8> {
    let mut home = restart::resolved(regs);
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
    let general = general(&mut home).map(|(number, value)| (number, *value));
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
