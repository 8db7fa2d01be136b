//! The agent's image, and the code by which a stub calls into it.

use std::os::unix::fs::FileExt;

use thalweg_abi as shm;
use thalweg_patch::{Probe, ProbeEncoder};

use crate::error::{Error, Result};
use crate::gate;
use crate::leaf;
use crate::memory::read_remote;
use crate::prepare::Probes;
use crate::proc::{Pid, RemoteAddr};

/// Flat, position-independent, self-contained; its first word takes the region's address.
pub static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.bin"));

/// The start code of a copy that counts by itself: see `crates/agent/start`. Its first word takes the distance to the head.
pub static START: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/start.bin"));

mod start_symbol {
    include!(concat!(env!("OUT_DIR"), "/start_symbols.rs"));
}

/// Where the start code of a program and that of a library begin.
pub const START_PROGRAM: u64 = start_symbol::TW_START_PROGRAM;
pub const START_LIBRARY: u64 = start_symbol::TW_START_LIBRARY;

/// Where each probe begins in the image.
pub fn probe_places() -> Vec<usize> {
    let table = IMAGE.get(symbol::TW_PROBES as usize..).unwrap_or_default();
    let own = table
        .chunks_exact(8)
        .map(|row| [row[0], row[1], row[2], row[3]]);
    own.map(|own| u32::from_le_bytes(own) as usize)
        .take_while(|own| *own != 0)
        .collect()
}

/// The calibration program, an executable of its own: see `crates/agent/calibration`.
pub static CALIBRATION: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/thalweg_calibration"));

mod symbol {
    include!(concat!(env!("OUT_DIR"), "/agent_symbols.rs"));
}

/// The image as it is written into the target: the region's address at its head.
pub fn image_for(region: u64) -> Vec<u8> {
    let mut image = IMAGE.to_vec();
    image[..8].copy_from_slice(&region.to_le_bytes());
    image
}

/// Where code that counts blocks asks whose thread it is, of the agent that lies at `agent`.
pub fn claim_at(agent: u64) -> u64 {
    agent + symbol::TW_BLOCKS_CLAIM
}

/// From now on no system call is made from the agent in this process, which need not stand still: the word is read before each.
pub fn silence(pid: Pid, header: &shm::Header) -> Result<()> {
    for code in header.code.iter().filter(|code| code.len != 0) {
        let mut base = [0; 8];
        // A fork child may lack what its parent has mapped since, or have something else there.
        let read = read_remote(pid, RemoteAddr(code.start), &mut base);
        if read.is_err() || u64::from_le_bytes(base) != header.base {
            continue;
        }
        let path = format!("/proc/{pid}/mem");
        let write = |file: std::fs::File| {
            let at = code.start.wrapping_add(symbol::TW_SILENT);
            file.write_all_at(&1u64.to_le_bytes(), at)
        };
        let opened = std::fs::File::options().write(true).open(&path);
        opened.and_then(write).map_err(|source| Error::Io {
            path: path.into(),
            source,
        })?;
    }
    Ok(())
}

/// Probes that call the agent at `agent`.
pub struct Encoder<'a> {
    pub agent: u64,
    pub probes: Probes,
    /// Function number in the profile by index in the module.
    pub numbers: &'a [u32],
    /// Functions that have a gate before their entry probe.
    pub gates: &'a [(usize, gate::Kind)],
    /// Functions that allocate or free, and how.
    pub allocators: &'a [(usize, u32)],
    /// CPython's evaluator.
    pub python: Option<usize>,
}

/// The same for functions that are not counted: a gate at the entry or at system calls, nothing else.
pub struct GateEncoder<'a> {
    pub agent: u64,
    pub gates: &'a [(usize, gate::Kind)],
    pub movable: bool,
}

impl ProbeEncoder for GateEncoder<'_> {
    fn is_movable(&self) -> bool {
        self.movable
    }

    fn encode(&self, probe: Probe, _keep_flags: bool, at: u64, out: &mut Vec<u8>) {
        match probe {
            // A function that jumps back to its entry has data below its stack pointer there.
            Probe::Entry {
                function,
                loops: false,
            } => put_gate(self.agent, self.gates, function, None, at, out),
            Probe::Return => out.push(0xc3),
            Probe::Watch => put_watch(self.agent, at, out),
            _ => {}
        }
    }
}

