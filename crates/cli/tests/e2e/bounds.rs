//! Counts of functions that were off for a while are lower bounds, and are told as such wherever they are shown.

use crate::budget::wait_until;
use crate::support::build::Build;
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::succeed;
use serde_json::Value;
use std::io::Read;

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn of<'a>(rows: &'a Value, name: &str) -> &'a Value {
    let found = list(rows).iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no row of {name}"))
}

fn is_bound(row: &Value) -> bool {
    row["calls_at_least"] == true
}

#[test]
fn calls_of_a_function_that_was_off_are_lower_bounds_everywhere() {
    let program = Build::new("switched")
        .compiler("g++")
        .source("switched.cpp")
        .flag("-O2")
        .finish();
    let mut live = Live::ready(&program.path, &["2"]);
    let id = live.id();
    succeed(&["attach", &id, "--budget", "off", "--samples", "0"]);
    live.tell("go");
    wait_until("a call of sometimes", || {
        let flat = json(&["report", "-p", &id, "--flat", "--json"]);
        let rows = list(&flat["functions"]);
        rows.iter().any(|row| row["name"] == "sometimes")
    });
    succeed(&["switch", &id, "--off", "^sometimes$"]);
    succeed(&["switch", &id, "--time", "^sometimes$"]);
    let scratch = Scratch::new();
    let path = scratch.join("out.thalweg");
    let file = path.to_str().expect("UTF-8");
    succeed(&["detach", &id, "-o", file]);
    live.tell("stop");

    let flat = json(&["report", file, "--flat", "--json"]);
    assert!(is_bound(of(&flat["functions"], "sometimes")));
    let exact = of(&flat["functions"], "leaf");
    assert!(!is_bound(exact), "leaf was never off");
    assert!(number(&exact["calls"]) > 0);
    let callers = list(&of(&flat["functions"], "sometimes")["callers"]);
    assert!(!callers.is_empty() && callers.iter().all(is_bound));

    let arcs = json(&["report", file, "--arcs", "--json"]);
    let own = of(&arcs["stanzas"], "sometimes");
    assert!(is_bound(own) && list(&own["parents"]).iter().all(is_bound));
    let tree = json(&["report", file, "--tree", "--min-percent", "0", "--json"]);
    let threads = list(&tree["threads"]).iter();
    let rows: Vec<&Value> = threads.flat_map(|thread| list(&thread["rows"])).collect();
    for row in &rows {
        assert_eq!(is_bound(row), row["name"] == "sometimes", "{row}");
    }
    let graph = json(&["report", file, "--graph", "--json"]);
    for edge in list(&graph["edges"]) {
        assert_eq!(is_bound(edge), edge["callee"] == "sometimes", "{edge}");
    }
    assert!(is_bound(&json(&["report", file, "--json"])));
    assert!(is_bound(&json(&["summary", file, "--json"])));
    let context = json(&["report", file, "--context", "sometimes", "--json"]);
    let threads = list(&list(&context["contexts"])[0]["threads"]);
    assert!(!threads.is_empty() && threads.iter().all(is_bound));
    for direction in ["--callers", "--callees"] {
        let around = json(&["report", file, direction, "^sometimes$", "--json"]);
        let rows = list(&list(&around["functions"])[0]["tree"]["rows"]);
        assert!(!rows.is_empty() && rows.iter().all(is_bound));
    }
    let export = json(&["export", file, "--format", "json"]);
    let functions = list(&export["functions"]);
    for process in list(&export["processes"]) {
        for thread in list(&process["threads"]) {
            for node in list(&thread["nodes"]) {
                let function = &functions[number(&node["function"]) as usize];
                assert_eq!(is_bound(node), function["name"] == "sometimes");
            }
        }
    }

    let calls = number(&of(&flat["functions"], "sometimes")["calls"]);
    let marked = format!(">= {}", grouped(calls));
    for view in [
        &["--flat"][..],
        &["--arcs"],
        &["--tree", "--min-percent", "0"],
        &["--graph"],
        &["--callers", "^sometimes$"],
        &["--context", "sometimes"],
        &[],
    ] {
        let text = succeed(&[&["report", file], view].concat());
        let is_whole = !matches!(view.first(), Some(&"--tree" | &"--context"));
        let wanted = if is_whole && !view.is_empty() {
            &marked
        } else {
            ">= "
        };
        assert!(text.contains(wanted), "{view:?} {marked}: {text}");
    }
    let text = succeed(&["export", file, "--format", "callgrind"]);
    assert!(
        text.contains("desc: Note: the calls of one function are lower bounds"),
        "{text}"
    );
    let text = succeed(&["export", file, "--format", "csv"]);
    let head = text.lines().next().expect("a head");
    assert!(head.contains("calls_at_least"), "{head}");
    let threads = json(&["threads", file, "--json"]);
    assert!(list(&threads["threads"]).iter().all(is_bound));
    for format in ["svg", "dot"] {
        let picture = succeed(&["graph", file, "--cutoff", "0", "--format", format]);
        let picture = picture.replace("&gt;", ">").replace("\u{2192}", "to");
        let mut lines = picture.lines().filter(|line| line.contains("calls"));
        assert!(
            lines.any(|line| line.contains(">= ")),
            "{format}: {picture}"
        );
    }
    assert_binary_exports_say_so(&scratch, file);
    let diff = json(&["diff", file, file, "--all", "--json"]);
    let row = of(&diff["rows"], "sometimes");
    assert_eq!(row["calls"]["before_at_least"], true);
    assert_eq!(row["calls"]["significant"], false);
    assert_eq!(row["significant"], false);
}

/// The formats that readers of other tools take: a label of pprof, an attribute of OpenTelemetry, a
/// column of the table.
fn assert_binary_exports_say_so(scratch: &Scratch, file: &str) {
    let export = |format: &str| {
        let path = scratch.word(format);
        succeed(&["export", file, "--format", format, "-o", &path]);
        std::fs::read(&path).expect("it was written")
    };
    let has = |bytes: &[u8], word: &str| bytes.windows(word.len()).any(|at| at == word.as_bytes());
    assert!(has(&export("otlp"), "thalweg.calls.at_least"));
    assert!(has(&export("parquet"), "calls_at_least"));
    let mut pprof = Vec::new();
    let packed = export("pprof");
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut pprof)
        .expect("gzip");
    assert!(has(&pprof, "at least") && has(&pprof, "lower bounds (>=)"));
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    groups.join(",")
}
