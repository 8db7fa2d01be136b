//! What samples with times tell: when each thread ran and what it waited for, and what happened in
//! a part of the time.
//!
//! Made from a profile as it was recorded, because later steps use samples up.

use thalweg_model::{
    FuncId, Node, NodeFlags, Process, Profile, SampleNode, SampledFunction, Thread, Timeline,
};

use crate::selection::count_recursion;

/// Once in twenty times a number of samples is further off than so many of its roots.
const ROOTS: f64 = 1.96;

/// After all others: of two with as much time, one that is known comes first.
const UNKNOWN: FuncId = FuncId(u32::MAX);

/// The time lines of all threads, and the stacks that they refer to.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    /// In the order of the threads in the profile; of those that were not seen, empty.
    lanes: Vec<Lane>,
}

#[derive(Clone, Debug, Default)]
pub struct Lane {
    stacks: Vec<SampleNode>,
    line: Timeline,
}

/// A thread in a piece of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// How long it was on a processor.
    pub on_ns: u64,
    /// The function that was on top most of that time.
    pub function: Option<FuncId>,
    /// What it waited for most of the rest: a number of [`Timeline::waits`] of the lane.
    pub wait: Option<u32>,
}

impl Lanes {
    pub fn from_recorded(profile: &Profile) -> Lanes {
        let threads = profile.processes.iter().flat_map(|p| &p.threads);
        let lanes = threads.map(|thread| match thread.timeline.is_empty() {
            true => Lane::default(),
            false => Lane {
                stacks: thread.samples.clone(),
                line: thread.timeline.clone(),
            },
        });
        Lanes {
            lanes: lanes.collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.line.is_empty())
    }

    /// By the thread's number.
    pub fn get(&self, thread: usize) -> Option<&Lane> {
        self.lanes.get(thread).filter(|lane| !lane.line.is_empty())
    }

    /// What samples tell of `from_ns` to `to_ns`, as a profile of its own: times are estimates, calls
    /// are not known. `profile` is where functions and threads have their names; they keep their numbers.
    pub fn between(&self, profile: &Profile, from_ns: u64, to_ns: u64) -> Profile {
        let mut own = vec![(0u64, 0u64); profile.functions.len()];
        let mut on_stack = own.clone();
        let mut lanes = self.lanes.iter();
        let mut processes = Vec::with_capacity(profile.processes.len());
        for process in &profile.processes {
            let threads = process.threads.iter().map(|thread| {
                let lane = lanes.next();
                Thread {
                    name: thread.name.clone(),
                    nodes: lane.map_or_else(Vec::new, |lane| {
                        lane.between(from_ns, to_ns, &mut own, &mut on_stack)
                    }),
                    tid: thread.tid,
                    created_by: thread.created_by,
                    start_ns: thread.start_ns,
                    end_ns: thread.end_ns,
                    ..Thread::default()
                }
            });
            processes.push(Process {
                threads: threads.collect(),
                command: process.command.clone(),
                ..*process
            });
        }
        let error = |(samples, ns): (u64, u64)| match samples {
            0 => 0,
            _ => (ns as f64 / (samples as f64).sqrt() * ROOTS) as u64,
        };
        let sampled = (0..).map(FuncId).zip(own.iter().zip(&on_stack));
        let sampled = sampled.filter(|(_, (_, (seen, _)))| *seen > 0);
        let mut meta = profile.meta.clone();
        meta.timed = true;
        meta.duration_ns = to_ns.saturating_sub(from_ns);
        meta.metrics = Vec::new();
        meta.counting = Vec::new();
        meta.costs = None;
        Profile {
            meta,
            modules: profile.modules.clone(),
            functions: profile.functions.clone(),
            processes,
            sampled: sampled
                .map(|(function, (own, on_stack))| SampledFunction {
                    function,
                    own: own.0,
                    on_stack: on_stack.0,
                    error_ns: error(*own),
                    total_error_ns: error(*on_stack),
                    through_ns: 0,
                })
                .collect(),
            ..Profile::default()
        }
    }
}

impl Lane {
    #[cfg(test)]
    pub(crate) fn new(stacks: Vec<SampleNode>, line: Timeline) -> Lane {
        Lane { stacks, line }
    }

    pub(crate) fn stacks(&self) -> &[SampleNode] {
        &self.stacks
    }

    pub fn line(&self) -> &Timeline {
        &self.line
    }

