//! Call sites: each place that calls is counted for itself, exactly, and by how it calls; without the option, and in
//! every view that was not asked for sites, nothing changes.

use crate::support::build::{Build, Program, targets};
use crate::support::live::Live;
use crate::support::scratch::Scratch;
use crate::support::text::assert_restored;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn program() -> Program {
    let library = Build::new("sites_lib").source("sites_lib.c").flag("-O2");
    Build::new("sites")
        .source("sites.c")
        .flag("-O2")
        .shared(library)
        .finish()
}

fn path(file: &Path) -> &str {
    file.to_str().expect("UTF-8")
}

#[track_caller]
fn recorded(scratch: &Scratch, options: &[&str], program: &Path, arguments: &[&str]) -> PathBuf {
    let file = scratch.join(&format!("{}.thalweg", options.concat()));
    let output = command()
        .args(["record", "-q", "--no-report", "-o", path(&file)])
        .args(options)
        .arg("--")
        .arg(program)
        .args(arguments)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeed(arguments)).expect("JSON")
}

fn exported(file: &Path) -> Value {
    json(&["export", path(file), "--format", "json", "-o", "-"])
}

/// Caller, line, callee, and how: "direct", "indirect tail".
type Site = (String, u64, String, String);

/// Calls of all contexts that have a site in `file`.
fn counted(profile: &Value, file: &str) -> BTreeMap<Site, u64> {
    let name = |function: &Value| {
        let function = &profile["functions"][function.as_u64().expect("a number") as usize];
        function["name"].as_str().expect("a name").to_owned()
    };
    let mut counted = BTreeMap::new();
    for process in profile["processes"].as_array().expect("processes") {
        for thread in process["threads"].as_array().expect("threads") {
            let nodes = thread["nodes"].as_array().expect("nodes");
            for node in nodes {
                let site_file = node["site_file"].as_str().unwrap_or_default();
                let Some(parent) = node["parent"].as_u64() else {
                    continue;
                };
                if !site_file.ends_with(file) {
                    continue;
                }
                let mut how = match (node.get("direct"), node.get("indirect")) {
                    (Some(calls), None) if *calls == node["calls"] => "direct".to_owned(),
                    (None, Some(calls)) if *calls == node["calls"] => "indirect".to_owned(),
                    other => panic!("{other:?} in {node}"),
                };
                if node["tail"] == true {
                    how += " tail";
                }
                let caller = name(&nodes[parent as usize]["function"]);
                let site = node["site"].as_str().expect("a name");
                assert_eq!(site.split('+').next(), Some(caller.as_str()), "{node}");
                let line = node["site_line"].as_u64().expect("a line");
                let key = (caller, line, name(&node["function"]), how);
                *counted.entry(key).or_default() += node["calls"].as_u64().expect("calls");
            }
        }
    }
    counted
}

/// What the source says of itself: `SITE caller callee calls how`.
fn expected() -> BTreeMap<Site, u64> {
    let source = std::fs::read_to_string(targets().join("sites.c")).expect("a source");
    let mut expected = BTreeMap::new();
    for (line, text) in (1..).zip(source.lines()) {
        for mark in text.split("/* SITE ").skip(1) {
            let words = mark.split("*/").next().expect("a mark");
            let words: Vec<&str> = words.split_whitespace().collect();
            let calls = words[2].parse().expect("a number");
            let (caller, callee) = (words[0].to_owned(), words[1].to_owned());
            expected.insert((caller, line, callee, words[3..].join(" ")), calls);
        }
    }
    assert!(expected.len() > 10);
    expected
}

fn without_main(mut sites: BTreeMap<Site, u64>) -> BTreeMap<Site, u64> {
    sites.retain(|(caller, ..), _| caller != "main");
    sites
}

#[test]
fn every_site_has_its_calls_and_says_how_it_calls() {
    let scratch = Scratch::new();
    for options in [&["--call-sites"][..], &["--call-sites", "--no-clock"]] {
        let file = recorded(&scratch, options, &program().path, &[]);
        let found = without_main(counted(&exported(&file), "sites.c"));
        assert_eq!(found, expected(), "{options:?}");
    }
}

