//! Samples: stacks that the kernel takes on a timer, or at what it counts, unwound and charged to contexts.
//!
//! `counters` says what can be counted here; `samples` takes, unwinds and keeps, beside the probes or without.

pub mod counters;
pub mod samples;

use thalweg_instrument::{agent, filter, leaf, ledger, ledgers, loaded, states, survey};
use thalweg_ptrace::{error, proc};
use thalweg_region::{attendants, memory};
