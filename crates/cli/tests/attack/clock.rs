//! Threads that may not read the time-stamp counter.

use crate::filters::{
    AFTER, BEFORE, FILTERS, NO_CLOCK, WAYS, is_refused, limits, limits_without_names, survives,
    survives_attached,
};

#[test]
fn a_program_that_may_not_read_the_counter_is_left_alone() {
    is_refused(&limits(), "before-tsc", "time-stamp counter");
}

/// Every call is counted, whoever else is in the midst of a probe.
#[test]
fn the_counter_is_forbidden_later() {
    let program = limits();
    for by in WAYS {
        let recorded = survives(&program, &["tsc", by], &[NO_CLOCK]);
        let calls = recorded.profile.calls_by_name();
        assert_eq!(calls.get("work"), Some(&(BEFORE + AFTER)), "{by}");
    }
    survives(&program, &["tsc", "bare", "crowd"], &[NO_CLOCK]);
    survives_attached(&program, &["tsc", "wrapper"]);
}

/// Which forbids the counter, too.
#[test]
fn strict_seccomp_comes_later() {
    let program = limits();
    for by in WAYS {
        let recorded = survives(&program, &["strict", by], &[NO_CLOCK, FILTERS]);
        let calls = recorded.profile.calls_by_name();
        assert_eq!(calls.get("work"), Some(&(BEFORE + AFTER)), "{by}");
    }
    survives(&program, &["strict", "number", "crowd"], &[NO_CLOCK]);
    survives_attached(&program, &["strict", "wrapper"]);
}

#[test]
fn the_counter_is_forbidden_by_a_program_without_names() {
    let program = limits_without_names();
    survives(&program, &["tsc", "wrapper"], &[NO_CLOCK]);
    survives(&program, &["strict", "syscall"], &[NO_CLOCK]);
}

/// The other kinds of probes: call sites, rules, counting only, allocations.
#[test]
fn every_kind_of_probe_does_without_the_clock() {
    let program = limits();
    for options in [
        &["--call-sites"][..],
        &["--rule", "^many$: duration > 1us"],
        &["--no-clock"],
        &["--metric", "alloc"],
        &["--budget", "5%"],
    ] {
        let mut all = vec!["-q", "--no-report"];
        all.extend(options);
        let recorded = crate::support::thalweg::record_with_input(
            &all,
            &program.path,
            &["strict", "bare"],
            b"go\n",
        );
        assert_eq!(
            recorded.status.code(),
            Some(0),
            "{options:?}: {}",
            recorded.stderr
        );
    }
}