/// The call of the probe that looks at the system call which follows; what lives in the red zone is left alone.
fn put_watch(agent: u64, at: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&LOWER_STACK);
    let behind = at + LOWER_STACK.len() as u64 + 5;
    let displacement = (agent + symbol::TW_WATCH).wrapping_sub(behind) as u32;
    out.push(CALL);
    out.extend_from_slice(&displacement.to_le_bytes());
    out.extend_from_slice(&RAISE_STACK);
}

/// The call of the gate, if `function` has one.
fn put_gate(
    agent: u64,
    gates: &[(usize, gate::Kind)],
    function: usize,
    number: Option<u32>,
    at: u64,
    out: &mut Vec<u8>,
) {
    let Some((_, kind)) = gates.iter().find(|(gated, _)| *gated == function) else {
        return;
    };
    if let gate::Kind::JavaEntry | gate::Kind::JavaExit = kind {
        // The probe returns to the caller: nothing of the function itself is executed.
        let probe = match kind {
            gate::Kind::JavaEntry => symbol::TW_JAVA_ENTRY,
            _ => symbol::TW_JAVA_EXIT,
        };
        out.push(JMP);
        out.extend_from_slice(&((agent + probe).wrapping_sub(at + 5) as u32).to_le_bytes());
        return;
    }
    if let gate::Kind::JavaCompile = kind {
        let probe = (agent + symbol::TW_JAVA_COMPILE).wrapping_sub(at + 5) as u32;
        out.push(CALL);
        out.extend_from_slice(&probe.to_le_bytes());
        return;
    }
    let number = number.map_or(shm::GATE_NO_FUNCTION, |number| {
        number.min(shm::GATE_NO_FUNCTION)
    });
    let displacement = (agent + symbol::TW_GATE).wrapping_sub(at + 5) as u32;
    out.push(CALL);
    out.extend_from_slice(&displacement.to_le_bytes());
    out.extend_from_slice(&[0x0f, 0x1f, 0x80]);
    out.extend_from_slice(&(kind.number() << shm::GATE_KIND_SHIFT | number).to_le_bytes());
}

/// Plain entries, by the first of the two places that a callee has.
const TIMED: [u64; shm::CHILD_SLOTS as usize] = {
    use symbol::*;
    [
        TW_ENTRY_T0,
        TW_ENTRY_T1,
        TW_ENTRY_T2,
        TW_ENTRY_T3,
        TW_ENTRY_T4,
        TW_ENTRY_T5,
        TW_ENTRY_T6,
        TW_ENTRY_T7,
    ]
};
const TIMED_LOOPS: [u64; shm::CHILD_SLOTS as usize] = {
    use symbol::*;
    [
        TW_ENTRY_TL0,
        TW_ENTRY_TL1,
        TW_ENTRY_TL2,
        TW_ENTRY_TL3,
        TW_ENTRY_TL4,
        TW_ENTRY_TL5,
        TW_ENTRY_TL6,
        TW_ENTRY_TL7,
    ]
};
const COUNTED: [u64; shm::CHILD_SLOTS as usize] = {
    use symbol::*;
    [
        TW_ENTRY_C0,
        TW_ENTRY_C1,
        TW_ENTRY_C2,
        TW_ENTRY_C3,
        TW_ENTRY_C4,
        TW_ENTRY_C5,
        TW_ENTRY_C6,
        TW_ENTRY_C7,
    ]
};
const COUNTED_LOOPS: [u64; shm::CHILD_SLOTS as usize] = {
    use symbol::*;
    [
        TW_ENTRY_CL0,
        TW_ENTRY_CL1,
        TW_ENTRY_CL2,
        TW_ENTRY_CL3,
        TW_ENTRY_CL4,
        TW_ENTRY_CL5,
        TW_ENTRY_CL6,
        TW_ENTRY_CL7,
    ]
};

