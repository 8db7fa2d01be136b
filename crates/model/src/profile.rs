//! The profile as data: functions named once, and per thread the tree of contexts in which they
//! were called.

use crate::blocks::{BlockCounters, ModuleBlocks};
use crate::calls::Recorded;
use crate::counting::Counting;
use crate::ids::FuncId;
use crate::kernel::EntersKernel;
use crate::language::Language;
use crate::metrics::{Metric, Metrics, NodeMetrics};
use crate::samples::{SampleNode, SampledFunction, Sampling};
use crate::switched::Switched;
use crate::timeline::{Mark, Timeline};

/// Everything one recording found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    pub meta: Meta,
    pub modules: Vec<Module>,
    /// Referred to by index: [`Node::function`], [`Creator::function`].
    pub functions: Vec<Function>,
    pub processes: Vec<Process>,
    /// Where calls were made from, if contexts are told apart by that; referred to by
    /// [`Node::site`].
    pub sites: Vec<Site>,
    /// Calls that were recorded one by one.
    pub recorded: Recorded,
    /// Functions that were found but not patched, each with its reason.
    pub skipped: Vec<Skipped>,
    /// Functions whose probes were switched while they were counted, in the order of their numbers.
    pub switched: Vec<Switched>,
    /// Functions whose times come from samples, once those have been made use of, in the order of
    /// their numbers.
    pub sampled: Vec<SampledFunction>,
    /// Functions with system calls of their own, if those were counted, in the order of their
    /// numbers.
    pub enters_kernel: Vec<EntersKernel>,
    /// How often basic blocks ran, where those were counted; in the order of their modules.
    pub blocks: Vec<ModuleBlocks>,
    /// The model of a processor by which the costs of blocks are told, if they are.
    pub cycles_of: Option<String>,
    /// Where those counts are kept, in the catalog of a target that still runs. Never in a finished profile.
    pub block_counters: Vec<BlockCounters>,
    /// Checkpoints that were saved meanwhile.
    pub marks: Vec<Mark>,
    /// What the reader of a report must know about how the figures came about, one sentence each.
    pub notes: Vec<String>,
}

impl Profile {
    /// No block's cost is known any more.
    pub fn forget_costs(&mut self) {
        self.cycles_of = None;
        for block in self.blocks.iter_mut().flat_map(|own| &mut own.blocks) {
            block.cost = 0;
        }
    }

    /// What all contexts of all threads did.
    pub fn total_metrics(&self) -> Metrics {
        let threads = self.processes.iter().flat_map(|process| &process.threads);
        let totals: Vec<Metrics> = threads.map(|thread| thread.metrics.total()).collect();
        Metrics::total(&totals)
    }
}

/// How and when the recording was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meta {
    /// Version of thalweg that recorded.
    pub version: String,
    pub created_unix_ns: u64,
    pub duration_ns: u64,
    /// `false` after `--no-clock`: every time is 0 and no report shows one.
    pub timed: bool,
    /// Attached to a running process, as opposed to launched.
    pub attached: bool,
    pub command: Vec<String>,
    pub clock_hz: f64,
    pub overhead_ns_per_call: f64,
    pub memory_bytes: u64,
    pub memory_limit: u64,
    /// What was measured beside calls and time.
    pub metrics: Vec<Metric>,
    /// The figures that are called times are none, but those of this metric. Never so in a file.
    pub weighed_by: Option<Metric>,
    pub pruned: Pruned,
    /// What the probes cost on the machine that recorded, where it was calibrated.
    pub costs: Option<ProbeCosts>,
    /// The times of functions of which not every call was timed are estimates for all calls, as
    /// opposed to sums over those that were timed.
    pub estimated: bool,
    /// Where the stacks of threads were sampled on a timer.
    pub sampling: Option<Sampling>,
    /// How the metrics came about that the kernel counts.
    pub counting: Vec<Counting>,
    /// How long the target stood because of the profiler.
    pub held: Held,
}

