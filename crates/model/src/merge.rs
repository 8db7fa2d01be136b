//! Several recordings as one: each process that was followed has a snapshot of its own, and one
//! profile has them all.
//!
//! Modules and functions that two of them share become one, so that a report shows `malloc` once,
//! whoever called it.

use std::collections::{HashMap, HashSet};

use crate::counting;
use crate::ids::FuncId;
use crate::profile::{Module, Process, Profile, Site, SiteId, Skipped};
use crate::switched::Switched;
use crate::timeline::Mark;

/// Module and address; where the address is not known (imported from another tool, or no machine
/// code), name and line as well.
type FunctionKey = (u32, u64, Option<(String, u32)>);

/// Grows one profile out of several.
#[derive(Clone, Default)]
pub struct Merger {
    profile: Profile,
    /// By path and build id: another file under the same name is another module.
    modules: HashMap<(String, String), u32>,
    functions: HashMap<FunctionKey, FuncId>,
    sites: HashMap<(u32, u64, bool, String), u32>,
    skipped: HashSet<(String, u64, String)>,
    /// When the earliest one so far began.
    first_ns: Option<u64>,
}

impl Merger {
    /// Takes over everything of `other`, which began `later_ns` after the recording did. Of how
    /// that was made, the word of the one that began first is kept.
    pub fn add(&mut self, other: Profile, later_ns: u64) {
        let modules: Vec<u32> = other.modules.into_iter().map(|m| self.module(m)).collect();
        self.functions.reserve(other.functions.len());
        let functions: Vec<FuncId> = other
            .functions
            .into_iter()
            .map(|mut function| {
                // A profile that was not validated may name a module that is not there: the writing
                // will refuse it.
                if let Some(&module) = modules.get(function.module as usize) {
                    function.module = module;
                }
                let all = &mut self.profile.functions;
                let name = (function.address == 0).then(|| (function.name.clone(), function.line));
                let key = (function.module, function.address, name);
                let (waits, at_least) = (function.waits, function.at_least);
                let index = *self.functions.entry(key).or_insert_with(|| {
                    all.push(function);
                    FuncId::from_index(all.len() - 1)
                });
                let merged = &mut all[index];
                merged.waits |= waits;
                merged.at_least |= at_least;
                index
            })
            .collect();
        let number = |function: FuncId| {
            let known = functions.get(function.index()).copied();
            known.unwrap_or(FuncId(u32::MAX))
        };
        let sites: Vec<Option<SiteId>> = other
            .sites
            .into_iter()
            .map(|mut site| {
                site.module = modules
                    .get(site.module as usize)
                    .copied()
                    .unwrap_or(u32::MAX);
                self.site(site)
            })
            .collect();
        self.profile.recorded.add(other.recorded, later_ns, number);
        for mut process in other.processes {
            renumber(&mut process, &number);
            renumber_sites(&mut process, &sites);
            shift(&mut process, later_ns);
            self.profile.processes.push(process);
        }
        for mut switched in other.switched {
            switched.function = number(switched.function);
            self.switch(switched);
        }
        for mut sampled in other.sampled {
            sampled.function = number(sampled.function);
            let all = &mut self.profile.sampled;
            match all.binary_search_by_key(&sampled.function, |known| known.function) {
                Ok(index) => all[index] = all[index].plus(sampled),
                Err(index) => all.insert(index, sampled),
            }
        }
        for mut one in other.enters_kernel {
            one.function = number(one.function);
            let all = &mut self.profile.enters_kernel;
            match all.binary_search_by_key(&one.function, |known| known.function) {
                Ok(index) => all[index].made.add(&one.made),
                Err(index) => all.insert(index, one),
            }
        }
        if !other.blocks.is_empty() {
            match self.profile.blocks.is_empty() {
                true => self.profile.cycles_of = other.cycles_of.clone(),
                // Cycles of different processors are no sum.
                false if self.profile.cycles_of != other.cycles_of => {
                    self.profile.forget_costs();
                }
                false => {}
            }
        }
        for mut blocks in other.blocks {
            let Some(&module) = modules.get(blocks.module as usize) else {
                continue;
            };
            blocks.module = module;
            for block in &mut blocks.blocks {
                block.function = number(block.function);
            }
            let all = &mut self.profile.blocks;
            match all.binary_search_by_key(&module, |known| known.module) {
                Ok(index) => all[index].add(blocks),
                Err(index) => all.insert(index, blocks),
            }
        }
        if self.profile.cycles_of.is_none() {
            self.profile.forget_costs();
        }
        for skipped in other.skipped {
            self.skip(skipped);
        }
        self.profile
            .marks
            .extend(other.marks.into_iter().map(|mark| Mark {
                at_ns: mark.at_ns.saturating_add(later_ns),
                ..mark
            }));
        for note in other.notes {
            if !self.profile.notes.contains(&note) {
                self.profile.notes.push(note);
            }
        }
        let ours = &mut self.profile.meta;
        let memory_bytes = ours.memory_bytes.saturating_add(other.meta.memory_bytes);
        let pruned = ours.pruned.plus(other.meta.pruned);
        let held = ours.held.plus(other.meta.held);
        let sampling = match (ours.sampling, other.meta.sampling) {
            (Some(one), Some(other)) => Some(one.plus(other)),
            (one, other) => one.or(other),
        };
        let mut counting = std::mem::take(&mut ours.counting);
        counting::add(&mut counting, &other.meta.counting);
        let end = later_ns.saturating_add(other.meta.duration_ns);
        let duration_ns = ours.duration_ns.max(end);
        let mut metrics = std::mem::take(&mut ours.metrics);
        metrics.extend(&other.meta.metrics);
        metrics.sort_unstable();
        metrics.dedup();
        if self.first_ns.is_none_or(|first| later_ns < first) {
            *ours = other.meta;
            self.first_ns = Some(later_ns);
        }
        ours.memory_bytes = memory_bytes;
        ours.pruned = pruned;
        ours.held = held;
        ours.sampling = sampling;
        ours.counting = counting;
        ours.duration_ns = duration_ns;
        ours.metrics = metrics;
    }

