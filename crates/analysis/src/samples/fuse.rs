//! Whose time it was: what the clock says and what samples say, each by its certainty, with sums that stay.
//!
//! ```text
//!   unit      a context that has timed calls, with what is below it and has none: contexts that are only counted, functions that are not
//!   clock     the unit's measured time without the probes, c +- e
//!   samples   s of S samples, and H that they do not see: s (T - sum of H) / S + H, off by chance, sqrt(s + 1) samples, and by H
//!   fused     inverse-variance mean, first of all units of a function together, then of each
//!   group     a unit that is timed all the time, with the units below it that are not: which of them had the time the clock
//!             does not know, what they had together it does
//!   thread    T, fixed before: what is missing or too much is divided by variance
//!   in a unit by samples
//! ```

use std::collections::BTreeMap;

use thalweg_model::{FuncId, Node};

use super::fit::Fitted;
use crate::tunables::TUNABLES;
use crate::uncertainty::Uncertainty;

/// What came of it, in nanoseconds.
pub struct Fused {
    /// Of each place its own time.
    pub own: Vec<f64>,
    /// Of each place: samples had a part in it, and not the clock alone.
    pub sampled: Vec<bool>,
    pub not_attributed: f64,
    /// Of one sample.
    pub each: f64,
    /// All samples that fell into the thread's time.
    pub samples: f64,
}

#[derive(Clone, Copy, Default)]
struct Unit {
    clock: f64,
    /// How far off the clock may be: because of the probes, and because not every call was timed.
    probes: f64,
    untimed: f64,
    samples: f64,
    /// Time that samples do not see.
    hidden: f64,
    time: f64,
    variance: f64,
}

impl Unit {
    fn error(&self) -> f64 {
        self.probes + self.untimed
    }
}

/// A figure and its variance.
type Known = (f64, f64);

fn fuse(one: Known, other: Known) -> Known {
    match one.1 + other.1 {
        both if both > 0.0 => (
            (one.0 * other.1 + other.0 * one.1) / both,
            one.1 * other.1 / both,
        ),
        _ => one,
    }
}

pub fn divide(nodes: &[Node], uncertainty: &Uncertainty, fitted: &Fitted, period_ns: f64) -> Fused {
    let heads = heads(nodes);
    let mut units = vec![Unit::default(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        let unit = &mut units[heads[index] as usize];
        unit.clock += node.self_ns as f64;
        unit.probes += uncertainty.probes[index];
        unit.untimed += uncertainty.untimed[index];
        unit.hidden += uncertainty.hidden[index];
    }
    for (&(of, _), samples) in &fitted.landed {
        units[heads[of as usize] as usize].samples += samples;
    }
    let whole: f64 = units.iter().map(|unit| unit.clock).sum();
    let attributed: f64 = units.iter().map(|unit| unit.samples).sum();
    let samples = attributed + fitted.not_attributed;
    let hidden: f64 = units.iter().map(|unit| unit.hidden).sum();
    let each = match (whole - hidden) / samples {
        each if each > 0.0 && each.is_finite() => each,
        _ => period_ns,
    };
    let mut not_attributed = fitted.not_attributed * each;
    if samples > 0.0 && whole > 0.0 {
        fuse_functions(nodes, &heads, &mut units, each, uncertainty.repeatability);
        fuse_groups(nodes, &heads, &mut units, uncertainty.repeatability);
        let unknown = each * each * fitted.not_attributed;
        not_attributed = hand_out_rest(&mut units, whole, (not_attributed, unknown));
    } else {
        units.iter_mut().for_each(|unit| unit.time = unit.clock);
    }
    in_units(
        &heads,
        &units,
        &uncertainty.hidden,
        fitted,
        Fused {
            own: vec![0.0; fitted.places.len()],
            sampled: vec![false; fitted.places.len()],
            not_attributed,
            each,
            samples,
        },
    )
}

/// Of each context the nearest one, itself included, of which a clock knows something.
fn heads(nodes: &[Node]) -> Vec<u32> {
    let mut heads: Vec<u32> = Vec::with_capacity(nodes.len());
    for (index, node) in (0..).zip(nodes) {
        let is_timed = node.self_ns > 0 || node.untimed < node.calls || node.calls == 0;
        heads.push(match node.parent.filter(|_| !is_timed) {
            Some(parent) => heads[parent as usize],
            None => index,
        });
    }
    heads
}

/// Whether the clock knows all its calls, but for a few.
fn is_timed_throughout(node: &Node) -> bool {
    node.untimed as f64 <= TUNABLES.nearly_all_timed * node.calls as f64
}

fn fuse_functions(
    nodes: &[Node],
    heads: &[u32],
    units: &mut [Unit],
    each: f64,
    repeatability: f64,
) {
    let by_clock = |unit: &Unit| unit.error().powi(2) + (repeatability * unit.clock).powi(2);
    let seen = |unit: &Unit| {
        let by_chance = each * each * (unit.samples + 1.0);
        let variance = by_chance + (unit.hidden / TUNABLES.sigmas).powi(2);
        (unit.samples * each + unit.hidden, variance)
    };
    let is_head = |index: usize| heads[index] as usize == index;
    let mut functions: BTreeMap<FuncId, Unit> = BTreeMap::new();
    for (index, node) in nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| is_head(*index))
    {
        let sum = functions.entry(node.function).or_default();
        let unit = &units[index];
        sum.clock += unit.clock;
        sum.probes += unit.probes;
        sum.untimed += unit.untimed;
        sum.samples += unit.samples;
        sum.hidden += unit.hidden;
    }
    for sum in functions.values_mut() {
        (sum.time, sum.variance) = fuse((sum.clock, by_clock(sum)), seen(sum));
    }
    let mut sums: BTreeMap<FuncId, f64> = BTreeMap::new();
    for (index, node) in nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| is_head(*index))
    {
        let (unit, all) = (&mut units[index], &functions[&node.function]);
        // What a function gains or loses is that of the contexts that are least certain.
        let part = match all.error() {
            error if error > 0.0 => unit.error() / error,
            _ if all.clock > 0.0 => unit.clock / all.clock,
            _ => 0.0,
        };
        let clock = (unit.clock + (all.time - all.clock) * part).max(0.0);
        (unit.time, unit.variance) = fuse((clock, by_clock(unit)), seen(unit));
        *sums.entry(node.function).or_default() += unit.time;
    }
    for (index, node) in nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| is_head(*index))
    {
        if let sum @ 0.0.. = sums[&node.function]
            && sum > 0.0
        {
            units[index].time *= functions[&node.function].time / sum;
        }
    }
}