impl ProbeEncoder for Encoder<'_> {
    fn is_movable(&self) -> bool {
        self.probes.movable
    }

    fn counts_leaf(&self, function: usize) -> bool {
        let is_gated = || self.gates.iter().any(|(gated, _)| *gated == function);
        let allocates = || self.allocators.iter().any(|(other, _)| *other == function);
        self.probes.leaves && !is_gated() && !allocates()
    }

    fn lead(&self, probe: Probe, keep_flags: bool, at: u64, out: &mut Vec<u8>) {
        if let (Probe::Leaf { function }, false) = (probe, keep_flags) {
            let probe = match self.probes.timed {
                true => symbol::TW_LEAF_T,
                false => symbol::TW_LEAF_C,
            };
            leaf::put_lead(self.agent + probe, self.numbers[function], at, out);
        }
    }

    fn encode(&self, probe: Probe, keep_flags: bool, at: u64, out: &mut Vec<u8>) {
        use symbol::*;
        let Probes {
            timed,
            sites,
            records,
            alloc,
            leaves: _,
            movable: _,
        } = self.probes;
        let pick = |with_clock: u64, counted: u64| if timed { with_clock } else { counted };
        let tail = |told_apart: u64, plain: u64| if sites { told_apart } else { plain };
        let (opcode, routine) = match (probe, keep_flags) {
            (
                Probe::Entry {
                    function,
                    loops: false,
                },
                _,
            ) if self.python == Some(function) => (
                CALL,
                match (records, sites) {
                    (false, false) => pick(TW_PYTHON_T, TW_PYTHON_C),
                    (false, true) => pick(TW_PYTHON_TS, TW_PYTHON_CS),
                    (true, false) => TW_PYTHON_TR,
                    (true, true) => TW_PYTHON_TSR,
                },
            ),
            (Probe::Entry { loops, .. }, flags) if records => (
                CALL,
                match (sites, loops, flags) {
                    (false, false, false) => TW_ENTRY_TR,
                    (false, false, true) => TW_ENTRY_TFR,
                    (false, true, false) => TW_ENTRY_TLR,
                    (false, true, true) => TW_ENTRY_TFLR,
                    (true, false, false) => TW_ENTRY_TSR,
                    (true, false, true) => TW_ENTRY_TFSR,
                    (true, true, false) => TW_ENTRY_TLSR,
                    (true, true, true) => TW_ENTRY_TFLSR,
                },
            ),
            (Probe::Return, false) if records && alloc => (JMP, TW_RETURN_TRA),
            (Probe::Return, true) if records && alloc => (JMP, TW_RETURN_TFRA),
            (Probe::Exit, false) if records && alloc => (CALL, TW_EXIT_TRA),
            (Probe::Exit, true) if records && alloc => (CALL, TW_EXIT_TFRA),
            (Probe::Return, false) if records => (JMP, TW_RETURN_TR),
            (Probe::Return, true) if records => (JMP, TW_RETURN_TFR),
            (Probe::Exit, false) if records => (CALL, TW_EXIT_TR),
            (Probe::Exit, true) if records => (CALL, TW_EXIT_TFR),
            (Probe::Entry { loops: false, .. }, false) if sites => {
                (CALL, pick(TW_ENTRY_TS, TW_ENTRY_CS))
            }
            (Probe::Entry { loops: false, .. }, true) if sites => {
                (CALL, pick(TW_ENTRY_TFS, TW_ENTRY_CFS))
            }
            (Probe::Entry { loops: true, .. }, false) if sites => {
                (CALL, pick(TW_ENTRY_TLS, TW_ENTRY_CLS))
            }
            (Probe::Entry { loops: true, .. }, true) if sites => {
                (CALL, pick(TW_ENTRY_TFLS, TW_ENTRY_CFLS))
            }
            (Probe::Entry { function, loops }, false) => {
                let [place, _] = shm::child_places(self.numbers[function]);
                let copies = match (timed, loops) {
                    (true, false) => TIMED,
                    (true, true) => TIMED_LOOPS,
                    (false, false) => COUNTED,
                    (false, true) => COUNTED_LOOPS,
                };
                (CALL, copies[place])
            }
            (Probe::Entry { loops: false, .. }, true) => (CALL, pick(TW_ENTRY_TF, TW_ENTRY_CF)),
            (Probe::Entry { loops: true, .. }, true) => (CALL, pick(TW_ENTRY_TFL, TW_ENTRY_CFL)),
            (Probe::Leaf { function }, false) => {
                return leaf::put_code(self.numbers[function], out);
            }
            (Probe::Leaf { .. }, true) => (CALL, pick(TW_LEAF_TF, TW_LEAF_CF)),
            (Probe::Return, false) if alloc => (JMP, pick(TW_RETURN_TA, TW_RETURN_CA)),
            (Probe::Return, true) if alloc => (JMP, pick(TW_RETURN_TFA, TW_RETURN_CFA)),
            (Probe::Exit, false) if alloc => (CALL, pick(TW_EXIT_TA, TW_EXIT_CA)),
            (Probe::Exit, true) if alloc => (CALL, pick(TW_EXIT_TFA, TW_EXIT_CFA)),
            (Probe::Return, false) => (JMP, pick(TW_RETURN_T, TW_RETURN_C)),
            (Probe::Return, true) => (JMP, pick(TW_RETURN_TF, TW_RETURN_CF)),
            (Probe::Exit, false) => (CALL, pick(TW_EXIT_T, TW_EXIT_C)),
            (Probe::Exit, true) => (CALL, pick(TW_EXIT_TF, TW_EXIT_CF)),
            (Probe::TailMark, false) => (CALL, tail(TW_TAIL_MARK_S, TW_TAIL_MARK)),
            (Probe::TailMark, true) => (CALL, tail(TW_TAIL_MARK_FS, TW_TAIL_MARK_F)),
            (Probe::TailUnknown, flags) if records || alloc => match flags {
                false => (CALL, tail(TW_TAIL_UNKNOWN_S, TW_TAIL_UNKNOWN)),
                true => (CALL, tail(TW_TAIL_UNKNOWN_FS, TW_TAIL_UNKNOWN_F)),
            },
            (Probe::TailUnknown, false) => {
                let with_clock = tail(TW_TAIL_UNKNOWN_TS, TW_TAIL_UNKNOWN_T);
                (
                    CALL,
                    pick(with_clock, tail(TW_TAIL_UNKNOWN_CS, TW_TAIL_UNKNOWN_C)),
                )
            }
            (Probe::TailUnknown, true) => {
                let with_clock = tail(TW_TAIL_UNKNOWN_TFS, TW_TAIL_UNKNOWN_TF);
                (
                    CALL,
                    pick(with_clock, tail(TW_TAIL_UNKNOWN_CFS, TW_TAIL_UNKNOWN_CF)),
                )
            }
            (Probe::Switch { .. }, _) => (CALL, TW_SWITCH),
            (Probe::Kernel { .. }, _) => (CALL, tail(TW_KERNEL_S, TW_KERNEL)),
            (Probe::Watch, _) => return put_watch(self.agent, at, out),
            (Probe::GoEntry { .. }, _) if records && sites => (CALL, TW_GO_ENTRY_TSR),
            (Probe::GoEntry { .. }, _) if records => (CALL, TW_GO_ENTRY_TR),
            (Probe::GoReturn, _) if records => (JMP, TW_GO_RETURN_TR),
            (Probe::GoEntry { .. }, _) if sites => (CALL, pick(TW_GO_ENTRY_TS, TW_GO_ENTRY_CS)),
            (Probe::GoEntry { .. }, _) => (CALL, pick(TW_GO_ENTRY_T, TW_GO_ENTRY_C)),
            (Probe::GoReturn, _) => (JMP, pick(TW_GO_RETURN_T, TW_GO_RETURN_C)),
            (Probe::GoLeave { own: true }, _) => (CALL, TW_GO_LEAVE_OWN),
            (Probe::GoLeave { own: false }, _) => (CALL, TW_GO_LEAVE_ANY),
            (Probe::GoArrive, _) => (CALL, TW_GO_ARRIVE),
        };
        let (first, start) = (at, out.len());
        if let Probe::Entry {
            function,
            loops: false,
        } = probe
        {
            let number = Some(self.numbers[function]);
            put_gate(self.agent, self.gates, function, number, at, out);
        }
        let at = at + (out.len() - start) as u64;
        // A function that jumps back to its entry may have live data below the stack pointer there, or one that makes a system call in
        // its midst, and so may the one that a switch goes to: a context can be that of a signal's victim.
        let below_red_zone = matches!(
            probe,
            Probe::Entry { loops: true, .. } | Probe::Switch { .. } | Probe::Kernel { .. }
        );
        let at = if below_red_zone {
            out.extend_from_slice(&LOWER_STACK);
            at + 5
        } else {
            at
        };
        // The stubs and their copy of the agent share one region of less than 2 GiB.
        let displacement = (self.agent + routine).wrapping_sub(at + 5) as u32;
        out.push(opcode);
        out.extend_from_slice(&displacement.to_le_bytes());
        let number = match probe {
            Probe::Entry { function, .. }
            | Probe::Leaf { function }
            | Probe::GoEntry { function } => Some(self.numbers[function]),
            Probe::Kernel { function } => {
                Some(function.map_or(shm::NO_FUNCTION, |function| self.numbers[function]))
            }
            Probe::Switch {
                function,
                jumps,
                unwinds,
            } => Some(
                (self.numbers[function] & shm::SWITCH_FUNCTION)
                    | if jumps { shm::SWITCH_JUMPS } else { 0 }
                    | if unwinds { shm::SWITCH_UNWINDS } else { 0 },
            ),
            _ => None,
        };
        if let Some(number) = number {
            // nop dword ptr [rax + number]: the probe reads the number behind its return address
            out.extend_from_slice(&[0x0f, 0x1f, 0x80]);
            out.extend_from_slice(&number.to_le_bytes());
        }
        if below_red_zone {
            out.extend_from_slice(&RAISE_STACK);
        }
        if let Probe::Entry {
            function,
            loops: false,
        } = probe
            && let Some((_, kind)) = self.allocators.iter().find(|(f, _)| *f == function)
        {
            let at = first + (out.len() - start) as u64;
            let displacement = (self.agent + TW_ALLOC).wrapping_sub(at + 5) as u32;
            out.push(CALL);
            out.extend_from_slice(&displacement.to_le_bytes());
            out.extend_from_slice(&[0x0f, 0x1f, 0x80]);
            out.extend_from_slice(&kind.to_le_bytes());
        }
    }
}

