//! Restartable sequences: per-CPU counters that must not lose an increment.
