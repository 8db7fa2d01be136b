//! Rules on Go functions: the calls that the program says it has made, with its values, whole though goroutines go from thread to thread,
//! their stacks move and some end by panics; and the program's answers are what they are without us.

use crate::calls::calls;
use crate::goroutines::{newer, program};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const TURNS: usize = 40;
const WORKERS: usize = 6;

/// By the system's compiler, and by a newer one, whose functions end otherwise.
fn both() -> [PathBuf; 2] {
    [
        program(Path::new("go"), "gorules.go", "rules", &[]),
        program(&newer(), "gorules.go", "rules-newer", &[]),
    ]
}

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

/// The recorded calls; the program's answers must be those that it gives alone.
#[track_caller]
fn recorded(program: &Path, options: &[&str]) -> Vec<Value> {
    let turns = TURNS.to_string();
    let alone = Command::new(program).arg(&turns).output().expect("it runs");
    let scratch = Scratch::new();
    let file = scratch.join("calls.thalweg");
    let output = command()
        .args(["record", "-q", "--no-report", "-o", path(&file)])
        .args(options)
        .arg("--")
        .arg(program)
        .arg(&turns)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&alone.stdout)
    );
    calls(&file)
}

fn number(call: &Value, field: &str) -> u64 {
    call[field].as_u64().expect("a number")
}

/// Those that a rule has chosen.
fn chosen<'c>(calls: &'c [Value], function: &str) -> Vec<&'c Value> {
    let of = calls.iter().filter(|call| call["function"] == function);
    of.filter(|call| !call["rule"].is_null()).collect()
}

#[test]
fn calls_of_goroutines_are_whole_wherever_they_end() {
    for program in both() {
        let rules = ["main.step: duration >= 0ns", "main.work", "main.risky"];
        let options = rules.iter().flat_map(|rule| ["--rule", rule]);
        let all = recorded(&program, &options.collect::<Vec<_>>());
        let steps = chosen(&all, "main.step");
        assert_eq!(steps.len(), WORKERS * TURNS);
        let mut by_worker: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
        for step in &steps {
            assert_eq!(step["end"], "returned", "{step:#}");
            let (total, waited) = (number(step, "total_ns"), number(step, "waiting_ns"));
            let took = number(step, "exit_unix_ns") - number(step, "entry_unix_ns");
            assert_eq!(took, total);
            // Each is rounded by itself.
            assert!(waited + number(step, "self_ns") <= total + 2, "{step:#}");
            by_worker
                .entry(number(step, "parent"))
                .or_default()
                .push(step);
        }
        let slow = steps.iter().filter(|s| number(s, "total_ns") >= 4_000_000);
        assert!(slow.count() >= WORKERS * TURNS / 10, "those that sleep");
        let workers = chosen(&all, "main.work");
        assert_eq!(workers.len(), WORKERS);
        assert_eq!(by_worker.len(), WORKERS, "each worker is one call");
        for (id, steps) in &by_worker {
            let worker = workers.iter().find(|w| number(w, "id") == *id);
            let worker = worker.expect("steps are below their worker");
            assert_eq!(steps.len(), TURNS);
            let sum: u64 = steps.iter().map(|s| number(s, "total_ns")).sum();
            assert!(sum <= number(worker, "total_ns"), "{worker:#}");
            let ran = |call: &Value| number(call, "total_ns") - number(call, "waiting_ns");
            let steps_ran: u64 = steps.iter().map(|step| ran(step)).sum();
            // Each is rounded by itself.
            let slack = 2 * TURNS as u64;
            assert!(steps_ran <= ran(worker) + slack, "{steps_ran}: {worker:#}");
            for pair in steps.windows(2) {
                let (before, after) = (number(pair[0], "exit_unix_ns"), pair[1]);
                assert!(
                    before <= number(after, "entry_unix_ns"),
                    "one after the other"
                );
            }
        }
        let ended = |how: &str| workers.iter().filter(|w| w["end"] == how).count();
        assert_eq!((ended("returned"), ended("unwound")), (WORKERS - 1, 1));
        let risky = chosen(&all, "main.risky");
        let unwound = risky.iter().filter(|call| call["end"] == "unwound");
        assert_eq!((risky.len(), unwound.count()), (8, 2), "panics");
    }
}

