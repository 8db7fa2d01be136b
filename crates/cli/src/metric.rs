//! What can be measured beside calls and time.

use anyhow::bail;
use clap::ValueEnum;
use thalweg_control::counters::{self, Counter};

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
