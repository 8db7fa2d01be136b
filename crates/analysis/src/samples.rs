//! Looks at the stacks of threads, made use of: they tell who ran in the time of a context while it was not counted.
//!
//! ```text
//!   contexts    p 100 ms -> q 20 ms, 5 calls          looks   p 25, p -> g 75, p -> g -> q 9, p -> q 3
//!
//!   becomes     p 25 ms -> g 75 ms -> q 15 ms, 4 calls                base(p) by the looks that fell into it
//!                       -> q 5 ms, 1 call                             q by the ways in which it was reached
//! ```
//!
//! Nothing is added and nothing lost: what g has was p's own before, and all contexts of a function together have the calls that they had. A
//! context that no look fell into stays as it was; where it was reached in several ways, it goes the one with most looks. Only
//! stacks on which nothing is counted at all are time that no context had.
//!
//! A call that returned while its function was off, unseen, seems to last until the thread's next event. Where such a function has much more
//! time than was seen in it, in one call, that is the caller's.
//!
//! Which frames are contexts is found out in `ways.rs`. Comes after what probes cost has been taken out and what was timed by sample has been
//! estimated; everything later works on an ordinary tree. Error: each share of a context's time is that of a sample.

mod errors;
mod ways;

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_model::{
    Metrics, Node, NodeFlags, NodeMetrics, ProbeCosts, Profile, SampleNode, SiteId, Thread,
};

pub(crate) use self::errors::variance;
use self::errors::{Sums, add_errors, add_figures};
use self::ways::{FEWEST_LOOKS, Way, ways};
use crate::Extremes;
use crate::blend::{Doubts, blend};
use crate::narrow::count_recursion;

/// What chance does once in a thousand times.
const THREE_SIGMA: f64 = 3.0;

/// Of all time: a file can say anything of what looks cost.
const MOST_OF_LOOKS: f64 = 0.2;

/// Divides the time of contexts by what was seen in it. `false`: nothing was looked at, nothing timed, or it is done.
pub fn fill(profile: &mut Profile) -> bool {
    let Some(sampling) = profile.meta.sampling.filter(|_| profile.meta.timed) else {
        return false;
    };
    let switched = profile.switched.iter().map(|switched| switched.function);
    let scale = Scale {
        period_ns: sampling.period_ns,
        functions: profile.functions.len(),
        switched: &switched.collect(),
        costs: profile.meta.costs.filter(|costs| costs.taken_out),
    };
    let mut sums: BTreeMap<u32, Sums> = BTreeMap::new();
    let mut any = false;
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        let samples = std::mem::take(&mut thread.samples);
        if samples.iter().any(|frame| frame.own > 0) {
            fill_thread(thread, &samples, &scale, &mut sums);
            any = true;
        }
    }
    for (function, sums) in sums.into_iter().filter(|(_, sums)| sums.used) {
        let looked = sums.finish(function, scale.switched.contains(&function));
        match profile
            .looked
            .binary_search_by_key(&function, |l| l.function)
        {
            Ok(index) => profile.looked[index] = profile.looked[index].plus(looked),
            Err(index) => profile.looked.insert(index, looked),
        }
    }
    any
}

/// What a thread's looks are divided by.
struct Scale<'a> {
    period_ns: u64,
    functions: usize,
    switched: &'a HashSet<u32>,
    /// What probes cost, where it was taken out.
    costs: Option<ProbeCosts>,
}

