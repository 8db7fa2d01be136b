//! The properties of a whole program: its graph, its rings, its threads, its libraries, and what it
//! waited for.

use std::cmp::Reverse;

use thalweg_model::{FuncId, Profile};

use crate::edges::{Caller, Edge, edges};
use crate::flat::flat;
use crate::graph::{Graph, Link, Source};
use crate::lineage::{Lineage, ThreadNumber};
use crate::waiting::WaitKind;
use crate::{threads, waiting};

/// Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Of the graph of all threads: functions, or their parts on a level of threads, and calls
    /// between them.
    pub nodes: u64,
    pub edges: u64,
    /// Edges of the graph that stand for the making of a thread or process.
    pub made: u64,
    /// Threads on each nesting level, from that of the first threads on.
    pub threads_by_level: Vec<u64>,
    pub cycles: Vec<Cycle>,
    /// Largest recursion level, and a function that had it.
    pub recursion: Option<(FuncId, u32)>,
    /// Calls between functions, most total time (or calls, where nothing was timed) first.
    pub hottest_edges: Vec<Edge>,
    /// Functions that ran in most threads, and in how many.
    pub widest: Vec<(FuncId, u32)>,
    /// Modules that were called into, most time first.
    pub modules: Vec<ModuleShare>,
    /// Functions in which threads waited, and for how long, most first.
    pub waits: Vec<(FuncId, u64)>,
    /// The same by what was waited for; a terminal's input too, which no function is charged with.
    pub wait_kinds: Vec<(WaitKind, u64)>,
}

/// Functions that call each other in a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// In the order of the profile's functions.
    pub functions: Vec<FuncId>,
    /// Calls from within the ring to within the ring.
    pub calls: u64,
}

/// What one module has of the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleShare {
    /// Index into the profile's modules.
    pub module: u32,
    pub functions_seen: u64,
    pub calls: u64,
    pub self_ns: u64,
}

impl Overview {
    pub fn from_profile(profile: &Profile) -> Overview {
        let graph = Graph::from_profile(profile);
        let lineage = Lineage::from_profile(profile);
        let mut threads_by_level = vec![0; lineage.depth() as usize];
        for (number, (_, thread)) in (0..).map(ThreadNumber).zip(threads(profile)) {
            let threads: &mut u64 = &mut threads_by_level[lineage.level(number) as usize];
            *threads = threads.saturating_add(thread.others).saturating_add(1);
        }
        let rows = flat(profile);
        let mut widest: Vec<(FuncId, u32)> = rows.iter().map(|r| (r.function, r.threads)).collect();
        widest.sort_by_key(|&(_, threads)| Reverse(threads));
        let deepest = rows.iter().max_by_key(|row| (row.recursion, row.calls));

        let between = |edge: &Edge| matches!(edge.caller, Caller::Function(_));
        let mut hottest_edges = edges(profile);
        hottest_edges.retain(between);
        hottest_edges.sort_by_key(|edge| match profile.meta.timed {
            true => Reverse((edge.total_ns, edge.calls)),
            false => Reverse((edge.calls, 0)),
        });

        let mut modules: Vec<ModuleShare> = (0..profile.modules.len() as u32)
            .map(|module| ModuleShare {
                module,
                ..ModuleShare::default()
            })
            .collect();
        for row in &rows {
            let module = profile.functions[row.function].module;
            let share = &mut modules[module as usize];
            share.functions_seen += 1;
            share.calls = share.calls.saturating_add(row.calls);
            share.self_ns = share.self_ns.saturating_add(row.self_ns);
        }
        modules.retain(|share| share.functions_seen > 0);
        modules.sort_by_key(|share| Reverse((share.self_ns, share.calls)));

        let made = graph.edges.iter().filter(|edge| edge.link == Link::Made);
        Overview {
            nodes: graph.nodes.len() as u64,
            edges: graph.edges.len() as u64,
            made: made.count() as u64,
            threads_by_level,
            cycles: cycles(&graph),
            recursion: deepest
                .map(|row| (row.function, row.recursion))
                .filter(|(_, recursion)| *recursion > 0),
            hottest_edges,
            widest,
            modules,
            waits: waiting::waits(profile),
            wait_kinds: waiting::wait_kinds(profile),
        }
    }
}

/// Most calls first.
fn cycles(graph: &Graph) -> Vec<Cycle> {
    let mut ring_of = vec![usize::MAX; graph.nodes.len()];
    let rings = graph.cycles();
    for (number, ring) in rings.iter().enumerate() {
        ring.iter()
            .for_each(|&node| ring_of[node as usize] = number);
    }
    let mut calls = vec![0u64; rings.len()];
    for edge in &graph.edges {
        if let Source::Node(from) = edge.from
            && let ring = ring_of[from as usize]
            && ring != usize::MAX
            && ring == ring_of[edge.to as usize]
        {
            calls[ring] = calls[ring].saturating_add(edge.calls);
        }
    }
    let mut cycles: Vec<Cycle> = rings
        .into_iter()
        .zip(calls)
        .map(|(ring, calls)| {
            let function = |node: u32| graph.nodes[node as usize].function;
            let mut functions: Vec<FuncId> = ring.into_iter().map(function).collect();
            functions.sort_unstable();
            functions.dedup();
            Cycle { functions, calls }
        })
        .collect();
    cycles.sort_by_key(|cycle| Reverse((cycle.calls, cycle.functions.len())));
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};

    #[test]
    fn rings_recursion_and_the_hottest_call_are_named() {
        let profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        let overview = Overview::from_profile(&profile);
        assert_eq!((overview.nodes, overview.edges), (3, 5));
        assert_eq!(
            overview.cycles,
            [Cycle {
                functions: vec![A, B],
                calls: 3
            }]
        );
        assert_eq!(overview.recursion, Some((A, 2)));
        let hottest = overview.hottest_edges[0];
        assert_eq!(
            (hottest.caller, hottest.callee),
            (Caller::Function(MAIN), A)
        );
        assert_eq!(hottest.total_ns, 75);
    }

    #[test]
    fn threads_are_counted_on_their_levels_and_modules_have_their_shares() {
        let mut profile = fixture::pool(3);
        profile.modules.push(thalweg_model::Module::default());
        profile.functions[B.index()].module = 1;
        let overview = Overview::from_profile(&profile);
        assert_eq!(overview.threads_by_level, [1, 3]);
        assert_eq!(overview.made, 1);
        assert_eq!(overview.widest[0].1, 3);
        let shares: Vec<(u32, u64, u64)> = overview
            .modules
            .iter()
            .map(|share| (share.module, share.calls, share.self_ns))
            .collect();
        assert_eq!(shares, [(0, 4, 31), (1, 3, 15)]);
    }
}
