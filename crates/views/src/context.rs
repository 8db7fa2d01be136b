//! One function, or one function's calls of another, split by thread.

use serde::Serialize;
use thalweg_analysis::{
    Bounds, Caller, ThreadShare, call_by_thread, creation_by_thread, function_at_level,
    function_by_thread, threads,
};
use thalweg_model::{FuncId, Profile};

use crate::{is_false, name, printable};

/// What is to be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Function(FuncId),
    /// In threads of that nesting level, as the call graph tells first functions of threads apart.
    FunctionAt {
        function: FuncId,
        level: u32,
    },
    Call {
        caller: FuncId,
        callee: FuncId,
    },
    /// Threads that one function made, and that began in the other.
    Creation {
        maker: FuncId,
        first: FuncId,
    },
}

impl Wanted {
    fn is_bound(self, bounds: &Bounds) -> bool {
        match self {
            Wanted::Function(function)
            | Wanted::FunctionAt { function, .. }
            | Wanted::Creation {
                first: function, ..
            } => bounds.function(function),
            Wanted::Call { caller, callee } => bounds.call(Caller::Function(caller), callee),
        }
    }

    fn shares(self, profile: &Profile) -> Vec<ThreadShare> {
        match self {
            Wanted::Function(function) => function_by_thread(profile, function),
            Wanted::FunctionAt { function, level } => function_at_level(profile, function, level),
            Wanted::Call { caller, callee } => call_by_thread(profile, caller, callee),
            Wanted::Creation { maker, first } => creation_by_thread(profile, maker, first),
        }
    }

    fn title(self, profile: &Profile) -> String {
        let name = |function: FuncId| printable(name(profile, function));
        match self {
            Wanted::Function(function) => name(function).into_owned(),
            Wanted::FunctionAt { function, level } => format!("{}@{level}", name(function)),
            Wanted::Call { caller, callee } => format!("{} -> {}", name(caller), name(callee)),
            Wanted::Creation { maker, first } => {
                format!("{} -> {} (creation)", name(maker), name(first))
            }
        }
    }
}

#[derive(Serialize)]
pub struct Contexts<'a> {
    schema: &'static str,
    pub timed: bool,
    pub contexts: Vec<ContextOf<'a>>,
}

#[derive(Serialize)]
pub struct ContextOf<'a> {
    pub caller: Option<FuncId>,
    pub function: FuncId,
    /// The caller made threads that began in the function.
    #[serde(skip_serializing_if = "is_false")]
    pub creation: bool,
    /// Only threads of this nesting level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<u32>,
    pub title: String,
    pub threads: Vec<ShareOf<'a>>,
}

/// What one thread has of it. Threads are numbered as `thalweg threads` lists them.
#[derive(Serialize)]
pub struct ShareOf<'a> {
    pub thread: u32,
    pub made_by: Option<u32>,
    pub made_in: Option<FuncId>,
    pub level: u32,
    pub pid: u32,
    pub tid: u32,
    pub calls: u64,
    #[serde(skip_serializing_if = "is_false")]
    pub calls_at_least: bool,
    pub self_ns: u64,
    pub total_ns: u64,
    pub contexts: u64,
    #[serde(skip)]
    pub thread_name: &'a str,
}

impl<'a> Contexts<'a> {
    pub fn new(profile: &'a Profile, wanted: &[Wanted]) -> Contexts<'a> {
        let bounds = Bounds::from_profile(profile);
        let names: Vec<&str> = threads(profile)
            .map(|(_, thread)| thread.name.as_str())
            .collect();
        let contexts = wanted.iter().map(|&wanted| {
            let (caller, function, level) = match wanted {
                Wanted::Function(function) => (None, function, None),
                Wanted::FunctionAt { function, level } => (None, function, Some(level)),
                Wanted::Call { caller, callee } => (Some(caller), callee, None),
                Wanted::Creation { maker, first } => (Some(maker), first, None),
            };
            let shares = wanted.shares(profile).into_iter().map(|share| ShareOf {
                thread: share.thread.0,
                made_by: share.origin.map(|origin| origin.maker.0),
                made_in: share.origin.and_then(|origin| origin.function),
                level: share.level,
                pid: share.pid,
                tid: share.tid,
                calls: share.calls,
                calls_at_least: wanted.is_bound(&bounds),
                self_ns: share.self_ns,
                total_ns: share.total_ns,
                contexts: share.contexts,
                thread_name: names[share.thread.0 as usize],
            });
            ContextOf {
                caller,
                function,
                creation: matches!(wanted, Wanted::Creation { .. }),
                level,
                title: wanted.title(profile),
                threads: shares.collect(),
            }
        });
        Contexts {
            schema: "thalweg.report.context/1",
            timed: profile.meta.timed,
            contexts: contexts.collect(),
        }
    }
}