fn fill_thread(
    thread: &mut Thread,
    samples: &[SampleNode],
    scale: &Scale,
    sums: &mut BTreeMap<u32, Sums>,
) {
    let mut nodes = std::mem::take(&mut thread.nodes);
    let metrics = std::mem::take(&mut thread.metrics);
    let looks: f64 = samples.iter().map(|frame| frame.own as f64).sum();
    if let Some(costs) = &scale.costs {
        take_out(&mut nodes, looks * costs.look_ns);
    }
    let whole: f64 = nodes.iter().map(|node| node.base as f64).sum();
    let ns_per_look = match whole / looks {
        measured if measured > 0.0 => measured,
        _ => scale.period_ns as f64,
    };
    let mut ways = ways(&nodes, samples, scale.switched, ns_per_look);
    let parts = Parts::of(&nodes, &mut ways);
    let doubts = Doubts::of(&nodes, scale.costs.as_ref(), scale.switched);
    if doubts.blended {
        let looks: Vec<f64> = parts.iter().map(|parts| parts.looks(&ways)).collect();
        blend(&mut nodes, &doubts, &looks);
    }
    give_back(&mut nodes, &parts, &ways, scale.switched, ns_per_look);
    let mut bases = vec![0u64; ways.len()];
    for (index, way) in ways.iter().enumerate().filter(|(_, way)| way.of.is_none()) {
        bases[index] = (way.own * scale.period_ns as f64).round() as u64;
    }
    for (node, parts) in nodes.iter().zip(&parts) {
        for (way, base) in parts.bases(node, &ways) {
            bases[way as usize] = base;
        }
    }

    let mut filled = Filled::of(&nodes, &ways);
    for (index, way) in ways.iter().enumerate() {
        let from_looks = way.context.is_none_or(|context| {
            let parts = &parts[context as usize];
            parts.ways.len() > 1 || parts.is_shared(&ways)
        });
        filled.add_base(index, bases[index], from_looks);
    }
    let own_times = own_times(&nodes);
    for (index, (node, own)) in nodes.iter().zip(own_times).enumerate() {
        let weights: Vec<f64> = parts[index].weights(&ways);
        let metrics = metrics.of(index as u32);
        filled.add_context(node, own, metrics, &parts[index].ways, &weights);
    }
    filled.add_up();
    count_recursion(&mut filled.nodes, scale.functions);
    add_looks(&ways, &filled, sums);
    add_errors(&nodes, &doubts, sums);
    let seen = seen(&ways, &filled);
    add_figures(&filled.nodes, &seen, looks, ns_per_look, &doubts, sums);
    (thread.nodes, thread.metrics) = (filled.nodes, filled.metrics);
}

/// What the looks themselves took, `ns`, fell on all contexts alike: by how long each ran.
fn take_out(nodes: &mut [Node], ns: f64) {
    let whole: f64 = nodes.iter().map(|node| node.base as f64).sum();
    let share = match ns / whole {
        share if share > 0.0 => share.min(MOST_OF_LOOKS),
        _ => return,
    };
    let mut below = vec![0u64; nodes.len()];
    for (index, node) in nodes.iter_mut().enumerate().rev() {
        let own = (node.base as f64 * share) as u64;
        let all = below[index].saturating_add(own);
        node.base -= own;
        node.cum = node.cum.saturating_sub(all);
        node.elapsed = node.elapsed.saturating_sub(all);
        if let Some(parent) = node.parent {
            let above = &mut below[parent as usize];
            *above = above.saturating_add(all);
        }
    }
}

/// Time of calls that seem to have lasted, and that nobody saw, to the callers.
fn give_back(
    nodes: &mut [Node],
    parts: &[Parts],
    ways: &[Way],
    switched: &HashSet<u32>,
    ns_per_look: f64,
) {
    for index in (0..nodes.len()).rev() {
        let node = &mut nodes[index];
        let Some(parent) = node.parent.filter(|_| switched.contains(&node.function)) else {
            continue;
        };
        let looks = parts[index].looks(ways);
        // One call that took more than all others, of a function that is switched off for being quick, is suspicious enough.
        let sigmas = match node.max > node.base / 2 {
            true => 1.0,
            false => THREE_SIGMA,
        };
        let by_chance = FEWEST_LOOKS + sigmas * looks.sqrt();
        if node.base as f64 <= (looks + by_chance) * ns_per_look {
            continue;
        }
        let unseen = node.base - (looks * ns_per_look) as u64;
        let given = unseen.min(node.max);
        node.base -= given;
        node.cum = node.cum.saturating_sub(given);
        node.elapsed = node.elapsed.saturating_sub(given);
        node.max = node.max.saturating_sub(given).max(node.min);
        let above = &mut nodes[parent as usize];
        above.base = above.base.saturating_add(given);
        // The caller may have ended unseen as well.
        above.max = above.max.saturating_add(given);
    }
}