    /// The part of the tree of stacks that was seen then. `own` and `on_stack`: of each function how
    /// many samples, and the time that they stand for.
    fn between(
        &self,
        from_ns: u64,
        to_ns: u64,
        own: &mut [(u64, u64)],
        on_stack: &mut [(u64, u64)],
    ) -> Vec<Node> {
        let period = self.line.period_ns;
        let samples = &self.line.samples;
        let first = samples.partition_point(|one| one.at_ns < from_ns);
        let seen = samples[first..].iter().take_while(|one| one.at_ns <= to_ns);
        let mut times = vec![0u64; self.stacks.len()];
        for node in seen.filter_map(|one| one.sample) {
            times[node as usize] += 1;
        }
        let mut below = times.clone();
        for (index, node) in self.stacks.iter().enumerate().rev() {
            if let Some(parent) = node.parent {
                below[parent as usize] += below[index];
            }
        }
        let mut places: Vec<u32> = vec![0; self.stacks.len()];
        let mut nodes: Vec<Node> = Vec::new();
        // A function that is counted now and then stands beside itself: once is enough here.
        let mut known = std::collections::HashMap::new();
        for (index, stack) in self.stacks.iter().enumerate() {
            if below[index] == 0 {
                continue;
            }
            let parent = stack.parent.map(|parent| places[parent as usize]);
            let place = *known.entry((parent, stack.function)).or_insert_with(|| {
                nodes.push(Node {
                    parent,
                    function: stack.function,
                    flags: NodeFlags::SAMPLED,
                    ..Node::default()
                });
                nodes.len() as u32 - 1
            });
            places[index] = place;
            let node = &mut nodes[place as usize];
            node.self_ns = node
                .self_ns
                .saturating_add(times[index].saturating_mul(period));
            node.total_ns = node
                .total_ns
                .saturating_add(below[index].saturating_mul(period));
        }
        for node in &mut nodes {
            node.wall_ns = node.total_ns;
        }
        count_recursion(&mut nodes, own.len());
        let per = |sum: &mut (u64, u64), ns: u64| {
            sum.0 = sum.0.saturating_add(ns.checked_div(period).unwrap_or(0));
            sum.1 = sum.1.saturating_add(ns);
        };
        for node in &nodes {
            let function = node.function.index();
            per(&mut own[function], node.self_ns);
            if node.recursion == 0 {
                per(&mut on_stack[function], node.total_ns);
            }
        }
        nodes
    }

    /// Whether anything is known of that time, as opposed to before it was first seen.
    pub fn span(&self) -> Option<(u64, u64)> {
        let samples = &self.line.samples;
        let waits = &self.line.waits;
        let first = samples
            .first()
            .map(|one| one.at_ns.saturating_sub(self.line.period_ns));
        let starts = first.into_iter().chain(waits.first().map(|w| w.start_ns));
        let last = samples.last().map(|one| one.at_ns);
        let ends = last.into_iter().chain(waits.last().map(|w| w.end_ns));
        Some((starts.min()?, ends.max()?))
    }

    /// `count` equal pieces of `from_ns` to `to_ns`.
    ///
    /// Between two samples the thread used one period, no more and no less. When in between is known
    /// as far as it was found asleep; the rest has it evenly.
    pub fn bins(&self, from_ns: u64, to_ns: u64, count: usize) -> Vec<Bin> {
        let mut bins = vec![Bin::default(); count];
        let length = to_ns.saturating_sub(from_ns).max(1);
        let of = |at_ns: u64| -> usize {
            let share = u128::from(at_ns.saturating_sub(from_ns)) * count as u128;
            (share / u128::from(length)) as usize
        };
        let start = |bin: usize| -> u64 {
            from_ns + (u128::from(length) * bin as u128 / count.max(1) as u128) as u64
        };
        // Each piece of an interval, with how much of it is in that bin.
        let pieces = |begin: u64, end: u64, each: &mut dyn FnMut(usize, u64)| {
            let (begin, end) = (begin.max(from_ns), end.min(to_ns));
            if begin >= end || count == 0 {
                return;
            }
            for bin in of(begin)..=of(end - 1).min(count - 1) {
                let inside = end
                    .min(start(bin + 1))
                    .saturating_sub(begin.max(start(bin)));
                each(bin, inside);
            }
        };

        let mut waited: Vec<(usize, u32, u64)> = Vec::new();
        let waits = &self.line.waits;
        let first = waits.partition_point(|wait| wait.end_ns < from_ns);
        for (number, wait) in waits.iter().enumerate().skip(first) {
            if wait.start_ns > to_ns {
                break;
            }
            pieces(wait.start_ns, wait.end_ns, &mut |bin, ns| {
                waited.push((bin, number as u32, ns));
            });
        }
        for (bin, wait) in most(waited) {
            bins[bin].wait = Some(wait);
        }

        let period = self.line.period_ns;
        let samples = &self.line.samples;
        let first = samples.partition_point(|one| one.at_ns < from_ns);
        let mut ran: Vec<(usize, FuncId, u64)> = Vec::new();
        for (number, sample) in samples.iter().enumerate().skip(first) {
            let before = number.checked_sub(1).map(|before| samples[before].at_ns);
            let before = before.unwrap_or(sample.at_ns.saturating_sub(period));
            if before > to_ns {
                break;
            }
            let slept = waits.partition_point(|wait| wait.end_ns <= sample.at_ns);
            let woke = slept.checked_sub(1).map_or(0, |last| waits[last].end_ns);
            // Asleep until then, as far as it was asked; and it has run for a period since.
            let begin = woke.min(sample.at_ns.saturating_sub(period)).max(before);
            let room = sample.at_ns.saturating_sub(begin).max(1);
            let function = sample
                .sample
                .map(|node| self.stacks[node as usize].function);
            pieces(begin, sample.at_ns, &mut |bin, ns| {
                let on = u128::from(ns) * u128::from(period.min(room)) / u128::from(room);
                bins[bin].on_ns += on as u64;
                ran.push((bin, function.unwrap_or(UNKNOWN), on as u64));
            });
        }
        for (bin, function) in most(ran) {
            bins[bin].function = Some(function).filter(|&function| function != UNKNOWN);
        }
        bins
    }
}

