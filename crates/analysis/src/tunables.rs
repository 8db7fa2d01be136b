//! The few figures that neither a run nor a calibration tells, and where each comes from. No other number of the kind is in the analysis.

/// Shares are of the figure that they are of: 0.02 is a fiftieth.
pub(crate) struct Tunables {
    /// No program takes the same time twice. Fourteen programs by themselves, best of four against the next best, on an AMD EPYC guest of family
    /// 26: 0.4 % to 2.1 %.
    pub repeatability: f64,
    /// A context with a smaller share of untimed calls is known by the clock alone: what those calls took is in its caller's time.
    pub nearly_all_timed: f64,
    /// Nanoseconds that a timed call is taken to be measured too long where nothing was calibrated: twice reading the counter, on the processors of
    /// docs/benchmarks.md.
    pub uncalibrated_call_ns: f64,
    /// Standard deviations that chance exceeds once in twenty times.
    pub sigmas: f64,
}

pub(crate) const TUNABLES: Tunables = Tunables {
    repeatability: 0.02,
    nearly_all_timed: 0.01,
    uncalibrated_call_ns: 20.0,
    sigmas: 2.0,
};
