//! Which functions and arcs a picture shows: the trees of all threads, merged by function, with what is light collapsed.
//!
//! A function below the cutoff is not shown. Its own time is added to its closest shown caller, which is also joined to the
//! functions below it that are shown: nothing is lost, and no path is broken. Where nobody asked for a cutoff and there is much to show, two more things go:
//! functions that only pass on to one callee what one caller gave them, and arcs too thin to see, as long as each function keeps
//! one that leads to it.
//!
//! ```text
//! total(f)     = sum of cum over contexts of f that have no f above them
//! own(f)       = sum of base over contexts of f, and of hidden functions called from there
//! arc(f -> g)  = sum of cum over the outermost contexts of g whose closest shown caller is f
//! ```

use std::collections::BTreeMap;

use thalweg_analysis::{Tree, Weight};
use thalweg_model::Profile;

/// What is to be seen.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Functions below this share of the whole are collapsed; without it, as many are as leaves a readable picture.
    pub cutoff: Option<f64>,
    /// Show only what happens below this function, and give shares of its time.
    pub root: Option<u32>,
}

/// So many functions are a picture that can be read.
pub const GOOD_SIZE: usize = 30;

/// A cutoff that nobody asked for is at most this.
const HIGHEST_CUTOFF: f64 = 0.2;

/// A function only passes time on when it keeps less than this share of the whole ...
const KEPT_BY_PASSING: f64 = 0.005;

/// ... and this part of its time comes from one caller and goes to one callee.
const PASSED_ON: f64 = 0.97;

/// Arcs below this part of the cutoff are not drawn.
const TOO_THIN: f64 = 0.1;

/// One function of the picture, or what stands before all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bank {
    /// `None`: the start.
    pub function: Option<u32>,
    pub calls: u64,
    pub own: u64,
    pub total: u64,
    /// Of `own`, the time of functions that are not shown.
    pub hidden: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub from: usize,
    pub to: usize,
    pub calls: u64,
    pub time: u64,
    /// Some of its calls came through functions that are not shown.
    pub through_hidden: bool,
}

/// Time is nanoseconds, or calls where nothing was timed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct River {
    /// The first is where everything begins; the others are sorted by function.
    pub banks: Vec<Bank>,
    pub streams: Vec<Stream>,
    /// What shares are shares of.
    pub whole: u64,
    pub timed: bool,
    pub cutoff: f64,
    /// Functions that ran but are below the cutoff.
    pub hidden_functions: usize,
    /// Functions that would be shown if they did more than pass time on.
    pub passing_functions: usize,
    pub hidden_streams: usize,
}

impl River {
    pub fn share(&self, time: u64) -> f64 {
        match self.whole {
            0 => 0.0,
            whole => time as f64 / whole as f64,
        }
    }
}

/// One context within the part that is shown.
struct Context {
    function: u32,
    parent: Option<u32>,
    calls: u64,
    own: u64,
    total: u64,
    /// No context of the same function stands above it in that part.
    outermost: bool,
}

