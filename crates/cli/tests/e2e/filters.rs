//! Filters by function and library; and that what is filtered out is not touched at all.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::text::function_bytes;
use crate::support::thalweg::{record, refuse, succeed};

#[test]
fn keep_only_what_matches() {
    let program = Build::simple("recursion.c");
    let calls = record(
        &["--no-report", "-q", "-F", "^fib$", "-F", "^is_"],
        &program,
        &[],
    )
    .profile
    .calls_by_name();
    assert_eq!(
        calls.keys().collect::<Vec<_>>(),
        ["fib", "is_even", "is_odd"]
    );
    assert_eq!(calls["fib"], 5167);
}

#[test]
fn leave_out_what_matches() {
    let program = Build::simple("recursion.c");
    let profile = record(
        &["--no-report", "-q", "-N", "^parse_", "--lib", "^recursion$"],
        &program,
        &[],
    )
    .profile;
    let calls = profile.calls_by_name();
    assert!(
        !calls.keys().any(|name| name.starts_with("parse_")),
        "{calls:?}"
    );
    assert_eq!((calls["main"], calls["fib"]), (1, 5167));
}

#[test]
fn libraries_by_name() {
    let program = Build::simple("callbacks.c");
    let all = record(&["--no-report", "-q"], &program, &[])
        .profile
        .modules_called();
    assert!(
        all.iter().any(|module| module.starts_with("libc.so")),
        "libraries are patched by default: {all:?}"
    );
    let without = record(&["--no-report", "-q", "--no-lib", "^libc"], &program, &[])
        .profile
        .modules_called();
    assert!(
        !without.iter().any(|module| module.starts_with("libc")),
        "{without:?}"
    );
    let only = record(&["--no-report", "-q", "--lib", "^libc\\."], &program, &[])
        .profile
        .modules_called();
    assert!(
        only.iter().all(|module| module.starts_with("libc.")),
        "{only:?}"
    );
}

#[test]
fn what_is_filtered_out_keeps_its_bytes() {
    let program = Build::simple("torture.c");
    let mut live = Live::ready(&program.path, &[]);
    let bytes = |name: &str| function_bytes(&program, live.pid(), name);
    let before = (bytes("fib"), bytes("ping"));
    succeed(&["attach", "--budget", "off", &live.id(), "-F", "^fib$"]);
    assert_ne!(bytes("fib"), before.0, "fib is patched");
    assert_eq!(bytes("ping"), before.1, "ping is not");
    succeed(&["detach", &live.id()]);
    assert_eq!((bytes("fib"), bytes("ping")), before);
    live.assert_healthy();
}

#[test]
fn bad_patterns_and_no_match_are_refused() {
    let program = Build::simple("recursion.c");
    let path = program.path.to_str().expect("UTF-8");
    let message = refuse(&["record", "-F", "fib(", "--", path]);
    assert!(
        message.contains("fib("),
        "the message shows the pattern: {message}"
    );
    let message = refuse(&["record", "-F", "no_such_function_anywhere", "--", path]);
    assert!(message.contains("no function"), "{message}");
    let live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let message = refuse(&[
        "record",
        "--budget",
        "off",
        "-p",
        &live.id(),
        "-F",
        "no_such_function_anywhere",
    ]);
    assert!(message.contains("no function"), "{message}");
    assert_eq!(live.text(), before, "a refused target is untouched");
}
