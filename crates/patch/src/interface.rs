//! What the planner gives to the controller: plans, probes, patches, and the reasons for what is left alone.

use std::fmt;

use crate::patch_bytes::PatchBytes;

/// What to do to one module. Addresses are the module's own (no load bias).
#[derive(Clone, Debug, Default)]
pub struct ModulePlan {
    /// Functions that get a probe at their entry and at every exit, in address order.
    pub functions: Vec<FunctionPlan>,
    /// Parts of planned functions that lie elsewhere (`foo.cold`); their exits are exits of the functions they belong to.
    pub fragments: Vec<FragmentPlan>,
    /// Selected functions that stay as they are.
    pub skipped: Vec<Skipped>,
    /// Functions with a probe before each of their system calls. Indices in `module.functions`, sorted.
    pub entering: Vec<usize>,
    /// System calls with a probe that looks whether the program limits itself.
    pub watching: Vec<u64>,
    pub(crate) stub_bytes: u64,
    /// Stubs of functions in this range are as far from the first stub, at least, as the functions are from its start: so the
    /// distance between a function and its stub is about the same for all of them.
    pub(crate) paced: Option<(u64, u64)>,
}

impl ModulePlan {
    /// No emission of this plan needs more bytes, as long as no probe is longer than [`MAX_PROBE_BYTES`].
    pub fn stub_size_bound(&self) -> u64 {
        self.stub_bytes
    }

    /// Adds a plan for other functions of the same module.
    pub fn add(&mut self, other: ModulePlan) {
        self.functions.extend(other.functions);
        self.functions.sort_by_key(|plan| plan.function);
        self.fragments.extend(other.fragments);
        self.skipped.extend(other.skipped);
        self.entering.extend(other.entering);
        self.watching.extend(other.watching);
        self.stub_bytes += other.stub_bytes;
        self.paced = self.paced.or(other.paced);
    }
}

/// The longest code a [`ProbeEncoder`] may produce for one probe.
pub const MAX_PROBE_BYTES: u64 = 40;
/// The same for a leaf's, with what stands before it.
pub const MAX_LEAF_BYTES: u64 = 144;

#[derive(Clone, Debug)]
pub struct FunctionPlan {
    /// Index in `module.functions`.
    pub function: usize,
    /// The probes must leave the arithmetic flags as they found them.
    pub keep_flags: bool,
    /// Calls nothing and is short: may be counted at its entry alone ([`ProbeEncoder::counts_leaf`]).
    pub leaf: bool,
    pub method: Method,
    /// How many exits (returns and tail jumps) have a probe, those in shared fragments not counted.
    pub exits: usize,
    /// Disjoint, in address order.
    pub windows: Vec<Window>,
    /// Functions and fragments whose patches have to be there as long as this function's are: it goes on in them, or has
    /// a springboard in bytes that they displaced. Indices in `module.functions`.
    pub needs: Vec<usize>,
    /// No emission of its windows is longer.
    pub stub_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct FragmentPlan {
    /// Index in `module.functions`.
    pub function: usize,
    pub keep_flags: bool,
    pub windows: Vec<Window>,
    /// What it goes on in, of the same kind.
    pub continues_in: Vec<usize>,
    /// In whose displaced bytes it has springboards.
    pub hosts: Vec<usize>,
}

/// The most invasive means that a function's plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Every patch is a 5-byte jump in the function's own bytes or the padding behind them.
    Direct,
    /// Some patch is a 2-byte jump to a 5-byte jump in bytes that nobody executes.
    Springboard,
    /// The entry's window ends with a call, which the stub performs with the original return address.
    CallMoved,
    /// Some branches run in a stub only to reach the copy of their target.
    Retargeted,
    /// The whole body runs in a stub.
    Relocated,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Direct => "direct",
            Method::Springboard => "springboard",
            Method::CallMoved => "call moved",
            Method::Retargeted => "retargeted",
            Method::Relocated => "relocated",
        })
    }
}

/// A run of instructions that executes in a stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where the text is patched.
    pub start: u64,
    /// End of the displaced instructions. The patch may reach into padding beyond it.
    pub end: u64,
    pub patch: PatchForm,
    /// Probes in the copy, in address order.
    pub events: Vec<Event>,
    /// A byte without meaning before the patch's jump, for the sake of a `Pun` right before this window.
    pub prefix: Option<u8>,
    /// Padding between displaced instructions, in address order: not copied.
    pub(crate) padding: Vec<(u64, u64)>,
    /// Place in the order of writing.
    pub(crate) rank: u32,
    /// From this byte of the patch on it has to be what was there before: somebody may go on there.
    pub(crate) keeps_from: Option<u8>,
}

