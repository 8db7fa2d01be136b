//! The chains that led to a function, and all that it led to.

use serde::Serialize;
use thalweg_analysis::{callees, callers};
use thalweg_model::{FuncId, Process, Profile};

use crate::tree::{ThreadRows, Tree};
use crate::{LeftOut, Selection};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Callers,
    Callees,
}

/// A profile whose only thread is the tree around one function.
pub struct Surroundings {
    pub function: FuncId,
    pub profile: Profile,
}

impl Surroundings {
    pub fn new(
        profile: &Profile,
        function: FuncId,
        direction: Direction,
        depth: Option<u32>,
    ) -> Surroundings {
        let thread = match direction {
            Direction::Callers => callers(profile, function, depth),
            Direction::Callees => callees(profile, function, depth),
        };
        let profile = Profile {
            meta: profile.meta.clone(),
            modules: profile.modules.clone(),
            functions: profile.functions.clone(),
            sites: profile.sites.clone(),
            switched: profile.switched.clone(),
            processes: vec![Process {
                threads: vec![thread],
                ..Process::default()
            }],
            ..Profile::default()
        };
        Surroundings { function, profile }
    }

    /// Shares are those of the function, which is the root.
    pub fn tree(&self, selection: &Selection) -> Tree<'_> {
        let root = &self.profile.processes[0].threads[0].nodes[0];
        let whole = match self.profile.meta.timed {
            true => root.total_ns,
            false => root.calls,
        };
        // The depth was that of the tree around it.
        let selection = Selection {
            depth: None,
            ..selection.clone()
        };
        Tree::of_whole(&self.profile, &selection, whole)
    }
}

#[derive(Serialize)]
pub struct Around<'a> {
    schema: &'static str,
    pub timed: bool,
    pub functions: Vec<FunctionOf<'a>>,
}

#[derive(Serialize)]
pub struct FunctionOf<'a> {
    pub function: FuncId,
    pub name: &'a str,
    pub tree: ThreadRows<'a>,
    pub not_shown: LeftOut,
}

impl<'a> Around<'a> {
    pub fn new(
        timed: bool,
        all: &'a [Surroundings],
        direction: Direction,
        selection: &Selection,
    ) -> Around<'a> {
        let functions = all.iter().filter_map(|one| {
            let tree = one.tree(selection);
            Some(FunctionOf {
                function: one.function,
                name: &one.profile.functions[one.function].name,
                not_shown: tree.not_shown,
                tree: tree.threads.into_iter().next()?,
            })
        });
        Around {
            schema: match direction {
                Direction::Callers => "thalweg.report.callers/1",
                Direction::Callees => "thalweg.report.callees/1",
            },
            timed,
            functions: functions.collect(),
        }
    }
}
