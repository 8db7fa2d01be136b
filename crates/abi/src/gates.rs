//! Gates: where a thread waits for the controller.

pub const MAX_GATES: usize = 64;

/// One thread that waits for the controller at a gated function.
///
/// The low two bits of `word` are a `GATE_` state, the others count how often the entry was taken, so that nobody takes
/// a late answer for his own. A waiter goes on as soon as `word` is not what it posted.
#[cfg_attr(
    not(freestanding),
    derive(zerocopy::FromBytes, zerocopy::Immutable, zerocopy::IntoBytes)
)]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// The futex word.
    pub word: u32,
    /// One of the `GATE_KIND_` values.
    pub kind: u32,
    /// As in the thread's slot, where it has one of its own; else what the process calls itself.
    pub pid: u32,
    pub tid: u32,
    /// Its number, `GATE_NO_FUNCTION` where it is not counted.
    pub function: u32,
    pub reserved: u32,
    /// rdi, rsi, rdx, rcx, r8, r9 at the function's entry.
    pub args: [u64; 6],
    /// Address of its return address.
    pub sp: u64,
}

pub const GATE_SIZE: u64 = 80;
pub const GATE_FREE: u32 = 0;
/// Being filled.
pub const GATE_TAKEN: u32 = 1;
pub const GATE_POSTED: u32 = 2;
pub const GATE_SERVED: u32 = 3;
pub const GATE_STATES: u32 = 3;
/// What is added to `word` for each new holder.
pub const GATE_TURN: u32 = 4;

/// CPython is about to ask whether somebody else evaluates: the agent gives its word back before. Nobody is waited for.
pub const GATE_KIND_EVALUATOR: u32 = 0;
/// The loader has changed its list of objects, or is about to (`_dl_debug_state`).
pub const GATE_KIND_LINK_MAP: u32 = 1;
/// About to become another program.
pub const GATE_KIND_EXEC: u32 = 2;
pub const GATE_KIND_CHECKPOINT: u32 = 3;
/// About to make a thread. Nobody is waited for: the agent notes who does.
pub const GATE_KIND_CLONE: u32 = 4;
pub const GATE_KIND_CLONE3: u32 = 5;
/// A fork child: with its slot, where children are counted; after `STRAY_EVENTS` events, where they are not.
pub const GATE_KIND_FORK_CHILD: u32 = 6;
/// As `GATE_KIND_EXEC`, with the program given by a directory and a path, or by a descriptor.
pub const GATE_KIND_EXEC_AT: u32 = 7;
pub const GATE_KIND_EXEC_FILE: u32 = 8;
/// `prctl` and `syscall`: the thread may be about to confine itself to a few system calls. Nobody is waited for.
pub const GATE_KIND_PRCTL: u32 = 9;
pub const GATE_KIND_SYSCALL: u32 = 10;
/// The same of `arch_prctl`, which sets the bases of segments.
pub const GATE_KIND_ARCH_PRCTL: u32 = 11;
/// A function with an instruction that sets the GS base: no probe runs after it.
pub const GATE_KIND_GS_BASE: u32 = 12;
/// Java's method probes (java.rs), no gates: what takes the place of their functions.
pub const GATE_KIND_JAVA_ENTRY: u32 = 13;
pub const GATE_KIND_JAVA_EXIT: u32 = 14;
/// Java methods are about to give their memory back. Nobody is waited for.
pub const GATE_KIND_JAVA_FREE: u32 = 15;

/// HotSpot's compiler is about to put the call of a method probe into code (java.rs): no gate.
pub const GATE_KIND_JAVA_COMPILE: u32 = 16;

/// A stub of a gate tells its kind and function in one word.
pub const GATE_KIND_SHIFT: u32 = 28;
pub const GATE_NO_FUNCTION: u32 = (1 << GATE_KIND_SHIFT) - 1;

/// How long a thread waits at a stretch, and how many such waits without a heartbeat tell it that nobody serves.
pub const GATE_WAIT_NS: u64 = 100_000_000;
pub const GATE_PATIENCE: u32 = 20;
/// After so many it goes on in any case: a controller may live and yet hang.
pub const GATE_LONGEST: u32 = 300;
/// `Header::gate_server` once a thread has waited in vain: nobody waits until the controller is back.
pub const GATE_DESERTED: u32 = u32::MAX;