impl Meta {
    /// How a metric was counted, if the kernel did that.
    pub fn counting_of(&self, metric: Metric) -> Option<&Counting> {
        self.counting.iter().find(|one| one.metric == metric)
    }
}

/// Contexts that were cut out of the trees while the target ran, because memory got short. Their
/// figures are in the `FOLDED` nodes of their functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub contexts: u64,
    pub calls: u64,
}

impl Pruned {
    pub fn plus(self, other: Pruned) -> Pruned {
        Pruned {
            contexts: self.contexts.saturating_add(other.contexts),
            calls: self.calls.saturating_add(other.calls),
        }
    }
}

/// How often and how long the profiler kept the target from running. Neither wall nor waiting has
/// any of it, but for waits of others of which it is not known that they were for what stood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// A process stood with all its threads: to be patched, or before its first instruction, while
    /// it was analysed.
    pub stops: u64,
    pub stopped_ns: u64,
    pub longest_stop_ns: u64,
    /// One thread waited: for loaded code to be patched, to become another program.
    pub gates: u64,
    pub gated_ns: u64,
    pub longest_gate_ns: u64,
    /// What was taken out of the waits of threads that waited for a process that stood.
    pub waited_for_ns: u64,
}

impl Held {
    pub fn plus(self, other: Held) -> Held {
        Held {
            stops: self.stops.saturating_add(other.stops),
            stopped_ns: self.stopped_ns.saturating_add(other.stopped_ns),
            longest_stop_ns: self.longest_stop_ns.max(other.longest_stop_ns),
            gates: self.gates.saturating_add(other.gates),
            gated_ns: self.gated_ns.saturating_add(other.gated_ns),
            longest_gate_ns: self.longest_gate_ns.max(other.longest_gate_ns),
            waited_for_ns: self.waited_for_ns.saturating_add(other.waited_for_ns),
        }
    }
}

/// That calibration has calls beside; the last is a chain, in which each instruction waits for the
/// one before.
pub const KINDS_OF_WORK: usize = 5;

/// What a probed call adds to the figures, in nanoseconds, beyond what the call itself costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProbeCosts {
    /// To the self of the function that is called.
    pub inner_ns: f64,
    /// To the self of its caller.
    pub outer_ns: f64,
    /// To the self of a function between its entry and its first call, and between its last
    /// callee's exit and its own, on top of both.
    pub joint_ns: f64,
    /// How much of all that may be wrong in a whole program: 0.1 is a tenth.
    pub error: f64,
    /// How much more in a single function, whose code may lend itself more or less to running
    /// beside a probe.
    pub spread: f64,
    /// To the self of the caller, on top, by the first call in a context.
    pub first_ns: f64,
    /// To the self of the caller, on top, by a call since whose predecessor so many other contexts
    /// and functions were visited that it is not in the nearest cache any more: (how many,
    /// nanoseconds), twice.
    pub far: [(f64, f64); 2],
    /// Of one sample of a thread's stack, to whatever it does. 0: not measured.
    pub sample_ns: f64,
    /// Of a call that is counted and not timed, and of one of a leaf that is counted at its entry
    /// alone. 0: not measured.
    pub counted_ns: f64,
    pub leaf_ns: f64,
    /// How much of these two may be wrong: 0.1 is a tenth.
    pub counted_error: f64,
    /// Of calls that are timed, and of calls that are only counted, beside work of each kind:
    /// nanoseconds of the program's own that a call is seen for, and how much more it takes without
    /// probes. All 0: not measured.
    pub hidden: [[(f64, f64); KINDS_OF_WORK]; 2],
    /// The figures of this profile are without it.
    pub taken_out: bool,
}

impl ProbeCosts {
    /// Of calls that cost so many times as much.
    pub fn times(self, factor: f64) -> ProbeCosts {
        ProbeCosts {
            inner_ns: self.inner_ns * factor,
            outer_ns: self.outer_ns * factor,
            joint_ns: self.joint_ns * factor,
            first_ns: self.first_ns * factor,
            far: self.far.map(|(distance, ns)| (distance, ns * factor)),
            counted_ns: self.counted_ns * factor,
            leaf_ns: self.leaf_ns * factor,
            ..self
        }
    }

