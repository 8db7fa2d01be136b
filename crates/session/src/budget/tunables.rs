//! The figures of the governor that neither the run nor the calibration tells, in one place: what
//! each is, and where it was measured or that it is a choice. Times between looks and stops are
//! `budget.rs`'s own.

/// Shares are of what they are said to be of: 0.05 is a twentieth.
pub(super) struct Tunables {
    /// Where all is counted: what a probe may cost of what its call takes so that the call is timed,
    /// and so that it is timed again. Choices: the second is less so that nothing flaps.
    pub timed_share: f64,
    pub timed_again_share: f64,
    /// What timing may take of a thread's time in all. Functions nest: each may be worth its probes
    /// beside what its own calls take, and all of them together cost a multiple of that. A choice.
    pub timing_most: f64,
    /// Calls that take less than this many times what timing one costs are counted only, and those
    /// that take more are timed one in some. A choice: a timed call that is half probe tells little.
    pub tells: f64,
    /// Probes have cost something: nanoseconds in all, or this part of the processor time lately.
    /// The specification's figures. Where timing takes more than `plenty` of the time, both are
    /// smaller accordingly: many functions that each cost little cost much.
    pub spent_ns: f64,
    pub spent_share: f64,
    pub plenty: f64,
    /// Under a budget: what it is worth to know a function, however little time it takes, as a share
    /// of the program's time. A choice, as are the next two.
    pub being_known: f64,
    /// A function that takes less than this part of what is allowed is left as it is.
    pub too_small: f64,
    /// Functions go off until the others would take this part of what is allowed, were all of them
    /// timed one in some: the rest is for those that tell enough to be timed.
    pub sampled_part: f64,
    /// One look brings the share down to no less than this part of it. CPython, sqlite and perl,
    /// AMD EPYC guest of family 26: docs/design/budget.md, "From the first moment".
    pub step: f64,
    /// What the slow path takes is no single function's, and most of it goes with those that are
    /// switched: at most this part of the aim makes room for it at once. A choice.
    pub for_the_slow_path: f64,
    /// What functions that must stay leave to the others, at least. A choice.
    pub for_the_others: f64,
    /// Where room for the slow path does not help, the aim is lowered by this factor, ever again,
    /// and never below the second. Choices: only how soon it is there depends on them.
    pub squeeze: f64,
    pub most_squeezed: f64,
    /// What a call between Python functions takes longer where it leaves its evaluator, in
    /// nanoseconds, without any probe: 4 to 8 in CPython 3.11 and 13 in 3.13, where a call takes 11
    /// to 13 by itself (AMD EPYC guest of family 26).
    pub python_call_ns: f64,
    /// What a call of a Java method takes longer that cannot be inlined: saving registers, the
    /// number by the method (JDK 17, the same machine).
    pub java_call_ns: f64,
    /// What a call of one that is off takes where its probes are still in the code.
    pub java_off_ns: f64,
}

pub(super) const TUNABLES: Tunables = Tunables {
    timed_share: 0.05,
    timed_again_share: 0.03,
    timing_most: 0.05,
    tells: 2.0,
    spent_ns: 1e6,
    spent_share: 0.01,
    plenty: 0.1,
    being_known: 0.0005,
    too_small: 0.002,
    sampled_part: 0.7,
    step: 25.0,
    for_the_slow_path: 0.5,
    for_the_others: 0.25,
    squeeze: 0.7,
    most_squeezed: 0.05,
    python_call_ns: 10.0,
    java_call_ns: 12.0,
    java_off_ns: 10.0,
};
