//! What of a profile is selected, by names on the path of a context, as pprof has it: the result is
//! a profile again, so that every view and every export shows the same.
//!
//! ```text
//!                 main -> a -> b -> c          main -> d
//! focus b         main -> a -> b -> c                          only what has it on its path
//! ignore b        main -> a                    main -> d       nothing that has it on its path
//! hide b          main -> a ------> c          main -> d       its self is its caller's
//! show from a     a -> b -> c                                  what stands above the outermost one goes
//! by module       m1 ----------> m2 -> m1      m1              calls within a group are no calls
//! ```
//!
//! Calls of a context stay what they are: how often it was entered.

use thalweg_model::{FuncId, Function, Node, NodeMetrics, Profile, Thread};

use crate::combine::lay;
use crate::pairs::PairTable;
use crate::runtime::Runtimes;
use crate::selection::count_recursion;
use crate::sites::Callees;

/// Of each function whether it is meant; `None`: nobody asked.
pub type Matches = Option<Vec<bool>>;

/// What several functions are taken for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Granularity {
    #[default]
    Function,
    /// All functions of a source file are one.
    File,
    /// All functions of a module are one.
    Module,
}

#[derive(Debug, Default)]
pub struct Refinement {
    pub focus: Matches,
    pub ignore: Matches,
    pub hide: Matches,
    pub show_from: Matches,
    pub granularity: Granularity,
    /// What stands between managed functions is a part of the outer one.
    pub runtimes: Option<Runtimes>,
}

/// The part of a profile that is wanted. Threads keep their numbers, and functions those that they
/// had.
pub fn refine(mut profile: Profile, how: &Refinement) -> Profile {
    let groups = group(&mut profile, how.granularity);
    let functions = profile.functions.len();
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        let (nodes, metrics) = chosen(thread, how, &groups, functions);
        (thread.nodes, thread.metrics) = (nodes, metrics);
        thread.forget_samples();
    }
    profile
}

/// The function that stands for each one; new ones are added for files and modules.
fn group(profile: &mut Profile, granularity: Granularity) -> Vec<FuncId> {
    let count = profile.functions.len();
    if granularity == Granularity::Function {
        return (0..count).map(FuncId::from_index).collect();
    }
    let mut known = std::collections::HashMap::new();
    let mut added: Vec<Function> = Vec::new();
    let groups = profile.functions.iter().map(|function| {
        let module = &profile.modules[function.module as usize].name;
        let name = match (granularity, &function.file) {
            (Granularity::File, Some(file)) => file,
            _ => module,
        };
        let next = FuncId::from_index(count + added.len());
        *known
            .entry((function.module, name.clone()))
            .or_insert_with(|| {
                added.push(Function {
                    name: name.clone(),
                    module: function.module,
                    ..Function::default()
                });
                next
            })
    });
    let groups = groups.collect();
    profile.functions.append(&mut added);
    groups
}

/// What is known of a context when those below it are visited.
#[derive(Clone, Copy, Default)]
struct Above {
    /// The closest context that is shown, itself included.
    place: Option<u32>,
    ignored: bool,
    begun: bool,
    focused: bool,
}

