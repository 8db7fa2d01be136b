//! A store says what the profiles in it say.

use std::process::Command;

use crate::support::{
    Place, ask, files, fleet, profile, push, recorded, stored_totals, succeed, times, totals,
};

#[test]
fn sums_of_a_store_are_those_of_its_profiles() {
    let place = Place::new();
    let store = place.store();
    succeed(&mut push(&store, "a", recorded(500)));
    assert_eq!(stored_totals(&store, "true"), totals(profile(500)));
    // Of a second host, with the contexts of the first.
    succeed(&mut push(&store, "b", recorded(500)));
    assert_eq!(
        stored_totals(&store, "true"),
        times(totals(profile(500)), 2)
    );
    assert_eq!(stored_totals(&store, "host = 'b'"), totals(profile(500)));
    let contexts = files(&place.path("store/contexts"));
    assert_eq!(contexts.len(), 1, "contexts are stored once: {contexts:?}");
}

#[test]
fn the_same_profile_twice_is_once() {
    let place = Place::new();
    let store = place.store();
    succeed(&mut push(&store, "a", recorded(500)));
    let before = files(&place.path("store"));
    succeed(&mut push(&store, "a", recorded(500)));
    assert_eq!(files(&place.path("store")), before);
    assert_eq!(
        ask(
            &store,
            "select count(*), count(distinct profile) from profiles"
        ),
        ["1,1"]
    );
}

#[test]
fn hosts_become_one_profile_with_exact_sums() {
    let place = Place::new();
    let store = place.store();
    for host in ["a", "b", "c"] {
        succeed(&mut push(&store, host, recorded(500)));
    }
    succeed(&mut push(&store, "a", recorded(5000)));
    let merged = place.path("merged.thalweg");
    let mut top = fleet();
    top.args(["fleet", "top", "--service", "db", "--from", &store, "--as"])
        .arg(&merged);
    succeed(&mut top);
    let merged = thalweg_model::read_file(&merged).expect("a profile");
    let mut expected = times(totals(profile(500)), 3);
    for (key, (calls, own)) in totals(profile(5000)) {
        let sum = expected.entry(key).or_default();
        (sum.0, sum.1) = (sum.0 + calls, sum.1 + own);
    }
    let own: std::collections::BTreeMap<_, _> = thalweg_analysis::flat(&merged)
        .into_iter()
        .map(|row| {
            let function = &merged.functions[row.function];
            let module = merged.modules[function.module as usize].name.clone();
            ((function.name.clone(), module), (row.calls, row.self_ns))
        })
        .fold(
            std::collections::BTreeMap::new(),
            |mut all, (key, (calls, own))| {
                let sum: &mut (u64, u64) = all.entry(key).or_default();
                (sum.0, sum.1) = (sum.0 + calls, sum.1 + own);
                all
            },
        );
    assert_eq!(own, expected);
    let nodes = &merged.processes[0].threads[0].nodes;
    let roots: u64 = nodes
        .iter()
        .filter(|node| node.parent.is_none())
        .map(|node| node.total_ns)
        .sum();
    assert_eq!(roots, nodes.iter().map(|node| node.self_ns).sum::<u64>());
}

#[test]
fn an_answer_becomes_a_profile_with_the_callers_of_what_was_asked() {
    let place = Place::new();
    let store = place.store();
    succeed(&mut push(&store, "a", recorded(500)));
    let file = place.path("part.thalweg");
    let recorded = profile(500);
    let nodes = &recorded.processes[0].threads[0].nodes;
    let inner = nodes.iter().filter(|node| node.parent.is_some());
    let inner = inner.max_by_key(|node| node.calls).expect("calls");
    let name = &recorded.functions[inner.function].name;
    let sql = format!(
        "select c.path as path, sum(f.calls) as calls, sum(f.self_ns) as self_ns from figures f \
         join contexts c on f.tree = c.tree and f.node = c.node \
         where path_contains(c.path, '{name}') group by c.path"
    );
    succeed(
        fleet()
            .args(["query", &sql, "--from", &store, "--as"])
            .arg(&file),
    );
    let part = thalweg_model::read_file(&file).expect("a profile");
    let asked = ask(
        &store,
        &format!("select cast(sum(calls) as bigint) from ({sql})"),
    );
    let nodes = &part.processes[0].threads[0].nodes;
    let calls: u64 = nodes.iter().map(|node| node.calls).sum();
    assert_eq!(calls.to_string(), asked[0]);
    // By samples, what was asked of may have no time at all.
    let above = nodes.iter().filter_map(|node| node.parent);
    let mut callers = above.map(|parent| &nodes[parent as usize]);
    assert!(
        callers.any(|node| node.calls == 0),
        "those above {name} are there"
    );
}