#[test]
fn callgrind_counts_the_same_calls_at_the_same_lines() {
    let scratch = Scratch::new();
    let program = program();
    let out = scratch.join("callgrind.out");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "-q", "--compress-strings=no"])
        .args(["--compress-pos=no", "--dump-line=yes"])
        .arg(format!("--callgrind-out-file={}", path(&out)))
        .arg(&program.path)
        .stdout(std::process::Stdio::null())
        .status();
    assert!(status.expect("valgrind starts").success());
    let plain = |name: &str| name.split('\'').next().unwrap_or(name).to_owned();
    let mut theirs: BTreeMap<(String, u64, String), u64> = BTreeMap::new();
    let (mut caller, mut callee, mut calls) = (String::new(), String::new(), None);
    for line in std::fs::read_to_string(&out).expect("a file").lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            caller = plain(name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            callee = plain(name);
        } else if let Some(rest) = line.strip_prefix("calls=") {
            calls = rest
                .split_whitespace()
                .next()
                .and_then(|n| n.parse::<u64>().ok());
        } else if let Some(count) = calls.take() {
            let at = line.split_whitespace().next().expect("a line");
            let key = (caller.clone(), at.parse().expect("a line"), callee.clone());
            *theirs.entry(key).or_default() += count;
        }
    }
    let file = recorded(&scratch, &["--call-sites"], &program.path, &[]);
    let ours = counted(&exported(&file), "sites.c");
    let mut compared = 0;
    for ((caller, line, callee, how), calls) in ours {
        let found = theirs.get(&(caller.clone(), line, callee.clone()));
        assert_eq!(found, Some(&calls), "{caller}:{line} {callee} {how}");
        compared += 1;
    }
    assert!(compared > 15, "{compared} sites");
}

#[test]
fn views_that_were_not_asked_for_sites_are_as_without_them() {
    let scratch = Scratch::new();
    let program = program();
    let with = recorded(&scratch, &["--call-sites"], &program.path, &[]);
    let without = recorded(&scratch, &[], &program.path, &[]);
    // What is called how often in which context, whatever the order and the clock.
    let tree = |file: &Path, sites: bool| {
        let mut arguments = vec!["report", "--tree", "--json", path(file)];
        if sites {
            arguments.push("--sites");
        }
        let report = json(&arguments);
        let mut rows = Vec::new();
        let mut chain: Vec<String> = Vec::new();
        for row in report["threads"][0]["rows"].as_array().expect("rows") {
            chain.truncate(row["level"].as_u64().expect("a level") as usize);
            chain.push(row["name"].as_str().expect("a name").to_owned());
            if chain.contains(&"main".to_owned()) {
                rows.push((chain.join(" "), row["calls"].as_u64()));
            }
        }
        rows.sort();
        rows
    };
    assert_eq!(tree(&with, false), tree(&without, false));
    assert!(tree(&with, true).len() > tree(&with, false).len() + 100);
    assert!(refuse(&["report", "--tree", "--sites", path(&without)]).contains("--call-sites"));
    assert!(refuse(&["report", "--flat", "--sites", path(&with)]).contains("--tree"));

    let callers = succeed(&["report", "--callers", "leaf", "--sites", path(&with)]);
    for site in ["twice+0x", "by_pointer+0x", "by_table+0x"] {
        assert!(callers.contains(site), "{callers}");
    }
    assert!(callers.contains("sites.c:"), "{callers}");
    assert!(callers.contains(", indirect tail call"), "{callers}");

    let arcs = json(&["report", "--arcs", "--sites", "--json", path(&with)]);
    let stanzas = arcs["stanzas"].as_array().expect("stanzas");
    let leaf = stanzas.iter().find(|s| s["name"] == "leaf").expect("leaf");
    let parents = leaf["parents"].as_array().expect("parents");
    assert_eq!(parents.len(), 6, "{parents:?}");
    for figure in ["calls", "self_ns", "total_ns"] {
        let sum: u64 = parents.iter().filter_map(|p| p[figure].as_u64()).sum();
        assert_eq!(Some(sum), leaf[figure].as_u64(), "{figure}");
    }

    let summary = json(&["summary", "--json", path(&with)]);
    let sum = |how: &str| -> u64 {
        let expected = expected().into_iter();
        let meant = expected.filter(|((.., h), _)| h.starts_with(how));
        meant.map(|(_, calls)| calls).sum()
    };
    assert!(summary["direct_calls"].as_u64() >= Some(sum("direct")));
    assert!(summary["indirect_calls"].as_u64() >= Some(sum("indirect")));
    assert!(summary["indirect_calls"].as_u64() < Some(sum("indirect") + 30));
    let plain = json(&["summary", "--json", path(&without)]);
    assert_eq!(plain.get("direct_calls"), None);
    assert_eq!(summary["contexts"], plain["contexts"]);
}