fn chosen(
    thread: &Thread,
    how: &Refinement,
    groups: &[FuncId],
    functions: usize,
) -> (Vec<Node>, NodeMetrics) {
    let is =
        |meant: &Matches, function: FuncId| meant.as_ref().is_some_and(|all| all[function.index()]);
    let own_waits = own_waits(&thread.nodes);
    let runtimes = how.runtimes.as_ref();
    let between = runtimes.map_or_else(Vec::new, |all| all.between(&thread.nodes));
    let is_between = |index: u32| between.get(index as usize) == Some(&true);
    let mut kept = Thread::default();
    let mut waits: Vec<u64> = Vec::new();
    let mut wanted: Vec<bool> = Vec::new();
    let mut known: Vec<Above> = Vec::with_capacity(thread.nodes.len());
    for (index, node) in (0..).zip(&thread.nodes) {
        let mut here = match node.parent {
            Some(parent) => known[parent as usize],
            None => Above {
                begun: how.show_from.is_none(),
                focused: how.focus.is_none(),
                ..Above::default()
            },
        };
        here.ignored |= is(&how.ignore, node.function);
        here.begun |= is(&how.show_from, node.function);
        here.focused |= is(&how.focus, node.function);
        let counts = !here.ignored && here.begun && here.focused;
        let function = groups[node.function.index()];
        // A call within a group is none, but folded calls came from anywhere.
        let within = here.place.is_some_and(|place| {
            function != node.function && kept.nodes[place as usize].function == function
        });
        let hidden = is(&how.hide, node.function) || is_between(index);
        if !here.ignored && here.begun && !hidden && !within {
            let place = kept.nodes.len() as u32;
            kept.nodes.push(Node {
                parent: here.place,
                function,
                self_ns: 0,
                terminal: 0,
                ..*node
            });
            waits.push(0);
            wanted.push(false);
            here.place = Some(place);
        }
        if let Some(place) = here.place.filter(|_| counts) {
            let sum = &mut kept.nodes[place as usize];
            sum.self_ns = sum.self_ns.saturating_add(node.self_ns);
            sum.terminal = sum.terminal.saturating_add(node.terminal);
            let wait = &mut waits[place as usize];
            *wait = wait.saturating_add(own_waits[index as usize]);
            kept.metrics.add(place, thread.metrics.at(index));
            wanted[place as usize] = true;
        }
        known.push(here);
    }
    drop_unwanted(&mut kept, &mut waits, &mut wanted);
    add_up(&mut kept.nodes, &mut waits);

    let mut merged = Thread::default();
    let mut extremes = Vec::new();
    lay(
        &mut merged,
        &mut extremes,
        &mut PairTable::new(),
        &mut Callees::default(),
        &kept,
    );
    for (node, extremes) in merged.nodes.iter_mut().zip(&extremes) {
        (node.min, node.max) = (extremes.min.unwrap_or(0), extremes.max);
    }
    count_recursion(&mut merged.nodes, functions);
    (merged.nodes, merged.metrics)
}

/// Callers of nothing that is in focus go.
fn drop_unwanted(kept: &mut Thread, waits: &mut Vec<u64>, wanted: &mut [bool]) {
    for index in (0..kept.nodes.len()).rev() {
        if let Some(parent) = kept.nodes[index].parent.filter(|_| wanted[index]) {
            wanted[parent as usize] = true;
        }
    }
    if wanted.iter().all(|wanted| *wanted) {
        return;
    }
    let mut places: Vec<u32> = Vec::with_capacity(kept.nodes.len());
    let mut left = Thread::default();
    let mut left_waits = Vec::new();
    for (index, node) in (0..).zip(&kept.nodes) {
        places.push(left.nodes.len() as u32);
        if !wanted[index as usize] {
            continue;
        }
        left.metrics
            .add(left.nodes.len() as u32, kept.metrics.at(index));
        left.nodes.push(Node {
            parent: node.parent.map(|parent| places[parent as usize]),
            ..*node
        });
        left_waits.push(waits[index as usize]);
    }
    (*kept, *waits) = (left, left_waits);
}

/// What each context waited itself.
fn own_waits(nodes: &[Node]) -> Vec<u64> {
    let with_callees = |node: &Node| node.wall_ns.saturating_sub(node.total_ns);
    let mut waits: Vec<u64> = nodes.iter().map(with_callees).collect();
    for node in nodes {
        if let Some(parent) = node.parent {
            let of_parent = &mut waits[parent as usize];
            *of_parent = of_parent.saturating_sub(with_callees(node));
        }
    }
    waits
}

