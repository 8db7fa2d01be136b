//! Slots and trees are recycled: those that ended threads handed on to new ones are as many as there were such threads at a time: of no interest by
//! themselves. The profile has one thread in the place of all of a process that have the same creator.

use std::collections::HashMap;

use thalweg_model as model;

/// The threads that others were added to.
#[derive(Default)]
pub struct MergeRecycled {
    /// By process and place among its threads: where each context is.
    known: HashMap<(u32, usize), Places>,
}

/// By caller, function and call site.
type Places = HashMap<(Option<u32>, model::FuncId, Option<model::SiteId>), u32>;

impl MergeRecycled {
    /// Adds the thread to the one of the process that it belongs with, or makes it that one.
    pub fn add(&mut self, process: &mut model::Process, thread: model::Thread) {
        let same = |t: &model::Thread| t.others > 0 && t.created_by == thread.created_by;
        match process.threads.iter().rposition(same) {
            Some(place) if thread.others > 0 => {
                let into = &mut process.threads[place];
                let key = (process.pid, place);
                let known = self.known.entry(key).or_insert_with(|| places(into));
                merge(into, thread, known);
            }
            _ => process.threads.push(thread),
        }
    }
}

fn places(thread: &model::Thread) -> Places {
    (0..)
        .zip(&thread.nodes)
        .map(|(index, node)| ((node.parent, node.function, node.site), index))
        .collect()
}

fn merge(into: &mut model::Thread, from: model::Thread, known: &mut Places) {
    let mut places: Vec<u32> = Vec::with_capacity(from.nodes.len());
    for (index, node) in (0..).zip(from.nodes) {
        let parent = node.parent.map(|parent| places[parent as usize]);
        let fresh = into.nodes.len() as u32;
        let place = *known
            .entry((parent, node.function, node.site))
            .or_insert(fresh);
        places.push(place);
        into.metrics.add(place, from.metrics.at(index));
        if place == fresh {
            into.nodes.push(model::Node { parent, ..node });
        } else {
            add_figures(&mut into.nodes[place as usize], &node);
        }
    }
    into.add_samples(&from.samples);
    // One that stands for many was in several places at a time.
    into.timeline = model::Timeline::default();
    into.others = into.others.saturating_add(from.others).saturating_add(1);
    into.start_ns = into.start_ns.min(from.start_ns);
    if from.end_ns > into.end_ns {
        into.end_ns = from.end_ns;
        into.tid = from.tid;
        into.name = from.name;
    }
}

fn add_figures(into: &mut model::Node, from: &model::Node) {
    // Both are 0 as long as no call has ended.
    into.min = match (into.min, into.max) {
        (0, 0) => from.min,
        _ if (from.min, from.max) == (0, 0) => into.min,
        _ => into.min.min(from.min),
    };
    into.max = into.max.max(from.max);
    into.calls = into.calls.saturating_add(from.calls);
    into.self_ns = into.self_ns.saturating_add(from.self_ns);
    into.total_ns = into.total_ns.saturating_add(from.total_ns);
    into.wall_ns = into.wall_ns.saturating_add(from.wall_ns);
    into.terminal = into.terminal.saturating_add(from.terminal);
    into.unwound = into.unwound.saturating_add(from.unwound);
    into.untimed = into.untimed.saturating_add(from.untimed);
    into.flags |= from.flags;
}