/// How often each function was seen while it was not counted.
fn add_looks(ways: &[Way], filled: &Filled, sums: &mut BTreeMap<u32, Sums>) {
    for (way, place) in ways.iter().zip(&filled.places) {
        let Some(place) = place.filter(|_| way.context.is_none()) else {
            continue;
        };
        let sum = sums.entry(way.function).or_default();
        sum.own += way.own;
        // A look at one below itself says nothing more about its time in all.
        if filled.nodes[place as usize].recursion == 0 {
            sum.on_stack += way.cum;
        }
    }
}

/// Looks at each function, counted or not: as the innermost, and anywhere on the stack.
fn seen(ways: &[Way], filled: &Filled) -> BTreeMap<u32, (f64, f64)> {
    let mut all: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for (way, place) in ways.iter().zip(&filled.places) {
        let (own, on_stack) = all.entry(way.function).or_default();
        *own += way.own;
        if place.is_some_and(|place| filled.nodes[place as usize].recursion == 0) {
            *on_stack += way.cum;
        }
    }
    all
}

/// The ways that one context's figures are divided among.
#[derive(Clone, Default)]
struct Parts {
    /// In which it was reached itself.
    ways: Vec<u32>,
    /// Which have a part of its own time: these, and functions below them that are not counted.
    sharing: Vec<u32>,
}

impl Parts {
    /// Of each context. One that was not seen gets a way of its own, below the one of its caller that was seen most.
    fn of(nodes: &[Node], ways: &mut Vec<Way>) -> Vec<Parts> {
        let mut all = vec![Parts::default(); nodes.len()];
        for (index, way) in (0..).zip(ways.iter()) {
            if let Some(context) = way.context {
                all[context as usize].ways.push(index);
            }
            if let Some(context) = way.of {
                all[context as usize].sharing.push(index);
            }
        }
        for (context, node) in (0..).zip(nodes) {
            if !all[context as usize].ways.is_empty() {
                continue;
            }
            let above = node.parent.and_then(|parent| {
                let above = all[parent as usize].ways.iter().copied();
                let seen = |way: &u32| ways[*way as usize].cum;
                above.rev().max_by(|a, b| seen(a).total_cmp(&seen(b)))
            });
            let parts = &mut all[context as usize];
            parts.ways.push(ways.len() as u32);
            parts.sharing.push(ways.len() as u32);
            ways.push(Way {
                parent: above,
                function: node.function,
                context: Some(context),
                of: Some(context),
                own: 0.0,
                cum: 0.0,
            });
        }
        all
    }

    /// That fell into the context's own time.
    fn looks(&self, ways: &[Way]) -> f64 {
        let own = self.sharing.iter().map(|&way| ways[way as usize].own);
        own.sum()
    }

    fn weights(&self, ways: &[Way]) -> Vec<f64> {
        let looks = |way: &u32| ways[*way as usize].cum;
        self.ways.iter().map(looks).collect()
    }

    /// Whether others have a part of the context's own time.
    fn is_shared(&self, ways: &[Way]) -> bool {
        let mut sharing = self.sharing.iter().map(|way| &ways[*way as usize]);
        sharing.any(|way| way.context.is_none() && way.own > 0.0)
    }

    /// What of the context's own time each way has.
    fn bases(&self, node: &Node, ways: &[Way]) -> Vec<(u32, u64)> {
        let own: Vec<f64> = self
            .sharing
            .iter()
            .map(|&way| ways[way as usize].own)
            .collect();
        let looks: f64 = own.iter().sum();
        if looks == 0.0 {
            let parts = divide(node.base, &self.weights(ways));
            return self.ways.iter().copied().zip(parts).collect();
        }
        let parts = divide(node.base, &own);
        self.sharing.iter().copied().zip(parts).collect()
    }
}

