//! Profiles to try the file format on: arbitrary ones, and large ones that look like real trees.
#![allow(dead_code)]

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use thalweg_model::{
    Block, BlockCounters, Call, CallEnd, CallValue, Counting, Creator, End, Ending, EntersKernel,
    FuncId, Function, Held, KernelCounts, Language, Made, Meta, Metric, Module, ModuleBlocks, Node,
    NodeFlags, NodeMetrics, NotTaken, ProbeCosts, ProbeState, Process, Profile, Pruned, Rule,
    SampleNode, SampledFunction, Sampling, Site, SiteId, Skipped, Switched, SystemCall, Target,
    Thread, TimedSample, Timeline, Wait, WaitsOf,
};

/// Any profile that the types and `validate` allow, however senseless its figures.
pub fn any_profile() -> impl Strategy<Value = Profile> {
    (0usize..4, 0usize..6)
        .prop_flat_map(|(modules, functions)| {
            let functions = if modules == 0 { 0 } else { functions };
            (
                any_meta(),
                vec(any_module(), modules),
                vec(any_function(modules as u32), functions),
                vec(any_process(functions as u32), 0..3),
                vec(any_skipped(), 0..4),
                vec(".*", 0..3),
            )
        })
        .prop_map(|(meta, modules, functions, processes, skipped, notes)| {
            let states = [
                ProbeState::Timed,
                ProbeState::Sampled,
                ProbeState::Counted,
                ProbeState::Off,
            ];
            let mut profile = Profile {
                switched: (0..functions.len() as u32)
                    .filter(|function| function % 2 == skipped.len() as u32 % 2)
                    .map(|function| Switched {
                        function: FuncId(function),
                        state: states[function as usize % states.len()],
                        off_ns: u64::from(function) << 33,
                        changes: function.into(),
                    })
                    .collect(),
                sampled: (0..functions.len() as u32)
                    .filter(|function| function % 3 == skipped.len() as u32 % 3)
                    .map(|function| SampledFunction {
                        function: FuncId(function),
                        own: function.into(),
                        on_stack: u64::from(function) << 20,
                        error_ns: u64::MAX - u64::from(function),
                        total_error_ns: 1 << function,
                        through_ns: u64::from(function) << 7,
                    })
                    .collect(),
                enters_kernel: (0..functions.len() as u32)
                    .filter(|function| function % 2 == notes.len() as u32 % 2)
                    .map(|function| EntersKernel {
                        function: FuncId(function),
                        made: match function % 4 {
                            0 => Made::Between(function, Some(u32::MAX).filter(|_| function > 4)),
                            1 => Made::Unknown,
                            2 => Made::Counted(vec![(function, u64::MAX), (511, 1)]),
                            _ => Made::Each(vec![
                                SystemCall {
                                    number: None,
                                    times: function,
                                },
                                SystemCall {
                                    number: Some(function.wrapping_neg()),
                                    times: 1,
                                },
                            ]),
                        },
                    })
                    .collect(),
                blocks: Vec::new(),
                block_counters: Vec::new(),
                cycles_of: None,
                marks: Vec::new(),
                meta,
                modules,
                functions,
                processes,
                recorded: Default::default(),
                sites: Vec::new(),
                skipped,
                notes,
            };
            if profile.notes.len() == 1 {
                add_sites(&mut profile);
            }
            if profile.notes.len() == 2 {
                add_calls(&mut profile);
            }
            add_metrics(&mut profile);
            add_blocks(&mut profile);
            if profile.meta.sampling.is_some() {
                add_samples(&mut profile);
            }
            profile
        })
}

/// For most contexts a call like it, each by the call before it, with values and every kind of end.
pub fn add_calls(profile: &mut Profile) {
    let ends = [
        CallEnd::Returned,
        CallEnd::Unwound,
        CallEnd::Suspended,
        CallEnd::ThreadEnded,
        CallEnd::Open,
        CallEnd::Lost,
    ];
    let recorded = &mut profile.recorded;
    recorded.rules = vec![Rule {
        text: "query: duration > 5ms".into(),
        kept: 3,
    }];
    recorded.names = vec!["sql".into()];
    let nodes = profile.processes.iter().flat_map(|p| &p.threads);
    for (index, node) in (0..).zip(nodes.flat_map(|thread| &thread.nodes)) {
        let json = format!("\"select {index}\"");
        let value = CallValue {
            name: 0,
            at_entry: node.calls % 3 == 0,
            json: &json,
        };
        let values = std::iter::repeat_n(value, node.calls as usize % 3);
        let values = recorded.values.add(values);
        recorded.calls.push(Call {
            id: node.calls,
            parent: index_before(index),
            function: node.function,
            rule: (node.calls % 2 == 1).then_some(0),
            pid: node.recursion,
            tid: index,
            request: node.max,
            entry_ns: node.self_ns,
            exit_ns: node.total_ns,
            self_ns: node.min,
            waited_ns: node.wall_ns,
            end: ends[node.calls as usize % ends.len()],
            values,
        });
    }
}

