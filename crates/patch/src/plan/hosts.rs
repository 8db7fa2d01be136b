//! Dead bytes and the functions whose windows displaced them: a springboard in them needs those windows in force.

use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Hosts {
    /// By start and order of coming: end and function.
    ranges: BTreeMap<(u64, usize), (u64, usize)>,
    longest: u64,
}

impl Hosts {
    pub fn add(&mut self, start: u64, end: u64, function: usize) {
        self.longest = self.longest.max(end.saturating_sub(start));
        let order = self.ranges.len();
        self.ranges.insert((start, order), (end, function));
    }

    /// Those with bytes in `[start, end)`, in the order in which they came.
    pub fn of(&self, start: u64, end: u64) -> Vec<usize> {
        let first = (start.saturating_sub(self.longest), 0);
        let near = self.ranges.range(first..(end, 0));
        let mut found: Vec<(usize, usize)> = near
            .filter(|(_, (until, _))| *until > start)
            .map(|(&(_, order), &(_, function))| (order, function))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, function)| function).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_of_a_search_through_all() {
        let mut hosts = Hosts::default();
        let mut all = Vec::new();
        let mut seed = 1u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) % bound
        };
        for function in 0..500 {
            let start = next(4000);
            let end = start + next(60);
            hosts.add(start, end, function);
            all.push((start, end, function));
        }
        for at in 0..4100 {
            let touches = |r: &&(u64, u64, usize)| r.0 < at + 5 && at < r.1;
            let expected: Vec<usize> = all.iter().filter(touches).map(|r| r.2).collect();
            assert_eq!(hosts.of(at, at + 5), expected, "at {at}");
        }
    }
}