/// What units have together that the clock knows together.
fn fuse_groups(nodes: &[Node], heads: &[u32], units: &mut [Unit], repeatability: f64) {
    let mut of: Vec<u32> = Vec::with_capacity(nodes.len());
    for (index, node) in (0..).zip(nodes) {
        of.push(match node.parent {
            Some(parent) if !is_timed_throughout(node) => of[parent as usize],
            _ => index,
        });
    }
    let mut groups = vec![(Unit::default(), 0u32); nodes.len()];
    for (index, unit) in units.iter().enumerate() {
        if heads[index] as usize == index {
            let (sum, members) = &mut groups[of[index] as usize];
            sum.clock += unit.clock;
            sum.probes += unit.probes;
            sum.time += unit.time;
            sum.variance += unit.variance;
            *members += 1;
        }
    }
    for (index, unit) in units.iter_mut().enumerate() {
        let (group, members) = &groups[of[index] as usize];
        if *members > 1 && group.time > 0.0 {
            let by_clock = group.probes.powi(2) + (repeatability * group.clock).powi(2);
            let (time, _) = fuse((group.clock, by_clock), (group.time, group.variance));
            unit.time *= time / group.time;
        }
    }
}

/// Makes all units, and what is nobody's, the whole. Returns the latter.
fn hand_out_rest(units: &mut [Unit], whole: f64, (nobodys, unknown): Known) -> f64 {
    let time: f64 = units.iter().map(|unit| unit.time).sum::<f64>() + nobodys;
    let variance: f64 = units.iter().map(|unit| unit.variance).sum::<f64>() + unknown;
    let rest = |of: f64| match variance {
        variance if variance > 0.0 => (whole - time) * of / variance,
        _ => 0.0,
    };
    let nobodys = (nobodys + rest(unknown)).max(0.0);
    for unit in units.iter_mut() {
        unit.time = (unit.time + rest(unit.variance)).max(0.0);
    }
    // What some did not have to give.
    let time: f64 = units.iter().map(|unit| unit.time).sum::<f64>() + nobodys;
    let scale = if time > 0.0 { whole / time } else { 1.0 };
    units.iter_mut().for_each(|unit| unit.time *= scale);
    nobodys * scale
}

/// Within a unit samples divide, and what they do not see; without either it is the head's.
fn in_units(
    heads: &[u32],
    units: &[Unit],
    hidden: &[f64],
    fitted: &Fitted,
    mut fused: Fused,
) -> Fused {
    let each = fused.each;
    let known = |unit: &Unit| unit.samples * each + unit.hidden;
    let mut give = |place: u32, head: u32, time: f64| {
        let unit = &units[head as usize];
        fused.own[place as usize] += unit.time * time / known(unit);
        if place != head {
            fused.sampled[place as usize] = true;
            fused.sampled[head as usize] = true;
        }
    };
    for (&(of, place), samples) in &fitted.landed {
        give(place, heads[of as usize], samples * each);
    }
    for (index, &hidden) in (0..).zip(hidden).filter(|(_, hidden)| **hidden > 0.0) {
        give(index, heads[index as usize], hidden);
    }
    for (index, unit) in units.iter().enumerate() {
        if heads[index] as usize == index && known(unit) == 0.0 {
            fused.own[index] += unit.time;
        }
    }
    fused
}