    /// All numbers that it is made of.
    pub fn figures(&self) -> Vec<f64> {
        let [(near, near_ns), (far, far_ns)] = self.far;
        let mut figures = vec![
            self.inner_ns,
            self.outer_ns,
            self.joint_ns,
            self.error,
            self.spread,
            self.first_ns,
            near,
            near_ns,
            far,
            far_ns,
            self.sample_ns,
            self.counted_ns,
            self.leaf_ns,
            self.counted_error,
        ];
        let hidden = self.hidden.iter().flatten();
        figures.extend(hidden.flat_map(|&(seen, more)| [seen, more]));
        figures
    }
}

/// One ELF file that the target had mapped; of Python functions the source file, of Java methods
/// the class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// File name only: `libc.so.6`.
    pub name: String,
    pub path: String,
    /// Lower-case hex, or empty where the file has none.
    pub build_id: String,
    pub functions_total: u32,
    pub functions_patched: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Demangled, or `sub_1a2b0` where the module has no name for it.
    pub name: String,
    /// Index into [`Profile::modules`].
    pub module: u32,
    /// The module's own address, without the load bias; 0 where there is none, as for functions
    /// that are not machine code.
    pub address: u64,
    pub file: Option<String>,
    /// 0 when unknown.
    pub line: u32,
    pub language: Language,
    /// More than a tenth of all samples outside of probes were at one of its instructions: the program waits there.
    pub waits: bool,
    /// Some of its calls could not be told apart: what was counted is a lower bound.
    pub at_least: bool,
}

/// One program that a process ran. A process that becomes another program by exec is several of
/// these, with one id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub parent: Option<u32>,
    pub command: Vec<String>,
    pub threads: Vec<Thread>,
    /// Relative to the start of the recording.
    pub start_ns: u64,
    pub end_ns: u64,
    pub end: End,
}

/// How a process, or its use of one program, came to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Nobody saw it.
    #[default]
    Unknown,
    /// It went on after the recording.
    Running,
    Exited(u8),
    /// Killed by this signal.
    Killed(u8),
    /// It became another program.
    Replaced,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    pub tid: u32,
    pub name: String,
    pub created_by: Option<Creator>,
    /// Relative to the start of the recording.
    pub start_ns: u64,
    pub end_ns: u64,
    /// The calling-context tree, parents before children.
    pub nodes: Vec<Node>,
    /// What else the contexts did themselves, without their callees.
    pub metrics: NodeMetrics,
    /// The stacks that were sampled, parents before children.
    pub samples: Vec<SampleNode>,
    /// When it was on a processor, and what it waited for.
    pub timeline: Timeline,
    /// Calls that found no room in the tree and went to one node per function instead.
    pub folded_calls: u64,
    /// How many other threads, all but the last of them ended, the account stands for as well:
    /// beyond a bound ended threads keep no tree of their own. `tid` and `name` are then those of
    /// one of them.
    pub others: u64,
    /// What the kernel counted for it during the recording, where that was seen.
    pub kernel: Option<KernelCounts>,
}

/// The kernel's own counts of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Page faults without and with reading from a disk.
    pub minor_faults: u64,
    pub major_faults: u64,
    /// How often it left the processor: to wait, and because another was to run.
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

/// The thread, and where known the function, that started another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creator {
    pub pid: u32,
    pub tid: u32,
    /// Index into [`Profile::functions`].
    pub function: Option<FuncId>,
}

