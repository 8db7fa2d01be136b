//! What was measured beside calls and time: named figures with a unit, for each context what it did
//! itself. Most contexts of most profiles have none, so that the figures stand beside the nodes,
//! not in them.

/// One thing that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    AllocCalls,
    AllocBytes,
    FreeCalls,
    FreeBytes,
    /// Of what was allocated here, what was not freed, by whomever.
    LiveBytes,
    LiveObjects,
    /// Anonymous memory that the program asked the kernel for by itself.
    MapCalls,
    MapBytes,
    UnmapCalls,
    UnmapBytes,
    /// Times that the function entered the kernel, and its own time, waiting included, where it is
    /// a function that does.
    SyscallCalls,
    SyscallTime,
    /// What the kernel counts, see `counting.rs`: page faults, and how often a thread left its
    /// processor.
    Faults,
    Switches,
    /// What the processor counts, in the program's own code as opposed to the kernel's.
    Instructions,
    Cycles,
    CacheMisses,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Nanoseconds,
    Bytes,
    Count,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "nanoseconds",
            Unit::Bytes => "bytes",
            Unit::Count => "count",
        }
    }
}

impl Metric {
    pub const ALL: [Metric; COUNT] = [
        Metric::AllocCalls,
        Metric::AllocBytes,
        Metric::FreeCalls,
        Metric::FreeBytes,
        Metric::LiveBytes,
        Metric::LiveObjects,
        Metric::MapCalls,
        Metric::MapBytes,
        Metric::UnmapCalls,
        Metric::UnmapBytes,
        Metric::SyscallCalls,
        Metric::SyscallTime,
        Metric::Faults,
        Metric::Switches,
        Metric::Instructions,
        Metric::Cycles,
        Metric::CacheMisses,
    ];
    /// What `--metric alloc` measures.
    pub const OF_ALLOCATION: &[Metric] = Metric::ALL.split_at(Metric::UnmapBytes as usize + 1).0;

    /// Stable: in files, exports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Metric::AllocCalls => "alloc.calls",
            Metric::AllocBytes => "alloc.bytes",
            Metric::FreeCalls => "free.calls",
            Metric::FreeBytes => "free.bytes",
            Metric::LiveBytes => "live.bytes",
            Metric::LiveObjects => "live.objects",
            Metric::MapCalls => "map.calls",
            Metric::MapBytes => "map.bytes",
            Metric::UnmapCalls => "unmap.calls",
            Metric::UnmapBytes => "unmap.bytes",
            Metric::SyscallCalls => "syscall.calls",
            Metric::SyscallTime => "syscall.time",
            Metric::Faults => "faults",
            Metric::Switches => "switches",
            Metric::Instructions => "instructions",
            Metric::Cycles => "cycles",
            Metric::CacheMisses => "cache-misses",
        }
    }

    pub fn named(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    pub fn unit(self) -> Unit {
        match self.name().split_once('.') {
            Some((_, "bytes")) => Unit::Bytes,
            Some((_, "time")) => Unit::Nanoseconds,
            _ => Unit::Count,
        }
    }
}

const COUNT: usize = 17;

/// The figures of one context, or a sum of them. All 0 where nothing of the kind was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics([u64; COUNT]);

impl Metrics {
    pub fn get(&self, metric: Metric) -> u64 {
        self.0[metric as usize]
    }

    pub fn set(&mut self, metric: Metric, value: u64) {
        self.0[metric as usize] = value;
    }

    pub fn add(&mut self, other: &Metrics) {
        for (sum, value) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(value);
        }
    }

    pub fn is_empty(&self) -> bool {
        *self == Metrics::default()
    }

    pub fn total<'a>(all: impl IntoIterator<Item = &'a Metrics>) -> Metrics {
        let mut sum = Metrics::default();
        all.into_iter().for_each(|metrics| sum.add(metrics));
        sum
    }

    /// Those that are not 0.
    pub fn iter(&self) -> impl Iterator<Item = (Metric, u64)> {
        let all = Metric::ALL.into_iter().zip(self.0);
        all.filter(|(_, value)| *value > 0)
    }
}

/// The figures of a thread's contexts, by the number of the node. Only contexts that have any take
/// room.
#[derive(Clone, Debug, Default)]
pub struct NodeMetrics {
    /// Of each node its place in `figures` plus one, or 0; as long as the last node that has
    /// figures.
    places: Vec<u32>,
    figures: Vec<Metrics>,
}

impl NodeMetrics {
    pub fn at(&self, node: u32) -> &Metrics {
        const NONE: Metrics = Metrics([0; COUNT]);
        match self.places.get(node as usize) {
            None | Some(0) => &NONE,
            Some(place) => &self.figures[*place as usize - 1],
        }
    }

    pub fn set(&mut self, node: u32, metric: Metric, value: u64) {
        if value != self.at(node).get(metric) {
            self.at_mut(node).set(metric, value);
        }
    }

    pub fn add(&mut self, node: u32, metrics: &Metrics) {
        if !metrics.is_empty() {
            self.at_mut(node).add(metrics);
        }
    }

    fn at_mut(&mut self, node: u32) -> &mut Metrics {
        let node = node as usize;
        if self.places.len() <= node {
            self.places.resize(node + 1, 0);
        }
        if self.places[node] == 0 {
            self.figures.push(Metrics::default());
            self.places[node] = self.figures.len() as u32;
        }
        &mut self.figures[self.places[node] as usize - 1]
    }

    /// In the order of the nodes, those that have figures.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Metrics)> {
        let all = (0..).zip(&self.places);
        all.filter(|(_, place)| **place > 0)
            .map(|(node, place)| (node, &self.figures[*place as usize - 1]))
            .filter(|(_, metrics)| !metrics.is_empty())
    }

    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn total(&self) -> Metrics {
        Metrics::total(&self.figures)
    }

    /// One more than the number of the last node that may have figures.
    pub(crate) fn reach(&self) -> usize {
        self.places.len()
    }
}

/// How the figures came to be there makes no difference.
impl PartialEq for NodeMetrics {
    fn eq(&self, other: &NodeMetrics) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for NodeMetrics {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_their_node_in_whatever_order_they_come() {
        let mut forth = NodeMetrics::default();
        forth.set(1, Metric::AllocBytes, 10);
        forth.set(7, Metric::FreeCalls, 2);
        let mut back = NodeMetrics::default();
        back.set(7, Metric::FreeCalls, 2);
        back.add(9, &Metrics::default());
        back.add(1, forth.at(1));
        assert_eq!(forth, back);
        assert_eq!(back.at(7).get(Metric::FreeCalls), 2);
        assert!(back.at(0).is_empty() && back.at(9).is_empty() && back.at(u32::MAX).is_empty());
        back.set(7, Metric::FreeCalls, 0);
        assert_ne!(forth, back);
        assert_eq!(back.iter().count(), 1);
        assert_eq!(back.total(), *forth.at(1));
    }
}
