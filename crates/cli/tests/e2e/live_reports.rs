//! Reports with `-p`: those of a process that is attached and goes on working.

use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::thalweg::{refuse, succeed};
use serde_json::Value;
use std::time::{Duration, Instant};

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("JSON")
}

#[test]
fn every_report_can_be_had_of_an_attached_process_as_it_stands() {
    let mut live = Live::ready(&Build::simple("torture.c").path, &[]);
    let id = live.id();
    assert!(refuse(&["report", "-p", &id]).contains("attach"));
    succeed(&["attach", "--time", "all", &id]);

    let calls = || {
        let flat = json(&["report", "-p", &id, "--flat", "--json", "-F", "^fib$"]);
        flat["functions"][0]["calls"].as_u64().unwrap_or(0)
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut first = 0;
    while first == 0 || calls() == first {
        first = first.max(calls());
        assert!(Instant::now() < deadline, "fib is not called any more");
        std::thread::sleep(Duration::from_millis(50));
    }

    for view in ["--flat", "--tree", "--arcs"] {
        assert!(
            succeed(&["report", "-p", &id, view]).contains("fib"),
            "{view}"
        );
    }
    for view in ["--callers", "--callees", "--context"] {
        let text = succeed(&["report", "-p", &id, view, "fib"]);
        assert!(text.contains("fib"), "{view}: {text}");
    }
    assert!(succeed(&["report", "-p", &id]).contains("fib"));
    let summary = json(&["summary", "-p", &id, "--json"]);
    assert!(summary["calls"].as_u64() > Some(first), "{summary}");
    let threads = json(&["threads", "-p", &id, "--json"]);
    let alive = threads["threads"].as_array().expect("threads").len();
    assert!(alive >= live.threads().len(), "{threads}");
    let exported = json(&["export", "-p", &id, "--format", "json"]);
    assert_eq!(exported["processes"][0]["pid"].as_u64(), id.parse().ok());
    assert_eq!(exported["processes"][0]["ended"]["how"], "running");
    let picture = succeed(&["graph", "-p", &id]);
    assert!(picture.starts_with("<svg") && picture.contains("START"));

    live.assert_healthy();
    succeed(&["detach", &id]);
    let (words, status) = live.terminate();
    assert!(status.success() && words.starts_with("OK "), "{words}");
}
