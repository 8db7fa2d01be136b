//! The few figures that neither a run nor a calibration tells, and where each comes from. No other
//! number of the kind is in the analysis.

/// Shares are of the figure that they are of: 0.02 is a fiftieth.
pub(crate) struct Tunables {
    /// No program takes the same time twice. Fourteen programs by themselves, best of four against
    /// the next best, on an AMD EPYC guest of family 26: 0.4 % to 2.1 %.
    pub repeatability: f64,
    /// A context with a smaller share of untimed calls is known by the clock alone: what those
    /// calls took is in its caller's time.
    pub nearly_all_timed: f64,
    /// What the first call of a function, or one after long, may take more in one run than in
    /// another, in nanoseconds: cold caches, a page that is there or not, an interrupt. Single calls
    /// of identical runs of Lua differed by up to 22 us (AMD EPYC guest of family 26).
    pub cold_call_ns: f64,
    /// From when on a call finds its probe in a cache that is farther away, and from when on in none:
    /// nanoseconds since the function's last one. The time in which a program passes over the nearest
    /// cache, and over the next. Choices; what a call costs then is calibrated, and all of it is in
    /// doubt until samples tell. By samples a call under a budget took 0.6 to 4.5 times what it takes
    /// in a loop, 1.8 on average (nineteen programs, AMD EPYC guest of family 26).
    pub often_ns: f64,
    pub rarely_ns: f64,
    /// Standard deviations that chance exceeds once in twenty times.
    pub sigmas: f64,
}

pub(crate) const TUNABLES: Tunables = Tunables {
    repeatability: 0.02,
    nearly_all_timed: 0.01,
    cold_call_ns: 25_000.0,
    often_ns: 250.0,
    rarely_ns: 64_000.0,
    sigmas: 2.0,
};