/// One calling context: a function, called by the chain of functions above it. Times are
/// nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Index in the same thread, always smaller than this node's own; `None` for a root.
    pub parent: Option<u32>,
    /// Index into [`Profile::functions`].
    pub function: FuncId,
    pub calls: u64,
    /// Time in the function itself, without its callees.
    pub self_ns: u64,
    /// Time in the function and everything it called.
    pub total_ns: u64,
    /// Wall time between entry and exit, waiting included. self and total are time on a processor.
    pub wall_ns: u64,
    /// Part of what it waited itself, without its callees: for input from a terminal.
    pub terminal: u64,
    /// Least and most time of a single call in the function itself; both 0 while no call has ended.
    pub min: u64,
    pub max: u64,
    /// How often the same function stands among the ancestors: 0 for the outermost.
    pub recursion: u32,
    /// Of `calls`, those that ended without a return: an exception, a longjmp or a cancellation
    /// went through them.
    pub unwound: u64,
    /// Of `calls`, those that were not timed. Unless times are estimated, they are in the self of
    /// whoever called.
    pub untimed: u64,
    pub flags: NodeFlags,
    /// Where the calls were made, if that was recorded and is known.
    pub site: Option<SiteId>,
}

/// A number of [`Profile::sites`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(std::num::NonZeroU32);

impl SiteId {
    /// `None` for the one index that no list of sites reaches.
    pub fn from_index(index: u32) -> Option<SiteId> {
        let number = index.checked_add(1)?;
        std::num::NonZeroU32::new(number).map(SiteId)
    }

    pub fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// A place in the code that calls functions or jumps to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The function that it is in and where: `parse+0x20`.
    pub name: String,
    /// Index into [`Profile::modules`].
    pub module: u32,
    /// Of the calling instruction, in the module; of its last byte where it could not be decoded.
    pub address: u64,
    pub file: Option<String>,
    /// 0 when unknown.
    pub line: u32,
    pub target: Target,
    /// A tail call: a jump, with no return to here.
    pub jump: bool,
}

impl Site {
    /// Whether it is in this function, as opposed to code between the function and its callee that
    /// is not counted.
    pub fn is_in(&self, function: &Function) -> bool {
        let offset = self.name.strip_prefix(&*function.name);
        self.module == function.module && offset.is_some_and(|offset| offset.starts_with("+0x"))
    }
}

/// How a site says what it calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    #[default]
    Unknown,
    /// By name: the instruction holds the address, or goes through the linkage table.
    Direct,
    /// By a pointer.
    Indirect,
}

/// What is special about a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFlags(u8);

impl NodeFlags {
    /// The function was on the thread's stack when thalweg attached; its entry was not seen.
    pub const ON_STACK_AT_ATTACH: NodeFlags = NodeFlags(1);
    /// Holds the calls of its function for which the tree had no room; it stands under no parent.
    pub const FOLDED: NodeFlags = NodeFlags(2);
    /// Was still running when the data was read.
    pub const OPEN: NodeFlags = NodeFlags(4);

    /// Its times are shares of what was counted above it, by samples at the thread's stack. Calls
    /// are exact where it has any, but that they were made in this context, and not in another one
    /// of the same function, is an estimate as well.
    pub const SAMPLED: NodeFlags = NodeFlags(8);

    /// Some of its callees are in folded nodes. On a folded node: some of those that it stands for
    /// had no caller of which that is known.
    pub const LOST_CALLEES: NodeFlags = NodeFlags(16);

    const KNOWN: u8 = 31;

    pub const fn empty() -> NodeFlags {
        NodeFlags(0)
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// `None` when a bit is set that this version gives no meaning.
    pub const fn from_bits(bits: u8) -> Option<NodeFlags> {
        if bits & !Self::KNOWN == 0 {
            Some(NodeFlags(bits))
        } else {
            None
        }
    }

    pub const fn contains(self, other: NodeFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for NodeFlags {
    type Output = NodeFlags;

    fn bitor(self, other: NodeFlags) -> NodeFlags {
        NodeFlags(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for NodeFlags {
    fn bitor_assign(&mut self, other: NodeFlags) {
        self.0 |= other.0;
    }
}

/// A function that could not or must not be patched, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    pub name: String,
    /// The module's file name.
    pub module: String,
    pub address: u64,
    pub reason: String,
}
