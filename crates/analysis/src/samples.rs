//! Samples of the stacks of threads, made use of: they tell whose time it was where the clock does not.
//!
//! ```text
//!   counted     p 100 ms -> q 20 ms, 5 calls                          samples   p 25, p -> g 75, p -> g -> q 12
//!
//!   becomes     p 25 ms -> g 75 ms, not counted                       own time of p by the samples that fell into it
//!                       -> q 20 ms, 5 calls                           q where it was counted
//! ```
//!
//! The counted tree stays as it is: no context moves, no call, and no edge between two counted functions appears (`fit.rs`). What changes is how
//! the thread's time, which is fixed before (`compensate.rs`), is divided among contexts and among functions that were not counted (`fuse.rs`).
//! Only stacks on which nothing is counted at all are time that no context had.
//!
//! Comes after what probes cost has been taken out and what was timed by sample has been estimated; everything later works on an ordinary tree.

mod errors;
mod fit;
mod fuse;

use std::collections::{BTreeMap, HashSet};

use thalweg_model::{
    FuncId, Function, Module, Node, NodeFlags, ProbeCosts, Profile, SampleNode, Thread, Timeline,
};

pub(crate) use self::errors::variance;
use self::errors::{Sums, add_errors, add_figures};
use self::fit::{Fitted, Runtime, fit};
use self::fuse::{Fused, divide};
use crate::compensate::take_from_all;
use crate::estimate::measured_longer;
use crate::rarity::Rarity;
use crate::selection::count_recursion;
use crate::uncertainty::Uncertainty;

/// Of all time: a file can say anything of what samples cost.
const MAX_SAMPLES_SHARE: f64 = 0.2;

/// The row of samples that fit no path of the counted tree.
pub const NOT_ATTRIBUTED: &str = "[not attributed]";
/// Less of a thread's time, in nanoseconds, makes no row.
const MIN_NOT_ATTRIBUTED_NS: f64 = 0.5;

/// Divides the time of contexts by what was seen in it. `false`: nothing was sampled, nothing timed, or it is done.
pub fn attribute_samples(profile: &mut Profile) -> bool {
    let Some(sampling) = profile.meta.sampling.filter(|_| profile.meta.timed) else {
        return false;
    };
    let was_off = profile.switched.iter().filter(|one| one.off_ns > 0);
    let not_timed = profile.switched.iter().map(|switched| switched.function);
    let scale = Scale {
        period_ns: sampling.period_ns as f64,
        functions: profile.functions.len(),
        was_off: was_off.map(|one| one.function).collect(),
        not_timed: not_timed.collect(),
        costs: profile.meta.costs.filter(|costs| costs.taken_out),
        rarity: Rarity::from_profile(profile),
        measured_longer: measured_longer(&profile.meta),
        runtime: Runtime::from_profile(profile),
        waits: profile.functions.iter().any(|function| function.waits),
    };
    let mut sums: BTreeMap<FuncId, Sums> = BTreeMap::new();
    let mut any = false;
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        let samples = std::mem::take(&mut thread.samples);
        thread.timeline = Timeline::default();
        if samples.iter().any(|frame| frame.own > 0) {
            attribute_thread(thread, &samples, &scale, &mut sums);
            any = true;
        }
    }
    name_not_attributed(profile, FuncId::from_index(scale.functions));
    for (function, sums) in sums.into_iter().filter(|(_, sums)| sums.used) {
        let sampled = sums.finish(function, scale.not_timed.contains(&function));
        match profile
            .sampled
            .binary_search_by_key(&function, |l| l.function)
        {
            Ok(index) => profile.sampled[index] = profile.sampled[index].plus(sampled),
            Err(index) => profile.sampled.insert(index, sampled),
        }
    }
    any
}

/// What a thread's samples are divided by.
struct Scale {
    period_ns: f64,
    /// How many there are; the next number stands for nobody.
    functions: usize,
    was_off: HashSet<FuncId>,
    not_timed: HashSet<FuncId>,
    /// What probes cost, where it was taken out.
    costs: Option<ProbeCosts>,
    rarity: Rarity,
    /// What a timed call among untimed ones may be measured too long by.
    measured_longer: f64,
    runtime: Runtime,
    /// The program waits for what it has begun, and probes are done meanwhile.
    waits: bool,
}

fn attribute_thread(
    thread: &mut Thread,
    samples: &[SampleNode],
    scale: &Scale,
    sums: &mut BTreeMap<FuncId, Sums>,
) {
    let nodes = &mut thread.nodes;
    let seen: f64 = samples.iter().map(|frame| frame.own as f64).sum();
    if let Some(costs) = &scale.costs {
        // What the samples themselves took fell on all contexts alike.
        take_from_all(nodes, seen * costs.sample_ns, MAX_SAMPLES_SHARE);
    }
    let fitted = fit(nodes, samples, &scale.runtime);
    let uncertainty = Uncertainty::new(
        nodes,
        scale.costs.as_ref(),
        &scale.rarity,
        scale.measured_longer,
        &scale.was_off,
    );
    let fused = divide(nodes, &uncertainty, &fitted, scale.period_ns);
    add_errors(nodes, &uncertainty, &fitted, scale, sums);
    let places = take_over(nodes, &fitted, &fused, scale);
    count_recursion(nodes, scale.functions + 1);
    add_figures(nodes, &places, &fitted, &fused, &uncertainty, scale, sums);
}

