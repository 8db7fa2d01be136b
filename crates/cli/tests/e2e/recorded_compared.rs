//! Conditions that the hot path decides by itself: whatever they compare, exactly the calls that fulfil them are recorded, and what is recorded of
//! others does not suffer.

use crate::support::build::{Build, Program};
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const CALLS: i64 = 600;

fn program() -> Program {
    Build::new("compared")
        .source("compared.c")
        .flag("-O2")
        .flag("-g")
        .finish()
}

/// What `compared.c` passes and returns in its call number `i`.
struct Made {
    i: i64,
    n: i64,
    last: i64,
    ret: i64,
}

fn made() -> impl Iterator<Item = Made> {
    (0..CALLS).map(|i| {
        let (n, last) = (i % 17 - 8, -(i % 11));
        Made {
            i,
            n,
            last,
            ret: n + last,
        }
    })
}

#[track_caller]
fn record(rules: &[&str], options: &[&str]) -> Vec<Value> {
    let scratch = Scratch::new();
    let file = &scratch.word("calls.thalweg");
    let mut command = command();
    command.args(["record", "-q", "--no-report", "-o", file]);
    command.args(options);
    // A quarter of 20,000 calls is more than the usual ring holds if nobody gets to read it.
    command.args(["--record-memory", "16M"]);
    for rule in rules {
        command.args(["--rule", rule]);
    }
    command
        .arg("--")
        .arg(&program().path)
        .arg(CALLS.to_string());
    let output = command.output().expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    let lines = succeed(&["calls", "-i", file, "--json"]);
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// How many calls of each function a rule has chosen.
fn chosen(calls: &[Value]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls.iter().filter(|call| !call["rule"].is_null()) {
        let name = call["function"].as_str().expect("a name").to_owned();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

type Condition = fn(&Made) -> bool;

const CONDITIONS: [(&str, Condition); 17] = [
    ("a: n > 3 or last == -7", |m| m.n > 3 || m.last == -7),
    ("b: n >= -2 and n <= 2 and last < -4", |m| {
        (-2..=2).contains(&m.n) && m.last < -4
    }),
    ("c: x > 1.2", |m| m.n as f64 / 4.0 > 1.2),
    ("d: y <= -0.25 or y == 0", |m| m.n <= 0),
    ("e: not (x < 1 or y > 1.5)", |m| {
        let x = m.n as f64 / 4.0;
        (1.0..=1.5).contains(&x)
    }),
    ("f: pair.second == -3 or pair.first == 4", |m| {
        m.n == -3 || m.i % 5 == 4
    }),
    ("g: bits.low == 5 and bits.high > 0", |m| {
        m.i % 8 == 5 && m.n > 0
    }),
    ("h: byte >= 250", |m| m.i as u8 >= 250),
    ("i: state == DONE and not text == null", |m| {
        m.i % 3 == 2 && m.i % 4 != 0
    }),
    ("j: small > 15000", |m| m.i * 31 > 15000),
    ("k: byte & 0x12 == 0x10", |m| m.i & 0x12 == 0x10),
    ("l: ret < -10; record ret", |m| m.ret < -10),
    ("m: errno == 17; record errno", |m| m.n == 3),
    ("n: ret == 0 or errno != 0 or exception", |m| {
        m.ret == 0 || m.n == 3
    }),
    ("o: n == 7 and ret == 2", |m| m.n == 7 && m.ret == 2),
    ("p: last < -9 and text =~ /^t/", |m| {
        m.last < -9 && m.i % 4 != 0
    }),
    ("half: ret >= 3.5 or ret < -3.75", |m| m.n >= 7 || m.n < -7),
];

#[test]
fn calls_are_chosen_by_every_kind_of_comparison_to_the_unit() {
    let rules: Vec<&str> = CONDITIONS.iter().map(|(rule, _)| *rule).collect();
    let expected: BTreeMap<String, usize> = CONDITIONS
        .iter()
        .map(|(rule, holds)| {
            let function = rule.split(':').next().expect("a function").to_owned();
            (function, made().filter(holds).count())
        })
        .collect();
    assert!(
        expected
            .values()
            .all(|count| *count > 0 && *count < CALLS as usize)
    );
    for options in [&[][..], &["--call-sites"]] {
        let calls = record(&rules, options);
        assert_eq!(chosen(&calls), expected, "{options:?}");
    }
}

#[test]
fn several_rules_of_one_function_keep_what_either_of_them_does() {
    let rules = [
        "a: n == 5; record n",
        "a: x < -1.9; record x",
        "a: ret == -18; record ret",
        "b: ret > 7; record ret",
        "b: duration > 1000s",
    ];
    let calls = record(&rules, &[]);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for call in &calls {
        if let Some(rule) = call["rule"].as_str() {
            *counts.entry(rule).or_default() += 1;
        }
    }
    let count = |holds: Condition| made().filter(holds).count();
    // The lowest n is in no other result than the one that the second rule has already.
    assert_eq!(counts.get(rules[0]), Some(&count(|m| m.n == 5)));
    assert_eq!(counts.get(rules[1]), Some(&count(|m| m.n == -8)));
    assert_eq!(counts.get(rules[2]), None, "n == -8 has come first");
    assert_eq!(counts.get(rules[3]), Some(&count(|m| m.ret > 7)));
    assert_eq!(counts.len(), 3);
}

#[test]
fn arguments_that_only_the_end_asks_for_are_those_of_the_beginning() {
    let rules = [
        "a: ret < -10; record n, x, pair, ret",
        "b: n > 2 and ret == 1; record n, state, ret",
        "c: duration >= 0ns and ret == 3; record y, byte",
        // Every call is held against it again when `inner` returns to it.
        "inner: ret == -6 and caller a; record n",
    ];
    for options in [&[][..], &["--call-sites"]] {
        let calls = record(&rules, options);
        let of = |name: &str| -> Vec<&Value> {
            let of = calls.iter().filter(|call| call["function"] == name);
            of.filter(|call| !call["rule"].is_null()).collect()
        };
        let expect = |name: &str, holds: Condition, read: fn(&Made) -> Value| {
            let expected: Vec<Value> = made().filter(holds).map(|m| read(&m)).collect();
            let found: Vec<Value> = of(name).iter().map(|call| call["entry"].clone()).collect();
            assert!(!expected.is_empty());
            assert_eq!(found, expected, "{name} {options:?}");
        };
        expect(
            "a",
            |m| m.ret < -10,
            |m| {
                let pair = json!({"first": m.i % 5, "second": m.n});
                json!({"n": m.n, "x": m.n as f64 / 4.0, "pair": pair})
            },
        );
        expect(
            "b",
            |m| m.n > 2 && m.ret == 1,
            |m| {
                let state = ["IDLE", "RUNNING", "DONE"][(m.i % 3) as usize];
                json!({"n": m.n, "state": state})
            },
        );
        expect(
            "c",
            |m| m.ret == 3,
            |m| json!({"y": m.n as f64 / 4.0, "byte": m.i as u8}),
        );
        expect("inner", |m| m.n == -6, |m| json!({"n": m.n}));
        for call in of("a") {
            assert!(call["exit"]["ret"].as_i64() < Some(-10), "{call}");
        }
    }
}

#[test]
fn what_the_beginning_leaves_open_the_end_decides_by_the_arguments_of_the_beginning() {
    const MIXED: [(&str, Condition); 9] = [
        ("a: n > 5 or ret < -14; record n", |m| {
            m.n > 5 || m.ret < -14
        }),
        (
            "b: (n > 2 and ret == 1) or (n <= 2 and errno == 0 and ret == -9); record n",
            |m| m.n > 2 && m.ret == 1 || m.n <= 2 && m.ret == -9,
        ),
        ("c: not (n < 7 and ret > -16); record n", |m| {
            m.n >= 7 || m.ret <= -16
        }),
        ("d: n == 5 or duration > 1000s; record n", |m| m.n == 5),
        (
            "e: n > 6 or duration < 1000s and ret == -1; record n",
            |m| m.n > 6 || m.ret == -1,
        ),
        ("f: x > 1.6 or exception or ret == -18; record n", |m| {
            m.n > 6 || m.ret == -18
        }),
        ("g: n > pair.first; record n", |m| m.n > m.i % 5),
        ("h: n == pair.first or ret == 1; record n", |m| {
            m.n == m.i % 5 || m.ret == 1
        }),
        (
            "i: (pair.first >= n and ret > 0) or self > 1000s; record n",
            |m| m.i % 5 >= m.n && m.ret > 0,
        ),
    ];
    let rules = MIXED.map(|(rule, _)| rule);
    for options in [&[][..], &["--call-sites"]] {
        let calls = record(&rules, options);
        for (rule, holds) in MIXED {
            let function = rule.split(':').next().expect("a function");
            let expected: Vec<i64> = made().filter(holds).map(|m| m.n).collect();
            let found: Vec<i64> = calls
                .iter()
                .filter(|call| call["function"] == function && !call["rule"].is_null())
                .map(|call| call["entry"]["n"].as_i64().expect("a number"))
                .collect();
            assert!(!expected.is_empty() && expected.len() < CALLS as usize);
            assert_eq!(found, expected, "{rule} {options:?}");
        }
    }
}

#[test]
fn a_call_whose_result_nobody_wants_is_still_the_caller_of_what_it_has_called() {
    // Every call of `a` is looked at when it ends and refused; some of those of `inner` below it are kept.
    let rules = ["a: ret == 4711; record ret", "inner: n == 6 and caller a"];
    let calls = record(&rules, &[]);
    let wanted = made().filter(|made| made.n == 6).count();
    let of = |name: &str| calls.iter().filter(|call| call["function"] == name).count();
    assert_eq!((of("inner"), of("a")), (wanted, wanted));
    for call in calls.iter().filter(|call| call["function"] == "a") {
        assert!(call["rule"].is_null());
        assert_eq!(call["end"], "returned");
        assert!(call["total_ns"].as_u64() > Some(0));
    }
}

#[test]
fn programs_that_know_their_callees_registers_run_as_alone_whatever_is_compared() {
    let rules = [
        ".*: arg1:int == 100000 or arg1:f64 > 1e300 or arg9:long == 77",
        ".*: ret:int == 123456 or ret:f64 == 5.5 or errno == 999; record arg1:int",
        ".*: duration > 1000s; record arg2:int",
        ".*: (arg1:int == 100001 and ret:int < 0) or (arg1:int != 100001 and ret:int == 123457); record arg2:f64",
        ".*: arg1:long > arg2:long and arg3:long == 4711471147",
    ];
    for (name, sources) in [
        ("regs", &["regs.c", "regs_asm.S"][..]),
        ("loops", &["loops.c", "loops_asm.S"]),
        ("tail", &["tail.c", "tail_lib.c"]),
    ] {
        let program = sources.iter().fold(Build::new(name), |b, s| b.source(s));
        let program = program.flag("-O2").finish();
        let alone = std::process::Command::new(&program.path)
            .output()
            .expect("it starts");
        let scratch = Scratch::new();
        let file = scratch.join("calls.thalweg");
        let mut command = command();
        command
            .args(["record", "-q", "--no-report", "-o"])
            .arg(&file);
        for rule in rules {
            command.args(["--rule", rule]);
        }
        let ruled = command
            .arg("--")
            .arg(&program.path)
            .output()
            .expect("thalweg starts");
        assert!(ruled.status.success(), "{name}: {}", text(&ruled));
        assert_eq!(ruled.stdout, alone.stdout, "{name}");
    }
}

/// A rule may ask for an argument that nobody passes: where it would be there may be nothing, as at the end of a coroutine's stack.
#[test]
fn an_argument_beyond_the_end_of_the_stack_harms_nobody() {
    let program = Build::new("edge")
        .source("edge.c")
        .flag("-O2")
        .flag("-g0")
        .finish();
    let scratch = Scratch::new();
    let file = &scratch.word("calls.thalweg");
    let mut command = command();
    command.args(["record", "-q", "--no-report", "-o", file]);
    command.args(["--rule", "at_the_edge: arg20:int > 3"]);
    let output = command.arg("--").arg(&program.path).output();
    let output = output.expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(output.stdout, b"1000\n");
    assert_eq!(succeed(&["calls", "-i", file, "--json"]).lines().count(), 0);
}
