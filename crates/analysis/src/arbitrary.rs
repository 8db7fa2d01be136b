//! Random programs: threads and processes that make each other, each with a tree whose figures add
//! up.

use proptest::collection::vec;
use proptest::prelude::*;
use thalweg_model::{
    Creator, FuncId, Function, Metric, Module, Node, NodeFlags, Process, Profile, Thread,
};

const FUNCTIONS: u32 = 6;

#[derive(Clone, Debug)]
struct RandomThread {
    /// Which of the threads before it made it, and in which of that thread's contexts.
    maker: prop::sample::Index,
    place: prop::sample::Index,
    creator_known: bool,
    new_process: bool,
    /// Parent (taken modulo; at the top with 1 in 8), function, calls, time of each call.
    nodes: Vec<(Option<u32>, u32, u64, u64)>,
    folded: Option<(u32, u64)>,
}

fn thread() -> impl Strategy<Value = RandomThread> {
    let parent = prop_oneof![1 => Just(None), 7 => any::<u32>().prop_map(Some)];
    let node = (parent, 0..FUNCTIONS, 1..4u64, 1..50u64);
    (
        any::<(prop::sample::Index, prop::sample::Index)>(),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.2),
        vec(node, 1..25),
        proptest::option::weighted(0.2, (0..FUNCTIONS, 1..9u64)),
    )
        .prop_map(
            |((maker, place), creator_known, new_process, nodes, folded)| RandomThread {
                maker,
                place,
                creator_known,
                new_process,
                nodes,
                folded,
            },
        )
}

pub fn program() -> impl Strategy<Value = Profile> {
    vec(thread(), 1..8).prop_map(build)
}

fn build(threads: Vec<RandomThread>) -> Profile {
    let mut profile = Profile {
        modules: vec![Module::default(), Module::default()],
        functions: (0..FUNCTIONS)
            .map(|id| Function {
                name: format!("f{id}"),
                module: id % 2,
                address: u64::from(id) * 16,
                ..Function::default()
            })
            .collect(),
        ..Profile::default()
    };
    profile.meta.timed = true;
    profile.meta.metrics = vec![Metric::AllocBytes];
    // Process and place in it of each thread so far.
    let mut made: Vec<(usize, usize)> = Vec::new();
    for (number, random) in (0..).zip(threads) {
        let mut thread = Thread {
            tid: 100 + number,
            start_ns: u64::from(number),
            nodes: tree(&random),
            ..Thread::default()
        };
        if let Some((function, calls)) = random.folded {
            thread.folded_calls = calls;
            thread.nodes.push(Node {
                function: FuncId(function),
                calls,
                self_ns: calls,
                total_ns: calls,
                flags: NodeFlags::FOLDED,
                ..Node::default()
            });
        }
        // As much as time, so that what happens to one must happen to the other.
        for (index, node) in (0..).zip(&thread.nodes) {
            thread.metrics.set(index, Metric::AllocBytes, node.self_ns);
        }
        let maker = (!made.is_empty()).then(|| made[random.maker.index(made.len())]);
        if let Some((process, place)) = maker.filter(|_| random.creator_known) {
            let maker = &profile.processes[process];
            let thread_of_maker = &maker.threads[place];
            let context = random.place.index(thread_of_maker.nodes.len());
            thread.created_by = Some(Creator {
                pid: maker.pid,
                tid: thread_of_maker.tid,
                function: Some(thread_of_maker.nodes[context].function),
            });
        }
        let process = match maker {
            Some((process, _)) if !random.new_process => process,
            _ => {
                profile.processes.push(Process {
                    pid: 100 + number,
                    parent: maker.map(|(process, _)| profile.processes[process].pid),
                    command: vec![format!("program{}", number % 2)],
                    ..Process::default()
                });
                profile.processes.len() - 1
            }
        };
        profile.processes[process].threads.push(thread);
        made.push((process, profile.processes[process].threads.len() - 1));
    }
    profile
}

/// One node per context: a second call of a function at the same place would be the same node.
fn tree(random: &RandomThread) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for &(parent, function, calls, time) in &random.nodes {
        let parent = parent
            .filter(|_| !nodes.is_empty())
            .map(|parent| parent % nodes.len() as u32);
        if nodes
            .iter()
            .any(|n| (n.parent, n.function) == (parent, FuncId(function)))
        {
            continue;
        }
        let ancestors = std::iter::successors(parent, |&node| nodes[node as usize].parent);
        let recursion = ancestors
            .filter(|&node| nodes[node as usize].function == FuncId(function))
            .count() as u32;
        nodes.push(Node {
            parent,
            function: FuncId(function),
            calls,
            self_ns: calls * time,
            total_ns: calls * time,
            min: time,
            max: time,
            recursion,
            ..Node::default()
        });
    }
    for index in (0..nodes.len()).rev() {
        nodes[index].wall_ns = nodes[index].total_ns;
        if let Some(parent) = nodes[index].parent {
            nodes[parent as usize].total_ns += nodes[index].total_ns;
        }
    }
    nodes
}

/// The functions from the root to each context; folded ones stand under none.
pub fn paths(thread: &Thread) -> Vec<Vec<FuncId>> {
    let mut paths: Vec<Vec<FuncId>> = Vec::new();
    for node in &thread.nodes {
        let mut path = node
            .parent
            .map_or(Vec::new(), |parent| paths[parent as usize].clone());
        path.push(node.function);
        paths.push(path);
    }
    paths
}
