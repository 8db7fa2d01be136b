//! Small profiles whose figures can be checked in the head.

use thalweg_model::{Creator, FuncId, Function, Module, Node, NodeFlags, Process, Profile, Thread};

pub const MAIN: FuncId = FuncId(0);
pub const A: FuncId = FuncId(1);
pub const B: FuncId = FuncId(3);

/// One thread in which each function calls the next once, given with its self.
pub fn chain(calls: &[(FuncId, u64)]) -> Profile {
    let parents: Vec<Option<u32>> = (0..calls.len() as u32).map(|i| i.checked_sub(1)).collect();
    tree(calls, &parents)
}

/// main 1 -> { a 10 -> b 20, b 50 }
pub fn branching() -> Profile {
    tree(
        &[(MAIN, 1), (A, 10), (B, 20), (B, 50)],
        &[None, Some(0), Some(1), Some(0)],
    )
}

fn tree(calls: &[(FuncId, u64)], parents: &[Option<u32>]) -> Profile {
    let mut nodes: Vec<Node> = Vec::new();
    for (&(function, self_ns), &parent) in calls.iter().zip(parents) {
        let ancestors = std::iter::successors(parent, |&node| nodes[node as usize].parent);
        let same = ancestors.filter(|&node| nodes[node as usize].function == function);
        let recursion = same.count() as u32;
        nodes.push(Node {
            parent,
            function,
            calls: 1,
            self_ns,
            total_ns: self_ns,
            wall_ns: self_ns,
            min: self_ns,
            max: self_ns,
            recursion,
            ..Node::default()
        });
    }
    for index in (1..nodes.len()).rev() {
        let total_ns = nodes[index].total_ns;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].total_ns += total_ns;
        }
    }
    let mut profile = Profile {
        modules: vec![Module::default()],
        functions: (0..)
            .zip(["main", "a", "unseen", "b"])
            .map(|(number, name)| Function {
                name: name.to_string(),
                address: number * 16,
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
    };
    profile.meta.timed = true;
    profile
}

/// main 1, and `workers` threads made by it that run a 10 -> b 5.
pub fn pool(workers: u32) -> Profile {
    let mut profile = chain(&[(MAIN, 1)]);
    let work = chain(&[(A, 10), (B, 5)])
        .processes
        .remove(0)
        .threads
        .remove(0);
    let process = &mut profile.processes[0];
    process.pid = 100;
    process.threads[0].tid = 100;
    process.threads.extend((1..=workers).map(|number| Thread {
        tid: 100 + number,
        name: "worker".into(),
        created_by: Some(Creator {
            pid: 100,
            tid: 100,
            function: Some(MAIN),
        }),
        ..work.clone()
    }));
    profile
}

/// Adds calls that found no room in the tree.
pub fn fold(profile: &mut Profile, function: FuncId, calls: u64, time: u64) {
    let thread = &mut profile.processes[0].threads[0];
    thread.folded_calls += calls;
    thread.nodes.push(Node {
        parent: None,
        function,
        calls,
        self_ns: time,
        total_ns: time,
        wall_ns: time,
        min: 1,
        max: time,
        flags: NodeFlags::FOLDED,
        ..Node::default()
    });
}