/// The new times, and what was not counted below what was. Returns which node each place is: none where nothing was seen in it.
fn take_over(
    nodes: &mut Vec<Node>,
    fitted: &Fitted,
    fused: &Fused,
    scale: &Scale,
) -> Vec<Option<u32>> {
    let own_times = own_times(nodes);
    let contexts = nodes.len();
    let mut needed = vec![false; fitted.places.len()];
    for (index, place) in fitted.places.iter().enumerate().rev() {
        needed[index] |= index < contexts || place.own + place.outside > 0.0;
        if let Some(parent) = place.parent {
            needed[parent as usize] |= needed[index];
        }
    }
    let mut places: Vec<Option<u32>> = Vec::with_capacity(needed.len());
    for (index, (place, needed)) in fitted.places.iter().zip(needed).enumerate() {
        if index >= contexts && needed {
            nodes.push(Node {
                parent: place.parent.and_then(|parent| places[parent as usize]),
                function: place.function,
                flags: NodeFlags::SAMPLED,
                ..Node::default()
            });
            places.push(Some(nodes.len() as u32 - 1));
        } else {
            places.push(needed.then_some(index as u32));
        }
    }
    // Whole nanoseconds, of which none is lost.
    let mut left = 0.0;
    for (index, node) in places.iter().enumerate() {
        let Some(node) = node.map(|node| &mut nodes[node as usize]) else {
            continue;
        };
        let wanted = fused.own[index] + left;
        let self_ns = wanted.round().max(0.0);
        left = wanted - self_ns;
        let is_one_call = node.calls == 1 && node.untimed == 0 && node.max == node.self_ns;
        let outside = (fitted.places[index].outside * scale.period_ns).round();
        node.self_ns = (self_ns as u64).saturating_add(outside as u64);
        if is_one_call {
            (node.min, node.max) = (node.self_ns, node.self_ns);
        }
        if fused.sampled[index] {
            node.flags |= NodeFlags::SAMPLED;
        }
    }
    if fused.not_attributed >= MIN_NOT_ATTRIBUTED_NS {
        nodes.push(Node {
            function: FuncId::from_index(scale.functions),
            self_ns: (fused.not_attributed + left).round().max(0.0) as u64,
            flags: NodeFlags::SAMPLED,
            ..Node::default()
        });
    }
    add_up(nodes, &own_times);
    places
}

/// Gives the row of what is nobody's its name, if there is one.
fn name_not_attributed(profile: &mut Profile, number: FuncId) {
    let threads = profile.processes.iter().flat_map(|p| &p.threads);
    let mut nodes = threads.flat_map(|thread| &thread.nodes);
    if nodes.any(|node| node.function == number) {
        profile.modules.push(Module {
            name: "[samples]".into(),
            ..Module::default()
        });
        profile.functions.push(Function {
            name: NOT_ATTRIBUTED.into(),
            module: profile.modules.len() as u32 - 1,
            ..Function::default()
        });
    }
}

/// What a context has by itself beyond its self, so that its times can be added up anew.
#[derive(Clone, Copy, Default)]
struct Own {
    /// Of total, what is neither self nor a callee's.
    total_ns: i128,
    waited: i128,
}

fn own_times(nodes: &[Node]) -> Vec<Own> {
    let waited = |node: &Node| i128::from(node.wall_ns) - i128::from(node.total_ns);
    let mut own: Vec<Own> = nodes
        .iter()
        .map(|node| Own {
            total_ns: i128::from(node.total_ns) - i128::from(node.self_ns),
            waited: waited(node),
        })
        .collect();
    for node in nodes {
        if let Some(parent) = node.parent {
            let above = &mut own[parent as usize];
            above.total_ns -= i128::from(node.total_ns);
            above.waited -= waited(node);
        }
    }
    own
}

/// Cum and wall, from below. `own`: of the nodes that were there before.
fn add_up(nodes: &mut [Node], own: &[Own]) {
    let clamp = |time: i128| time.clamp(0, u64::MAX.into()) as u64;
    let mut below = vec![Own::default(); nodes.len()];
    for (index, node) in nodes.iter_mut().enumerate().rev() {
        let own = own.get(index).copied().unwrap_or_default();
        let sum = Own {
            total_ns: own.total_ns + below[index].total_ns,
            waited: own.waited + below[index].waited,
        };
        let total_ns = i128::from(node.self_ns) + sum.total_ns;
        node.total_ns = clamp(total_ns);
        node.wall_ns = clamp(total_ns + sum.waited);
        if let Some(parent) = node.parent {
            let above = &mut below[parent as usize];
            above.total_ns += total_ns;
            above.waited += sum.waited;
        }
    }
}

#[cfg(test)]
mod tests;
