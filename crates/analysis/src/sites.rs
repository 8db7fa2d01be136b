//! Contexts that call sites tell apart: adding them up again, and counting how calls were made.
//!
//! ```text
//! main -> f (called at main+0x10)            main -> f
//!      -> f (called at main+0x24)   rolled up
//! ```
//!
//! Every view but those that were asked for sites is one of the rolled-up trees.

use std::collections::HashMap;

use thalweg_model::{FuncId, Node, Profile, SiteId, Target};

use crate::Extremes;
use crate::combine::{lay, take_tree};
use crate::pairs::PairTable;

/// Of calls whose site is known, how many named what they called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteCalls {
    /// By an address in the instruction or through the linkage table.
    pub direct: u64,
    /// By a pointer.
    pub indirect: u64,
    /// From a place that is not known or not understood.
    pub unknown: u64,
    /// How many places calls were made from.
    pub sites: u64,
}

/// `None` where sites were not recorded.
pub fn site_calls(profile: &Profile) -> Option<SiteCalls> {
    if profile.sites.is_empty() {
        return None;
    }
    let mut calls = SiteCalls {
        sites: profile.sites.len() as u64,
        ..SiteCalls::default()
    };
    for (_, thread) in crate::threads(profile) {
        for node in &thread.nodes {
            let sum = match target(profile, node) {
                Target::Direct => &mut calls.direct,
                Target::Indirect => &mut calls.indirect,
                Target::Unknown => &mut calls.unknown,
            };
            *sum = sum.saturating_add(node.calls);
        }
    }
    Some(calls)
}

/// How the calls of a context were made.
pub fn target(profile: &Profile, node: &Node) -> Target {
    node.site.map_or(Target::Unknown, |site| {
        profile.sites[site.index() as usize].target
    })
}

/// The same profile with call sites forgotten: one context per function and caller's context.
pub fn rolled_up(mut profile: Profile) -> Profile {
    if profile.sites.is_empty() {
        return profile;
    }
    profile.sites.clear();
    for process in &mut profile.processes {
        for thread in &mut process.threads {
            for node in &mut thread.nodes {
                node.site = None;
            }
            let with_sites = take_tree(thread);
            let mut extremes: Vec<Extremes> = Vec::new();
            let mut table = PairTable::new();
            let mut callees = Callees::default();
            lay(thread, &mut extremes, &mut table, &mut callees, &with_sites);
            for (node, extremes) in thread.nodes.iter_mut().zip(&extremes) {
                (node.min, node.max) = (extremes.min.unwrap_or(0), extremes.max);
            }
        }
    }
    profile
}

/// A number for a function and where it is called from: the function's own where that is not told
/// apart.
#[derive(Default)]
pub struct Callees {
    numbers: HashMap<(FuncId, SiteId), u32>,
}

/// Beyond the numbers of functions.
const FIRST_SITE_NUMBER: u32 = 1 << 31;

impl Callees {
    pub fn number(&mut self, function: FuncId, site: Option<SiteId>) -> u32 {
        let Some(site) = site else { return function.0 };
        let next = FIRST_SITE_NUMBER + self.numbers.len() as u32;
        *self.numbers.entry((function, site)).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::{flat, stanzas};
    use thalweg_model::Site;

    /// main calls a at two places, which call b by name and by a pointer.
    fn two_sites() -> Profile {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (B, 5)]);
        profile.sites = [Target::Direct, Target::Direct, Target::Indirect]
            .map(|target| Site {
                target,
                ..Site::default()
            })
            .to_vec();
        let nodes = &mut profile.processes[0].threads[0].nodes;
        let mut second: Vec<Node> = nodes[1..].to_vec();
        for (index, node) in second.iter_mut().enumerate() {
            node.parent = Some(if index == 0 { 0 } else { 3 });
            node.calls = 7;
        }
        nodes.extend(second);
        nodes[0].total_ns += nodes[1].total_ns;
        for (index, site) in [(1, 0), (2, 2), (3, 1), (4, 2)] {
            nodes[index].site = SiteId::from_index(site);
        }
        profile
    }

    #[test]
    fn calls_are_counted_by_how_they_are_made() {
        let calls = site_calls(&two_sites()).unwrap();
        assert_eq!((calls.direct, calls.indirect, calls.unknown), (8, 8, 1));
        assert_eq!(site_calls(&fixture::branching()), None);
    }

    #[test]
    fn rolled_up_trees_have_the_figures_of_all_sites() {
        let profile = two_sites();
        let rolled = rolled_up(profile.clone());
        assert_eq!(rolled.validate(), Ok(()));
        assert_eq!(flat(&rolled).len(), flat(&profile).len());
        for (before, after) in flat(&profile).iter().zip(flat(&rolled)) {
            assert_eq!(
                (
                    before.calls,
                    before.self_ns,
                    before.total_ns,
                    before.min,
                    before.max
                ),
                (
                    after.calls,
                    after.self_ns,
                    after.total_ns,
                    after.min,
                    after.max
                )
            );
        }
        let nodes = &rolled.processes[0].threads[0].nodes;
        let shape: Vec<_> = nodes.iter().map(|n| (n.parent, n.function)).collect();
        assert_eq!(shape, [(None, MAIN), (Some(0), A), (Some(1), B)]);
    }

    #[test]
    fn arcs_are_split_by_site_and_still_add_up() {
        let stanzas = stanzas(&two_sites());
        let of_a = &stanzas[A.index()];
        assert_eq!(of_a.parents.len(), 2);
        let calls: u64 = of_a.parents.iter().map(|arc| arc.calls).sum();
        assert_eq!(calls, of_a.own.calls);
        let total_ns: u64 = of_a.parents.iter().map(|arc| arc.total_ns).sum();
        assert_eq!(total_ns, of_a.own.total_ns);
        assert_eq!(of_a.not_in_callees, 0);
    }
}