#[test]
fn find_knows_who_calls_whom() {
    let place = Place::new();
    let store = place.store();
    succeed(&mut push(&store, "a", recorded(500)));
    let profile = profile(500);
    let nodes = &profile.processes[0].threads[0].nodes;
    // The most called function that something calls.
    let callee = nodes
        .iter()
        .filter(|node| node.parent.is_some())
        .max_by_key(|node| node.calls)
        .expect("calls");
    let name = |function: thalweg_model::FuncId| &*profile.functions[function].name;
    let caller = &nodes[callee.parent.expect("a caller") as usize];
    let is_it = |node: &thalweg_model::Node| {
        let above = node
            .parent
            .map(|parent| name(nodes[parent as usize].function));
        name(node.function) == name(callee.function) && above == Some(name(caller.function))
    };
    let all = thalweg_analysis::threads(&profile).count();
    assert_eq!(all, 1, "sqlite3 has one thread");
    let calls: u64 = nodes
        .iter()
        .filter(|node| is_it(node))
        .map(|node| node.calls)
        .sum();
    let path = format!("{} -> {}", name(caller.function), name(callee.function));
    let found =
        succeed(fleet().args(["fleet", "find", &path, "--from", &store, "--format", "json"]));
    let found: serde_json::Value = serde_json::from_str(found.trim()).expect("a row");
    assert_eq!(found["calls"].as_u64(), Some(calls), "{path}: {found}");
    let backwards = format!("{} -> {}", name(callee.function), name(caller.function));
    assert_eq!(
        succeed(fleet().args([
            "fleet", "find", &backwards, "--from", &store, "--format", "json"
        ])),
        ""
    );
}

#[test]
fn a_question_reads_the_day_that_it_is_about() {
    let place = Place::new();
    let store = place.store();
    let dated = |day: u32| {
        crate::support::dated(place.0.path(), 500, &format!("2026-03-{day:02}T12:00:00Z"))
    };
    let cost = || {
        let mut top = fleet();
        top.args([
            "fleet",
            "top",
            "--from",
            &store,
            "--service",
            "db",
            "--since",
            "2026-03-02",
            "--until",
            "2026-03-02T23:59:00Z",
            "--cost",
        ]);
        let output = crate::support::run(&mut top);
        (
            String::from_utf8(output.stdout).expect("UTF-8"),
            String::from_utf8(output.stderr).expect("UTF-8"),
        )
    };
    for day in 1..=3 {
        succeed(&mut push(&store, "a", &dated(day)));
    }
    let small = cost();
    assert!(small.0.contains("sqlite3"), "{small:?}");
    for day in 4..=28 {
        succeed(&mut push(&store, "a", &dated(day)));
    }
    assert_eq!(cost(), small, "the same answer, and the same bytes read");
}

