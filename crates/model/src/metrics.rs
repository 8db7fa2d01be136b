//! What was measured beside calls and time: named figures with a unit, for each context what it did itself.

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
    ];

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
        }
    }

    pub fn named(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    pub fn unit(self) -> Unit {
        match self.name().ends_with(".bytes") {
            true => Unit::Bytes,
            false => Unit::Count,
        }
    }
}

const COUNT: usize = 10;

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
