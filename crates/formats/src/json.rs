//! The stable contract that other tools rely on: JSON, schema `thalweg.profile/1`.
//!
//! ```json
//! {"schema":"thalweg.profile/1","clock":"ns",
//!  "functions":[{"id":0,"name":"main","module":"fib","address":"0x1139","file":"fib.c","line":7}],
//!  "processes":[{"pid":41,"parent":null,"command":["./fib"],"threads":[
//!     {"tid":41,"name":"fib","created_by":null,
//!      "nodes":[{"id":0,"parent":null,"function":0,"calls":1,"self_ns":10,"total_ns":900,
//!                "wall_ns":900,"min_ns":10,"max_ns":10,"recursion":0}]}]}],
//!  "skipped":[{"name":"_start","module":"fib","reason":"entry code"}]}
//! ```
//!
//! Fields may be added, never changed. docs/export.md names them all; a test compares.
//!
//! Everything is written as it is met: the text of a million nodes never stands in memory.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use thalweg_analysis::Bounds;
use thalweg_model::{
    Creator, End, Ending, FuncId, KernelCounts, Metrics, NodeFlags, PER_CYCLE, Process, Profile,
    Target, Thread,
};

use crate::each::Each;

pub const SCHEMA: &str = "thalweg.profile/1";

/// Writes the whole profile and a final line break. Many small writes: give it something buffered.
pub fn write(profile: &Profile, mut out: impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut out, &Document::from_profile(profile))?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Serialize)]
struct Document<'a, M, F, P, B, S> {
    schema: &'static str,
    clock: &'static str,
    meta: Meta<'a>,
    modules: M,
    functions: F,
    processes: P,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<B>,
    skipped: S,
    notes: &'a [String],
}

impl Document<'_, (), (), (), (), ()> {
    fn from_profile(profile: &Profile) -> impl Serialize + '_ {
        Document {
            schema: SCHEMA,
            clock: "ns",
            meta: Meta::from_profile(profile),
            modules: Each(|| profile.modules.iter().map(Module::new)),
            functions: Each(|| {
                (0..)
                    .zip(&profile.functions)
                    .map(|(id, _)| Function::new(profile, id))
            }),
            processes: Each(|| profile.processes.iter().map(|p| process(profile, p))),
            blocks: (!profile.blocks.is_empty()).then_some(Each(|| {
                let modules = profile.blocks.iter();
                modules.flat_map(|module| module.blocks.iter().map(Block::new))
            })),
            skipped: Each(|| profile.skipped.iter().map(Skipped::new)),
            notes: &profile.notes,
        }
    }
}

#[derive(Serialize)]
struct Meta<'a> {
    version: &'a str,
    created_unix_ns: u64,
    duration_ns: u64,
    timed: bool,
    attached: bool,
    command: &'a [String],
    clock_hz: f64,
    overhead_ns_per_call: f64,
    memory_bytes: u64,
    memory_limit: u64,
    pruned_contexts: u64,
    pruned_calls: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling: Option<Sampling>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    counting: Vec<Counting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_of: Option<&'a str>,
    stopped_by_thalweg: Stopped,
}

/// How a metric came about that the kernel counts.
#[derive(Serialize)]
pub struct Counting {
    metric: &'static str,
    exact: bool,
    period: u64,
    in_kernel: bool,
    samples: u64,
    lost: u64,
    in_probes: u64,
    nobodys: u64,
    cut_short: u64,
}

impl Counting {
    pub fn from_profile(profile: &Profile) -> Vec<Counting> {
        let all = profile.meta.counting.iter();
        all.map(|one| Counting {
            metric: one.metric.name(),
            exact: one.is_exact(),
            period: one.period,
            in_kernel: one.in_kernel,
            samples: one.samples,
            lost: one.lost,
            in_probes: one.in_probes,
            nobodys: one.nobodys,
            cut_short: one.cut_short,
        })
        .collect()
    }
}

/// How long the profiler kept the program from running, which is in none of its figures.
#[derive(Serialize)]
pub struct Stopped {
    stops: u64,
    ns: u64,
    longest_ns: u64,
    gates: u64,
    gates_ns: u64,
    longest_gate_ns: u64,
    waited_for_ns: u64,
}

impl Stopped {
    pub fn from_profile(profile: &Profile) -> Stopped {
        let held = profile.meta.held;
        Stopped {
            stops: held.stops,
            ns: held.stopped_ns,
            longest_ns: held.longest_stop_ns,
            gates: held.gates,
            gates_ns: held.gated_ns,
            longest_gate_ns: held.longest_gate_ns,
            waited_for_ns: held.waited_for_ns,
        }
    }
}

/// How stacks were sampled, and what came of it.
#[derive(Serialize)]
pub struct Sampling {
    period_ns: u64,
    samples: u64,
    lost: u64,
    cut_short: u64,
    in_probes: u64,
    /// Whose times come from it.
    functions: u64,
}

