//! What the reports say of real recordings: time is charged to the caller that used it, sums hold in every stanza, merged
//! and compared profiles add up.

use crate::support::build::Build;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, refuse, succeed, text};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Records a program into a file that lives as long as the scratch folder.
#[track_caller]
fn record_into(scratch: &Scratch, name: &str, program: &Path, arguments: &[&str]) -> PathBuf {
    let file = scratch.join(name);
    let output = command()
        .args(["record", "--no-report", "-q", "-o"])
        .arg(&file)
        .arg("--")
        .arg(program)
        .args(arguments)
        .output()
        .expect("thalweg starts");
    assert!(output.status.success(), "{}", text(&output));
    file
}

#[track_caller]
fn json(arguments: &[&str], file: &Path) -> Value {
    let mut all = arguments.to_vec();
    all.push(file.to_str().expect("UTF-8"));
    all.push("--json");
    serde_json::from_str(&succeed(&all)).expect("JSON")
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

fn stanza<'a>(arcs: &'a Value, name: &str) -> &'a Value {
    let stanzas = arcs["stanzas"].as_array().expect("stanzas");
    let found = stanzas.iter().find(|stanza| stanza["name"] == name);
    found.unwrap_or_else(|| panic!("{name} has no stanza"))
}

fn arc<'a>(stanza: &'a Value, side: &str, name: &str) -> &'a Value {
    let arcs = stanza[side].as_array().expect("arcs");
    let found = arcs.iter().find(|arc| arc["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not among the {side} of {}", stanza["name"]))
}

fn arc_of_child<'a>(arcs: &'a Value, caller: &str) -> &'a Value {
    arc(stanza(arcs, caller), "children", "D")
}

/// gprof gives both callers half of D's time, since both call it 40 times.
#[test]
fn a_callees_time_goes_to_the_caller_that_used_it() {
    let scratch = Scratch::new();
    let program = Build::simple("shared_time.c");
    let file = record_into(&scratch, "shared.thalweg", &program.path, &[]);

    let arcs = json(&["report", "--arcs"], &file);
    let d = stanza(&arcs, "D");
    assert_eq!(number(&d["calls"]), 80);
    let (by_b, by_c) = (arc(d, "parents", "B"), arc(d, "parents", "C"));
    assert_eq!((number(&by_b["calls"]), number(&by_c["calls"])), (40, 40));
    let whole = number(&d["total_ns"]);
    assert_eq!(number(&by_b["total_ns"]) + number(&by_c["total_ns"]), whole);
    // Each caller has what its own calls took, not a share by their number: what the one context has in the tree.
    let tree = json(&["report", "--tree"], &file);
    let rows = tree["threads"][0]["rows"].as_array().expect("rows");
    for (caller, arc) in [("B", by_b), ("C", by_c)] {
        let at = rows.iter().position(|row| row["name"] == caller);
        let below = &rows[at.unwrap_or_else(|| panic!("{caller} is not in the tree")) + 1];
        assert_eq!(
            (&below["name"], &below["total_ns"]),
            (&d["name"], &arc["total_ns"])
        );
        let child = arc_of_child(&arcs, caller);
        assert_eq!(child["total_ns"], arc["total_ns"]);
    }

    // How it is split, in calls, which no load of the machine moves: 75 and 25 ticks a call.
    let callers = json(&["report", "--callers", "tick"], &file);
    let rows = callers["functions"][0]["tree"]["rows"]
        .as_array()
        .expect("rows");
    let calls_by = |name: &str| {
        let row = rows
            .iter()
            .find(|row| row["name"] == name && row["level"] == 2);
        number(&row.unwrap_or_else(|| panic!("{name} is not above D"))["calls"])
    };
    assert_eq!((calls_by("B"), calls_by("C")), (3000, 1000));
}