/// Whole numbers in proportion to the weights, whose sum is the amount; all to the first where nothing has a weight.
fn divide(amount: u64, weights: &[f64]) -> Vec<u64> {
    let mut parts = vec![0u64; weights.len()];
    let whole: f64 = weights.iter().sum();
    if weights.len() < 2 || amount == 0 || whole <= 0.0 {
        if let Some(first) = parts.first_mut() {
            *first = amount;
        }
        return parts;
    }
    let mut left = amount;
    let mut remainders: Vec<(f64, usize)> = Vec::with_capacity(weights.len());
    for (index, weight) in weights.iter().enumerate() {
        let exact = amount as f64 * (weight / whole);
        parts[index] = (exact as u64).min(left);
        left -= parts[index];
        remainders.push((exact - parts[index] as f64, index));
    }
    remainders.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    // No more than one each, but for what a float cannot tell apart.
    for &(_, index) in remainders
        .iter()
        .take(left.min(weights.len() as u64) as usize)
    {
        parts[index] += 1;
        left -= 1;
    }
    parts[remainders[0].1] += left;
    parts
}

/// The same of what may be negative.
fn divide_signed(amount: i128, weights: &[f64]) -> Vec<i128> {
    let size = u64::try_from(amount.unsigned_abs()).unwrap_or(u64::MAX);
    let parts = divide(size, weights).into_iter();
    parts
        .map(|part| amount.signum() * i128::from(part))
        .collect()
}

/// What a context has by itself beyond its base, so that its times can be added up anew.
#[derive(Clone, Copy, Default)]
struct Own {
    /// Of cum, what is neither base nor a callee's.
    cum: i128,
    waited: i128,
}

impl Own {
    fn plus(self, other: Own) -> Own {
        Own {
            cum: self.cum + other.cum,
            waited: self.waited + other.waited,
        }
    }
}

fn own_times(nodes: &[Node]) -> Vec<Own> {
    let waited = |node: &Node| i128::from(node.elapsed) - i128::from(node.cum);
    let mut own: Vec<Own> = nodes
        .iter()
        .map(|node| Own {
            cum: i128::from(node.cum) - i128::from(node.base),
            waited: waited(node),
        })
        .collect();
    for node in nodes {
        if let Some(parent) = node.parent {
            let above = &mut own[parent as usize];
            above.cum -= i128::from(node.cum);
            above.waited -= waited(node);
        }
    }
    own
}

/// The tree that comes of it.
struct Filled {
    nodes: Vec<Node>,
    metrics: NodeMetrics,
    own: Vec<Own>,
    extremes: Vec<Extremes>,
    /// Of each way. None where it was only passed on the way to what was counted for itself.
    places: Vec<Option<u32>>,
}

/// A place of one function below one caller.
struct Known {
    place: u32,
    /// None as long as it is no context.
    site: Option<Option<SiteId>>,
}

impl Known {
    /// One for each call site that contexts are told apart by, and none by itself for what is no context.
    fn place(all: &mut Vec<Known>, site: Option<Option<SiteId>>, next: u32) -> u32 {
        let same = all
            .iter_mut()
            .find(|known| site.is_none() || known.site.is_none() || known.site == site);
        if let Some(known) = same {
            known.site = known.site.or(site);
            return known.place;
        }
        all.push(Known { place: next, site });
        next
    }
}

