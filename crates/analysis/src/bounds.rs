//! Which counts are lower bounds: a function that was off for a while was called at least as often as was counted.
//!
//! ```text
//! calls(f) at least           f was off
//! calls(f -> g) at least      g was off, or f was: then g seems to be called by whoever called f
//! calls(context) at least     its function was off, or one above it
//! ```
//!
//! All other counts are exact.

use thalweg_model::{Node, ProbeState, Profile};

use crate::edges::Caller;

/// Of one profile, by function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    off: Vec<bool>,
    any: bool,
}

impl Bounds {
    pub fn of(profile: &Profile) -> Bounds {
        let mut bounds = Bounds {
            off: vec![false; profile.functions.len()],
            any: false,
        };
        let was_off = profile
            .switched
            .iter()
            .filter(|one| one.off_ns > 0 || one.state == ProbeState::Off);
        for one in was_off {
            if let Some(off) = bounds.off.get_mut(one.function as usize) {
                *off = true;
                bounds.any = true;
            }
        }
        bounds
    }

    /// Whether any count is one: then sums over functions are.
    pub fn any(&self) -> bool {
        self.any
    }

    /// How many functions were off for a while.
    pub fn functions(&self) -> impl Iterator<Item = u32> {
        let all = (0..).zip(&self.off);
        all.filter(|(_, off)| **off).map(|(function, _)| function)
    }

    /// For those who see counts without a mark: which are none of their own.
    pub fn note(&self, profile: &Profile) -> Option<String> {
        const NAMED: usize = 20;
        let all: Vec<u32> = self.functions().collect();
        let named = all.iter().take(NAMED);
        let mut names: Vec<&str> = named
            .map(|&function| profile.functions[function as usize].name.as_str())
            .collect();
        let more = format!("{} more", all.len().saturating_sub(NAMED));
        if all.len() > NAMED {
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

    pub fn function(&self, function: u32) -> bool {
        self.off.get(function as usize).copied().unwrap_or(false)
    }

    pub fn call(&self, caller: Caller, callee: u32) -> bool {
        let of_caller = match caller {
            Caller::Function(caller) => self.function(caller),
            Caller::Outside | Caller::Unknown => false,
        };
        of_caller || self.function(callee)
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
        assert!(!Bounds::of(&profile).any());
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
        let bounds = Bounds::of(&profile);
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
