//! Samples: the stacks of threads, taken on a timer, beside the events that probes count.
//!
//! They tell where time went below functions that are not counted. In the file they are a section
//! of their own:
//!
//! ```text
//! numbers period, samples, lost, cut short, in probes
//! for each thread that was sampled: how many threads were passed over, then the list of its nodes, column by column:
//! parents (how far back, 0 = none), functions, counted or not, samples
//! ```

use std::collections::HashMap;

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::ids::FuncId;
use crate::profile::{Profile, Thread};

/// How often threads were sampled, and what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// Of a thread's processor time between two samples.
    pub period_ns: u64,
    /// All of them, over all threads.
    pub samples: u64,
    /// That the kernel had no room for.
    pub lost: u64,
    /// Stacks that were deeper than what was copied, or could not be followed to their outermost
    /// frame; in no tree.
    pub cut_short: u64,
    /// Samples that found a thread in thalweg's own code: what probes cost; in no tree.
    pub in_probes: u64,
}

impl Sampling {
    /// Of two recordings; the period is that of the first one.
    pub fn plus(self, other: Sampling) -> Sampling {
        Sampling {
            period_ns: self.period_ns,
            samples: self.samples.saturating_add(other.samples),
            lost: self.lost.saturating_add(other.lost),
            cut_short: self.cut_short.saturating_add(other.cut_short),
            in_probes: self.in_probes.saturating_add(other.in_probes),
        }
    }
}

/// A frame of the stacks that were seen: a function, below the chain of functions above it. No two
/// with the same parent agree in both function and `counted`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleNode {
    /// Index in the same thread's samples, always smaller than this one's own; `None` for the
    /// outermost frame.
    pub parent: Option<u32>,
    /// Index into [`Profile::functions`], which thereby has functions that were never patched.
    pub function: FuncId,
    /// Its calls were counted at that time, so that it stands in the tree of contexts too.
    /// Otherwise it was off or is not patched.
    pub counted: bool,
    /// Samples in which it was the innermost.
    pub own: u64,
}

/// A function whose times come from samples in part or in all: what they are worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledFunction {
    /// Index into the profile's functions.
    pub function: FuncId,
    /// Samples that found it while its calls were not counted: as the innermost, and anywhere on
    /// the stack.
    pub own: u64,
    pub on_stack: u64,
    /// How far off self and total may be, all in all: once in twenty times it is more.
    pub error_ns: u64,
    pub total_error_ns: u64,
    /// Of its total, what no context below one of its own has: samples saw it on the stack while
    /// its calls were not counted, and what it called was counted below whoever called it.
    pub through_ns: u64,
}

impl SampledFunction {
    /// Of two recordings, which had nothing to do with each other.
    pub fn plus(self, other: SampledFunction) -> SampledFunction {
        let root = |one: u64, other: u64| (one as f64).hypot(other as f64) as u64;
        SampledFunction {
            function: self.function,
            own: self.own.saturating_add(other.own),
            on_stack: self.on_stack.saturating_add(other.on_stack),
            error_ns: root(self.error_ns, other.error_ns),
            total_error_ns: root(self.total_error_ns, other.total_error_ns),
            through_ns: self.through_ns.saturating_add(other.through_ns),
        }
    }
}

impl Thread {
    /// Adds the samples at another thread to this one's. Says where each of those is now.
    pub fn add_samples(&mut self, others: &[SampleNode]) -> Vec<u32> {
        if self.samples.is_empty() {
            self.samples = others.to_vec();
            return (0..others.len() as u32).collect();
        }
        let all = &mut self.samples;
        let mut known: HashMap<_, u32> = (0..)
            .zip(all.iter())
            .map(|(index, node)| ((node.parent, node.function, node.counted), index))
            .collect();
        let mut places: Vec<u32> = Vec::with_capacity(others.len());
        for node in others {
            let parent = node.parent.map(|parent| places[parent as usize]);
            let key = (parent, node.function, node.counted);
            let place = *known.entry(key).or_insert_with(|| {
                all.push(SampleNode {
                    parent,
                    own: 0,
                    ..*node
                });
                all.len() as u32 - 1
            });
            let own = &mut all[place as usize].own;
            *own = own.saturating_add(node.own);
            places.push(place);
        }
        places
    }
}

