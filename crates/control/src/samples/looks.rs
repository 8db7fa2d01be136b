//! All that was seen so far: a tree for each thread. It goes into profiles, and as bytes to those who read the target while another looks.
//!
//! As bytes it is a profile of its own kind: its first module stands for the target's catalog, and a function of it has its number there
//! in the place of an address.

use std::collections::HashMap;
use std::sync::Arc;

use thalweg_model as model;
use thalweg_model::{SampleNode, Sampling};
use thalweg_shm as shm;

use super::functions::{Function, FunctionId, Functions, ModuleName};
use super::tree::{Seen, Tree};
use crate::error::{Error, Result};

#[derive(Default)]
pub(crate) struct Looks {
    pub(super) functions: Functions,
    /// Of threads that live, as far as is known, by process and thread.
    pub(super) trees: HashMap<(u32, u32), Tree>,
    /// Whose tree, and what it was when the thread ended; 0 instead of a thread's number: of many.
    pub(super) ended: Vec<((u32, u32), Tree)>,
    /// Nobody looked where the period is 0.
    pub(super) totals: Sampling,
    /// What is to be said of it.
    pub(super) notes: Vec<String>,
}

/// Of the profile that stands for looks as bytes: the module of functions that have probes.
const CATALOG: u32 = 0;

impl Looks {
    /// In the order in which they were first looked at.
    fn all(&self) -> Vec<((u32, u32), &Tree)> {
        let ended = self.ended.iter().map(|(whose, tree)| (*whose, tree));
        let living = self.trees.iter().map(|(whose, tree)| (*whose, tree));
        let mut all: Vec<((u32, u32), &Tree)> = ended.chain(living).collect();
        all.sort_by_key(|(whose, tree)| (tree.first_ns, *whose));
        all
    }

    /// Adds what was seen so far.
    pub(crate) fn add_to(&self, profile: &mut model::Profile, header: &shm::Header) {
        let numbers = self.functions.add_to(profile);
        let chosen_only = header.flags & shm::HEADER_CHOSEN != 0;
        for ((pid, tid), tree) in self.all() {
            let Some(process) = profile.processes.iter_mut().find(|p| p.pid == pid) else {
                continue;
            };
            let ns = |monotonic: u64| monotonic.saturating_sub(header.attach_monotonic_ns);
            let (first, last) = (ns(tree.first_ns), ns(tree.last_ns));
            let thread = match thread_of(&process.threads, tid, last) {
                Some(index) => &mut process.threads[index],
                None if chosen_only => continue,
                None => {
                    // One that never called a function that is counted.
                    process.threads.push(model::Thread {
                        tid,
                        name: tree.name.clone(),
                        start_ns: first,
                        end_ns: last,
                        ..model::Thread::default()
                    });
                    process.threads.last_mut().expect("just pushed")
                }
            };
            thread.add_samples(&nodes(tree, &numbers));
        }
        if self.totals.period_ns > 0 {
            profile.meta.sampling = Some(self.totals);
        }
        profile.notes.extend(self.notes.iter().cloned());
    }

