//! What an interpreter or a virtual machine does between two functions of its language: in reports a part of the outer one.
//!
//! ```text
//! parse (Python) -> _PyFunction_Vectorcall -> _PyEval_Vector -> pair (Python)      parse -> pair
//! parse (Python) -> PyDict_SetItem                                                 stays: no Python below
//! parse (Python) -> cfunction_call -> sqlite3_step -> _PyEval_Vector -> pair       parse -> sqlite3_step -> pair
//! main -> Py_RunMain -> <module> (Python)                                          stays: no Python above
//! ```

use std::collections::HashSet;

use thalweg_model::{Function, Language, Node, Profile};

/// Functions of CPython that it enters Python functions by. Whatever module has one is an interpreter, whatever its name is.
const ENTERS_PYTHON: [&str; 4] = [
    "_PyEval_EvalFrameDefault",
    "_PyEval_Vector",
    "_PyFunction_Vectorcall",
    "PyEval_EvalCode",
];
/// The module that is HotSpot.
const HOTSPOT: &str = "libjvm.so";

/// The functions of the languages whose functions a runtime runs, and those of the runtimes.
#[derive(Debug, Default)]
pub struct Runtimes {
    managed: Vec<bool>,
    runtime: Vec<bool>,
}

impl Runtimes {
    /// `None`: the profile has none, so that there is nothing to fold.
    pub fn of(profile: &Profile) -> Option<Runtimes> {
        let functions = &profile.functions;
        let is_managed = |f: &Function| matches!(f.language, Language::Python | Language::Java);
        if !functions.iter().any(is_managed) {
            return None;
        }
        let is_native = |f: &&Function| f.language == Language::Native;
        let enters = |f: &&Function| ENTERS_PYTHON.contains(&f.name.as_str());
        let mut modules: HashSet<u32> = functions
            .iter()
            .filter(is_native)
            .filter(enters)
            .map(|f| f.module)
            .collect();
        let named = (0..).zip(&profile.modules);
        modules.extend(
            named
                .filter(|(_, m)| m.name == HOTSPOT)
                .map(|(index, _)| index),
        );
        let is_runtime = |f: &Function| is_native(&f) && modules.contains(&f.module);
        Some(Runtimes {
            managed: functions.iter().map(is_managed).collect(),
            runtime: functions.iter().map(is_runtime).collect(),
        })
    }

    /// Of each context of a thread whether it is a runtime's and stands between two managed ones.
    pub fn between(&self, nodes: &[Node]) -> Vec<bool> {
        let is = |of: &[bool], node: &Node| of.get(node.function.index()) == Some(&true);
        // Below a managed one, then above one: parents come before their callees.
        let mut below = vec![false; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                let parent = parent as usize;
                below[index] = below[parent] || is(&self.managed, &nodes[parent]);
            }
        }
        let mut above = vec![false; nodes.len()];
        for (index, node) in nodes.iter().enumerate().rev() {
            if let Some(parent) = node.parent {
                above[parent as usize] |= above[index] || is(&self.managed, node);
            }
        }
        let all = nodes.iter().zip(below.iter().zip(&above));
        all.map(|(node, (below, above))| *below && *above && is(&self.runtime, node))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refine::{Refinement, refine};
    use crate::{arbitrary, flat, summary};
    use proptest::prelude::*;
    use thalweg_model::FuncId;
    use thalweg_model::{Module, Process, Thread};

    /// A chain and a leaf: who calls whom is by place, all called `n` times, with ten nanoseconds each.
    fn profile() -> Profile {
        let names = [
            ("Py_RunMain", 0, Language::Native),
            ("parse", 1, Language::Python),
            ("_PyFunction_Vectorcall", 0, Language::Native),
            ("sqlite3_step", 2, Language::Native),
            ("_PyEval_Vector", 0, Language::Native),
            ("pair", 1, Language::Python),
            ("PyDict_SetItem", 0, Language::Native),
        ];
        let module = |name: &str| Module {
            name: name.into(),
            ..Module::default()
        };
        let function = |(name, module, language): (&str, u32, Language)| Function {
            name: name.into(),
            module,
            language,
            ..Function::default()
        };
        let node = |parent: Option<u32>, function: FuncId, calls: u64| Node {
            parent,
            function,
            calls,
            self_ns: 10,
            ..Node::default()
        };
        let mut nodes = vec![
            node(None, FuncId(0), 1),
            node(Some(0), FuncId(1), 3),
            node(Some(1), FuncId(2), 6),
            node(Some(2), FuncId(3), 7),
            node(Some(3), FuncId(4), 8),
            node(Some(4), FuncId(5), 8),
            node(Some(1), FuncId(6), 9),
        ];
        for index in (0..nodes.len()).rev() {
            nodes[index].total_ns += nodes[index].self_ns;
            nodes[index].wall_ns = nodes[index].total_ns;
            if let Some(parent) = nodes[index].parent {
                let total = nodes[index].total_ns;
                nodes[parent as usize].total_ns += total;
            }
        }
        Profile {
            modules: ["python3.11", "app.py", "libsqlite3.so"].map(module).into(),
            functions: names.map(function).into(),
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

    #[test]
    fn what_lies_between_managed_functions_is_the_outer_ones() {
        let how = Refinement {
            runtimes: Runtimes::of(&profile()),
            ..Refinement::default()
        };
        let folded = refine(profile(), &how);
        let nodes = &folded.processes[0].threads[0].nodes;
        let mut rows: Vec<_> = nodes
            .iter()
            .map(|n| {
                let name = |n: &Node| folded.functions[n.function].name.clone();
                let parent = n.parent.map(|parent| name(&nodes[parent as usize]));
                (
                    parent.unwrap_or_default(),
                    name(n),
                    n.calls,
                    n.self_ns,
                    n.total_ns,
                )
            })
            .collect();
        rows.sort();
        let row = |parent: &str, name: &str, calls, own, total| {
            (parent.to_owned(), name.to_owned(), calls, own, total)
        };
        assert_eq!(
            rows,
            [
                row("", "Py_RunMain", 1, 10, 70),
                row("Py_RunMain", "parse", 3, 20, 60),
                row("parse", "PyDict_SetItem", 9, 10, 10),
                row("parse", "sqlite3_step", 7, 20, 30),
                row("sqlite3_step", "pair", 8, 10, 10),
            ]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Nothing is lost, and managed functions keep their calls and their totals.
        #[test]
        fn no_figure_is_lost(mut profile in arbitrary::program(), managed in prop::collection::vec(any::<bool>(), 4)) {
            for (function, managed) in profile.functions.iter_mut().zip(managed) {
                if managed {
                    function.language = Language::Python;
                } else {
                    function.name = "_PyEval_Vector".into();
                }
            }
            let how = Refinement { runtimes: Runtimes::of(&profile), ..Refinement::default() };
            let folded = refine(profile.clone(), &how);
            prop_assert_eq!(folded.validate(), Ok(()));
            prop_assert_eq!(summary(&folded).time, summary(&profile).time);
            let figures = |of: &Profile| -> Vec<_> {
                let rows = flat(of).into_iter();
                let managed = rows.filter(|row| profile.functions[row.function].language == Language::Python);
                let mut figures: Vec<_> = managed.map(|row| (row.function, row.calls, row.total_ns)).collect();
                figures.sort_unstable();
                figures
            };
            prop_assert_eq!(figures(&folded), figures(&profile));
        }
    }
}