pub fn river(profile: &Profile, choice: &Choice) -> River {
    let contexts = contexts(profile, choice.root);
    let mut totals = vec![0u64; profile.functions.len()];
    let mut ran = vec![false; profile.functions.len()];
    let mut whole = 0u64;
    for context in &contexts {
        ran[context.function as usize] = true;
        if context.outermost {
            let total = &mut totals[context.function as usize];
            *total = total.saturating_add(context.total);
        }
        if context.parent.is_none() {
            whole = whole.saturating_add(context.total);
        }
    }
    let crowded = choice.cutoff.is_none() && ran.iter().filter(|ran| **ran).count() > GOOD_SIZE;
    let passing = match crowded {
        true => passing(&contexts, &totals, whole),
        false => vec![false; totals.len()],
    };
    let cutoff = choice.cutoff.unwrap_or_else(|| {
        let candidates = totals
            .iter()
            .zip(&passing)
            .filter(|(_, passing)| !**passing);
        readable_cutoff(candidates.map(|(&total, _)| total), whole)
    });
    let heavy = |function: u32| {
        let total = totals[function as usize] as f64;
        ran[function as usize] && total >= cutoff * whole as f64
    };
    let shown = |function: u32| {
        choice.root == Some(function) || heavy(function) && !passing[function as usize]
    };

    let mut banks: BTreeMap<Option<u32>, Bank> = BTreeMap::new();
    let mut streams: BTreeMap<(Option<u32>, u32), Stream> = BTreeMap::new();
    let start = if choice.root.is_some() {
        choice.root
    } else {
        None
    };
    banks.insert(
        start,
        Bank {
            function: start,
            ..Bank::default()
        },
    );
    // For each context the function of its closest shown caller, itself included.
    let mut closest: Vec<Option<u32>> = Vec::with_capacity(contexts.len());
    for context in &contexts {
        let above = context.parent.and_then(|parent| closest[parent as usize]);
        if !shown(context.function) {
            closest.push(above);
            let bank = banks.entry(above.or(start)).or_default();
            bank.own = bank.own.saturating_add(context.own);
            bank.hidden = bank.hidden.saturating_add(context.own);
            continue;
        }
        closest.push(Some(context.function));
        let part = if context.outermost { context.total } else { 0 };
        let bank = banks.entry(Some(context.function)).or_default();
        bank.function = Some(context.function);
        bank.calls = bank.calls.saturating_add(context.calls);
        bank.own = bank.own.saturating_add(context.own);
        bank.total = bank.total.saturating_add(part);
        if context.parent.is_none() && choice.root.is_some() {
            continue;
        }
        let through_hidden = context
            .parent
            .is_some_and(|parent| above != Some(contexts[parent as usize].function));
        let stream = streams
            .entry((above.or(start), context.function))
            .or_insert(Stream {
                from: 0,
                to: 0,
                calls: 0,
                time: 0,
                through_hidden: false,
            });
        stream.calls = stream.calls.saturating_add(context.calls);
        stream.time = stream.time.saturating_add(part);
        stream.through_hidden |= through_hidden;
    }
    let all = 0..profile.functions.len() as u32;
    let hidden = |function: &u32| ran[*function as usize] && !shown(*function);
    let hidden_functions = all.clone().filter(hidden).filter(|&f| !heavy(f)).count();
    let passing_functions = all.filter(hidden).filter(|&f| heavy(f)).count();
    let mut river = gather(banks, streams, start);
    if choice.root.is_none() {
        river.banks[0].total = whole;
    }
    if crowded {
        river.drop_thin_streams(cutoff * TOO_THIN * whole as f64);
    }
    River {
        whole,
        timed: profile.meta.timed,
        cutoff,
        hidden_functions,
        passing_functions,
        ..river
    }
}

impl River {
    fn drop_thin_streams(&mut self, least: f64) {
        // The heaviest that leads to each function, which stays.
        let mut best: Vec<Option<usize>> = vec![None; self.banks.len()];
        for (index, stream) in self.streams.iter().enumerate() {
            let best = &mut best[stream.to];
            if stream.from != stream.to
                && best.is_none_or(|best| self.streams[best].time < stream.time)
            {
                *best = Some(index);
            }
        }
        let before = self.streams.len();
        let mut index = 0;
        self.streams.retain(|stream| {
            index += 1;
            let recursion = stream.from == stream.to;
            recursion || stream.time as f64 >= least || best[stream.to] == Some(index - 1)
        });
        self.hidden_streams = before - self.streams.len();
    }
}

