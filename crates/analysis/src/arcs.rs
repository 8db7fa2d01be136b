//! Each function with those that called it above and those it called below: the Parent / Self /
//! Child report.
//!
//! In every stanza
//!
//! ```text
//! (1) sum of the parents' calls = calls of self
//! (2) sum of the parents' self  = self of self
//! (3) sum of the parents' total   = total of self
//! (4) sum of the children's total = total of self - self of self
//! ```
//!
//! Recursion must not break them. A parent's total counts the calls that had no other activation of
//! the function above them; a child's total is the time below the *innermost* activation of self,
//! up to where self is called again:
//!
//! ```text
//! f -> g -> f -> h      child g of f has total(g) - total(inner f), child h has total(h), child f of g has total(inner f)
//! ```
//!
//! Where a tree is not complete (folded calls, calls that were running when the data was read), the
//! part of total that no callee accounts for is given as [`Stanza::not_in_callees`].

use std::collections::BTreeMap;

use thalweg_model::{FuncId, NodeFlags, Profile, SiteId};

use crate::edges::Caller;
use crate::flat::{FunctionTotals, flat};
use crate::tree::{Tree, Weight};
use crate::{Extremes, outermost_total, threads};

/// Calls between self and another function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arc {
    pub other: Caller,
    /// Where the calls are made, if that is told apart.
    pub site: Option<SiteId>,
    pub calls: u64,
    /// Own time of the callee in these calls.
    pub self_ns: u64,
    pub total_ns: u64,
    /// Least and most own time of one of these calls, where one has ended that was timed.
    pub extremes: Option<[u64; 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stanza {
    pub own: FunctionTotals,
    /// Most total first.
    pub parents: Vec<Arc>,
    pub children: Vec<Arc>,
    /// What (4) lacks: positive for time that belongs to no known callee, 0 for a complete tree.
    pub not_in_callees: i128,
}

#[derive(Clone, Copy, Default)]
struct Sums {
    calls: u64,
    self_ns: u64,
    into: u64,
    /// Negative while what is below inner activations was taken off before it was added.
    below: i128,
    extremes: Extremes,
}

/// One per function that was seen, in the order of the profile's functions.
pub fn stanzas(profile: &Profile) -> Vec<Stanza> {
    let mut sums: BTreeMap<(Caller, FuncId, Option<SiteId>), Sums> = BTreeMap::new();
    let mut innermost: Vec<Vec<usize>> = vec![Vec::new(); profile.functions.len()];
    for (_, thread) in threads(profile) {
        let tree = Tree::new(thread, Weight::Calls);
        let mut path: Vec<(FuncId, Option<SiteId>)> = Vec::new();
        tree.walk(|index, entering| {
            let node = &tree.nodes[index as usize];
            let activations = &mut innermost[node.function.index()];
            if !entering {
                activations.pop();
                path.pop();
                return;
            }
            let caller = match path.last() {
                Some(&(parent, _)) => Caller::Function(parent),
                None if node.flags.contains(NodeFlags::FOLDED) => Caller::Unknown,
                None => Caller::Outside,
            };
            let arc = sums.entry((caller, node.function, node.site)).or_default();
            arc.calls = arc.calls.saturating_add(node.calls);
            arc.self_ns = arc.self_ns.saturating_add(node.self_ns);
            arc.extremes.add(node);
            arc.into = arc.into.saturating_add(outermost_total(node));
            arc.below += i128::from(node.total_ns);
            if let Some(&level) = activations.last() {
                // The callee through which this activation was reached from the one above it.
                let own = (node.function, node.site);
                let (through, site) = path.get(level + 1).copied().unwrap_or(own);
                let arc = sums
                    .entry((Caller::Function(node.function), through, site))
                    .or_default();
                arc.below -= i128::from(node.total_ns);
            }
            activations.push(path.len());
            path.push((node.function, node.site));
        });
    }
    collect(profile, &sums)
}

fn collect(
    profile: &Profile,
    sums: &BTreeMap<(Caller, FuncId, Option<SiteId>), Sums>,
) -> Vec<Stanza> {
    let mut parents: Vec<Vec<Arc>> = vec![Vec::new(); profile.functions.len()];
    let mut children: Vec<Vec<Arc>> = vec![Vec::new(); profile.functions.len()];
    for (&(caller, callee, site), sums) in sums {
        parents[callee.index()].push(Arc {
            other: caller,
            site,
            calls: sums.calls,
            self_ns: sums.self_ns,
            total_ns: sums.into,
            extremes: sums.extremes.both(),
        });
        if let Caller::Function(caller) = caller {
            children[caller.index()].push(Arc {
                other: Caller::Function(callee),
                site,
                calls: sums.calls,
                self_ns: sums.self_ns,
                total_ns: u64::try_from(sums.below.max(0)).unwrap_or(u64::MAX),
                extremes: sums.extremes.both(),
            });
        }
    }
    flat(profile)
        .into_iter()
        .map(|own| {
            // What was called through it while it was off is below its callers.
            let own = FunctionTotals {
                total_ns: own.total_ns - own.through,
                through: 0,
                ..own
            };
            let take = |arcs: &mut Vec<Vec<Arc>>| {
                let mut arcs = std::mem::take(&mut arcs[own.function.index()]);
                arcs.sort_by_key(|arc| std::cmp::Reverse((arc.total_ns, arc.calls)));
                arcs
            };
            let (parents, children) = (take(&mut parents), take(&mut children));
            let in_callees: i128 = children.iter().map(|arc| i128::from(arc.total_ns)).sum();
            Stanza {
                not_in_callees: i128::from(own.total_ns) - i128::from(own.self_ns) - in_callees,
                own,
                parents,
                children,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary;
    use crate::fixture::{self, A, B, MAIN};
    use proptest::prelude::*;

    /// start 0.1 -> main 1 -> a 10 -> { b 20 -> d, c 30 -> d }, 40 calls of d from each, 30 and 10
    /// of its 40 seconds: an even split by calls would give b 40 and c 50. In tenths of a second.
    #[test]
    fn two_callers_of_one_function_have_what_their_own_calls_took() {
        const NAMES: [&str; 6] = ["start", "main", "a", "b", "c", "d"];
        let node = |parent, function, calls, self_ns, total_ns| thalweg_model::Node {
            parent,
            function,
            calls,
            self_ns,
            total_ns,
            ..thalweg_model::Node::default()
        };
        let mut profile = fixture::chain(&[(MAIN, 1)]);
        profile.functions = NAMES.map(|_| profile.functions[0].clone()).to_vec();
        profile.processes[0].threads[0].nodes = vec![
            node(None, FuncId(0), 1, 1, 1011),
            node(Some(0), FuncId(1), 1, 10, 1010),
            node(Some(1), FuncId(2), 1, 100, 1000),
            node(Some(2), FuncId(3), 1, 200, 500),
            node(Some(3), FuncId(5), 40, 300, 300),
            node(Some(2), FuncId(4), 1, 300, 400),
            node(Some(5), FuncId(5), 40, 100, 100),
        ];
        let stanzas = stanzas(&profile);
        let total_ns: Vec<u64> = stanzas.iter().map(|stanza| stanza.own.total_ns).collect();
        assert_eq!(total_ns, [1011, 1010, 1000, 500, 400, 400]);
        let parents: Vec<(Caller, u64, u64)> = stanzas[5]
            .parents
            .iter()
            .map(|arc| (arc.other, arc.calls, arc.total_ns))
            .collect();
        assert_eq!(
            parents,
            [
                (Caller::Function(FuncId(3)), 40, 300),
                (Caller::Function(FuncId(4)), 40, 100)
            ]
        );
    }

    #[test]
    fn a_ring_of_two_shares_out_its_time_once() {
        // a 10 -> b 20 -> a 30 -> main 40, a called from outside.
        let profile = fixture::chain(&[(A, 10), (B, 20), (A, 30), (MAIN, 40)]);
        let stanzas = stanzas(&profile);
        let a = stanzas.iter().find(|s| s.own.function == A).unwrap();
        assert_eq!((a.own.total_ns, a.own.self_ns), (100, 40));
        let figures = |arcs: &[Arc]| -> Vec<(Caller, u64, u64, u64)> {
            arcs.iter()
                .map(|arc| (arc.other, arc.calls, arc.self_ns, arc.total_ns))
                .collect()
        };
        assert_eq!(
            figures(&a.parents),
            [
                (Caller::Outside, 1, 10, 100),
                (Caller::Function(B), 1, 30, 0)
            ]
        );
        assert_eq!(
            figures(&a.children),
            [
                (Caller::Function(MAIN), 1, 40, 40),
                (Caller::Function(B), 1, 20, 20)
            ]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_four_invariants_hold_in_every_stanza(profile in arbitrary::program()) {
            let stanzas = stanzas(&profile);
            for stanza in &stanzas {
                let own = stanza.own;
                let sum = |arcs: &[Arc], figure: fn(&Arc) -> u64| arcs.iter().map(figure).sum::<u64>();
                prop_assert_eq!(sum(&stanza.parents, |arc| arc.calls), own.calls);
                prop_assert_eq!(sum(&stanza.parents, |arc| arc.self_ns), own.self_ns);
                prop_assert_eq!(sum(&stanza.parents, |arc| arc.total_ns), own.total_ns);
                prop_assert_eq!(sum(&stanza.children, |arc| arc.total_ns), own.total_ns - own.self_ns);
                prop_assert_eq!(stanza.not_in_callees, 0);
                let least = stanza.parents.iter().filter_map(|arc| arc.extremes).map(|[least, _]| least).min();
                let most = stanza.parents.iter().filter_map(|arc| arc.extremes).map(|[_, most]| most).max();
                prop_assert_eq!((least.unwrap_or(0), most.unwrap_or(0)), (own.min, own.max));
            }
        }

        #[test]
        fn what_is_a_child_here_is_a_parent_there(profile in arbitrary::program()) {
            let stanzas = stanzas(&profile);
            for stanza in &stanzas {
                for child in &stanza.children {
                    let there = stanzas.iter().find(|s| Caller::Function(s.own.function) == child.other).unwrap();
                    let own = Caller::Function(stanza.own.function);
                    let here = there.parents.iter().find(|parent| parent.other == own).unwrap();
                    prop_assert_eq!((here.calls, here.self_ns), (child.calls, child.self_ns));
                }
            }
        }
    }
}