fn index_before(index: u32) -> Option<u32> {
    index.checked_sub(1)
}

/// Some in each function, of every kind.
fn add_blocks(profile: &mut Profile) {
    let endings = |n: u64| {
        [
            Ending::Falls,
            Ending::Jump(n),
            Ending::Branch(u64::MAX - n),
            Ending::Computed,
            Ending::Return,
            Ending::Call(n << 32),
            Ending::CallComputed,
            Ending::SystemCall,
            Ending::Stop,
        ]
    };
    for module in 0..profile.modules.len() as u32 {
        let own = (0..).zip(&profile.functions);
        let own: Vec<u32> = own
            .filter(|(_, f)| f.module == module)
            .map(|(n, _): (u32, _)| n)
            .collect();
        let blocks = own.iter().cycle().take(own.len() * 9);
        let blocks = (0u64..).zip(blocks).map(|(n, &function)| {
            let ending = endings(n)[n as usize % 9];
            Block {
                function: FuncId(function),
                start: n << 20,
                bytes: 3 << n.min(20),
                instructions: n as u32,
                ending,
                executions: u64::MAX >> n.min(60),
                not_taken: match ending {
                    Ending::Branch(_) => n,
                    _ => 0,
                },
                cost: u32::MAX >> n.min(30),
            }
        });
        let blocks: Vec<Block> = blocks.collect();
        if !blocks.is_empty() {
            profile.blocks.push(ModuleBlocks { module, blocks });
            profile.block_counters.push(BlockCounters {
                first: module,
                not_taken: vec![
                    NotTaken::BlockBehind,
                    NotTaken::AllButTarget,
                    NotTaken::Counter(u32::MAX),
                ],
            });
        }
    }
    if !profile.blocks.is_empty() {
        profile.cycles_of = Some("zen4".into());
    }
}

/// Of each metric some contexts have something.
fn add_metrics(profile: &mut Profile) {
    let metrics = profile.meta.metrics.clone();
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    for thread in threads {
        for (index, node) in (0..).zip(&thread.nodes) {
            for (shift, &metric) in metrics.iter().enumerate() {
                if node.calls >> shift & 1 != 0 {
                    thread.metrics.set(index, metric, node.self_ns >> shift);
                }
            }
        }
    }
}

/// Stacks like the contexts of every other thread.
fn add_samples(profile: &mut Profile) {
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    for thread in threads.filter(|thread| thread.folded_calls % 2 == 0) {
        let frames = thread.nodes.iter().map(|node| SampleNode {
            parent: node.parent,
            function: node.function,
            counted: node.self_ns % 2 == 0,
            own: node.total_ns,
        });
        thread.samples = frames.collect();
        let seen = (0..).zip(&thread.samples).map(|(index, node)| TimedSample {
            at_ns: u64::from(index) * 1000 + node.own % 1000,
            sample: (index % 3 > 0).then_some(index),
        });
        thread.timeline = Timeline {
            period_ns: 1000,
            samples: seen.collect(),
            waits: vec![Wait {
                start_ns: 7,
                end_ns: 70_000,
                system_call: Some(202),
                of: WaitsOf::Pipe,
            }],
        };
    }
}

/// One in each function, and most contexts called from one of them.
fn add_sites(profile: &mut Profile) {
    let sites = profile.functions.iter().map(|function| Site {
        name: format!("{}+0x20", function.name),
        module: function.module,
        address: function.address.wrapping_add(0x20),
        file: function.file.clone(),
        line: function.line / 2,
        target: [Target::Unknown, Target::Direct, Target::Indirect][function.line as usize % 3],
        jump: function.line % 2 == 1,
    });
    profile.sites = sites.collect();
    let count = profile.sites.len() as u32;
    let threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    for node in threads.flat_map(|thread| &mut thread.nodes) {
        node.site = SiteId::from_index((node.calls % 7) as u32).filter(|id| id.index() < count);
    }
}