/// Of each bin what has most of it.
fn most<T: Copy + Ord>(mut parts: Vec<(usize, T, u64)>) -> Vec<(usize, T)> {
    parts.sort_unstable();
    let mut all: Vec<(usize, T, u64)> = Vec::new();
    for chunk in parts.chunk_by(|one, other| (one.0, one.1) == (other.0, other.1)) {
        let (bin, what, _) = chunk[0];
        let sum = chunk
            .iter()
            .fold(0u64, |sum, part| sum.saturating_add(part.2));
        match all.last_mut() {
            Some(best) if best.0 == bin && best.2 >= sum => {}
            Some(best) if best.0 == bin => *best = (bin, what, sum),
            _ => all.push((bin, what, sum)),
        }
    }
    all.into_iter().map(|(bin, what, _)| (bin, what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_model::{Function, TimedSample, Wait, WaitsOf};

    const MS: u64 = 1_000_000;

    /// main calls work and other; works from 0 to 10 ms, waits until 90 ms, does other until 100 ms.
    fn lane() -> Lane {
        let stack = |parent, function| SampleNode {
            parent,
            function,
            counted: true,
            own: 1,
        };
        let at = |ms: u64, sample| TimedSample {
            at_ns: ms * MS,
            sample: Some(sample),
        };
        Lane {
            stacks: vec![
                stack(None, FuncId(0)),
                stack(Some(0), FuncId(1)),
                stack(Some(0), FuncId(2)),
            ],
            line: Timeline {
                period_ns: MS,
                samples: (1..=10)
                    .map(|ms| at(ms, 1))
                    .chain((91..=100).map(|ms| at(ms, 2)))
                    .collect(),
                waits: vec![Wait {
                    start_ns: 10 * MS,
                    end_ns: 90 * MS,
                    system_call: Some(35),
                    of: WaitsOf::None,
                }],
            },
        }
    }

    #[test]
    fn a_thread_is_on_a_processor_for_a_period_a_sample_and_asleep_where_it_was_found_so() {
        let bins = lane().bins(0, 100 * MS, 10);
        let on: Vec<u64> = bins.iter().map(|bin| bin.on_ns / MS).collect();
        assert_eq!(on, [10, 0, 0, 0, 0, 0, 0, 0, 0, 10]);
        let functions: Vec<_> = bins.iter().filter_map(|bin| bin.function).collect();
        assert_eq!(functions, [FuncId(1), FuncId(2)]);
        let asleep: Vec<bool> = bins.iter().map(|bin| bin.wait.is_some()).collect();
        assert_eq!(
            asleep,
            [false, true, true, true, true, true, true, true, true, false]
        );
    }

    #[test]
    fn no_time_is_lost_or_made_however_fine_the_pieces_are() {
        for count in [1, 3, 7, 100, 999] {
            let bins = lane().bins(0, 100 * MS, count);
            let on: u64 = bins.iter().map(|bin| bin.on_ns).sum();
            let off = on.abs_diff(20 * MS);
            assert!(off <= count as u64 * 20, "{count}: {on}");
        }
    }

    #[test]
    fn a_part_of_the_time_has_what_was_seen_in_it_and_no_calls() {
        let profile = Profile {
            functions: vec![Function::default(); 3],
            processes: vec![Process {
                threads: vec![Thread::default()],
                ..Process::default()
            }],
            ..Profile::default()
        };
        let lanes = Lanes {
            lanes: vec![lane()],
        };
        let part = lanes.between(&profile, 0, 50 * MS);
        let nodes = &part.processes[0].threads[0].nodes;
        let figures: Vec<_> = nodes
            .iter()
            .map(|node| (node.function, node.calls, node.self_ns, node.total_ns))
            .collect();
        assert_eq!(
            figures,
            [(FuncId(0), 0, 0, 10 * MS), (FuncId(1), 0, 10 * MS, 10 * MS)]
        );
        let work = part.sampled.iter().find(|one| one.function == FuncId(1));
        let work = work.expect("it was seen");
        assert_eq!((work.own, work.on_stack), (10, 10));
        let error = work.error_ns as f64 / MS as f64;
        assert!((6.1..6.3).contains(&error), "two roots of ten: {error}");
        let rest = lanes.between(&profile, 50 * MS, 100 * MS);
        assert_eq!(rest.processes[0].threads[0].nodes[1].function, FuncId(2));
    }
}
