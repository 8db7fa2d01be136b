//! Where calls were made from, where that was recorded: of the whole profile, before call sites are rolled up for every other response.

use std::collections::BTreeMap;

use serde::Serialize;
use thalweg_model::{FuncId, NodeFlags, Profile, Site, SiteId, Target};

#[derive(Default)]
pub struct CallSites {
    sites: Vec<Site>,
    calls: BTreeMap<Place, Sums>,
}

/// Callee, caller, and where in the caller.
type Place = (FuncId, Option<FuncId>, Option<SiteId>);

/// Calls, and the time of the outermost ones.
type Sums = (u64, u64);

#[derive(Serialize)]
pub struct Row<'a> {
    caller: Option<FuncId>,
    callee: FuncId,
    /// `parse+0x20`; nothing where the place is not known.
    name: &'a str,
    file: Option<&'a str>,
    line: u32,
    indirect: bool,
    tail: bool,
    calls: u64,
    total: u64,
}

impl CallSites {
    pub fn from_profile(profile: &Profile) -> CallSites {
        let mut calls: BTreeMap<Place, Sums> = BTreeMap::new();
        if profile.sites.is_empty() {
            return CallSites::default();
        }
        for (_, thread) in thalweg_analysis::threads(profile) {
            for node in &thread.nodes {
                let caller = node
                    .parent
                    .map(|parent| thread.nodes[parent as usize].function);
                let is_folded = node.parent.is_none() && node.flags.contains(NodeFlags::FOLDED);
                let counts = node.recursion == 0 || is_folded;
                let sums = calls.entry((node.function, caller, node.site)).or_default();
                sums.0 = sums.0.saturating_add(node.calls);
                sums.1 = sums
                    .1
                    .saturating_add(if counts { node.total_ns } else { 0 });
            }
        }
        CallSites {
            sites: profile.sites.clone(),
            calls,
        }
    }

    /// The places that a function is called from, and those in it that call others, most calls first.
    pub fn at_function(&self, function: FuncId) -> Vec<Row<'_>> {
        let about = self
            .calls
            .iter()
            .filter(|((callee, caller, _), _)| *callee == function || *caller == Some(function));
        let mut rows: Vec<Row> = about
            .map(|(&(callee, caller, site), &(calls, total_ns))| {
                let site = site.and_then(|site| self.sites.get(site.index() as usize));
                Row {
                    caller,
                    callee,
                    name: site.map_or("", |site| &site.name),
                    file: site.and_then(|site| site.file.as_deref()),
                    line: site.map_or(0, |site| site.line),
                    indirect: site.is_some_and(|site| site.target == Target::Indirect),
                    tail: site.is_some_and(|site| site.jump),
                    calls,
                    total: total_ns,
                }
            })
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse((row.calls, row.total)));
        rows
    }
}
