//! Samples only divide time: whatever stacks were seen, the calls of every path are what was counted, and no caller is invented.

use crate::looks::{record_program, threads};
use crate::support::build::Build;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use thalweg_model::{NodeFlags, Profile};

fn shown(raw: &Profile) -> Profile {
    let mut shown = raw.clone();
    thalweg_analysis::compensate(&mut shown);
    thalweg_analysis::estimate(&mut shown);
    assert!(thalweg_analysis::fill(&mut shown), "there were samples");
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
            path.push(node.function);
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
    let called: BTreeSet<u32> = threads(raw)
        .flat_map(|thread| &thread.nodes)
        .map(|node| node.function)
        .collect();
    let off = crate::looks::off(raw);
    let nodes = threads(shown).flat_map(|thread| &thread.nodes);
    nodes
        .filter(|node| node.calls == 0 && called.contains(&node.function))
        .filter(|node| !off.contains(&node.function))
        .filter(|node| !node.flags.contains(NodeFlags::ON_STACK_AT_ATTACH))
        .map(|node| shown.functions[node.function as usize].name.clone())
        .collect()
}

#[track_caller]
fn assert_nothing_invented(program: &Path, options: &[&str], arguments: &[&str]) {
    let options = [&["--samples", "9999"], options].concat();
    let (_, raw) = record_program(program, &options, arguments);
    let shown = shown(&raw);
    assert!(calls(&raw) == calls(&shown), "calls moved");
    assert_eq!(invented(&raw, &shown), Vec::<String>::new());
    let nobodys = threads(&shown).flat_map(|thread| &thread.nodes);
    let nobodys = nobodys.filter(|node| {
        shown.functions[node.function as usize].name == thalweg_analysis::NOT_ATTRIBUTED
    });
    let nobodys: u64 = nobodys.map(|node| node.base).sum();
    let all: u64 = threads(&shown)
        .flat_map(|thread| &thread.nodes)
        .map(|node| node.base)
        .sum();
    assert!(nobodys * 20 <= all, "{nobodys} of {all} ns are nobody's");
}

fn installed(name: &str) -> Option<std::path::PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

#[test]
fn ls_has_the_callers_that_it_has() {
    let ls = installed("ls").expect("ls");
    for options in [&[][..], &["--time", "all"], &["--budget", "5%"]] {
        assert_nothing_invented(&ls, options, &["-laR", "--color=always", "/usr/share/doc"]);
    }
}

#[test]
fn cpython_has_the_callers_that_it_has() {
    let Some(python) = installed("python3.11") else {
        return;
    };
    let script = "import json, re\nfor i in range(300): json.loads(json.dumps({'a': [1, 2.5, 'x'] * 40}))\nre.findall('a+b', 'aab' * 5000)";
    for options in [&[][..], &["--time", "all"], &["--budget", "5%"]] {
        assert_nothing_invented(&python, options, &["-c", script]);
    }
}

/// Samples of one thread by the innermost function.
fn innermost(profile: &Profile, name: &str) -> f64 {
    let frames = threads(profile).flat_map(|thread| &thread.samples);
    let of_it = frames.filter(|frame| profile.functions[frame.function as usize].name == name);
    of_it.map(|frame| frame.own as f64).sum()
}

fn own_ns(profile: &Profile, name: &str) -> f64 {
    let rows = thalweg_analysis::flat(profile);
    let row = rows
        .iter()
        .find(|row| profile.functions[row.function as usize].name == name);
    row.map_or(0.0, |row| row.base as f64)
}

/// hard() does three times what easy() does: by the program's own clock where no probe is, and by what is reported in the default mode. Calls
/// of 20, 100 and 1,000 ns: of 5 ns half is hidden behind the probes.
#[test]
fn what_takes_three_times_as_long_is_seen_to() {
    let pairs = Build::simple("pairs.c");
    for (steps, calls) in [("12", "20000000"), ("60", "4000000"), ("600", "400000")] {
        let output = Command::new(&pairs.path)
            .arg(steps)
            .output()
            .expect("pairs");
        let said = String::from_utf8(output.stdout).expect("text");
        let own: Vec<f64> = said
            .split_whitespace()
            .map(|word| word.parse().expect("a number"))
            .collect();
        let [easy_ns, hard_ns] = own[..] else {
            panic!("{said}")
        };
        let options = ["--samples", "1999"];
        let (_, raw) = record_program(&pairs.path, &options, &[steps, calls]);
        let shown = shown(&raw);
        let ratio = own_ns(&shown, "hard") / own_ns(&shown, "easy");
        // What so many samples may be off by, but for one run in some ten thousand.
        let chance = 4.0
            * (1.0 / innermost(&raw, "hard").max(1.0) + 1.0 / innermost(&raw, "easy").max(1.0))
                .sqrt();
        let off = ratio / (hard_ns / easy_ns);
        assert!(
            ((1.0 - 0.15 - chance)..(1.0 + 0.15 + chance)).contains(&off),
            "{easy_ns} and {hard_ns} ns by themselves are reported as 1 to {ratio}, which chance moves by {chance}"
        );
    }
}