pub(crate) fn encode(sampling: &Sampling, profile: &Profile, out: &mut Encoder) {
    out.number(sampling.period_ns);
    out.number(sampling.samples);
    out.number(sampling.lost);
    out.number(sampling.cut_short);
    out.number(sampling.in_probes);
    let mut passed = 0;
    for thread in profile.processes.iter().flat_map(|p| &p.threads) {
        let samples = &thread.samples;
        if samples.is_empty() {
            passed += 1;
            continue;
        }
        out.number(passed);
        passed = 0;
        out.number(samples.len() as u64);
        for (index, node) in samples.iter().enumerate() {
            out.number(match node.parent {
                None => 0,
                Some(parent) => index as u64 - u64::from(parent),
            });
        }
        samples.iter().for_each(|n| out.number(n.function.into()));
        for node in samples {
            out.byte(node.counted.into());
        }
        samples.iter().for_each(|n| out.number(n.own));
    }
}

pub(crate) fn encode_sampled(sampled: &[SampledFunction], out: &mut Encoder) {
    out.number(sampled.len() as u64);
    for one in sampled {
        out.number(one.function.into());
        out.number(one.own);
        out.number(one.on_stack);
        out.number(one.error_ns);
        out.number(one.total_error_ns);
    }
}

pub(crate) fn decode_sampled(input: &mut Decoder) -> Result<Vec<SampledFunction>, ReadError> {
    input.list(5, |input| {
        Ok(SampledFunction {
            function: FuncId::decode(input)?,
            own: input.number()?,
            on_stack: input.number()?,
            error_ns: input.number()?,
            total_error_ns: input.number()?,
            through_ns: 0,
        })
    })
}

/// In the order of those that were sampled: a section of its own, because it came later.
pub(crate) fn encode_through(sampled: &[SampledFunction], out: &mut Encoder) {
    sampled.iter().for_each(|one| out.number(one.through_ns));
}

pub(crate) fn decode_through(
    sampled: &mut [SampledFunction],
    input: &mut Decoder,
) -> Result<(), ReadError> {
    for one in sampled {
        one.through_ns = input.number()?;
    }
    Ok(())
}

/// One byte at least in each of the four columns.
const MIN_BYTES_PER_NODE: usize = 4;

/// Refers to the threads of the processes, whose section comes before it.
pub(crate) fn decode(profile: &mut Profile, input: &mut Decoder) -> Result<(), ReadError> {
    profile.meta.sampling = Some(Sampling {
        period_ns: input.number()?,
        samples: input.number()?,
        lost: input.number()?,
        cut_short: input.number()?,
        in_probes: input.number()?,
    });
    let mut threads = profile.processes.iter_mut().flat_map(|p| &mut p.threads);
    while !input.is_at_end() {
        let thread = usize::try_from(input.number()?)
            .ok()
            .and_then(|passed| threads.nth(passed))
            .ok_or(ReadError::Corrupt(
                "a thread that does not exist was sampled",
            ))?;
        thread.samples = decode_tree(input)?;
    }
    Ok(())
}

fn decode_tree(input: &mut Decoder) -> Result<Vec<SampleNode>, ReadError> {
    let mut samples = vec![SampleNode::default(); input.count(MIN_BYTES_PER_NODE)?];
    for (index, node) in samples.iter_mut().enumerate() {
        node.parent = input.parent(index)?;
    }
    for node in &mut samples {
        node.function = FuncId::decode(input)?;
    }
    for node in &mut samples {
        node.counted = input.boolean()?;
    }
    for node in &mut samples {
        node.own = input.number()?;
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(parent: Option<u32>, function: FuncId, counted: bool, own: u64) -> SampleNode {
        SampleNode {
            parent,
            function,
            counted,
            own,
        }
    }

    #[test]
    fn looks_at_two_threads_are_one_tree_in_which_no_frame_stands_twice() {
        let mut thread = Thread::default();
        thread.add_samples(&[
            node(None, FuncId(0), true, 1),
            node(Some(0), FuncId(1), false, 2),
            node(Some(0), FuncId(2), true, 4),
        ]);
        thread.add_samples(&[
            node(None, FuncId(0), true, 8),
            node(Some(0), FuncId(2), true, 16),
            node(Some(1), FuncId(1), false, 32),
            node(Some(0), FuncId(1), true, 64),
        ]);
        assert_eq!(
            thread.samples,
            [
                node(None, FuncId(0), true, 9),
                node(Some(0), FuncId(1), false, 2),
                node(Some(0), FuncId(2), true, 20),
                node(Some(2), FuncId(1), false, 32),
                node(Some(0), FuncId(1), true, 64),
            ]
        );
    }
}
