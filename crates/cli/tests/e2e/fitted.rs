//! Samples only divide time: whatever stacks were seen, the calls of every path are what was counted, and no caller is invented.

use crate::samples::threads;
use crate::support::scratch::Scratch;
use crate::support::thalweg::{command, succeed};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use thalweg_model::{FuncId, NodeFlags, Profile, read_file};

fn shown(raw: &Profile) -> Profile {
    let mut shown = raw.clone();
    thalweg_analysis::compensate(&mut shown);
    thalweg_analysis::estimate(&mut shown);
    assert!(
        thalweg_analysis::attribute_samples(&mut shown),
        "there were samples"
    );
    shown
}

/// Calls by path, of those that have any.
fn calls(profile: &Profile) -> BTreeMap<Vec<u32>, u64> {
    let mut all = BTreeMap::new();
    for thread in threads(profile) {
        let mut paths: Vec<Vec<u32>> = Vec::new();
        for node in &thread.nodes {
            let above = node.parent.map(|parent| paths[parent as usize].clone());
            let mut path = above.unwrap_or_else(|| vec![thread.tid]);
            path.push(node.function.0);
            if node.calls > 0 {
                *all.entry(path.clone()).or_default() += node.calls;
            }
            paths.push(path);
        }
    }
    all
}

/// Functions that were off for a while may have contexts in which no call was counted; others only what was on the stack at attach.
fn invented(raw: &Profile, shown: &Profile) -> Vec<String> {
    let called: BTreeSet<FuncId> = threads(raw)
        .flat_map(|thread| &thread.nodes)
        .map(|node| node.function)
        .collect();
    let off = crate::samples::off(raw);
    let nodes = threads(shown).flat_map(|thread| &thread.nodes);
    nodes
        .filter(|node| node.calls == 0 && called.contains(&node.function))
        .filter(|node| !off.contains(&node.function))
        .filter(|node| !node.flags.contains(NodeFlags::ON_STACK_AT_ATTACH))
        .map(|node| shown.functions[node.function].name.clone())
        .collect()
}

/// Calls by caller and callee, as the command says, of a file.
fn edges(file: &str, options: &[&str]) -> BTreeMap<(String, String, String), u64> {
    let arguments = [&["report", "--graph", "--json", file], options].concat();
    let graph: serde_json::Value = serde_json::from_str(&succeed(&arguments)).expect("JSON");
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut edges = BTreeMap::new();
    for edge in graph["edges"].as_array().expect("edges") {
        let calls = edge["calls"].as_u64().expect("calls");
        if calls > 0 {
            let names = ["caller", "callee", "link"].map(|key| word(&edge[key]));
            *edges.entry(names.into()).or_default() += calls;
        }
    }
    edges
}

/// Records one program in one way. What samples do to it: no call moves, no edge between counted
/// functions appears, and nearly all time has a place.
#[track_caller]
fn assert_nothing_invented(program: &Program, options: &[&str]) {
    let scratch = Scratch::new();
    let file = scratch.word("profile.thalweg");
    let mut record = command();
    record.args([
        "record",
        "-q",
        "--no-report",
        "--samples",
        "9999",
        "-o",
        &file,
    ]);
    record.args(options).arg("--").arg(&program.path);
    record.args(program.arguments).stdin(Stdio::piped());
    record.stdout(Stdio::null()).stderr(Stdio::null());
    let mut record = record.spawn().expect("thalweg starts");
    let mut stdin = record.stdin.take().expect("piped");
    // A program that reads nothing may have ended.
    let _ = stdin.write_all(program.input.as_bytes());
    drop(stdin);
    assert!(record.wait().expect("thalweg ends").success());

    let raw = read_file(Path::new(&file)).expect("a profile");
    let shown = shown(&raw);
    let what = format!("{} {options:?}", program.path.display());
    assert!(calls(&raw) == calls(&shown), "calls moved: {what}");
    assert_eq!(invented(&raw, &shown), Vec::<String>::new(), "{what}");
    let nobodys = threads(&shown).flat_map(|thread| &thread.nodes);
    let nobodys = nobodys
        .filter(|node| shown.functions[node.function].name == thalweg_analysis::NOT_ATTRIBUTED);
    let nobodys: u64 = nobodys.map(|node| node.self_ns).sum();
    let all: u64 = threads(&shown)
        .flat_map(|thread| &thread.nodes)
        .map(|node| node.self_ns)
        .sum();
    assert!(
        nobodys * 20 <= all,
        "{nobodys} of {all} ns are nobody's: {what}"
    );
    // What the command shows.
    let measured = edges(&file, &["--raw"]);
    assert!(measured.len() > 20, "{} edges: {what}", measured.len());
    assert_eq!(measured, edges(&file, &[]), "{what}");
}

struct Program {
    path: PathBuf,
    arguments: &'static [&'static str],
    input: String,
}

/// One that is installed.
fn installed(
    name: &str,
    arguments: &'static [&'static str],
    input: impl Into<String>,
) -> Option<Program> {
    let paths = std::env::var_os("PATH")?;
    let path = std::env::split_paths(&paths)
        .map(|folder| folder.join(name))
        // A script that stands for it is none of its calls.
        .find(|path| std::fs::read(path).is_ok_and(|text| text.starts_with(b"\x7fELF")))?;
    let input = input.into();
    Some(Program {
        path,
        arguments,
        input,
    })
}

/// Each way that samples and counts are put together in.
const WAYS: [&[&str]; 5] = [
    &[],
    &["--time", "all"],
    &["--budget", "5%"],
    &["--call-sites"],
    &["--restless"],
];

#[track_caller]
fn assert_callers(program: Option<Program>) {
    let Some(program) = program else { return };
    for options in WAYS {
        assert_nothing_invented(&program, options);
    }
}

#[test]
fn ls_has_the_callers_that_it_has() {
    let arguments = &["-laR", "--color=always", "/usr/share/doc"];
    assert_callers(installed("ls", arguments, ""));
}

#[test]
fn cpython_has_the_callers_that_it_has() {
    let script = "import json, re\n\
        for i in range(300): json.loads(json.dumps({'a': [1, 2.5, 'x'] * 40}))\n\
        re.findall('a+b', 'aab' * 5000)";
    let Some(python) = installed("python3.11", &["-"], script) else {
        return;
    };
    for way in WAYS {
        for language in ["on", "off"] {
            let options = [way, &["--python", language]].concat();
            assert_nothing_invented(&python, &options);
        }
    }
}

#[test]
fn sqlite_has_the_callers_that_it_has() {
    let work = include_str!("../../../../tests/targets/real/work.sql");
    assert_callers(installed("sqlite3", &[":memory:"], work));
}

#[test]
fn lua_has_the_callers_that_it_has() {
    let work = include_str!("../../../../tests/targets/real/work.lua");
    assert_callers(installed("lua5.4", &["-", "20"], work));
}

#[test]
fn scripts_have_the_callers_that_they_have() {
    let perl = "my %h; $h{$_ % 97} .= chr(65 + $_ % 26) for 1..40000; \
        print join ',', sort { $h{$a} cmp $h{$b} } keys %h;";
    assert_callers(installed("perl", &["-"], perl));
    let bash = "f() { local i; for ((i = 0; i < $1; i++)); do s=${s:0:20}x$i; done; }; \
        for n in 1 2 3; do f 1500; done; echo $s";
    assert_callers(installed("bash", &["-s"], bash));
    let json = "[1, {\"a\": [2, 3.5, \"x\"]}]\n".repeat(400);
    assert_callers(installed("jq", &["-c", "[.. | numbers] | add"], json));
}
