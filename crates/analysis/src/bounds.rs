//! Which counts are lower bounds: a function that was off for a while was called at least as often
//! as was counted.
//!
//! ```text
//! calls(f) at least           f was off
//! calls(f -> g) at least      g was off, or f was: then g seems to be called by whoever called f
//! calls(context) at least     its function was off, or one above it
//! ```
//!
//! So are those of functions that a runtime did not tell apart all along, because calls went too
//! deep ([`Function::at_least`](thalweg_model::Function)).
//!
//! All other counts are exact.

use thalweg_model::{FuncId, Node, ProbeState, Profile};

use crate::edges::Caller;
use crate::flow_graph::{FlowEdge, FlowGraph};

/// Of one profile, by function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Has a lower bound of calls.
    at_least: Vec<bool>,
    any: bool,
    /// Those that were off for a while.
    off: Vec<FuncId>,
}

impl Bounds {
    pub fn from_profile(profile: &Profile) -> Bounds {
        let mut bounds = Bounds {
            at_least: profile.functions.iter().map(|f| f.at_least).collect(),
            any: profile.functions.iter().any(|function| function.at_least),
            off: Vec::new(),
        };
        let was_off = profile
            .switched
            .iter()
            .filter(|one| one.off_ns > 0 || one.state == ProbeState::Off);
        for one in was_off {
            if let Some(at_least) = bounds.at_least.get_mut(one.function.index()) {
                *at_least = true;
                bounds.any = true;
                bounds.off.push(one.function);
            }
        }
        bounds
    }

    /// Whether any count is one: then sums over functions are.
    pub fn any(&self) -> bool {
        self.any
    }

    pub fn functions(&self) -> impl Iterator<Item = FuncId> {
        let all = (0..).map(FuncId).zip(&self.at_least);
        all.filter(|(_, at_least)| **at_least)
            .map(|(function, _)| function)
    }

    /// For those who see counts without a mark: whose are none of their own because they were off.
    /// Others have a note from who counted them.
    pub fn note(&self, profile: &Profile) -> Option<String> {
        const MAX_NAMED_FUNCTIONS: usize = 20;
        let all = &self.off;
        let named = all.iter().take(MAX_NAMED_FUNCTIONS);
        let mut names: Vec<&str> = named
            .map(|&function| profile.functions[function].name.as_str())
            .collect();
        let more = format!("{} more", all.len().saturating_sub(MAX_NAMED_FUNCTIONS));
        if all.len() > MAX_NAMED_FUNCTIONS {
            names.push(&more);
        }
        let functions = match all.len() {
            0 => return None,
            1 => "one function are".to_owned(),
            many => format!("{many} functions are"),
        };
        Some(format!(
            "the calls of {functions} lower bounds (>=), and so are those made by them: their probes were off for a \
             while ({})",
            names.join(", ")
        ))
    }

    pub fn function(&self, function: FuncId) -> bool {
        let at_least = self.at_least.get(function.index());
        at_least.copied().unwrap_or(false)
    }

    pub fn call(&self, caller: Caller, callee: FuncId) -> bool {
        let of_caller = match caller {
            Caller::Function(caller) => self.function(caller),
            Caller::Outside | Caller::Unknown => false,
        };
        of_caller || self.function(callee)
    }

    /// Of an edge of a picture; nobody knows which of the functions that are not shown it came through.
    pub fn flow(&self, graph: &FlowGraph, edge: &FlowEdge) -> bool {
        let of = |node: usize| graph.nodes[node].function;
        let caller = of(edge.from).map_or(Caller::Outside, Caller::Function);
        let is_call = of(edge.to).is_some_and(|callee| self.call(caller, callee));
        is_call || edge.through_hidden && self.any
    }

    /// Of one context of a tree.
    pub fn context(&self, nodes: &[Node], index: u32) -> bool {
        let parent = |index: &u32| nodes[*index as usize].parent;
        self.any
            && std::iter::successors(Some(index), parent)
                .any(|index| self.function(nodes[index as usize].function))
    }

    /// Of all contexts of a tree.
    pub fn contexts(&self, nodes: &[Node]) -> Vec<bool> {
        let mut bounds: Vec<bool> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let above = node.parent.is_some_and(|parent| bounds[parent as usize]);
            bounds.push(above || self.function(node.function));
        }
        bounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use thalweg_model::Switched;

    #[test]
    fn what_was_off_makes_bounds_of_its_calls_and_of_those_that_it_made() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5)]);
        assert!(!Bounds::from_profile(&profile).any());
        profile.functions[B.index()].at_least = true;
        let deep = Bounds::from_profile(&profile);
        assert_eq!([MAIN, A, B].map(|f| deep.function(f)), [false, false, true]);
        assert_eq!(deep.note(&profile), None, "it has one of its own");
        profile.functions[B.index()].at_least = false;
        profile.switched = vec![
            Switched {
                function: A,
                off_ns: 7,
                ..Switched::default()
            },
            Switched {
                function: B,
                state: ProbeState::Counted,
                ..Switched::default()
            },
        ];
        let bounds = Bounds::from_profile(&profile);
        assert!(bounds.any());
        assert_eq!(
            [MAIN, A, B].map(|f| bounds.function(f)),
            [false, true, false]
        );
        assert!(bounds.call(Caller::Function(MAIN), A));
        assert!(bounds.call(Caller::Function(A), B));
        assert!(!bounds.call(Caller::Function(MAIN), B));
        let nodes = &profile.processes[0].threads[0].nodes;
        assert_eq!(bounds.contexts(nodes), [false, true, true]);
        assert_eq!(
            [0, 1, 2].map(|n| bounds.context(nodes, n)),
            [false, true, true]
        );
    }
}
