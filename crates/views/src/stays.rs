//! The stacks that samples found, a tree for each thread: how many samples had each, how often it
//! was newly seen, and for how long it stayed.

use std::cmp::Reverse;

use serde::Serialize;
use thalweg_analysis::{Lanes, Stack, stays};
use thalweg_model::{FuncId, Process, Profile, Thread};

use crate::{Selection, name};

#[derive(Serialize)]
pub struct Stays<'a> {
    schema: &'static str,
    pub threads: Vec<ThreadStays<'a>>,
    /// Stacks that are not shown.
    pub not_shown: usize,
}

#[derive(Serialize)]
pub struct ThreadStays<'a> {
    pub pid: u32,
    pub tid: u32,
    pub name: &'a str,
    /// Processor time between two samples.
    pub period_ns: u64,
    /// Whose stacks are known.
    pub samples: u64,
    pub stacks: Vec<StackOf<'a>>,
    #[serde(skip)]
    pub process: &'a Process,
    #[serde(skip)]
    pub thread: &'a Thread,
}

#[derive(Serialize)]
pub struct StackOf<'a> {
    /// How far down the tree; the one that it is below stands before it, one level higher.
    pub level: u32,
    pub function: FuncId,
    pub name: &'a str,
    /// Samples that had it on the stack, and those in which it was the innermost.
    pub samples: u64,
    pub own: u64,
    /// How often a sample had it where the one before had not.
    pub newly_seen: u64,
    /// On a processor, from one newly seen to the end of that stay: on average, and the longest.
    pub mean_ns: u64,
    pub longest_ns: u64,
}

impl<'a> Stays<'a> {
    /// Of the functions chosen, those with samples enough, and the stacks above them.
    pub fn new(profile: &'a Profile, lanes: &Lanes, selection: &Selection) -> Stays<'a> {
        let threads = profile
            .processes
            .iter()
            .flat_map(|process| process.threads.iter().map(move |thread| (process, thread)));
        let mut not_shown = 0;
        let mut shown = Vec::new();
        for (number, (process, thread)) in threads.enumerate() {
            let Some(lane) = lanes.get(number) else {
                continue;
            };
            let stacks = stays(lane);
            let outermost = stacks.iter().filter(|stack| stack.level == 0);
            let samples: u64 = outermost.map(|stack| stack.samples).sum();
            let period_ns = lane.line().period_ns;
            let chosen = chosen(&stacks, samples, selection);
            not_shown += stacks.len() - chosen.len();
            let rows = chosen.into_iter().map(|place| {
                let stack = &stacks[place as usize];
                StackOf {
                    level: stack.level,
                    function: stack.function,
                    name: name(profile, stack.function),
                    samples: stack.samples,
                    own: stack.own,
                    newly_seen: stack.new,
                    mean_ns: (stack.stayed.saturating_mul(period_ns))
                        .checked_div(stack.new)
                        .unwrap_or(0),
                    longest_ns: stack.longest.saturating_mul(period_ns),
                }
            });
            shown.push(ThreadStays {
                pid: process.pid,
                tid: thread.tid,
                name: &thread.name,
                period_ns,
                samples,
                stacks: rows.collect(),
                process,
                thread,
            });
        }
        shown.sort_by_key(|thread| Reverse(thread.samples));
        Stays {
            schema: "thalweg.report.samples/1",
            threads: shown,
            not_shown,
        }
    }
}

/// The numbers of those to show, each before what is below it, most samples first.
fn chosen(stacks: &[Stack], samples: u64, selection: &Selection) -> Vec<u32> {
    let least = selection.min_percent.unwrap_or(0.0) / 100.0 * samples as f64;
    let depth = selection.depth.unwrap_or(u32::MAX);
    let weighs = |stack: &Stack| {
        let enough = stack.samples > 0 && stack.samples as f64 >= least;
        enough && stack.level < depth && selection.keeps(stack.function)
    };
    let mut wanted: Vec<u32> = (0..)
        .zip(stacks)
        .filter(|(_, stack)| weighs(stack))
        .map(|(place, _)| place)
        .collect();
    if let Some(limit) = selection.limit {
        wanted.sort_by_key(|&place| Reverse(stacks[place as usize].samples));
        wanted.truncate(limit);
    }
    let mut keeps = vec![false; stacks.len()];
    for mut place in wanted {
        while !std::mem::replace(&mut keeps[place as usize], true) {
            let Some(parent) = stacks[place as usize].parent else {
                break;
            };
            place = parent;
        }
    }
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); stacks.len()];
    let mut next: Vec<u32> = Vec::new();
    for (place, stack) in (0..).zip(stacks) {
        if keeps[place as usize] {
            match stack.parent {
                Some(parent) => children[parent as usize].push(place),
                None => next.push(place),
            }
        }
    }
    // The last of the list is the next: least samples first.
    let by_samples = |list: &mut Vec<u32>| list.sort_by_key(|&one| stacks[one as usize].samples);
    by_samples(&mut next);
    let mut order = Vec::new();
    while let Some(place) = next.pop() {
        order.push(place);
        let below = &mut children[place as usize];
        by_samples(below);
        next.append(below);
    }
    order
}
