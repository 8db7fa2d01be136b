//! What can be measured beside calls and time.

use anyhow::bail;
use clap::ValueEnum;
use thalweg_model::Metric;
use thalweg_sampler::counters::Counter;

/// A choice for `--metric` of `record` and `attach`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Memory that is allocated and freed: calls, bytes, what is live, by who asks for it
    Alloc,
    /// System calls: how many, how long, by whom and by name
    Syscalls,
    /// Page faults, each by who caused it
    Faults,
    /// How often threads left the processor, each by where
    Switches,
    /// Instructions executed, by the processor's counter: estimates
    Instructions,
    /// Processor cycles, by its counter: estimates
    Cycles,
    /// Cache misses, by its counter: estimates
    CacheMisses,
}

impl Extra {
    fn counter(self) -> Option<Counter> {
        match self {
            Extra::Alloc | Extra::Syscalls => None,
            Extra::Faults => Some(Counter::Faults),
            Extra::Switches => Some(Counter::Switches),
            Extra::Instructions => Some(Counter::Instructions),
            Extra::Cycles => Some(Counter::Cycles),
            Extra::CacheMisses => Some(Counter::CacheMisses),
        }
    }
}

/// What is to be measured beside calls and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub alloc: bool,
    pub system_calls: bool,
    pub counters: Vec<Counter>,
}

/// What the kernel or the machine does not count is refused, with the reason.
pub fn wanted(extras: &[Extra]) -> anyhow::Result<Wanted> {
    let mut counters = Vec::new();
    for counter in extras.iter().filter_map(|extra| extra.counter()) {
        if let Err(reason) = counter.check() {
            bail!("--metric {}: {reason}", counter.metric().name());
        }
        if !counters.contains(&counter) {
            counters.push(counter);
        }
    }
    Ok(Wanted {
        counters,
        alloc: extras.contains(&Extra::Alloc),
        system_calls: extras.contains(&Extra::Syscalls),
    })
}

/// A metric by its name, for `--by`.
pub fn parse(name: &str) -> Result<Metric, String> {
    Metric::named(name).ok_or_else(|| {
        let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        format!("there is no such metric: use one of {}", names.join(", "))
    })
}

/// The page has every metric of the profile.
pub fn refuse_on_page(by: Option<Metric>) -> anyhow::Result<()> {
    match by {
        Some(metric) => bail!(
            "--by goes with reports, graphs and exports: choose {} on the page",
            metric.name()
        ),
        None => Ok(()),
    }
}
