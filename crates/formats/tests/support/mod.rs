//! A profile with everything that a format could trip over.

use thalweg_model::{
    Creator, FuncId, Function, Meta, Module, Node, NodeFlags, Process, Profile, Thread,
};

/// Names that mean something in one format or another.
pub const NAMES: [&str; 8] = [
    "main",
    "easy",
    "hard",
    "work",
    "std::map<int, \"x\">::at(int) const",
    "(anonymous namespace)::f;g",
    "naïve → 日本",
    "unseen",
];

/// main -> { easy -> work, hard -> { work, recursion work -> hard -> work } }, odd names in a
/// second thread.
pub fn profile() -> Profile {
    let functions = NAMES.iter().zip(0..).map(|(name, index)| Function {
        name: name.to_string(),
        module: u32::from(index > 3),
        address: 0x1000 + u64::from(index) * 0x40,
        file: (index < 4).then(|| "src/easy & hard.c".to_string()),
        line: if index < 4 { 10 * index + 1 } else { 0 },
        ..Function::default()
    });
    let main_thread = tree(&[
        (None, 0, 1, 5),
        (Some(0), 1, 10, 100),
        (Some(1), 3, 10, 1_000),
        (Some(0), 2, 1, 50),
        (Some(3), 3, 1, 90_000),
        (Some(4), 2, 3, 600),
        (Some(5), 3, 3, 30_000),
        (Some(0), 4, 7, 0),
    ]);
    let mut worker = tree(&[
        (None, 5, 2, 4_000),
        (Some(0), 6, 4, 70_000),
        (Some(1), 6, 40, 7_000),
        (Some(0), 3, 1, 11),
    ]);
    worker[0].flags = NodeFlags::ON_STACK_AT_ATTACH | NodeFlags::OPEN;
    Profile {
        meta: Meta {
            version: "0.1.0".into(),
            created_unix_ns: 1_700_000_000_000_000_000,
            duration_ns: 300_000,
            timed: true,
            command: vec!["./easy".into(), "--name".into(), "two words".into()],
            ..Meta::default()
        },
        modules: vec![
            Module {
                name: "easy".into(),
                path: "/home/me/easy".into(),
                build_id: "c0ffee".into(),
                ..Module::default()
            },
            Module {
                name: "libodd.so".into(),
                path: "/usr/lib/libodd.so".into(),
                ..Module::default()
            },
        ],
        functions: functions.collect(),
        processes: vec![Process {
            pid: 41,
            command: vec!["./easy".into()],
            threads: vec![
                Thread {
                    tid: 41,
                    name: "easy".into(),
                    start_ns: 0,
                    end_ns: 300_000,
                    nodes: main_thread,
                    ..Thread::default()
                },
                Thread {
                    tid: 42,
                    name: "a worker; or \"two\"".into(),
                    created_by: Some(Creator {
                        pid: 41,
                        tid: 41,
                        function: Some(FuncId(0)),
                    }),
                    start_ns: 1_000,
                    end_ns: 250_000,
                    nodes: worker,
                    ..Thread::default()
                },
            ],
            ..Process::default()
        }],
        sites: vec![],
        recorded: Default::default(),
        skipped: vec![],
        notes: vec!["a note".into()],
        switched: vec![],
        blocks: Vec::new(),
        block_counters: Vec::new(),
        cycles_of: None,
        marks: Vec::new(),
        sampled: vec![],
        enters_kernel: vec![],
    }
}

/// Nodes from parent, function, calls and self.
pub fn tree(contexts: &[(Option<u32>, u32, u64, u64)]) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for &(parent, function, calls, self_ns) in contexts {
        let above = std::iter::successors(parent, |&node| nodes[node as usize].parent);
        let recursion = above
            .filter(|&node| nodes[node as usize].function == FuncId(function))
            .count();
        nodes.push(Node {
            parent,
            function: FuncId(function),
            calls,
            self_ns,
            total_ns: self_ns,
            min: self_ns / calls.max(1),
            max: self_ns,
            recursion: recursion as u32,
            ..Node::default()
        });
    }
    for index in (0..nodes.len()).rev() {
        let total_ns = nodes[index].total_ns;
        nodes[index].wall_ns = total_ns;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].total_ns += total_ns;
        }
    }
    nodes
}