    /// For another process; `more` is said as well.
    pub(super) fn encode(&self, more: Vec<String>) -> Result<Vec<u8>> {
        let mut profile = model::Profile {
            modules: vec![model::Module::default()],
            notes: self.notes.iter().cloned().chain(more).collect(),
            ..model::Profile::default()
        };
        profile.meta.sampling = Some(self.totals);
        let numbers = self.functions.encode(&mut profile, CATALOG);
        for ((pid, tid), tree) in self.all() {
            let known = profile.processes.iter().position(|p| p.pid == pid);
            let process = known.unwrap_or_else(|| {
                profile.processes.push(model::Process {
                    pid,
                    ..model::Process::default()
                });
                profile.processes.len() - 1
            });
            profile.processes[process].threads.push(model::Thread {
                tid,
                name: tree.name.clone(),
                start_ns: tree.first_ns,
                end_ns: tree.last_ns,
                samples: nodes(tree, &numbers),
                ..model::Thread::default()
            });
        }
        model::write(&profile)
            .map_err(|error| Error::Other(format!("looks cannot be written down: {error}")))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Looks> {
        let profile = model::read(&mut &*bytes)
            .map_err(|error| Error::Other(format!("the looks that the target carries: {error}")))?;
        let modules: Vec<Arc<ModuleName>> = profile
            .modules
            .iter()
            .map(|module| {
                Arc::new(ModuleName {
                    name: module.name.clone(),
                    path: module.path.clone(),
                    build_id: module.build_id.clone(),
                    functions: module.functions_total,
                })
            })
            .collect();
        let mut functions = Functions::default();
        let ids = profile.functions.iter().map(|function| {
            functions.id(match function.module {
                CATALOG => Function::Probed(u32::try_from(function.address).unwrap_or(u32::MAX)),
                module => Function::Unprobed {
                    module: modules[module as usize].clone(),
                    address: function.address,
                    name: function.name.clone(),
                },
            })
        });
        let ids: Vec<FunctionId> = ids.collect();
        let mut ended = Vec::new();
        for process in profile.processes {
            for thread in process.threads {
                let seen = thread.samples.iter().map(|node| Seen {
                    parent: node.parent,
                    function: ids[node.function as usize],
                    counted: node.counted,
                    own: node.own,
                });
                let mut tree = Tree::new(thread.start_ns, thread.name);
                tree.nodes = seen.collect();
                tree.last_ns = thread.end_ns;
                ended.push(((process.pid, thread.tid), tree));
            }
        }
        Ok(Looks {
            functions,
            trees: HashMap::new(),
            ended,
            totals: profile.meta.sampling.unwrap_or_default(),
            notes: profile.notes,
        })
    }
}

/// Of several threads that had the same number the last one that had begun by then; else one that stands for many.
fn thread_of(threads: &[model::Thread], tid: u32, last_ns: u64) -> Option<usize> {
    let with_number = || (0..).zip(threads).filter(|(_, thread)| thread.tid == tid);
    let had_begun = with_number().filter(|(_, thread)| thread.start_ns <= last_ns);
    had_begun
        .max_by_key(|(_, thread)| thread.start_ns)
        .or_else(|| with_number().next())
        .map(|(index, _)| index)
        .or_else(|| threads.iter().rposition(|thread| thread.others > 0))
}

fn nodes(tree: &Tree, numbers: &[Option<u32>]) -> Vec<SampleNode> {
    let mut places: Vec<Option<u32>> = Vec::with_capacity(tree.nodes.len());
    let mut nodes: Vec<SampleNode> = Vec::with_capacity(tree.nodes.len());
    for seen in &tree.nodes {
        let parent = seen.parent.map(|parent| places[parent as usize]);
        // What the catalog that the target carries does not name any more is left out, with all that is below.
        let (Some(function), false) = (numbers[seen.function.0 as usize], parent == Some(None))
        else {
            places.push(None);
            continue;
        };
        let parent = parent.flatten();
        places.push(Some(nodes.len() as u32));
        nodes.push(SampleNode {
            parent,
            function,
            counted: seen.counted,
            own: seen.own,
        });
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks() -> Looks {
        let mut looks = Looks {
            totals: Sampling {
                period_ns: 2_004_017,
                looks: 7,
                lost: 1,
                ..Sampling::default()
            },
            notes: vec!["a note".into()],
            ..Looks::default()
        };
        let module = Arc::new(ModuleName {
            name: "libx.so".into(),
            path: "/lib/libx.so".into(),
            build_id: "ab".into(),
            functions: 3,
        });
        let counted = looks.functions.id(Function::Probed(1));
        let not = looks.functions.id(Function::Unprobed {
            module,
            address: 0x40,
            name: "small".into(),
        });
        let mut tree = Tree::new(1_000, "worker".into());
        tree.last_ns = 2_000;
        for (stack, times) in [
            (vec![(counted, true)], 2),
            (vec![(counted, true), (not, false)], 5),
        ] {
            for _ in 0..times {
                tree.add(stack.iter().copied(), 100);
            }
        }
        looks.trees.insert((10, 11), tree.clone());
        looks.ended.push(((10, 0), tree));
        looks
    }

    /// A process that counts two functions, 500 ns before the first look.
    fn profile() -> (model::Profile, shm::Header) {
        let mut header: shm::Header = crate::memory::zeroed();
        header.attach_monotonic_ns = 500;
        let mut profile = model::Profile {
            modules: vec![model::Module::default()],
            functions: vec![model::Function::default(); 2],
            ..model::Profile::default()
        };
        profile.processes.push(model::Process {
            pid: 10,
            ..model::Process::default()
        });
        (profile, header)
    }

    #[test]
    fn what_another_process_reads_is_what_was_seen() {
        let (mut own, header) = profile();
        looks().add_to(&mut own, &header);
        let bytes = looks().encode(Vec::new()).expect("bytes");
        let (mut read, _) = profile();
        Looks::decode(&bytes)
            .expect("looks")
            .add_to(&mut read, &header);
        assert_eq!(own, read);
        assert_eq!(own.functions[2].name, "small");
        let threads = &own.processes[0].threads;
        assert_eq!((threads.len(), threads[1].samples.len()), (2, 2));
        assert_eq!((threads[1].start_ns, threads[1].end_ns), (500, 1500));
    }

    #[test]
    fn scribbled_bytes_are_no_looks() {
        let mut bytes = looks().encode(Vec::new()).expect("bytes");
        bytes.truncate(bytes.len() - 3);
        assert!(Looks::decode(&bytes).is_err());
        assert!(Looks::decode(&[]).is_err());
    }
}