const CALL: u8 = 0xe8;
/// lea rsp, [rsp - 128]
const LOWER_STACK: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
/// lea rsp, [rsp + 128]
const RAISE_STACK: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
const JMP: u8 = 0xe9;

#[cfg(test)]
mod tests {
    use super::*;

    /// The probes that can be rewritten (the agent's limits.rs): place, and that of the one without a clock.
    fn rewritten() -> Vec<(usize, usize)> {
        let words = IMAGE[symbol::TW_PROBES as usize..].chunks_exact(8);
        let half = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let pairs = words.map(|word| (half(word) as usize, half(&word[4..]) as usize));
        pairs.take_while(|pair| pair.0 != 0).collect()
    }

    #[test]
    fn every_probe_can_be_replaced_by_one_store() {
        const MOV: [u8; 5] = [0x48, 0x89, 0x44, 0x24, 0xf8];
        let probes = rewritten();
        for (probe, frozen) in &probes {
            assert_eq!(probe % 8, 0);
            if *frozen != 0 {
                assert_eq!(IMAGE[*probe..probe + 5], MOV, "mov [rsp - 8], rax");
            }
        }
        let has = |symbol: u64| probes.iter().any(|probe| probe.0 as u64 == symbol);
        use symbol::*;
        for called in [
            TW_ENTRY_T,
            TW_LEAF_T,
            TW_LEAF_CF,
            TW_RETURN_C,
            TW_EXIT_TFA,
            TW_TAIL_UNKNOWN_FS,
            TW_SWITCH,
            TW_KERNEL_S,
            TW_WATCH,
            TW_GATE,
            TW_BLOCKS_CLAIM,
            TW_JAVA_ENTRY,
            TW_JAVA_EXIT,
            TW_ALLOC,
            TW_GO_ENTRY_TSR,
            TW_GO_LEAVE_ANY,
            TW_GO_ARRIVE,
        ] {
            assert!(has(called), "{called:#x} is in the table");
        }
    }

    #[test]
    fn without_a_clock_no_probe_reads_it() {
        const RDTSC: [u8; 2] = [0x0f, 0x31];
        let probes = rewritten();
        let timed = probes.iter().filter(|probe| probe.1 != 0);
        for frozen in timed.map(|probe| probe.1) {
            // Up to the next probe.
            let ends = probes.iter().map(|probe| probe.0);
            let end = ends.filter(|end| *end > frozen).min();
            let end = end.unwrap_or(frozen + 512);
            let reads = IMAGE[frozen..end].windows(2).any(|pair| pair == RDTSC);
            assert!(!reads, "the probe at {frozen:#x}");
        }
    }
}