impl Sampling {
    pub fn from_profile(profile: &Profile) -> Option<Sampling> {
        let sampling = profile.meta.sampling?;
        let seen = profile.sampled.iter().filter(|one| one.on_stack > 0);
        Some(Sampling {
            period_ns: sampling.period_ns,
            samples: sampling.samples,
            lost: sampling.lost,
            cut_short: sampling.cut_short,
            in_probes: sampling.in_probes,
            functions: seen.count() as u64,
        })
    }
}

impl Meta<'_> {
    fn from_profile(profile: &Profile) -> Meta<'_> {
        let meta = &profile.meta;
        Meta {
            version: &meta.version,
            created_unix_ns: meta.created_unix_ns,
            duration_ns: meta.duration_ns,
            timed: meta.timed,
            attached: meta.attached,
            command: &meta.command,
            clock_hz: meta.clock_hz,
            overhead_ns_per_call: meta.overhead_ns_per_call,
            memory_bytes: meta.memory_bytes,
            memory_limit: meta.memory_limit,
            pruned_contexts: meta.pruned.contexts,
            pruned_calls: meta.pruned.calls,
            sampling: Sampling::from_profile(profile),
            counting: Counting::from_profile(profile),
            cycles_of: profile.cycles_of.as_deref(),
            stopped_by_thalweg: Stopped::from_profile(profile),
        }
    }
}

#[derive(Serialize)]
struct Module<'a> {
    name: &'a str,
    path: &'a str,
    build_id: Option<&'a str>,
    functions_total: u32,
    functions_patched: u32,
}

impl Module<'_> {
    fn new(module: &thalweg_model::Module) -> Module<'_> {
        Module {
            name: &module.name,
            path: &module.path,
            build_id: Some(module.build_id.as_str()).filter(|id| !id.is_empty()),
            functions_total: module.functions_total,
            functions_patched: module.functions_patched,
        }
    }
}

#[derive(Serialize)]
struct Function<'a> {
    id: u32,
    name: &'a str,
    module: &'a str,
    address: Address,
    file: Option<&'a str>,
    line: Option<u32>,
    language: &'static str,
}

impl Function<'_> {
    fn new(profile: &Profile, id: u32) -> Function<'_> {
        let function = &profile.functions[id as usize];
        Function {
            id,
            name: &function.name,
            module: &profile.modules[function.module as usize].name,
            address: Address(function.address),
            file: function.file.as_deref(),
            line: Some(function.line).filter(|&line| line > 0),
            language: function.language.name(),
        }
    }
}

/// As text, since JSON's numbers are floats to many readers.
struct Address(u64);

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

fn process<'a>(profile: &'a Profile, process: &'a Process) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct Wire<'a, T> {
        pid: u32,
        parent: Option<u32>,
        command: &'a [String],
        start_ns: u64,
        end_ns: u64,
        ended: Ended,
        threads: T,
    }
    Wire {
        pid: process.pid,
        parent: process.parent,
        command: &process.command,
        start_ns: process.start_ns,
        end_ns: process.end_ns,
        ended: Ended::from_end(process.end),
        threads: Each(move || process.threads.iter().map(|t| thread(profile, t))),
    }
}

/// `{"how":"exited","status":0}`, `{"how":"killed","signal":9}`, or `how` alone.
#[derive(Serialize)]
struct Ended {
    how: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<u8>,
}

impl Ended {
    fn from_end(end: End) -> Ended {
        let (how, status, signal) = match end {
            End::Unknown => ("unknown", None, None),
            End::Running => ("running", None, None),
            End::Exited(status) => ("exited", Some(status), None),
            End::Killed(signal) => ("killed", None, Some(signal)),
            End::Replaced => ("replaced", None, None),
        };
        Ended {
            how,
            status,
            signal,
        }
    }
}

fn thread<'a>(profile: &'a Profile, thread: &'a Thread) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct Wire<'a, N> {
        tid: u32,
        name: &'a str,
        created_by: Option<CreatedBy>,
        start_ns: u64,
        end_ns: u64,
        folded_calls: u64,
        threads: u64,
        /// What the kernel counted for it.
        #[serde(skip_serializing_if = "Option::is_none")]
        kernel: Option<Counted>,
        nodes: N,
    }
    let at_least = Bounds::from_profile(profile).contexts(&thread.nodes);
    Wire {
        tid: thread.tid,
        name: &thread.name,
        created_by: thread.created_by.map(CreatedBy::new),
        start_ns: thread.start_ns,
        end_ns: thread.end_ns,
        folded_calls: thread.folded_calls,
        threads: thread.others.saturating_add(1),
        kernel: thread.kernel.map(Counted::new),
        nodes: Each(move || {
            let nodes = (0..).zip(&thread.nodes).zip(at_least.clone());
            nodes.map(|((id, node), calls_at_least)| Node {
                calls_at_least,
                ..Node::new(profile, id, node, thread.metrics.at(id))
            })
        }),
    }
}