#[test]
fn files_that_were_merged_compared_and_pruned_keep_their_calls() {
    let scratch = Scratch::new();
    let with = recorded(&scratch, &["--call-sites"], &program().path, &[]);
    let merged = scratch.join("merged");
    let merge = |options: &[&str]| {
        let mut arguments = vec!["merge", "-q", path(&with), path(&with), "-o", path(&merged)];
        arguments.extend(options);
        succeed(&arguments);
    };
    for options in [&[][..], &["--combine"]] {
        merge(options);
        let twice = without_main(counted(&exported(&merged), "sites.c"));
        let expected: BTreeMap<Site, u64> =
            expected().into_iter().map(|(s, n)| (s, 2 * n)).collect();
        assert_eq!(twice, expected, "{options:?}");
    }
    merge(&["--min-calls", "5"]);
    let pruned = json(&["report", "--flat", "--json", "-F", "^leaf$", path(&merged)]);
    assert_eq!(pruned["functions"][0]["calls"], 2 * 94);
    let same = json(&[
        "diff",
        path(&with),
        path(&with),
        "--json",
        "--all",
        "--contexts",
    ]);
    let rows = same["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["calls"]["change"] == 0.0));
}

#[test]
fn exports_say_at_which_line_a_call_is_made() {
    let scratch = Scratch::new();
    let with = recorded(&scratch, &["--call-sites"], &program().path, &[]);
    let export = |format: &str, name: &str| {
        let out = scratch.join(name);
        succeed(&["export", path(&with), "--format", format, "-o", path(&out)]);
        out
    };
    let lines: Vec<u64> = expected().into_keys().map(|(_, line, ..)| line).collect();

    let callgrind = std::fs::read_to_string(export("callgrind", "callgrind.out")).expect("a file");
    let mut at = Vec::new();
    let mut calls = callgrind.lines();
    while let Some(line) = calls.next() {
        if line.starts_with("calls=") {
            let cost = calls.next().expect("a cost");
            at.push(cost.split_whitespace().next().and_then(|n| n.parse().ok()));
        }
    }
    for line in &lines {
        assert!(at.contains(&Some(*line)), "line {line} makes calls");
    }

    let pprof = export("pprof", "p.pb.gz");
    let listed = Command::new("go")
        .args(["tool", "pprof", "-lines", "-traces", path(&pprof)])
        .output()
        .expect("go starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for line in lines {
        assert!(listed.contains(&format!("sites.c:{line}")), "{listed}");
    }
    // The way back knows functions, as always.
    let back = scratch.join("back");
    succeed(&["import", "-q", path(&pprof), "-o", path(&back)]);
    let flat = |file: &Path| {
        let report = json(&[
            "report",
            "--flat",
            "--json",
            "-F",
            "^(leaf|tree)$",
            path(file),
        ]);
        let rows = report["functions"].as_array().expect("functions").clone();
        let figures =
            |row: &Value| ["name", "calls", "self_ns", "total_ns"].map(|f| row[f].to_string());
        rows.iter().map(figures).collect::<Vec<_>>()
    };
    assert_eq!(flat(&back), flat(&with));
}

/// By name everything that the parts of `all.c` do, whose probes are of every kind.
#[test]
fn counts_are_those_without_sites() {
    let scratch = Scratch::new();
    let program = Build::all_parts().flag("-O2").link_flag("-lm").finish();
    let own = program.functions();
    let calls = |options: &[&str]| {
        let file = recorded(&scratch, options, &program.path, &[]);
        let flat = json(&["report", "--flat", "--json", path(&file)]);
        let mut calls: BTreeMap<String, u64> = BTreeMap::new();
        for row in flat["functions"].as_array().expect("functions") {
            let name = row["name"].as_str().expect("a name");
            if own.contains(name) {
                *calls.entry(name.to_owned()).or_default() += row["calls"].as_u64().expect("calls");
            }
        }
        calls
    };
    let expected = calls(&[]);
    assert!(expected.len() > 50, "{expected:?}");
    assert_eq!(calls(&["--call-sites"]), expected);
    assert_eq!(calls(&["--call-sites", "--no-clock"]), expected);
}

#[test]
fn a_library_that_was_closed_is_still_known_by_its_lines() {
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
    let arguments = [path(&plug.path), "3", "now"];
    let file = recorded(&scratch, &["--call-sites"], &loading.path, &arguments);
    let sites = counted(&exported(&file), "plug.c");
    let calls: u64 = sites
        .iter()
        .filter(|((caller, _, callee, _), _)| caller == "plug_work" && callee == "plug_step")
        .map(|(_, calls)| calls)
        .sum();
    assert_eq!(calls, 300, "{sites:?}");
}

#[test]
fn a_working_process_is_attached_read_and_left_as_it_was() {
    let mut live = Live::ready(&Build::simple("torture.c").path, &[]);
    let before = live.text();
    let id = live.id();
    succeed(&["attach", "--budget", "off", "--call-sites", &id]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let callers = succeed(&["report", "-p", &id, "--callers", "fib", "--sites"]);
    assert!(
        callers.contains("computing+0x") && callers.contains("torture.c:"),
        "{callers}"
    );
    live.assert_healthy();
    succeed(&["detach", &id]);
    assert_restored(&before, &live.text());
    let (words, status) = live.terminate();
    assert!(status.success() && words.starts_with("OK "), "{words}");
}

/// Programs that say themselves how often each of their functions was called: with handlers that come at any moment, and
/// with more contexts than there is memory for.
#[test]
fn totals_are_exact_among_signals_and_where_contexts_are_folded() {
    let scratch = Scratch::new();
    let signals = Build::simple("signals.c");
    let contexts = Build::simple("contexts.c");
    let few = ["--call-sites", "--memory", "4M"];
    let runs: [(&Program, &[&str], &[&str]); 2] = [
        (&signals, &["--call-sites"], &[]),
        (&contexts, &few, &["500000"]),
    ];
    for (program, options, arguments) in runs {
        let file = scratch.join("profile.thalweg");
        let output = command()
            .args(["record", "-q", "--no-report", "-o", path(&file)])
            .args(options)
            .arg("--")
            .arg(&program.path)
            .args(arguments)
            .output()
            .expect("thalweg starts");
        assert!(output.status.success(), "{}", text(&output));
        let flat = json(&["report", "--flat", "--json", path(&file)]);
        let rows = flat["functions"].as_array().expect("functions");
        let mut compared = 0;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(Ok(calls))) = (words.next(), words.next().map(str::parse::<u64>))
            else {
                continue;
            };
            if let Some(row) = rows.iter().find(|row| row["name"] == name) {
                assert_eq!(row["calls"], calls, "{name}");
                compared += 1;
            }
        }
        assert!(compared >= 8, "{}", text(&output));
    }
}