/// Functions between one caller and one callee that add next to nothing. What threads begin with is never one.
fn passing(contexts: &[Context], totals: &[u64], whole: u64) -> Vec<bool> {
    let mut own = vec![0u64; totals.len()];
    let mut begins = vec![false; totals.len()];
    let mut arcs: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for context in contexts {
        let function = context.function as usize;
        own[function] = own[function].saturating_add(context.own);
        match context.parent {
            None => begins[function] = true,
            Some(parent) if context.outermost => {
                let caller = contexts[parent as usize].function;
                let time = arcs.entry((caller, context.function)).or_default();
                *time = time.saturating_add(context.total);
            }
            Some(_) => {}
        }
    }
    let (mut most_in, mut most_out) = (vec![0u64; totals.len()], vec![0u64; totals.len()]);
    for ((caller, callee), time) in arcs {
        let (caller, callee) = (caller as usize, callee as usize);
        most_out[caller] = most_out[caller].max(time);
        most_in[callee] = most_in[callee].max(time);
    }
    (0..totals.len())
        .map(|function| {
            let most = totals[function] as f64 * PASSED_ON;
            !begins[function]
                && totals[function] > 0
                && (own[function] as f64) < KEPT_BY_PASSING * whole as f64
                && most_in[function] as f64 >= most
                && most_out[function] as f64 >= most
        })
        .collect()
}

/// Numbers instead of keys, the start first.
fn gather(
    banks: BTreeMap<Option<u32>, Bank>,
    streams: BTreeMap<(Option<u32>, u32), Stream>,
    start: Option<u32>,
) -> River {
    let mut keys: Vec<Option<u32>> = banks.keys().copied().filter(|&key| key != start).collect();
    keys.insert(0, start);
    let places: BTreeMap<Option<u32>, usize> = keys.iter().copied().zip(0..).collect();
    River {
        banks: keys.iter().map(|key| banks[key]).collect(),
        streams: streams
            .into_iter()
            .map(|((from, to), stream)| Stream {
                from: places[&from],
                to: places[&Some(to)],
                ..stream
            })
            .collect(),
        ..River::default()
    }
}

/// The part of the trees that is looked at, parents before children, thread after thread.
fn contexts(profile: &Profile, root: Option<u32>) -> Vec<Context> {
    let weight = match profile.meta.timed {
        true => Weight::Time,
        false => Weight::Calls,
    };
    let mut contexts: Vec<Context> = Vec::new();
    // How often each function stands on the way from the root to where the walk is.
    let mut above = vec![0u32; profile.functions.len()];
    for (_, thread) in thalweg_analysis::threads(profile) {
        let tree = Tree::new(thread, weight);
        // The way to the walk's place: level of the tree, number among `contexts`.
        let mut path: Vec<(u32, u32)> = Vec::new();
        for index in tree.depth_first(|a, b| a.cmp(b)) {
            let node = &tree.nodes[index as usize];
            let level = tree.level(index);
            while let Some((_, left)) = path.pop_if(|(above, _)| *above >= level) {
                above[contexts[left as usize].function as usize] -= 1;
            }
            if path.is_empty() && root.is_some_and(|root| root != node.function) {
                continue;
            }
            let function = node.function as usize;
            let number = contexts.len() as u32;
            contexts.push(Context {
                function: node.function,
                parent: path.last().map(|&(_, number)| number),
                calls: node.calls,
                own: match weight {
                    Weight::Time => node.base,
                    Weight::Calls => node.calls,
                },
                total: tree.weight(index),
                outermost: above[function] == 0,
            });
            above[function] += 1;
            path.push((level, number));
        }
        for (_, left) in path {
            above[contexts[left as usize].function as usize] -= 1;
        }
    }
    contexts
}

fn readable_cutoff(totals: impl Iterator<Item = u64>, whole: u64) -> f64 {
    let mut sorted: Vec<u64> = totals.filter(|&total| total > 0).collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    match sorted.get(GOOD_SIZE) {
        Some(&next) if whole > 0 => {
            // Just above the first that is left out.
            ((next + 1) as f64 / whole as f64).min(HIGHEST_CUTOFF)
        }
        _ => 0.0,
    }
}
