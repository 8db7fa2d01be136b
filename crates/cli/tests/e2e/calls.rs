//! Calls that rules choose: recorded with their callers, their times and their values, and nothing else is; a rule that makes no sense is
//! refused before the target is touched.

use crate::support::build::{Build, Program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Of its queries every fifth takes 3 ms, nearly all of which it waits.
fn program() -> Program {
    Build::new("recorded")
        .source("recorded.c")
        .flag("-O2")
        .flag("-g")
        .finish()
}

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

#[track_caller]
fn record(scratch: &Scratch, options: &[&str], program: &Program, arguments: &[&str]) -> PathBuf {
    let file = scratch.join("calls.thalweg");
    let output = command()
        .args(["record", "-q", "--no-report", "-o", path(&file)])
        .args(options)
        .arg("--")
        .arg(&program.path)
        .args(arguments)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file
}

/// The recorded calls, one object each.
#[track_caller]
pub fn calls(file: &Path) -> Vec<Value> {
    let lines = succeed(&["calls", "-i", path(file), "--json"]);
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn name(call: &Value) -> &str {
    call["function"].as_str().expect("a name")
}

fn number(call: &Value, field: &str) -> u64 {
    call[field].as_u64().expect("a number")
}

/// The functions of a call's callers, from it on outwards.
fn chain(calls: &[Value], call: &Value) -> Vec<String> {
    let mut chain = vec![name(call).to_string()];
    let mut at = call;
    while let Some(parent) = at["parent"].as_u64() {
        let found = calls.iter().find(|other| other["id"] == parent);
        at = found.expect("a parent is among the calls");
        chain.push(name(at).to_string());
    }
    chain
}

#[test]
fn slow_calls_are_recorded_with_all_their_callers_and_nothing_else_is() {
    let scratch = Scratch::new();
    let rule = "^query$: duration > 2ms";
    let file = record(&scratch, &["--rule", rule], &program(), &["20"]);
    let calls = calls(&file);
    let chosen: Vec<&Value> = calls
        .iter()
        .filter(|call| !call["rule"].is_null())
        .collect();
    assert_eq!(chosen.len(), 4, "{calls:#?}");
    for call in &chosen {
        assert_eq!((name(call), call["rule"].as_str()), ("query", Some(rule)));
        let chain = chain(&calls, call);
        assert_eq!(chain[..3], ["query", "work", "serve"]);
        assert!(chain.contains(&"main".to_string()), "{chain:?}");
        assert!(number(call, "total_ns") >= 3_000_000);
        assert!(number(call, "waiting_ns") >= 2_000_000, "{call:#}");
        assert!(number(call, "self_ns") < 2_000_000, "{call:#}");
        let took = number(call, "exit_unix_ns") - number(call, "entry_unix_ns");
        assert_eq!(took, number(call, "total_ns"));
    }
    // Callers are there once for all that they made, and nobody else is there.
    let count = |function: &str| calls.iter().filter(|call| name(call) == function).count();
    assert_eq!((count("main"), count("work"), count("serve")), (1, 4, 4));
    assert_eq!((count("leaf"), count("small"), count("scale")), (0, 0, 0));
    for call in &calls {
        let Some(parent) = call["parent"].as_u64() else {
            continue;
        };
        let parent = calls.iter().find(|other| other["id"] == parent).unwrap();
        assert!(number(parent, "entry_unix_ns") <= number(call, "entry_unix_ns"));
        // Those outside of main are still running.
        let end = |call: &Value| call["exit_unix_ns"].as_u64().unwrap_or(u64::MAX);
        assert!(end(parent) >= end(call), "{parent:#} {call:#}");
    }
}

#[test]
fn a_call_that_was_left_by_a_longjmp_says_so_and_its_callers_are_whole() {
    let scratch = Scratch::new();
    let file = record(
        &scratch,
        &["--rule", "give_up: duration >= 0ns"],
        &program(),
        &["22"],
    );
    let calls = calls(&file);
    let of = |function: &str, end: &str| {
        let those = calls.iter().filter(|call| name(call) == function);
        those.filter(|call| call["end"] == end).count()
    };
    assert_eq!(
        (of("give_up", "returned"), of("give_up", "unwound")),
        (20, 2)
    );
    assert_eq!((of("work", "returned"), of("work", "unwound")), (20, 2));
    assert_eq!(of("serve", "returned"), 22);
    assert_eq!(of("main", "returned"), 1);
}

#[test]
fn requests_are_trees_of_their_own_and_those_that_kept_nothing_leave_nothing() {
    let scratch = Scratch::new();
    let options = ["--rule", "^query$: duration > 2ms", "--root", "^serve$"];
    let file = record(&scratch, &options, &program(), &["20"]);
    let calls = calls(&file);
    let roots: Vec<&Value> = calls
        .iter()
        .filter(|call| call["parent"].is_null())
        .collect();
    assert_eq!(roots.len(), 4, "{calls:#?}");
    for root in roots {
        assert_eq!(name(root), "serve");
        let request = number(root, "request");
        let members = calls.iter().filter(|call| call["request"] == request);
        let members: Vec<&str> = members.map(name).collect();
        assert_eq!(members, ["serve", "work", "query"]);
        // Each serves one request: the fifth, the tenth and so on.
        assert_eq!(request % 5, 0, "{request}");
    }
}

#[test]
fn what_is_recorded_is_there_while_the_target_runs_and_when_it_is_detached() {
    let program = program();
    let live = Live::start(&program.path, &["1000000"]);
    let pid = live.id();
    succeed(&[
        "attach",
        "--budget",
        "off",
        "-q",
        &pid,
        "--rule",
        "^query$: duration > 2ms",
    ]);
    let patience = Instant::now() + Duration::from_secs(20);
    let shown = loop {
        let shown = succeed(&["calls", "-p", &pid, "--list"]);
        if shown.contains("  query") {
            break shown;
        }
        assert!(Instant::now() < patience, "{shown}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!shown.contains("leaf"), "{shown}");
    let scratch = Scratch::new();
    let file = scratch.join("detached.thalweg");
    succeed(&["detach", "-q", &pid, "-o", path(&file)]);
    let calls = calls(&file);
    assert!(calls.iter().any(|call| name(call) == "query"));
    assert!(
        calls
            .iter()
            .any(|call| name(call) == "main" && call["end"] == "open")
    );
}

#[test]
fn rules_that_make_no_sense_are_refused_before_anything_is_touched() {
    let program = program();
    let rule = |rule: &str| refuse(&["record", "--rule", rule, "--", path(&program.path), "1"]);
    assert!(rule("no_such_function: duration > 1ms").contains("no_such_function"));
    assert!(rule("query: duration > 1parsec").contains("parsec"));
    let unknown = rule("query: no_such_argument > 1");
    assert!(unknown.contains("no_such_argument"), "{unknown}");
    assert!(!unknown.contains("not counted"), "query is: {unknown}");
    let without = [
        "record",
        "-N",
        "^query$",
        "--rule",
        "query: duration > 1ms",
        "--",
    ];
    let without = refuse(&[&without[..], &[path(&program.path), "1"]].concat());
    assert!(without.contains("-N"), "{without}");
}

#[test]
fn the_trace_has_true_times_and_can_be_loaded() {
    let scratch = Scratch::new();
    let file = record(
        &scratch,
        &["--rule", "^query$: duration > 2ms"],
        &program(),
        &["10"],
    );
    let trace = scratch.join("trace.json");
    succeed(&["calls", "-i", path(&file), "--trace", path(&trace)]);
    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    let query = events
        .iter()
        .find(|event| event["name"] == "query")
        .unwrap();
    assert_eq!(query["ph"], "X");
    assert!(query["dur"].as_f64().unwrap() >= 3000.0);
    let main = events.iter().find(|event| event["name"] == "main").unwrap();
    assert!(main["ts"].as_f64() <= query["ts"].as_f64());
}

#[test]
fn values_are_those_of_the_call_by_name_where_types_are_known() {
    let scratch = Scratch::new();
    let rule = "query(sql, n): n > 15 || ret < 0; record sql, n, ret, errno";
    let file = record(&scratch, &["--rule", rule], &program(), &["20"]);
    let calls = calls(&file);
    let chosen = calls.iter().filter(|call| !call["rule"].is_null());
    let read: Vec<(i64, String, i64, i64)> = chosen
        .map(|call| {
            let number = |value: &Value| value.as_i64().unwrap_or_else(|| panic!("{call:#}"));
            let sql = call["entry"]["sql"].as_str().expect("text").to_string();
            let n = number(&call["entry"]["n"]);
            (
                n,
                sql,
                number(&call["exit"]["ret"]),
                number(&call["exit"]["errno"]),
            )
        })
        .collect();
    const ENOENT: i64 = 2;
    let expected = [7, 14, 16, 17, 18, 19, 20].map(|n| {
        let (ret, errno) = if n % 7 == 0 { (-n, ENOENT) } else { (n, 0) };
        (n, format!("select {n}"), ret, errno)
    });
    assert_eq!(read, expected);
}

#[test]
fn values_are_read_by_the_calling_convention_where_types_are_not_known() {
    let scratch = Scratch::new();
    let options = [
        "--rule",
        "^query$: arg2:int == 7; record arg1:str, ret:int",
        "--rule",
        "^scale$: arg2:int == 3; record arg1:f64, ret:f64",
        "--rule",
        "^point$: arg2:int == 5; record arg1:str",
    ];
    let file = record(&scratch, &options, &program(), &["10"]);
    let calls = calls(&file);
    let chosen = |function: &str| {
        let mut those = calls.iter();
        let found = those.find(|call| name(call) == function && !call["rule"].is_null());
        found.unwrap_or_else(|| panic!("{function}: {calls:#?}"))
    };
    let values =
        |call: &Value, when: &str| call[when].as_object().unwrap().values().cloned().collect();
    let of = |function: &str, when: &str| -> Vec<Value> { values(chosen(function), when) };
    assert_eq!(of("query", "entry"), ["select 7"]);
    assert_eq!(of("query", "exit"), [-7]);
    assert_eq!(of("scale", "entry"), [1.5]);
    assert_eq!(of("scale", "exit"), [4.5]);
    // A pointer to nowhere is an answer, not a fault.
    assert_eq!(
        of("point", "entry"),
        [serde_json::json!({"missing": "unreadable"})]
    );
}

#[test]
fn rules_come_and_go_while_the_target_runs() {
    let program = program();
    let live = Live::start(&program.path, &["1000000"]);
    let pid = live.id();
    succeed(&["attach", "--budget", "off", "-q", &pid, "--recordable"]);
    assert_eq!(succeed(&["rules", "-p", &pid]), "");
    let listed = succeed(&["rules", "-p", &pid, "--add", "^leaf$: arg1:int == 100"]);
    assert_eq!(listed.trim(), "1  ^leaf$: arg1:int == 100");
    let count = |function: &str| {
        let shown = succeed(&["calls", "-p", &pid, "--list"]);
        shown
            .lines()
            .filter(|line| line.trim_end().ends_with(function))
            .count()
    };
    succeed(&["rules", "-p", &pid, "--add", "^query$: duration > 2ms"]);
    let patience = Instant::now() + Duration::from_secs(30);
    while count("query") == 0 {
        assert!(Instant::now() < patience);
        std::thread::sleep(Duration::from_millis(20));
    }
    let listed = succeed(&["rules", "-p", &pid, "--remove", "2"]);
    assert!(!listed.contains("query"), "{listed}");
    std::thread::sleep(Duration::from_millis(50));
    let (before, pause) = (count("query"), Duration::from_millis(100));
    std::thread::sleep(pause);
    assert_eq!(count("query"), before);
    let wrong = refuse(&["rules", "-p", &pid, "--add", "qery: duration > 2ms"]);
    assert!(wrong.contains("did you mean 'query'"), "{wrong}");
    assert!(refuse(&["rules", "-p", &pid, "--remove", "7"]).contains("no rule 7"));
    succeed(&["detach", "-q", &pid]);
}

/// Takes one request, checks it against the official definitions, and prints its spans.
const RECEIVER: &str = r#"
import http.server, json, sys
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        assert self.path == "/v1/traces", self.path
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        spans = [s for r in request.resource_spans for g in r.scope_spans for s in g.spans]
        print(json.dumps([{"name": s.name, "trace": s.trace_id.hex(), "id": s.span_id.hex(), "parent": s.parent_span_id.hex(),
            "took": s.end_time_unix_nano - s.start_time_unix_nano,
            "attributes": {a.key: a.value.string_value or a.value.int_value for a in s.attributes}} for s in spans]), flush=True)
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.handle_request()
"#;

/// How many chosen calls the summary says were dropped.
fn dropped(file: &Path) -> u64 {
    let shown = succeed(&["calls", "-i", path(file), "--list"]);
    let line = shown.lines().find(|line| line.contains("found no room"));
    let count = line.and_then(|line| line.split(' ').next()?.replace(',', "").parse().ok());
    count.unwrap_or(0)
}

#[test]
fn no_more_calls_are_kept_than_may_be_and_the_others_are_counted() {
    let scratch = Scratch::new();
    // 20 of them in each of 100 queries.
    let rule = "^small$; record arg1:long";
    let of = |more: &[&str]| {
        let options = [&["--rule", rule, "--keep-calls", "200"], more].concat();
        let file = record(&scratch, &options, &program(), &["100"]);
        let calls = calls(&file);
        let chosen = calls.iter().filter(|call| !call["rule"].is_null());
        let numbers: Vec<i64> = chosen
            .map(|call| call["entry"].as_object().unwrap().values().next().unwrap())
            .map(|value| value.as_i64().expect("a number"))
            .collect();
        assert!((100..=200).contains(&numbers.len()), "{numbers:?}");
        assert_eq!(numbers.len() as u64 + dropped(&file), 2000);
        numbers
    };
    let every: Vec<i64> = (1..=100).flat_map(|n| n..n + 20).collect();
    let first = of(&[]);
    assert_eq!(first, every[..first.len()]);
    // In the target as well as here.
    for memory in ["1M", "64K"] {
        let last = of(&["--drop", "oldest", "--record-memory", memory]);
        assert_eq!(last, every[every.len() - last.len()..]);
    }
}

#[test]
fn calls_are_shown_as_they_end() {
    let program = program();
    let live = Live::start(&program.path, &["1000000"]);
    let pid = live.id();
    succeed(&[
        "attach",
        "--budget",
        "off",
        "-q",
        &pid,
        "--rule",
        "^query$: n % 5 == 0; record n",
    ]);
    let mut following = command();
    following.args(["calls", "-p", &pid, "--follow", "--json"]);
    let mut following = Live::spawn(&mut following);
    let mut numbers = Vec::new();
    while numbers.len() < 50 {
        let call: Value = serde_json::from_str(&following.line()).expect("JSON");
        assert_eq!(call["end"], "returned");
        numbers.push(call["entry"]["n"].as_i64().expect("a number"));
    }
    let first = numbers[0];
    let expected: Vec<i64> = (0..50).map(|n| first + 5 * n).collect();
    assert_eq!(numbers, expected);
    succeed(&["detach", "-q", &pid]);
}

#[test]
fn a_rule_for_a_library_that_is_loaded_later_waits_for_it() {
    let scratch = Scratch::new();
    let loading = Build::new("loading")
        .source("loading.c")
        .flag("-O2")
        .link_flag("-ldl")
        .finish();
    let plug = Build::new("plug")
        .source("plug.c")
        .flags(&["-O2", "-fPIC", "-shared"])
        .finish();
    let rule = "plug!plug_work: arg1:int >= 98; record arg1:int";
    let file = record(
        &scratch,
        &["--rule", rule],
        &loading,
        &[path(&plug.path), "3", "now"],
    );
    let calls = calls(&file);
    let chosen = calls.iter().filter(|call| !call["rule"].is_null());
    let numbers: Vec<i64> = chosen
        .map(|call| call["entry"].as_object().unwrap().values().next().unwrap())
        .map(|value| value.as_i64().expect("a number"))
        .collect();
    assert_eq!(numbers, [98, 99, 98, 99, 98, 99], "{calls:#?}");
    // One that is misspelt is not waited for.
    let program = program();
    let wrong = [
        "record",
        "--rule",
        "libd!malloc",
        "--",
        path(&program.path),
        "1",
    ];
    assert!(refuse(&wrong).contains("no function is called"));
}

#[test]
fn a_call_says_how_its_function_is_declared() {
    let scratch = Scratch::new();
    let rule = "^query$: duration > 2ms";
    let file = record(&scratch, &["--rule", rule], &program(), &["5"]);
    let calls = calls(&file);
    let signature = |function: &str| {
        let call = calls.iter().find(|call| name(call) == function);
        call.expect(function)["signature"]
            .as_str()
            .unwrap_or("none")
    };
    assert_eq!(signature("query"), "int query(const char* sql, int n)");
    assert_eq!(signature("main"), "int main(int argc, char** argv)");
    let shown = succeed(&["calls", "-i", path(&file)]);
    assert!(
        shown.contains("query is int query(const char* sql, int n)"),
        "{shown}"
    );
}

#[test]
fn a_collector_gets_the_calls_as_spans() {
    let scratch = Scratch::new();
    let rule = "^query$: duration > 2ms; record arg1:str";
    let file = record(&scratch, &["--rule", rule], &program(), &["10"]);
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/consumers/venv/bin/python");
    let mut receiver = Live::spawn(std::process::Command::new(python).args(["-c", RECEIVER]));
    let address = format!("http://127.0.0.1:{}", receiver.line());
    succeed(&["calls", "-i", path(&file), "--otlp", &address]);
    let spans: Vec<Value> = serde_json::from_str(&receiver.line()).expect("JSON");
    let queries: Vec<&Value> = spans
        .iter()
        .filter(|span| span["name"] == "query")
        .collect();
    assert_eq!(queries.len(), 2, "{spans:#?}");
    for query in queries {
        assert!(query["took"].as_u64() >= Some(3_000_000));
        let parent = spans
            .iter()
            .find(|span| span["id"] == query["parent"])
            .unwrap();
        assert_eq!(
            (&parent["name"], &parent["trace"]),
            (&"work".into(), &query["trace"])
        );
        assert_eq!(query["attributes"]["thalweg.rule"], rule);
    }
    let nobody = "http://127.0.0.1:1";
    assert!(refuse(&["calls", "-i", path(&file), "--otlp", nobody]).contains("does not answer"));
}

#[test]
fn a_condition_chooses_among_what_was_recorded() {
    let scratch = Scratch::new();
    let rule = "^query$: arg2:int > 0; record arg2:int";
    let file = record(&scratch, &["--rule", rule], &program(), &["20"]);
    let shown = |condition: &str| {
        let lines = succeed(&["calls", "-i", path(&file), "--list", "--where", condition]);
        lines
            .lines()
            .filter(|line| line.contains("  query  arg2"))
            .count()
    };
    assert_eq!(shown("function == query"), 20);
    assert_eq!(shown("duration > 2ms"), 4);
    assert_eq!(shown("arg2 >= 18"), 3);
    assert_eq!(shown("arg2 >= 18 and duration > 2ms"), 1);
    assert_eq!(shown("function =~ ^nothing"), 0);
    let wrong = refuse(&["calls", "-i", path(&file), "--where", "slow"]);
    assert!(wrong.contains("no condition"), "{wrong}");
}

#[test]
fn who_has_seen_enough_of_a_long_list_closes_the_pipe_and_nobody_complains() {
    let scratch = Scratch::new();
    let program = Build::new("compared")
        .source("compared.c")
        .flag("-O2")
        .finish();
    // More than is read at a time, and more than a pipe holds.
    let options = [
        "--record-memory",
        "16M",
        "--rule",
        "^inner$; record ret:int",
    ];
    let file = record(&scratch, &options, &program, &["600"]);
    for shape in ["--list", "--json"] {
        let listing = command()
            .args(["calls", "-i", path(&file), shape])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut listing = listing.expect("thalweg starts");
        let mut first = String::new();
        let out = listing.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut first).expect("a line");
        assert!(!first.is_empty());
        let output = listing.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{shape}: {}", text(&output));
        assert!(output.stderr.is_empty(), "{shape}: {}", text(&output));
    }
    let inner = calls(&file);
    let inner = inner.iter().filter(|call| name(call) == "inner").count();
    let listed = succeed(&["calls", "-i", path(&file), "--list"]);
    let listed = listed
        .lines()
        .filter(|line| line.contains("  inner  "))
        .count();
    assert_eq!((inner, listed), (9_600, 9_600));
}

#[test]
fn an_exception_is_recorded_with_its_type_and_message() {
    let scratch = Scratch::new();
    let program = Build::new("throwing")
        .source("throwing.cpp")
        .compiler("g++")
        .flag("-O2")
        .finish();
    let rule = "^risky(\\(int\\))?$: duration >= 0ns";
    let file = record(&scratch, &["--rule", rule], &program, &["9"]);
    let calls = calls(&file);
    let risky: Vec<&Value> = calls
        .iter()
        .filter(|call| !call["rule"].is_null())
        .collect();
    assert_eq!(risky.len(), 9, "{calls:#?}");
    for (n, call) in (1..).zip(&risky) {
        if n % 3 == 0 {
            assert_eq!(call["end"], "unwound", "{call:#}");
            assert_eq!(call["exit"]["exception"], "std::runtime_error", "{call:#}");
            assert_eq!(call["exit"]["exception.message"], format!("number {n}"));
        } else {
            assert_eq!(call["end"], "returned", "{call:#}");
            assert_eq!(call["exit"]["exception"], Value::Null);
        }
    }
    // Those that it went through know it too, and those that caught it do not.
    let of = |function: &str| -> Vec<&Value> {
        let those = calls.iter().filter(|call| name(call).starts_with(function));
        those.map(|call| &call["exit"]["exception"]).collect()
    };
    let through = of("through").into_iter().filter(|e| !e.is_null()).count();
    assert_eq!(through, 3, "{calls:#?}");
    assert!(of("caught").into_iter().all(Value::is_null));
}
