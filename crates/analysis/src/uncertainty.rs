//! How far off the clock may be in the contexts of one thread, in nanoseconds.

use std::collections::HashSet;

use thalweg_model::{FuncId, Node, ProbeCosts};

use crate::compensate::{Cost, costs, total_errors};
use crate::estimate::sampling_error;
use crate::probe_cost::hidden_in;
use crate::rarity::Rarity;
use crate::tunables::TUNABLES;

pub(crate) struct Uncertainty {
    /// Of each context's own time, because of what was taken out for the probes.
    pub probes: Vec<f64>,
    /// Because not every call was timed, or one ended unseen while its function was off.
    pub untimed: Vec<f64>,
    /// What of its own time samples do not see, because the processor did it while it was in a
    /// probe.
    pub hidden: Vec<f64>,
    /// Of its total, for both reasons.
    pub totals: Vec<f64>,
    /// What part of all the time, and of each function's, may be.
    pub whole: f64,
    /// What part of a time differs from run to run. 0 where nothing was taken out.
    pub repeatability: f64,
}

impl Uncertainty {
    /// `known`: what was taken out. `measured_longer`: a timed call among untimed ones, at most.
    /// `switched`: functions that were not timed all the time.
    pub fn new(
        nodes: &[Node],
        known: Option<&ProbeCosts>,
        rarity: &Rarity,
        measured_longer: f64,
        switched: &HashSet<FuncId>,
    ) -> Uncertainty {
        let costs = match known {
            Some(known) => costs(nodes, known, rarity),
            None => vec![Cost::default(); nodes.len()],
        };
        let sum = |part: fn(&Cost) -> f64| -> f64 { costs.iter().map(part).sum() };
        let off = sum(|cost| cost.common) + sum(|cost| cost.own * cost.own).sqrt();
        let left: f64 = nodes.iter().map(|node| node.self_ns as f64).sum();
        let repeatability = known.map_or(0.0, |_| TUNABLES.repeatability);
        let mut totals = total_errors(nodes, &costs);
        let mut untimed = vec![0.0; nodes.len()];
        // What a context has too much is measured as its caller's, or further up where that has not
        // so much.
        let mut below = vec![0.0; nodes.len()];
        for (index, node) in nodes.iter().enumerate().rev() {
            let mut own = sampling_error(node, measured_longer);
            if switched.contains(&node.function) {
                // A call that ended unseen is the longest.
                own += node.max as f64;
            }
            untimed[index] = own + below[index];
            let passed_on = own + (below[index] - node.self_ns as f64).max(0.0);
            totals[index] += passed_on;
            if let Some(parent) = node.parent {
                below[parent as usize] += passed_on;
            }
        }
        Uncertainty {
            probes: costs.iter().map(Cost::error).collect(),
            untimed,
            hidden: known.map_or_else(
                || vec![0.0; nodes.len()],
                |known| hidden_in(nodes, known, left),
            ),
            totals,
            whole: off / left.max(1.0) + repeatability,
            repeatability,
        }
    }
}
