//! What the kernel counts for threads, and how it came to be in contexts: at each event, or at
//! every so many of them, the thread's stack was sampled. The figures themselves are metrics like
//! others.

use crate::codec::{Decoder, Encoder};
use crate::error::ReadError;
use crate::metrics::Metric;

/// How one metric was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counting {
    pub metric: Metric,
    /// How many events each sample stands for. 1: every event was sampled, so that the figures are
    /// exact; otherwise they are estimates.
    pub period: u64,
    /// Events in the kernel on behalf of the program count as well.
    pub in_kernel: bool,
    /// All samples that were seen.
    pub samples: u64,
    /// That there was no room for: in nobody's figures.
    pub lost: u64,
    /// That found a thread in thalweg's own code: what probes add; in nobody's figures.
    pub in_probes: u64,
    /// Of whose stacks nothing is counted; in nobody's figures.
    pub nobodys: u64,
    /// Of whose stacks only the innermost part is known: the function is right, its callers are not
    /// known unless there is but one way to it.
    pub cut_short: u64,
}

impl Counting {
    pub fn is_exact(&self) -> bool {
        self.period <= 1
    }

    fn add(&mut self, other: &Counting) {
        self.in_kernel &= other.in_kernel;
        for (sum, more) in [
            (&mut self.samples, other.samples),
            (&mut self.lost, other.lost),
            (&mut self.in_probes, other.in_probes),
            (&mut self.nobodys, other.nobodys),
            (&mut self.cut_short, other.cut_short),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Of two recordings; the longer period is that of the sum.
pub(crate) fn add(all: &mut Vec<Counting>, others: &[Counting]) {
    for other in others {
        match all.iter_mut().find(|one| one.metric == other.metric) {
            Some(one) => {
                one.period = one.period.max(other.period);
                one.add(other);
            }
            None => all.push(*other),
        }
    }
}

pub(crate) fn encode(one: &Counting, out: &mut Encoder) {
    out.text(one.metric.name());
    out.number(one.period);
    out.byte(one.in_kernel.into());
    out.number(one.samples);
    out.number(one.lost);
    out.number(one.in_probes);
    out.number(one.nobodys);
    out.number(one.cut_short);
}

/// Passes over metrics that this version does not know.
pub(crate) fn decode(input: &mut Decoder) -> Result<Vec<Counting>, ReadError> {
    let all = input.list(8, |input| {
        let metric = Metric::named(&input.text()?);
        let counting = Counting {
            metric: metric.unwrap_or(Metric::Faults),
            period: input.number()?,
            in_kernel: input.boolean()?,
            samples: input.number()?,
            lost: input.number()?,
            in_probes: input.number()?,
            nobodys: input.number()?,
            cut_short: input.number()?,
        };
        Ok(metric.map(|_| counting))
    })?;
    Ok(all.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(metric: Metric, samples: u64) -> Counting {
        Counting {
            metric,
            period: 1,
            in_kernel: true,
            samples,
            lost: 2,
            in_probes: 3,
            nobodys: 4,
            cut_short: 5,
        }
    }

    #[test]
    fn what_two_recordings_counted_adds_up_by_metric() {
        let mut all = vec![counting(Metric::Faults, 10)];
        let blind = Counting {
            in_kernel: false,
            ..counting(Metric::Faults, 7)
        };
        add(&mut all, &[counting(Metric::Switches, 1), blind]);
        assert_eq!(all.len(), 2);
        let sum = all[0];
        assert_eq!((sum.samples, sum.lost, sum.in_probes), (17, 4, 6));
        assert_eq!((sum.nobodys, sum.cut_short, sum.in_kernel), (8, 10, false));
        assert_eq!(all[1], counting(Metric::Switches, 1));
    }

    #[test]
    fn a_metric_of_a_later_version_is_passed_over() {
        let mut out = Encoder::default();
        out.number(2);
        out.text("dreams");
        out.raw(&[1, 0, 9, 9, 9, 9, 9]);
        encode(&counting(Metric::Cycles, 300), &mut out);
        let bytes = out.into_bytes();
        let read = decode(&mut Decoder::new(&bytes)).expect("a list");
        assert_eq!(read, [counting(Metric::Cycles, 300)]);
    }
}