/// (1) to (3): the parents' calls, base and cum are those of self; (4): the children's cum is self's less its base.
#[test]
fn the_four_sums_hold_in_every_stanza_of_a_real_program() {
    let scratch = Scratch::new();
    let script = crate::support::build::targets().join("real/work.lua");
    let script = script.to_str().expect("UTF-8");
    let file = record_into(&scratch, "lua.thalweg", Path::new("lua5.4"), &[script]);
    let arcs = json(&["report", "--arcs"], &file);
    let stanzas = arcs["stanzas"].as_array().expect("stanzas");
    assert!(stanzas.len() > 100, "{} functions", stanzas.len());
    for stanza in stanzas {
        let name = &stanza["name"];
        let sum = |side: &str, figure: &str| {
            let arcs = stanza[side].as_array().expect("arcs");
            arcs.iter().map(|arc| number(&arc[figure])).sum::<u64>()
        };
        for figure in ["calls", "self_ns", "total_ns"] {
            assert_eq!(
                sum("parents", figure),
                number(&stanza[figure]),
                "{figure} of {name}"
            );
        }
        assert_eq!(
            sum("children", "total_ns"),
            number(&stanza["total_ns"]) - number(&stanza["self_ns"]),
            "children of {name}"
        );
    }
}

#[test]
fn merged_and_combined_profiles_have_the_calls_of_all() {
    let scratch = Scratch::new();
    let program = Build::simple("shared_time.c");
    let files: Vec<PathBuf> = ["one", "two", "three"]
        .iter()
        .map(|name| record_into(&scratch, name, &program.path, &[]))
        .collect();
    let calls = |file: &Path, name: &str| {
        let flat = json(&["report", "--flat", "-F", &format!("^{name}$")], file);
        number(&flat["functions"][0]["calls"])
    };
    let merge = |options: &[&str], output: &str| {
        let output = scratch.join(output);
        let mut arguments = vec!["merge", "-q", "-o", output.to_str().expect("UTF-8")];
        arguments.extend(files.iter().map(|file| file.to_str().expect("UTF-8")));
        arguments.extend(options);
        succeed(&arguments);
        output
    };
    let merged = merge(&[], "merged");
    assert_eq!(number(&json(&["summary"], &merged)["threads"]), 3);
    assert_eq!((calls(&merged, "D"), calls(&merged, "tick")), (240, 12000));
    assert_eq!(
        json(&["report", "--context", "B -> D"], &merged)["contexts"][0]["threads"]
            .as_array()
            .map(Vec::len),
        Some(3)
    );

    let combined = merge(&["--combine"], "combined");
    let threads = json(&["threads"], &combined);
    assert_eq!(threads["threads"].as_array().map(Vec::len), Some(1));
    assert_eq!(number(&threads["threads"][0]["others"]), 2);
    assert_eq!(
        (calls(&combined, "D"), calls(&combined, "tick")),
        (240, 12000)
    );

    let pruned = merge(&["--combine", "--min-coverage", "1"], "pruned");
    let (before, after) = (json(&["summary"], &combined), json(&["summary"], &pruned));
    assert_eq!(before["calls"], after["calls"]);
    assert_eq!(before["time_ns"], after["time_ns"]);
    let contexts = number(&json(&["summary"], &merged)["contexts"]);
    assert!(number(&after["contexts"]) < contexts / 3);
    assert_eq!(calls(&pruned, "tick"), 12000);
}

#[test]
fn a_profile_differs_from_itself_in_nothing_and_from_another_in_what_changed() {
    let scratch = Scratch::new();
    let program = Build::simple("recursion.c");
    let before = record_into(&scratch, "before", &program.path, &[]);
    let other = Build::simple("shared_time.c");
    let after = record_into(&scratch, "after", &other.path, &[]);
    let (before, after) = (
        before.to_str().expect("UTF-8"),
        after.to_str().expect("UTF-8"),
    );
    for view in [&["--all"][..], &["--all", "--contexts"]] {
        let mut arguments = vec!["diff", before, before, "--json"];
        arguments.extend(view);
        let same: Value = serde_json::from_str(&succeed(&arguments)).expect("JSON");
        let rows = same["rows"].as_array().expect("rows");
        assert!(!rows.is_empty());
        assert!(
            rows.iter()
                .all(|row| row["calls"]["change"] == 0.0 && row["self_ns"]["change"] == 0.0)
        );
    }
    let changed = succeed(&["diff", before, after, "--json", "-F", "^tick$"]);
    let changed: Value = serde_json::from_str(&changed).expect("JSON");
    assert_eq!(changed["rows"][0]["calls"]["change"], 4000.0);
    assert!(refuse(&["diff", before]).contains("diff"));
    refuse(&["merge", before, "/no/such/file", "-o", "/dev/null"]);
    assert!(
        refuse(&["report", before, "--callers", "no_such_function"]).contains("no_such_function")
    );
}

