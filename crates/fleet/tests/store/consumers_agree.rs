//! Engines of others read the same files, unchanged, and give the same rows.

use std::process::Command;

use crate::support::{Place, ask, dated, push, root, succeed};

/// In words that all of them know. `{figures}` and `{contexts}` are how each of them names the files.
const QUESTIONS: [&str; 3] = [
    "select host, count(*) as n, sum(calls) as calls, sum(self_ns) as self_ns, sum(untimed) as untimed \
     from {figures} where service = 'db' group by host order by host",
    "select c.function as function, c.module as module, sum(f.calls) as calls, sum(f.self_ns + f.below_ns) as total_ns \
     from {figures} f join {contexts} c on f.tree = c.tree and f.node = c.node \
     where c.outermost group by c.function, c.module order by calls desc, function, module limit 50",
    "select max(c.depth) as deepest, count(distinct c.path) as paths, min(f.tid) - max(f.tid) as tids \
     from {figures} f join {contexts} c on f.tree = c.tree and f.node = c.node",
];

fn answers(engine: &str, store: &str) -> Vec<Vec<String>> {
    let python = root().join(".ci/consumers/venv/bin/python");
    let script = root().join("crates/fleet/tests/store/consumers/ask.py");
    let mut command = Command::new(python);
    command.arg(script).arg(engine).arg(store).args(QUESTIONS);
    let lines = succeed(&mut command);
    serde_json::from_str(&lines).expect("rows of each question")
}

fn check(engine: &str) {
    let place = Place::new();
    let store = place.store();
    for (host, day) in [
        ("a", "2026-03-01"),
        ("b", "2026-03-01"),
        ("a", "2026-03-02"),
    ] {
        succeed(&mut push(
            &store,
            host,
            &dated(place.0.path(), 500, &format!("{day}T12:00:00Z")),
        ));
    }
    let ours = QUESTIONS.map(|sql| {
        ask(
            &store,
            &sql.replace("{figures}", "figures")
                .replace("{contexts}", "contexts"),
        )
    });
    assert_eq!(ours[0].len(), 2);
    assert_eq!(ours[1].len(), 50);
    assert_eq!(answers(engine, &store), ours);
}

#[test]
fn duckdb_agrees() {
    check("duckdb");
}

#[test]
fn clickhouse_agrees() {
    check("chdb");
}

#[test]
fn datafusion_from_python_agrees() {
    check("datafusion");
}