#[derive(Serialize)]
struct Counted {
    minor_faults: u64,
    major_faults: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl Counted {
    fn new(counts: KernelCounts) -> Counted {
        Counted {
            minor_faults: counts.minor_faults,
            major_faults: counts.major_faults,
            voluntary_switches: counts.voluntary_switches,
            involuntary_switches: counts.involuntary_switches,
        }
    }
}

#[derive(Serialize)]
struct CreatedBy {
    pid: u32,
    tid: u32,
    function: Option<FuncId>,
}

impl CreatedBy {
    fn new(creator: Creator) -> CreatedBy {
        CreatedBy {
            pid: creator.pid,
            tid: creator.tid,
            function: creator.function,
        }
    }
}

#[derive(Serialize)]
struct Node<'a> {
    id: u32,
    parent: Option<u32>,
    function: FuncId,
    calls: u64,
    /// Its function, or one above it, was off for a while: there may have been more calls.
    #[serde(skip_serializing_if = "is_false")]
    calls_at_least: bool,
    self_ns: u64,
    total_ns: u64,
    wall_ns: u64,
    min_ns: u64,
    max_ns: u64,
    recursion: u32,
    /// Of what it waited for itself: for a terminal's input.
    #[serde(skip_serializing_if = "is_zero")]
    terminal_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    unwound: u64,
    #[serde(skip_serializing_if = "is_zero")]
    untimed: u64,
    #[serde(skip_serializing_if = "is_false")]
    on_stack_at_attach: bool,
    #[serde(skip_serializing_if = "is_false")]
    folded: bool,
    #[serde(skip_serializing_if = "is_false")]
    open: bool,
    #[serde(skip_serializing_if = "is_false")]
    sampled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site_file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site_line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indirect: Option<u64>,
    #[serde(skip_serializing_if = "is_false")]
    tail: bool,
    #[serde(skip_serializing_if = "Named::is_empty")]
    metrics: Named,
}

/// Metrics by their names, those that are not 0.
pub struct Named(pub Metrics);

impl Named {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(metric, value)| (metric.name(), value)))
    }
}

impl<'a> Node<'a> {
    fn new(
        profile: &'a Profile,
        id: u32,
        node: &thalweg_model::Node,
        metrics: &Metrics,
    ) -> Node<'a> {
        let site = node.site.map(|site| &profile.sites[site.index() as usize]);
        let made = |target| {
            site.filter(|site| site.target == target)
                .map(|_| node.calls)
        };
        Node {
            id,
            parent: node.parent,
            function: node.function,
            calls: node.calls,
            calls_at_least: false,
            self_ns: node.self_ns,
            total_ns: node.total_ns,
            wall_ns: node.wall_ns,
            min_ns: node.min,
            max_ns: node.max,
            recursion: node.recursion,
            terminal_ns: node.terminal,
            unwound: node.unwound,
            untimed: node.untimed,
            on_stack_at_attach: node.flags.contains(NodeFlags::ON_STACK_AT_ATTACH),
            folded: node.flags.contains(NodeFlags::FOLDED),
            open: node.flags.contains(NodeFlags::OPEN),
            sampled: node.flags.contains(NodeFlags::SAMPLED),
            site: site.map(|site| site.name.as_str()),
            site_file: site.and_then(|site| site.file.as_deref()),
            site_line: site.map(|site| site.line).filter(|&line| line > 0),
            direct: made(Target::Direct),
            indirect: made(Target::Indirect),
            tail: site.is_some_and(|site| site.jump),
            metrics: Named(*metrics),
        }
    }
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A basic block, in a function of whose module its address is.
#[derive(Serialize)]
struct Block {
    function: FuncId,
    address: Address,
    bytes: u32,
    instructions: u32,
    executions: u64,
    ending: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_taken: Option<u64>,
}

impl Block {
    fn new(block: &thalweg_model::Block) -> Block {
        let is_branch = matches!(block.ending, Ending::Branch(_));
        Block {
            function: block.function,
            address: Address(block.start),
            bytes: block.bytes,
            instructions: block.instructions,
            executions: block.executions,
            ending: block.ending.name(),
            cycles: (block.cost > 0).then(|| f64::from(block.cost) / f64::from(PER_CYCLE)),
            target: block.ending.target().map(Address),
            taken: is_branch.then_some(block.taken()),
            not_taken: is_branch.then_some(block.not_taken),
        }
    }
}

#[derive(Serialize)]
struct Skipped<'a> {
    name: &'a str,
    module: &'a str,
    address: Address,
    reason: &'a str,
}

impl Skipped<'_> {
    fn new(skipped: &thalweg_model::Skipped) -> Skipped<'_> {
        Skipped {
            name: &skipped.name,
            module: &skipped.module,
            address: Address(skipped.address),
            reason: &skipped.reason,
        }
    }
}
