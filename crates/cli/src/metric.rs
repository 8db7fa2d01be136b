//! What can be measured beside calls and time.

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use thalweg_control::counters::{self, Counter};
use thalweg_model::{Metric, Profile};

use crate::report;

/// A choice for `--metric` of `record` and `attach`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Memory that is allocated and freed: calls, bytes, what is live, by who asks for it
    Alloc,
    /// System calls: how many, how long, by whom and by name
    Syscalls,
    /// Instructions executed, by the processor's counter
    Instructions,
    /// Processor cycles, by its counter
    Cycles,
    /// Cache misses, by its counter
    CacheMisses,
}

/// What is to be measured beside calls and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub alloc: bool,
    pub system_calls: bool,
}

/// The processor's counters are refused, with the reason.
pub fn wanted(extras: &[Extra]) -> anyhow::Result<Wanted> {
    for extra in extras {
        let (counter, name) = match extra {
            Extra::Alloc | Extra::Syscalls => continue,
            Extra::Instructions => (Counter::Instructions, "instructions"),
            Extra::Cycles => (Counter::Cycles, "cycles"),
            Extra::CacheMisses => (Counter::CacheMisses, "cache-misses"),
        };
        match counters::try_open(counter) {
            Err(reason) => bail!("--metric {name}: {reason}"),
            Ok(()) => bail!(
                "--metric {name}: this machine has the counter, but thalweg does not read it yet"
            ),
        }
    }
    Ok(Wanted {
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

/// The profile with the metric in the place of time; from here on this run shows figures in its unit.
pub fn weigh(profile: Profile, metric: Metric) -> anyhow::Result<Profile> {
    if !profile.meta.metrics.contains(&metric) {
        return Err(missing(metric));
    }
    report::show_in(metric.unit());
    Ok(thalweg_analysis::weigh(profile, metric))
}

/// What to say of a profile without the metric.
pub fn missing(metric: Metric) -> anyhow::Error {
    let recorded = match metric {
        Metric::SyscallTime => "--metric syscalls and with a clock",
        Metric::SyscallCalls => "--metric syscalls",
        _ => "--metric alloc",
    };
    anyhow!(
        "this profile does not have {}: record it with {recorded}",
        metric.name()
    )
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