#[test]
fn pruned_reports_and_exports_lose_no_call() {
    let scratch = Scratch::new();
    let program = Build::simple("shared_time.c");
    let file = record_into(&scratch, "whole", &program.path, &[]);
    let flat = |options: &[&str]| {
        let mut arguments = vec!["report", "--flat"];
        arguments.extend(options);
        let report = json(&arguments, &file);
        let rows = report["functions"].as_array().expect("functions").clone();
        let sum = |figure: &str| rows.iter().map(|row| number(&row[figure])).sum::<u64>();
        let names: Vec<String> = rows.iter().map(|row| row["name"].to_string()).collect();
        (sum("calls"), sum("self_ns"), names)
    };
    let (whole, pruned) = (flat(&[]), flat(&["--min-calls", "40"]));
    assert_eq!((whole.0, whole.1), (pruned.0, pruned.1));
    assert!(pruned.2.len() < whole.2.len() / 2, "{:?}", pruned.2);
    assert!(pruned.2.contains(&"\"[pruned]\"".to_string()));
    assert!(!pruned.2.contains(&"\"A\"".to_string()), "called once");
    let exported = succeed(&[
        "export",
        file.to_str().expect("UTF-8"),
        "--format",
        "json",
        "--min-calls",
        "40",
    ]);
    let exported: Value = serde_json::from_str(&exported).expect("JSON");
    let nodes = exported["processes"][0]["threads"][0]["nodes"].as_array();
    let calls = nodes.expect("nodes").iter().map(|n| number(&n["calls"]));
    assert_eq!(calls.sum::<u64>(), whole.0);
    assert!(
        refuse(&[
            "report",
            file.to_str().expect("UTF-8"),
            "--min-coverage",
            "x"
        ])
        .contains("100")
    );
}

#[test]
fn a_pruned_graph_joins_what_is_left_to_its_closest_ancestor() {
    let scratch = Scratch::new();
    let program = Build::simple("shared_time.c");
    let file = record_into(&scratch, "whole", &program.path, &[]);
    let graph = |options: &[&str]| {
        let mut arguments = vec!["report", "--graph"];
        arguments.extend(options);
        json(&arguments, &file)
    };
    let edge = |graph: &Value, caller: &str, callee: &str| {
        let edges = graph["edges"].as_array().expect("edges").clone();
        let found = edges
            .iter()
            .find(|edge| edge["caller"] == caller && edge["callee"] == callee);
        found.map(|edge| (number(&edge["calls"]), edge["link"].to_string()))
    };
    let call = |calls| Some((calls, "\"call\"".to_string()));
    let whole = graph(&[]);
    assert_eq!(edge(&whole, "B", "D"), call(40));
    assert_eq!(edge(&whole, "C", "D"), call(40));
    assert_eq!(edge(&whole, "D", "tick"), call(4000));

    // D and tick are all that was called that often; D hangs on nobody then.
    let functions = graph(&["--min-calls", "80"]);
    let nodes = functions["nodes"].as_array().expect("nodes");
    assert!(nodes.iter().any(|node| node["name"] == "D"));
    assert!(!nodes.iter().any(|node| node["name"] == "B"));
    let joined = functions["edges"].as_array().expect("edges");
    let into_d: Vec<&Value> = joined.iter().filter(|e| e["callee"] == "D").collect();
    assert_eq!(into_d.len(), 1, "{joined:?}");
    assert_eq!(
        (number(&into_d[0]["calls"]), &into_d[0]["link"]),
        (80, &Value::from("indirect"))
    );
    assert_eq!(edge(&functions, "D", "tick"), call(4000));

    let edges = graph(&["--min-edge-calls", "1000"]);
    assert_eq!(edges["nodes"], whole["nodes"], "functions stay");
    // Both edges into D are too light: one is kept so that D hangs on somebody, with its own calls; the rest is told.
    let into_d = ["B", "C"].map(|caller| edge(&edges, caller, "D"));
    assert!(
        into_d.contains(&call(40)) && into_d.contains(&None),
        "{into_d:?}"
    );
    let rest = Some((40, "\"rest\"".to_string()));
    assert_eq!(edge(&edges, "(other callers)", "D"), rest);
    assert_eq!(edge(&edges, "D", "tick"), call(4000));
    assert!(succeed(&["report", "--graph", file.to_str().expect("UTF-8")]).contains("B -> D"));

    let picture = |options: &[&str]| {
        let mut arguments = vec!["graph", file.to_str().expect("UTF-8"), "--format", "dot"];
        arguments.extend(options);
        succeed(&arguments)
    };
    let all = picture(&["--cutoff", "0"]);
    let few = picture(&["--min-calls", "80"]);
    assert!(
        all.contains("label=\"B\\n") && !few.contains("label=\"B\\n"),
        "{few}"
    );
    assert!(few.contains("label=\"D\\n"), "{few}");
    let arcs = |picture: &str| picture.matches(" -> ").count();
    let thin = picture(&["--cutoff", "0", "--min-arc", "5"]);
    assert!(arcs(&thin) < arcs(&all), "{thin}");
    assert_eq!(
        thin.matches("label=").count(),
        all.matches("label=").count()
    );
}