    /// Equal places are one; those that are not known (imported from another tool) differ in their
    /// names.
    fn site(&mut self, site: Site) -> Option<SiteId> {
        let key = (site.module, site.address, site.jump, site.name.clone());
        let all = &mut self.profile.sites;
        let index = *self.sites.entry(key).or_insert_with(|| {
            all.push(site);
            all.len() as u32 - 1
        });
        SiteId::from_index(index)
    }

    pub fn finish(self) -> Profile {
        self.profile
    }

    fn module(&mut self, module: Module) -> u32 {
        let key = (module.path.clone(), module.build_id.clone());
        let all = &mut self.profile.modules;
        let index = *self.modules.entry(key).or_insert_with(|| {
            all.push(module.clone());
            all.len() as u32 - 1
        });
        // More of it may have been patched elsewhere; never less is said.
        let kept = &mut all[index as usize];
        kept.functions_total = kept.functions_total.max(module.functions_total);
        kept.functions_patched = kept.functions_patched.max(module.functions_patched);
        index
    }

    /// A function of several programs is as it was in the one that knows least of it.
    fn switch(&mut self, switched: Switched) {
        let all = &mut self.profile.switched;
        match all.binary_search_by_key(&switched.function, |known| known.function) {
            Ok(index) => {
                let known = &mut all[index];
                known.state = known.state.max(switched.state);
                known.off_ns = known.off_ns.max(switched.off_ns);
                known.changes = known.changes.saturating_add(switched.changes);
            }
            Err(index) => all.insert(index, switched),
        }
    }

    fn skip(&mut self, skipped: Skipped) {
        let key = (
            skipped.module.clone(),
            skipped.address,
            skipped.name.clone(),
        );
        if self.skipped.insert(key) {
            self.profile.skipped.push(skipped);
        }
    }
}

fn renumber(process: &mut Process, number: &impl Fn(FuncId) -> FuncId) {
    for thread in &mut process.threads {
        if let Some(creator) = &mut thread.created_by {
            creator.function = creator.function.map(number);
        }
        for node in &mut thread.nodes {
            node.function = number(node.function);
        }
        for frame in &mut thread.samples {
            frame.function = number(frame.function);
        }
    }
}

fn renumber_sites(process: &mut Process, sites: &[Option<SiteId>]) {
    for node in process.threads.iter_mut().flat_map(|t| &mut t.nodes) {
        node.site = node
            .site
            .and_then(|site| *sites.get(site.index() as usize)?);
    }
}