fn any_meta() -> impl Strategy<Value = Meta> {
    (
        ".*",
        any::<(u64, u64, bool, bool, u64, u64)>(),
        vec(".*", 0..4),
        -1e300..1e300f64,
        0.0..1e9f64,
    )
        .prop_map(
            |(version, numbers, command, clock_hz, overhead_ns_per_call)| Meta {
                version,
                created_unix_ns: numbers.0,
                duration_ns: numbers.1,
                timed: numbers.2,
                attached: numbers.3,
                command,
                clock_hz,
                overhead_ns_per_call,
                memory_bytes: numbers.4,
                memory_limit: numbers.5,
                held: Held {
                    stops: numbers.5,
                    stopped_ns: numbers.0,
                    longest_stop_ns: numbers.1,
                    gates: numbers.4,
                    gated_ns: 3,
                    longest_gate_ns: 2,
                    waited_for_ns: numbers.0,
                },
                pruned: Pruned {
                    contexts: numbers.0,
                    calls: numbers.4,
                },
                costs: numbers.2.then_some(ProbeCosts {
                    inner_ns: overhead_ns_per_call,
                    outer_ns: clock_hz,
                    joint_ns: -1.5,
                    error: 0.1,
                    spread: 0.2,
                    first_ns: clock_hz,
                    far: [(512.0, 2.5), (1024.0, overhead_ns_per_call)],
                    sample_ns: 14e3,
                    counted_ns: 2.5,
                    leaf_ns: clock_hz,
                    counted_error: 0.3,
                    hidden: [[(1.5, overhead_ns_per_call); 5], [(clock_hz, 0.5); 5]],
                    taken_out: numbers.3,
                }),
                metrics: match numbers.3 {
                    true => Metric::ALL.to_vec(),
                    false => Vec::new(),
                },
                weighed_by: None,
                estimated: numbers.3,
                sampling: numbers.2.then_some(Sampling {
                    period_ns: numbers.0,
                    samples: numbers.1,
                    lost: numbers.4,
                    cut_short: numbers.5,
                    in_probes: numbers.0 / 3,
                }),
                counting: match numbers.3 {
                    true => vec![Counting {
                        metric: Metric::Faults,
                        period: numbers.0,
                        in_kernel: numbers.2,
                        samples: numbers.1,
                        lost: numbers.4,
                        in_probes: numbers.5,
                        nobodys: numbers.0 / 3,
                        cut_short: numbers.1 / 3,
                    }],
                    false => Vec::new(),
                },
            },
        )
}

fn any_module() -> impl Strategy<Value = Module> {
    (".*", ".*", "[0-9a-f]{0,40}", any::<(u32, u32)>()).prop_map(|(name, path, build_id, n)| {
        Module {
            name,
            path,
            build_id,
            functions_total: n.0,
            functions_patched: n.1,
        }
    })
}

fn any_language() -> impl Strategy<Value = Language> {
    proptest::sample::select(vec![
        Language::Native,
        Language::Native,
        Language::Go,
        Language::Python,
        Language::Java,
    ])
}

fn any_function(modules: u32) -> impl Strategy<Value = Function> {
    (
        ".*",
        0..modules.max(1),
        any::<u64>(),
        option::of(".*"),
        any::<u32>(),
        any_language(),
    )
        .prop_map(|(name, module, address, file, line, language)| Function {
            name,
            module,
            address,
            file,
            line,
            language,
            waits: line.is_multiple_of(3),
            at_least: line.is_multiple_of(5),
        })
}

fn any_process(functions: u32) -> impl Strategy<Value = Process> {
    (
        any::<u32>(),
        option::of(any::<u32>()),
        vec(".*", 0..3),
        vec(any_thread(functions), 0..3),
        any::<(u64, u64)>(),
        any_end(),
    )
        .prop_map(|(pid, parent, command, threads, times, end)| Process {
            pid,
            parent,
            command,
            threads,
            start_ns: times.0,
            end_ns: times.1,
            end,
        })
}

fn any_end() -> impl Strategy<Value = End> {
    (0..5u8, any::<u8>()).prop_map(|(how, detail)| match how {
        0 => End::Unknown,
        1 => End::Running,
        2 => End::Exited(detail),
        3 => End::Killed(detail),
        _ => End::Replaced,
    })
}

