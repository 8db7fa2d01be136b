//! Data among code: strings and tables that assembler programmers leave in the text stay what they are.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::thalweg::record;
use std::time::Duration;

fn build() -> Build {
    Build::new("text_data")
        .source("text_data.c")
        .source("text_data.S")
        .flag("-O2")
}

/// Named or stripped, at a fixed address or not.
#[test]
fn strings_and_tables_in_the_text_are_not_patched() {
    let fixed = ["-no-pie", "-fno-pie"];
    let builds = [
        ("named", build()),
        ("stripped", build().stripped()),
        ("fixed", build().flags(&fixed)),
        ("fixed and stripped", build().flags(&fixed).stripped()),
    ];
    for (how, build) in builds {
        let program = build.finish();
        let mut live = Live::start(&program.path, &[]);
        let (plain, _) = live.wait(Duration::from_secs(60));
        let run = record(&["-q", "--no-report"], &program, &[]);
        assert_eq!(String::from_utf8_lossy(&run.stdout), plain, "{how}");
    }
}

/// What is certain is counted all the same.
#[test]
fn functions_beside_data_are_counted_where_their_code_is_certain() {
    let program = build().finish();
    let run = record(&["-q", "--no-report"], &program, &[]);
    let calls = run.profile.calls_by_name();
    for (name, expected) in [
        ("shout", 1001),
        ("zero_table", 1000),
        ("hidden_zeroes", 1000),
        ("literal", 1000),
        ("switched", 3000),
    ] {
        assert_eq!(calls.get(name), Some(&expected), "{name}");
    }
    for name in ["code_like", "pointed"] {
        let mut skipped = run.profile.skipped.iter();
        let reason = skipped.find(|s| s.name == name).map(|s| s.reason.as_str());
        assert!(
            reason.is_some_and(|reason| reason.contains("may be data")),
            "{name}: {reason:?}"
        );
    }
}