impl Window {
    /// End of the bytes that change at `start`.
    pub fn patch_end(&self) -> u64 {
        self.start + self.patch.bytes() + u64::from(self.prefix.is_some())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchForm {
    /// `jmp rel32` to the stub.
    Near,
    /// `jmp rel8` to a `jmp rel32` at `springboard`.
    Short { springboard: u64 },
    /// The opcode of a `jmp rel8` to `springboard`: its displacement is the first byte of the next window's patch.
    Pun { springboard: u64 },
}

impl PatchForm {
    /// How many bytes change at the window's start, a prefix not counted.
    pub fn bytes(self) -> u64 {
        match self {
            PatchForm::Near => 5,
            PatchForm::Short { .. } => 2,
            PatchForm::Pun { .. } => 1,
        }
    }

    /// Where the `jmp rel32` stands that does not fit at the window's start.
    pub fn springboard(self) -> Option<u64> {
        match self {
            PatchForm::Near => None,
            PatchForm::Short { springboard } | PatchForm::Pun { springboard } => Some(springboard),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The instruction before whose copy the probe stands; the window's end for a function that runs on into the next.
    pub at: u64,
    pub probe: Probe,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// A call begins. `function` is the index in `module.functions`. With `loops` the function also jumps back here,
    /// which is no call: the run-time tells the two apart by the stack pointer.
    Entry {
        function: usize,
        loops: bool,
    },
    /// A call begins of a function without probes at its exits, which calls nothing. Not planned: what an `Entry` becomes.
    Leaf {
        function: usize,
    },
    /// Does its work and then executes the plain `ret` itself: nothing follows it.
    Return,
    /// Pops the frame, then falls through to `ret imm16`, a jump to a return thunk or a tail jump to code without probes.
    Exit,
    /// A tail jump to a function whose entry is probed follows: the frame stays, marked.
    TailMark,
    /// A tail jump whose target is known only now follows: its address has been stored at `[rsp-24]`.
    TailUnknown,
    /// The function may go on elsewhere than where it was called from: a return or, with `jumps`, an indirect jump follows.
    /// `unwinds`: further up the same stack; otherwise on any stack. May write to `[rsp-128-..., rsp-128)` only.
    Switch {
        function: usize,
        jumps: bool,
        unwinds: bool,
    },
    /// A system call follows, its number in eax: behind the last instruction of a window. rcx and r11 mean nothing there; the flags and
    /// what is below `rsp` do. `function` is whose it is, but in a part that several may share.
    Kernel {
        function: Option<usize>,
    },
    /// At the same place: the call may be one by which the program limits itself. The same holds.
    Watch,
    /// As `Entry` and `Return`, in Go code: r14 is the goroutine, whose stack may be small and may be moved.
    GoEntry {
        function: usize,
    },
    GoReturn,
    /// A goroutine is about to be taken off its thread. `own`: r14 is that goroutine.
    GoLeave {
        own: bool,
    },
    /// One is about to be put onto a thread, by a function that gets its `gobuf` on the stack.
    GoArrive,
}

/// Makes the machine code of probes. The controller has the real one, tests have theirs.
pub trait ProbeEncoder: Sync {
    /// Appends the code of `probe` as placed at address `at`: at most [`MAX_PROBE_BYTES`]. The code preserves every register, and
    /// with `keep_flags` the arithmetic flags; it may write to `[rsp-128, rsp)`.
    fn encode(&self, probe: Probe, keep_flags: bool, at: u64, out: &mut Vec<u8>);

    /// Appends what stands at `at`, right before the stub that begins with a leaf's probe, and is not run from above.
    fn lead(&self, _probe: Probe, _keep_flags: bool, _at: u64, _out: &mut Vec<u8>) {}

    /// Whether `function`, a leaf, is counted at its entry alone: then its exits stay as they are.
    fn counts_leaf(&self, _function: usize) -> bool {
        false
    }

    /// Whether it is not known yet where the code will run, but only how far the stubs are from it.
    fn is_movable(&self) -> bool {
        false
    }
}

/// Where a plan is to be realised.
pub struct Placement<'a> {
    /// What the loader added to the module's addresses.
    pub bias: u64,
    /// Where the stubs will be.
    pub stub_base: u64,
    pub encoder: &'a dyn ProbeEncoder,
}

/// Bytes to write, and how program counters translate. All addresses are absolute.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    /// To be written before any patch; in the order of their addresses, the first from `Placement::stub_base` on.
    pub stubs: Vec<Stubs>,
    /// **In the order in which they have to be written**, so that a writer that dies half way leaves a working program;
    /// undo in the reverse order. Each lies within one page, no two overlap.
    pub patches: Vec<Patch>,
    /// Original pc inside a displaced window -> the same place in the stub; sorted.
    pub moves: Vec<(u64, u64)>,
    /// Stub pc outside of probe code, or the pc of a springboard -> the original pc, valid once the original bytes are
    /// back; sorted.
    pub back: Vec<(u64, u64)>,
    /// Whose each patch is: the index in `module.functions` of its function or fragment. Parallel to `patches`.
    pub owners: Vec<usize>,
    /// Where the code of each entry probe ends that can be told not to time.
    pub entries: Vec<EntrySite>,
    /// Functions that have a probe at their entry alone. Indices in `module.functions`.
    pub leaves: Vec<usize>,
    /// Probes before jumps to functions that are probed themselves.
    pub tails: Vec<TailSite>,
}

/// Some stubs in a row.
#[derive(Clone, Debug, Default)]
pub struct Stubs {
    pub address: u64,
    pub bytes: Vec<u8>,
}

impl Emitted {
    /// The stubs from `address` on, to the end of their row.
    pub fn stubs_at(&self, address: u64) -> Option<&[u8]> {
        let next = self.stubs.partition_point(|row| row.address <= address);
        let row = &self.stubs[next.checked_sub(1)?];
        row.bytes
            .get(usize::try_from(address - row.address).ok()?..)
    }

    /// Where the last of them ends.
    pub fn stubs_end(&self) -> u64 {
        let last = self.stubs.last();
        last.map_or(0, |row| row.address + row.bytes.len() as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntrySite {
    /// Index in `module.functions`.
    pub function: usize,
    /// Behind the probe's code.
    pub end: u64,
    pub loops: bool,
}

/// A probe that expects an entry probe to follow has to become an exit when the target has none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailSite {
    /// Index of the target in `module.functions`.
    pub target: usize,
    /// The displacement of the call of the probe.
    pub address: u64,
    /// What it is for a probed target, and for one without a probe.
    pub probed: [u8; 4],
    pub unprobed: [u8; 4],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patch {
    pub address: u64,
    pub original: PatchBytes,
    pub replacement: PatchBytes,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    #[error(
        "the code at {from:#x} cannot reach {to:#x}: place the stubs within 2 GiB of the module"
    )]
    OutOfReach { from: u64, to: u64 },
    #[error(
        "the last byte of the jump at {from:#x} to {to:#x} has to stay what it is: place the stubs where it does"
    )]
    WrongDistance { from: u64, to: u64 },
    #[error("the plan does not belong to this module: no displaceable instruction at {address:#x}")]
    ForeignPlan { address: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Index in `module.functions`.
    pub function: usize,
    pub reason: SkipReason,
}

/// Why a function stays as it is. Addresses are the module's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkipReason {
    #[error("linker-made stub")]
    Plt,
    #[error("entry code")]
    EntryCode,
    #[error("{0}")]
    Untouchable(&'static str),
    #[error("has no code in the file")]
    NoCode,
    #[error("cannot decode the instruction at {at:#x}")]
    Undecodable { at: u64 },
    #[error("what stands at {at:#x} may be data")]
    MaybeData { at: u64 },
    #[error("instructions overlap at {at:#x}")]
    Overlapping { at: u64 },
    #[error("indirect jump at {at:#x} with unknown targets")]
    UnresolvedJump { at: u64 },
    #[error("return at {at:#x} does not leave the function")]
    OddReturn { at: u64 },
    #[error("jump at {at:#x} leaves with a frame on the stack")]
    OddJump { at: u64 },
    #[error("runs on into what follows it at {at:#x}")]
    FallsThrough { at: u64 },
    #[error("continues at {other:#x}, which cannot be probed: {why}")]
    Continuation { other: u64, why: Box<SkipReason> },
    #[error("was not asked for")]
    NotSelected,
    #[error("shares patched bytes with {other:#x}, which cannot be probed")]
    SharedBytes { other: u64 },
    #[error("no room for a jump at the entry {at:#x}")]
    NoRoomAtEntry { at: u64 },
    #[error("no room for a jump at the exit {at:#x}")]
    NoRoomAtExit { at: u64 },
}

impl SkipReason {
    /// A stable short word for tables and files.
    pub fn kind(&self) -> &'static str {
        match self {
            SkipReason::Plt => "plt",
            SkipReason::EntryCode => "entry-code",
            SkipReason::Untouchable(_) => "untouchable",
            SkipReason::NoCode => "no-code",
            SkipReason::Undecodable { .. } => "undecodable",
            SkipReason::MaybeData { .. } => "maybe-data",
            SkipReason::Overlapping { .. } => "overlapping",
            SkipReason::UnresolvedJump { .. } => "unresolved-jump",
            SkipReason::OddReturn { .. } => "odd-return",
            SkipReason::OddJump { .. } => "odd-jump",
            SkipReason::FallsThrough { .. } => "falls-through",
            SkipReason::Continuation { .. } => "continuation",
            SkipReason::NotSelected => "not-selected",
            SkipReason::SharedBytes { .. } => "shared-bytes",
            SkipReason::NoRoomAtEntry { .. } => "no-room-at-entry",
            SkipReason::NoRoomAtExit { .. } => "no-room-at-exit",
        }
    }
}