fn shift(process: &mut Process, later_ns: u64) {
    let later = |time: &mut u64| *time = time.saturating_add(later_ns);
    later(&mut process.start_ns);
    later(&mut process.end_ns);
    for thread in &mut process.threads {
        later(&mut thread.start_ns);
        later(&mut thread.end_ns);
        thread.timeline.shift(later_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Creator, Function, Meta, Node, Thread};
    use crate::samples::{SampleNode, Sampling};

    /// A program of one module of its own and the library that all share; `functions` are (module,
    /// address).
    fn recording(program: &str, functions: &[(u32, u64)]) -> Profile {
        let module = |path: &str| Module {
            path: path.into(),
            ..Module::default()
        };
        let nodes = (0..functions.len()).map(|function| Node {
            function: FuncId::from_index(function),
            calls: 1,
            ..Node::default()
        });
        let frames = (0..functions.len()).map(|function| SampleNode {
            function: FuncId::from_index(function),
            own: 1,
            ..SampleNode::default()
        });
        Profile {
            meta: Meta {
                sampling: Some(Sampling {
                    period_ns: 7,
                    samples: functions.len() as u64,
                    ..Sampling::default()
                }),
                ..Meta::default()
            },
            modules: vec![module(program), module("libc.so.6")],
            functions: functions
                .iter()
                .map(|&(module, address)| Function {
                    module,
                    address,
                    ..Function::default()
                })
                .collect(),
            processes: vec![Process {
                start_ns: 5,
                threads: vec![Thread {
                    created_by: Some(Creator {
                        pid: 1,
                        tid: 1,
                        function: Some(FuncId(0)),
                    }),
                    nodes: nodes.collect(),
                    samples: frames.collect(),
                    ..Thread::default()
                }],
                ..Process::default()
            }],
            ..Profile::default()
        }
    }

    #[test]
    fn a_library_of_two_programs_is_one_and_every_call_keeps_its_function() {
        let mut merger = Merger::default();
        merger.add(recording("sh", &[(0, 16), (1, 32)]), 0);
        merger.add(recording("ls", &[(1, 48), (1, 32), (0, 16)]), 100);
        let merged = merger.finish();
        merged.validate().unwrap();
        let paths: Vec<&str> = merged.modules.iter().map(|m| m.path.as_str()).collect();
        assert_eq!(paths, ["sh", "libc.so.6", "ls"]);
        let of = |process: usize| -> Vec<(&str, u64)> {
            merged.processes[process].threads[0]
                .nodes
                .iter()
                .map(|node| &merged.functions[node.function])
                .map(|f| (paths[f.module as usize], f.address))
                .collect()
        };
        assert_eq!(of(0), [("sh", 16), ("libc.so.6", 32)]);
        assert_eq!(of(1), [("libc.so.6", 48), ("libc.so.6", 32), ("ls", 16)]);
        for thread in merged.processes.iter().flat_map(|p| &p.threads) {
            let called = thread.nodes.iter().map(|node| node.function);
            assert!(called.eq(thread.samples.iter().map(|frame| frame.function)));
        }
        let sampling = merged.meta.sampling.unwrap();
        assert_eq!((sampling.period_ns, sampling.samples), (7, 5));
        assert_eq!(merged.functions.len(), 4);
        let creator = merged.processes[1].threads[0].created_by.unwrap();
        assert_eq!(creator.function, Some(FuncId(2)));
        assert_eq!(merged.processes[1].start_ns, 105);
    }

    #[test]
    fn functions_whose_address_nobody_knows_are_told_apart_by_name() {
        let imported = |names: [&str; 2]| {
            let mut profile = recording("sh", &[(0, 0), (0, 0)]);
            for (function, name) in profile.functions.iter_mut().zip(names) {
                function.name = name.into();
            }
            profile
        };
        let mut merger = Merger::default();
        merger.add(imported(["main", "parse"]), 0);
        merger.add(imported(["parse", "run"]), 0);
        let merged = merger.finish();
        let names: Vec<&str> = merged.functions.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["main", "parse", "run"]);
        assert_eq!(merged.processes[1].threads[0].nodes[0].function, FuncId(1));
    }
}