/// Counts are exact and the same, and what times differ by is within their errors.
#[test]
fn two_runs_of_one_program_show_no_change() {
    let scratch = Scratch::new();
    let program = Build::simple("shared_time.c");
    let first = record_into(&scratch, "first.thalweg", &program.path, &[]);
    let second = record_into(&scratch, "second.thalweg", &program.path, &[]);
    let name = |file: &Path| file.to_str().expect("UTF-8").to_owned();
    let diff = |before: &Path, after: &Path| -> Value {
        let said = succeed(&["diff", &name(before), &name(after), "--all", "--json"]);
        serde_json::from_str(&said).expect("JSON")
    };
    // Of one file nothing differs; of two no count does.
    for (file, times) in [(&first, true), (&second, false)] {
        let rows = diff(&first, file);
        let rows = rows["rows"].as_array().expect("rows");
        assert!(!rows.is_empty());
        for row in rows {
            assert_eq!(row["calls"]["significant"], false, "{row}");
            assert!(!times || row["self_ns"]["significant"] == false, "{row}");
        }
    }
    let said = succeed(&["diff", &name(&first), &name(&first)]);
    assert!(said.contains("Nothing changed."), "{said}");
}

#[test]
fn threads_are_asked_for_by_who_made_them_and_by_their_level() {
    let scratch = Scratch::new();
    let file = scratch.join("swarm.thalweg");
    let mut record = command();
    record.args(["record", "-q", "-F", "^(begin_|.*_body$|work$|main$)", "-o"]);
    record
        .arg(&file)
        .arg("--")
        .arg(Build::simple("swarm.c").path);
    let output = record
        .args(["chain", "40", "4", "5"])
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", text(&output));
    let context = |wanted: &str| json(&["report", "--context", wanted], &file)["contexts"].clone();
    for kind in ["even", "odd"] {
        let made = context(&format!("begin_{kind} -> {kind}_body"));
        assert_eq!(made.as_array().map(Vec::len), Some(1), "{made}");
        assert_eq!(made[0]["creation"], true);
        let threads = made[0]["threads"].as_array().expect("threads");
        assert_eq!(threads.len(), 20, "{kind}");
        assert!(
            threads
                .iter()
                .all(|one| one["calls"] == 1 && one["level"] == 1)
        );
    }
    let inside = context("work@1");
    let calls = inside[0]["threads"].as_array().expect("threads").iter();
    assert_eq!(calls.map(|one| number(&one["calls"])).sum::<u64>(), 40);
    assert_eq!(inside[0]["level"], 1);
    let path = file.to_str().expect("UTF-8");
    for (wanted, said) in [
        (
            "begin_even -> odd_body",
            "nor made a thread that began in it",
        ),
        ("work@3", "in no thread of level 3"),
    ] {
        let refused = refuse(&["report", "--context", wanted, path]);
        assert!(refused.contains(said), "{refused}");
    }
}
