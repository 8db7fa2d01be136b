//! The patch planner: which bytes of a module's text change, and what the stubs hold.
//!
//! Second station of the way of the data: `Module` (from the symbols crate) -> `plan` -> `ModulePlan` -> `emit` -> bytes that
//! the controller writes. Bytes in, bytes out: nothing here touches a process.
//!
//! A function's plan is a set of disjoint *windows*. A window is a run of consecutive instructions `[start, end)` that is
//! copied into a stub, with probes inserted; the text at `start` gets a jump to that stub:
//!
//! ```text
//!   before                         after                         stub
//!   f:   push rbp                  f:   jmp stub ------------>   entry probe
//!        mov  rbp, rsp                  (dead bytes)             push rbp
//!        sub  rsp, 32                                            mov  rbp, rsp
//!   L:   ...                       L:   ...         <---------   sub  rsp, 32 ; jmp L
//! ```
#![forbid(unsafe_code)]

mod callers;
mod clone_sites;
mod code_set;
mod emit;
mod entering;
mod flags;
mod flow;
mod go;
mod helper_thread;
mod image;
mod insn;
mod interface;
mod kernel;
mod leaf;
mod limiting;
mod patch_bytes;
mod plan;
mod pun;
mod relocate;
mod solve;
mod space;
mod store;
mod targets;
pub mod verify;

/// What is known of a module's code, for whoever plans something else with it.
pub mod code {
    pub use crate::flags::read_before_set;
    pub use crate::image::Image;
    pub use crate::insn::{Flow, Insn, decode_one, decoder, only_nops};
    pub use crate::relocate::{Piece, call_to_jump, condition, copy, count_branch};
    pub use crate::space::in_one_page;
    pub use crate::targets::{ARITHMETIC, Targets, collect};
}

pub use callers::{Callers, CallingInsn, Reach};
pub use clone_sites::{CloneKind, clone_sites, plan_clone_sites};
pub use emit::emit;
pub use go::{GoPlan, plan_go};
pub use helper_thread::HelperThread;
pub use interface::{
    EmitError, Emitted, EntrySite, Event, FragmentPlan, FunctionPlan, MAX_LEAF_BYTES,
    MAX_PROBE_BYTES, Method, ModulePlan, Patch, PatchForm, Placement, Probe, ProbeEncoder,
    SkipReason, Skipped, Stubs, TailSite, Window,
};
pub use kernel::{EntersKernel, Made, enters_kernel};
pub use limiting::{Watched, set_gs_base, watched};
pub use patch_bytes::PatchBytes;
pub use plan::{plan, plan_entering, plan_sites, plan_watching};
pub use verify::verify;
