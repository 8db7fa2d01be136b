//! Everything about a profile that fits on two screens: graph, hottest functions and calls, rings,
//! libraries, waiting.

use serde::{Serialize, Serializer};
use thalweg_analysis::{Bounds, Caller, Edge, Overview as Figures, SiteCalls, WaitKind};
use thalweg_model::{FuncId, Profile};

use crate::flat::{Callers, Flat, Function};
use crate::kernel::{self, SystemCallOf, UncountedOf};
use crate::summary::Head;
use crate::{Selection, is_false, name};

#[derive(Serialize)]
pub struct Overview<'a> {
    schema: &'static str,
    #[serde(flatten)]
    pub head: Head<'a>,
    /// On each nesting level, from that of the first threads on.
    pub threads_by_level: Vec<u64>,
    pub waiting_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    direct_calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indirect_calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_sites: Option<u64>,
    pub nodes: u64,
    pub edges: u64,
    /// Edges that stand for the making of a thread or process.
    pub made: u64,
    pub recursion: Option<RecursionOf<'a>>,
    pub hottest: Vec<Brief<'a>>,
    #[serde(serialize_with = "known_edges")]
    pub hottest_edges: Vec<EdgeOf<'a>>,
    pub cycles: Vec<CycleOf<'a>>,
    pub modules: Vec<ModuleOf<'a>>,
    pub wait_kinds: Vec<KindOf>,
    pub waits: Vec<WaitOf<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls: Option<Vec<SystemCallOf<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncounted_system_calls: Option<Vec<UncountedOf<'a>>>,
    /// How calls were made, where that was recorded.
    #[serde(skip)]
    pub made_by: Option<SiteCalls>,
    /// Edges between functions, shown or not.
    #[serde(skip)]
    pub all_edges: usize,
    /// Functions that ran in most threads.
    #[serde(skip)]
    pub widest: Vec<(&'a str, u32)>,
}

#[derive(Serialize)]
pub struct RecursionOf<'a> {
    pub name: &'a str,
    pub levels: u32,
}

/// A function in a few figures.
pub struct Brief<'a>(pub Function<'a>);

impl Serialize for Brief<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire<'a> {
            function: FuncId,
            name: &'a str,
            calls: u64,
            #[serde(skip_serializing_if = "is_false")]
            calls_at_least: bool,
            self_ns: u64,
            total_ns: u64,
            threads: u32,
        }
        let row = &self.0;
        Wire {
            function: row.function,
            name: row.name,
            calls: row.calls,
            calls_at_least: row.calls_at_least,
            self_ns: row.self_ns,
            total_ns: row.total_ns,
            threads: row.threads,
        }
        .serialize(serializer)
    }
}

#[derive(Serialize)]
pub struct EdgeOf<'a> {
    /// `None` for the start of a thread or unpatched code, and for folded calls.
    pub caller: Option<&'a str>,
    pub callee: &'a str,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub total_ns: u64,
}

/// Those with a caller.
fn known_edges<S: Serializer>(edges: &[EdgeOf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(edges.iter().filter(|edge| edge.caller.is_some()))
}

#[derive(Serialize)]
pub struct CycleOf<'a> {
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub functions: Vec<&'a str>,
}

#[derive(Serialize)]
pub struct ModuleOf<'a> {
    pub name: &'a str,
    pub functions_seen: u64,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
}

#[derive(Serialize)]
pub struct WaitOf<'a> {
    pub name: &'a str,
    pub time_ns: u64,
}

#[derive(Serialize)]
pub struct KindOf {
    pub what: &'static str,
    pub time_ns: u64,
    #[serde(skip)]
    pub kind: WaitKind,
}

impl<'a> Overview<'a> {
    /// `made_by`: what was told apart by call sites before these were rolled up.
    pub fn new(
        profile: &'a Profile,
        made_by: Option<SiteCalls>,
        selection: &Selection,
    ) -> Overview<'a> {
        let name = |function: FuncId| name(profile, function);
        let figures = Figures::from_profile(profile);
        let bounds = Bounds::from_profile(profile);
        let limit = selection.limit.unwrap_or(usize::MAX);
        let is_bound = |functions: &[FuncId]| functions.iter().any(|&f| bounds.function(f));
        let module_is_bound = |module: u32| {
            let mut functions = bounds.functions();
            functions.any(|function| profile.functions[function].module == module)
        };
        let all_edges = figures.hottest_edges.len();
        let edge = |edge: &Edge| EdgeOf {
            caller: match edge.caller {
                Caller::Function(caller) => Some(name(caller)),
                Caller::Outside | Caller::Unknown => None,
            },
            callee: name(edge.callee),
            calls: edge.calls,
            calls_at_least: bounds.call(edge.caller, edge.callee),
            total_ns: edge.total_ns,
        };
        let cycles = figures.cycles.iter().map(|cycle| CycleOf {
            calls: cycle.calls,
            calls_at_least: is_bound(&cycle.functions),
            functions: cycle.functions.iter().map(|&f| name(f)).collect(),
        });
        let modules = figures.modules.iter().map(|share| ModuleOf {
            name: &profile.modules[share.module as usize].name,
            functions_seen: share.functions_seen,
            calls: share.calls,
            calls_at_least: module_is_bound(share.module),
            self_ns: share.self_ns,
        });
        let wait_kinds = figures.wait_kinds.iter().map(|&(kind, time_ns)| KindOf {
            what: kind.name(),
            time_ns,
            kind,
        });
        let waits = figures.waits.iter().map(|&(function, time_ns)| WaitOf {
            name: name(function),
            time_ns,
        });
        let waiting_ns = figures.waits.iter().map(|(_, time)| *time);
        let functions = Flat::new(profile, selection, Callers::LeftOut).functions;
        let has_system_calls = kernel::is_measured(profile);
        Overview {
            schema: "thalweg.summary/1",
            head: Head::new(profile),
            waiting_ns: waiting_ns.fold(0, u64::saturating_add),
            direct_calls: made_by.map(|made| made.direct),
            indirect_calls: made_by.map(|made| made.indirect),
            call_sites: made_by.map(|made| made.sites),
            nodes: figures.nodes,
            edges: figures.edges,
            made: figures.made,
            recursion: figures.recursion.map(|(function, levels)| RecursionOf {
                name: name(function),
                levels,
            }),
            hottest: functions.into_iter().map(Brief).collect(),
            hottest_edges: figures.hottest_edges.iter().take(limit).map(edge).collect(),
            cycles: cycles.collect(),
            modules: modules.collect(),
            wait_kinds: wait_kinds.collect(),
            waits: waits.collect(),
            system_calls: has_system_calls.then(|| kernel::by_name(profile)),
            uncounted_system_calls: has_system_calls.then(|| kernel::uncounted(profile)),
            made_by,
            all_edges,
            widest: figures
                .widest
                .iter()
                .map(|&(function, threads)| (name(function), threads))
                .collect(),
            threads_by_level: figures.threads_by_level,
        }
    }
}