fn any_thread(functions: u32) -> impl Strategy<Value = Thread> {
    let node_count = if functions == 0 { 0..1usize } else { 0..40 };
    let function = 0..functions.max(1);
    (
        any::<(u32, u64, u64, u64)>(),
        ".*",
        option::of((any::<(u32, u32)>(), option::of(function.clone()))),
        vec(
            (
                any::<Option<u32>>(),
                function,
                any_metrics(),
                any::<u32>(),
                0u8..16,
            ),
            node_count,
        ),
    )
        .prop_map(move |(numbers, name, creator, nodes)| Thread {
            tid: numbers.0,
            name,
            created_by: creator.map(|((pid, tid), function)| Creator {
                pid,
                tid,
                function: function.filter(|_| functions > 0).map(FuncId),
            }),
            start_ns: numbers.1,
            end_ns: numbers.2,
            metrics: NodeMetrics::default(),
            samples: Vec::new(),
            timeline: Timeline::default(),
            folded_calls: numbers.3,
            others: numbers.3 & 3,
            kernel: (numbers.1 & 1 == 1).then_some(KernelCounts {
                minor_faults: numbers.1,
                major_faults: numbers.2,
                voluntary_switches: numbers.3,
                involuntary_switches: numbers.3 / 2,
            }),
            nodes: nodes
                .into_iter()
                .enumerate()
                .map(|(index, (parent, function, m, recursion, flags))| Node {
                    parent: parent
                        .filter(|_| index > 0)
                        .map(|parent| parent % index.max(1) as u32),
                    function: FuncId(function),
                    calls: m.0,
                    self_ns: m.1,
                    total_ns: m.2,
                    wall_ns: m.3,
                    min: m.4,
                    max: m.5,
                    recursion,
                    terminal: m.4 % 3,
                    unwound: m.5 % 3,
                    untimed: m.3 % 3,
                    flags: NodeFlags::from_bits(flags).unwrap(),
                    site: None,
                })
                .collect(),
        })
}

/// Small and huge figures alike: both ends of the varints.
fn any_metrics() -> impl Strategy<Value = (u64, u64, u64, u64, u64, u64)> {
    let any_size = || prop_oneof![0..300u64, any::<u64>(), Just(u64::MAX)];
    (
        any_size(),
        any_size(),
        any_size(),
        any_size(),
        any_size(),
        any_size(),
    )
}

fn any_skipped() -> impl Strategy<Value = Skipped> {
    (".*", ".*", any::<u64>(), ".*").prop_map(|(name, module, address, reason)| Skipped {
        name,
        module,
        address,
        reason,
    })
}

/// A tree as a program makes one: call counts over five decades, times that add up, recursion,
/// 3,000 functions.
pub fn realistic(node_count: usize) -> Profile {
    let mut state = 88172645463325252u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let functions = 3000;
    let mut nodes: Vec<Node> = Vec::with_capacity(node_count);
    for index in 0..node_count {
        let parent = match index {
            0 => None,
            _ => Some((index - 1 - random(index.min(30) as u64) as usize) as u32),
        };
        let calls = 1 + random(10).pow(1 + random(5) as u32) / 9;
        let mean = 20 + random(10).pow(1 + random(6) as u32);
        let spread = |r: u64| if calls == 1 { 0 } else { r };
        let function = match parent {
            Some(parent) if random(20) == 0 => nodes[parent as usize].function,
            _ => FuncId((random(60) * random(50)) as u32),
        };
        let recursion = match parent.map(|parent| nodes[parent as usize]) {
            Some(parent) if parent.function == function => parent.recursion + 1,
            _ => 0,
        };
        nodes.push(Node {
            parent,
            function,
            calls,
            self_ns: mean * calls + spread(random(mean)),
            total_ns: 0,
            wall_ns: 0,
            min: mean - spread(random(mean.min(18))),
            max: mean + spread(random(mean * 3)),
            recursion,
            terminal: 0,
            unwound: 0,
            untimed: 0,
            flags: NodeFlags::empty(),
            site: None,
        });
    }
    for index in (0..node_count).rev() {
        nodes[index].total_ns += nodes[index].self_ns;
        nodes[index].wall_ns = nodes[index].total_ns;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].total_ns += nodes[index].total_ns;
        }
    }
    Profile {
        modules: vec![Module::default()],
        functions: (0..functions)
            .map(|id| Function {
                name: format!("sub_{:x}", id * 173),
                address: id * 173,
                ..Function::default()
            })
            .collect(),
        processes: vec![Process {
            threads: vec![Thread {
                nodes,
                ..Thread::default()
            }],
            ..Process::default()
        }],
        ..Profile::default()
    }
}

/// Takes the container off by hand, as docs/file-format.md describes it.
pub fn body_of(file: &[u8]) -> Vec<u8> {
    let packed = &file[28..file.len() - 8];
    match file[10] {
        0 => packed.to_vec(),
        _ => zstd::stream::decode_all(packed).unwrap(),
    }
}

/// Puts a valid container around any body.
pub fn file_of(body: &[u8]) -> Vec<u8> {
    let mut file = b"\x89thalweg\x01\0\0\0".to_vec();
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(&(body.len() as u64).to_le_bytes());
    file.extend_from_slice(body);
    let checksum = xxhash_rust::xxh3::xxh3_64(&file);
    file.extend_from_slice(&checksum.to_le_bytes());
    file
}