#[test]
fn arguments_and_results_of_go_functions_are_the_programs_own() {
    for program in both() {
        let rules = [
            "main.(*Store).query: n % 2 == 1 or ret.1 is not nil; record s->hits, s->first->Name, key, n, exact, share, body, list, ret.0, ret.1",
            "main.pair; record row, ratio, ret",
            "main.crowd; record args, ret",
            "main.dig: n == 100 and *from == 5; record n, *from, ret",
            "main.step: worker == 2 and duration > 3ms; record turn, ret",
            "main.risky: exception; record n",
        ];
        let options = rules.iter().flat_map(|rule| ["--rule", rule]);
        let all = recorded(&program, &options.collect::<Vec<_>>());
        let queries = chosen(&all, "main.(*Store).query");
        let expected = (0..TURNS).filter(|n| n % 2 == 1 || n % 5 == 3);
        assert_eq!(queries.len(), expected.clone().count());
        for (call, n) in queries.iter().zip(expected) {
            let entry = json!({
                "s->hits": n, "s->first->Name": "first", "key": format!("key-{n}"), "n": n, "exact": n % 2 == 0,
                "share": n as f64 / 4.0, "body": "body", "list": [n, -1],
            });
            assert_eq!(call["entry"], entry);
            let failed = n % 5 == 3;
            let n = n as i64;
            let result = if failed { -n } else { (n + n - 1) * 2 + 4 };
            assert_eq!(call["exit"]["ret.0"], result);
            assert_eq!(call["exit"]["ret.1"].is_null(), !failed, "{call:#}");
        }
        let pair = &chosen(&all, "main.pair")[0];
        let row = json!({"Id": -3, "Tags": [8, 9], "Name": "row"});
        assert_eq!(pair["entry"], json!({"row": row, "ratio": 1.5}));
        assert_eq!(pair["exit"], json!({"ret": {"0": "row!", "1": 3.0}}));
        let crowd = &chosen(&all, "main.crowd")[0];
        assert_eq!(crowd["entry"]["i"], 9, "the last in a register");
        assert_eq!(crowd["entry"]["j"], 10, "on the stack");
        assert_eq!(crowd["entry"]["sides"], json!([1, 2, 3]));
        assert_eq!(crowd["exit"]["ret"], 55 + 321);
        let dig = chosen(&all, "main.dig");
        assert_eq!(dig.len(), 1);
        assert_eq!(dig[0]["exit"]["ret"], 5);
        let steps = chosen(&all, "main.step");
        let turns: BTreeSet<u64> = steps.iter().map(|s| number(&s["entry"], "turn")).collect();
        let sleeping = (0..TURNS as u64).filter(|turn| turn % 10 == 9);
        assert!(sleeping.into_iter().all(|turn| turns.contains(&turn)));
        // Their callers are closed, whichever thread marked them.
        let workers: Vec<&Value> = all
            .iter()
            .filter(|call| call["function"] == "main.work")
            .collect();
        assert!(
            !workers.is_empty() && workers.iter().all(|w| w["end"] == "returned"),
            "{workers:#?}"
        );
        let risky = chosen(&all, "main.risky");
        let values: Vec<&Value> = risky.iter().map(|call| &call["entry"]["n"]).collect();
        assert_eq!(values, [&json!(1), &json!(5)]);
    }
}

#[test]
fn a_goroutine_is_at_the_same_request_on_every_thread() {
    for program in both() {
        let options = ["--root", "^main.work$", "--rule", "main.step"];
        let all = recorded(&program, &options);
        let mut requests: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for step in chosen(&all, "main.step") {
            let of_worker = requests.entry(number(step, "parent")).or_default();
            of_worker.insert(number(step, "request"));
        }
        assert_eq!(requests.len(), WORKERS);
        assert!(
            requests.values().all(|of_worker| of_worker.len() == 1),
            "{requests:?}"
        );
        let all: BTreeSet<&u64> = requests.values().flatten().collect();
        assert_eq!(all.len(), WORKERS, "each worker is one request");
    }
}

#[test]
fn without_debug_information_registers_are_counted() {
    let stripped = program(
        Path::new("go"),
        "gorules.go",
        "rules-stripped",
        &["-ldflags", "-s -w"],
    );
    // A string is two words: where it is and how long.
    let rule =
        "main.(*Store).query: arg4:long >= 38; record arg2:str, arg4:long, arg6:f64, ret:long";
    let all = recorded(&stripped, &["--rule", rule]);
    let values: Vec<(&Value, &Value)> = chosen(&all, "main.(*Store).query")
        .iter()
        .map(|call| (&call["entry"]["arg2:str"], &call["exit"]["ret:i64"]))
        .collect();
    let expected = [(json!("key-38"), json!(-38)), (json!("key-39"), json!(158))];
    let expected: Vec<(&Value, &Value)> = expected.iter().map(|(a, b)| (a, b)).collect();
    assert_eq!(values, expected);
    let unknown = refuse(&[
        "record",
        "--rule",
        "main.pair; record row",
        "--",
        path(&stripped),
        "1",
    ]);
    assert!(unknown.contains("has no debug information"), "{unknown}");
}

#[test]
fn what_go_cannot_tell_is_refused_before_anything_is_touched() {
    let program = program(Path::new("go"), "gorules.go", "rules", &[]);
    let refused = |rule: &str| refuse(&["record", "--rule", rule, "--", path(&program), "1"]);
    let moved = refused("main.dig; record exit(*from)");
    assert!(moved.contains("stack may have moved"), "{moved}");
    let moved = refused("main.dig: changed(*from)");
    assert!(moved.contains("stack may have moved"), "{moved}");
    let errno = refused("main.step: errno == 2");
    assert!(errno.contains("Go has no errno"), "{errno}");
    let near = refused("main.stepp: duration > 1ms");
    assert!(near.contains("did you mean 'main.step'?"), "{near}");
}

#[test]
fn rules_on_a_running_go_program_come_and_go_and_leave_no_trace() {
    let program = program(Path::new("go"), "goroutines.go", "rules-busy", &[]);
    let rounds = if cfg!(debug_assertions) { "120" } else { "600" };
    let alone = Command::new(&program)
        .arg(rounds)
        .output()
        .expect("it runs");
    let mut live = Live::ready(&program, &[rounds, "wait"]);
    let before = live.text();
    let scratch = Scratch::new();
    let file = scratch.join("calls.thalweg");
    let pid = live.id();
    live.tell("go");
    for turn in 0..4 {
        let rule = "main.visit: every 50";
        succeed(&["attach", "--budget", "off", &pid, "--rule", rule]);
        succeed(&["rules", "-p", &pid, "--add", "main.consume: duration > 1us"]);
        std::thread::sleep(std::time::Duration::from_millis(100));
        succeed(&["detach", &pid, "-o", path(&file)]);
        if turn == 0 {
            let all = calls(&file);
            assert!(all.iter().all(|call| call["end"] != "lost"), "{all:#?}");
        }
        assert_restored(&before, &live.text());
    }
    let (said, status) = live.wait(std::time::Duration::from_secs(120));
    assert!(status.success(), "{said}");
    assert!(
        said.ends_with(&*String::from_utf8_lossy(&alone.stdout)),
        "{said}"
    );
}
