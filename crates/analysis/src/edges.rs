//! Who called whom, how often, and what share of the callee's time that was.

use std::collections::BTreeMap;

use thalweg_model::{FuncId, NodeFlags, Profile, SiteId};

use crate::{outermost_total, threads};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Caller {
    /// Nothing was seen above: the start of a thread, or code that is not patched.
    Outside,
    Function(FuncId),
    /// The call was folded, and its context with it.
    Unknown,
}

/// All calls of one function by one caller. The `total` of a callee's edges add up to the callee's
/// total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    pub caller: Caller,
    pub callee: FuncId,
    /// Where the calls are made, if that is told apart.
    pub site: Option<SiteId>,
    pub calls: u64,
    pub total_ns: u64,
}

/// Sorted by callee, then caller, then site.
pub fn edges(profile: &Profile) -> Vec<Edge> {
    let mut sums: BTreeMap<(FuncId, Caller, Option<SiteId>), (u64, u64)> = BTreeMap::new();
    for (_, thread) in threads(profile) {
        for node in &thread.nodes {
            let caller = match node.parent {
                Some(parent) => Caller::Function(thread.nodes[parent as usize].function),
                None if node.flags.contains(NodeFlags::FOLDED) => Caller::Unknown,
                None => Caller::Outside,
            };
            let (calls, total_ns) = sums.entry((node.function, caller, node.site)).or_default();
            *calls = calls.saturating_add(node.calls);
            *total_ns = total_ns.saturating_add(outermost_total(node));
        }
    }
    sums.into_iter()
        .map(|((callee, caller, site), (calls, total_ns))| Edge {
            caller,
            callee,
            site,
            calls,
            total_ns,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, A, B, MAIN};
    use crate::flat;

    #[test]
    fn each_pair_has_its_calls_and_the_callees_time_is_shared_out() {
        let mut profile = fixture::chain(&[(MAIN, 1), (A, 10), (A, 20), (B, 5), (A, 40)]);
        fixture::fold(&mut profile, A, 7, 30);
        let edges = edges(&profile);
        let of = |caller, callee| {
            let edge = edges
                .iter()
                .find(|e| (e.caller, e.callee) == (caller, callee))
                .unwrap();
            (edge.calls, edge.total_ns)
        };
        assert_eq!(of(Caller::Outside, MAIN), (1, 76));
        assert_eq!(of(Caller::Function(MAIN), A), (1, 75));
        assert_eq!(of(Caller::Function(A), A), (1, 0));
        assert_eq!(of(Caller::Function(A), B), (1, 45));
        assert_eq!(of(Caller::Function(B), A), (1, 0));
        assert_eq!(of(Caller::Unknown, A), (7, 30));
        assert_eq!(edges.len(), 6);

        for row in flat(&profile) {
            let own = edges.iter().filter(|edge| edge.callee == row.function);
            let sums = own.fold((0, 0), |(calls, total_ns), e| {
                (calls + e.calls, total_ns + e.total_ns)
            });
            assert_eq!(sums, (row.calls, row.total_ns));
        }
    }
}