#[test]
fn thalweg_hands_over() {
    let place = Place::new();
    recorded(500);
    // Both programs side by side, as they are installed.
    let thalweg = place.path("thalweg");
    std::fs::copy(crate::support::thalweg(), &thalweg).expect("copied");
    let missing = crate::support::refuse(
        Command::new(&thalweg)
            .args(["query", "select 1"])
            .env("PATH", "/nonexistent"),
    );
    assert!(
        missing.contains("cargo build --release --manifest-path crates/fleet/Cargo.toml"),
        "{missing}"
    );
    std::os::unix::fs::symlink(
        env!("CARGO_BIN_EXE_thalweg-fleet"),
        place.path("thalweg-fleet"),
    )
    .expect("linked");
    let store = place.store();
    let to = |what: &[&str]| {
        succeed(
            Command::new(&thalweg)
                .args(what)
                .env("PATH", "/nonexistent"),
        )
    };
    to(&[
        "push",
        recorded(500).to_str().expect("UTF-8"),
        "--to",
        &store,
        "--service",
        "db",
        "--host",
        "a",
    ]);
    let answer = to(&[
        "query",
        "select service, host from profiles",
        "--from",
        &store,
        "--format",
        "csv",
    ]);
    assert_eq!(answer, "service,host\ndb,a\n");
    assert!(to(&["push", "--help"]).contains("thalweg push"));
    assert!(to(&["agent", "--help"]).contains("thalweg agent"));
}

/// A function that takes four times as long since a release, on hosts that differ a little.
#[test]
fn diff_tells_a_change_from_chance() {
    let place = Place::new();
    let store = place.store();
    let original = profile(500);
    let nodes = &original.processes[0].threads[0].nodes;
    // Timed at each call: its time has no error of its own.
    let timed = nodes.iter().filter(|node| node.untimed == 0);
    let slow = timed
        .max_by_key(|node| node.self_ns)
        .expect("calls")
        .function;
    for (number, host) in ["a", "b", "c", "d"].iter().enumerate() {
        for (release, factor) in [("old", 1), ("new", 4)] {
            let mut profile = original.clone();
            profile.meta.created_unix_ns += number as u64;
            // The figures are what is written here: nothing of them is probes' or told by samples.
            profile.meta.costs = None;
            profile.meta.overhead_ns_per_call = 0.0;
            profile.meta.sampling = None;
            profile.sampled.clear();
            profile.processes[0]
                .threads
                .iter_mut()
                .for_each(|thread| thread.samples.clear());
            for (index, node) in profile.processes[0].threads[0].nodes.iter_mut().enumerate() {
                let chance = 100 + (index * 7 + number * 13 + factor * 3) as u64 % 5;
                let factor = if node.function == slow {
                    factor as u64
                } else {
                    1
                };
                node.self_ns = node.self_ns * factor * chance / 100;
            }
            let file = place.path(&format!("{host}-{release}.thalweg"));
            thalweg_model::write_file(&file, &profile).expect("written");
            let mut push = fleet();
            push.args(["push", "-q", "--to", &store, "--service", "db"]);
            succeed(push.args(["--host", host, "--release", release]).arg(&file));
        }
    }
    let diff = |before: &str, after: &str| {
        let mut diff = fleet();
        diff.args([
            "fleet",
            "diff",
            "--from",
            &store,
            "--service",
            "db",
            "-f",
            "json",
        ]);
        succeed(diff.args(["--before", before, "--after", after]))
    };
    let name = &original.functions[slow].name;
    let found = diff("old", "new");
    let first = found.lines().next().expect("a change");
    let first: serde_json::Value = serde_json::from_str(first).expect("JSON");
    assert_eq!(first["function"].as_str(), Some(name.as_str()), "{found}");
    assert_eq!(first["real"], true);
    assert!(first["change"].as_f64().expect("a number") > 0.0, "{first}");
    let back = diff("new", "old");
    let first: serde_json::Value =
        serde_json::from_str(back.lines().next().expect("a change")).expect("JSON");
    assert!(first["change"].as_f64().expect("a number") < 0.0, "{first}");
    // The history has the same step.
    let mut trend = fleet();
    trend.args([
        "fleet",
        "trend",
        name,
        "--from",
        &store,
        "--service",
        "db",
        "-f",
        "json",
    ]);
    let trend = succeed(&mut trend);
    let row = |release: &str| {
        let rows = trend
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let mut rows = rows.filter(|row: &serde_json::Value| row["release"] == release);
        rows.next().expect("a row")
    };
    let (old, new) = (row("old"), row("new"));
    assert_eq!(old["calls"], new["calls"]);
    assert!(
        new["self_ns"].as_u64() > old["self_ns"].as_u64().map(|own| 3 * own),
        "{trend}"
    );
}