/// Total is self and what the callees have, wall that and the waiting.
fn add_up(nodes: &mut [Node], waits: &mut [u64]) {
    for node in nodes.iter_mut() {
        node.total_ns = node.self_ns;
    }
    for index in (0..nodes.len()).rev() {
        let total_ns = nodes[index].total_ns;
        nodes[index].wall_ns = total_ns.saturating_add(waits[index]);
        if let Some(parent) = nodes[index].parent.map(|parent| parent as usize) {
            nodes[parent].total_ns = nodes[parent].total_ns.saturating_add(total_ns);
            waits[parent] = waits[parent].saturating_add(waits[index]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{arbitrary, flat, summary};
    use proptest::prelude::*;

    fn only(function: FuncId) -> Matches {
        Some((0..4).map(|one| FuncId(one) == function).collect())
    }

    /// Parent, function, calls, self, total of each context.
    fn rows(profile: &Profile) -> Vec<(Option<u32>, FuncId, u64, u64, u64)> {
        let nodes = &profile.processes[0].threads[0].nodes;
        let row = |n: &Node| (n.parent, n.function, n.calls, n.self_ns, n.total_ns);
        nodes.iter().map(row).collect()
    }

    #[test]
    fn focus_keeps_the_paths_through_a_function_and_their_time() {
        let how = Refinement {
            focus: only(A),
            ..Refinement::default()
        };
        let focused = refine(fixture::branching(), &how);
        assert_eq!(
            rows(&focused),
            [
                (None, MAIN, 1, 0, 30),
                (Some(0), A, 1, 10, 30),
                (Some(1), B, 1, 20, 20)
            ]
        );
    }

    #[test]
    fn ignore_drops_them() {
        let how = Refinement {
            ignore: only(A),
            ..Refinement::default()
        };
        let left = refine(fixture::branching(), &how);
        assert_eq!(
            rows(&left),
            [(None, MAIN, 1, 1, 51), (Some(0), B, 1, 50, 50)]
        );
    }

    #[test]
    fn what_is_hidden_is_its_callers_and_its_callees_become_theirs() {
        let how = Refinement {
            hide: only(A),
            ..Refinement::default()
        };
        let hidden = refine(fixture::branching(), &how);
        assert_eq!(
            rows(&hidden),
            [(None, MAIN, 1, 11, 81), (Some(0), B, 2, 70, 70)]
        );
    }

    #[test]
    fn a_tree_may_begin_at_a_function() {
        let how = Refinement {
            show_from: only(B),
            ..Refinement::default()
        };
        let shown = refine(fixture::branching(), &how);
        assert_eq!(rows(&shown), [(None, B, 2, 70, 70)]);
    }

    #[test]
    fn calls_within_a_module_are_no_calls() {
        let how = Refinement {
            granularity: Granularity::Module,
            ..Refinement::default()
        };
        let modules = refine(fixture::branching(), &how);
        assert_eq!(rows(&modules), [(None, FuncId(4), 1, 81, 81)]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn focus_and_ignore_of_the_same_share_all_time(profile in arbitrary::program(), which in 0usize..4) {
            let meant: Matches = Some((0..profile.functions.len()).map(|one| one == which).collect());
            let focused = refine(profile.clone(), &Refinement { focus: meant.clone(), ..Refinement::default() });
            let ignored = refine(profile.clone(), &Refinement { ignore: meant, ..Refinement::default() });
            prop_assert_eq!(focused.validate(), Ok(()));
            prop_assert_eq!(ignored.validate(), Ok(()));
            let own = |profile: &Profile| flat(profile).iter().map(|row| row.self_ns).sum::<u64>();
            prop_assert_eq!(own(&focused) + own(&ignored), own(&profile));
        }

        #[test]
        fn nothing_wanted_is_nothing_changed(profile in arbitrary::program()) {
            let same = refine(profile.clone(), &Refinement::default());
            let figures = |profile: &Profile| -> Vec<_> {
                flat(profile).into_iter().map(|row| (row.function, row.calls, row.self_ns, row.min, row.max)).collect()
            };
            prop_assert_eq!(figures(&same), figures(&profile));
            prop_assert_eq!(summary(&same).time, summary(&profile).time);
        }
    }
}
