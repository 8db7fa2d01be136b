//! From trees of looks to a profile: each goes to the thread that it is of.

use thalweg_model as model;
use thalweg_model::SampleNode;
use thalweg_shm as shm;

use super::Sampler;
use super::tree::Tree;

impl Sampler {
    /// Adds what was seen so far.
    pub(crate) fn add_to(&self, profile: &mut model::Profile, header: &shm::Header) {
        let numbers = self.functions.add_to(profile);
        let chosen_only = header.flags & shm::HEADER_CHOSEN != 0;
        let ended = self.ended.iter().map(|(whose, tree)| (*whose, tree));
        let living = self.trees.iter().map(|(whose, tree)| (*whose, tree));
        let mut all: Vec<((u32, u32), &Tree)> = ended.chain(living).collect();
        all.sort_by_key(|(whose, tree)| (tree.first_ns, *whose));
        for ((pid, tid), tree) in all {
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
        profile.meta.sampling = Some(self.totals);
        profile.notes.extend(self.notes.iter().cloned());
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
