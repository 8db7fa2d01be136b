//! How long recorded calls took: a histogram along the logarithm, as fine as there is room for.

use std::collections::BTreeMap;

use serde::Serialize;
use thalweg_formats::calls::Calls;
use thalweg_model::{Call, CallEnd, FuncId};

/// Calls between two durations, the upper one excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    pub from_ns: u64,
    pub to_ns: u64,
    pub calls: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Durations {
    pub calls: u64,
    pub shortest_ns: u64,
    /// Half of the calls took no longer, and so on.
    pub median_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub longest_ns: u64,
    /// Empty ones between others among them.
    pub buckets: Vec<Bucket>,
}

/// As many buckets as a page's or a terminal's histogram has room for.
pub const MAX_BUCKETS: usize = 20;

/// Buckets in each power of ten, finer ones first: what they begin with.
const SCALES: [&[u64]; 4] = [
    &[
        100, 110, 120, 130, 150, 160, 180, 200, 220, 240, 270, 300, 330, 360, 390, 430, 470, 510,
        560, 620, 680, 750, 820, 910,
    ],
    &[100, 120, 150, 180, 220, 270, 330, 390, 470, 560, 680, 820],
    &[100, 150, 200, 300, 500, 700],
    &[100, 200, 500],
];

impl Durations {
    /// Of these durations, in at most about so many buckets.
    pub fn new(mut all: Vec<u64>, most: usize) -> Durations {
        all.sort_unstable();
        let (Some(&shortest), Some(&longest)) = (all.first(), all.last()) else {
            return Durations::default();
        };
        let within = |part: usize| all[(all.len() * part).div_ceil(100).max(1) - 1];
        let mut edges = Vec::new();
        for scale in SCALES {
            edges = edges_between(scale, shortest, longest);
            if edges.len() <= most + 1 {
                break;
            }
        }
        let buckets = edges.windows(2).map(|edge| {
            let before = |ns: u64| all.partition_point(|&one| one < ns) as u64;
            Bucket {
                from_ns: edge[0],
                to_ns: edge[1],
                calls: before(edge[1]) - before(edge[0]),
            }
        });
        Durations {
            calls: all.len() as u64,
            shortest_ns: shortest,
            median_ns: within(50),
            p90_ns: within(90),
            p99_ns: within(99),
            longest_ns: longest,
            buckets: buckets.collect(),
        }
    }
}

/// From the last edge that is not above the shortest to the first that is above the longest.
fn edges_between(scale: &[u64], shortest: u64, longest: u64) -> Vec<u64> {
    let mut edges = vec![0];
    let mut decade = 1u64;
    'all: loop {
        for &step in scale {
            // Hundredths, so that the first decade has them too.
            let edge = (u128::from(decade) * u128::from(step) / 100).min(u64::MAX.into()) as u64;
            if edges.last().is_some_and(|&last| last >= edge) {
                continue;
            }
            if edge <= shortest {
                edges.clear();
            }
            edges.push(edge);
            if edge > longest {
                break 'all;
            }
        }
        match decade.checked_mul(10) {
            Some(next) => decade = next,
            None => {
                edges.push(u64::MAX);
                break;
            }
        }
    }
    edges
}

/// The durations of a function's recorded calls.
#[derive(Serialize)]
pub struct FunctionDurations<'a> {
    pub name: &'a str,
    pub module: &'a str,
    #[serde(flatten)]
    pub durations: Durations,
}

/// Those of all functions that calls were chosen of, most calls first.
#[derive(Serialize)]
pub struct CallDurations<'a> {
    schema: &'static str,
    pub functions: Vec<FunctionDurations<'a>>,
}

impl<'a> CallDurations<'a> {
    /// `calls`: those that are wanted; of them those that were chosen and have ended count.
    pub fn new(calls: &Calls<'a>, wanted: impl Iterator<Item = &'a Call>) -> CallDurations<'a> {
        let mut of: BTreeMap<FuncId, (&Call, Vec<u64>)> = BTreeMap::new();
        for call in wanted.filter(|call| call.rule.is_some() && has_duration(call)) {
            let durations = of.entry(call.function).or_insert((call, Vec::new()));
            durations.1.push(call.total_ns());
        }
        let function = |(call, all): (&Call, Vec<u64>)| FunctionDurations {
            name: calls.function(call),
            module: calls.module(call),
            durations: Durations::new(all, MAX_BUCKETS),
        };
        let mut functions: Vec<_> = of.into_values().map(function).collect();
        functions.sort_by_key(|function| std::cmp::Reverse(function.durations.calls));
        CallDurations {
            schema: "thalweg.calls.durations/1",
            functions,
        }
    }
}

/// Not of those that were running still, nor of those whose ends were lost.
pub fn has_duration(call: &Call) -> bool {
    !matches!(call.end, CallEnd::Open | CallEnd::Lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_in_one_bucket_and_the_edges_are_round() {
        let all: Vec<u64> = (1..=1000).map(|n| n * 7_000).collect();
        let durations = Durations::new(all, 20);
        let sum: u64 = durations.buckets.iter().map(|bucket| bucket.calls).sum();
        assert_eq!((durations.calls, sum), (1000, 1000));
        assert_eq!(
            (durations.shortest_ns, durations.median_ns),
            (7_000, 3_500_000)
        );
        assert_eq!(
            (durations.p90_ns, durations.p99_ns, durations.longest_ns),
            (6_300_000, 6_930_000, 7_000_000)
        );
        assert!((10..=21).contains(&durations.buckets.len()));
        assert_eq!(durations.buckets[0].from_ns, 7_000);
        assert_eq!(durations.buckets[1].from_ns, 10_000);
        let joined = durations.buckets.windows(2);
        assert!(joined.into_iter().all(|b| b[0].to_ns == b[1].from_ns));
    }

    #[test]
    fn what_is_alike_is_told_apart_and_what_is_far_apart_fits() {
        let near = Durations::new(vec![5_000_000, 5_400_000, 8_900_000], 20);
        assert!(near.buckets.len() > 5, "{near:?}");
        let far = Durations::new(vec![0, 1, 3, 4_000_000_000_000], 20);
        assert!(far.buckets.len() <= 42, "{}", far.buckets.len());
        assert_eq!(far.buckets[0].calls, 1, "less than a nanosecond");
        let one = Durations::new(vec![7], 20);
        assert_eq!((one.buckets.len(), one.median_ns, one.p99_ns), (1, 7, 7));
        assert_eq!(Durations::new(Vec::new(), 20), Durations::default());
        let end = Durations::new(vec![u64::MAX, u64::MAX - 1], 20);
        assert_eq!(end.longest_ns, u64::MAX);
    }
}