impl Filled {
    /// Without figures. What was not counted for a while, and was before or after that, is one.
    fn of(nodes: &[Node], ways: &[Way]) -> Filled {
        let mut needed = vec![false; ways.len()];
        for (index, way) in ways.iter().enumerate().rev() {
            needed[index] |= way.context.is_some() || way.own > 0.0;
            if let Some(parent) = way.parent {
                needed[parent as usize] |= needed[index];
            }
        }
        let mut filled = Filled {
            nodes: Vec::with_capacity(nodes.len()),
            metrics: NodeMetrics::default(),
            own: Vec::new(),
            extremes: Vec::new(),
            places: Vec::with_capacity(ways.len()),
        };
        let mut known: HashMap<(Option<u32>, u32), Vec<Known>> = HashMap::new();
        for (way, needed) in ways.iter().zip(needed) {
            if !needed {
                filled.places.push(None);
                continue;
            }
            let parent = way.parent.and_then(|parent| filled.places[parent as usize]);
            let context = way.context.map(|context| &nodes[context as usize]);
            let next = filled.nodes.len() as u32;
            let place = match context {
                Some(context) if context.flags.contains(NodeFlags::FOLDED) => next,
                _ => {
                    let known = known.entry((parent, way.function)).or_default();
                    Known::place(known, context.map(|context| context.site), next)
                }
            };
            filled.places.push(Some(place));
            if place == next {
                filled.nodes.push(Node {
                    parent,
                    function: way.function,
                    ..Node::default()
                });
                filled.own.push(Own::default());
                filled.extremes.push(Extremes::default());
            }
            if let Some(context) = context {
                let node = &mut filled.nodes[place as usize];
                node.flags |= context.flags;
                node.site = context.site;
            }
        }
        filled
    }

    fn add_base(&mut self, way: usize, base: u64, from_looks: bool) {
        let Some(place) = self.places[way] else {
            return;
        };
        let node = &mut self.nodes[place as usize];
        node.base = node.base.saturating_add(base);
        if from_looks {
            node.flags |= NodeFlags::LOOKED;
        }
    }

    /// All other figures of a context, to the ways in which it was reached.
    fn add_context(
        &mut self,
        node: &Node,
        own: Own,
        metrics: &Metrics,
        ways: &[u32],
        weights: &[f64],
    ) {
        let timed = divide(node.calls.saturating_sub(node.untimed), weights);
        let untimed = divide(node.untimed.min(node.calls), weights);
        let unwound = divide(node.unwound, weights);
        let terminal = divide(node.terminal, weights);
        let cum = divide_signed(own.cum, weights);
        let waited = divide_signed(own.waited, weights);
        let mut figures = vec![Metrics::default(); ways.len()];
        for (metric, value) in metrics.iter() {
            for (figures, part) in figures.iter_mut().zip(divide(value, weights)) {
                figures.set(metric, part);
            }
        }
        for (index, &way) in ways.iter().enumerate() {
            let Some(place) = self.places[way as usize] else {
                continue;
            };
            self.metrics.add(place, &figures[index]);
            let own = &mut self.own[place as usize];
            *own = own.plus(Own {
                cum: cum[index],
                waited: waited[index],
            });
            let calls = timed[index].saturating_add(untimed[index]);
            self.extremes[place as usize].add(&Node { calls, ..*node });
            let sum = &mut self.nodes[place as usize];
            sum.calls = sum.calls.saturating_add(calls);
            sum.untimed = sum.untimed.saturating_add(untimed[index]);
            sum.unwound = sum.unwound.saturating_add(unwound[index]);
            sum.terminal = sum.terminal.saturating_add(terminal[index]);
        }
    }

    /// Cum and elapsed, from below.
    fn add_up(&mut self) {
        for (node, extremes) in self.nodes.iter_mut().zip(&self.extremes) {
            (node.min, node.max) = (extremes.min.unwrap_or(0), extremes.max);
        }
        let clamp = |time: i128| time.clamp(0, u64::MAX.into()) as u64;
        let mut below = vec![Own::default(); self.nodes.len()];
        for (index, node) in self.nodes.iter_mut().enumerate().rev() {
            let sum = self.own[index].plus(below[index]);
            let cum = i128::from(node.base) + sum.cum;
            node.cum = clamp(cum);
            node.elapsed = clamp(cum + sum.waited);
            if let Some(parent) = node.parent {
                let above = &mut below[parent as usize];
                *above = above.plus(Own {
                    cum,
                    waited: sum.waited,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
