//! What can be measured beside calls and time.

use anyhow::bail;
use clap::ValueEnum;
use thalweg_control::counters::{self, Counter};
use thalweg_model::{Metric, Profile};

use crate::report;

/// A choice for `--metric` of `record` and `attach`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Memory that is allocated and freed: calls, bytes, what is live, by who asks for it
    Alloc,
    /// Instructions executed, by the processor's counter
    Instructions,
    /// Processor cycles, by its counter
    Cycles,
    /// Cache misses, by its counter
    CacheMisses,
}

/// Whether allocations are to be counted. The processor's counters are refused, with the reason.
pub fn wants_alloc(extras: &[Extra]) -> anyhow::Result<bool> {
    for extra in extras {
        let (counter, name) = match extra {
            Extra::Alloc => continue,
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
    Ok(extras.contains(&Extra::Alloc))
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
        bail!(
            "this profile does not have {}: record it with --metric alloc",
            metric.name()
        );
    }
    report::show_in(metric.unit());
    Ok(thalweg_analysis::weigh(profile, metric))
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
