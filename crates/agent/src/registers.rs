//! The registers of the probed function where single calls are recorded, as the probes of C's and of Go's convention have saved them.

use crate::record::{Saved, Vectors};
use thalweg_bytecode::Machine;

/// What a Go probe has saved on the agent's stack; the rest is where it was, below the goroutine's stack pointer.
#[repr(C)]
pub struct Goroutine {
    vectors: Vectors,
    rbx: u64,
    rbx_again: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    /// The goroutine's stack pointer at the probe.
    sp: u64,
}

/// The registers as the probed function, or its caller, has them at the probe.
pub enum Registers {
    C {
        saved: *const Saved,
        vectors: *const Vectors,
    },
    Go(*const Goroutine),
    /// Generated code, of which only its stack is known.
    None {
        sp: u64,
    },
}

/// From what C's probes have pushed up to the probe's own stack pointer.
const PROBE_FROM_SAVED: u64 = 216;

impl Registers {
    /// The lowest address of the target's own stack that is certainly there.
    pub fn stack(&self) -> u64 {
        match self {
            Registers::C { saved, .. } => *saved as u64,
            // SAFETY: the probe has just written it.
            Registers::Go(saved) => unsafe { (**saved).sp - 64 },
            Registers::None { sp } => *sp,
        }
    }

    /// As programs see them. `sp`: where the return address is.
    ///
    /// # Safety
    /// The probe that saved them must not have ended.
    pub unsafe fn machine(&self, sp: u64, at_exit: bool) -> Machine {
        let mut machine = Machine {
            sp,
            ..Machine::default()
        };
        // SAFETY: the probes have saved them, as told in probes.rs.
        unsafe {
            match self {
                Registers::C { saved, vectors } => {
                    let slot =
                        |below: u64| *((*saved as u64 + PROBE_FROM_SAVED - below) as *const u64);
                    let (saved, vectors) = (&**saved, &**vectors);
                    if at_exit {
                        machine.ret = [slot(8), slot(16)];
                        machine.ret_float = [vectors[0][0], vectors[1][0]];
                        return machine;
                    }
                    let ints = [saved.rdi, slot(32), slot(16), slot(24), saved.r8, saved.r9];
                    for (to, from) in machine.int.iter_mut().zip(ints) {
                        *to = from;
                    }
                    for (to, from) in machine.float.iter_mut().zip(vectors).take(8) {
                        *to = from[0];
                    }
                }
                Registers::None { .. } => {}
                Registers::Go(saved) => {
                    let saved = &**saved;
                    let slot = |below: u64| *((saved.sp - below) as *const u64);
                    // In the order in which Go's compiler uses them, for arguments and for results.
                    let ints = [
                        slot(8),
                        saved.rbx,
                        slot(24),
                        slot(56),
                        slot(32),
                        saved.r8,
                        saved.r9,
                        saved.r10,
                        slot(64),
                    ];
                    for (to, from) in machine.int.iter_mut().zip(ints) {
                        *to = from;
                    }
                    for (to, from) in machine.float.iter_mut().zip(&saved.vectors) {
                        *to = from[0];
                    }
                    if at_exit {
                        machine.ret = [machine.int[0], machine.int[1]];
                        machine.ret_float = [machine.float[0], machine.float[1]];
                    }
                }
            }
        }
        machine
    }
}
